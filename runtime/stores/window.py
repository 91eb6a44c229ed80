"""Window stores, plain and timestamped (Kafka Streams' `WindowStore`, `TimestampedWindowStore`), and session stores (`SessionStore`).

A key of a window store is the record's key, the window's start and a sequence number. The number is 0, unless the store retains duplicates,
as the stores of joins do (`duplicates.py`). A key of a session store is the record's key, the session's end and its start
(`SessionKeySchema`), so that one key's sessions are ordered by their ends. A session that grows is removed and put again under its new end,
by the operator. Retention and segments (by window start or session end) are as in `segmented.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import overload

from penstock.runtime.model.record import Headers, SessionWindow, Window, Windowed
from penstock.runtime.serdes import keys
from penstock.runtime.stores.backend import SegmentedSource
from penstock.runtime.stores.base import Entry
from penstock.runtime.stores.reading import NOTHING_STAGED, Reader, Staged
from penstock.runtime.stores.segmented import LAST, SegmentedReads, SegmentedView, StagedSegmentedStore, StreamTime
from penstock.runtime.stores.settings import StoreSettings, WindowSettings
from penstock.runtime.stores.staging import NUMBERS

LAST_SEQUENCE = 2**31 - 1
"""The largest sequence number."""
_LAST_WINDOW = keys.pack_window_suffix(LAST, LAST_SEQUENCE)


class WindowReads(SegmentedReads):
    """Reads over the store with its staging or over the committed data alone."""

    _window: WindowSettings

    @overload
    def fetch(self, key: object, time_from: int, /) -> object: ...

    @overload
    def fetch(self, key: object, time_from: int, time_to: int, /) -> Iterator[tuple[int, object]]: ...

    @overload
    def fetch(
        self, key_from: object | None, key_to: object | None, time_from: int, time_to: int, /
    ) -> Iterator[tuple[Windowed, object]]: ...

    def fetch(self, *arguments: object) -> object:
        """Read windows. `(key, time)`: the value of the window that begins at `time`, or None. `(key, from, to)`: (window start, value) of
        one key, by time. `(key from, key to, from, to)`: (Windowed, value) of several keys, segment by segment. Times are window starts
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

    @overload
    def backward_fetch(self, key: object, time_from: int, time_to: int, /) -> Iterator[tuple[int, object]]: ...

    @overload
    def backward_fetch(
        self, key_from: object | None, key_to: object | None, time_from: int, time_to: int, /
    ) -> Iterator[tuple[Windowed, object]]: ...

    def backward_fetch(self, *arguments: object) -> Iterator[tuple[object, object]]:
        """Read as `fetch` of a range of time, in the opposite order."""
        match arguments:
            case (key, int(first), int(last)):
                return self._of_key(key, first, last, True)
            case (key_from, key_to, int(first), int(last)):
                return self._of_keys(key_from, key_to, first, last, True)
            case _:
                raise TypeError("backward_fetch takes (key, time_from, time_to) or (key_from, key_to, time_from, time_to); times in ms")

    def fetch_all(self, time_from: int, time_to: int) -> Iterator[tuple[Windowed, object]]:
        """Iterate over windows of all keys that begin in a range of time, segment by segment, by key in each."""
        return self._of_keys(None, None, time_from, time_to, False)

    def backward_fetch_all(self, time_from: int, time_to: int) -> Iterator[tuple[Windowed, object]]:
        """Iterate as `fetch_all`, in the opposite order."""
        return self._of_keys(None, None, time_from, time_to, True)

    def all(self) -> Iterator[tuple[Windowed, object]]:
        """Iterate over all windows that are not expired."""
        return self.fetch_all(0, LAST)

    def backward_all(self) -> Iterator[tuple[Windowed, object]]:
        """Iterate over all windows that are not expired, in the opposite order."""
        return self.backward_fetch_all(0, LAST)

    def _fetch_one(self, key: object, time: int) -> object:
        if self._window.retain_duplicates:
            return next((value for _, value in self._of_key(key, time, time, True)), None)  # the newest of them
        data = self._reader.key_bytes(key)
        return self._at(keys.window_store_key(data, time)) if time >= self._oldest() else None

    def _of_key(self, key: object, first: int, last: int, reverse: bool) -> Iterator[tuple[int, object]]:
        data = self._reader.key_bytes(key)
        first, last = max(first, self._oldest()), min(last, LAST)
        if last < first:
            return iter(())
        lo = keys.window_store_key(data, first)
        hi = keys.window_store_key(data, last, LAST_SEQUENCE) + b"\0"
        return ((keys.window_start(found), value) for found, value in self._rows_of_key(lo, hi, first, last, reverse))

    def _of_keys(
        self, key_from: object | None, key_to: object | None, first: int, last: int, reverse: bool
    ) -> Iterator[tuple[Windowed, object]]:
        lo = self._reader.key_bytes(key_from) if key_from is not None else None
        top = self._reader.key_bytes(key_to) if key_to is not None else None
        hi = keys.upper_range(top, _LAST_WINDOW) + b"\0" if top is not None else None
        first, last = max(first, self._oldest()), min(last, LAST)
        return self._as_windows(self._rows_of_keys(lo, hi, first, last, reverse), lo, top, first, last)

    def _as_windows(
        self, rows: Iterator[tuple[bytes, object]], lowest: bytes | None, highest: bytes | None, first: int, last: int
    ) -> Iterator[tuple[Windowed, object]]:
        read_key, size = self._reader.read_key, self._window.size_ms
        for store_key, value in rows:
            key, start = keys.split_window_store_key(store_key)
            if first <= start <= last and (lowest is None or key >= lowest) and (highest is None or key <= highest):
                try:
                    of = read_key(key)
                except BaseException as error:
                    raise self._reader.unreadable_key(key, error) from error
                yield Windowed(of, Window(start, min(start + size, LAST))), value


