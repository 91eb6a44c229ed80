"""In-memory stores. Their content is rebuilt from the changelog at each start. While they are open they keep the promises of the RocksDB
backend: committed data separate from staged data, iterators that do not see later writes, reads from any thread."""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Self, TypeVar

from penstock.runtime.model.errors import InvalidStateStoreError
from penstock.runtime.model.ids import NextOffset, TopicPartition
from penstock.runtime.stores.backend import Entries, Meta, Offsets
from penstock.runtime.stores.rocks import SEGMENT
from penstock.runtime.stores.rocks_files import write_files
from penstock.runtime.stores.rocks_segments import LATEST, index_rows
from penstock.runtime.stores.settings import SegmentSettings

T = TypeVar("T")
_INSORT = 64
"""Up to this many new or deleted keys in a batch the sorted keys are updated one by one; above, they are sorted again at the next range."""


class SortedEntries:
    """A dict with ordered keys; the order is computed when a range first needs it."""

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
        self._update_keys(added, deleted)

    def _update_keys(self, added: list[bytes], deleted: list[bytes]) -> None:
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

    def copied(self) -> Iterable[tuple[bytes, bytes]]:
        """Return all current entries, unordered."""
        return self.entries.copy().items()

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
    """Base of both backends: offsets, metadata and the lock."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._offsets: dict[TopicPartition, NextOffset] = {}
        self._meta: dict[str, bytes] = {}
        self._open = True

    def offsets(self) -> dict[TopicPartition, NextOffset]:
        self._check_open()
        with self._lock:
            return dict(self._offsets)

    def meta(self, name: str) -> bytes | None:
        return self._meta.get(name)

    def begin_get_all(self, keys: Sequence[bytes]) -> None:
        """A dict needs no look-ahead."""

    def _commit(self, offsets: Offsets, meta: Meta | None) -> None:
        self._offsets.update(offsets)
        self._meta.update(meta or {})

    def shared(self) -> Self:
        """Return the view for other threads: this object."""
        return self

    def _check_open(self) -> None:
        if not self._open:
            raise InvalidStateStoreError("the in-memory store is closed")

    def _while_open(self, rows: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the rows until the store is closed, as an iteration over files does."""
        for row in rows:
            if not self._open:
                raise InvalidStateStoreError("the store was closed during an iteration")
            yield row

    def flush(self) -> None:
        """Do nothing: memory is not durable."""

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
            return self._while_open(self._data.range(lo, hi, reverse))

    def write(self, entries: Entries, offsets: Offsets, meta: Meta | None = None) -> None:
        batch = dict(entries)  # an error in here leaves the store as it was
        with self._lock:
            self._data.write(batch)
            self._commit(offsets, meta)

    def begin_write(self, entries: Entries) -> Callable[[Offsets, Meta], None]:
        return partial(self.write, list(entries))

    def approximate_size(self) -> int:
        return len(self._data.entries)

    def is_empty(self) -> bool:
        return not self._data.entries

    def begin_checkpoint(self, path: Path) -> Callable[[], None]:
        with self._lock:
            return partial(write_files, path, {self._family: self._data.copied()}, self._offsets.copy(), self._meta.copy())

    def wipe(self) -> None:
        with self._lock:
            self._data = SortedEntries()
            self._forget()


