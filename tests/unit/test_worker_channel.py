"""The conversation of an instance's process with a worker's (`runtime/worker/channel.py`)."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from runtime.errors import InvalidStateStoreError, ProcessingError, StreamsError, TaskCorruptedError
from runtime.ids import TaskId
from runtime.worker.channel import Channel, ChannelClosedError, Failure
from tests.support import wait_until


class Picky(Exception):
    """Does not survive a pickle: what is made of it takes two arguments."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} {two}")


class Pair:
    """Two ends, each served on a thread of its own. `answer` is what the second says to a question."""

    def __init__(self) -> None:
        self.heard: list[object] = []
        self.held: Future[object] = Future()
        left, right = socket.socketpair()
        self.asker = Channel(left, lambda _: None, self.heard.append)
        self.answerer = Channel(right, self.answer, self.heard.append)
        self.threads = [threading.Thread(target=end.serve, daemon=True) for end in (self.asker, self.answerer)]
        for thread in self.threads:
            thread.start()

    def answer(self, subject: object) -> object:
        if isinstance(subject, Exception):
            raise subject
        if subject == "picky":
            raise Picky("one", "two")
        if subject == "damaged":
            raise TaskCorruptedError([TaskId(0, 1)], "damaged")
        return self.held if subject == "later" else ("answer", subject)


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.asker.close()
    made.answerer.close()
    for thread in made.threads:
        thread.join(5)
        assert not thread.is_alive()


def test_a_question_has_its_answer(pair: Pair) -> None:
    assert pair.asker.ask("question").result(5) == ("answer", "question")


def test_what_is_told_is_heard_in_order(pair: Pair) -> None:
    for number in range(100):
        pair.answerer.tell(number)
    wait_until(lambda: len(pair.heard) == 100, 5)
    assert pair.heard == list(range(100))


def test_an_answer_that_takes_longer_keeps_no_other_waiting(pair: Pair) -> None:
    later = pair.asker.ask("later")
    assert pair.asker.ask("now").result(5) == ("answer", "now")
    assert not later.done()
    pair.held.set_result("at last")
    assert later.result(5) == "at last"


def test_what_the_other_side_raises_is_raised_here(pair: Pair) -> None:
    with pytest.raises(InvalidStateStoreError, match="store 'x' is unknown"):
        pair.asker.ask(InvalidStateStoreError("store 'x' is unknown")).result(5)
    with pytest.raises(StreamsError, match="tasks 0_1: damaged"):
        pair.asker.ask("damaged").result(5)


def test_an_error_that_cannot_be_sent_comes_with_its_name_and_text(pair: Pair) -> None:
    with pytest.raises(StreamsError, match="Picky: one two"):
        pair.asker.ask("picky").result(5)


def test_causes_go_with_an_error() -> None:
    error = ProcessingError("node A: ValueError", topic="flights", offset=7)
    error.__cause__ = ValueError("no number")
    got = Failure.of(error).error
    assert isinstance(got, ProcessingError) and (got.topic, got.offset) == ("flights", 7)
    assert isinstance(got.__cause__, ValueError)


def test_what_cannot_be_sent_fails_where_it_is_said_and_the_conversation_goes_on(pair: Pair) -> None:
    with pytest.raises(StreamsError, match="cannot be handed to another process"):
        pair.asker.ask(lambda: None)
    with pytest.raises(StreamsError, match="cannot be handed to another process"):
        pair.asker.tell(lambda: None)
    assert pair.asker.ask("question").result(5) == ("answer", "question")


def test_questions_that_were_not_answered_fail_when_the_other_side_is_gone(pair: Pair) -> None:
    later = pair.asker.ask("later")
    pair.answerer.close()
    with pytest.raises(ChannelClosedError):
        later.result(5)
    with pytest.raises(ChannelClosedError):
        pair.asker.ask("too late").result(5)


def test_nobody_waits_for_a_side_that_does_not_read() -> None:
    left, right = socket.socketpair()
    channel = Channel(left, lambda _: None, lambda _: None)
    for _ in range(100):
        channel.tell(b"x" * 100_000)  # far more than the socket takes
    right.close()
    channel.close()
