"""Stores: builders, changelog settings, errors of unusable folders, and reading of their files."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import cast

import pytest

from penstock import serdes
from penstock.runtime.model.errors import InvalidStateStoreError, StateDirectoryError, StateDirectoryLockedError, TaskCorruptedError
from penstock.runtime.model.ids import NextOffset, TaskId, TopicPartition
from penstock.runtime.serdes.keys import window_store_key
from penstock.runtime.stores import KeyValueSupplier, StateStore, StoreContext, StoreLayout, StoreMemory, Stores
from penstock.runtime.stores.key_value import StagedKeyValueStore, after_prefix
from penstock.runtime.stores.rocks import RocksBackend
from penstock.runtime.stores.rocks_files import read_files
from penstock.runtime.stores.window import StagedWindowStore
from tests.support import ROOT, without_root

BUILDER = Stores.timestamped_key_value_store_builder(Stores.persistent_key_value_store("counts"), serdes.STRING, serdes.LONG)
CHANGELOG = TopicPartition("app-counts-changelog", 0)
HOLD = """
import sys
from pathlib import Path
from tests.unit.runtime.stores.test_stores import open_store
store = open_store(Path(sys.argv[1]))
print("open", flush=True)
sys.stdin.read()
"""


def open_store(folder: Path, store: StagedKeyValueStore | None = None) -> StagedKeyValueStore:
    store = store or BUILDER.build()
    store.open(folder, StoreContext("app", folder, TaskId(0, 0), CHANGELOG))
    return store


def fill(store: StagedKeyValueStore, count: int) -> None:
    for n in range(count):
        key = f"{n:06d}".encode()
        store.update(key, None, store.entry(key), n, 5, None)
    store.commit({CHANGELOG: NextOffset(count)})


def test_builders_are_immutable_and_make_new_stores() -> None:
    cached = BUILDER.with_caching_enabled().with_logging_enabled({"min.insync.replicas": "2"})
    assert (BUILDER.caching_enabled, BUILDER.logging_enabled, cached.caching_enabled) == (False, True, True)
    assert cached.with_caching_disabled() == BUILDER.with_logging_enabled({"min.insync.replicas": "2"})
    assert not cached.with_logging_disabled().logging_enabled
    assert cached.build() is not cached.build()
    assert isinstance(cached.build(), StateStore)


def test_changelogs_are_configured_as_in_kafka_streams() -> None:
    assert BUILDER.changelog_config()["cleanup.policy"] == "compact"
    assert BUILDER.with_logging_enabled({"cleanup.policy": "delete"}).changelog_config()["cleanup.policy"] == "delete"
    supplier = Stores.in_memory_window_store("w", timedelta(hours=2), timedelta(hours=1))
    window = Stores.window_store_builder(supplier, serdes.STRING, serdes.LONG).changelog_config()
    assert window["cleanup.policy"] == "compact,delete"
    assert window["retention.ms"] == str(2 * 3_600_000)  # plus the configured addition, when the topic is created


def test_a_layout_describes_how_files_are_read() -> None:
    assert BUILDER.build().layout == StoreLayout("key_value", True, "STRING", "LONG")
    window = Stores.window_store_builder(Stores.persistent_window_store("w", 7_200_000, 3_600_000), serdes.BYTES, serdes.JSON)
    assert window.build().layout == StoreLayout("window", False, "BYTES", "JSON", 3_600_000, 7_200_000, 3_600_000)


@pytest.mark.parametrize("name", ["", ".", "a/b", "ä", "x" * 250])
def test_a_name_that_no_topic_may_have_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="cannot name a store"):
        Stores.persistent_key_value_store(name)


def test_a_retention_shorter_than_a_window_is_refused() -> None:
    with pytest.raises(ValueError, match="retention"):
        Stores.persistent_window_store("w", timedelta(minutes=1), timedelta(minutes=2))


def test_files_lie_where_kafka_streams_puts_them(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assert (tmp_path / "rocksdb" / "counts" / "CURRENT").exists()
    store.close()


def test_a_store_that_another_process_has_open_names_it(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "open\n"
        with pytest.raises(StateDirectoryLockedError, match=f"open in process {holder.pid}"):
            open_store(tmp_path)
        holder.kill()
    open_store(tmp_path).close()


def test_a_store_that_is_open_in_this_process_is_not_opened_again(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with pytest.raises(StateDirectoryLockedError, match=f"process {os.getpid()}"):
        open_store(tmp_path)
    store.close()
    open_store(tmp_path).close()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "rocksdb").write_text("a file where a folder should be")
    with pytest.raises(StateDirectoryError, match="rocksdb/counts cannot be used"):
        open_store(tmp_path)


def test_a_folder_without_rights_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with without_root(), pytest.raises(StateDirectoryError, match="Permission denied"):
        open_store(tmp_path)


@pytest.mark.parametrize("damaged", ["CURRENT", "MANIFEST-*"])
def test_files_that_cannot_be_read_are_a_corrupted_task_and_can_be_wiped(tmp_path: Path, damaged: str) -> None:
    store = open_store(tmp_path)
    fill(store, 100)
    store.close()
    for path in (tmp_path / "rocksdb" / "counts").glob(damaged):
        path.write_bytes(b"\0garbage\0" * 20)
    store = BUILDER.build()
    with pytest.raises(TaskCorruptedError, match=r"task.* 0_0: the files of the store in .*counts cannot be read"):
        open_store(tmp_path, store)
    with pytest.raises(InvalidStateStoreError):
        store.flush()
    store.wipe()
    assert store.is_open and list(store.all()) == [] and store.committed_offset(CHANGELOG) is None
    fill(store, 3)
    store.close()


@pytest.fixture
def damaged_copy(tmp_path: Path) -> Path:
    """Create a store of 20,000 entries with a damaged block in the middle of its table file."""
    store = open_store(tmp_path)
    fill(store, 20_000)
    files = tmp_path / "copy" / "rocksdb" / "counts"
    store.checkpoint(files)  # a checkpoint has table files
    store.close()
    table = max(files.glob("*.sst"), key=lambda path: path.stat().st_size)
    content = bytearray(table.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 1000] = bytes(1000)
    table.write_bytes(content)
    return tmp_path / "copy"


def test_damage_found_while_reading_is_a_corrupted_task(damaged_copy: Path) -> None:
    """rocksdict's own iterator ends at a damaged block as if there were no more entries: half a table would look complete."""
    store = open_store(damaged_copy)
    reads: list[Callable[[], object]] = [
        lambda: [store.get(f"{n:06d}") for n in range(20_000)],
        lambda: list(store.all()),
        lambda: list(store.reverse_all()),
        lambda: list(store.query_view().range("005000", None)),
    ]
    for read in reads:
        with pytest.raises(TaskCorruptedError, match=r"0_0: the store in .* cannot be read"):
            read()
    store.close()
    with pytest.raises(StateDirectoryError, match="cannot be read to its end"):
        list(read_files(damaged_copy / "rocksdb" / "counts"))