class StagedWindowStore(StagedSegmentedStore, WindowReads):
    """The engine's window store. Values of a timestamped one are `ValueAndTimestamp`."""

    def __init__(self, settings: StoreSettings) -> None:
        super().__init__(settings)
        if not isinstance(settings.times, WindowSettings):
            raise ValueError(f"store {settings.name}: a window store needs the size of its windows and their retention")
        self._window = settings.times

    def put(self, key: object, value: object, window_start: int) -> None:
        """Set the value of a window; None deletes. Dropped and counted when the window is expired."""
        data = keys.window_store_key(self._reader.key_bytes(key), window_start)
        self._put(data, *self._taken(value))

    def _windowed(self, store_key: bytes) -> Windowed:
        data, start = keys.split_window_store_key(store_key)
        try:
            return Windowed(self._read_key(data), Window(start, min(start + self._window.size_ms, LAST)))
        except BaseException as error:
            raise self._reader.unreadable_key(data, error) from error

    # --- reads ------------------------------------------------------------------------------------------------------------------

    def query_view(self, *, timestamped: bool = False, headers: bool = False, uncommitted: bool = False) -> WindowView:
        reader, time, staged = self._reader.giving(timestamped, headers), self._view_time(uncommitted), self._staged(uncommitted)
        return WindowView(self._opened().shared(), reader, self._window, time, staged)


class WindowView(SegmentedView, WindowReads):
    """The content of a window store for interactive queries."""

    def __init__(
        self, backend: SegmentedSource, reader: Reader, window: WindowSettings, time: StreamTime, staged: Staged = NOTHING_STAGED
    ) -> None:
        super().__init__(backend, reader, window.segments, time, staged)
        self._window = window


_LAST_SESSION = keys.pack_session_suffix(LAST, LAST)
_FIND = "(key, earliest_end, latest_start), (key_from, key_to, earliest_end, latest_start) or (earliest_end, latest_end); times are int, ms"


