"""Memory of the process by its parts, for metrics and `penstock status`.

The allocator's own part counts: it keeps freed memory for later use. After the restore of 3 M keys that was 230 MiB of 460, so a restore
returns it at its end (`return_free_memory`). Fewer arenas (`MALLOC_ARENA_MAX=1`) were tried: 477 MiB at most instead of 473, because the
free memory consists of gaps between pieces in use, not of idle arenas. Lower thresholds for trimming or mapping: 462 MiB.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

import psutil

from penstock.runtime.model.metrics import STATE, Metrics
from penstock.runtime.stores.budget import StoreMemory

RESIDENT, OTHER = "resident", "other"
_ALLOCATOR_FREE = "allocator-free"


class _Allocations(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    )


def _allocator() -> ctypes.CDLL | None:
    """Return glibc, if the process has it and it is recent enough (2.33)."""
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if libc is None or not hasattr(libc, "mallinfo2"):
        return None
    libc.mallinfo2.restype = _Allocations
    return libc


_libc = _allocator()


def allocator_free() -> int:
    """Return the bytes that were freed and that the allocator keeps; 0 where unknown."""
    return int(_libc.mallinfo2().fordblks) if _libc is not None else 0


def return_free_memory() -> None:
    """Return the allocator's free memory to the system, where possible; takes up to some tens of milliseconds."""
    if _libc is not None:
        _libc.malloc_trim(0)


class ProcessMemory:
    """Bytes by part. `restoring`: size of the records that a restore holds. Safe to use from any thread."""

    def __init__(self, memory: StoreMemory, restoring: Callable[[], int]) -> None:
        self._memory = memory
        self._restoring = restoring
        self._process = psutil.Process()

    def split(self) -> dict[str, int]:
        """Return the parts, and their sum `resident`. `blocks` are blocks of RocksDB's files, with the filters and indexes that are in the
        cache; `tables` are filters and indexes outside of it; `other` is the rest: Python with its modules, uncommitted entries, and the
        clients' queues of fetched and unsent records."""
        native, resident = self._memory.native, self.resident()
        buffers = native.write_buffer_usage() if native is not None else 0
        parts = {
            "blocks": max(0, native.block_cache_usage() - buffers) if native is not None else 0,
            "tables": native.table_usage() if native is not None else 0,
            "write-buffers": buffers,
            "record-caches": self._memory.cache.used,
            "read-caches": self._memory.read_cache.used,
            "restore": self._restoring(),
            _ALLOCATOR_FREE: allocator_free(),
        }
        return {RESIDENT: resident, **parts, OTHER: max(0, resident - sum(parts.values()))}

    def resident(self) -> int:
        return int(self._process.memory_info().rss)

    def show(self, metrics: Metrics) -> None:
        """Register gauges of the parts that `show_memory` does not have."""
        metrics.gauge_of("process-resident-bytes", STATE, lambda: float(self.resident()))
        metrics.gauge_of("process-other-bytes", STATE, lambda: float(self.split()[OTHER]))
        metrics.gauge_of("allocator-free-bytes", STATE, lambda: float(allocator_free()))
        metrics.gauge_of("restore-buffer-bytes", STATE, lambda: float(self._restoring()))
        metrics.gauge_of("restore-buffer-capacity", STATE, lambda: float(self._memory.restore_bytes))
