"""A transport's handling of delivery reports, with a producer that reports when the test says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
from confluent_kafka import KafkaError, Message

from penstock.runtime.commit import at_least_once
from penstock.runtime.commit.at_least_once import AtLeastOnce
from penstock.runtime.commit.refusals import ANY_MS, Limits, Origin, Output, Refusals, TopicLimits
from penstock.runtime.kafka.transactions import GroupMetadata, TransactionalProducer
from penstock.runtime.model.ids import NextOffset, TopicPartition
from penstock.runtime.model.offsets import OffsetAndMetadata

CHANGELOG = TopicPartition("app-counts-changelog", 0)
INPUT = {TopicPartition("in", 0): OffsetAndMetadata(1, "")}


class Sent:
    """A record that was appended to the log; its producer has no report yet."""

    def __init__(self, topic: str, offset: int, report: Callable[[KafkaError | None, Message], None]) -> None:
        self._topic, self._offset, self._report = topic, offset, report

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def tell(self) -> None:
        self._report(None, cast(Message, self))


class Producer:
    """Appends at once; reports come with `flush`, except those that the test holds back."""

    def __init__(self, *arguments: object, **named: object) -> None:
        self.unreported: list[Sent] = []
        self.held: list[Sent] = []
        self._end = 0

    def produce(
        self, topic: str, value: object, key: object, partition: int, report: Callable[[KafkaError | None, Message], None], *rest: object
    ) -> None:
        self.unreported.append(Sent(topic, self._end, report))
        self._end += 1

    def hold(self) -> None:
        self.held, self.unreported = self.unreported, []

    def flush(self, seconds: float) -> int:
        while self.unreported:
            self.unreported.pop(0).tell()
        return 0


class Transactions:
    """A transaction that always succeeds."""

    def send_offsets(self, *arguments: object) -> None: ...

    def commit(self) -> None: ...

    def abort(self) -> None: ...


class Nobody:
    """Refusals of no record."""

    def origin(self) -> Origin:
        return Origin(None, "", -1, -1, None, None)

    def limits(self, topic: str) -> TopicLimits:
        return TopicLimits(1_000, ANY_MS, ANY_MS)


@pytest.fixture
def transport(monkeypatch: pytest.MonkeyPatch) -> AtLeastOnce:
    monkeypatch.setattr(at_least_once, "producer", lambda _properties: Producer())
    return AtLeastOnce(
        {},
        cast(TransactionalProducer, Transactions()),
        lambda: cast(GroupMetadata, object()),
        TopicPartition("guard", 0),
        cast(Refusals, Nobody()),
        lambda: False,
    )


def test_a_delivery_report_after_an_abort_does_not_move_the_stores_offset(transport: AtLeastOnce) -> None:
    """The record is on the changelog, but it was rolled back in the store: the store must not take its offset."""
    producer = cast(Producer, transport._producer._client)
    transport.send_changelog(CHANGELOG, [(b"a", b"1", 0)])
    producer.hold()
    transport.abort()
    for late in producer.held:
        late.tell()
    assert transport.commit(INPUT) == {}
    transport.send_changelog(CHANGELOG, [(b"a", b"1", 0)])
    assert transport.commit(INPUT) == {CHANGELOG: NextOffset(2)}


def output(size: int) -> Output:
    return Output("out", b"", b"." * size, 0, None, 0)


def test_batches_to_a_topic_that_refused_for_size_are_kept_below_its_limit() -> None:
    flushes: list[int] = []
    limits = Limits(cast(Refusals, Nobody()), lambda: flushes.append(len(flushes)))
    assert limits.make_room(output(5_000)) is None  # nothing is known of the topic yet
    assert limits.learn({"out"}) == set()
    assert all(limits.make_room(output(300)) is None for _ in range(4))
    assert len(flushes) == 1
    error = limits.make_room(output(1_000))
    assert error is not None and error.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE
    assert limits.learn({"out"}) == {"out"}  # the limit was known: a batch was refused that should have fitted
