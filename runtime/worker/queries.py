"""Interactive queries: one store by name, over all the tasks of a worker that hold a part of it (Kafka Streams'
`CompositeReadOnlyKeyValueStore` and its siblings).

Only committed data is read, from the stores' own files, so a query never waits for processing and never shows what may be rolled back.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import itemgetter
from typing import Protocol, TypeVar, cast

from runtime.errors import InvalidStateStoreError, TaskCorruptedError
from runtime.record import Windowed
from runtime.serdes.serde import Serde
from runtime.stores.base import CommittedView, StoreLayout
from runtime.stores.interfaces import ReadOnlyKeyValueStore, ReadOnlySessionStore, ReadOnlyVersionedStore, ReadOnlyWindowStore

T = TypeVar("T")
Rows = Iterator[tuple[object, object]]
_KEY_VALUE, _WINDOW, _SESSION, _VERSIONED = "key_value", "window", "session", "versioned"
_READS = {
    _KEY_VALUE: "get, range, all or prefix_scan",
    _WINDOW: "fetch, fetch_all or all",
    _SESSION: "fetch, find_sessions or fetch_session",
    _VERSIONED: "get(key, as_of) or all",
    "custom": "views",
}


@dataclass(frozen=True, slots=True)
class QueryableStoreType:
    """What a store must be to be read as that (Kafka Streams' `QueryableStoreType`). `timestamped`: values as ValueAndTimestamp."""

    kind: str
    timestamped: bool = False

    def check(self, store: QueryPart) -> None:
        """Raises InvalidStateStoreError if the store is of another type."""
        layout = store.layout
        if layout.kind != self.kind or (self.timestamped and not layout.timestamped):
            wanted = f"{'timestamped ' * self.timestamped}{self.kind.replace('_', '-')}"
            raise InvalidStateStoreError(f"store {store.name!r} is a {layout.kind.replace('_', '-')} store, not a {wanted} store")


class QueryableStoreTypes:
    """The types there are, as in Kafka Streams; `versioned_key_value_store` is one more."""

    @staticmethod
    def key_value_store() -> QueryableStoreType:
        return QueryableStoreType(_KEY_VALUE)

    @staticmethod
    def timestamped_key_value_store() -> QueryableStoreType:
        return QueryableStoreType(_KEY_VALUE, timestamped=True)

    @staticmethod
    def window_store() -> QueryableStoreType:
        return QueryableStoreType(_WINDOW)

    @staticmethod
    def timestamped_window_store() -> QueryableStoreType:
        return QueryableStoreType(_WINDOW, timestamped=True)

    @staticmethod
    def session_store() -> QueryableStoreType:
        return QueryableStoreType(_SESSION)

    @staticmethod
    def versioned_key_value_store() -> QueryableStoreType:
        return QueryableStoreType(_VERSIONED)


@dataclass(frozen=True, slots=True)
class StoreQueryParameters:
    """Which store to read, and how (KIP-535, KIP-562). `partition`: that part of it only. `stale_stores`: parts that are being restored,
    and copies (standby tasks), answer too, with what they hold by now; without it a query is refused while a part is restored."""

    store_name: str
    partition: int | None = None
    stale_stores: bool = False
    store_type: QueryableStoreType | None = None

    @classmethod
    def from_name_and_type(cls, store_name: str, store_type: QueryableStoreType) -> StoreQueryParameters:
        """As in Kafka Streams. A store of another type is refused."""
        return cls(store_name, store_type=store_type)

    def with_partition(self, partition: int) -> StoreQueryParameters:
        """This partition of the store only."""
        return replace(self, partition=partition)

    def enable_stale_stores(self) -> StoreQueryParameters:
        """Parts that are being restored, and copies, answer too."""
        return replace(self, stale_stores=True)


class QueryPart(Protocol):
    """What a query reads of a store: a task's part of it, or a stand-in for what another process has."""

    @property
    def name(self) -> str: ...

    @property
    def layout(self) -> StoreLayout: ...

    def query_view(self, *, timestamped: bool = False) -> CommittedView: ...


class StoreQuery:
    """Reads of one store. Key-value stores have `get`, `range`, `all`, `prefix_scan` …; window stores `fetch`, `fetch_all`, `all` …;
    session stores `fetch`, `find_sessions`, `fetch_session` …; versioned stores `get(key, as_of)` and `all`; stores of your own `views`.

    Several tasks' parts come one after the other, each in the order of its keys' bytes. Safe to use from any thread. An iteration shows the
    parts as they were when it was made. Raises InvalidStateStoreError when a part is being restored (unless stale parts were asked for),
    and when the task that holds the data is closed meanwhile: ask again."""

    def __init__(
        self, parameters: StoreQueryParameters, stores: Callable[[], Sequence[QueryPart]], report: Callable[[TaskCorruptedError], None]
    ) -> None:
        """`stores` gives the parts that answer now; it raises InvalidStateStoreError where there is none that may. `report` hears of one
        whose files turn out to be damaged."""
        self._parameters = parameters
        self._stores = stores
        self._report = report

    def views(self) -> list[CommittedView]:
        """What each part shows of itself: for stores of your own, what their `query_view()` gives."""
        return self._shown(self._stores())

    def _shown(self, stores: Sequence[QueryPart]) -> list[CommittedView]:
        wanted = self._parameters.store_type
        if wanted is None:
            return [self._watched(store, store.query_view()) for store in stores]
        for store in stores:
            wanted.check(store)
        return [self._watched(store, store.query_view(timestamped=wanted.timestamped)) for store in stores]

    def _watched(self, store: QueryPart, view: CommittedView) -> CommittedView:
        """The view, but for stores of your own behind a watch over its reads."""
        kind = store.layout.kind
        return cast(CommittedView, _Watched(view, self._report)) if kind in _READS and kind != "custom" else view

    def _of_kind(self, *kinds: str) -> list[CommittedView]:
        return self._shown(self._parts_of_kind(*kinds))

    def _parts_of_kind(self, *kinds: str) -> Sequence[QueryPart]:
        stores = self._stores()
        for store in stores:
            kind = store.layout.kind
            if kind not in kinds:
                raise InvalidStateStoreError(f"store {store.name!r} is a {kind.replace('_', '-')} store: use {_READS[kind]}")
        return stores

    def _key_values(self) -> list[ReadOnlyKeyValueStore]:
        return cast(list[ReadOnlyKeyValueStore], self._of_kind(_KEY_VALUE))

    def _windows(self) -> list[ReadOnlyWindowStore]:
        return cast(list[ReadOnlyWindowStore], self._of_kind(_WINDOW))

    def _sessions(self) -> list[ReadOnlySessionStore]:
        return cast(list[ReadOnlySessionStore], self._of_kind(_SESSION))

    def all(self) -> Rows:
        """Every entry: (key, value), (Windowed key, value) of windows and sessions, (key, latest VersionedRecord) of a versioned store."""
        return _chained(view.all() for view in self.views())

    # -- key-value stores, versioned ones ------------------------------------------------------------------------------------------

    def get(self, key: object, as_of: int | None = None) -> object:
        """The value of a key, or None. Of a versioned store its latest VersionedRecord, or the one that was valid at `as_of` (ms)."""
        views = self._of_kind(_KEY_VALUE, _VERSIONED) if as_of is None else self._of_kind(_VERSIONED)
        if as_of is None:
            return _first(cast(ReadOnlyKeyValueStore, view).get(key) for view in views)
        return _first(cast(ReadOnlyVersionedStore, view).get(key, as_of) for view in views)

    def range(self, from_key: object | None = None, to_key: object | None = None) -> Rows:
        """Keys from `from_key` to `to_key`, both inclusive; None for no bound."""
        return _chained(view.range(from_key, to_key) for view in self._key_values())

    def reverse_range(self, from_key: object | None = None, to_key: object | None = None) -> Rows:
        """As `range`, each part in reverse."""
        return _chained(view.reverse_range(from_key, to_key) for view in self._key_values())

    def reverse_all(self) -> Rows:
        """As `all`, each part in reverse."""
        return _chained(view.reverse_all() for view in self._key_values())

    def prefix_scan(self, prefix: object, prefix_serde: Serde | None = None) -> Rows:
        """Entries whose key's bytes begin with the prefix's, written by `prefix_serde` (default: the store's own)."""
        return _chained(view.prefix_scan(prefix, prefix_serde) for view in self._key_values())

    def approximate_num_entries(self) -> int:
        """About how many entries there are."""
        return sum(view.approximate_num_entries() for view in self._key_values())

    # -- window stores, session stores ---------------------------------------------------------------------------------------------

    def fetch(self, *arguments: object) -> object:
        """Of a window store: `(key, time)`, the value of the window that starts then or None; `(key, from, to)`, an iterator of (window
        start, value) by time; `(key from, key to, from, to)`, an iterator of (Windowed, value). Of a session store: `(key)` or `(key from,
        key to)`, an iterator of (Windowed, value). Times in ms, inclusive."""
        stores = self._parts_of_kind(_WINDOW, _SESSION)
        views = self._shown(stores)
        if len(arguments) == 2 and stores[0].layout.kind == _WINDOW:
            return _first(_call(view, "fetch", arguments) for view in views)
        return self._in_time(views, "fetch", arguments)

    def backward_fetch(self, *arguments: object) -> Rows:
        """As `fetch` of a range or of sessions, in the opposite order."""
        return self._in_time(self._of_kind(_WINDOW, _SESSION), "backward_fetch", arguments)

    def _in_time(self, views: Sequence[CommittedView], method: str, arguments: tuple[object, ...]) -> Rows:
        parts = [cast(Rows, _call(view, method, arguments)) for view in views]
        if len(arguments) == 3:  # one key's windows, which may be in two parts while a task moves
            return heapq.merge(*parts, key=cast(Callable[[object], int], itemgetter(0)), reverse=method.startswith("backward"))
        return chain.from_iterable(parts)

    def fetch_all(self, time_from: int, time_to: int) -> Iterator[tuple[Windowed, object]]:
        """Every key's windows that start from `time_from` to `time_to`, in ms, both inclusive."""
        return _chained(view.fetch_all(time_from, time_to) for view in self._windows())

    def backward_fetch_all(self, time_from: int, time_to: int) -> Iterator[tuple[Windowed, object]]:
        """As `fetch_all`, each part in reverse."""
        return _chained(view.backward_fetch_all(time_from, time_to) for view in self._windows())

    def backward_all(self) -> Iterator[tuple[Windowed, object]]:
        """Every window, each part in reverse."""
        return _chained(view.backward_all() for view in self._windows())

    def find_sessions(self, *arguments: object) -> Iterator[tuple[Windowed, object]]:
        """`(key, earliest end, latest start)`, `(key from, key to, earliest end, latest start)` or `(earliest end, latest end)`: (Windowed,
        value) of the sessions, as `ReadOnlySessionStore.find_sessions`."""
        found = [_call(view, "find_sessions", arguments) for view in self._sessions()]
        return chain.from_iterable(cast(list[Iterator[tuple[Windowed, object]]], found))

    def backward_find_sessions(self, *arguments: object) -> Iterator[tuple[Windowed, object]]:
        """As `find_sessions`, each part in reverse."""
        found = [_call(view, "backward_find_sessions", arguments) for view in self._sessions()]
        return chain.from_iterable(cast(list[Iterator[tuple[Windowed, object]]], found))

    def fetch_session(self, key: object, session_start: int, session_end: int) -> object:
        """The value of exactly this session (ms), or None."""
        return _first(view.fetch_session(key, session_start, session_end) for view in self._sessions())


class _Watched:
    """A view whose reads report damaged files: processing might not touch them for long, and the reader cannot mend them."""

    __slots__ = ("_report", "_view")

    def __init__(self, view: CommittedView, report: Callable[[TaskCorruptedError], None]) -> None:
        self._view = view
        self._report = report

    def __getattr__(self, name: str) -> Callable[..., object]:
        method: Callable[..., object] = getattr(self._view, name)

        def read(*arguments: object, **options: object) -> object:
            try:
                found = method(*arguments, **options)
            except TaskCorruptedError as error:
                raise self._refusal(error) from None
            return self._iterated(found) if isinstance(found, Iterator) else found

        return read

    def _iterated(self, rows: Iterator[object]) -> Iterator[object]:
        try:
            yield from rows
        except TaskCorruptedError as error:
            raise self._refusal(error) from None

    def _refusal(self, error: TaskCorruptedError) -> InvalidStateStoreError:
        error.let_go()
        self._report(error)
        return InvalidStateStoreError(f"the store is damaged, and is being restored now: ask again ({error})")


def _chained(parts: Iterable[Iterator[T]]) -> Iterator[T]:
    """One after the other; all of them begin now."""
    return chain.from_iterable(list(parts))


def _first(found: Iterable[object]) -> object:
    return next((value for value in found if value is not None), None)


def _call(view: object, method: str, arguments: tuple[object, ...]) -> object:
    """A read that is told apart by its number of arguments, which the view itself looks at."""
    answer: object = getattr(view, method)(*arguments)
    return answer
