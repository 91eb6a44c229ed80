"""Snapshots of stores restored from real changelogs: complete, consistent, and readable while the store is open."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import serdes
from penstock.runtime.changelog.restore import Restorer
from penstock.runtime.changelog.staleness import Changelog
from penstock.runtime.model.clock import SystemClock
from penstock.runtime.model.errors import StateDirectoryError
from penstock.runtime.model.events import EventSink
from penstock.runtime.model.ids import NextOffset, TaskId, TopicPartition
from penstock.runtime.model.metrics import Metrics
from penstock.runtime.serdes.keys import window_store_key
from penstock.runtime.snapshots.local import snapshots_directory, write_snapshot
from penstock.runtime.snapshots.manifest import MANIFEST, read_manifest
from penstock.runtime.stores import Stores
from penstock.runtime.stores.base import EngineStore, EntryStore, StoreContext
from penstock.runtime.stores.rows import read_store
from tests.support import Kafka, wait_until

TASK = TaskId(0, 2)
HOUR_MS = 3_600_000


def key_value(name: str, *, persistent: bool = True) -> EntryStore:
    supplier = Stores.persistent_timestamped_key_value_store(name) if persistent else Stores.in_memory_key_value_store(name)
    if persistent:
        return Stores.timestamped_key_value_store_builder(supplier, serdes.STRING, serdes.LONG).build()
    return Stores.key_value_store_builder(supplier, serdes.STRING, serdes.LONG).build()


def window(name: str) -> EntryStore:
    supplier = Stores.persistent_timestamped_window_store(name, 24 * HOUR_MS, HOUR_MS)
    return Stores.timestamped_window_store_builder(supplier, serdes.STRING, serdes.JSON).build()


def opened(store: EntryStore, folder: Path, changelog: TopicPartition | None = None) -> EntryStore:
    store.open(folder, StoreContext("app", folder, TASK, changelog))
    return store


def snapshot(root: Path, snapshot_id: str, stores: dict[EngineStore, TopicPartition | None]) -> Path:
    return write_snapshot(
        snapshots_directory(root),
        snapshot_id,
        application="app",
        task=TASK,
        stores=stores,
        input_offsets={TopicPartition("flights", 2): NextOffset(77)},
        stream_time=123,
        at_ms=456,
    )


def rows(directory: Path, name: str) -> dict[object, tuple[bytes, int | None]]:
    """Return key (with window start) → value and timestamp."""
    manifest = next(store for store in read_manifest(directory).stores if store.name == name)
    found: dict[object, tuple[bytes, int | None]] = {}
    for batch in read_store(directory / manifest.directory, manifest.layout):
        values, timestamps = batch.values.to_pylist(), batch.timestamps and batch.timestamps.to_pylist()
        starts = batch.window_starts and batch.window_starts.to_pylist()
        for row, key in enumerate(batch.keys.to_pylist()):
            found[(key, starts[row]) if starts else key] = (values[row], timestamps[row] if timestamps else None)
    return found


def test_a_restored_store_and_its_offsets(broker: Kafka, topic: Callable[..., str], tmp_path: Path) -> None:
    changelog = TopicPartition(topic("changelog", config={"cleanup.policy": "compact"}), 0)
    broker.produce(changelog.topic, [(f"k{n}", n.to_bytes(8, "big")) for n in range(1_000)], partition=0, timestamps=range(1, 1_001))
    store = opened(key_value("counts"), tmp_path / "0_2", changelog)
    clock = SystemClock()
    restorer = Restorer({"bootstrap.servers": broker.bootstrap_servers}, clock, Metrics(), EventSink("app", "i", clock))
    restorer.add(TASK, [(store, Changelog(changelog, NextOffset(1_000), "id", None))])
    wait_until(lambda: restorer.step(0.1), what="the restore")
    restorer.close()

    directory = snapshot(tmp_path, "s1", {store: changelog})
    assert directory == tmp_path / "snapshots" / "s1" / "0_2"
    manifest = read_manifest(directory)
    assert (manifest.application, manifest.task, manifest.stream_time, manifest.at_ms) == ("app", "0_2", 123, 456)
    assert [(each.topic, each.partition, each.next_offset) for each in manifest.input_offsets] == [("flights", 2, 77)]
    (kept,) = manifest.stores
    assert (kept.kind, kept.timestamped, kept.key_format, kept.value_format) == ("key_value", True, "STRING", "LONG")
    assert kept.changelog is not None and kept.changelog.next_offset == 1_000
    assert rows(directory, "counts") == {b"k%d" % n: (n.to_bytes(8, "big"), n + 1) for n in range(1_000)}
    store.close()


def test_it_stays_as_it_was_while_the_store_continues(tmp_path: Path) -> None:
    """It is readable beside the running store, without its lock, and excludes staged updates."""
    changelog = TopicPartition("log", 0)
    store = opened(key_value("counts"), tmp_path / "0_2", changelog)
    store.restore([(b"a", (1).to_bytes(8, "big"), 5)], {changelog: NextOffset(1)})
    entry = store.entry(b"staged")
    store.update(b"staged", "staged", entry, 9, 9, None)
    directory = snapshot(tmp_path, "s1", {store: changelog})
    store.rollback()
    store.restore([(b"a", (2).to_bytes(8, "big"), 6), (b"b", (2).to_bytes(8, "big"), 6)], {changelog: NextOffset(3)})
    store.flush()
    assert rows(directory, "counts") == {b"a": ((1).to_bytes(8, "big"), 5)}
    assert read_manifest(directory).stores[0].changelog.next_offset == 1  # type: ignore[union-attr]  # it was given one
    store.close()


def test_windows_and_stores_in_memory(tmp_path: Path) -> None:
    log = TopicPartition("log", 0)
    windows, memory = opened(window("hourly"), tmp_path / "0_2", log), opened(key_value("memory", persistent=False), tmp_path / "0_2")
    starts = [0, HOUR_MS, 20 * HOUR_MS]
    windows.restore([(window_store_key(b"EWR", start), b'{"n":1}', start + 5) for start in starts], {log: NextOffset(3)})
    memory.restore([(b"a", (7).to_bytes(8, "big"), 1)], {})
    directory = snapshot(tmp_path, "s1", {windows: log, memory: None})
    assert rows(directory, "hourly") == {(b"EWR", start): (b'{"n":1}', start + 5) for start in starts}
    assert rows(directory, "memory") == {b"a": ((7).to_bytes(8, "big"), None)}
    hourly, kept = read_manifest(directory).stores
    assert (hourly.kind, hourly.window_size_ms, hourly.retention_ms) == ("window", HOUR_MS, 24 * HOUR_MS)
    assert (kept.persistent, kept.changelog) == (False, None)
    windows.close()
    memory.close()


def test_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(key_value("counts"), tmp_path / "0_2")

    def fails(descriptor: int) -> None:
        raise OSError("disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fails)
        with pytest.raises(StateDirectoryError, match="disk is full"):
            snapshot(tmp_path, "s1", {store: None})
    assert list((snapshots_directory(tmp_path) / "s1").iterdir()) == []
    assert [snapshot(tmp_path, "s1", {store: None})] == list((snapshots_directory(tmp_path) / "s1").iterdir())
    store.close()


def test_taking_it_twice_gives_the_first(tmp_path: Path) -> None:
    log = TopicPartition("log", 0)
    store = opened(key_value("counts"), tmp_path / "0_2", log)
    first = snapshot(tmp_path, "s1", {store: log})
    store.restore([(b"a", (1).to_bytes(8, "big"), 5)], {log: NextOffset(1)})
    assert snapshot(tmp_path, "s1", {store: log}) == first
    assert rows(first, "counts") == {}
    store.close()


@pytest.mark.parametrize("name", ["", "../elsewhere", ".hidden"])
def test_ids_that_are_not_names_of_folders_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(StateDirectoryError, match="names a folder"):
        snapshot(tmp_path, name, {})


def test_what_is_not_a_snapshot_is_named(tmp_path: Path) -> None:
    with pytest.raises(StateDirectoryError, match="has no manifest"):
        read_manifest(tmp_path)
    (tmp_path / MANIFEST).write_text("{")
    with pytest.raises(StateDirectoryError, match="cannot be read"):
        read_manifest(tmp_path)