class MemorySegments(MemoryStore):
    """Entries of a segmented store, by segment."""

    def __init__(self, segments: SegmentSettings) -> None:
        super().__init__()
        self._segment_ms = segments.segment_ms
        self._time = segments.time
        self._data: dict[int, SortedEntries] = {}

    def _segment_of(self, key: bytes) -> int:
        return int.from_bytes(key[self._time], "big", signed=True) // self._segment_ms

    def segments(self) -> list[int]:
        """Return the numbers of existing segments, in order of time."""
        self._check_open()
        with self._lock:
            return sorted(self._data)

    def get(self, key: bytes) -> bytes | None:
        self._check_open()
        segment = self._data.get(self._segment_of(key))
        return segment.entries.get(key) if segment is not None else None

    def range_in(self, segment: int, lo: bytes | None, hi: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Iterate as `Backend.range`, in one segment."""
        return self.ranges_in([segment], lo, hi, reverse=reverse)[0]

    def ranges_in(
        self, segments: Sequence[int], lo: bytes | None, hi: bytes | None, *, reverse: bool = False
    ) -> list[Iterator[tuple[bytes, bytes]]]:
        """Iterate as `range_in` over several segments, all as of one commit."""
        self._check_open()
        with self._lock:
            found = [self._data.get(segment) for segment in segments]
            return [self._while_open(each.range(lo, hi, reverse) if each is not None else ()) for each in found]

    def write(self, entries: Entries, offsets: Offsets, meta: Meta | None = None) -> None:
        batches = self._batches(entries)
        with self._lock:
            self._write_batches(batches)
            self._commit(offsets, meta)

    def begin_write(self, entries: Entries) -> Callable[[Offsets, Meta], None]:
        return partial(self.write, list(entries))

    def _batches(self, entries: Entries) -> dict[int, dict[bytes, bytes | None]]:
        by_segment: dict[int, dict[bytes, bytes | None]] = {}
        for key, value in entries:
            by_segment.setdefault(self._segment_of(key), {})[key] = value
        return by_segment

    def _write_batches(self, batches: Mapping[int, Mapping[bytes, bytes | None]]) -> None:
        for segment, batch in batches.items():
            self._data.setdefault(segment, SortedEntries()).write(batch)

    def drop_before(self, segment: int) -> int:
        """Drop the segments with smaller numbers. Return how many there were."""
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

    def begin_checkpoint(self, path: Path) -> Callable[[], None]:
        with self._lock:
            return partial(write_files, path, self._as_families(), self._offsets.copy(), self._meta.copy())

    def _as_families(self) -> dict[str, Iterable[tuple[bytes, bytes]]]:
        return {f"{SEGMENT}{number * self._segment_ms}": segment.copied() for number, segment in self._data.items()}

    def wipe(self) -> None:
        with self._lock:
            self._data.clear()
            self._forget()


class MemoryVersions(MemorySegments):
    """Entries of a versioned store: the latest version of each key, and older ones in segments."""

    def __init__(self, segments: SegmentSettings, family: str = LATEST) -> None:
        super().__init__(segments)
        self._family = family
        self._latest = SortedEntries()

    def latest(self, key: bytes) -> bytes | None:
        """Return the latest version of a key."""
        self._check_open()
        return self._latest.entries.get(key)

    def all_latest(self) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the latest versions in the order of their keys."""
        self._check_open()
        with self._lock:
            return self._while_open(self._latest.range(None, None, False))

    def write_versions(self, latest: Entries, older: Entries, offsets: Offsets, meta: Meta) -> None:
        """Write as `write`, for both kinds of entries."""
        newest, batches = dict(latest), self._batches(older)
        with self._lock:
            self._latest.write(newest)
            self._write_batches(batches)
            self._commit(offsets, meta)

    def read_consistently(self, read: Callable[[], T]) -> T:
        """Return the result of `read`, all of it as of one commit."""
        with self._lock:
            return read()

    def approximate_size(self) -> int:
        return len(self._latest.entries) + super().approximate_size()

    def _as_families(self) -> dict[str, Iterable[tuple[bytes, bytes]]]:
        return {self._family: self._latest.copied(), **super()._as_families()}

    def wipe(self) -> None:
        super().wipe()
        self._latest = SortedEntries()


class MemoryExpiring(MemoryVersions):
    """Entries of a key-value store that expire, and an index of them by timestamp, as `RocksExpiring`."""

    def get(self, key: bytes) -> bytes | None:
        return self.latest(key)

    def range(self, lo: bytes | None, hi: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        self._check_open()
        with self._lock:
            return self._while_open(self._latest.range(lo, hi, reverse))

    def write(self, entries: Entries, offsets: Offsets, meta: Meta | None = None) -> None:
        entries = list(entries)
        self.write_versions(entries, index_rows(entries), offsets, meta or {})

    def drop_index(self) -> None:
        """Drop the index."""
        with self._lock:
            self._data.clear()

    def approximate_size(self) -> int:
        return len(self._latest.entries)