class SessionReads(SegmentedReads):
    """Reads over the store with its staging or over the committed data alone."""

    @overload
    def find_sessions(self, key: object, earliest_end: int, latest_start: int, /) -> Iterator[tuple[Windowed, object]]: ...

    @overload
    def find_sessions(
        self, key_from: object | None, key_to: object | None, earliest_end: int, latest_start: int, /
    ) -> Iterator[tuple[Windowed, object]]: ...

    @overload
    def find_sessions(self, earliest_end: int, latest_end: int, /) -> Iterator[tuple[Windowed, object]]: ...

    def find_sessions(self, *arguments: object) -> Iterator[tuple[Windowed, object]]:
        """Iterate over sessions. `(key, earliest end, latest start)`: the sessions of one key that end at the one or later and start at the
        other or earlier, by end. `(key from, key to, earliest end, latest start)`: of several keys (None: no bound), segment by segment,
        by key in each. `(earliest end, latest end)`: sessions of all keys that end between the two. Times in ms, inclusive."""
        return self._found(arguments, False)

    @overload
    def backward_find_sessions(self, key: object, earliest_end: int, latest_start: int, /) -> Iterator[tuple[Windowed, object]]: ...

    @overload
    def backward_find_sessions(
        self, key_from: object | None, key_to: object | None, earliest_end: int, latest_start: int, /
    ) -> Iterator[tuple[Windowed, object]]: ...

    def backward_find_sessions(self, *arguments: object) -> Iterator[tuple[Windowed, object]]:
        """Iterate as `find_sessions`, in the opposite order."""
        return self._found(arguments, True)

    def fetch_session(self, key: object, session_start: int, session_end: int) -> object:
        """Return the value of the session with exactly this start and end (ms), or None."""
        data = self._reader.key_bytes(key)
        return self._at(keys.session_key(data, session_start, session_end)) if session_end >= self._oldest() else None

    @overload
    def fetch(self, key: object, /) -> Iterator[tuple[Windowed, object]]: ...

    @overload
    def fetch(self, key_from: object | None, key_to: object | None, /) -> Iterator[tuple[Windowed, object]]: ...

    def fetch(self, *of: object) -> Iterator[tuple[Windowed, object]]:
        """Iterate over all sessions of one key, by end; or of the keys from one to another (None: no bound), segment by segment, by key in
        each."""
        return self._found((*of, 0, LAST), False)

    @overload
    def backward_fetch(self, key: object, /) -> Iterator[tuple[Windowed, object]]: ...

    @overload
    def backward_fetch(self, key_from: object | None, key_to: object | None, /) -> Iterator[tuple[Windowed, object]]: ...

    def backward_fetch(self, *of: object) -> Iterator[tuple[Windowed, object]]:
        """Iterate as `fetch`, in the opposite order."""
        return self._found((*of, 0, LAST), True)

    def all(self) -> Iterator[tuple[Windowed, object]]:
        """Iterate over all sessions that are not expired."""
        return self.fetch(None, None)

    def _found(self, arguments: tuple[object, ...], reverse: bool) -> Iterator[tuple[Windowed, object]]:
        match arguments:
            case (key, int(earliest_end), int(latest_start)):
                return self._of_key(key, earliest_end, latest_start, reverse)
            case (key_from, key_to, int(earliest_end), int(latest_start)):
                return self._of_keys(key_from, key_to, earliest_end, LAST, latest_start, reverse)
            case (int(earliest_end), int(latest_end)):
                return self._of_keys(None, None, earliest_end, latest_end, LAST, reverse)
            case _:
                raise TypeError(f"sessions are found by {_FIND}")

    def _of_key(self, key: object, earliest_end: int, latest_start: int, reverse: bool) -> Iterator[tuple[Windowed, object]]:
        data = self._reader.key_bytes(key)
        first = max(earliest_end, self._oldest())
        lo = keys.session_key(data, 0, min(first, LAST))
        hi = data + _LAST_SESSION + b"\0"
        return self._sessions(self._rows_of_key(lo, hi, first, LAST, reverse), data, data, first, LAST, latest_start)

    def _of_keys(
        self, key_from: object | None, key_to: object | None, earliest_end: int, latest_end: int, latest_start: int, reverse: bool
    ) -> Iterator[tuple[Windowed, object]]:
        lo = self._reader.key_bytes(key_from) if key_from is not None else None
        top = self._reader.key_bytes(key_to) if key_to is not None else None
        hi = keys.upper_range(top, _LAST_SESSION) + b"\0" if top is not None else None
        first = max(earliest_end, self._oldest())
        return self._sessions(self._rows_of_keys(lo, hi, first, latest_end, reverse), lo, top, first, latest_end, latest_start)

    def _sessions(
        self, rows: Iterator[tuple[bytes, object]], lowest: bytes | None, highest: bytes | None, first: int, last: int, latest_start: int
    ) -> Iterator[tuple[Windowed, object]]:
        read_key = self._reader.read_key
        for store_key, value in rows:
            key, start, end = keys.split_session_key(store_key)
            in_time = first <= end <= last and start <= latest_start
            if in_time and (lowest is None or key >= lowest) and (highest is None or key <= highest):
                try:
                    of = read_key(key)
                except BaseException as error:
                    raise self._reader.unreadable_key(key, error) from error
                yield Windowed(of, SessionWindow(start, end)), value


