"""Base of window and session stores, with their segments of time.

A store key ends in a time: a window's start, a session's end. Segments are as in Kafka Streams: half the retention long, at least a minute.
The store's own stream time is the largest such time that was put; it is committed with the data. Entries not later than stream time minus
retention are expired: they are not read, and a put to them is dropped and counted. A segment is dropped as a whole when its last entry is
expired, after the commit that moved stream time past it.

All segments are column families of one RocksDB, not databases of their own as in Kafka Streams, so that they can be committed in one batch
with the offsets (rules.md, 11).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from struct import Struct

from penstock.runtime.model.ids import NextOffset, TopicPartition
from penstock.runtime.model.record import Headers, Windowed
from penstock.runtime.stores.backend import Entries, SegmentedBackend, SegmentedSource
from penstock.runtime.stores.base import ChangelogRecord, Entry, StoreContext
from penstock.runtime.stores.memory import MemorySegments
from penstock.runtime.stores.reading import NOTHING_STAGED, Reader, Staged, StagedRow
from penstock.runtime.stores.rocks_segments import RocksSegments
from penstock.runtime.stores.settings import SegmentSettings, StoreSettings
from penstock.runtime.stores.staging import StagedStore

STREAM_TIME = "observed-stream-time"
LAST = 2**63 - 1
"""The largest possible time."""
TIME = Struct(">q")
_MOST_KEYS = 1 << 16
"""Number of keys whose times are known, in each of two generations."""


@dataclass(slots=True)
class StreamTime:
    """The largest time that was put, -1 before any; one for processing, one that follows the commits."""

    now: int = -1


class SegmentedReads(ABC):
    """Ranges over the store with its staging, or over the committed data alone."""

    _reader: Reader
    _segments: SegmentSettings
    _time: StreamTime

    @abstractmethod
    def _segmented(self) -> SegmentedSource:
        """Return the open backend."""

    @abstractmethod
    def _staged_range(self, lo: bytes | None, hi: bytes | None) -> list[StagedRow]:
        """Return staged rows with lo <= key < hi."""

    @abstractmethod
    def _at(self, store_key: bytes) -> object:
        """Return the value of one store key, or None."""

    def _oldest(self) -> int:
        """Return the first time that is not expired."""
        return max(0, self._time.now - self._segments.retention_ms + 1)

    def _live_segments(self, first: int, last: int) -> list[int]:
        length = self._segments.segment_ms
        return [number for number in self._segmented().segments() if first // length <= number <= last // length]

    def _rows_of_key(
        self, lo: bytes, hi: bytes, first: int, last: int, reverse: bool, reader: Reader | None = None
    ) -> Iterator[tuple[bytes, object]]:
        """Iterate over rows of one key with times from `first` to `last`, in the order of their bytes; lo <= store key < hi, both of that
        key. `reader`: decodes their values, if not as for users."""
        size = len(lo)  # other lengths belong to longer keys with this prefix
        staged = [row for row in self._staged_range(lo, hi) if len(row[0]) == size]
        numbers = self._live_segments(first, last)
        parts = self._segmented().ranges_in(numbers[::-1] if reverse else numbers, lo, hi, reverse=reverse)
        stored = (row for row in chain.from_iterable(parts) if len(row[0]) == size)
        return (reader or self._reader).merged(staged, stored, reverse)

    def _rows_of_keys(self, lo: bytes | None, hi: bytes | None, first: int, last: int, reverse: bool) -> Iterator[tuple[bytes, object]]:
        """Iterate over rows with lo <= store key < hi, segment by segment; of stored rows only segments with times from `first` to
        `last`."""
        length, at = self._segments.segment_ms, self._segments.time
        staged: dict[int, list[StagedRow]] = {}
        for row in self._staged_range(lo, hi):
            staged.setdefault(int.from_bytes(row[0][at], "big", signed=True) // length, []).append(row)
        numbers = sorted({*self._live_segments(first, last), *staged}, reverse=reverse)
        parts = self._segmented().ranges_in(numbers, lo, hi, reverse=reverse)
        merged = self._reader.merged
        return chain.from_iterable([merged(staged.get(n, ()), part, reverse) for n, part in zip(numbers, parts, strict=True)])


class StagedSegmentedStore(StagedStore[SegmentedBackend], SegmentedReads):
    """The engine's segmented store."""

    def __init__(self, settings: StoreSettings) -> None:
        super().__init__(settings)
        if settings.times is None:
            raise ValueError(f"store {settings.name}: a store of windows or sessions needs their retention")
        self._segments = settings.times.segments
        self._retention = self._segments.retention_ms
        self._time_at = self._segments.time
        self._time = StreamTime()
        self._committed_time = StreamTime()
        self._first_segment = 0
        self._new_after = LAST
        """Entries with a later time are in memory, if they exist at all: entries of a new window are not read from disk."""
        self._last_time = b""
        """The time, as in a store key, of the last new entry of this commit: stream time is not before it."""
        self._staged_from = LAST
        """No uncommitted entry has an earlier time."""
        self._new_time = b""
        """The time, as in a store key, that was last found to be later than `_new_after`."""
        self._times_of: dict[bytes, list[bytes]] = {}
        self._older_times: dict[bytes, list[bytes]] = {}
        self._times_complete = False
        self.expired_records = 0
        """Number of puts that were dropped because their time was older than the retention."""

    @abstractmethod
    def _windowed(self, store_key: bytes) -> Windowed:
        """Return a store key as the flush listener and iterators show it."""

    def _open_backend(self, directory: Path, context: StoreContext) -> SegmentedBackend:
        if not self._settings.persistent:
            return MemorySegments(self._segments)
        return RocksSegments(self._settings.folder(directory), self._segments, context.memory, context.task_id)

    def _loaded_from_backend(self) -> None:
        super()._loaded_from_backend()
        stored = self._opened().meta(STREAM_TIME)
        self._time.now = self._committed_time.now = TIME.unpack(stored)[0] if stored is not None else -1
        # The times in files of another writer are unknown.
        self._new_after = LAST if stored is None and not self._complete else self._time.now
        self._forget_times()
        self._drop_expired()

    # --- times of one key ---------------------------------------------------------------------------------------------------

    def suffixes(self, key: bytes) -> list[bytes]:
        """Return the parts of store keys after a record's key, for all entries that are not expired, in order of time. The list belongs to
        the store: a caller that adds or removes an entry through `update` updates it (`insort`, `remove`).

        For operators that examine the neighbours of each record: a range per record would cost far more than their own work. Kept for
        recent keys, by generations as the read cache; as long as nothing was dropped, a key that is not there has no entries.
        """
        found = self._times_of.get(key)
        if found is None:
            found = self._load_suffixes(key)
        if found:
            expired = self._time.now - self._retention
            if expired >= 0 and int.from_bytes(found[0][:8], "big") <= expired:
                del found[: bisect_left(found, TIME.pack(expired + 1))]
        return found

    def _load_suffixes(self, key: bytes) -> list[bytes]:
        found = self._older_times.pop(key, None)
        if found is None:
            found = []
            if not self._times_complete:
                size = self._segments.suffix
                lo, hi = key + bytes(size), key + b"\x7f" + b"\xff" * size
                of_key = self._rows_of_key(lo, hi, 0, LAST, False)
                found = [store_key[-size:] for store_key, _ in of_key]
        if len(self._times_of) >= _MOST_KEYS:
            self._times_complete = self._times_complete and not self._older_times
            self._older_times, self._times_of = self._times_of, {}
        self._times_of[key] = found
        return found

    def _is_new(self, key: bytes) -> bool:
        time = key[self._time_at]
        if time == self._new_time:
            return True
        if int.from_bytes(time, "big", signed=True) <= self._new_after:
            return False
        self._new_time = time
        return True

    def _dropped(self) -> None:
        super()._dropped()
        self._new_after, self._new_time = max(self._new_after, self._time.now), b""

    def _forget_times(self) -> None:
        self._times_of, self._older_times = {}, {}
        self._times_complete = self._opened().is_empty() and not self._uncommitted
        self._new_time = b""
        self._forget_staged_times()

    def _forget_staged_times(self) -> None:
        self._last_time, self._staged_from = b"", LAST

    def _put(self, key: bytes, value: object, timestamp: int) -> None:
        """Put on behalf of a user, in addition to the operators' updates."""
        self.update(key, None, self.entry(key), value, timestamp, None)
        if not self._times_of:
            self._times_complete = False
            return
        of, suffix = key[: -self._segments.suffix], key[-self._segments.suffix :]
        times = self._times_of.get(of, self._older_times.get(of))
        if times is None:
            if self._times_complete:
                self._times_of[of] = [suffix]
            return
        at = bisect_left(times, suffix)
        known = at < len(times) and times[at] == suffix
        if value is None and known:
            del times[at]
        elif value is not None and not known:
            times.insert(at, suffix)

    # --- writes -------------------------------------------------------------------------------------------------------------

    def update(self, key: bytes, key_object: object, entry: Entry, value: object, timestamp: int, headers: Headers | None) -> None:
        # A staged entry had its time checked in this commit; and most entries have the time of the previous one.
        if not entry.uncommitted and (stored := key[self._time_at]) != self._last_time:
            time = int.from_bytes(stored, "big", signed=True)
            if time > self._time.now:
                self._time.now = time
            elif time <= self._time.now - self._retention:
                self.expired_records += 1
                return
            if time < self._staged_from:
                self._staged_from = time
            if self._retention:  # with none at all, the second entry of a time is expired
                self._last_time = stored
        StagedStore.update(self, key, key_object, entry, value, timestamp, headers)  # `super()` costs as much as half of this method

    def _key_object(self, key: bytes) -> object:
        return self._windowed(key)

    # --- commit -------------------------------------------------------------------------------------------------------------

    def _stored(self, records: Sequence[ChangelogRecord]) -> Entries:
        """Return the records without entries of segments that the records themselves have moved out of the retention."""
        length, first, at = self._segments.segment_ms, self._live_from(), self._time_at
        if first == self._first_segment or self._staged_from // length >= first:
            return super()._stored(records)
        times = {record[0][at] for record in records}
        live = {time for time in times if int.from_bytes(time, "big", signed=True) // length >= first}
        return super()._stored([record for record in records if record[0][at] in live])

    def commit(self, offsets: Mapping[TopicPartition, NextOffset]) -> None:
        self._stage_time()
        super().commit(offsets)
        self._forget_staged_times()
        self._drop_expired()

    def restore(self, records: Sequence[ChangelogRecord], offsets: Mapping[TopicPartition, NextOffset]) -> None:
        at = self._time_at
        times = {int.from_bytes(record[0][at], "big", signed=True) for record in records}
        self._time.now = max(times, default=-1)
        self._time.now = max(self._time.now, self._committed_time.now)
        self._staged_from = min(times, default=LAST)
        self._stage_time()
        super().restore(records, offsets)
        self._forget_times()
        self._drop_expired()

    def rollback(self) -> None:
        super().rollback()
        self._time.now = self._committed_time.now
        self._forget_times()

    def _stage_time(self) -> None:
        if self._time.now != self._committed_time.now:
            self.set_meta(STREAM_TIME, TIME.pack(self._time.now))

    def _live_from(self) -> int:
        """Return the first segment with an entry that is not expired."""
        return self._oldest() // self._segments.segment_ms

    def _drop_expired(self) -> None:
        self._committed_time.now = self._time.now
        self._first_segment = self._live_from()
        self._opened().drop_before(self._first_segment)

    # --- reads --------------------------------------------------------------------------------------------------------------

    def _view_time(self, uncommitted: bool) -> StreamTime:
        return self._time if uncommitted else self._committed_time

    def _segmented(self) -> SegmentedSource:
        return self._opened()

    def _at(self, store_key: bytes) -> object:
        entry = self.entry(store_key)
        return self._reader.staged(entry.value, entry.timestamp, store_key)


class SegmentedView(SegmentedReads):
    """The content of a segmented store for interactive queries (`EngineStore.query_view`)."""

    def __init__(
        self, backend: SegmentedSource, reader: Reader, segments: SegmentSettings, time: StreamTime, staged: Staged = NOTHING_STAGED
    ) -> None:
        self._backend = backend
        self._reader = reader
        self._segments = segments
        self._time = time
        self._staged = staged

    def committed_offsets(self) -> dict[TopicPartition, NextOffset]:
        """Return the next offsets of changelog and inputs up to which the committed content goes."""
        return self._backend.offsets()

    def _segmented(self) -> SegmentedSource:
        return self._backend

    def _staged_range(self, lo: bytes | None, hi: bytes | None) -> list[StagedRow]:
        return self._staged.range(lo, hi)

    def _at(self, store_key: bytes) -> object:
        row = self._staged.find(store_key)
        if row is not None:
            return self._reader.staged(row[1], row[2], store_key)
        return self._reader.stored(self._backend.get(store_key), store_key)
