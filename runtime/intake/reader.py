"""Reads the input of all tasks of a worker with one consumer, in runs of one partition.

The consumer is assigned by hand and never joins its group, so the group stays empty and an operator may reset its offsets while the
application runs. It has no policy for offsets that are out of range: that is reported, and decided above (`auto.offset.reset`).

`consume(n, t)` waits the full `t` unless `n` messages are there, so what is there is taken with `t = 0`, and only when nothing is,
one message is waited for (kafka-facts, F; this alone is worth a factor).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from runtime.commit.metadata import OffsetAndMetadata
from runtime.errors import BrokerUnavailableError, StreamsError
from runtime.ids import NextOffset, Partition

logger = logging.getLogger(__name__)

BATCH = 2000
"""Messages taken at once: what is looked at several times should still be in the processor's cache (measured: with 5,000, a message takes
a third longer from here to its chain)."""


class Polled(NamedTuple):
    """What one poll gave. `runs`: messages by partition, in order. `ends`: partitions that have no more, with the next offset there.
    `lost`: partitions whose position is not on the log (any more), with that position."""

    runs: list[tuple[Partition, list[Message]]]
    ends: list[tuple[Partition, NextOffset]]
    lost: list[tuple[Partition, int | None]]


_NOTHING = Polled([], [], [])


class Reader:
    """One consumer, assigned by hand. Belongs to the worker's thread."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._consume = consumer.consume
        self._assigned: dict[Partition, None] = {}
        self._held: set[Partition] = set()
        self._only_topic: str | None = None

    @property
    def assigned(self) -> frozenset[Partition]:
        return frozenset(self._assigned)

    def assign(self, positions: Mapping[Partition, NextOffset]) -> None:
        """Begins to read these partitions there; one that was being read starts anew at its position."""
        again = [partition for partition in positions if partition in self._assigned]
        self.unassign(again)
        if positions:
            self._consumer.incremental_assign([TopicPartition(p.topic, p.number, offset) for p, offset in positions.items()])
            self._assigned.update(dict.fromkeys(positions))
            self._topics_changed()

    def unassign(self, partitions: Iterable[Partition]) -> None:
        """Stops reading them; what was read ahead is dropped."""
        gone = [partition for partition in partitions if partition in self._assigned]
        if gone:
            self._consumer.incremental_unassign([TopicPartition(p.topic, p.number) for p in gone])
            for partition in gone:
                del self._assigned[partition]
                self._held.discard(partition)
            self._topics_changed()

    def _topics_changed(self) -> None:
        topics = {partition.topic for partition in self._assigned}
        self._only_topic = topics.pop() if len(topics) == 1 else None

    def hold(self, partition: Partition) -> None:
        """Fetches no more of it for now: its queue is full."""
        if partition in self._assigned and partition not in self._held:
            self._consumer.pause([TopicPartition(*partition)])
            self._held.add(partition)

    def release(self, partition: Partition) -> None:
        """Ends `hold`."""
        if partition in self._held:
            self._consumer.resume([TopicPartition(*partition)])
            self._held.discard(partition)

    def poll(self, timeout: float) -> Polled:
        """What is there; waits at most `timeout` seconds if nothing is. Raises StreamsError for an error of the consumer as a whole."""
        messages = self._consume(BATCH, 0)
        if not messages and timeout > 0:
            messages = self._consume(1, timeout)
            if messages:
                messages += self._consume(BATCH - 1, 0)
        if not messages:
            return _NOTHING
        errors = [message.error() for message in messages]
        if not any(errors):  # KafkaError cannot be compared with None
            return Polled(self._split(messages), [], [])
        good = [message for message, error in zip(messages, errors, strict=True) if error is None]
        polled = Polled(self._split(good), [], [])
        for message, error in zip(messages, errors, strict=True):
            if error is not None:
                self._sort_out(message, error, polled)
        return polled

    def _split(self, messages: list[Message]) -> list[tuple[Partition, list[Message]]]:
        if not messages:
            return []
        topic = self._only_topic
        numbers: list[int] = [message.partition() for message in messages]  # type: ignore[misc]  # messages without error have one
        if topic is not None and numbers.count(numbers[0]) == len(numbers):
            return [(Partition(topic, numbers[0]), messages)]
        topics: list[str] = [topic] * len(messages) if topic is not None else [message.topic() for message in messages]  # type: ignore[misc]
        runs: list[tuple[Partition, list[Message]]] = []
        start = 0
        for pair, same in groupby(zip(topics, numbers, strict=True)):
            stop = start + sum(1 for _ in same)
            runs.append((Partition(*pair), messages[start:stop]))
            start = stop
        return runs

    def _sort_out(self, message: Message, error: KafkaError, polled: Polled) -> None:
        code = error.code()
        topic, number, offset = message.topic(), message.partition(), message.offset()
        if topic is None or number is None or number < 0:
            if error.fatal():
                raise StreamsError(f"the consumer failed: {error.str()}")
            logger.warning("consumer: %s", error.str())
            return
        partition = Partition(topic, number)
        if code == KafkaError._PARTITION_EOF:
            polled.ends.append((partition, NextOffset(offset or 0)))
        elif code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            logger.warning("%s: %s", partition, error.str())
            polled.lost.append((partition, offset if offset is not None and offset >= 0 else None))
        elif error.retriable() or code in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION):
            logger.warning("%s: %s", partition, error.str())
        else:
            raise StreamsError(f"{partition} cannot be read: {error.str()}")

    def committed(self, partitions: Iterable[Partition], timeout: float) -> dict[Partition, OffsetAndMetadata]:
        """The group's committed offsets; a partition without one is left out. Raises BrokerUnavailableError if they cannot be read in time
        (the broker is away, or a transaction that holds them is still open), StreamsError if they cannot be read at all."""
        wanted = [TopicPartition(*partition) for partition in partitions]
        if not wanted:
            return {}
        try:
            found = self._consumer.committed(wanted, timeout)
        except KafkaException as error:
            raise _unanswered("the committed offsets cannot be read", error.args[0]) from error
        offsets: dict[Partition, OffsetAndMetadata] = {}
        for at in found:
            if at.error is not None:
                raise _unanswered(f"the committed offset of {at.topic}-{at.partition} cannot be read", at.error)
            if at.offset >= 0:
                offsets[Partition(at.topic, at.partition)] = OffsetAndMetadata(at.offset, at.metadata or "")
        return offsets

    def bounds(self, partition: Partition, timeout: float) -> tuple[NextOffset, NextOffset]:
        """First offset and end (last stable offset for read_committed). Raises StreamsError."""
        try:
            low, high = self._consumer.get_watermark_offsets(TopicPartition(*partition), timeout)
        except KafkaException as error:
            raise _unanswered(f"the end of {partition} cannot be read", error.args[0]) from error
        return NextOffset(low), NextOffset(high)

    def at_time(self, partition: Partition, timestamp_ms: int, timeout: float) -> NextOffset | None:
        """The first offset whose record is no older than `timestamp_ms`; None if there is no such record. Raises StreamsError."""
        try:
            (found,) = self._consumer.offsets_for_times([TopicPartition(*partition, max(0, timestamp_ms))], timeout)
        except KafkaException as error:
            raise _unanswered(f"the offset of {partition} at {timestamp_ms} ms cannot be read", error.args[0]) from error
        if found.error is not None:
            raise _unanswered(f"the offset of {partition} at {timestamp_ms} ms cannot be read", found.error)
        return NextOffset(found.offset) if found.offset >= 0 else None

    def known_end(self, partition: Partition) -> int:
        """The end as of the last fetch; negative if nothing was fetched. Asks nobody."""
        try:
            return int(self._consumer.get_watermark_offsets(TopicPartition(*partition), cached=True)[1])
        except KafkaException:
            return -1

    def close(self) -> None:
        self._consumer.close()


_AWAY = {
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
    KafkaError._WAIT_COORD,
    KafkaError._RESOLVE,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.UNSTABLE_OFFSET_COMMIT,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
}


def _unanswered(what: str, error: KafkaError) -> StreamsError:
    """BrokerUnavailableError where asking again may help."""
    text = f"{what}: {error.str()}"
    if error.code() == KafkaError.UNSTABLE_OFFSET_COMMIT:
        text += ". A transaction holds them; if for longer than transaction.timeout.ms: docs/recovery.md, 'A transaction that hangs'"
    return BrokerUnavailableError(text) if error.retriable() or error.code() in _AWAY else StreamsError(text)
