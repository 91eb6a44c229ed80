"""Segmented stores in RocksDB: a column family per segment, in one database with the offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from rocksdict import ColumnFamily, WriteBatch

from penstock.runtime.model.errors import InvalidStateStoreError
from penstock.runtime.model.ids import TaskId
from penstock.runtime.serdes.keys import TIMESTAMP
from penstock.runtime.stores.backend import BY_KEY, Entries, Meta, Offsets, Row, SegmentedSource, Shared, SharedRows
from penstock.runtime.stores.budget import StoreMemory
from penstock.runtime.stores.rocks import SEGMENT, RocksStore, SharedKeyValues, get_list
from penstock.runtime.stores.settings import SegmentSettings

LATEST = "latest"

T = TypeVar("T")


class RocksSegments(RocksStore):
    """Entries of a segmented store: a family per segment, named by the segment's start (rules.md, 11).

    A family is created before the batch that first writes to it, and dropped after the batch that moves stream time past it: a crash in
    between, or a batch that is not written, leaves an empty or an expired family, which a later commit drops.

    `_changes` is odd while a batch is being written. A thread that reads several families reads them again when it has changed, so that it
    sees all of them as of one commit, without a lock for the writer.
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

    def _close(self) -> None:
        self._segments.clear()
        super()._close()

    def segments(self) -> list[int]:
        """Return the numbers of existing segments, in order of time."""
        if self._closed:
            raise InvalidStateStoreError(f"the store in {self._path} is closed")
        return sorted(self._segments)

    def get(self, key: bytes) -> bytes | None:
        segment = self._segments.get(self._number_of(key[self._time]))
        return self._get(segment, key) if segment is not None or self._closed else None

    def _read_all(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found: dict[bytes, bytes | None] = dict.fromkeys(keys)
        of_segment: dict[int, list[bytes]] = {}
        for key in found:
            of_segment.setdefault(self._number_of(key[self._time]), []).append(key)
        for number, those in of_segment.items():
            if number in self._segments:
                found.update(zip(those, get_list(self._segments[number], those), strict=True))
        return [found[key] for key in keys]

    def range_in(self, segment: int, lo: bytes | None, hi: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Iterate as `Backend.range`, in one segment."""
        family = self._segments.get(segment)
        return self._scan(family, lo, hi, reverse) if family is not None or self._closed else iter(())

    def ranges_in(
        self, segments: Sequence[int], lo: bytes | None, hi: bytes | None, *, reverse: bool = False
    ) -> list[Iterator[tuple[bytes, bytes]]]:
        """Iterate as `range_in` over several segments, all as of one commit."""
        return self._as_of_one_commit(lambda: [self.range_in(segment, lo, hi, reverse=reverse) for segment in segments])

    def _as_of_one_commit(self, look: Callable[[], T]) -> T:
        while True:
            before = self._changes
            found = look()
            if before == self._changes and not before & 1:
                return found

    def write(self, entries: Entries, offsets: Offsets, meta: Meta | None = None) -> None:
        self._write(self._batch(entries), offsets, meta)

    def begin_write(self, entries: Entries) -> Callable[[Offsets, Meta], None]:
        return partial(self._write, self._batch(entries))

    def _batch(self, entries: Entries) -> WriteBatch:
        batch = WriteBatch(raw_mode=True)
        self._add(batch, entries)
        return batch

    def _write(self, batch: WriteBatch, offsets: Offsets, meta: Meta | None) -> None:
        self._changes += 1
        try:
            super()._write(batch, offsets, meta)
        finally:
            self._changes += 1

    def _add(self, batch: WriteBatch, entries: Entries) -> None:
        put, delete = batch.put, batch.delete
        for segment, rows in self._by_segment(sorted(entries, key=BY_KEY)).items():
            handle = self._handle_for(segment)
            for key, value in rows:
                if value is None:
                    delete(key, handle)
                else:
                    put(key, value, handle)

    def _by_segment(self, rows: list[tuple[bytes, bytes | None]]) -> dict[int, list[tuple[bytes, bytes | None]]]:
        if not rows:
            return {}
        starts = [key[self._time] for key, _ in rows]
        first = self._number_of(min(starts))
        if first == self._number_of(max(starts)):  # most batches: a segment is much longer than the time between two commits
            return {first: rows}
        numbers = {start: self._number_of(start) for start in set(starts)}
        found: dict[int, list[tuple[bytes, bytes | None]]] = {number: [] for number in numbers.values()}
        for row, start in zip(rows, starts, strict=True):
            found[numbers[start]].append(row)
        return found

    def _number_of(self, start: bytes) -> int:
        return int.from_bytes(start, "big", signed=True) // self._segment_ms

    def _handle_for(self, segment: int) -> ColumnFamily:
        name = f"{SEGMENT}{segment * self._segment_ms}"
        if segment not in self._segments:
            try:
                self._families[name] = self._segments[segment] = self._db.create_column_family(name, self._options_of(name))
                self._handles[name] = self._db.get_column_family_handle(name)
            except Exception as error:  # rocksdict raises plain Exception
                raise self._io_error("written", error) from error
        return self._handles[name]

    def drop_before(self, segment: int) -> int:
        """Drop the segments with smaller numbers, with their files. Return how many there were."""
        expired = [number for number in self._segments if number < segment]
        for number in expired:
            name = f"{SEGMENT}{number * self._segment_ms}"
            del self._segments[number], self._families[name], self._handles[name]
            self._db.drop_column_family(name)
            self._release_filters([name])
        return len(expired)

    def shared(self) -> SegmentedSource:
        """Return its reads for other threads."""
        return SharedSegments(self)

    def approximate_size(self) -> int:
        return sum(self._size(family) for family in self._segments.values())

    def is_empty(self) -> bool:
        return not any(self._has_entries(family) for family in self._segments.values())


class RocksVersions(RocksSegments):
    """Entries of a versioned store: the latest version of each key in the family `latest`, older ones in segments."""

    def __init__(
        self, path: Path, segments: SegmentSettings, memory: StoreMemory, task: TaskId | None = None, family: str = LATEST
    ) -> None:
        self._family_name = family
        super().__init__(path, segments, memory, task, beside=[family])

    def latest(self, key: bytes) -> bytes | None:
        """Return the latest version of a key."""
        return self._get(self._families.get(self._family_name), key)

    def all_latest(self) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the latest versions in the order of their keys."""
        return self._scan(self._families.get(self._family_name), None, None, False)

    def write_versions(self, latest: Entries, older: Entries, offsets: Offsets, meta: Meta) -> None:
        """Write as `write`, for both kinds of entries."""
        self._write(self._batch_of_versions(latest, older), offsets, meta)

    def _batch_of_versions(self, latest: Entries, older: Entries) -> WriteBatch:
        batch = WriteBatch(raw_mode=True)
        handle = self._handles[self._family_name]
        for key, value in latest:
            if value is None:
                batch.delete(key, handle)
            else:
                batch.put(key, value, handle)
        self._add(batch, older)
        return batch

    def shared(self) -> SharedVersions:
        return SharedVersions(self)

    def read_consistently(self, read: Callable[[], T]) -> T:
        """Return the result of `read`, all of it as of one commit."""
        return self._as_of_one_commit(read)

    def approximate_size(self) -> int:
        return self._size(self._families.get(self._family_name)) + super().approximate_size()

    def is_empty(self) -> bool:
        return not self._has_entries(self._families.get(self._family_name)) and super().is_empty()


class RocksExpiring(RocksVersions):
    """Entries of a key-value store that expire, in one family as other timestamped ones, and an index of them by timestamp in segments. A
    value begins with the entry's timestamp; a key of the index is the timestamp and the entry's key."""

    def get(self, key: bytes) -> bytes | None:
        return self.latest(key)

    def _read_all(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return get_list(self._still_open(self._families.get(self._family_name)), keys)

    def range(self, lo: bytes | None, hi: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Iterate as `KeyValueBackend.range`."""
        return self._scan(self._families.get(self._family_name), lo, hi, reverse)

    def _batch(self, entries: Entries) -> WriteBatch:
        """Return a batch of entries and their rows of the index. Rows of overwritten and deleted entries stay until their segment is
        dropped."""
        entries = sorted(entries, key=BY_KEY)
        return self._batch_of_versions(entries, index_rows(entries))

    def drop_index(self) -> None:
        """Drop the index, also one with segments of another length."""
        self._drop_segments()
        self._segments.clear()

    def shared(self) -> SharedKeyValues:  # type: ignore[override]  # it is not a versioned store for others
        return SharedKeyValues(self)

    def approximate_size(self) -> int:
        return self._size(self._families.get(self._family_name))

    def is_empty(self) -> bool:
        return not self._has_entries(self._families.get(self._family_name))


def index_rows(entries: Entries) -> list[tuple[bytes, bytes | None]]:
    """Return the rows of the index by timestamp for entries whose values begin with it."""
    return [(value[:TIMESTAMP] + key, b"") for key, value in entries if value is not None]


R = TypeVar("R", bound=RocksSegments)


class SharedSegments(Shared[R]):
    """Reads of a segmented store by other threads."""

    def get(self, key: bytes) -> bytes | None:
        with self._store.gate:
            return self._store.get(key)

    def segments(self) -> list[int]:
        with self._store.gate:
            return self._store.segments()

    def ranges_in(self, segments: Sequence[int], lo: bytes | None, hi: bytes | None, *, reverse: bool = False) -> list[Iterator[Row]]:
        with self._store.gate:
            return [SharedRows(self._store, rows) for rows in self._store.ranges_in(segments, lo, hi, reverse=reverse)]


class SharedVersions(SharedSegments[RocksVersions]):
    """Reads of a versioned store by other threads. `read_consistently` takes the lock once for all reads of `read`."""

    def read_consistently(self, read: Callable[[], T]) -> T:
        with self._store.gate:
            return self._store.read_consistently(read)

    def all_latest(self) -> Iterator[Row]:
        with self._store.gate:
            return SharedRows(self._store, self._store.all_latest())
