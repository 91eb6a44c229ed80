"""Stores of every kind with real files and real changelogs on a real broker, without tasks and instances."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from penstock import serdes
from penstock.runtime.model.ids import NextOffset, TaskId, TopicPartition
from penstock.runtime.model.record import SessionWindow, ValueAndTimestamp, Windowed
from penstock.runtime.snapshots.local import write_snapshot
from penstock.runtime.snapshots.manifest import SNAPSHOT, ApplicationManifest, encoded, read_manifest
from penstock.runtime.stores import Stores
from penstock.runtime.stores.base import StoreContext
from tests.support import Kafka, unique, wait_until

Store = Any
"""A store of any kind: their `put` methods have no common signature."""

RETENTION_MS = 60_000
WINDOW_MS = 1_000
COMPACT = {"cleanup.policy": "compact"}
COMPACT_DELETE = {"cleanup.policy": "compact,delete", "retention.ms": "-1"}
COMPACT_LATE = {"cleanup.policy": "compact", "min.compaction.lag.ms": str(10**13)}
"""The records of these tests are from 1970: brokers would compact them immediately, without a lag of centuries."""
COMPACT_SOON = {**COMPACT, "segment.ms": "200", "min.cleanable.dirty.ratio": "0.001", "max.compaction.lag.ms": "500"}
POLICIES = {"key_value": COMPACT, "versioned": COMPACT_LATE}


def key_value(name: str) -> Store:
    supplier = Stores.persistent_timestamped_key_value_store(name)
    return Stores.timestamped_key_value_store_builder(supplier, serdes.STRING, serdes.LONG).build()


def window(name: str) -> Store:
    supplier = Stores.persistent_timestamped_window_store(name, RETENTION_MS, WINDOW_MS)
    return Stores.timestamped_window_store_builder(supplier, serdes.STRING, serdes.LONG).build()


def join_window(name: str) -> Store:
    supplier = Stores.persistent_window_store(name, RETENTION_MS, WINDOW_MS, retain_duplicates=True)
    return Stores.window_store_builder(supplier, serdes.STRING, serdes.LONG).build()


def session(name: str) -> Store:
    return Stores.session_store_builder(Stores.persistent_session_store(name, RETENTION_MS), serdes.STRING, serdes.LONG).build()


def versioned(name: str) -> Store:
    supplier = Stores.persistent_versioned_key_value_store(name, RETENTION_MS)
    return Stores.versioned_key_value_store_builder(supplier, serdes.STRING, serdes.LONG).build()


KINDS: Mapping[str, Callable[[str], Store]] = {
    "key_value": key_value,
    "window": window,
    "join_window": join_window,
    "session": session,
    "versioned": versioned,
}


def change_at_random(kind: str, store: Store, rng: random.Random, now: int) -> None:
    """Update or delete one of a few keys, at about the time `now` (ms), sometimes late and sometimes too late."""
    key = f"k{rng.randrange(6)}"
    at = max(1, now - rng.choice((0, 0, 0, 500, 3_000, 20_000, 70_000)))
    value = None if rng.random() < 0.25 else rng.randrange(1_000)
    match kind:
        case "key_value":
            store.put(key, None if value is None else ValueAndTimestamp(value, at))
        case "window":
            store.put(key, None if value is None else ValueAndTimestamp(value, at), at - at % WINDOW_MS)
        case "join_window":
            store.put(key, value, at)
        case "session":
            store.put(Windowed(key, SessionWindow(at - at % 1_000, at)), value)
        case "versioned":
            store.put(key, value, at)


@dataclass
class LoggedStore:
    """One store in several tasks. Updates are committed like a worker's: to the changelog in a transaction, then to the files."""

    kafka: Kafka
    folder: Path
    make: Callable[[str], Store]
    changelog: str
    name: str = "facts"
    tasks: int = 2
    now: int = 1_000_000
    stores: list[Store] = field(default_factory=list)
    producer: Producer | None = None

    def __post_init__(self) -> None:
        for number in range(self.tasks):
            store, directory = self.make(self.name), self.folder / f"0_{number}"
            partition = TopicPartition(self.changelog, number)
            store.open(directory, StoreContext("app", directory, TaskId(0, number), partition, record_time=lambda: self.now))
            self.stores.append(store)

    @property
    def config(self) -> dict[str, str]:
        return {"bootstrap.servers": self.kafka.bootstrap_servers}

    def commit(self) -> None:
        """Commit all tasks in one transaction; then write their files."""
        if self.producer is None:
            self.producer = Producer({"bootstrap.servers": self.kafka.bootstrap_servers, "transactional.id": unique("test")})
            self.producer.init_transactions(60)
        producer = self.producer
        producer.begin_transaction()
        for number, store in enumerate(self.stores):
            for key, value, timestamp in store.changelog_records():
                producer.produce(self.changelog, key=key, value=value, partition=number, timestamp=timestamp)
                producer.poll(0)
        producer.commit_transaction(30)
        wait_until(self._is_stable, 30, "the markers of the transaction, which follow its commit")
        ends = self.kafka.end_offsets(self.changelog)
        for number, store in enumerate(self.stores):
            store.commit({TopicPartition(self.changelog, number): NextOffset(ends[number])})

    def _is_stable(self) -> bool:
        return self.kafka.end_offsets(self.changelog) == self.kafka.end_offsets(self.changelog, "read_uncommitted")

    def snapshot(self, snapshot_id: str) -> str:
        """Take a complete snapshot; return its location."""
        root = self.folder / "snapshots"
        for number, store in enumerate(self.stores):
            write_snapshot(
                root,
                snapshot_id,
                application="app",
                task=TaskId(0, number),
                stores={store: TopicPartition(self.changelog, number)},
                input_offsets={},
                stream_time=self.now,
                at_ms=1,
            )
        parts = [read_manifest(path) for path in sorted((root / snapshot_id).iterdir())]
        manifest = ApplicationManifest.of(parts, {part.task: part.task for part in parts})
        (root / snapshot_id / SNAPSHOT).write_bytes(encoded(manifest))
        return str(root / snapshot_id)

    def close(self) -> None:
        for store in self.stores:
            store.close()
