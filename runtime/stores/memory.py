"""Stores in memory. Their content is rebuilt from the changelog at each start; while they are open they keep the promises of the RocksDB
backend: committed data apart from staged data, iterators that do not see later writes, reads from any thread."""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from runtime.errors import InvalidStateStoreError
from runtime.ids import NextOffset, Partition
from runtime.serdes.keys import WINDOW_SUFFIX
from runtime.stores import rocks

_INSORT = 64
"""New or deleted keys in a batch up to which the sorted keys are kept up one by one; above, they are sorted anew when a range asks."""


class SortedEntries:
    """A dict whose keys can be had in order; the order is made when a range first asks."""

    __slots__ = ("entries", "keys")

    def __init__(self) -> None:
        self.entries: dict[bytes, bytes] = {}
        self.keys: list[bytes] | None = None

    def write(self, batch: Mapping[bytes, bytes | None]) -> None:
        added, deleted = [], []
        entries = self.entries
        for key, value in batch.items():
            if value is None:
                if entries.pop(key, None) is not None:
                    deleted.append(key)
            else:
                if key not in entries:
                    added.append(key)
                entries[key] = value
        self._follow(added, deleted)

    def _follow(self, added: list[bytes], deleted: list[bytes]) -> None:
        keys = self.keys
        if keys is None or not (added or deleted):
            return
        if len(added) + len(deleted) > _INSORT:
            self.keys = None
            return
        for key in deleted:
            del keys[bisect_left(keys, key)]
        for key in added:
            insort(keys, key)

    def range(self, lo: bytes | None, hi: bytes | None, reverse: bool) -> list[tuple[bytes, bytes]]:
        if self.keys is None:
            self.keys = sorted(self.entries)
        keys = self.keys
        found = keys[0 if lo is None else bisect_left(keys, lo) : len(keys) if hi is None else bisect_left(keys, hi)]
        if reverse:
            found.reverse()
        entries = self.entries
        return [(key, entries[key]) for key in found]


class MemoryStore:
    """Offsets, metas and the lock: the base of both backends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._offsets: dict[Partition, NextOffset] = {}
        self._meta: dict[str, bytes] = {}
        self._open = True

    def offsets(self) -> dict[Partition, NextOffset]:
        return dict(self._offsets)

    def meta(self, name: str) -> bytes | None:
        return self._meta.get(name)

    def _commit(self, offsets: Mapping[Partition, NextOffset], meta: Mapping[str, bytes] | None) -> None:
        self._offsets.update(offsets)
        self._meta.update(meta or {})

    def _check_open(self) -> None:
        if not self._open:
            raise InvalidStateStoreError("the in-memory store is closed")

    def flush(self) -> None:
        """Nothing is durable here."""

    def close(self) -> None:
        self._open = False

    def _forget(self) -> None:
        self._offsets.clear()
        self._meta.clear()


class MemoryBackend(MemoryStore):
    """Entries of a key-value store."""

    def __init__(self, family: str) -> None:
        super().__init__()
        self._family = family
        self._data = SortedEntries()

    def get(self, key: bytes) -> bytes | None:
        self._check_open()
        return self._data.entries.get(key)

    def range(self, lo: bytes | None, hi: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        self._check_open()
        with self._lock:
            return iter(self._data.range(lo, hi, reverse))

    def write(
        self,
        entries: Iterable[tuple[bytes, bytes | None]],
        offsets: Mapping[Partition, NextOffset],
        meta: Mapping[str, bytes] | None = None,
    ) -> None:
        batch = dict(entries)  # what raises in here leaves the store as it was
        with self._lock:
            self._data.write(batch)
            self._commit(offsets, meta)

    def approximate_size(self) -> int:
        return len(self._data.entries)

    def is_empty(self) -> bool:
        return not self._data.entries

    def checkpoint(self, path: Path) -> None:
        with self._lock:
            entries = self._data.range(None, None, False)
        rocks.write_files(path, {self._family: entries}, self._offsets, self._meta)

    def wipe(self) -> None:
        with self._lock:
            self._data = SortedEntries()
            self._forget()


class MemorySegments(MemoryStore):
    """Entries of a window store, by segment."""

    def __init__(self, segment_ms: int) -> None:
        super().__init__()
        self._segment_ms = segment_ms
        self._data: dict[int, SortedEntries] = {}

    def _segment_of(self, key: bytes) -> int:
        return int.from_bytes(key[-WINDOW_SUFFIX:-4], "big", signed=True) // self._segment_ms

    def segments(self) -> list[int]:
        """Numbers of the segments that exist, in order of time."""
        self._check_open()
        with self._lock:
            return sorted(self._data)

    def get(self, key: bytes) -> bytes | None:
        self._check_open()
        segment = self._data.get(self._segment_of(key))
        return segment.entries.get(key) if segment is not None else None

    def range_in(self, segment: int, lo: bytes | None, hi: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """As `Backend.range`, in one segment."""
        self._check_open()
        with self._lock:
            found = self._data.get(segment)
            return iter(found.range(lo, hi, reverse) if found is not None else ())

    def write(
        self,
        entries: Iterable[tuple[bytes, bytes | None]],
        offsets: Mapping[Partition, NextOffset],
        meta: Mapping[str, bytes] | None = None,
    ) -> None:
        by_segment: dict[int, dict[bytes, bytes | None]] = {}
        for key, value in entries:
            by_segment.setdefault(self._segment_of(key), {})[key] = value
        with self._lock:
            for segment, batch in by_segment.items():
                self._data.setdefault(segment, SortedEntries()).write(batch)
            self._commit(offsets, meta)

    def drop_before(self, segment: int) -> int:
        """Drops the segments with smaller numbers; how many there were."""
        with self._lock:
            expired = [number for number in self._data if number < segment]
            for number in expired:
                del self._data[number]
        return len(expired)

    def approximate_size(self) -> int:
        with self._lock:
            return sum(len(segment.entries) for segment in self._data.values())

    def is_empty(self) -> bool:
        return self.approximate_size() == 0

    def checkpoint(self, path: Path) -> None:
        with self._lock:
            families = {
                f"{rocks.SEGMENT}{number * self._segment_ms}": segment.range(None, None, False) for number, segment in self._data.items()
            }
        rocks.write_files(path, families, self._offsets, self._meta)

    def wipe(self) -> None:
        with self._lock:
            self._data.clear()
            self._forget()
