"""Grouped and cogrouped streams, also by window or session, and their aggregates (Kafka Streams' `KGroupedStream`, `TimeWindowedKStream`,
`SessionWindowedKStream`, and `CogroupedKStream` of KIP-150).

    flights.cogroup(add_flight).cogroup(delays, add_delay).aggregate(dict, Materialized("day"))

Each stream of a cogroup has its own aggregator and its own operator. All operators update the same store, and their merge is the resulting
table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, overload

from penstock.runtime.dsl.aggregates import (
    AGGREGATOR,
    MERGER,
    REDUCER,
    AggregateFunctions,
    Aggregator,
    Groups,
    Initializer,
    MakeOperator,
    Merger,
    NodeAndStore,
    Reducer,
    aggregate_operator,
    aggregate_table,
    closes_after_ms,
)
from penstock.runtime.dsl.ktable import KTable
from penstock.runtime.dsl.options import MaterializedOrStr, NamedOrStr, StoreOrNamed, node_and_store
from penstock.runtime.dsl.stores import table_key, table_store
from penstock.runtime.dsl.windows import (
    AnyWindows,
    EmitStrategy,
    SessionWindows,
    SlidingWindows,
    TimeWindows,
    Windows,
    checked_strategy,
    checked_windows,
)
from penstock.runtime.model.arity import checked
from penstock.runtime.model.errors import TopologyError
from penstock.runtime.model.record import Windowed
from penstock.runtime.model.type_variables import VR, K, V
from penstock.runtime.operators.aggregate import Cogrouped, StreamAggregate, StreamCount, StreamReduce, counted, nothing, reducing, zero
from penstock.runtime.operators.base import OperatorSupplier
from penstock.runtime.serdes import LONG
from penstock.runtime.serdes.serde import Serde

_PREFIX = "COGROUPKSTREAM-AGGREGATE-"


class Cogroup(Generic[K, VR]):
    """Grouped streams with their aggregators, and the graph in which their common aggregate is built."""

    def __init__(self, groups: Groups, aggregator: Callable[..., object]) -> None:
        self._graph = groups._graph
        self._streams: list[tuple[Groups, Callable[..., object]]] = [(groups, aggregator)]
        self._repartition_sources: dict[int, str] = {}

    def add_stream(self, groups: Groups, aggregator: Callable[..., object]) -> None:
        """Add a stream. Raises TopologyError if it comes from another builder."""
        self._graph.check_same(groups._graph, "cogroup of two streams")
        self._streams.append((groups, aggregator))

    def aggregate(
        self,
        initializer: Callable[[], object],
        merger: Callable[..., object] | None,
        kept: NodeAndStore,
        windows: AnyWindows | None = None,
    ) -> KTable:
        """Add an operator for each stream, their common store, and the table that merges them."""
        user_name, how = kept
        graph = self._graph
        # The first stream with a serde for its key gives the table its serde.
        key = how.key or next((groups._how.key for groups, _ in self._streams if groups._how.key is not None), None)
        store = graph.store_name(_PREFIX, how)
        factory = table_store(store, how, key, how.value, windows)
        parents = [self._parent(number, groups, store) for number, (groups, _) in enumerate(self._streams)]
        sources = frozenset(source for _, of_parent in parents for source in of_parent)
        if len(sources) > 1:
            graph.topology.copartition(sources)
        graph.topology.add_store_factory(store, factory)
        names, suppliers = list[str](), list[OperatorSupplier]()
        for number, ((parent, _), (_, aggregator)) in enumerate(zip(parents, self._streams, strict=True)):
            node = graph.name(_PREFIX, user_name, f"-cogroup-agg-{number}")
            merge = None if merger is None else checked(merger, node, *MERGER)
            initialize, aggregate = checked(initializer, node), checked(aggregator, node, *AGGREGATOR)
            suppliers.append(aggregate_operator(store, windows, initialize, aggregate, merge, part=number))
            names.append(graph.operator(node, suppliers[-1], (parent,), (store,)))
            if windows is not None:
                graph.closes_after(node, closes_after_ms(windows))
        table = graph.operator(graph.name("COGROUPKSTREAM-MERGE-", user_name, "-cogroup-merge"), Cogrouped(suppliers[0]), names)
        return KTable._of(aggregate_table(graph, table, table_key(key, windows), how.value, sources, store, how))

    def _parent(self, number: int, groups: Groups, store: str) -> tuple[str, frozenset[str]]:
        """Return the node above one stream's aggregate, and its sources. All aggregates of this cogroup share the stream's repartition
        topic."""
        if not groups._repartition:
            return groups._node, groups._sources
        shared = self._repartition_sources.get(number)
        source = self._graph.repartition(groups._node, groups._repartition_topic(store), shared)
        self._repartition_sources[number] = source
        return source, frozenset((source,))


class CogroupedKStream(Generic[K, VR]):
    """Grouped streams that are aggregated together, made by `KGroupedStream.cogroup`. Records without a key or value are dropped and
    counted."""

    def __init__(self, cogroup: Cogroup[K, VR]) -> None:
        self._cogroup = cogroup

    def cogroup(self, grouped_stream: Groups[K, V], aggregator: Aggregator[K, V, VR]) -> CogroupedKStream[K, VR]:
        """Add a `KGroupedStream`, with `aggregator(key, value, aggregate)`. Changes this object, as in Kafka Streams, and returns it."""
        if not isinstance(grouped_stream, Groups):
            raise TopologyError(f"cogroup: expected a KGroupedStream (group_by_key or group_by), not {type(grouped_stream).__name__}")
        self._cogroup.add_stream(grouped_stream, aggregator)
        return self

    def aggregate(
        self,
        initializer: Initializer[VR],
        store: StoreOrNamed[K, VR] = None,
        materialized: MaterializedOrStr[K, VR] = None,
        *,
        value: Serde[VR] | None = None,
        named: NamedOrStr = None,
    ) -> KTable[K, VR]:
        """Aggregate the records of all streams by key, starting with `initializer()`."""
        return self._cogroup.aggregate(initializer, None, node_and_store(store, materialized, named, value))

    @overload
    def windowed_by(self, windows: SessionWindows) -> SessionWindowedCogroupedKStream[K, VR]: ...

    @overload
    def windowed_by(self, windows: Windows | SlidingWindows) -> TimeWindowedCogroupedKStream[K, VR]: ...

    def windowed_by(
        self, windows: Windows | SlidingWindows | SessionWindows
    ) -> TimeWindowedCogroupedKStream[K, VR] | SessionWindowedCogroupedKStream[K, VR]:
        """Group by window as well."""
        if isinstance(windows, SessionWindows):
            return SessionWindowedCogroupedKStream(self._cogroup, windows)
        return TimeWindowedCogroupedKStream(self._cogroup, checked_windows(windows))


class TimeWindowedCogroupedKStream(Generic[K, VR]):
    """Grouped streams that are aggregated together by key and window."""

    def __init__(self, cogroup: Cogroup[K, VR], windows: Windows | SlidingWindows) -> None:
        self._cogroup = cogroup
        self._windows = windows

    def aggregate(
        self,
        initializer: Initializer[VR],
        store: StoreOrNamed[K, VR] = None,
        materialized: MaterializedOrStr[K, VR] = None,
        *,
        value: Serde[VR] | None = None,
        named: NamedOrStr = None,
    ) -> KTable[Windowed[K], VR]:
        """Aggregate the records of all streams by key and window, starting with `initializer()`. Each stream has its own stream time."""
        return self._cogroup.aggregate(initializer, None, node_and_store(store, materialized, named, value), self._windows)


class SessionWindowedCogroupedKStream(Generic[K, VR]):
    """Grouped streams that are aggregated together by key and session."""

    def __init__(self, cogroup: Cogroup[K, VR], windows: SessionWindows) -> None:
        self._cogroup = cogroup
        self._windows = windows

    def aggregate(
        self,
        initializer: Initializer[VR],
        session_merger: Merger[K, VR],
        store: StoreOrNamed[K, VR] = None,
        materialized: MaterializedOrStr[K, VR] = None,
        *,
        value: Serde[VR] | None = None,
        named: NamedOrStr = None,
    ) -> KTable[Windowed[K], VR]:
        """Aggregate the records of all streams by key and session; `session_merger(key, aggregate, other)` merges two sessions. Each stream
        has its own stream time."""
        return self._cogroup.aggregate(initializer, session_merger, node_and_store(store, materialized, named, value), self._windows)


class KGroupedStream(Groups[K, V]):
    """Records grouped by key, made by `group_by` and `group_by_key`. Records without a key or value are dropped and counted.

    `store` is the name of an aggregate's store or a `Materialized`, `named` the name of its node. Kafka Streams' order, the node's name
    before the `Materialized`, is accepted too. `value` is the serde of the aggregate.
    """

    def count(
        self, store: StoreOrNamed[K, int] = None, materialized: MaterializedOrStr[K, int] = None, *, named: NamedOrStr = None
    ) -> KTable[K, int]:
        """Count the records of each key (LONG). `count("departures")` names the store; a `Named`, or `named=`, names the node."""
        self._advance_for_unnamed_count(store, materialized)
        return self._aggregate(
            "KSTREAM-AGGREGATE-", lambda _node, store: StreamCount(store), LONG, node_and_store(store, materialized, named)
        )

    def reduce(
        self,
        reducer: Reducer[V],
        store: StoreOrNamed[K, V] = None,
        materialized: MaterializedOrStr[K, V] = None,
        *,
        named: NamedOrStr = None,
    ) -> KTable[K, V]:
        """Combine the values of each key by `reducer(aggregate, value)`; the first value is the first aggregate."""

        def make(node: str, store: str) -> OperatorSupplier:
            return StreamReduce(store, checked(reducer, node, *REDUCER))

        return self._aggregate("KSTREAM-REDUCE-", make, self._how.value, node_and_store(store, materialized, named))

    def aggregate(
        self,
        initializer: Initializer[VR],
        aggregator: Aggregator[K, V, VR],
        store: StoreOrNamed[K, VR] = None,
        materialized: MaterializedOrStr[K, VR] = None,
        *,
        value: Serde[VR] | None = None,
        named: NamedOrStr = None,
    ) -> KTable[K, VR]:
        """Aggregate the records of each key by `aggregator(key, value, aggregate)`, starting with `initializer()`. An aggregate of None
        deletes the row."""

        def make(node: str, store: str) -> OperatorSupplier:
            return StreamAggregate(store, checked(initializer, node), checked(aggregator, node, *AGGREGATOR))

        return self._aggregate("KSTREAM-AGGREGATE-", make, None, node_and_store(store, materialized, named, value))

    def _aggregate(
        self,
        prefix: str,
        make: MakeOperator,
        value: Serde[VR] | None,
        kept: NodeAndStore,
    ) -> KTable[K, VR]:
        return KTable._of(self._add_aggregate(prefix, make, value, kept))

    def cogroup(self, aggregator: Aggregator[K, V, VR]) -> CogroupedKStream[K, VR]:
        """Start an aggregate of several grouped streams. `aggregator(key, value, aggregate)` takes the records of this one."""
        return CogroupedKStream(Cogroup(self, aggregator))

    @overload
    def windowed_by(self, windows: SessionWindows) -> SessionWindowedKStream[K, V]: ...

    @overload
    def windowed_by(self, windows: Windows | SlidingWindows) -> TimeWindowedKStream[K, V]: ...

    def windowed_by(self, windows: Windows | SlidingWindows | SessionWindows) -> TimeWindowedKStream[K, V] | SessionWindowedKStream[K, V]:
        """Group by window as well: `TimeWindows`, `SlidingWindows`, `SessionWindows`, `UnlimitedWindows`, or a class of your own."""
        if isinstance(windows, SessionWindows):
            return SessionWindowedKStream(self, windows)
        return TimeWindowedKStream(self, checked_windows(windows))


class _WindowedKStream(Generic[K, V]):
    """Records grouped by key, and by window or session."""

    def __init__(self, groups: Groups[K, V], windows: AnyWindows) -> None:
        self._groups = groups
        self._windows = windows
        self._on_close = False

    def _aggregate(
        self,
        prefix: str,
        functions: Callable[[str], AggregateFunctions],
        value: Serde[VR] | None,
        kept: NodeAndStore,
    ) -> KTable[Windowed[K], VR]:
        windows, on_close = self._windows, self._on_close

        def make(node: str, store: str) -> OperatorSupplier:
            return aggregate_operator(store, windows, *functions(node), on_close=on_close)

        return KTable._of(self._groups._add_aggregate(prefix, make, value, kept, windows))


class TimeWindowedKStream(_WindowedKStream[K, V]):
    """Records grouped by key and window. Results have `Windowed` keys. A late record, whose windows are closed, is dropped and counted."""

    def emit_strategy(self, strategy: EmitStrategy) -> TimeWindowedKStream[K, V]:
        """Set when results are emitted. Changes this object, as in Kafka Streams, and returns it. Raises TopologyError for
        `on_window_close` with windows other than `TimeWindows` and `SlidingWindows`."""
        if checked_strategy(strategy).on_close and not isinstance(self._windows, TimeWindows | SlidingWindows):
            raise TopologyError(f"results on window close: {type(self._windows).__name__} do not close")
        self._on_close = strategy.on_close
        return self

    def count(
        self, store: StoreOrNamed[K, int] = None, materialized: MaterializedOrStr[K, int] = None, *, named: NamedOrStr = None
    ) -> KTable[Windowed[K], int]:
        """Count the records of each key and window (LONG)."""
        if not isinstance(self._windows, SlidingWindows):
            self._groups._advance_for_unnamed_count(store, materialized)
        return self._aggregate("KSTREAM-AGGREGATE-", lambda _: (zero, counted), LONG, node_and_store(store, materialized, named))

    def reduce(
        self,
        reducer: Reducer[V],
        store: StoreOrNamed[K, V] = None,
        materialized: MaterializedOrStr[K, V] = None,
        *,
        named: NamedOrStr = None,
    ) -> KTable[Windowed[K], V]:
        """Combine the values of each key and window by `reducer(aggregate, value)`; the first value is the first aggregate."""

        def functions(node: str) -> tuple[Callable[[], object], Callable[..., object]]:
            return nothing, reducing(checked(reducer, node, *REDUCER))

        return self._aggregate("KSTREAM-REDUCE-", functions, self._groups._how.value, node_and_store(store, materialized, named))

    def aggregate(
        self,
        initializer: Initializer[VR],
        aggregator: Aggregator[K, V, VR],
        store: StoreOrNamed[K, VR] = None,
        materialized: MaterializedOrStr[K, VR] = None,
        *,
        value: Serde[VR] | None = None,
        named: NamedOrStr = None,
    ) -> KTable[Windowed[K], VR]:
        """Aggregate the records of each key and window by `aggregator(key, value, aggregate)`, starting with `initializer()`."""

        def functions(node: str) -> tuple[Callable[[], object], Callable[..., object]]:
            return checked(initializer, node), checked(aggregator, node, *AGGREGATOR)

        return self._aggregate("KSTREAM-AGGREGATE-", functions, None, node_and_store(store, materialized, named, value))


class SessionWindowedKStream(_WindowedKStream[K, V]):
    """Records grouped by key and session. Results have `Windowed` keys and their session's end as timestamp. A session that grows or is
    merged is deleted before the new one is emitted. A late record is dropped and counted."""

    def emit_strategy(self, strategy: EmitStrategy) -> SessionWindowedKStream[K, V]:
        """Set when results are emitted. Changes this object, as in Kafka Streams, and returns it."""
        self._on_close = checked_strategy(strategy).on_close
        return self

    def count(
        self, store: StoreOrNamed[K, int] = None, materialized: MaterializedOrStr[K, int] = None, *, named: NamedOrStr = None
    ) -> KTable[Windowed[K], int]:
        """Count the records of each key and session (LONG)."""
        self._groups._advance_for_unnamed_count(store, materialized)
        return self._aggregate("KSTREAM-AGGREGATE-", lambda _: (zero, counted, _sum), LONG, node_and_store(store, materialized, named))

    def reduce(
        self,
        reducer: Reducer[V],
        store: StoreOrNamed[K, V] = None,
        materialized: MaterializedOrStr[K, V] = None,
        *,
        named: NamedOrStr = None,
    ) -> KTable[Windowed[K], V]:
        """Combine the values of each key and session by `reducer(aggregate, value)`; the first value is the first aggregate. The reducer
        also merges the aggregates of two sessions."""

        def functions(node: str) -> tuple[Callable[[], object], Callable[..., object], Callable[..., object]]:
            reduce = reducing(checked(reducer, node, *REDUCER))
            return nothing, reduce, lambda key, one, other: reduce(key, other, one)

        return self._aggregate("KSTREAM-REDUCE-", functions, self._groups._how.value, node_and_store(store, materialized, named))

    def aggregate(
        self,
        initializer: Initializer[VR],
        aggregator: Aggregator[K, V, VR],
        session_merger: Merger[K, VR],
        store: StoreOrNamed[K, VR] = None,
        materialized: MaterializedOrStr[K, VR] = None,
        *,
        value: Serde[VR] | None = None,
        named: NamedOrStr = None,
    ) -> KTable[Windowed[K], VR]:
        """Aggregate the records of each key and session. `aggregator(key, value, aggregate)` makes a session of each record, starting with
        `initializer()`; `session_merger(key, aggregate, other)` merges it with the sessions that the record joins."""

        def functions(node: str) -> tuple[Callable[[], object], Callable[..., object], Callable[..., object]]:
            return checked(initializer, node), checked(aggregator, node, *AGGREGATOR), checked(session_merger, node, *MERGER)

        return self._aggregate("KSTREAM-AGGREGATE-", functions, None, node_and_store(store, materialized, named, value))


def _sum(key: object, one: int, other: int) -> int:
    """Merge the counts of two sessions."""
    return one + other
