"""`<app>-dead-letter`: the records that a run-book has skipped, raw and complete, each exactly once.

A record keeps its key, value, timestamp and headers, and gets error headers (`__streams.errors.topic`, `.partition`, `.offset`,
`.exception`, `.message`; KIP-1034). Its coordinates identify it. Each partition has its own transactional id, so a new writer fences any
other writer of the same partition. It then reads the topic to its end, and writes the record only if it is not there: retries write it
once. (Rejected: a row in the database that says it was written. It can be lost between the two writes, in either order.)

Reading the whole topic is affordable: it contains what a budget allows per hour, and reading a thousand records takes milliseconds.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from penstock.orchestration.declarations.errors import ExpectedError
from penstock.orchestration.kafka.log import FROM_START, READER_GROUP, partition_counts, reader, to_end
from penstock.runtime.kafka.connection import Connection
from penstock.runtime.kafka.failures import kafka_error, lacks_right, needing, with_remedy

ERROR_PREFIX = "__streams.errors."
"""Prefix of the names of error headers (KIP-1034)."""
FOREVER: Mapping[str, str] = {"retention.ms": "-1", "cleanup.policy": "delete"}
_SECONDS = 30.0


class DeadLetterError(ExpectedError):
    """A record could not be stored; nothing was written."""


@dataclass(frozen=True, slots=True)
class RawRecord:
    """Record as it is stored on its topic. `timestamp_ms` is None if the record has none."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int | None
    headers: tuple[tuple[str, str | bytes | None], ...]

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}@{self.offset}"


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Stored dead letter: its topic and offset; `already` if it was stored before."""

    topic: str
    offset: int
    already: bool


def dead_letter_topic(application_id: str) -> str:
    return f"{application_id}-dead-letter"


def read_record(connection: Connection, topic: str, partition: int, offset: int, timeout_s: float = _SECONDS) -> RawRecord | None:
    """Return the record at these coordinates; None if the log no longer contains it, or not yet. Raises StreamsError for a missing right,
    KafkaException if no broker answers."""
    partition_counts(connection, [topic])  # without the right to see the topic, the requests below say that it has no such partition
    with reader(connection) as consumer, needing(*rights_to_read(topic)):
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=timeout_s)
        if not low <= offset < high:
            return None
        consumer.assign([TopicPartition(topic, partition, offset)])
        message = next(to_end(consumer, timeout_s), None)
    return None if message is None or message.offset() != offset else raw_record(message)


def rights_to_read(topic: str) -> tuple[str, str]:
    """Return the rights that a reader of a topic needs, as messages name them."""
    return f"Read on topic {topic}", f"Read on group {READER_GROUP}"


def store_dead_letter(
    connection: Connection, application_id: str, record: RawRecord, error_type: str, error: str, stack: str = ""
) -> DeadLetter:
    """Write a record to the dead-letter topic, unless it is there already. Raises DeadLetterError; StreamsError for a missing right,
    KafkaException if no broker answers."""
    topic = dead_letter_topic(application_id)
    ensure_topic(connection, topic, FOREVER)
    producer = fencing_producer(connection, f"{topic}-{record.topic}-{record.partition}")
    found = find(connection, topic, record.topic, record.partition, record.offset)
    if found is not None:
        return DeadLetter(topic, found, already=True)
    try:
        return DeadLetter(topic, _write(producer, topic, record, _error_headers(record, error_type, error, stack)), already=False)
    except KafkaException as problem:
        if not problem.args[0].fatal() or lacks_right(problem):
            why = with_remedy(kafka_error(problem), f"Write on topic {topic}")
            raise DeadLetterError(f"{record} could not be written to {topic}: {why}") from problem
    return DeadLetter(topic, _written_by_another(connection, topic, record), already=True)


def fencing_producer(connection: Connection, transactional_id: str) -> Producer:
    """Return a producer that has fenced all others of its transactional id. Raises StreamsError for a missing right, KafkaException."""
    backoff = {"retry.backoff.ms": 1, "retry.backoff.max.ms": 10}
    producer = Producer(connection.client({"transactional.id": transactional_id, **backoff, "log_level": 2}))
    with needing(f"Write on transactional-id {transactional_id}"):
        producer.init_transactions(_SECONDS)
    return producer


def _write(producer: Producer, topic: str, record: RawRecord, about: list[tuple[str, bytes]]) -> int:
    """Write the record, with headers about its error, in a transaction; return its offset. Raises KafkaException, which is fatal if another
    writer has fenced this one."""
    delivered: list[int] = []

    def report(problem: KafkaError | None, message: Message) -> None:
        if problem is None:
            delivered.append(message.offset() or 0)

    producer.begin_transaction()
    producer.produce(
        topic,
        key=record.key,
        value=record.value,
        partition=0,
        timestamp=record.timestamp_ms or 0,  # 0: the broker's time
        headers=[*record.headers, *about],
        on_delivery=report,
    )
    producer.commit_transaction(_SECONDS)
    return delivered[0]


def _written_by_another(connection: Connection, topic: str, record: RawRecord) -> int:
    """Wait for the record of the writer that fenced this one: it stores a record of the same partition, most likely the same one."""
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline:
        found = find(connection, topic, record.topic, record.partition, record.offset)
        if found is not None:
            return found
        time.sleep(0.2)
    raise DeadLetterError(
        f"{record} could not be written to {topic}: another run-book was writing a record of its partition. Start it again"
    )


def has_dead_letter(connection: Connection, application_id: str, topic: str, partition: int, offset: int) -> bool:
    """Return True if the record with these coordinates is on the application's dead-letter topic."""
    dead_letters = dead_letter_topic(application_id)
    if not partition_counts(connection, [dead_letters]):
        return False
    return find(connection, dead_letters, topic, partition, offset) is not None


