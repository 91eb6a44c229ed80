"""Kafka Streams' punctuation times, without an engine around them (`PunctuationQueue`)."""

from __future__ import annotations

import pytest

from penstock.runtime.model.clock import NEVER
from penstock.runtime.operators.punctuation import PunctuationQueue, Punctuator


def queue_with(first: int, interval: int) -> tuple[PunctuationQueue, list[int]]:
    queue = PunctuationQueue()
    calls: list[int] = []
    queue.schedule(first, interval, calls.append)
    return queue, calls


def test_a_punctuator_is_called_with_the_current_time_and_then_after_an_interval() -> None:
    queue, calls = queue_with(0, 10)
    assert queue.punctuate(0) == 1
    assert queue.punctuate(9) == 0
    assert queue.punctuate(10) == 1
    assert queue.punctuate(25) == 1
    assert calls == [0, 10, 25]
    assert queue.due == 30


def test_missed_intervals_are_made_up_by_one_call() -> None:
    queue, calls = queue_with(0, 10)
    assert queue.punctuate(57) == 1
    assert calls == [57]
    assert queue.due == 60


def test_a_schedule_that_starts_later_keeps_its_own_multiples() -> None:
    queue, calls = queue_with(105, 10)
    assert queue.punctuate(104) == 0
    queue.punctuate(105)
    queue.punctuate(131)
    assert calls == [105, 131]
    assert queue.due == 135


def test_punctuators_due_at_the_same_time_run_in_the_order_of_javas_priority_queue() -> None:
    queue = PunctuationQueue()
    calls: list[str] = []

    def named(name: str) -> Punctuator:
        return lambda now: calls.append(name)

    for name in "abcde":
        queue.schedule(0, 10, named(name))
    for now, order in [(0, "aebdc"), (10, "dceab"), (20, "abcde")]:  # as Java puts them
        queue.punctuate(now)
        assert "".join(calls) == order
        calls.clear()


def test_a_cancelled_punctuator_is_not_called_again_even_if_it_cancels_itself() -> None:
    queue = PunctuationQueue()
    calls: list[str] = []

    def once(now: int) -> None:
        calls.append("inside")
        inside.cancel()

    outside = queue.schedule(0, 10, lambda now: calls.append("outside"))
    inside = queue.schedule(0, 10, once)
    queue.punctuate(0)
    outside.cancel()
    assert queue.punctuate(10) == 0
    assert calls == ["outside", "inside"]
    assert queue.due == NEVER


def test_a_punctuator_that_raises_stays_scheduled() -> None:
    def fail(now: int) -> None:
        raise IndexError

    queue = PunctuationQueue()
    queue.schedule(0, 10, fail)
    with pytest.raises(IndexError):
        queue.punctuate(5)
    assert queue.due == 10


def test_an_interval_below_a_millisecond_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 ms"):
        PunctuationQueue().schedule(0, 0, print)


def test_nothing_scheduled_is_never_due() -> None:
    queue = PunctuationQueue()
    assert queue.due == NEVER
    assert queue.punctuate(1 << 50) == 0
