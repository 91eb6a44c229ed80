"""Memory of all stores of one process, in one place: RocksDB's block cache and write buffers, the record cache, the read cache.

Kafka Streams gives every RocksDB its own caches (50 MiB of blocks, three write buffers of 16 MiB), so memory grows with the number of
partitions; that is the source of most complaints about it. Here the worker makes one `StoreMemory` and hands it to every store.
"""

from __future__ import annotations

MIB = 1 << 20
DEFAULT_CACHE_BYTES = 10 * MIB
DEFAULT_READ_CACHE_BYTES = 64 * MIB
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


class StoreMemory:
    """What all stores of a process share.

    `cache`: entries not yet forwarded (`statestore.cache.max.bytes`; 0 switches caching off). `read_cache`: committed entries kept
    as objects, about as many bytes of Python memory. `block_cache_bytes` and `write_buffer_bytes`: RocksDB's, the second charged to
    the first."""

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
        self.native: object | None = None
        """RocksDB's own objects, made by the first store that opens one."""
