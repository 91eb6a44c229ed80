"""Stores as tests want to see them: plain values, or values with timestamps, whatever else the store keeps (Kafka Streams' facades of the
test driver)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar, cast

from penstock.runtime.model.record import AggregationWithHeaders, ValueAndTimestamp, ValueTimestampHeaders, Windowed
from penstock.runtime.serdes.serde import Serde
from penstock.runtime.stores.base import StoreLayout
from penstock.runtime.stores.interfaces import KeyValueStore, SessionStore, WindowStore

T = TypeVar("T")
NO_TIMESTAMP = -1
"""The time of a value that a test put by hand."""


def _plain(value: object) -> object:
    if isinstance(value, AggregationWithHeaders):
        return value.aggregation
    return value.value if isinstance(value, ValueAndTimestamp | ValueTimestampHeaders) else value


def _timed(value: object) -> object:
    return ValueAndTimestamp(value.value, value.timestamp) if isinstance(value, ValueTimestampHeaders) else value


def _untimed(value: object) -> object:
    return None if value is None else ValueAndTimestamp(value, NO_TIMESTAMP)


def _as_it_is(value: object) -> object:
    return value


class PlainKeyValueStore:
    """A key-value store with values as `show` gives them; `keep` converts those that are put."""

    def __init__(self, store: KeyValueStore, show: Callable[[object], object], keep: Callable[[object], object]) -> None:
        self._store, self._show, self._keep = store, show, keep

    def _rows(self, rows: Iterator[tuple[T, object]]) -> Iterator[tuple[T, object]]:
        return ((key, self._show(value)) for key, value in rows)

    def get(self, key: object) -> object:
        """Return the value, or None."""
        return self._show(self._store.get(key))

    def put(self, key: object, value: object) -> None:
        """Set a value; None deletes. One without a timestamp counts as older than any record."""
        self._store.put(key, self._keep(value))

    def put_if_absent(self, key: object, value: object) -> object:
        """Set a value if the key has none. Return the existing value, or None."""
        present = self.get(key)
        if present is None:
            self.put(key, value)
        return present

    def put_all(self, entries: Iterable[tuple[object, object]]) -> None:
        """Put each entry."""
        for key, value in entries:
            self.put(key, value)

    def delete(self, key: object) -> object:
        """Delete a key. Return its value, or None."""
        return self._show(self._store.delete(key))

    def delete_range(self, from_key: object | None, to_key: object | None) -> None:
        """Delete the keys from one to another, both inclusive."""
        self._store.delete_range(from_key, to_key)

    def range(self, from_key: object | None, to_key: object | None) -> Iterator[tuple[object, object]]:
        """Entries from one key to another, both inclusive, in the order of their bytes."""
        return self._rows(self._store.range(from_key, to_key))

    def reverse_range(self, from_key: object | None, to_key: object | None) -> Iterator[tuple[object, object]]:
        """`range`, from the largest key down."""
        return self._rows(self._store.reverse_range(from_key, to_key))

    def all(self) -> Iterator[tuple[object, object]]:
        """All entries in the order of their keys' bytes."""
        return self._rows(self._store.all())

    def reverse_all(self) -> Iterator[tuple[object, object]]:
        """All entries, from the largest key down."""
        return self._rows(self._store.reverse_all())

    def prefix_scan(self, prefix: object, prefix_serde: Serde | None = None) -> Iterator[tuple[object, object]]:
        """Entries whose key's bytes begin with the prefix's."""
        return self._rows(self._store.prefix_scan(prefix, prefix_serde))

    def approximate_num_entries(self) -> int:
        """Return an estimate of the number of entries."""
        return self._store.approximate_num_entries()


