"""RocksDB's settings, and what the stores of a process share inside it: one block cache, one budget for write buffers.

A process may have a thousand stores, and RocksDB uses memory per store in three places that no cache bounds. An empty write buffer has its
bloom filter (0.8 MiB for a buffer of 8 MiB) and its first block of memory, and so has a family that is never written to. Measured with
1,000 stores: 2.8 GiB before the first entry. So

- block cache and write buffers are one of each per process, the second charged to the first (`WriteBufferManager`);
- only families that are written to get a filter over the write buffer, after 4 MiB, and only as many of them as fit into a quarter of the
  budget: a process with few busy stores reads absent keys fast (0.3 us instead of 1.4), one with many or idle ones stays small;
- the cache of open files has 4 parts instead of 64, each with a table of its own (22 KiB per store);
- write buffers grow in blocks of 32 KiB, those of offsets in blocks of 4 KiB;
- a store keeps at most `MAX_OPEN_FILES` of its files open, and the process may have as many open as the system allows it.

What is left per store: about 0.35 MiB, and 8 open files besides its data. Threads are RocksDB's own, a fixed number per process, and one
for the look-ahead (`look_ahead.py`).

Settings, from measurements of 10,000-entry batches over 100,000 keys: write buffers of 8 MiB (0.9 us per entry; with 64 MiB 1.7 us, because
the skip list no longer fits the CPU's cache).

State larger than the cache, from measurements of 3 M random reads and writes over 3 M keys in four stores (a read at the end took 8.8 us):

- The cache is a hyper clock cache. RocksDB's LRU cache of 64 MiB consists of 64 parts of 1 MiB, of which half is for index and filter
  blocks: the filter of a file of 64 MiB (0.7 MiB) did not stay in it, and was read and checked again for each key (2.6 us without that).
- Index and filters are outside of the cache while they are small (1.4 MiB per million keys; a read takes a fifth less): all stores together
  may use a quarter of its budget for that, and the cache is made smaller by as much as they use. Beyond that, those of new files are
  partitioned and in the cache: when they no longer fit into it, a read loads 4 KiB instead of a whole filter (4 us instead of 20). So the
  budget bounds all memory of RocksDB for its files, for any size of state.
- Write buffers take at most half of the cache, whatever their own limit is: the rest stays for blocks.
- No compression, as in Kafka Streams: it is the second largest part of a read. State takes more room on disk instead.

Rejected: index and filters always outside of the cache (no bound), or partitioned and pinned in it (an eighth less per read instead of a
fifth; rocksdict can set it for open stores only); mapped files (a tenth faster; an unreadable disk kills the process instead of raising an
error, and no cache bounds them); universal compaction with more threads (it competes with processing for the cores); a hash index in data
blocks, or smaller blocks (no difference).
"""

from __future__ import annotations

import logging
import resource
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from weakref import WeakValueDictionary

from rocksdict import BlockBasedIndexType, BlockBasedOptions, Cache, DBCompactionStyle, DBCompressionType, Options, WriteBufferManager

from penstock.runtime.stores.budget import MIB, StoreMemory
from penstock.runtime.stores.rocks_config import RocksDBOptions

logger = logging.getLogger(__name__)

WRITE_BUFFER = 8 * MIB
MAX_OPEN_FILES = 256
SWITCH_SECONDS = 0.0005
_OPEN_FILES_SHARD_BITS = 2
_FILTER_RATIO = 0.1
_FILTER_SHARE = 4


TABLES_SHARE = 4
"""Part of the block cache's budget, as a divisor, that filters and indexes outside of the cache may take."""
_TABLES_OF_FILES = 16
"""The filters and indexes of files take at most this part of the files' size, as a divisor, with entries of 25 bytes or more."""
FILTERED = {"memtable_prefix_bloom_size_ratio": str(_FILTER_RATIO)}
"""Options that give an open family a filter over its next write buffers, as `family_options` with `filtered`."""
IN_CACHE = {
    "block_based_table_factory": "{index_type=kTwoLevelIndexSearch;partition_filters=true;pin_top_level_index_and_filter=true;"
    "cache_index_and_filter_blocks=true;}"
}
"""Options that make an open family keep the filters and indexes of its new files in the cache, as `family_options` without `outside`."""


def _switch_often() -> None:
    """Lower the interpreter's switch interval. The look-ahead thread takes the GIL twice per read, and waits for it for a whole interval
    while a stream thread computes: with Python's 5 ms, 1,000 keys took 7 ms instead of 2, longer than the records before them."""
    sys.setswitchinterval(min(SWITCH_SECONDS, sys.getswitchinterval()))


