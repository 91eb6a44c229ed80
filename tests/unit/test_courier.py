"""Calls that may never return."""

from __future__ import annotations

import threading

import pytest

from runtime.commit.courier import Courier, HungError


def test_results_and_errors_come_back() -> None:
    courier = Courier("test")
    assert courier.call(lambda: 3, 10) == 3
    with pytest.raises(ZeroDivisionError):
        courier.call(lambda: 1 // 0, 10)
    assert courier.call(lambda: threading.current_thread().name, 10) == "test"
    courier.close()


def test_a_call_that_does_not_return_is_left_and_no_other_is_made() -> None:
    courier, ended, made = Courier("test"), threading.Event(), []
    with pytest.raises(HungError):
        courier.call(lambda: ended.wait(30), 0.05)
    assert courier.hung
    with pytest.raises(HungError):
        courier.call(lambda: made.append(1), 10)
    ended.set()
    courier.close()
    assert made == []


def test_a_timeout_that_the_function_raises_is_not_taken_for_a_hang() -> None:
    courier = Courier("test")

    def late() -> None:
        raise TimeoutError("mine")

    with pytest.raises(TimeoutError, match="mine"):
        courier.call(late, 10)
    assert not courier.hung
    courier.close()
