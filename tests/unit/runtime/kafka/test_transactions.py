"""Calls into librdkafka that may never return."""

from __future__ import annotations

import threading

import pytest

from penstock.runtime.kafka.transactions import CallThread, HungError


def test_results_and_exceptions_are_returned_to_the_caller() -> None:
    thread = CallThread("test")
    assert thread.call(lambda: 3, 10) == 3
    with pytest.raises(ZeroDivisionError):
        thread.call(lambda: 1 // 0, 10)
    assert thread.call(lambda: threading.current_thread().name, 10) == "test"
    thread.close()


def test_after_a_call_that_hangs_no_other_is_made() -> None:
    thread, ended, made = CallThread("test"), threading.Event(), []
    with pytest.raises(HungError):
        thread.call(lambda: ended.wait(30), 0.05)
    assert thread.hung
    with pytest.raises(HungError):
        thread.call(lambda: made.append(1), 10)
    ended.set()
    thread.close()
    assert made == []


def test_the_caller_runs_beside_during_a_call() -> None:
    thread, both = CallThread("test"), threading.Barrier(2)
    order: list[str] = []

    def call() -> str:
        both.wait(10)
        order.append("call")
        return "answer"

    def beside() -> None:
        order.append("beside")
        both.wait(10)  # ends only if the call is under way

    assert thread.call(call, 10, beside) == "answer"
    assert order == ["beside", "call"]
    thread.close()


def test_a_call_completes_before_the_next_one_even_if_beside_fails() -> None:
    thread, let_go = CallThread("test"), threading.Event()
    order: list[str] = []

    def slow() -> None:
        let_go.wait(10)
        order.append("slow")

    def fails() -> None:
        let_go.set()
        raise ValueError("beside")

    with pytest.raises(ValueError, match="beside"):
        thread.call(slow, 10, fails)
    thread.call(lambda: order.append("next"), 10)
    assert order == ["slow", "next"]
    thread.close()


def test_a_timeout_that_the_function_raises_is_not_taken_for_a_hang() -> None:
    thread = CallThread("test")

    def late() -> None:
        raise TimeoutError("mine")

    with pytest.raises(TimeoutError, match="mine"):
        thread.call(late, 10)
    assert not thread.hung
    thread.close()
