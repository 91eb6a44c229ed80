"""Interactive queries: one store by name, over all the tasks of a worker that hold a part of it (Kafka Streams'
`CompositeReadOnlyKeyValueStore` and its siblings).

Each worker reports its parts of a store; the client combines the reports of all workers and decides once. So the answer, and the message of
a refusal, do not depend on the number of workers or on where they run.

A query under READ_COMMITTED, the default, reads committed data only, from the stores' own files. So it never waits for processing, and
never returns data that may be rolled back. Under READ_UNCOMMITTED (KIP-892) it sees the staged updates too. These are a map that the
worker's thread changes without a lock, so that thread executes the read between two batches (`Worker.execute`): it costs the hot path
nothing, and the query waits for a turn of the loop. An iterator is made there and read on the caller's thread.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import chain
from operator import itemgetter
from typing import Protocol, TypeVar, cast

from penstock.runtime.model.errors import InvalidStateStoreError, TaskCorruptedError
from penstock.runtime.model.record import Windowed
from penstock.runtime.serdes.serde import Serde
from penstock.runtime.stores.base import CommittedView, EngineStore, StoreLayout
from penstock.runtime.stores.interfaces import ReadOnlyKeyValueStore, ReadOnlySessionStore, ReadOnlyVersionedStore, ReadOnlyWindowStore

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
    """The store type that a query expects (Kafka Streams' `QueryableStoreType`). `timestamped`: values as ValueAndTimestamp. `headers`:
    values with their headers, as processors see them."""

    kind: str
    timestamped: bool = False
    headers: bool = False

    def check(self, store: QueryPart) -> None:
        """Raise InvalidStateStoreError if the store is of another type."""
        layout = store.layout
        if layout.kind != self.kind or (self.timestamped and not layout.timestamped) or (self.headers and not layout.headers):
            wanted = f"{'timestamped ' * self.timestamped}{self.kind.replace('_', '-')} store{' with headers' * self.headers}"
            raise InvalidStateStoreError(f"store {store.name!r} is a {layout.kind.replace('_', '-')} store, not a {wanted}")


class QueryableStoreTypes:
    """The store types of Kafka Streams, and `versioned_key_value_store`."""

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
    def timestamped_key_value_store_with_headers() -> QueryableStoreType:
        return QueryableStoreType(_KEY_VALUE, headers=True)

    @staticmethod
    def timestamped_window_store_with_headers() -> QueryableStoreType:
        return QueryableStoreType(_WINDOW, headers=True)

    @staticmethod
    def session_store_with_headers() -> QueryableStoreType:
        return QueryableStoreType(_SESSION, headers=True)

    @staticmethod
    def versioned_key_value_store() -> QueryableStoreType:
        return QueryableStoreType(_VERSIONED)


class IsolationLevel(Enum):
    """Isolation of a query (KIP-892): committed data only, or also updates that may still be rolled back."""

    READ_COMMITTED = "READ_COMMITTED"
    READ_UNCOMMITTED = "READ_UNCOMMITTED"


@dataclass(frozen=True, slots=True)
class StoreQueryParameters:
    """Store to read, and how (KIP-535, KIP-562). `partition`: only that part. `stale_stores`: parts that are being restored and standby
    copies answer too, with their current content; otherwise a query is refused while a part is restored. `isolation_level`: None for
    `default.state.isolation.level` (KIP-892)."""

    store_name: str
    partition: int | None = None
    stale_stores: bool = False
    store_type: QueryableStoreType | None = None
    isolation_level: IsolationLevel | None = None

    @classmethod
    def from_name_and_type(cls, store_name: str, store_type: QueryableStoreType) -> StoreQueryParameters:
        """As in Kafka Streams. A store of another type is refused."""
        return cls(store_name, store_type=store_type)

    def with_partition(self, partition: int) -> StoreQueryParameters:
        """Read this partition of the store only."""
        return replace(self, partition=partition)

    def enable_stale_stores(self) -> StoreQueryParameters:
        """Let parts that are being restored and standby copies answer too."""
        return replace(self, stale_stores=True)

    def with_isolation_level(self, isolation_level: IsolationLevel) -> StoreQueryParameters:
        """Read with this isolation instead of `default.state.isolation.level`."""
        return replace(self, isolation_level=isolation_level)


class QueryPart(Protocol):
    """The part of a store that a query uses: of a task, or a proxy for a part in another process."""

    @property
    def name(self) -> str: ...

    @property
    def layout(self) -> StoreLayout: ...

    def query_view(self, *, timestamped: bool = False, headers: bool = False) -> CommittedView: ...


class Execute(Protocol):
    """Executes a job on the thread that owns the stores, and returns its result. Raises what the job raises, and InvalidStateStoreError
    if it cannot be executed."""

    def __call__(self, job: Callable[[], T], /) -> T: ...


@dataclass(frozen=True, slots=True)
class UncommittedPart:
    """A part of a store with its staged updates, for any thread."""

    store: EngineStore
    execute: Execute

    @property
    def name(self) -> str:
        return self.store.name

    @property
    def layout(self) -> StoreLayout:
        return self.store.layout

    def query_view(self, *, timestamped: bool = False, headers: bool = False) -> CommittedView:
        view = self.store.query_view(timestamped=timestamped, headers=headers, uncommitted=True)
        return view if self.layout.kind == "custom" else cast(CommittedView, _ExecutedView(view, self.execute))


class _ExecutedView:
    """View whose reads are executed on the thread that owns the store."""

    __slots__ = ("_execute", "_view")

    def __init__(self, view: CommittedView, execute: Execute) -> None:
        self._view = view
        self._execute = execute

    def __getattr__(self, name: str) -> Callable[..., object]:
        method: Callable[..., object] = getattr(self._view, name)
        return lambda *arguments, **options: self._execute(lambda: method(*arguments, **options))


@dataclass(frozen=True, slots=True)
class StoreParts:
    """The parts of a store in one worker. `parts` may answer; `restoring`: tasks whose part may not yet; `known`: all stores of this
    worker's tasks. `whole`: a global store, of which each worker has all."""

    parts: tuple[QueryPart, ...]
    restoring: tuple[str, ...] = ()
    known: frozenset[str] = frozenset()
    whole: bool = False


def answering_parts(found: Iterable[StoreParts], wanted: StoreQueryParameters) -> list[QueryPart]:
    """Return the parts that answer a query. Raises InvalidStateStoreError if there is none, or if a required one is being restored."""
    of_workers = list(found)
    copies = [each for each in of_workers if each.whole]
    if copies:
        of_workers = [next((each for each in copies if each.parts and not each.restoring), copies[0])]
    name = wanted.store_name
    restoring = sorted({task for each in of_workers for task in each.restoring})
    if restoring and not wanted.stale_stores:
        raise InvalidStateStoreError(
            f"store {name!r} is still being restored ({', '.join(restoring)}): to read it as it is, ask for "
            f"StoreQueryParameters({name!r}).enable_stale_stores()"
        )
    parts = [part for each in of_workers for part in each.parts]
    if not parts:
        known = ", ".join(sorted({store for each in of_workers for store in each.known})) or "none"
        where = "" if wanted.partition is None else f", or not its partition {wanted.partition}"
        raise InvalidStateStoreError(f"store {name!r} is unknown or not on this client{where} (stores here: {known})")
    return parts


class StoreQuery:
    """Reads of one store. Key-value stores have `get`, `range`, `all`, `prefix_scan` …; window stores `fetch`, `fetch_all`, `all` …;
    session stores `fetch`, `find_sessions`, `fetch_session` …; versioned stores `get(key, as_of)` and `all`; stores of your own `views`.

    Several tasks' parts come one after the other, each in the order of its keys' bytes. Safe to use from any thread. An iterator reads the
    parts as they were when it was made. Raises InvalidStateStoreError when a part is being restored (unless stale parts were enabled), and
    when the task that holds the data is closed meanwhile: retry then.
    """

    def __init__(
        self, parameters: StoreQueryParameters, stores: Callable[[], Sequence[QueryPart]], report: Callable[[TaskCorruptedError], None]
    ) -> None:
        """`stores` returns the parts that may answer now, or raises InvalidStateStoreError. `report` receives errors about damaged
        files."""
        self._parameters = parameters
        self._stores = stores
        self._report = report

    def views(self) -> list[CommittedView]:
        """Return a view of each part: for stores of your own, the result of their `query_view()`."""
        return self._shown(self._stores())

    def _shown(self, stores: Sequence[QueryPart]) -> list[CommittedView]:
        wanted = self._parameters.store_type
        if wanted is None:
            return [self._with_reports(store, store.query_view()) for store in stores]
        for store in stores:
            wanted.check(store)
        return [self._with_reports(store, store.query_view(timestamped=wanted.timestamped, headers=wanted.headers)) for store in stores]

    def _with_reports(self, store: QueryPart, view: CommittedView) -> CommittedView:
        """Return a view whose reads report damaged files; stores of your own are returned as they are."""
        kind = store.layout.kind
        return cast(CommittedView, DamageReportingView(view, self._report)) if kind in _READS and kind != "custom" else view

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
        """Iterate over every entry: (key, value), (Windowed key, value) of windows and sessions, (key, latest VersionedRecord) of a
        versioned store."""
        return _chained(view.all() for view in self.views())

    # -- key-value stores, versioned ones ------------------------------------------------------------------------------------------

    def get(self, key: object, as_of: int | None = None) -> object:
        """Return the value of a key, or None. Of a versioned store its latest VersionedRecord, or the one that was valid at `as_of`
        (ms)."""
        views = self._of_kind(_KEY_VALUE, _VERSIONED) if as_of is None else self._of_kind(_VERSIONED)
        if as_of is None:
            return _first(cast(ReadOnlyKeyValueStore, view).get(key) for view in views)
        return _first(cast(ReadOnlyVersionedStore, view).get(key, as_of) for view in views)

    def range(self, from_key: object | None = None, to_key: object | None = None) -> Rows:
        """Iterate over the keys from `from_key` to `to_key`, both inclusive; None for no bound."""
        return _chained(view.range(from_key, to_key) for view in self._key_values())

    def reverse_range(self, from_key: object | None = None, to_key: object | None = None) -> Rows:
        """Iterate as `range`, each part in reverse."""
        return _chained(view.reverse_range(from_key, to_key) for view in self._key_values())

    def reverse_all(self) -> Rows:
        """Iterate as `all`, each part in reverse."""
        return _chained(view.reverse_all() for view in self._key_values())

    def prefix_scan(self, prefix: object, prefix_serde: Serde | None = None) -> Rows:
        """Iterate over entries whose key's bytes begin with the prefix's, written by `prefix_serde` (default: the store's own)."""
        return _chained(view.prefix_scan(prefix, prefix_serde) for view in self._key_values())

    def approximate_num_entries(self) -> int:
        """Return the approximate number of entries."""
        return sum(view.approximate_num_entries() for view in self._key_values())

    # -- window stores, session stores ---------------------------------------------------------------------------------------------

    def fetch(self, *arguments: object) -> object:
        """Read windows or sessions. Of a window store: `(key, time)`, the value of the window that starts then or None; `(key, from, to)`,
        an iterator of (window start, value) by time; `(key from, key to, from, to)`, an iterator of (Windowed, value). Of a session
        store: `(key)` or `(key from, key to)`, an iterator of (Windowed, value). Times in ms, inclusive."""
        stores = self._parts_of_kind(_WINDOW, _SESSION)
        views = self._shown(stores)
        if len(arguments) == 2 and stores[0].layout.kind == _WINDOW:
            return _first(_call(view, "fetch", arguments) for view in views)
        return self._in_time(views, "fetch", arguments)

    def backward_fetch(self, *arguments: object) -> Rows:
        """Read as `fetch` of a range or of sessions, in the opposite order."""
        return self._in_time(self._of_kind(_WINDOW, _SESSION), "backward_fetch", arguments)

    def _in_time(self, views: Sequence[CommittedView], method: str, arguments: tuple[object, ...]) -> Rows:
        parts = [cast(Rows, _call(view, method, arguments)) for view in views]
        if len(arguments) == 3:  # one key's windows, which may be in two parts while a task moves
            return heapq.merge(*parts, key=cast(Callable[[object], int], itemgetter(0)), reverse=method.startswith("backward"))
        return chain.from_iterable(parts)

    def fetch_all(self, time_from: int, time_to: int) -> Iterator[tuple[Windowed, object]]:
        """Iterate over every key's windows that start from `time_from` to `time_to`, in ms, both inclusive."""
        return _chained(view.fetch_all(time_from, time_to) for view in self._windows())

    def backward_fetch_all(self, time_from: int, time_to: int) -> Iterator[tuple[Windowed, object]]:
        """Iterate as `fetch_all`, each part in reverse."""
        return _chained(view.backward_fetch_all(time_from, time_to) for view in self._windows())

    def backward_all(self) -> Iterator[tuple[Windowed, object]]:
        """Iterate over every window, each part in reverse."""
        return _chained(view.backward_all() for view in self._windows())

    def find_sessions(self, *arguments: object) -> Iterator[tuple[Windowed, object]]:
        """Iterate over sessions: `(key, earliest end, latest start)`, `(key from, key to, earliest end, latest start)` or `(earliest end,
        latest end)`, as `ReadOnlySessionStore.find_sessions`. Returns (Windowed, value)."""
        found = [_call(view, "find_sessions", arguments) for view in self._sessions()]
        return chain.from_iterable(cast(list[Iterator[tuple[Windowed, object]]], found))

    def backward_find_sessions(self, *arguments: object) -> Iterator[tuple[Windowed, object]]:
        """Iterate as `find_sessions`, each part in reverse."""
        found = [_call(view, "backward_find_sessions", arguments) for view in self._sessions()]
        return chain.from_iterable(cast(list[Iterator[tuple[Windowed, object]]], found))

    def fetch_session(self, key: object, session_start: int, session_end: int) -> object:
        """Return the value of exactly this session (ms), or None."""
        return _first(view.fetch_session(key, session_start, session_end) for view in self._sessions())


class DamageReportingView:
    """View whose reads report damaged files: processing may not touch these for long, and the reader cannot repair them."""

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
        error.clear_traceback()
        self._report(error)
        return InvalidStateStoreError(f"the store is damaged, and is being restored now: ask again ({error})")


def _chained(parts: Iterable[Iterator[T]]) -> Iterator[T]:
    """Chain iterators that all begin now."""
    return chain.from_iterable(list(parts))


def _first(found: Iterable[object]) -> object:
    return next((value for value in found if value is not None), None)


def _call(view: object, method: str, arguments: tuple[object, ...]) -> object:
    """Call an overloaded read, which the view itself resolves by the number of arguments."""
    answer: object = getattr(view, method)(*arguments)
    return answer
