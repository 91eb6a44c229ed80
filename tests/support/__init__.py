"""Helpers for all tests: topics with unique names, producing and consuming records, waiting for conditions."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import hypothesis
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from penstock.runtime.kafka.connection import Connection
from penstock.runtime.kafka.log_end import LogEnd

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[2]
"""Root folder of the repository."""

PATIENCE = float(os.environ.get("PENSTOCK_TEST_PATIENCE", "3"))
"""Factor on all timeouts, compared with an idle machine: tests run side by side."""


ALL_EXAMPLES = 100
"""Examples of a property test without a number of its own, in the profile `thorough`."""


def examples(number: int) -> int:
    """Return how many of this number of examples a property test tries: all in the profile `thorough`, else a quarter and at least five."""
    return max(min(number, 5), number * hypothesis.settings().max_examples // ALL_EXAMPLES)


def unique(prefix: str) -> str:
    """Return a name that no other test, and no other run of the tests, uses."""
    return f"{prefix}-{uuid.uuid4().hex[:8]}"


def script_as_module(name: str) -> ModuleType:
    """Load a Python program of `scripts/`, whose name is not a valid module name."""
    loader = importlib.machinery.SourceFileLoader(name.replace("-", "_"), str(ROOT / "scripts" / name))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@contextmanager
def without_root() -> Iterator[None]:
    """Run the block as an unprivileged user if this is root, for whom missing permissions have no effect."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


def wait_until(condition: Callable[[], T], timeout: float = 30.0, what: str = "the condition") -> T:
    """Poll the condition until it is true, and return its value. Fail after `timeout` seconds times `PATIENCE` with a message naming
    `what`. The longer it takes, the less often it is polled: most conditions ask the broker, which is busy then."""
    timeout *= PATIENCE
    began = time.monotonic()
    while not (answer := condition()):
        waited = time.monotonic() - began
        if waited > timeout:
            raise AssertionError(f"{what} did not come within {timeout:.0f} s (last answer: {answer!r})")
        time.sleep(min(0.1, max(0.01, waited / 20)))
    return answer