def find(connection: Connection, dead_letters: str, topic: str, partition: int, offset: int) -> int | None:
    """Return the offset on the dead-letter topic of the record with these coordinates; None if it is not there."""
    wanted = (topic.encode(), str(partition).encode(), str(offset).encode())
    with reader(connection) as consumer, needing(*rights_to_read(dead_letters)):
        consumer.assign([TopicPartition(dead_letters, 0, FROM_START)])
        for message in to_end(consumer, _SECONDS):
            headers = dict(_headers(message))
            if tuple(headers.get(ERROR_PREFIX + name) for name in ("topic", "partition", "offset")) == wanted:
                return message.offset()
    return None


def _error_headers(record: RawRecord, error_type: str, error: str, stack: str) -> list[tuple[str, bytes]]:
    coordinates = {"topic": record.topic, "partition": str(record.partition), "offset": str(record.offset)}
    trace = {"stacktrace": f"{stack}: {error}"} if stack else {}  # the stack's last line is the exception's type
    fields = {"exception": error_type, "message": error, **trace, **coordinates}
    return [(ERROR_PREFIX + name, text.encode()) for name, text in fields.items()]


def ensure_topic(connection: Connection, topic: str, config: Mapping[str, str]) -> None:
    """Create a topic with one partition, unless it exists. Raises StreamsError for a missing right, KafkaException."""
    admin = AdminClient(connection.client({"log_level": 2}))
    new = NewTopic(topic, num_partitions=1, replication_factor=-1, config=dict(config))
    future = admin.create_topics([new], operation_timeout=_SECONDS)[topic]
    try:
        with needing(f"Create on topic {topic}"):
            future.result(timeout=_SECONDS)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise


def raw_record(message: Message) -> RawRecord:
    """Return the content of a message."""
    kind, timestamp = message.timestamp()
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None and partition is not None and offset is not None  # a record, not an event of the client
    return RawRecord(
        topic=topic,
        partition=partition,
        offset=offset,
        key=_bytes(message.key()),
        value=_bytes(message.value()),
        timestamp_ms=timestamp if kind else None,
        headers=_headers(message),
    )


def _headers(message: Message) -> tuple[tuple[str, str | bytes | None], ...]:
    headers = message.headers() or []
    return tuple(headers.items() if isinstance(headers, dict) else headers)


def _bytes(data: str | bytes | None) -> bytes | None:
    return data.encode() if isinstance(data, str) else data
