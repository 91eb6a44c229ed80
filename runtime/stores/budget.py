"""Memory of all stores of one process: RocksDB's block cache and write buffers, the record cache, the read cache.

Kafka Streams gives every RocksDB its own caches (50 MiB of blocks, three write buffers of 16 MiB), so memory grows with the number of
partitions; most complaints about its memory come from that. Here the worker makes one `StoreMemory` and passes it to every store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from penstock.runtime.model.handlers import make_handler
from penstock.runtime.model.metrics import STATE, Metrics
from penstock.runtime.stores.rocks_config import ROCKSDB_CONFIG_SETTER, OptionsOf, RocksDBConfigSetter, options_of

MIB = 1 << 20
DEFAULT_CACHE_BYTES = 10 * MIB
DEFAULT_READ_CACHE_BYTES = 96 * MIB
DEFAULT_BLOCK_CACHE_BYTES = 64 * MIB
DEFAULT_WRITE_BUFFER_BYTES = 32 * MIB
LEAST_RESTORE_BYTES = 16 * MIB


class Budget:
    """Bytes that several stores share; `holders` is their number. Plain attributes, because the hot path of one thread reads it."""

    __slots__ = ("holders", "limit", "used")

    def __init__(self, limit: int) -> None:
        if limit < 0:
            raise ValueError(f"a budget of bytes must not be negative: {limit}")
        self.limit = limit
        self.used = 0
        self.holders = 0


class NativeMemory(Protocol):
    """Measurable memory of RocksDB's caches, in bytes. Safe from any thread."""

    def block_cache_usage(self) -> int:
        """Blocks and write buffers in the cache."""
        ...

    def block_cache_pinned_usage(self) -> int:
        """Return the part of these that cannot be evicted."""
        ...

    def write_buffer_usage(self) -> int:
        """Write buffers of all stores, also those being flushed."""
        ...

    def table_usage(self) -> int:
        """Filters and indexes of open files outside of the block cache."""
        ...


class StoreMemory:
    """Budgets that all stores of a process share.

    `cache`: entries not yet forwarded (`statestore.cache.max.bytes`; 0 disables caching). `read_cache`: committed entries kept as objects,
    in approximate bytes of Python memory (`statestore.read.cache.max.bytes`). `block_cache_bytes` and `write_buffer_bytes`: RocksDB's, the
    second charged to the first (`rocksdb.block.cache.bytes`, `rocksdb.write.buffer.bytes`). Write buffers take at most half of the block
    cache: if they filled it, there would be no room for blocks, and each read would go to the files.
    """

    __slots__ = ("block_cache_bytes", "cache", "native", "read_cache", "rocks_options", "write_buffer_bytes")

    def __init__(
        self,
        cache_max_bytes: int = DEFAULT_CACHE_BYTES,
        read_cache_bytes: int = DEFAULT_READ_CACHE_BYTES,
        block_cache_bytes: int = DEFAULT_BLOCK_CACHE_BYTES,
        write_buffer_bytes: int = DEFAULT_WRITE_BUFFER_BYTES,
    ) -> None:
        self.cache = Budget(cache_max_bytes)
        self.read_cache = Budget(read_cache_bytes)
        self.block_cache_bytes = block_cache_bytes
        self.write_buffer_bytes = min(write_buffer_bytes, block_cache_bytes // 2)
        self.native: NativeMemory | None = None
        """RocksDB's own objects, set by the first store that opens one."""
        self.rocks_options: OptionsOf | None = None
        """Options that the user sets for a store."""

    @classmethod
    def configured(cls, integer: Callable[[str], int], configs: Mapping[str, object]) -> StoreMemory:
        """Create it from the configuration; `integer` returns this worker's share of a key's value. Raises StreamsConfigError if the setter
        of RocksDB's options cannot be made."""
        memory = cls(
            cache_max_bytes=integer("statestore.cache.max.bytes"),
            read_cache_bytes=integer("statestore.read.cache.max.bytes"),
            block_cache_bytes=integer("rocksdb.block.cache.bytes"),
            write_buffer_bytes=integer("rocksdb.write.buffer.bytes"),
        )
        memory.set_rocks_options(configs)
        return memory

    def set_rocks_options(self, configs: Mapping[str, object]) -> None:
        """Take the user's setter of RocksDB's options from the configuration. Raises StreamsConfigError if it cannot be made."""
        if configs[ROCKSDB_CONFIG_SETTER] is not None:
            setter = make_handler(configs[ROCKSDB_CONFIG_SETTER], RocksDBConfigSetter, configs, ROCKSDB_CONFIG_SETTER)
            self.rocks_options = options_of(setter, configs)

    @property
    def restore_bytes(self) -> int:
        """Memory for restored records that are not written yet: as much as the read caches, which are empty until then, but enough to write
        many keys at a time."""
        return max(self.read_cache.limit, LEAST_RESTORE_BYTES)

    def __str__(self) -> str:
        return (
            f"block cache {_mib(self.block_cache_bytes)}, of which write buffers at most {_mib(self.write_buffer_bytes)}; "
            f"record caches {_mib(self.cache.limit)}, read caches {_mib(self.read_cache.limit)}"
        )


def show_memory(metrics: Metrics, memory: StoreMemory) -> None:
    """Register the client's gauges for it, in bytes. Kafka Streams' names where they exist: there for each store, here for all."""

    def native(read: Callable[[NativeMemory], int]) -> Callable[[], float]:
        return lambda: 0.0 if memory.native is None else float(read(memory.native))

    gauges: dict[str, Callable[[], float]] = {
        "block-cache-capacity": lambda: float(memory.block_cache_bytes),
        "block-cache-usage": native(lambda caches: caches.block_cache_usage()),
        "block-cache-pinned-usage": native(lambda caches: caches.block_cache_pinned_usage()),
        "estimate-table-readers-mem": native(lambda caches: caches.table_usage()),
        "size-all-mem-tables": native(lambda caches: caches.write_buffer_usage()),
        "write-buffer-capacity": lambda: float(memory.write_buffer_bytes),
        "record-cache-capacity": lambda: float(memory.cache.limit),
        "record-cache-usage": lambda: float(memory.cache.used),
        "read-cache-capacity": lambda: float(memory.read_cache.limit),
        "read-cache-usage": lambda: float(memory.read_cache.used),
    }
    for name, read in gauges.items():
        metrics.gauge_of(name, STATE, read)


def _mib(size: int) -> str:
    return f"{size / MIB:.1f} MiB"
