"""Memory that stores share inside RocksDB: caches by size, and a number of memtable filters that does not grow with the stores."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import serdes
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.model.errors import StreamsConfigError
from penstock.runtime.model.ids import NextOffset, TaskId, TopicPartition
from penstock.runtime.serdes.keys import WINDOW_SUFFIX, window_store_key
from penstock.runtime.stores.base import EngineStore, StoreContext
from penstock.runtime.stores.budget import MIB, StoreMemory
from penstock.runtime.stores.process_memory import OTHER, RESIDENT, ProcessMemory
from penstock.runtime.stores.rocks import RocksBackend
from penstock.runtime.stores.rocks_options import RocksMemory, rocks_memory
from penstock.runtime.stores.rocks_segments import RocksSegments
from penstock.runtime.stores.settings import SegmentSettings
from penstock.runtime.stores.suppliers import Stores
from tests.support import wait_until

BUFFERS = 8 * MIB
FILTERS = 2
"""Number of filters that fit into a quarter of the budget."""


def opened(folder: Path, number: int, memory: StoreMemory) -> EngineStore:
    supplier = Stores.persistent_timestamped_key_value_store(f"s{number}")
    store = Stores.timestamped_key_value_store_builder(supplier, serdes.STRING, serdes.LONG).build()
    store.open(folder, StoreContext("app", folder, TaskId(0, 0), TopicPartition("c", number), memory))
    return store


def free_filters(memory: RocksMemory) -> int:
    """Return how many filters a store could still have."""
    taken = 0
    while memory.reserve_filter():
        taken += 1
    memory.release_filters(taken)
    return taken


def test_clients_in_one_process_with_equal_sizes_share_one_cache() -> None:
    one, two, other = StoreMemory(), StoreMemory(), StoreMemory(block_cache_bytes=5 * MIB)
    assert rocks_memory(one) is rocks_memory(two)
    assert rocks_memory(one) is not rocks_memory(other)
    assert one.native is two.native


def write_much(store: RocksBackend | RocksSegments, first: int = 0) -> None:
    """Write enough for a filter, with keys of a window store from the time `first` on, in ms."""
    for turn in range(10):
        store.write([(b"%07d" % number + window_store_key(b"", first, turn), bytes(1_000)) for number in range(500)], {})


def test_memtable_filters_are_limited_by_the_budget_and_released(tmp_path: Path) -> None:
    memory = StoreMemory(write_buffer_bytes=BUFFERS)
    native = rocks_memory(memory)
    assert free_filters(native) == FILTERS
    stores = [RocksBackend(tmp_path / str(number), "default", memory) for number in range(5)]
    assert free_filters(native) == FILTERS, "idle stores have none"
    write_much(stores[4])
    assert free_filters(native) == FILTERS - 1
    for store in stores:
        write_much(store)
    assert free_filters(native) == 0
    stores[4].wipe()
    assert free_filters(native) == 1
    for store in stores:
        store.close()
    assert free_filters(native) == FILTERS


def test_a_filter_is_made_with_the_next_write_buffer(tmp_path: Path) -> None:
    store = RocksBackend(tmp_path, "default", StoreMemory())

    def buffer_bytes() -> int:
        return int(store._families["default"].property_int_value("rocksdb.cur-size-active-mem-table") or 0)

    store.write([(b"first", b"1")], {})
    assert buffer_bytes() < MIB // 16
    write_much(store)
    store._families["default"].flush()
    store.write([(b"first", b"2")], {})
    assert buffer_bytes() > MIB // 2
    assert store.get(b"absent") is None
    assert store.get(b"%07d" % 7 + window_store_key(b"", 0, 7)) == bytes(1_000)
    store.close()


def test_the_newest_segment_gets_a_filter_and_a_dropped_one_releases_it(tmp_path: Path) -> None:
    memory = StoreMemory(write_buffer_bytes=BUFFERS)
    store = RocksSegments(tmp_path, SegmentSettings(1_000, 500, WINDOW_SUFFIX), memory)
    for first in (0, 500, 1_000):
        write_much(store, first)
    assert store._filtered == {"segment.0", "segment.500"}
    store.drop_before(1)
    write_much(store, 1_000)
    assert store._filtered == {"segment.500", "segment.1000"}
    store.close()
    assert free_filters(rocks_memory(memory)) == FILTERS


def test_the_configuration_gives_the_sizes() -> None:
    settings = {
        "application.id": "app",
        "bootstrap.servers": "b:1",
        "rocksdb.block.cache.bytes": 3 * MIB,
        "rocksdb.write.buffer.bytes": MIB,
    }
    config = StreamsConfig({**settings, "statestore.cache.max.bytes": 0, "statestore.read.cache.max.bytes": 7})
    memory = StoreMemory.configured(config.integer, config)
    assert (memory.block_cache_bytes, memory.write_buffer_bytes) == (3 * MIB, MIB)
    assert (memory.cache.limit, memory.read_cache.limit) == (0, 7)
    with pytest.raises(StreamsConfigError, match=r"rocksdb\.block\.cache\.bytes"):
        StreamsConfig({**settings, "rocksdb.block.cache.bytes": 1000})


def test_write_buffers_take_at_most_half_of_the_block_cache() -> None:
    assert StoreMemory(block_cache_bytes=16 * MIB, write_buffer_bytes=16 * MIB).write_buffer_bytes == 8 * MIB


def test_a_read_beyond_the_cache_reads_a_few_blocks_and_no_whole_filter(tmp_path: Path) -> None:
    """The filter of all these keys is larger than the cache: reading it whole for each key costs more than everything else."""
    store = RocksBackend(tmp_path, "default", StoreMemory(block_cache_bytes=MIB, write_buffer_bytes=MIB))
    step, keys = 20_000, 900_000
    for first in range(0, keys, step):
        store.write([(b"u%08d" % (number * 7919 % keys), b"%016d" % number) for number in range(first, first + step)], {})
    store._db.compact_range(None, None)
    wanted = [b"u%08d" % (number * 1009 % keys) for number in range(2_000)]
    assert all(map(store.get, wanted[:500]))
    before = bytes_read()
    assert all(map(store.get, wanted[500:]))
    assert (bytes_read() - before) / 1_500 < 16 * 1024
    assert store._memory.block_cache_usage() <= 2 * MIB
    store.close()


KEYS = 400_000


def filled(path: Path, memory: StoreMemory) -> RocksBackend:
    """Return a store with `KEYS` entries in files, whose filters and indexes take about 0.6 MiB."""
    store = RocksBackend(path, "default", memory)
    fill(store)
    return store


def fill(store: RocksBackend) -> None:
    for first in range(0, KEYS, 20_000):
        store.write([(b"u%08d" % (number * 7919 % KEYS), b"%016d" % number) for number in range(first, first + 20_000)], {})
    store._families["default"].flush()


def assert_complete(store: RocksBackend) -> None:
    for first in range(0, 5_000, 200):  # a read keeps its blocks until its end, beyond the budget too
        wanted = [b"u%08d" % (number * 1009 % KEYS) for number in range(first, first + 200)]
        assert None not in store.begin_get_all(wanted).result()
    assert store.get(b"absent") is None


def in_use(memory: RocksMemory) -> int:
    return memory.block_cache_usage() + memory.table_usage()


def test_small_filters_and_indexes_are_outside_of_the_block_cache_and_within_its_budget(tmp_path: Path) -> None:
    memory = StoreMemory(block_cache_bytes=8 * MIB, write_buffer_bytes=2 * MIB)
    store, native = filled(tmp_path, memory), rocks_memory(memory)
    store._db.compact_range(None, None)
    store._count_tables()
    assert MIB // 2 < native.table_usage() < 2 * MIB
    assert list(store.range(None, None))  # fills the cache with blocks
    assert_complete(store)
    assert 7 * MIB < in_use(native) < 8.5 * MIB
    assert ProcessMemory(memory, lambda: 0).split()["tables"] == native.table_usage()
    store.close()
    assert native.table_usage() == 0


def test_large_filters_and_indexes_are_in_the_block_cache(tmp_path: Path) -> None:
    """Those of two stores grow beyond their part of the budget; new files, and the stores when they are opened again, keep them in the
    cache."""
    memory = StoreMemory(block_cache_bytes=2 * MIB, write_buffer_bytes=MIB)
    native = rocks_memory(memory)
    stores = [filled(tmp_path / name, memory) for name in ("a", "b")]
    for store in stores:
        store._count_tables()
        assert not store._tables_outside
        fill(store)
        store._db.compact_range(None, None)
        store._count_tables()
        assert_complete(store)
    assert native.table_usage() < MIB // 8, "top-level indexes only"
    assert in_use(native) < 3 * MIB
    stores[0].close()
    again = RocksBackend(tmp_path / "a", "default", memory)
    assert not again._tables_outside
    assert_complete(again)
    for store in (again, stores[1]):
        store.close()


@pytest.mark.parametrize(("before", "after"), [(1, 32), (32, 1)])
def test_files_with_filters_of_one_kind_are_read_with_options_of_the_other(tmp_path: Path, before: int, after: int) -> None:
    """The budget was changed between two starts, in MiB."""
    store = filled(tmp_path, StoreMemory(block_cache_bytes=before * MIB, write_buffer_bytes=MIB))
    assert store._tables_outside == (before > after)
    store.close()
    again = RocksBackend(tmp_path, "default", StoreMemory(block_cache_bytes=after * MIB, write_buffer_bytes=MIB))
    assert again._tables_outside == (after > before)
    assert_complete(again)
    again._db.compact_range(None, None)
    assert_complete(again)
    again.close()


def test_segments_keep_filters_and_indexes_in_the_cache_too(tmp_path: Path) -> None:
    memory = StoreMemory(block_cache_bytes=MIB, write_buffer_bytes=MIB)
    store = RocksSegments(tmp_path, SegmentSettings(1_000, 500, WINDOW_SUFFIX), memory)
    for first in [*range(0, KEYS, 20_000)] * 2:
        store.write(
            [
                (b"u%08d" % (number * 7919 % KEYS) + (number % 4 * 500).to_bytes(8) + bytes(4), b"1")
                for number in range(first, first + 20_000)
            ],
            {},
        )
    assert not store._tables_outside
    for number in store.segments():
        store._segments[number].compact_range(None, None)
    store._count_tables()
    assert rocks_memory(memory).table_usage() < MIB // 8
    assert [len(list(store.range_in(number, None, None))) for number in store.segments()] == [KEYS // 4] * 4
    store.close()


def bytes_read() -> int:
    """Return bytes read by system calls of this process, from disk or the system's cache."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("rchar"))


def test_the_parts_of_the_process_memory_add_up(tmp_path: Path) -> None:
    memory = StoreMemory()
    store = opened(tmp_path, 0, memory)
    split = ProcessMemory(memory, lambda: 7).split()
    store.close()
    assert sum(split.values()) - split[RESIDENT] == split[RESIDENT]
    assert split["restore"] == 7
    assert split["write-buffers"] > 0
    assert split[OTHER] > MIB, "Python itself"


def test_the_number_of_files_does_not_grow_with_the_number_of_writes(tmp_path: Path) -> None:
    """Flush unchanged state twenty times: RocksDB merges four files of a family into one."""
    store = RocksBackend(tmp_path, "default", StoreMemory(block_cache_bytes=2 * MIB, write_buffer_bytes=MIB))
    for turn in range(100):
        store.write([(b"%d" % number, b"%0200d" % turn) for number in range(1_000)], {TopicPartition("in", 0): NextOffset(turn)})
    wait_until(lambda: len(list(tmp_path.iterdir())) <= 24, what="the end of merging")
    store.close()
