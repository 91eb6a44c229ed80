"""Calls into librdkafka that may never return, and the order of those of a commit."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import cast

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from penstock.runtime.kafka import transactions
from penstock.runtime.kafka.transactions import FLUSH_SLICE_SECONDS, CallThread, GroupMetadata, HungError, TransactionalProducer
from penstock.runtime.model.errors import TaskMigratedError, TransactionAbortedError
from penstock.runtime.model.ids import TopicPartition
from penstock.runtime.model.offsets import OffsetAndMetadata


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


def test_a_call_that_was_begun_runs_beside_its_caller() -> None:
    thread, both = CallThread("test"), threading.Barrier(2)
    future = thread.begin(lambda: both.wait(10), 10)
    both.wait(10)  # ends only if the call is under way
    assert thread.result(future, 10) in (0, 1)
    thread.close()


def test_a_call_that_was_begun_completes_before_the_next_one_if_nobody_waits_for_it() -> None:
    thread, let_go = CallThread("test"), threading.Event()
    order: list[str] = []

    def slow() -> None:
        let_go.wait(10)
        order.append("slow")

    thread.begin(slow, 10)
    let_go.set()
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


GUARD = {TopicPartition("guard", 0): OffsetAndMetadata(0, "")}
INPUT = {TopicPartition("in", 0): OffsetAndMetadata(7, "")}
RETRIABLE = KafkaException(KafkaError(KafkaError.CONCURRENT_TRANSACTIONS, "the markers are being written", False, True))
ABORTS = KafkaException(KafkaError(KafkaError.ILLEGAL_GENERATION, "the group has another generation", False, False, True))


class Client:
    """Answers a request for offsets once a flush is under way, with the next of `answers`."""

    def __init__(self, *answers: KafkaException | None) -> None:
        self.answers = list(answers)
        self.calls: list[str] = []
        self.longest = 0.0
        self._flushing = threading.Event()

    def produce(self) -> None: ...

    def send_offsets_to_transaction(self, offsets: list[ClientPartition], group: str, seconds: float) -> None:
        assert self._flushing.wait(10), "nothing is sent while the brokers take the offsets"
        self.calls.append(f"{offsets[0].topic}@{offsets[0].offset} of {group}")
        if (answer := self.answers.pop(0)) is not None:
            raise answer

    def flush(self, seconds: float) -> int:
        self._flushing.set()
        self.longest = max(seconds, self.longest)
        threading.Event().wait(seconds)
        return 1

    def purge(self) -> None: ...


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.fixture
def producer(client: Client, monkeypatch: pytest.MonkeyPatch) -> Iterator[TransactionalProducer]:
    monkeypatch.setattr(transactions, "transactional_producer", lambda _properties, _id: client)
    made = TransactionalProducer({}, "id", cast(GroupMetadata, "the application"), lambda: False)
    yield made
    made.close()


def test_records_are_sent_while_the_brokers_take_the_offsets(client: Client, producer: TransactionalProducer) -> None:
    client.answers += [None, None]
    beside: list[str] = []
    producer.begin_offsets(GUARD, cast(GroupMetadata, "the members"), INPUT)
    producer.end_offsets(lambda: beside.append("done"))
    assert client.calls == ["guard@0 of the members", "in@7 of the application"]
    assert beside == ["done"]


def test_offsets_that_were_taken_are_not_sent_again_with_those_that_were_not(client: Client, producer: TransactionalProducer) -> None:
    client.answers += [None, RETRIABLE, None]
    producer.begin_offsets(GUARD, cast(GroupMetadata, "the members"), INPUT)
    producer.end_offsets(lambda: None)
    assert client.calls == ["guard@0 of the members", *["in@7 of the application"] * 2]


def test_a_refused_guard_does_not_wait_for_records_that_are_not_sent_any_more(client: Client, producer: TransactionalProducer) -> None:
    client.answers += [ABORTS]
    producer.begin_offsets(GUARD, cast(GroupMetadata, "the members"), INPUT)
    with pytest.raises(TransactionAbortedError):
        producer.end_offsets(lambda: None)
    assert client.calls == ["guard@0 of the members"]
    assert client.longest <= FLUSH_SLICE_SECONDS


def test_a_call_for_offsets_that_does_not_return_is_noticed_while_records_wait(
    client: Client, producer: TransactionalProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a broker that is frozen: neither the records nor the offsets are answered."""
    let_go = threading.Event()
    monkeypatch.setattr(transactions, "_ADDING_SECONDS", 0.1)
    monkeypatch.setattr(client, "send_offsets_to_transaction", lambda *_given: let_go.wait(30))
    producer.begin_offsets(GUARD, cast(GroupMetadata, "the members"), INPUT)
    with pytest.raises(TaskMigratedError, match="does not return from a call"):
        producer.end_offsets(lambda: None)
    let_go.set()
