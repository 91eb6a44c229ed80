"""Replay of dead letters to their input topic. Each is written exactly once, even with concurrent or repeated replays.

`<app>-replayed` (compacted) contains a mark for each replayed record, keyed by the record's original coordinates. The mark is written *in
the transaction of the record*: both exist or neither. All replays of an application share one transactional id, so a new replay fences any
other that was killed or is still running, and only then reads the marks.
(Rejected: a committed offset on the dead-letter topic. Records are chosen one by one, and an offset can only say "up to here". A row in the
database: it can be lost between the two writes, in either order.)

A record returns to its original partition, with its key, value, timestamp and headers, without the error headers; the header
`__penstock.replayed.from` contains its original coordinates. Records are replayed in the order of their original offsets, so each key keeps
its order among them. They are appended after all records written since; a replay cannot restore their original position.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec
from confluent_kafka import KafkaException, Message, Producer, TopicPartition

from penstock.orchestration.dead_letters.topic import (
    ERROR_PREFIX,
    DeadLetterError,
    RawRecord,
    dead_letter_topic,
    ensure_topic,
    fencing_producer,
    raw_record,
    rights_to_read,
)
from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.kafka.log import FROM_START, partition_counts, reader, to_end
from penstock.runtime.kafka.failures import lacks_right, needing, with_remedy

REPLAYED_FROM = "__penstock.replayed.from"
_BATCH = 1_000
_SECONDS = 30.0
_MARKS = {"cleanup.policy": "compact"}


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Record on a dead-letter topic (`kept`: its form there), with the coordinates at which it could not be read."""

    kept: RawRecord
    topic: str
    partition: int
    offset: int
    error_type: str
    error: str

    @property
    def place(self) -> str:
        """Return the record's identity, for example `flights-3@1201`."""
        return f"{self.topic}-{self.partition}@{self.offset}"


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Content of an application's dead-letter topics, in the order of the original offsets; the number of records without original
    coordinates, and the number that retention has removed."""

    records: tuple[DeadLetter, ...]
    topics: tuple[str, ...]
    without_place: int = 0
    removed: int = 0


def replayed_topic(application_id: str) -> str:
    return f"{application_id}-replayed"


def dead_letter_topics(application: Application) -> tuple[str, ...]:
    """Return the run-book's topic, and the one that the engine writes to, if the configuration names one."""
    named = application.value("errors.dead.letter.queue.topic.name")
    return tuple(dict.fromkeys((dead_letter_topic(application.id), *([str(named)] if named else []))))


def read_dead_letters(application: Application) -> DeadLetters:
    """Return all dead letters, without duplicates. Raises KafkaException if no broker answers."""
    partitions = partition_counts(application.connection, dead_letter_topics(application))
    records: dict[str, DeadLetter] = {}
    without_place = removed = 0
    with reader(application.connection) as consumer:
        places = [TopicPartition(topic, partition, FROM_START) for topic, count in partitions.items() for partition in range(count)]
        for place in places:
            with needing(*rights_to_read(place.topic)):
                removed += consumer.get_watermark_offsets(place, timeout=_SECONDS)[0]
                consumer.assign([place])
                for message in to_end(consumer, _SECONDS):
                    record = _record(message)
                    if record is None:
                        without_place += 1
                    else:
                        records.setdefault(record.place, record)
    ordered = sorted(records.values(), key=lambda record: (record.topic, record.partition, record.offset))
    return DeadLetters(tuple(ordered), tuple(partitions), without_place, removed)


def read_marks(application: Application) -> frozenset[str]:
    """Return the coordinates of all records that have been replayed."""
    topic = replayed_topic(application.id)
    if not partition_counts(application.connection, [topic]):
        return frozenset()
    with reader(application.connection) as consumer, needing(*rights_to_read(topic)):
        consumer.assign([TopicPartition(topic, 0, FROM_START)])
        return frozenset(str(key, "utf-8") for message in to_end(consumer, _SECONDS) if isinstance(key := message.key(), bytes))


def missing_targets(application: Application, records: Iterable[DeadLetter]) -> list[str]:
    """Return the topics and partitions that these records belong to and that do not exist."""
    wanted = {(record.topic, record.partition) for record in records}
    counts = partition_counts(application.connection, {topic for topic, _ in wanted})
    return sorted(f"{topic}-{partition}" for topic, partition in wanted if partition >= counts.get(topic, 0))


def replay(application: Application, records: Sequence[DeadLetter], by: str, progress: Callable[[int], None]) -> int:
    """Write records without a mark back to their topics, and return their number. `progress` is called after each transaction.

    Raises DeadLetterError if another replay has started meanwhile (start it again), KafkaException if no broker answers.
    """
    marks_topic = replayed_topic(application.id)
    ensure_topic(application.connection, marks_topic, _MARKS)
    producer = fencing_producer(application.connection, f"{application.id}-replay")
    marks = read_marks(application)
    left = [record for record in records if record.place not in marks]
    try:
        for start in range(0, len(left), _BATCH):
            batch = left[start : start + _BATCH]
            producer.begin_transaction()
            for record in batch:
                _send(producer, record, marks_topic, by)
            producer.commit_transaction(_SECONDS)
            progress(start + len(batch))
    except KafkaException as problem:
        error = problem.args[0]
        if error.fatal() and not lacks_right(problem):
            raise DeadLetterError(f"another process replays dead letters of {application.id}: {error.str()}. Start it again") from problem
        if error.txn_requires_abort():
            with suppress(KafkaException):  # brokers that refused its partitions know of no transaction; the next replay ends any other
                producer.abort_transaction(_SECONDS)
        why = with_remedy(error, _rights(marks_topic, left))
        raise DeadLetterError(f"dead letters could not be replayed: {why}. What is replayed is marked; start it again") from problem
    return len(left)


def _send(producer: Producer, record: DeadLetter, marks_topic: str, by: str) -> None:
    kept = record.kept
    own = [(name, value) for name, value in kept.headers if not name.startswith(ERROR_PREFIX) and name != REPLAYED_FROM]
    producer.produce(
        record.topic,
        key=kept.key,
        value=kept.value,
        partition=record.partition,
        timestamp=_time_of(kept),
        headers=[*own, (REPLAYED_FROM, record.place.encode())],
    )
    mark = {"by": by, "at_ms": time.time_ns() // 1_000_000}
    producer.produce(marks_topic, key=record.place.encode(), value=msgspec.json.encode(mark), partition=0)
    producer.poll(0)


def _time_of(kept: RawRecord) -> int:
    """Return the record's original time in ms, from a header where the dead-letter topic did not accept it; 0 means the broker's time."""
    timestamp = dict(kept.headers).get(f"{ERROR_PREFIX}timestamp")
    return int(timestamp) if timestamp else kept.timestamp_ms or 0


def _record(message: Message) -> DeadLetter | None:
    kept = raw_record(message)
    named = {name.removeprefix(ERROR_PREFIX): value for name, value in kept.headers if name.startswith(ERROR_PREFIX)}
    text = {name: value.decode(errors="replace") for name, value in named.items() if isinstance(value, bytes)}
    try:
        partition, offset = int(text["partition"]), int(text["offset"])
        return DeadLetter(kept, text["topic"], partition, offset, text.get("exception", ""), text.get("message", ""))
    except (KeyError, ValueError):
        return None


def _rights(marks_topic: str, records: Iterable[DeadLetter]) -> str:
    """Return the rights that writing these records needs, as messages name them."""
    return " and ".join(f"Write on topic {topic}" for topic in (marks_topic, *sorted({record.topic for record in records})))
