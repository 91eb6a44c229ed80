"""Stores as tests want to see them: plain values, whether or not the store keeps timestamps (Kafka Streams' facades of the test driver)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import cast

from penstock.runtime.model.record import ValueAndTimestamp, Windowed
from penstock.runtime.serdes.serde import Serde
from penstock.runtime.stores.interfaces import KeyValueStore, WindowStore

NO_TIMESTAMP = -1
"""The time of a value that a test put by hand."""


def _plain(value: object) -> object:
    return value.value if isinstance(value, ValueAndTimestamp) else value


def _plain_rows(rows: Iterator[tuple[object, object]]) -> Iterator[tuple[object, object]]:
    return ((key, _plain(value)) for key, value in rows)


class PlainKeyValueStore:
    """A timestamped key-value store without its timestamps."""

    def __init__(self, store: KeyValueStore) -> None:
        self._store = store

    def get(self, key: object) -> object:
        """Return the value, or None."""
        return _plain(self._store.get(key))

    def put(self, key: object, value: object) -> None:
        """Set a value; None deletes. It counts as older than any record."""
        self._store.put(key, None if value is None else ValueAndTimestamp(value, NO_TIMESTAMP))

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
        return _plain(self._store.delete(key))

    def delete_range(self, from_key: object | None, to_key: object | None) -> None:
        """Delete the keys from one to another, both inclusive."""
        self._store.delete_range(from_key, to_key)

    def range(self, from_key: object | None, to_key: object | None) -> Iterator[tuple[object, object]]:
        """Entries from one key to another, both inclusive, in the order of their bytes."""
        return ((key, _plain(value)) for key, value in self._store.range(from_key, to_key))

    def reverse_range(self, from_key: object | None, to_key: object | None) -> Iterator[tuple[object, object]]:
        """`range`, from the largest key down."""
        return ((key, _plain(value)) for key, value in self._store.reverse_range(from_key, to_key))

    def all(self) -> Iterator[tuple[object, object]]:
        """All entries in the order of their keys' bytes."""
        return ((key, _plain(value)) for key, value in self._store.all())

    def reverse_all(self) -> Iterator[tuple[object, object]]:
        """All entries, from the largest key down."""
        return ((key, _plain(value)) for key, value in self._store.reverse_all())

    def prefix_scan(self, prefix: object, prefix_serde: Serde | None = None) -> Iterator[tuple[object, object]]:
        """Entries whose key's bytes begin with the prefix's."""
        return ((key, _plain(value)) for key, value in self._store.prefix_scan(prefix, prefix_serde))

    def approximate_num_entries(self) -> int:
        """Return an estimate of the number of entries."""
        return self._store.approximate_num_entries()


class PlainWindowStore:
    """A timestamped window store without its timestamps. Times are window starts in ms, both ends inclusive."""

    def __init__(self, store: WindowStore) -> None:
        self._store = store

    def put(self, key: object, value: object, window_start: int) -> None:
        """Set a window's value; None deletes."""
        self._store.put(key, None if value is None else ValueAndTimestamp(value, NO_TIMESTAMP), window_start)

    def fetch(self, *arguments: object) -> object:
        """`(key, time)`: the value of one window or None. `(key, from, to)`: (window start, value) of one key. `(key from, key to, from,
        to)`: (windowed key, value) of several keys."""
        found: object = self._store.fetch(*arguments)  # type: ignore[call-overload]  # it looks at them itself
        return _plain(found) if len(arguments) == 2 else _plain_rows(cast(Iterator[tuple[object, object]], found))

    def backward_fetch(self, *arguments: object) -> Iterator[tuple[object, object]]:
        """`fetch` of a range of time, in the opposite order."""
        return _plain_rows(self._store.backward_fetch(*arguments))  # type: ignore[call-overload]  # it looks at them itself

    def fetch_all(self, time_from: int, time_to: int) -> Iterator[tuple[Windowed, object]]:
        """(windowed key, value) of the windows that start between the two times."""
        return ((key, _plain(value)) for key, value in self._store.fetch_all(time_from, time_to))

    def backward_fetch_all(self, time_from: int, time_to: int) -> Iterator[tuple[Windowed, object]]:
        """`fetch_all` in the opposite order."""
        return ((key, _plain(value)) for key, value in self._store.backward_fetch_all(time_from, time_to))

    def all(self) -> Iterator[tuple[Windowed, object]]:
        """(windowed key, value) of all windows."""
        return ((key, _plain(value)) for key, value in self._store.all())

    def backward_all(self) -> Iterator[tuple[Windowed, object]]:
        """`all` in the opposite order."""
        return ((key, _plain(value)) for key, value in self._store.backward_all())


def plain_key_value_store(store: object, timestamped: bool) -> KeyValueStore:
    """The store itself if it keeps plain values, else a view without timestamps."""
    found = cast(KeyValueStore, store)
    return cast(KeyValueStore, PlainKeyValueStore(found)) if timestamped else found


def plain_window_store(store: object, timestamped: bool) -> WindowStore:
    """The store itself if it keeps plain values, else a view without timestamps."""
    found = cast(WindowStore, store)
    return cast(WindowStore, PlainWindowStore(found)) if timestamped else found
