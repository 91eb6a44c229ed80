"""Stores of times in RocksDB: a column family per segment, in one database with the offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from rocksdict import ColumnFamily, WriteBatch

from runtime.errors import InvalidStateStoreError
from runtime.ids import NextOffset, Partition, TaskId
from runtime.stores.backend import SegmentedSource
from runtime.stores.budget import StoreMemory
from runtime.stores.rocks import BY_KEY, SEGMENT, RocksStore
from runtime.stores.rocks_shared import SharedSegments, SharedVersions
from runtime.stores.settings import SegmentSettings

LATEST = "latest"

T = TypeVar("T")


class RocksSegments(RocksStore):
    """Entries of a store of times: a family per segment, named by the segment's start (rules.md, 11).

    A family is made before the batch that first writes to it, and dropped after the batch that moves stream time past it: a crash between
    leaves an empty or an expired family, which the next commit drops.

    `_changes` is odd while a batch is being written: whoever looks at several families from another thread looks again when it has
    moved, so as to see all of them as of one commit, without a lock that the writer would have to take.
    """

    def __init__(
        self, path: Path, segments: SegmentSettings, memory: StoreMemory, task: TaskId | None = None, beside: Iterable[str] = ()
    ) -> None:
        """`beside`: families without segments."""
        self._segment_ms = segments.segment_ms
        self._time = segments.time
        self._changes = 0
        super().__init__(path, beside, memory, task)

    def _open(self) -> None:
        super()._open()
        self._segments = {
            int(name.removeprefix(SEGMENT)) // self._segment_ms: family
            for name, family in self._families.items()
            if name.startswith(SEGMENT)
        }
        self._route: dict[bytes, ColumnFamily] = {}

    def _close(self) -> None:
        self._segments.clear()
        self._route.clear()
        super()._close()

    def segments(self) -> list[int]:
        """Numbers of the segments that exist, in order of time."""
        if self._closed:
            raise InvalidStateStoreError(f"the store in {self._path} is closed")
        return sorted(self._segments)

    def get(self, key: bytes) -> bytes | None:
        segment = self._segments.get(int.from_bytes(key[self._time], "big", signed=True) // self._segment_ms)
        return self._get(segment, key) if segment is not None or self._closed else None

    def range_in(self, segment: int, lo: bytes | None, hi: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """As `Backend.range`, in one segment."""
        family = self._segments.get(segment)
        return self._scan(family, lo, hi, reverse) if family is not None or self._closed else iter(())

    def ranges_in(
        self, segments: Sequence[int], lo: bytes | None, hi: bytes | None, *, reverse: bool = False
    ) -> list[Iterator[tuple[bytes, bytes]]]:
        """`range_in` of several segments, all as of one commit."""
        return self._as_of_one_commit(lambda: [self.range_in(segment, lo, hi, reverse=reverse) for segment in segments])

    def _as_of_one_commit(self, look: Callable[[], T]) -> T:
        while True:
            before = self._changes
            found = look()
            if before == self._changes and not before & 1:
                return found

    def write(
        self,
        entries: Iterable[tuple[bytes, bytes | None]],
        offsets: Mapping[Partition, NextOffset],
        meta: Mapping[str, bytes] | None = None,
    ) -> None:
        batch = WriteBatch(raw_mode=True)
        self._add(batch, entries)
        self._write(batch, offsets, meta)

    def _write(self, batch: WriteBatch, offsets: Mapping[Partition, NextOffset], meta: Mapping[str, bytes] | None) -> None:
        self._changes += 1
        try:
            super()._write(batch, offsets, meta)
        finally:
            self._changes += 1

    def _add(self, batch: WriteBatch, entries: Iterable[tuple[bytes, bytes | None]]) -> None:
        put, delete, route, time = batch.put, batch.delete, self._route, self._time
        for key, value in sorted(entries, key=BY_KEY):
            start = key[time]
            handle = route.get(start)
            if handle is None:
                handle = route[start] = self._handle_for(start)
            if value is None:
                delete(key, handle)
            else:
                put(key, value, handle)

    def _handle_for(self, start: bytes) -> ColumnFamily:
        segment = int.from_bytes(start, "big", signed=True) // self._segment_ms
        name = f"{SEGMENT}{segment * self._segment_ms}"
        if segment not in self._segments:
            self._families[name] = self._segments[segment] = self._db.create_column_family(name, self._options_of(name))
            self._handles[name] = self._db.get_column_family_handle(name)
        return self._handles[name]

    def drop_before(self, segment: int) -> int:
        """Drops the segments with smaller numbers, files and all; how many there were."""
        expired = [number for number in self._segments if number < segment]
        for number in expired:
            name = f"{SEGMENT}{number * self._segment_ms}"
            del self._segments[number], self._families[name], self._handles[name]
            self._db.drop_column_family(name)
            self._give_back([name])
        if expired:
            self._route.clear()
        return len(expired)

    def shared(self) -> SegmentedSource:
        """Its reads, for other threads."""
        return SharedSegments(self)

    def approximate_size(self) -> int:
        return sum(self._size(family) for family in self._segments.values())

    def is_empty(self) -> bool:
        return not any(self._has_entries(family) for family in self._segments.values())


class RocksVersions(RocksSegments):
    """Entries of a versioned store: the latest version of each key in the family `latest`, older ones in segments."""

    def __init__(self, path: Path, segments: SegmentSettings, memory: StoreMemory, task: TaskId | None = None) -> None:
        super().__init__(path, segments, memory, task, beside=[LATEST])

    def latest(self, key: bytes) -> bytes | None:
        """The latest version of a key."""
        return self._get(self._families.get(LATEST), key)

    def all_latest(self) -> Iterator[tuple[bytes, bytes]]:
        """The latest versions in the order of their keys."""
        return self._scan(self._families.get(LATEST), None, None, False)

    def write_versions(
        self,
        latest: Iterable[tuple[bytes, bytes | None]],
        older: Iterable[tuple[bytes, bytes | None]],
        offsets: Mapping[Partition, NextOffset],
        meta: Mapping[str, bytes],
    ) -> None:
        """As `write`, for both kinds of entries."""
        batch = WriteBatch(raw_mode=True)
        handle = self._handles[LATEST]
        for key, value in latest:
            if value is None:
                batch.delete(key, handle)
            else:
                batch.put(key, value, handle)
        self._add(batch, older)
        self._write(batch, offsets, meta)

    def shared(self) -> SharedVersions:
        return SharedVersions(self)

    def look(self, read: Callable[[], T]) -> T:
        """What `read` finds, all of it as of one commit."""
        return self._as_of_one_commit(read)

    def approximate_size(self) -> int:
        return self._size(self._families.get(LATEST)) + super().approximate_size()

    def is_empty(self) -> bool:
        return not self._has_entries(self._families.get(LATEST)) and super().is_empty()