class StagedSessionStore(StagedSegmentedStore, SessionReads):
    """The engine's session store."""

    def __init__(self, settings: StoreSettings) -> None:
        super().__init__(settings)
        self._added: set[bytes] = set()
        """Sessions that went into the cache since the last commit and are not stored."""

    def _forget_staged_times(self) -> None:
        super()._forget_staged_times()
        self._added.clear()

    def update(self, key: bytes, key_object: object, entry: Entry, value: object, timestamp: int, headers: Headers | None) -> None:
        if entry.value is None and not entry.uncommitted and self._listener is not None:
            self._added.add(key)
        StagedSegmentedStore.update(self, key, key_object, entry, value, timestamp, headers)  # as there, without `super()`

    def put(self, session_key: Windowed, aggregate: object) -> None:
        """Set the value of a session; None removes it. Dropped and counted when the session is expired."""
        key, window = session_key
        data = keys.session_key(self._reader.key_bytes(key), window.start, window.end)
        self._put(data, aggregate, self._record_time())

    def remove(self, session_key: Windowed) -> None:
        """Remove a session."""
        self.put(session_key, None)

    def extend(
        self, key: bytes, longer: bytes, windowed: Windowed, entry: Entry, value: object, timestamp: int, headers: Headers | None
    ) -> bool:
        """Replace a session by a longer one, without a tombstone, if it was added since the last commit and never left the cache: then it
        is neither stored nor known to anybody (Kafka Streams' `CachingSessionStore` does not write it either). Return False, and do
        nothing, if it must be deleted."""
        if key not in self._added or not entry.unforwarded or entry.forwarded_value is not None:
            return False
        time = int.from_bytes(longer[self._time_at], "big", signed=True)
        if time <= self._time.now - self._retention:
            return False
        if self._fixed_size is None:
            value, _ = self._sized(entry, value)
        self._time.now = max(time, self._time.now)
        self._added.remove(key)
        self._added.add(longer)
        del self._uncommitted[key]
        self._entries.pop(key, None)
        self._uncommitted[longer] = self._entries[longer] = entry
        self._sorted.clear()
        entry.update, entry.key, entry.headers, entry.value, entry.timestamp = next(NUMBERS), windowed, headers, value, timestamp
        return True

    def _windowed(self, store_key: bytes) -> Windowed:
        data, start, end = keys.split_session_key(store_key)
        try:
            return Windowed(self._read_key(data), SessionWindow(start, end))
        except BaseException as error:
            raise self._reader.unreadable_key(data, error) from error

    def query_view(self, *, timestamped: bool = False, headers: bool = False, uncommitted: bool = False) -> SessionView:
        reader, time, staged = self._reader.giving(timestamped, headers), self._view_time(uncommitted), self._staged(uncommitted)
        return SessionView(self._opened().shared(), reader, self._segments, time, staged)


class SessionView(SegmentedView, SessionReads):
    """The content of a session store for interactive queries."""