class PlainWindowStore:
    """A window store with values as `show` gives them; `keep` converts those that are put. Times are window starts in ms, both ends
    inclusive."""

    def __init__(self, store: WindowStore, show: Callable[[object], object], keep: Callable[[object], object]) -> None:
        self._store, self._show, self._keep = store, show, keep

    def _rows(self, rows: Iterator[tuple[T, object]]) -> Iterator[tuple[T, object]]:
        return ((key, self._show(value)) for key, value in rows)

    def put(self, key: object, value: object, window_start: int) -> None:
        """Set a window's value; None deletes."""
        self._store.put(key, self._keep(value), window_start)

    def fetch(self, *arguments: object) -> object:
        """`(key, time)`: the value of one window or None. `(key, from, to)`: (window start, value) of one key. `(key from, key to, from,
        to)`: (windowed key, value) of several keys."""
        found: object = self._store.fetch(*arguments)  # type: ignore[call-overload]  # it looks at them itself
        return self._show(found) if len(arguments) == 2 else self._rows(cast(Iterator[tuple[object, object]], found))

    def backward_fetch(self, *arguments: object) -> Iterator[tuple[object, object]]:
        """`fetch` of a range of time, in the opposite order."""
        return self._rows(self._store.backward_fetch(*arguments))  # type: ignore[call-overload]  # it looks at them itself

    def fetch_all(self, time_from: int, time_to: int) -> Iterator[tuple[Windowed, object]]:
        """(windowed key, value) of the windows that start between the two times."""
        return self._rows(self._store.fetch_all(time_from, time_to))

    def backward_fetch_all(self, time_from: int, time_to: int) -> Iterator[tuple[Windowed, object]]:
        """`fetch_all` in the opposite order."""
        return self._rows(self._store.backward_fetch_all(time_from, time_to))

    def all(self) -> Iterator[tuple[Windowed, object]]:
        """(windowed key, value) of all windows."""
        return self._rows(self._store.all())

    def backward_all(self) -> Iterator[tuple[Windowed, object]]:
        """`all` in the opposite order."""
        return self._rows(self._store.backward_all())


class PlainSessionStore:
    """A session store with headers, without them. Arguments as those of `SessionStore`."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store

    def put(self, session_key: Windowed, aggregate: object) -> None:
        """Set the value of a session; None removes it."""
        self._store.put(session_key, aggregate)

    def remove(self, session_key: Windowed) -> None:
        """Remove a session."""
        self._store.remove(session_key)

    def fetch_session(self, key: object, session_start: int, session_end: int) -> object:
        """Return the value of a session, or None."""
        return _plain(self._store.fetch_session(key, session_start, session_end))

    def __getattr__(self, name: str) -> Callable[..., Iterator[tuple[Windowed, object]]]:
        """Return `find_sessions`, `fetch` and their siblings, with plain values."""
        read = getattr(self._store, name)
        return lambda *arguments: ((key, _plain(value)) for key, value in read(*arguments))


def key_value_facade(store: object, layout: StoreLayout, *, timestamped: bool) -> KeyValueStore:
    """Return the store with plain values or with `ValueAndTimestamp`; the store itself where it gives them."""
    found = cast(KeyValueStore, store)
    if timestamped:
        return cast(KeyValueStore, PlainKeyValueStore(found, _timed, _as_it_is)) if layout.headers else found
    return cast(KeyValueStore, PlainKeyValueStore(found, _plain, _untimed)) if layout.timestamped else found


def window_facade(store: object, layout: StoreLayout, *, timestamped: bool) -> WindowStore:
    """Return the store as `key_value_facade` does."""
    found = cast(WindowStore, store)
    if timestamped:
        return cast(WindowStore, PlainWindowStore(found, _timed, _as_it_is)) if layout.headers else found
    return cast(WindowStore, PlainWindowStore(found, _plain, _untimed)) if layout.timestamped else found


def session_facade(store: object, layout: StoreLayout) -> SessionStore:
    """Return the store with plain values; the store itself where it gives them."""
    found = cast(SessionStore, store)
    return cast(SessionStore, PlainSessionStore(found)) if layout.headers else found
