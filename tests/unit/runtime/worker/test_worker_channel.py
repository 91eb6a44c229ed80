"""The channel between an instance's process and a worker's (`runtime/worker/supervisor/channel.py`)."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import cast

import pytest

from penstock.runtime.model.errors import InvalidStateStoreError, ProcessingError, StreamsError, TaskCorruptedError
from penstock.runtime.model.ids import TaskId
from penstock.runtime.worker.supervisor.channel import Channel, ChannelClosedError, Failure
from penstock.runtime.worker.supervisor.messages import Rows
from penstock.runtime.worker.supervisor.process_worker import ProcessWorker, RemoteRows
from tests.support import wait_until


class Picky(Exception):
    """An error that cannot be unpickled: its constructor takes two arguments."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} {two}")


class Pair:
    """Two ends, each served on a thread of its own. `answer` handles the requests at the second one."""

    def __init__(self) -> None:
        self.received: list[object] = []
        self.held: Future[object] = Future()
        left, right = socket.socketpair()
        self.requester = Channel(left, lambda _: None, self.received.append)
        self.responder = Channel(right, self.answer, self.received.append)
        self.threads = [threading.Thread(target=end.serve, daemon=True) for end in (self.requester, self.responder)]
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
    made.requester.close()
    made.responder.close()
    for thread in made.threads:
        thread.join(5)
        assert not thread.is_alive()


def test_a_request_gets_its_response(pair: Pair) -> None:
    assert pair.requester.request("anything").result(5) == ("answer", "anything")


def test_notifications_arrive_in_order(pair: Pair) -> None:
    for number in range(100):
        pair.responder.notify(number)
    wait_until(lambda: len(pair.received) == 100, 5)
    assert pair.received == list(range(100))


def test_a_slow_response_does_not_delay_others(pair: Pair) -> None:
    later = pair.requester.request("later")
    assert pair.requester.request("now").result(5) == ("answer", "now")
    assert not later.done()
    pair.held.set_result("at last")
    assert later.result(5) == "at last"


def test_an_error_of_the_other_side_is_raised_here(pair: Pair) -> None:
    with pytest.raises(InvalidStateStoreError, match="store 'x' is unknown"):
        pair.requester.request(InvalidStateStoreError("store 'x' is unknown")).result(5)
    with pytest.raises(StreamsError, match="tasks 0_1: damaged"):
        pair.requester.request("damaged").result(5)


def test_an_error_that_cannot_be_pickled_arrives_with_its_name_and_text(pair: Pair) -> None:
    with pytest.raises(StreamsError, match="Picky: one two"):
        pair.requester.request("picky").result(5)


def test_an_error_keeps_its_causes() -> None:
    error = ProcessingError("node A: ValueError", topic="flights", offset=7)
    error.__cause__ = ValueError("no number")
    got = Failure.of(error).error
    assert isinstance(got, ProcessingError) and (got.topic, got.offset) == ("flights", 7)
    assert isinstance(got.__cause__, ValueError)


def test_a_message_that_cannot_be_pickled_fails_at_its_sender_and_the_channel_stays_open(pair: Pair) -> None:
    with pytest.raises(StreamsError, match="cannot be handed to another process"):
        pair.requester.request(lambda: None)
    with pytest.raises(StreamsError, match="cannot be handed to another process"):
        pair.requester.notify(lambda: None)
    assert pair.requester.request("anything").result(5) == ("answer", "anything")


def test_open_requests_fail_when_the_other_side_is_gone(pair: Pair) -> None:
    later = pair.requester.request("later")
    pair.responder.close()
    with pytest.raises(ChannelClosedError):
        later.result(5)
    with pytest.raises(ChannelClosedError):
        pair.requester.request("too late").result(5)


def test_a_sender_does_not_wait_for_a_peer_that_does_not_read() -> None:
    left, right = socket.socketpair()
    channel = Channel(left, lambda _: None, lambda _: None)
    for _ in range(100):
        channel.notify(b"x" * 100_000)  # far more than the socket takes
    right.close()
    channel.close()


class Process:
    """A worker's process that has one more row of every iterator."""

    def __init__(self) -> None:
        self.closed: list[int] = []

    def next_rows(self, number: int) -> Rows:
        return Rows((number,), None)

    def close_rows(self, number: int) -> None:
        self.closed.append(number)


def test_an_iterator_of_another_process_is_closed_there_when_it_is_dropped_begun_or_not() -> None:
    process = Process()
    begun = RemoteRows(cast(ProcessWorker, process), Rows((1, 2), 7))
    assert next(begun) == 1
    del begun
    RemoteRows(cast(ProcessWorker, process), Rows((1, 2), 8))
    assert process.closed == [7, 8]
    assert list(RemoteRows(cast(ProcessWorker, process), Rows((1, 2), 9))) == [1, 2, 9] and process.closed == [7, 8]
