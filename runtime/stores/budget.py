"""Memory of all stores of one process, in one place: RocksDB's block cache and write buffers, the record cache, the read cache.

Kafka Streams gives every RocksDB its own caches (50 MiB of blocks, three write buffers of 16 MiB), so memory grows with the number of
partitions; that is the source of most complaints about it. Here the worker makes one `StoreMemory` and hands it to every store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from runtime.metrics import STATE, Metrics

MIB = 1 << 20
DEFAULT_CACHE_BYTES = 10 * MIB
DEFAULT_READ_CACHE_BYTES = 96 * MIB
DEFAULT_BLOCK_CACHE_BYTES = 64 * MIB
DEFAULT_WRITE_BUFFER_BYTES = 64 * MIB


class Budget:
    """Bytes that several stores share; `holders` is how many. Plain attributes: it is read on the hot path, by one thread."""

    __slots__ = ("holders", "limit", "used")

    def __init__(self, limit: int) -> None:
        if limit < 0:
            raise ValueError(f"a budget of bytes must not be negative: {limit}")
        self.limit = limit
        self.used = 0
        self.holders = 0


class NativeMemory(Protocol):
    """RocksDB's caches as far as they can be looked at, in bytes. Safe from any thread."""

    def block_cache_usage(self) -> int:
        """Blocks and write buffers that are in the cache."""
        ...

    def block_cache_pinned_usage(self) -> int:
        """Of these, what cannot give way."""
        ...

    def write_buffer_usage(self) -> int:
        """Write buffers of all stores, also those on their way to disk."""
        ...


class StoreMemory:
    """What all stores of a process share.

    `cache`: entries not yet forwarded (`statestore.cache.max.bytes`; 0 switches caching off). `read_cache`: committed entries kept
    as objects, about as many bytes of Python memory (`statestore.read.cache.max.bytes`). `block_cache_bytes` and `write_buffer_bytes`:
    RocksDB's, the second charged to the first (`rocksdb.block.cache.bytes`, `rocksdb.write.buffer.bytes`)."""

    __slots__ = ("block_cache_bytes", "cache", "native", "read_cache", "write_buffer_bytes")

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
        self.write_buffer_bytes = write_buffer_bytes
        self.native: NativeMemory | None = None
        """RocksDB's own objects, set by the first store that opens one."""

    @classmethod
    def configured(cls, integer: Callable[[str], int]) -> StoreMemory:
        """As the configuration says; `integer` gives the value of a key (`StreamsConfig.integer`)."""
        return cls(
            cache_max_bytes=integer("statestore.cache.max.bytes"),
            read_cache_bytes=integer("statestore.read.cache.max.bytes"),
            block_cache_bytes=integer("rocksdb.block.cache.bytes"),
            write_buffer_bytes=integer("rocksdb.write.buffer.bytes"),
        )

    def __str__(self) -> str:
        return (
            f"block cache {_mib(self.block_cache_bytes)}, of which write buffers at most {_mib(self.write_buffer_bytes)}; "
            f"record caches {_mib(self.cache.limit)}, read caches {_mib(self.read_cache.limit)}"
        )


def show_memory(metrics: Metrics, memory: StoreMemory) -> None:
    """Gauges of the client for it, in bytes. Kafka Streams' names where it has them: there, they are of each store; here, of all."""

    def native(read: Callable[[NativeMemory], int]) -> Callable[[], float]:
        return lambda: 0.0 if memory.native is None else float(read(memory.native))

    gauges: dict[str, Callable[[], float]] = {
        "block-cache-capacity": lambda: float(memory.block_cache_bytes),
        "block-cache-usage": native(lambda caches: caches.block_cache_usage()),
        "block-cache-pinned-usage": native(lambda caches: caches.block_cache_pinned_usage()),
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
