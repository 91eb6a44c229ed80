"""Reads partitions from a given offset to a given end, outside any consumer group.

Restoring stores and updating global tables need the same three things, each of which is harder with librdkafka than with the Java client:

*Where does the log end?* A record's offset plus one is not the end: transaction markers and aborted records take offsets too, and
`position()` does not step over them. `enable.partition.eof` gives an event that carries the last stable offset, also for a tail of
aborted records and for a partition that is assigned exactly at its end. So: a partition has reached `end` when a record at or beyond
`end` is seen or when an end-of-partition event with offset ≥ `end` arrives. (Rejected: `position() ≥ end` alone. It never becomes true
when the tail holds no record; Quix Streams and Faust both hung on that.)

*Is the offset still there?* With `auto.offset.reset=error` an offset below the log's start or beyond its end is reported once, as a message
with an error; after that the partition delivers nothing. The caller gets it, wipes the store and starts again. (Rejected: `earliest`. It
continues at the log's start and silently loses the records in between.)

*Fast.* librdkafka's `fetch.queue.backoff.ms` of one second stalls a reader that is faster than the fetcher; 5 ms and a bounded queue
give about five times the records per second.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from itertools import compress

from confluent_kafka import OFFSET_BEGINNING, KafkaException, Message
from confluent_kafka import TopicPartition as ClientPartition

from penstock.runtime.kafka.clients import ClientProperties, log_consumer
from penstock.runtime.kafka.failures import Meaning, meaning, with_remedy
from penstock.runtime.kafka.topic_leaders import TopicLeaders
from penstock.runtime.model.errors import StreamsError
from penstock.runtime.model.ids import NextOffset, TopicPartition

log = logging.getLogger(__name__)

_MOST_PER_POLL = 5_000


@dataclass(slots=True)
class Poll:
    """Result of a poll: messages without errors, in the order of the log."""

    runs: dict[TopicPartition, list[Message]] = field(default_factory=dict)
    ends: dict[TopicPartition, NextOffset] = field(default_factory=dict)
    """Partitions that were read to their last stable offset, and that offset."""
    out_of_range: dict[TopicPartition, int | None] = field(default_factory=dict)
    """Partitions whose position is not on the log, and that position. They deliver nothing until they are assigned again."""

    def __bool__(self) -> bool:
        return bool(self.runs or self.ends or self.out_of_range)


class LogReader:
    """A consumer without a group: partitions are assigned manually, and the caller stores offsets. Used by one thread."""

    def __init__(self, properties: ClientProperties, name: str) -> None:
        """`name` appears in the broker's logs (`client.id`) and in errors. Properties that correct reading depends on are overridden."""
        self._name = name
        self._group_id = str(properties.get("group.id", name))
        self._consumer = log_consumer(properties, name)
        self._leaders = TopicLeaders(self._consumer)
        self._assigned: set[TopicPartition] = set()
        self._from_start: set[TopicPartition] = set()

    @property
    def assigned(self) -> frozenset[TopicPartition]:
        return frozenset(self._assigned)

    def assign(self, partition: TopicPartition, start: NextOffset | None) -> None:
        """Read `partition` from `start`, or from the log's beginning if that is None. An assigned partition restarts there."""
        self.unassign(partition)
        # Asking the broker where a log begins costs librdkafka half a second. Most begin at 0; one that does not says so.
        self._begin(partition, 0 if start is None else start)
        if start is None:
            self._from_start.add(partition)

    def _begin(self, partition: TopicPartition, offset: int) -> None:
        self._leaders.find([partition.topic])
        self._consumer.incremental_assign([ClientPartition(partition.topic, partition.partition, offset)])
        self._assigned.add(partition)

    def unassign(self, partition: TopicPartition) -> None:
        """Stop reading `partition`. Does nothing if it is not assigned."""
        self._from_start.discard(partition)
        if partition in self._assigned:
            self._assigned.discard(partition)
            self._consumer.incremental_unassign([ClientPartition(partition.topic, partition.partition)])

    def known_end(self, partition: TopicPartition) -> NextOffset:
        """Return the log's end (high watermark) as of the last fetch, without a request; 0 if nothing was fetched."""
        try:
            end = self._consumer.get_watermark_offsets(ClientPartition(partition.topic, partition.partition), cached=True)[1]
        except KafkaException:
            return NextOffset(0)
        return NextOffset(max(0, end))

    def log_start(self, partition: TopicPartition, timeout: float = 1.0) -> NextOffset | None:
        """Return the first available offset by a request to the broker; None if it does not answer within `timeout` seconds."""
        try:
            return NextOffset(self._consumer.get_watermark_offsets(ClientPartition(*partition), timeout)[0])
        except KafkaException:
            return None

    def poll(self, timeout: float) -> Poll:
        """Return available records, up to 5,000; waits at most `timeout` seconds for the first.

        Raises StreamsError for permanent errors: no authorization for the topic, a fatal error of the client.
        """
        # `consume(n, t)` waits up to t for n messages, so first take the available ones, and wait for one message only.
        messages = self._consumer.consume(_MOST_PER_POLL, 0)
        if not messages and timeout > 0:
            messages = self._consumer.consume(1, timeout)
            messages += self._consumer.consume(_MOST_PER_POLL, 0)
        found = Poll()
        if any(map(Message.error, messages)):
            good = [message for message in messages if message.error() is None]
            for message in messages:
                if message.error() is not None:
                    self._take_error(message, found)
            messages = good
        if messages:
            self._group(messages, found)
        return found

    def _group(self, messages: list[Message], found: Poll) -> None:
        """Split a poll into one run per partition. A Python call per message would cost as much as reading it."""
        places = list(zip(map(Message.topic, messages), map(Message.partition, messages), strict=True))
        seen = set(places)
        for place in seen:
            run = messages if len(seen) == 1 else list(compress(messages, map(place.__eq__, places)))
            partition = _partition_of(run[0])
            # Messages of a partition that was unassigned a moment ago may still come out of librdkafka's queue.
            if partition in self._assigned:
                self._from_start.discard(partition)
                found.runs[partition] = run

    def _take_error(self, message: Message, found: Poll) -> None:
        error = message.error()
        assert error is not None
        means = meaning(error)
        # Without a topic it is an error of the client: librdkafka looks up the coordinator of its group, although none is joined.
        partition = None if message.topic() is None else _partition_of(message)
        if error.fatal() or Meaning.FORBIDDEN in means:
            where, needs = (
                ("", f"Read on group {self._group_id}") if partition is None else (f" {partition}", f"Read on topic {partition.topic}")
            )
            raise StreamsError(f"{self._name} cannot read{where}: {with_remedy(error, needs)}") from KafkaException(error)
        if partition is None:
            log.warning("%s: %s", self._name, error.str())
        elif Meaning.END in means:
            offset = message.offset()
            if partition in self._assigned and offset is not None:
                found.ends[partition] = NextOffset(offset)
        elif Meaning.OUT_OF_RANGE in means:
            if partition in self._from_start:
                self._consumer.incremental_unassign([ClientPartition(partition.topic, partition.partition)])
                self._from_start.discard(partition)
                self._begin(partition, OFFSET_BEGINNING)
            elif partition in self._assigned:
                found.out_of_range[partition] = message.offset()
        else:
            # The broker is down, or the topic is being created: librdkafka retries, and the caller has its own time-out.
            log.warning("%s: %s: %s", self._name, partition, error.str())

    def close(self) -> None:
        self._assigned.clear()
        self._consumer.close()


def _partition_of(message: Message) -> TopicPartition:
    topic, number = message.topic(), message.partition()
    assert topic is not None and number is not None
    return TopicPartition(topic, number)
