"""Reads the input of all tasks of a worker with one consumer, in runs of one partition.

The consumer is assigned manually and never joins its group, so the group stays empty and operators may reset its offsets while the
application runs. Offsets that are out of range are reported to the caller, which applies `auto.offset.reset`.

`consume(n, t)` waits the full `t` unless `n` messages are available. So available messages are taken with `t = 0`, and only if there are
none, the reader waits for one message. This multiplies the throughput.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from itertools import groupby
from types import MappingProxyType
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as ClientPartition

from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.kafka.clients import ClientProperties, input_consumer, offsets_consumer
from penstock.runtime.kafka.failures import Meaning, kafka_error, meaning, unanswered, with_remedy
from penstock.runtime.kafka.topic_leaders import TopicLeaders
from penstock.runtime.kafka.transactions import GroupMetadata
from penstock.runtime.model.errors import BrokerUnavailableError, StreamsError
from penstock.runtime.model.ids import NextOffset, TopicPartition
from penstock.runtime.model.offsets import OffsetAndMetadata

logger = logging.getLogger(__name__)

BATCH = 2000
"""Messages per poll. They are accessed several times, and should still be in the CPU's cache (measured: with 5,000, a message takes a third
longer from here to its chain)."""


class Polled(NamedTuple):
    """Result of a poll. `runs`: messages by partition, in order. `ends`: partitions whose end was reached, with the next offset. `lost`:
    partitions whose position is not on the log, with that position."""

    runs: list[tuple[TopicPartition, list[Message]]]
    ends: list[tuple[TopicPartition, NextOffset]]
    lost: list[tuple[TopicPartition, int | None]]


_NOTHING = Polled([], [], [])


class Reader:
    """A manually assigned consumer. Used by the worker's thread."""

    def __init__(self, config: StreamsConfig, more: ClientProperties = MappingProxyType({})) -> None:
        """Makes no request. `more`: further properties of its consumer."""
        self._config = config
        self._refused: Consumer | None = None
        """Consumer that hears why offsets cannot be read, since they could not."""
        self._consumer = input_consumer(config, more)
        self._consume = self._consumer.consume
        self._leaders = TopicLeaders(self._consumer)
        self._assigned: dict[TopicPartition, None] = {}
        self._held: set[TopicPartition] = set()
        self._only_topic: str | None = None

    @property
    def assigned(self) -> frozenset[TopicPartition]:
        return frozenset(self._assigned)

    def assign(self, positions: Mapping[TopicPartition, NextOffset]) -> None:
        """Start reading partitions at these positions; a partition that is being read continues at the new position."""
        again = [partition for partition in positions if partition in self._assigned]
        self.unassign(again)
        if positions:
            self._leaders.find({partition.topic: None for partition in positions})
            self._consumer.incremental_assign([ClientPartition(p.topic, p.partition, offset) for p, offset in positions.items()])
            self._assigned.update(dict.fromkeys(positions))
            self._topics_changed()

    def unassign(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop reading partitions; messages that were fetched ahead are dropped."""
        gone = [partition for partition in partitions if partition in self._assigned]
        if gone:
            for partition in gone:
                self.release(partition)  # librdkafka keeps a partition paused when it is assigned again
            self._consumer.incremental_unassign([ClientPartition(p.topic, p.partition) for p in gone])
            for partition in gone:
                del self._assigned[partition]
            self._topics_changed()

    def _topics_changed(self) -> None:
        topics = {partition.topic for partition in self._assigned}
        self._only_topic = topics.pop() if len(topics) == 1 else None

    def hold(self, partition: TopicPartition) -> None:
        """Pause fetching of a partition, because its queue is full."""
        if partition in self._assigned and partition not in self._held:
            self._consumer.pause([ClientPartition(*partition)])
            self._held.add(partition)

    def release(self, partition: TopicPartition) -> None:
        """Resume fetching after `hold`."""
        if partition in self._held:
            self._consumer.resume([ClientPartition(*partition)])
            self._held.discard(partition)

    def poll(self, timeout: float) -> Polled:
        """Return available messages; waits at most `timeout` seconds for the first. Raises StreamsError for an error of the consumer."""
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

    def _split(self, messages: list[Message]) -> list[tuple[TopicPartition, list[Message]]]:
        if not messages:
            return []
        topic = self._only_topic
        numbers: list[int] = [message.partition() for message in messages]  # type: ignore[misc]  # messages without error have one
        if topic is not None and numbers.count(numbers[0]) == len(numbers):
            return [(TopicPartition(topic, numbers[0]), messages)]
        topics: list[str] = [topic] * len(messages) if topic is not None else [message.topic() for message in messages]  # type: ignore[misc]
        runs: list[tuple[TopicPartition, list[Message]]] = []
        start = 0
        for pair, same in groupby(zip(topics, numbers, strict=True)):
            stop = start + sum(1 for _ in same)
            runs.append((TopicPartition(*pair), messages[start:stop]))
            start = stop
        return runs

    def _sort_out(self, message: Message, error: KafkaError, polled: Polled) -> None:
        means = meaning(error)
        topic, number, offset = message.topic(), message.partition(), message.offset()
        if topic is None or number is None or number < 0:
            if error.fatal():
                raise StreamsError(f"the consumer failed: {error.str()}")
            logger.warning("consumer: %s", error.str())
            return
        partition = TopicPartition(topic, number)
        if Meaning.END in means:
            polled.ends.append((partition, NextOffset(offset or 0)))
        elif Meaning.OUT_OF_RANGE in means:
            logger.warning("%s: %s", partition, error.str())
            polled.lost.append((partition, offset if offset is not None and offset >= 0 else None))
        elif error.retriable() or Meaning.UNKNOWN_PARTITION in means:
            logger.warning("%s: %s", partition, error.str())
        else:
            raise StreamsError(f"{partition} cannot be read: {with_remedy(error, f'Read on topic {topic}')}")

    def _refusal(self) -> KafkaError | None:
        """Return the error with which the brokers refuse the group to this client; None if they do not. The request for offsets only times
        out then: the client reports the error beside it, to a consumer that is polled, and this one's messages must not be lost."""
        if self._refused is None:  # its answer is here at the next attempt: waiting for it would delay a take-over
            self._refused = offsets_consumer(self._config.admin_properties(), self._config.application_id)
        message = self._refused.poll(0)
        error = None if message is None else message.error()
        return error if error is not None and Meaning.FORBIDDEN in meaning(error) else None

    def _forget_refusals(self) -> None:
        if self._refused is not None:
            self._refused.close()
            self._refused = None

    def committed(self, partitions: Iterable[TopicPartition], timeout: float) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the group's committed offsets, without partitions that have none. Raises BrokerUnavailableError if they cannot be read in
        time (the broker is down, or an open transaction contains them), StreamsError if they cannot be read at all."""
        wanted = [ClientPartition(*partition) for partition in partitions]
        if not wanted:
            return {}
        try:
            found = self._consumer.committed(wanted, timeout)
        except KafkaException as error:
            raise unanswered(
                "the committed offsets cannot be read",
                self._refusal() or kafka_error(error),
                f"Read on group {self._config.application_id}",
            ) from error
        self._forget_refusals()
        offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        for at in found:
            if at.error is not None:
                raise unanswered(
                    f"the committed offset of {at.topic}-{at.partition} cannot be read",
                    at.error,
                    f"Read on group {self._config.application_id} and topic {at.topic}",
                )
            if at.offset >= 0:
                offsets[TopicPartition(at.topic, at.partition)] = OffsetAndMetadata(at.offset, at.metadata or "")
        return offsets

    def bounds(self, partition: TopicPartition, timeout: float) -> tuple[NextOffset, NextOffset]:
        """Return the first offset and the end (for `read_committed` the last stable offset). Raises BrokerUnavailableError if a retry may
        help, also where the topic is not known: it may be on its way to be created again. Otherwise raises StreamsError."""
        what = f"the end of {partition} cannot be read"
        try:
            low, high = self._consumer.get_watermark_offsets(ClientPartition(*partition), timeout)
        except KafkaException as error:
            if meaning(error) & (Meaning.UNKNOWN_TOPIC | Meaning.UNKNOWN_PARTITION):
                raise BrokerUnavailableError(f"{what}: the brokers do not know it now ({kafka_error(error).str()})") from error
            raise unanswered(what, kafka_error(error), f"Read on topic {partition.topic}") from error
        return NextOffset(low), NextOffset(high)

    def at_time(self, partition: TopicPartition, timestamp_ms: int, timeout: float) -> NextOffset | None:
        """Return the offset of the first record that is no older than `timestamp_ms`; None if there is none. Raises StreamsError."""
        try:
            (found,) = self._consumer.offsets_for_times([ClientPartition(*partition, max(0, timestamp_ms))], timeout)
        except KafkaException as error:
            raise unanswered(
                f"the offset of {partition} at {timestamp_ms} ms cannot be read", kafka_error(error), f"Read on topic {partition.topic}"
            ) from error
        if found.error is not None:
            raise unanswered(
                f"the offset of {partition} at {timestamp_ms} ms cannot be read", found.error, f"Read on topic {partition.topic}"
            )
        return NextOffset(found.offset) if found.offset >= 0 else None

    def known_end(self, partition: TopicPartition) -> int:
        """Return the end as of the last fetch, without a request; negative if nothing was fetched."""
        try:
            return int(self._consumer.get_watermark_offsets(ClientPartition(*partition), cached=True)[1])
        except KafkaException:
            return -1

    def group(self) -> GroupMetadata:
        """Return the metadata of the application's group, for offsets in a transaction."""
        metadata: GroupMetadata = self._consumer.consumer_group_metadata()
        return metadata

    def close(self) -> None:
        self._forget_refusals()
        self._consumer.close()