def test_an_open_iterator_does_not_keep_the_lock(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 10)
    iteration = store.query_view().all()
    next(iteration)
    store.wipe()
    fill(store, 2)
    assert len(list(store.all())) == 2
    store.close()


def test_a_store_can_be_closed_between_two_reads_of_other_threads(tmp_path: Path) -> None:
    """A thread inside RocksDB would keep the database open, and its lock."""
    store = open_store(tmp_path)
    fill(store, 10)
    view = store.query_view()
    backend = cast(RocksBackend, store._opened())
    with backend.gate:
        closing = threading.Thread(target=store.close)
        closing.start()
        closing.join(0.1)
        assert closing.is_alive()
    closing.join()
    reads: list[Callable[[], object]] = [lambda: view.get("000001"), lambda: list(view.all())]
    for read in reads:
        with pytest.raises(InvalidStateStoreError):
            read()
    open_store(tmp_path).close()


def test_files_are_read_while_no_store_has_them_open(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 40_000)
    store.checkpoint(tmp_path / "snapshot")
    store.close()
    for path in (tmp_path / "snapshot", tmp_path / "rocksdb" / "counts"):
        batches = list(read_files(path))
        assert {name for name, _ in batches} == {"keyValueWithTimestamp"} and len(batches) > 1
        rows = [row for _, batch in batches for row in batch]
        assert len(rows) == 40_000 and rows[7] == (b"000007", (5).to_bytes(8, "big") + (7).to_bytes(8, "big"))
    with pytest.raises(StateDirectoryError, match="holds no store that can be read"):
        list(read_files(tmp_path / "nothing"))


def test_one_budget_of_memory_serves_all_stores_of_a_process(tmp_path: Path) -> None:
    memory = StoreMemory(cache_max_bytes=1000)
    stores = []
    for n in range(2):
        store = Stores.key_value_store_builder(KeyValueSupplier(f"s{n}", True), serdes.STRING, serdes.LONG).with_caching_enabled().build()
        store.open(tmp_path, StoreContext("app", tmp_path, memory=memory))
        store.set_flush_listener(lambda key, new, old, timestamp, headers: None)
        stores.append(store)
    assert memory.read_cache.holders == 2
    for n in range(100):
        stores[n % 2].put(f"key-{n}", n)
        assert memory.cache.used <= 1000
    for store in stores:
        store.close()
    assert memory.cache.used == 0


