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


def test_something_else_is_done_while_a_call_is_on_its_way() -> None:
    courier, both = Courier("test"), threading.Barrier(2)
    order: list[str] = []

    def call() -> str:
        both.wait(10)
        order.append("call")
        return "answer"

    def beside() -> None:
        order.append("beside")
        both.wait(10)  # ends only if the call is under way

    assert courier.call(call, 10, beside) == "answer"
    assert order == ["beside", "call"]
    courier.close()


def test_a_call_is_not_overtaken_by_the_next_one_where_what_is_done_beside_it_fails() -> None:
    courier, let_go = Courier("test"), threading.Event()
    order: list[str] = []

    def slow() -> None:
        let_go.wait(10)
        order.append("slow")

    def fails() -> None:
        let_go.set()
        raise ValueError("beside")

    with pytest.raises(ValueError, match="beside"):
        courier.call(slow, 10, fails)
    courier.call(lambda: order.append("next"), 10)
    assert order == ["slow", "next"]
    courier.close()


def test_a_timeout_that_the_function_raises_is_not_taken_for_a_hang() -> None:
    courier = Courier("test")

    def late() -> None:
        raise TimeoutError("mine")

    with pytest.raises(TimeoutError, match="mine"):
        courier.call(late, 10)
    assert not courier.hung
    courier.close()
