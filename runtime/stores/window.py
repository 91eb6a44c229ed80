"""Window stores, plain and timestamped (Kafka Streams' `WindowStore`, `TimestampedWindowStore`).

A key is the record's key, the window's start and a sequence number (always 0 here). Segments are as in Kafka Streams: half the
retention long, at least a minute. The store's own stream time is the largest window start that was put; it is committed with the data.
A window whose start is not later than stream time minus retention is expired: it is not read, and a put to it is dropped and counted. A
segment is dropped whole when its last window is expired, after the commit that moved stream time past it.

All segments are column families of one RocksDB, not databases of their own as in Kafka Streams: only so can they be committed in one
batch with the offsets (rules.md, 11).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from struct import Struct
from typing import overload

from runtime.ids import NextOffset, Partition
from runtime.record import Headers, Window, Windowed
from runtime.serdes import keys
from runtime.stores.backend import SegmentedBackend
from runtime.stores.base import ChangelogRecord, Entry, StoreContext
from runtime.stores.memory import MemorySegments
from runtime.stores.reading import Reader, StagedRow
from runtime.stores.rocks import RocksSegments
from runtime.stores.settings import StoreSettings, WindowSettings
from runtime.stores.staging import StagedStore

_TIME = Struct(">q")
_STREAM_TIME = "observed-stream-time"
_LAST_SUFFIX = keys.pack_window_suffix(2**63 - 1, 2**31 - 1)
_START = slice(-keys.WINDOW_SUFFIX, -4)


@dataclass(slots=True)
class StreamTime:
    """The largest window start that was put, -1 before any; one for processing, one that follows the commits."""

    now: int = -1


class WindowReads(ABC):
    """The reads, over the store with its staging or over the committed data alone."""

    _reader: Reader
    _window: WindowSettings
    _time: StreamTime

    @abstractmethod
    def _segmented(self) -> SegmentedBackend:
        """The open backend."""

    @abstractmethod
    def _staged_range(self, lo: bytes | None, hi: bytes | None) -> list[StagedRow]:
        """Staged rows with lo <= key < hi."""

    @abstractmethod
    def _at(self, store_key: bytes) -> object:
        """The value of one window, or None."""

    @overload
    def fetch(self, key: object, time_from: int, /) -> object: ...

    @overload
    def fetch(self, key: object, time_from: int, time_to: int, /) -> Iterator[tuple[int, object]]: ...

    @overload
    def fetch(
        self, key_from: object | None, key_to: object | None, time_from: int, time_to: int, /
    ) -> Iterator[tuple[Windowed, object]]: ...

    def fetch(self, *arguments: object) -> object:
        """`(key, time)`: the value of the window that begins at `time`, or None. `(key, from, to)`: (window start, value) of one
        key, by time. `(key from, key to, from, to)`: (Windowed, value) of several keys, segment by segment. Times are window starts
        in ms, inclusive."""
        match arguments:
            case (key, int(time)):
                return self._fetch_one(key, time)
            case (key, int(first), int(last)):
                return self._of_key(key, first, last, False)
            case (key_from, key_to, int(first), int(last)):
                return self._of_keys(key_from, key_to, first, last, False)
            case _:
                raise TypeError(
                    "fetch takes (key, time), (key, time_from, time_to) or (key_from, key_to, time_from, time_to); times are int, ms"
                )

    def backward_fetch(self, key: object, time_from: int, time_to: int) -> Iterator[tuple[int, object]]:
        """`fetch` of one key, from the latest window down."""
        return self._of_key(key, time_from, time_to, True)

    def fetch_all(self, time_from: int, time_to: int) -> Iterator[tuple[Windowed, object]]:
        """Windows of all keys that begin in a range of time, segment by segment, inside one by key."""
        return self._of_keys(None, None, time_from, time_to, False)

    def backward_fetch_all(self, time_from: int, time_to: int) -> Iterator[tuple[Windowed, object]]:
        """`fetch_all` in the opposite order."""
        return self._of_keys(None, None, time_from, time_to, True)

    def all(self) -> Iterator[tuple[Windowed, object]]:
        """All windows that are not expired."""
        return self.fetch_all(0, 2**63 - 1)

    def backward_all(self) -> Iterator[tuple[Windowed, object]]:
        """All windows that are not expired, in the opposite order."""
        return self.backward_fetch_all(0, 2**63 - 1)

    def _oldest(self) -> int:
        """The first window start that is not expired."""
        return max(0, self._time.now - self._window.retention_ms + 1)

    def _fetch_one(self, key: object, time: int) -> object:
        data = self._reader.key_bytes(key)
        return self._at(keys.window_store_key(data, time)) if time >= self._oldest() else None

    def _live_segments(self, first: int, last: int, reverse: bool) -> list[int]:
        length = self._window.segment_ms
        found = [number for number in self._segmented().segments() if first // length <= number <= last // length]
        return found[::-1] if reverse else found

    def _of_key(self, key: object, first: int, last: int, reverse: bool) -> Iterator[tuple[int, object]]:
        data = self._reader.key_bytes(key)
        first, last = max(first, self._oldest()), min(last, 2**63 - 1)
        if last < first:
            return iter(())
        lo = keys.window_store_key(data, first)
        hi = keys.window_store_key(data, last, 2**31 - 1) + b"\0"
        size = len(lo)  # other lengths belong to longer keys that begin alike
        staged = [row for row in self._staged_range(lo, hi) if len(row[0]) == size]
        segmented = self._segmented()
        parts = [segmented.range_in(number, lo, hi, reverse=reverse) for number in self._live_segments(first, last, reverse)]
        stored = (row for row in chain.from_iterable(parts) if len(row[0]) == size)
        return ((keys.window_start(found), value) for found, value in self._reader.merged(staged, stored, reverse))

    def _of_keys(
        self, key_from: object | None, key_to: object | None, first: int, last: int, reverse: bool
    ) -> Iterator[tuple[Windowed, object]]:
        lo = self._reader.key_bytes(key_from) if key_from is not None else None
        top = self._reader.key_bytes(key_to) if key_to is not None else None
        hi = keys.upper_range(top, _LAST_SUFFIX) + b"\0" if top is not None else None
        first, last = max(first, self._oldest()), min(last, 2**63 - 1)
        staged: dict[int, list[StagedRow]] = {}
        for row in self._staged_range(lo, hi):
            staged.setdefault(keys.window_start(row[0]) // self._window.segment_ms, []).append(row)
        segmented = self._segmented()
        numbers = sorted({*self._live_segments(first, last, False), *staged}, reverse=reverse)
        parts = [
            self._reader.merged(staged.get(number, ()), segmented.range_in(number, lo, hi, reverse=reverse), reverse) for number in numbers
        ]
        return self._windowed(chain.from_iterable(parts), lo, top, first, last)

    def _windowed(
        self, rows: Iterator[tuple[bytes, object]], lowest: bytes | None, highest: bytes | None, first: int, last: int
    ) -> Iterator[tuple[Windowed, object]]:
        read_key, size = self._reader.read_key, self._window.size_ms
        for store_key, value in rows:
            key, start = keys.split_window_store_key(store_key)
            if first <= start <= last and (lowest is None or key >= lowest) and (highest is None or key <= highest):
                yield Windowed(read_key(key), Window(start, start + size)), value


class StagedWindowStore(StagedStore[SegmentedBackend], WindowReads):
    """A window store of the engine. A timestamped one takes and gives `ValueAndTimestamp`."""

    def __init__(self, settings: StoreSettings) -> None:
        super().__init__(settings)
        if settings.window is None:
            raise ValueError(f"store {settings.name}: a window store needs the size of its windows and their retention")
        self._window = settings.window
        self._time = StreamTime()
        self._committed_time = StreamTime()
        self._first_segment = 0
        self.expired_records = 0
        """Puts that were dropped because their window was older than the retention."""

    def _open_backend(self, directory: Path, context: StoreContext) -> SegmentedBackend:
        if not self._settings.persistent:
            return MemorySegments(self._window.segment_ms)
        return RocksSegments(self._settings.folder(directory), self._window.segment_ms, context.memory, context.task_id)

    def _loaded_from_backend(self) -> None:
        super()._loaded_from_backend()
        stored = self._opened().meta(_STREAM_TIME)
        self._time.now = self._committed_time.now = _TIME.unpack(stored)[0] if stored is not None else -1
        self._drop_expired()

    # --- writes -------------------------------------------------------------------------------------------------------------

    def put(self, key: object, value: object, window_start: int) -> None:
        """Sets the value of a window; None deletes. Dropped and counted when the window is expired."""
        data = keys.window_store_key(self._reader.key_bytes(key), window_start)
        value, timestamp = self._taken(value)
        self.update(data, None, self.entry(data), value, timestamp, None)

    def update(self, key: bytes, key_object: object, entry: Entry, value: object, timestamp: int, headers: Headers | None) -> None:
        if not entry.uncommitted:  # an entry that is staged had its window looked at in this commit
            start = int.from_bytes(key[_START], "big", signed=True)
            if start > self._time.now:
                self._time.now = start
            elif start <= self._time.now - self._window.retention_ms:
                self.expired_records += 1
                return
        super().update(key, key_object, entry, value, timestamp, headers)

    def _key_object(self, key: bytes) -> object:
        data, start = keys.split_window_store_key(key)
        return Windowed(self._read_key(data), Window(start, start + self._window.size_ms))

    # --- commit -------------------------------------------------------------------------------------------------------------

    def _stored(self, records: Sequence[ChangelogRecord]) -> Iterator[tuple[bytes, bytes | None]]:
        """Without windows of segments that the records themselves have moved out of the retention."""
        length, first = self._window.segment_ms, self._live_from()
        if first == self._first_segment:
            return super()._stored(records)
        starts = {record[0][_START] for record in records}
        live = {start for start in starts if int.from_bytes(start, "big", signed=True) // length >= first}
        return super()._stored([record for record in records if record[0][_START] in live])

    def commit(self, offsets: Mapping[Partition, NextOffset]) -> None:
        self._stage_time()
        super().commit(offsets)
        self._drop_expired()

    def restore(self, records: Sequence[ChangelogRecord], offsets: Mapping[Partition, NextOffset]) -> None:
        starts = {record[0][_START] for record in records}
        self._time.now = max((int.from_bytes(start, "big", signed=True) for start in starts), default=-1)
        self._time.now = max(self._time.now, self._committed_time.now)
        self._stage_time()
        super().restore(records, offsets)
        self._drop_expired()

    def rollback(self) -> None:
        super().rollback()
        self._time.now = self._committed_time.now

    def _stage_time(self) -> None:
        if self._time.now != self._committed_time.now:
            self.set_meta(_STREAM_TIME, _TIME.pack(self._time.now))

    def _live_from(self) -> int:
        """The first segment that holds a window which is not expired."""
        return max(0, self._time.now - self._window.retention_ms + 1) // self._window.segment_ms

    def _drop_expired(self) -> None:
        self._committed_time.now = self._time.now
        self._first_segment = self._live_from()
        self._opened().drop_before(self._first_segment)

    # --- reads --------------------------------------------------------------------------------------------------------------

    def query_view(self, *, timestamped: bool = False) -> WindowView:
        reader = replace(self._reader, give_time=timestamped and self._timestamped)
        return WindowView(self._opened(), reader, self._window, self._committed_time)

    def _segmented(self) -> SegmentedBackend:
        return self._opened()

    def _at(self, store_key: bytes) -> object:
        entry = self.entry(store_key)
        return self._reader.staged(entry.value, entry.timestamp)


class WindowView(WindowReads):
    """The committed content of a window store, for interactive queries from any thread."""

    def __init__(self, backend: SegmentedBackend, reader: Reader, window: WindowSettings, time: StreamTime) -> None:
        self._backend = backend
        self._reader = reader
        self._window = window
        self._time = time

    def _segmented(self) -> SegmentedBackend:
        return self._backend

    def _staged_range(self, lo: bytes | None, hi: bytes | None) -> list[StagedRow]:
        return []

    def _at(self, store_key: bytes) -> object:
        return self._reader.stored(self._backend.get(store_key))