def test_uncommitted_bytes_are_counted(tmp_path: Path) -> None:
    store = Stores.key_value_store_builder(Stores.persistent_key_value_store("s"), serdes.STRING, serdes.STRING).build()
    store.open(tmp_path, StoreContext("app", tmp_path))
    store.put("a", "x" * 1000)
    one = store.approximate_num_uncommitted_bytes
    assert 1000 < one < 1200
    store.put("a", "x" * 3000)
    assert store.approximate_num_uncommitted_bytes == one + 2000
    store.put("a", None)
    assert store.approximate_num_uncommitted_bytes == one - 1000
    store.commit({})
    assert store.approximate_num_uncommitted_bytes == 0
    store.close()


def test_operators_references_to_a_store_survive_rollback_wipe_and_reopening(tmp_path: Path) -> None:
    """A global table that is rebuilt is closed, wiped and opened again under the nodes that join with it."""
    store = open_store(tmp_path)
    find = store.find
    fill(store, 1)
    store.update(b"000000", None, store.entry(b"000000"), 41, 6, None)
    assert find(b"000000") is not None
    store.rollback()
    assert find(b"000000") is None
    assert store.value_of(store.entry(b"000000")) == 0
    store.close()
    store.wipe()  # opens it again
    assert find(b"000000") is None
    store.update(b"000000", None, store.entry(b"000000"), 42, 7, None)
    found = find(b"000000")
    assert found is store.entry(b"000000") and store.value_of(found) == 42
    store.close()


def test_after_prefix_is_the_smallest_key_beyond_a_prefix() -> None:
    assert after_prefix(b"ab") == b"ac"
    assert after_prefix(b"a\xff\xff") == b"b"
    assert after_prefix(b"\xff") is None and after_prefix(b"") is None


def test_evicted_entries_are_read_from_disk_and_only_new_windows_skip_the_read(tmp_path: Path) -> None:
    """The read cache has no room; entries later than all entries at the last eviction cannot be on disk."""
    builder = Stores.window_store_builder(
        Stores.persistent_window_store("w", timedelta(hours=2), timedelta(minutes=1), False), serdes.STRING, serdes.LONG
    )
    memory = StoreMemory(read_cache_bytes=1)

    def opened() -> StagedWindowStore:
        store = builder.build()
        assert isinstance(store, StagedWindowStore)
        store.open(tmp_path, StoreContext("app", tmp_path, TaskId(0, 0), CHANGELOG, memory))
        return store

    store = opened()
    for minute in range(5):
        for n in range(3):
            store.put(f"k{n}", n, minute * 60_000)
            store.commit({CHANGELOG: NextOffset(minute * 10 + n)})
        assert [store.fetch(f"k{n}", at * 60_000) for at in range(minute + 1) for n in range(3)] == [0, 1, 2] * (minute + 1)
    store.put("k0", 9, 300_000)
    store.put("k0", 9, 0)
    store.rollback()
    assert (store.fetch("k0", 300_000), store.fetch("k0", 0)) == (None, 0)
    store.close()
    store = opened()
    assert [store.fetch(f"k{n}", 240_000) for n in range(4)] == [0, 1, 2, None]
    store.restore([(window_store_key(b"k7", 360_000), (7).to_bytes(8, "big"), 360_000)], {CHANGELOG: NextOffset(99)})
    assert store.fetch("k7", 360_000) == 7
    store.close()


def test_an_eviction_forwards_the_least_recently_updated_entries(tmp_path: Path) -> None:
    store = Stores.key_value_store_builder(KeyValueSupplier("s", True), serdes.STRING, serdes.LONG).with_caching_enabled().build()
    store.open(tmp_path, StoreContext("app", tmp_path, memory=StoreMemory(cache_max_bytes=1000)))
    forwarded: list[object] = []
    store.set_flush_listener(lambda key, new, old, timestamp, headers: forwarded.append(key))
    for n in range(40):
        store.put("kept", n)
        store.put(f"k{n:02d}", n)
    assert len(forwarded) > 20
    assert forwarded == [f"k{n:02d}" for n in range(len(forwarded))]
    store.put("k38", 0)
    forwarded.clear()
    store.flush_cache()
    assert forwarded[-3:] == ["kept", "k39", "k38"]
    store.close()
