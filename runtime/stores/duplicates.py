"""A window store that keeps several values of one key and time side by side: each of the two stores of a stream–stream join.

Each value has the next sequence number, so nothing is overwritten, and a null value, which would delete nothing, is ignored.

The problem: a join reads, for every record, all values that one key has in a range of time. A range over staging and over the segments of
RocksDB costs some tens of microseconds in Python, ten times what the join itself costs. The way taken: the rows of a key that was asked
for once stay in memory in the order of time and follow what is added, so that a range is two bisections. They take a share of the read
cache's budget and are dropped all together when they have used it up. A key that is not among them has no rows at all once stream time is
further from that moment than rows live: so most keys are never looked for on disk. (Rejected: to let the entries of staging, the common
read cache, serve. They are found by whole store keys, which a join does not know.)
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from struct import Struct

from runtime.ids import NextOffset, Partition
from runtime.serdes import keys
from runtime.stores.base import ChangelogRecord, Entry
from runtime.stores.segmented import LAST
from runtime.stores.staging import ENTRY_BYTES
from runtime.stores.window import LAST_SEQUENCE, StagedWindowStore

_SEQUENCE = Struct(">i")
_SEQUENCE_META = "sequence-number"


def sequence_as_kept(sequence: int) -> dict[str, bytes]:
    """The meta that holds the last sequence number of a store."""
    return {_SEQUENCE_META: _SEQUENCE.pack(sequence)}


_Rows = tuple[list[int], list[object]]
"""Of one key: times in order, and the value of each as it is staged."""


class StagedDuplicatesStore(StagedWindowStore):
    """The window store of a supplier that retains duplicates."""

    # --- sequence numbers: kept with the data, for a number that was given twice would overwrite a value ------------------------

    def _loaded_from_backend(self) -> None:
        super()._loaded_from_backend()
        stored = self._opened().meta(_SEQUENCE_META)
        self._sequence = self._committed_sequence = _SEQUENCE.unpack(stored)[0] if stored is not None else 0
        # Rows of later times than this one are all in memory.
        self._known_after = -1 if self._opened().is_empty() else self._time.now

    def commit(self, offsets: Mapping[Partition, NextOffset]) -> None:
        self._stage_sequence()
        super().commit(offsets)
        self._committed_sequence = self._sequence

    def restore(self, records: Sequence[ChangelogRecord], offsets: Mapping[Partition, NextOffset]) -> None:
        last = max((_SEQUENCE.unpack(record[0][-4:])[0] for record in records), default=0)
        self._sequence = max(self._committed_sequence, last)
        self._stage_sequence()
        super().restore(records, offsets)
        self._committed_sequence = self._sequence
        self._forget_rows()

    def rollback(self) -> None:
        super().rollback()
        self._sequence = self._committed_sequence
        self._forget_rows()

    def _stage_sequence(self) -> None:
        if self._sequence != self._committed_sequence:
            self.set_meta(_SEQUENCE_META, _SEQUENCE.pack(self._sequence))

    # --- memory -------------------------------------------------------------------------------------------------------------

    def _reset_staging(self) -> None:
        super()._reset_staging()
        self._rows: dict[bytes, _Rows] = {}
        self._rows_bytes = 0

    def _look_at_read_cache(self) -> None:
        """Entries are never asked for by their key here, so what is kept are rows only."""
        self._entries.clear()
        budget = self._read_cache
        budget.used += self._rows_bytes - self._counted
        half = budget.limit // 2
        if budget.used > half and self._rows_bytes > half // budget.holders:
            budget.used -= self._rows_bytes
            self._forget_rows()
        self._counted = self._rows_bytes

    def _forget_rows(self) -> None:
        self._rows.clear()
        self._rows_bytes = 0
        self._known_after = self._time.now

    # --- what joins do ------------------------------------------------------------------------------------------------------

    def put(self, key: object, value: object, window_start: int) -> None:
        """Adds a value to those of its key and time; None is ignored. Dropped and counted when the window is expired."""
        if value is not None:
            value, timestamp = self._taken(value)
            self.add(self._reader.key_bytes(key), value, window_start, timestamp)

    def see(self, time: int) -> bool:
        """A null value of this time came by. It moves the stream time of a store in memory, as in Kafka Streams. False: it is expired."""
        if self.persistent:
            return True
        if time > self._time.now:
            self._time.now = time
            self._last_time = b""  # which was not expired; now it may be
        return time > self._time.now - self._retention

    def add(self, key: bytes, value: object, time: int, timestamp: int) -> bool:
        """`put` by a key's bytes. `timestamp` in ms is the record's, for the changelog; `value` is not None. False: Kafka Streams counts it
        as expired, which stores on disk do by whole segments."""
        self._sequence = sequence = (self._sequence + 1) & LAST_SEQUENCE
        entry = Entry(None, -1)
        self.update(keys.window_store_key(key, time, sequence), None, entry, value, timestamp, None)
        if not entry.uncommitted:
            length, live_after = self._segments.segment_ms, self._time.now - self._retention
            return self.persistent and time // length >= live_after // length
        rows = self._rows.get(key)
        if rows is None:
            rows = self._load_rows(key)
            if self._oldest() <= self._known_after:
                return True  # this one was found with the others
        times, values = rows
        if not times or time >= times[-1]:
            times.append(time)
            values.append(entry.value)
        else:
            place = bisect_right(times, time)
            times.insert(place, time)
            values.insert(place, entry.value)
        self._rows_bytes += ENTRY_BYTES
        return True

    def values_between(self, key: bytes, first: int, last: int) -> Iterable[tuple[int, object]]:
        """(time, value) of a key's values from `first` to `last` (ms, inclusive), in the order of time and then of their coming."""
        times, values = self._rows.get(key) or self._load_rows(key)
        oldest = self._oldest()
        if first < oldest:
            first = oldest
            if times and times[0] < oldest:
                expired = bisect_left(times, oldest)
                del times[:expired], values[:expired]
                self._rows_bytes -= expired * ENTRY_BYTES
        start, stop = bisect_left(times, first), bisect_right(times, last)
        if start == stop:
            return ()
        found = values[start:stop]
        if self._encode is not None:
            read = self._read_value
            found = [read(value) for value in found]  # type: ignore[arg-type]  # staged as bytes
        return zip(times[start:stop], found, strict=True)

    def _load_rows(self, key: bytes) -> _Rows:
        oldest = self._oldest()
        if oldest > self._known_after:
            rows: _Rows = ([], [])
            self._rows[key] = rows
            self._rows_bytes += ENTRY_BYTES + len(key)
            return rows
        lo, hi = keys.window_store_key(key, oldest), keys.window_store_key(key, LAST, LAST_SEQUENCE) + b"\0"
        staged_as = self._reader if self._encode is None else replace(self._reader, read_value=_as_it_is)
        found = list(self._rows_of_key(lo, hi, oldest, LAST, False, replace(staged_as, give_time=False)))
        rows = [keys.window_start(store_key) for store_key, _ in found], [value for _, value in found]
        self._rows[key] = rows
        self._rows_bytes += ENTRY_BYTES * (1 + len(found)) + len(key)
        return rows


def _as_it_is(data: bytes) -> object:
    return data