class RocksMemory:
    """Memory that the stores of a process share. Safe to use from several threads."""

    def __init__(self, block_cache_bytes: int, write_buffer_bytes: int) -> None:
        self._budget = block_cache_bytes
        self.cache = Cache.new_hyper_clock_cache(block_cache_bytes, 0)  # 0: its table grows with the number of blocks
        self.buffers = WriteBufferManager.new_write_buffer_manager_with_cache(write_buffer_bytes, False, self.cache)
        self.reader = ThreadPoolExecutor(1, "penstock-look-ahead", _switch_often)  # its thread starts with the first read
        self._filters = int(write_buffer_bytes / _FILTER_SHARE / (WRITE_BUFFER * _FILTER_RATIO))
        self._tables: dict[int, int] = {}
        self._table_bytes = 0
        self._lock = Lock()

    def has_room_for_tables(self, files: int) -> bool:
        """True if filters and indexes of so many bytes of files may be outside of the cache."""
        return self._table_bytes + files // _TABLES_OF_FILES <= self._budget // TABLES_SHARE

    def count_tables(self, store: int, size: int) -> bool:
        """Note the size of the filters and indexes that a store (any number that identifies it) has outside of the cache; the cache is made
        smaller by that of all stores. Return False if they take more than their part of the budget: no more may be added."""
        with self._lock:
            before = self._tables.pop(store, 0)
            if size:
                self._tables[store] = size
            if size != before:
                self._table_bytes += size - before
                self.cache.set_capacity(max(self._budget - self._table_bytes, 0))
            return self._table_bytes <= self._budget // TABLES_SHARE

    def reserve_filter(self) -> bool:
        """Reserve a filter over the write buffer of a family. Return False if there is none left; release it with `release_filters`."""
        with self._lock:
            if self._filters <= 0:
                return False
            self._filters -= 1
            return True

    def release_filters(self, filters: int) -> None:
        """Release the filters of families that were closed or dropped."""
        with self._lock:
            self._filters += filters

    def block_cache_usage(self) -> int:
        return self.cache.get_usage()

    def block_cache_pinned_usage(self) -> int:
        return self.cache.get_pinned_usage()

    def write_buffer_usage(self) -> int:
        return self.buffers.get_usage()

    def table_usage(self) -> int:
        return self._table_bytes


_shared: WeakValueDictionary[tuple[int, int], RocksMemory] = WeakValueDictionary()
_shared_lock = Lock()


def rocks_memory(memory: StoreMemory) -> RocksMemory:
    """Return the caches of this process; clients with the same configuration share them."""
    if isinstance(memory.native, RocksMemory):
        return memory.native
    sizes = (memory.block_cache_bytes, memory.write_buffer_bytes)
    with _shared_lock:
        found = _shared.get(sizes)
        if found is None:
            _allow_open_files()
            found = _shared[sizes] = RocksMemory(*sizes)
    memory.native = found
    return found


def _allow_open_files() -> None:
    """Raise the limit of open files as far as the system allows (the JVM does the same): 1,024 is often only the soft limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:  # a system whose real limit is lower than the reported one
        logger.info("the limit of open files stays at %d: %s", soft, error)


def database_options(memory: RocksMemory, chosen: RocksDBOptions | None = None) -> Options:
    """Return the options of a database as a whole, and of its families without entries. `chosen`: by the user."""
    options = family_options(memory, filtered=False, arena_bytes=4 * 1024)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_atomic_flush(True)
    options.set_write_buffer_manager(memory.buffers)
    options.set_max_open_files(MAX_OPEN_FILES)
    options.set_table_cache_num_shard_bits(_OPEN_FILES_SHARD_BITS)
    options.set_max_total_wal_size(64 * MIB)
    options.set_keep_log_file_num(1)
    options.set_max_log_file_size(MIB)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    if chosen is not None:
        _apply(options, chosen.of_database)
    return options


def family_options(
    memory: RocksMemory, chosen: RocksDBOptions | None = None, *, filtered: bool, outside: bool = False, arena_bytes: int = 32 * 1024
) -> Options:
    """Return the options of a family with entries. `filtered`: a bloom filter over the write buffer; `outside`: filters and indexes of
    files are outside of the block cache; `chosen`: by the user."""
    table = BlockBasedOptions()
    table.set_block_cache(memory.cache)
    table.set_cache_index_and_filter_blocks(not outside)
    if not outside:
        table.set_index_type(BlockBasedIndexType.two_level_index_search())
        table.set_partition_filters(True)
        table.set_pin_top_level_index_and_filter(True)
    table.set_bloom_filter(10, False)
    if chosen is not None:
        _apply(table, chosen.of_tables)
    options = Options(raw_mode=True)
    options.set_block_based_table_factory(table)
    options.set_compression_type(DBCompressionType.none())
    options.set_write_buffer_size(WRITE_BUFFER)
    options.set_max_write_buffer_number(3)
    options.set_arena_block_size(arena_bytes)
    options.set_memtable_whole_key_filtering(True)  # where there is a filter
    if filtered:
        options.set_memtable_prefix_bloom_ratio(_FILTER_RATIO)
    if chosen is not None:
        _apply(options, chosen.of_families)
        if chosen.compression is not None:
            options.set_compression_type(getattr(DBCompressionType, chosen.compression)())
        if chosen.compaction_style is not None:
            options.set_compaction_style(getattr(DBCompactionStyle, chosen.compaction_style)())
    return options


def _apply(options: Options | BlockBasedOptions, setters: Mapping[str, tuple[object, ...]]) -> None:
    for name, arguments in setters.items():
        getattr(options, name)(*arguments)
