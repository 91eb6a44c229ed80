"""Interactive queries: one store by name, over all the tasks of a worker that hold a part of it (Kafka Streams'
`CompositeReadOnlyKeyValueStore`).

Only committed data is read, from the stores' own files, so a query never waits for processing and never shows what may be rolled back.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import cast

from runtime.errors import InvalidStateStoreError
from runtime.stores.base import EngineStore
from runtime.stores.interfaces import ReadOnlyKeyValueStore, ReadOnlyWindowStore

View = ReadOnlyKeyValueStore | ReadOnlyWindowStore


class StoreQuery:
    """Reads of one store. Key-value stores have `get`, `range`, `all`, `prefix_scan`, `approximate_num_entries`; window stores `fetch`,
    `fetch_all`, `all`. Several tasks' parts come one after the other, each in the order of its keys' bytes. Safe to use from any thread;
    raises InvalidStateStoreError when the task that holds the data has been closed meanwhile: ask again."""

    def __init__(self, name: str, stores: Callable[[], Sequence[EngineStore]]) -> None:
        """`stores` gives the parts that are here now."""
        self._name = name
        self._stores = stores

    def _views(self) -> list[View]:
        stores = self._stores()
        if not stores:
            raise InvalidStateStoreError(f"store {self._name!r} is not here now: its tasks are being moved or restored")
        return [cast(View, store.query_view()) for store in stores]

    def _key_values(self) -> list[ReadOnlyKeyValueStore]:
        views = self._views()
        if not hasattr(views[0], "get"):
            raise InvalidStateStoreError(f"store {self._name!r} is a window store: use fetch, fetch_all or all")
        return cast(list[ReadOnlyKeyValueStore], views)

    def _windows(self) -> list[ReadOnlyWindowStore]:
        views = self._views()
        if not hasattr(views[0], "fetch"):
            raise InvalidStateStoreError(f"store {self._name!r} is a key-value store: use get, range or all")
        return cast(list[ReadOnlyWindowStore], views)

    # -- key-value stores --------------------------------------------------------------------------------------------------------

    def get(self, key: object) -> object:
        """The value of a key, or None."""
        return next((value for view in self._key_values() if (value := view.get(key)) is not None), None)

    def range(self, from_key: object | None = None, to_key: object | None = None) -> Iterator[tuple[object, object]]:
        """Keys from `from_key` to `to_key`, both inclusive; None for no bound."""
        return chain.from_iterable(view.range(from_key, to_key) for view in self._key_values())

    def reverse_range(self, from_key: object | None = None, to_key: object | None = None) -> Iterator[tuple[object, object]]:
        """As `range`, each part in reverse."""
        return chain.from_iterable(view.reverse_range(from_key, to_key) for view in self._key_values())

    def prefix_scan(self, prefix: object) -> Iterator[tuple[object, object]]:
        """Entries whose key's bytes begin with the prefix's."""
        return chain.from_iterable(view.prefix_scan(prefix) for view in self._key_values())

    def approximate_num_entries(self) -> int:
        """About how many entries there are."""
        return sum(view.approximate_num_entries() for view in self._key_values())

    def all(self) -> Iterator[tuple[object, object]]:
        """Every entry: (key, value), or (Windowed key, value) of a window store."""
        return chain.from_iterable(view.all() for view in self._views())

    # -- window stores -----------------------------------------------------------------------------------------------------------

    def fetch(self, key: object, time_from: int, time_to: int | None = None) -> object:
        """The value of the window that starts at `time_from`, or None; with `time_to`, an iterator of (window start, value) by time. In
        ms."""
        views = self._windows()
        if time_to is None:
            return next((value for view in views if (value := view.fetch(key, time_from)) is not None), None)
        upper = time_to
        return heapq.merge(*(view.fetch(key, time_from, upper) for view in views), key=lambda found: found[0])

    def fetch_all(self, time_from: int, time_to: int) -> Iterator[tuple[object, object]]:
        """Every key's windows that start from `time_from` to `time_to`, in ms, both inclusive."""
        return chain.from_iterable(view.fetch_all(time_from, time_to) for view in self._windows())