@dataclass(frozen=True, slots=True)
class RawRecord:
    """A record as stored in the log."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True)
class Kafka:
    """A broker for tests, with operations in one call each."""

    bootstrap_servers: str
    settings: Mapping[str, str] = field(default_factory=dict)
    """of TLS and a login"""

    @property
    def connection(self) -> Connection:
        return Connection(self.bootstrap_servers, self.settings)

    @cached_property
    def admin(self) -> AdminClient:
        """One client for all requests, since most of the time of a request is the connection's; tests may stop the broker meanwhile."""
        return AdminClient(self.connection.client({"reconnect.backoff.max.ms": 200}))

    def create_topic(self, prefix: str, partitions: int = 1, config: Mapping[str, str] | None = None, *, exact: bool = False) -> str:
        """Create a topic and return its name: `prefix` with a random suffix, or `prefix` itself if `exact`."""
        name = prefix if exact else unique(prefix)
        new = NewTopic(name, num_partitions=partitions, replication_factor=-1, config=dict(config or {}))
        self.admin.create_topics([new])[name].result(30 * PATIENCE)
        wait_until(lambda: name in self.topics(), what=f"topic {name}")
        return name

    def topics(self) -> set[str]:
        return set(self.admin.list_topics(timeout=10).topics)

    def delete_topic(self, name: str) -> None:
        self.admin.delete_topics([name])[name].result(30 * PATIENCE)
        wait_until(lambda: name not in self.topics(), what=f"the end of topic {name}")

    def produce(
        self,
        topic: str,
        records: Iterable[tuple[bytes | str | None, bytes | str | None]],
        *,
        partition: int | None = None,
        timestamps: Iterable[int] | None = None,
        headers: list[tuple[str, str | bytes | None]] | None = None,
    ) -> list[TopicPartition]:
        """Produce key–value pairs, wait until the broker has them, and return their positions. Without `partition`, the key's murmur2
        decides."""
        places: list[TopicPartition] = []

        def delivered(error: object, message: Message) -> None:
            assert error is None, error
            places.append(TopicPartition(message.topic() or "", message.partition() or 0, message.offset() or 0))

        times = iter(timestamps) if timestamps is not None else None
        # One request at a time: if the first is retried, since the topic is new, it must not arrive after the second.
        settings: dict[str, str | int | float | bool] = {
            "partitioner": "murmur2_random",
            "linger.ms": 5,
            "max.in.flight.requests.per.connection": 1,
        }
        producer = Producer(self.connection.client(settings))
        for key, value in records:
            producer.produce(
                topic,
                key=key,
                value=value,
                partition=-1 if partition is None else partition,
                timestamp=0 if times is None else next(times),
                headers=headers,
                on_delivery=delivered,
            )
            producer.poll(0)
        assert producer.flush(30 * PATIENCE) == 0, "records were not delivered"
        return places

    def consume(self, topic: str, count: int | None = None, timeout: float = 30.0, *, committed: bool = True) -> list[RawRecord]:
        """Read a topic from its start to its current end, or until `count` records arrived; fail after `timeout` seconds times `PATIENCE`.

        Records are in order within each partition. With `committed`, records of aborted and open transactions are omitted.
        """
        settings = {
            **self.connection.client({}),
            "group.id": unique("reader"),
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,  # the end of a partition is reported by an empty fetch
        }
        records: list[RawRecord] = []
        with closing(Consumer(settings)) as consumer:
            ends = wait_until(lambda: self._partitions(topic), what=f"topic {topic}")
            consumer.assign([TopicPartition(topic, partition, 0) for partition in ends])
            open_partitions, log_end = set(ends), LogEnd(consumer)
            deadline = time.monotonic() + timeout * PATIENCE
            while open_partitions if count is None else len(records) < count:
                if time.monotonic() > deadline:
                    raise AssertionError(f"{len(records)} of {count or 'all'} records of {topic} came within {timeout:.0f} s")
                for message in consumer.consume(10_000, 0) or consumer.consume(1, 0.1):
                    error = message.error()
                    if error is None:
                        records.append(_raw(message))
                    elif error.name() != "_PARTITION_EOF":
                        raise KafkaException(error)
                    if log_end.reached(message):
                        open_partitions.discard(message.partition() or 0)
        return records

    def end_offsets(self, topic: str, isolation: str = "read_committed") -> dict[int, int]:
        """Return the next offset of each partition; for `read_committed`, up to the first open transaction."""
        settings = self.connection.client({"group.id": unique("reader"), "isolation.level": isolation})
        with closing(Consumer(settings)) as consumer:
            return {
                partition: consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)[1]
                for partition in self._partitions(topic)
            }

    def committed_offsets(self, group: str, topic: str, *, stable: bool = False) -> dict[int, int]:
        """Return the committed offsets of a group; partitions without one are omitted. `stable`: wait for the markers of a transaction
        that is committed, which the broker writes after it has answered."""
        settings = self.connection.client({"group.id": group, "isolation.level": "read_committed" if stable else "read_uncommitted"})
        with closing(Consumer(settings)) as consumer:
            asked = [TopicPartition(topic, partition) for partition in self._partitions(topic)]
            return {place.partition: place.offset for place in consumer.committed(asked, timeout=10) if place.offset >= 0}

    def _partitions(self, topic: str) -> list[int]:
        metadata = self.admin.list_topics(topic, timeout=10).topics[topic]
        return [] if metadata.error else sorted(metadata.partitions)


def _raw(message: Message) -> RawRecord:
    headers = message.headers() or []
    pairs = headers.items() if isinstance(headers, dict) else headers
    return RawRecord(
        topic=message.topic() or "",
        partition=message.partition() or 0,
        offset=message.offset() or 0,
        key=_bytes(message.key()),
        value=_bytes(message.value()),
        timestamp=message.timestamp()[1],
        headers=tuple((name, _bytes(value)) for name, value in pairs),
    )


def _bytes(data: str | bytes | None) -> bytes | None:
    return data.encode() if isinstance(data, str) else data
