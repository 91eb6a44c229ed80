"""Dead letters go back into their input topic, each exactly once, whoever tries and however often.

What was replayed is remembered on `<app>-replayed` (compacted, by the coordinates at which the record first stood), and the mark is written
*in the transaction of the record*: either both are there or neither. All replays of an application share one transactional id, so
beginning one ends whoever was killed, or works, in the middle of another; only then are the marks read.
(Rejected: a committed offset on the dead-letter topic. Records are chosen one by one, and an offset can only say "up to here". A note in
the database: it can be lost between the two writes, in either order.)

A record goes back to the partition that it came from, with its key, value, time and headers; KIP-1034's headers are taken off, and
`__penstock.replayed.from` says where it stood. Those that are replayed go in the order of their old offsets, so keys keep their order
among themselves. They come after what was written meanwhile: that is what a replay is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec
from confluent_kafka import KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from orchestration.applications import Application
from orchestration.dead_letter import ERROR_PREFIX, DeadLetterError, RawRecord, dead_letter_topic, ensure_topic, raw_record
from orchestration.kafka_log import FROM_START, reader, to_end

REPLAYED_FROM = "__penstock.replayed.from"
_BATCH = 1_000
_SECONDS = 30.0
_MARKS = {"cleanup.policy": "compact"}


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record on a dead-letter topic (`kept` is how it stands there), and where it stood when it could not be read."""

    kept: RawRecord
    topic: str
    partition: int
    offset: int
    error_type: str
    error: str

    @property
    def place(self) -> str:
        """`flights-3@1201`: its identity."""
        return f"{self.topic}-{self.partition}@{self.offset}"


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """What an application's dead-letter topics hold: by place, in the order of the old offsets; how many records say not where they stood,
    and how many retention has removed."""

    letters: tuple[DeadLetter, ...]
    topics: tuple[str, ...]
    without_place: int = 0
    removed: int = 0


def replayed_topic(application_id: str) -> str:
    return f"{application_id}-replayed"


def dead_letter_topics(application: Application) -> tuple[str, ...]:
    """The run-book's own, and the one that the engine writes to, if the configuration names one."""
    named = application.config.get("errors.dead.letter.queue.topic.name")
    return tuple(dict.fromkeys((dead_letter_topic(application.id), *([str(named)] if named else []))))


def read_dead_letters(application: Application) -> DeadLetters:
    """All of them, each once. Raises KafkaException if no broker answers."""
    partitions = _partitions(application.bootstrap_servers, dead_letter_topics(application))
    letters: dict[str, DeadLetter] = {}
    without_place = removed = 0
    with reader(application.bootstrap_servers) as consumer:
        for topic, count in partitions.items():
            for partition in range(count):
                low, _ = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=_SECONDS)
                removed += low
                consumer.assign([TopicPartition(topic, partition, FROM_START)])
                for message in to_end(consumer, _SECONDS):
                    letter = _letter(message)
                    if letter is None:
                        without_place += 1
                    else:
                        letters.setdefault(letter.place, letter)
    ordered = sorted(letters.values(), key=lambda letter: (letter.topic, letter.partition, letter.offset))
    return DeadLetters(tuple(ordered), tuple(partitions), without_place, removed)


def read_marks(application: Application) -> frozenset[str]:
    """The places of what was replayed before."""
    topic = replayed_topic(application.id)
    if topic not in _partitions(application.bootstrap_servers, [topic]):
        return frozenset()
    with reader(application.bootstrap_servers) as consumer:
        consumer.assign([TopicPartition(topic, 0, FROM_START)])
        return frozenset(str(key, "utf-8") for message in to_end(consumer, _SECONDS) if isinstance(key := message.key(), bytes))


def missing_targets(application: Application, letters: Iterable[DeadLetter]) -> list[str]:
    """Topics and partitions that these would go to and that do not exist."""
    wanted = {(letter.topic, letter.partition) for letter in letters}
    counts = _partitions(application.bootstrap_servers, {topic for topic, _ in wanted})
    return sorted(f"{topic}-{partition}" for topic, partition in wanted if partition >= counts.get(topic, 0))


def replay(application: Application, letters: Sequence[DeadLetter], by: str, progress: Callable[[int], None]) -> int:
    """Writes those that have no mark back to their topics, and returns how many that were. `progress` is told after each transaction.

    Raises DeadLetterError if somebody else began a replay meanwhile (start it again), KafkaException if no broker answers.
    """
    marks_topic = replayed_topic(application.id)
    ensure_topic(application.bootstrap_servers, marks_topic, _MARKS)
    producer = Producer(
        {
            "bootstrap.servers": application.bootstrap_servers,
            "transactional.id": f"{application.id}-replay",
            "retry.backoff.ms": 1,
            "retry.backoff.max.ms": 10,
            "log_level": 2,
        }
    )
    producer.init_transactions(_SECONDS)
    marks = read_marks(application)
    left = [letter for letter in letters if letter.place not in marks]
    try:
        for start in range(0, len(left), _BATCH):
            batch = left[start : start + _BATCH]
            producer.begin_transaction()
            for letter in batch:
                _send(producer, letter, marks_topic, by)
            producer.commit_transaction(_SECONDS)
            progress(start + len(batch))
    except KafkaException as problem:
        error = problem.args[0]
        if error.fatal():
            raise DeadLetterError(f"somebody else replays dead letters of {application.id}: {error.str()}. Start it again") from problem
        if error.txn_requires_abort():
            producer.abort_transaction(_SECONDS)
        raise DeadLetterError(f"dead letters could not be replayed: {error.str()}. What is replayed is marked; start it again") from problem
    return len(left)


def _send(producer: Producer, letter: DeadLetter, marks_topic: str, by: str) -> None:
    kept = letter.kept
    own = [(name, value) for name, value in kept.headers if not name.startswith(ERROR_PREFIX) and name != REPLAYED_FROM]
    producer.produce(
        letter.topic,
        key=kept.key,
        value=kept.value,
        partition=letter.partition,
        timestamp=kept.timestamp_ms or 0,  # 0: the broker's time
        headers=[*own, (REPLAYED_FROM, letter.place.encode())],
    )
    mark = {"by": by, "at_ms": time.time_ns() // 1_000_000}
    producer.produce(marks_topic, key=letter.place.encode(), value=msgspec.json.encode(mark), partition=0)
    producer.poll(0)


def _letter(message: Message) -> DeadLetter | None:
    kept = raw_record(message)
    named = {name.removeprefix(ERROR_PREFIX): value for name, value in kept.headers if name.startswith(ERROR_PREFIX)}
    text = {name: value.decode(errors="replace") for name, value in named.items() if isinstance(value, bytes)}
    try:
        partition, offset = int(text["partition"]), int(text["offset"])
        return DeadLetter(kept, text["topic"], partition, offset, text.get("exception", ""), text.get("message", ""))
    except (KeyError, ValueError):
        return None


def _partitions(bootstrap_servers: str, topics: Iterable[str]) -> dict[str, int]:
    """How many partitions each topic has; those that do not exist are left out."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 2})
    known = admin.list_topics(timeout=_SECONDS).topics
    return {topic: len(known[topic].partitions) for topic in topics if topic in known and known[topic].error is None}
