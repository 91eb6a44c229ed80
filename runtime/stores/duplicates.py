"""Window store with several values for one key and time: each of the two stores of a stream–stream join.

Each value has the next sequence number, so nothing is overwritten, and a null value, which would delete nothing, is ignored.

For every record a join reads all values of one key in a range of time. A range over staging and RocksDB's segments costs some tens of
microseconds in Python, ten times the join itself. So the rows of a key stay in memory once they were read, in the order of time, and new
rows are added to them: a range is two bisections. They take a share of the read cache's budget. When they have used it up, those of keys
whose last row is expired are dropped; if that is not half of them, all are. A key that is not in memory has no rows at all once stream time
is further from that moment than the life of rows, so most keys are never read from disk. (Rejected: using the entries of the common read
cache. They are found by whole store keys, which a join does not know.)
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from struct import Struct

from penstock.runtime.model.ids import NextOffset, TopicPartition
from penstock.runtime.serdes import keys
from penstock.runtime.stores.base import ChangelogRecord
from penstock.runtime.stores.segmented import LAST
from penstock.runtime.stores.staging import ENTRY_BYTES
from penstock.runtime.stores.window import LAST_SEQUENCE, StagedWindowStore

_SEQUENCE = Struct(">i")
_SEQUENCE_META = "sequence-number"


def encode_sequence(sequence: int) -> dict[str, bytes]:
    """Return the metadata with the last sequence number of a store."""
    return {_SEQUENCE_META: _SEQUENCE.pack(sequence)}


_Rows = tuple[list[int], list[object]]
"""Rows of one key: times in order, and the staged value of each."""


class StagedDuplicatesStore(StagedWindowStore):
    """The window store of a supplier that retains duplicates."""

    # --- sequence numbers: kept with the data, for a number that was given twice would overwrite a value ------------------------

    def _loaded_from_backend(self) -> None:
        super()._loaded_from_backend()
        stored = self._opened().meta(_SEQUENCE_META)
        self._sequence = self._committed_sequence = _SEQUENCE.unpack(stored)[0] if stored is not None else 0
        # Rows later than this time are all in memory.
        self._known_after = -1 if self._opened().is_empty() else self._time.now

    def commit(self, offsets: Mapping[TopicPartition, NextOffset]) -> None:
        self._stage_sequence()
        super().commit(offsets)
        self._committed_sequence = self._sequence

    def restore(self, records: Sequence[ChangelogRecord], offsets: Mapping[TopicPartition, NextOffset]) -> None:
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

    def _check_read_cache(self) -> None:
        """Drop all rows instead of entries: entries are never read by their key here."""
        self._entries.clear()
        budget = self._read_cache
        budget.used += self._rows_bytes - self._counted
        half = budget.limit // 2
        share = half // budget.holders
        if budget.used > half and self._rows_bytes > share:
            budget.used -= self._rows_bytes
            self._forget_expired_rows()
            if self._rows_bytes > share // 2:  # or expired ones would be looked for again soon
                self._forget_rows()
            budget.used += self._rows_bytes
        self._counted = self._rows_bytes

    def _forget_expired_rows(self) -> None:
        """Drop the keys whose last row is expired. That they have no rows is still known."""
        oldest = self._oldest()
        self._rows = {key: rows for key, rows in self._rows.items() if rows[0] and rows[0][-1] >= oldest}
        entries = sum(len(times) for times, _ in self._rows.values())
        self._rows_bytes = ENTRY_BYTES * (len(self._rows) + entries) + sum(map(len, self._rows))

    def _forget_rows(self) -> None:
        self._rows.clear()
        self._rows_bytes = 0
        self._known_after = self._time.now

    # --- what joins do ------------------------------------------------------------------------------------------------------

    def put(self, key: object, value: object, window_start: int) -> None:
        """Add a value to those of its key and time; None is ignored. Dropped and counted when the window is expired."""
        if value is not None:
            value, timestamp = self._taken(value)
            self.add(self._reader.key_bytes(key), value, window_start, timestamp)

    def see(self, time: int) -> bool:
        """Note the time of a null value. It advances the stream time of an in-memory store, as in Kafka Streams. Return False if the time
        is expired."""
        if self.persistent:
            return True
        if time > self._time.now:
            self._time.now = time
        return time > self._time.now - self._retention

    def add(self, key: bytes, value: object, time: int, timestamp: int) -> bool:
        """Add a value as `put`, by the key's bytes. `timestamp` in ms is the record's, for the changelog; `value` is not None. Return False
        if Kafka Streams counts it as expired, which its persistent stores do by whole segments."""
        self._sequence = sequence = (self._sequence + 1) & LAST_SEQUENCE
        stream_time = self._time.now
        if time > stream_time:
            self._time.now = time
        elif time <= stream_time - self._retention:
            self.expired_records += 1
            length, live_after = self._segments.segment_ms, stream_time - self._retention
            return self.persistent and time // length >= live_after // length
        if time < self._staged_from:
            self._staged_from = time
        staged = self.stage(key + keys.pack_window_suffix(time, sequence), value, timestamp)
        rows = self._rows.get(key)
        if rows is None:
            if self._oldest() > self._known_after:
                self._rows[key] = [time], [staged]
                self._rows_bytes += 2 * ENTRY_BYTES + len(key)
            else:
                self._load_rows(key)  # it finds this one with the others
            return True
        times, values = rows
        if not times or time >= times[-1]:
            times.append(time)
            values.append(staged)
        else:
            place = bisect_right(times, time)
            times.insert(place, time)
            values.insert(place, staged)
        self._rows_bytes += ENTRY_BYTES
        return True

    def values_between(self, key: bytes, first: int, last: int) -> Iterable[tuple[int, object]]:
        """Return (time, value) of a key's values from `first` to `last` (ms, inclusive), in the order of time and then of insertion."""
        oldest = self._time.now - self._retention + 1  # `_oldest`, without the call
        if oldest < 0:
            oldest = 0
        rows = self._rows.get(key)
        if rows is None:
            if oldest > self._known_after:
                return ()
            rows = self._load_rows(key)
        times, values = rows
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
            try:
                found = [read(value) for value in found]  # type: ignore[arg-type]  # staged as bytes
            except BaseException as error:
                raise self._unreadable(key, found, error) from error
        return zip(times[start:stop], found, strict=True)

    def _load_rows(self, key: bytes) -> _Rows:
        oldest = self._oldest()
        lo, hi = keys.window_store_key(key, oldest), keys.window_store_key(key, LAST, LAST_SEQUENCE) + b"\0"
        staged_as = self._reader if self._encode is None else replace(self._reader, read_value=_as_it_is)
        found = list(self._rows_of_key(lo, hi, oldest, LAST, False, staged_as.giving(False)))
        rows = [keys.window_start(store_key) for store_key, _ in found], [value for _, value in found]
        self._rows[key] = rows
        self._rows_bytes += ENTRY_BYTES * (1 + len(found)) + len(key)
        return rows


def _as_it_is(data: bytes) -> object:
    return data
