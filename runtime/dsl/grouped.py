"""Groups of records and of rows, and what is aggregated over them (`KGroupedStream`, `TimeWindowedKStream`, `KGroupedTable`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeAlias

from runtime.dsl.arity import checked
from runtime.dsl.graph import Graph, Repartition, key_value_store, window_store
from runtime.dsl.ktable import KTable
from runtime.dsl.options import Grouped, Materialized, MaterializedOrStr, NamedOrStr, materialized_of, name_of
from runtime.dsl.windows import TimeWindows
from runtime.operators.aggregate import StreamAggregate, StreamCount, StreamReduce, TableAggregate, TableCount, TableReduce
from runtime.operators.base import OperatorSupplier
from runtime.operators.windowed import WindowAggregate, WindowCount, WindowReduce
from runtime.record import Windowed
from runtime.serdes import LONG, time_windowed
from runtime.serdes.changed import ChangedSerde
from runtime.serdes.serde import Serde
from runtime.topology.nodes import wrapped
from runtime.topology.topology import StoreFactory
from runtime.type_variables import KR, VR, K, V

Initializer: TypeAlias = Callable[[], VR]
Aggregator: TypeAlias = Callable[[K, V, VR], VR | None]
"""Takes (key, value, aggregate)."""
Reducer: TypeAlias = Callable[[V, V], V | None]
"""Takes (aggregate, value)."""
Make = Callable[[str, str], OperatorSupplier]
"""Makes the operator of an aggregate, given the names of its node and store. Raises TopologyError for functions that do not fit."""

_AGGREGATOR = ("key", "value", "aggregate")
_REDUCER = ("aggregate", "value")


def _shifted(named: NamedOrStr | Materialized, materialized: MaterializedOrStr) -> tuple[NamedOrStr, Materialized]:
    """Kafka Streams has the overload without a name: `count(Materialized(…))`."""
    if isinstance(named, Materialized):
        return None, named
    return named, materialized_of(materialized)


def _unnamed_count(graph: Graph, named: NamedOrStr | Materialized, materialized: MaterializedOrStr) -> None:
    """Draws one number more where a count's store is configured and not named, as Kafka Streams does."""
    configured = isinstance(named, Materialized) or materialized is not None
    if configured and _shifted(named, materialized)[1].name is None:
        graph.store_name("KSTREAM-AGGREGATE-", Materialized())


class _Groups(Generic[K, V]):
    """Where an aggregate of grouped records hangs: behind a repartition topic if the key was changed."""

    def __init__(self, graph: Graph, node: str, how: Grouped[K, V], sources: frozenset[str], repartition: bool) -> None:
        self.graph = graph
        self.how = how
        self._node = node
        self._sources = sources
        self._repartition = repartition
        self._source: str | None = None

    def _parent(self, store: str) -> tuple[str, frozenset[str]]:
        """The node above the aggregate, and its sources. A repartition topic with a name of its own is shared by all aggregates."""
        if not self._repartition:
            return self._node, self._sources
        shared = None if self.how.name is None else self._source
        through = Repartition(self.how.name or store, self.how.key, self.how.value)
        self._source = self.graph.repartition(self._node, through, shared)
        if shared is not None:
            self.graph.topology.move_to_end(shared)
        return self._source, frozenset((self._source,))

    def aggregate(
        self,
        prefix: str,
        named: NamedOrStr,
        store: tuple[str, StoreFactory],
        make: Make,
        serdes: tuple[Serde[KR] | None, Serde[VR] | None],
        materialized: Materialized,
    ) -> KTable[KR, VR]:
        """Adds the aggregate with its store (name and factory); `serdes` are those of the resulting table."""
        name = self.graph.name(prefix, named)
        supplier = make(name, store[0])
        above, sources = self._parent(store[0])
        self.graph.topology.add_store_factory(*store)
        self.graph.operator(name, supplier, (above,), store[:1])
        return KTable(self.graph, name, *serdes, sources, store[0], materialized.name is not None)


class KGroupedStream(Generic[K, V]):
    """Records grouped by key, made by `group_by` and `group_by_key`. Records without key or value are dropped and counted."""

    def __init__(self, graph: Graph, node: str, how: Grouped[K, V], sources: frozenset[str], repartition: bool) -> None:
        self._groups = _Groups(graph, node, how, sources, repartition)

    def count(self, named: NamedOrStr | Materialized[K, int] = None, materialized: MaterializedOrStr[K, int] = None) -> KTable[K, int]:
        """The number of records per key (LONG)."""
        _unnamed_count(self._groups.graph, named, materialized)
        return self._aggregate("KSTREAM-AGGREGATE-", lambda _node, store: StreamCount(store), LONG, named, materialized)

    def reduce(
        self, reducer: Reducer[V], named: NamedOrStr | Materialized[K, V] = None, materialized: MaterializedOrStr[K, V] = None
    ) -> KTable[K, V]:
        """`reducer(aggregate, value)`, begun with the first value of a key."""

        def make(node: str, store: str) -> OperatorSupplier:
            return StreamReduce(store, checked(reducer, node, *_REDUCER))

        return self._aggregate("KSTREAM-REDUCE-", make, self._groups.how.value, named, materialized)

    def aggregate(
        self,
        initializer: Initializer[VR],
        aggregator: Aggregator[K, V, VR],
        named: NamedOrStr | Materialized[K, VR] = None,
        materialized: MaterializedOrStr[K, VR] = None,
    ) -> KTable[K, VR]:
        """`aggregator(key, value, aggregate)`, begun with `initializer()` per key. An aggregate of None deletes the row."""

        def make(node: str, store: str) -> OperatorSupplier:
            return StreamAggregate(store, checked(initializer, node), checked(aggregator, node, *_AGGREGATOR))

        return self._aggregate("KSTREAM-AGGREGATE-", make, None, named, materialized)

    def _aggregate(
        self,
        prefix: str,
        make: Make,
        value: Serde[VR] | None,
        named: NamedOrStr | Materialized[K, VR],
        materialized: MaterializedOrStr[K, VR],
    ) -> KTable[K, VR]:
        named, how = _shifted(named, materialized)
        groups = self._groups
        key, value = how.key or groups.how.key, how.value or value
        store = groups.graph.store_name(prefix, how)
        return groups.aggregate(prefix, named, (store, key_value_store(store, how, key, value)), make, (key, value), how)

    def windowed_by(self, windows: TimeWindows) -> TimeWindowedKStream[K, V]:
        """Groups by window as well."""
        return TimeWindowedKStream(self._groups, windows)


@dataclass(frozen=True, slots=True)
class TimeWindowedKStream(Generic[K, V]):
    """Records grouped by key and window; a late record, whose windows are over, is dropped and counted. Results have `Windowed` keys."""

    _groups: _Groups[K, V]
    _windows: TimeWindows

    def count(
        self, named: NamedOrStr | Materialized[K, int] = None, materialized: MaterializedOrStr[K, int] = None
    ) -> KTable[Windowed[K], int]:
        """The number of records per key and window (LONG)."""
        _unnamed_count(self._groups.graph, named, materialized)
        return self._aggregate("KSTREAM-AGGREGATE-", lambda _node, store: WindowCount(store, self._windows), LONG, named, materialized)

    def reduce(
        self, reducer: Reducer[V], named: NamedOrStr | Materialized[K, V] = None, materialized: MaterializedOrStr[K, V] = None
    ) -> KTable[Windowed[K], V]:
        """`reducer(aggregate, value)`, begun with the first value of a key in a window."""

        def make(node: str, store: str) -> OperatorSupplier:
            return WindowReduce(store, self._windows, checked(reducer, node, *_REDUCER))

        return self._aggregate("KSTREAM-REDUCE-", make, self._groups.how.value, named, materialized)

    def aggregate(
        self,
        initializer: Initializer[VR],
        aggregator: Aggregator[K, V, VR],
        named: NamedOrStr | Materialized[K, VR] = None,
        materialized: MaterializedOrStr[K, VR] = None,
    ) -> KTable[Windowed[K], VR]:
        """`aggregator(key, value, aggregate)`, begun with `initializer()` per key and window."""

        def make(node: str, store: str) -> OperatorSupplier:
            return WindowAggregate(store, self._windows, checked(initializer, node), checked(aggregator, node, *_AGGREGATOR))

        return self._aggregate("KSTREAM-AGGREGATE-", make, None, named, materialized)

    def _aggregate(
        self,
        prefix: str,
        make: Make,
        value: Serde[VR] | None,
        named: NamedOrStr | Materialized[K, VR],
        materialized: MaterializedOrStr[K, VR],
    ) -> KTable[Windowed[K], VR]:
        named, how = _shifted(named, materialized)
        groups, windows = self._groups, self._windows
        inner, value = how.key or groups.how.key, how.value or value
        store = groups.graph.store_name(prefix, how)
        factory = window_store(store, how, inner, value, windows.size_ms, windows.grace_ms)
        key = wrapped(inner, lambda serde: time_windowed(serde, windows.size_ms))
        return groups.aggregate(prefix, named, (store, factory), make, (key, value), how)


@dataclass(slots=True)
class KGroupedTable(Generic[K, V]):
    """Rows grouped by a new key, made by `KTable.group_by`. A row that changes leaves its old group before it enters the new one."""

    _graph: Graph
    _node: str
    _how: Grouped[K, V]
    _source: str | None = field(default=None, init=False)

    def count(self, named: NamedOrStr | Materialized[K, int] = None, materialized: MaterializedOrStr[K, int] = None) -> KTable[K, int]:
        """The number of rows per key (LONG)."""
        return self._aggregate("KTABLE-AGGREGATE-", lambda _node, store: TableCount(store), LONG, named, materialized)

    def reduce(
        self,
        adder: Reducer[V],
        subtractor: Reducer[V],
        named: NamedOrStr | Materialized[K, V] = None,
        materialized: MaterializedOrStr[K, V] = None,
    ) -> KTable[K, V]:
        """`adder(aggregate, new value)` and `subtractor(aggregate, old value)`, begun with the first value of a key."""

        def make(node: str, store: str) -> OperatorSupplier:
            return TableReduce(store, checked(adder, node, *_REDUCER), checked(subtractor, node, *_REDUCER))

        return self._aggregate("KTABLE-REDUCE-", make, self._how.value, named, materialized)

    def aggregate(
        self,
        initializer: Initializer[VR],
        adder: Aggregator[K, V, VR],
        subtractor: Aggregator[K, V, VR],
        named: NamedOrStr | Materialized[K, VR] = None,
        materialized: MaterializedOrStr[K, VR] = None,
    ) -> KTable[K, VR]:
        """`adder(key, new value, aggregate)` and `subtractor(key, old value, aggregate)`, begun with `initializer()` per key."""

        def make(node: str, store: str) -> OperatorSupplier:
            add, subtract = checked(adder, node, *_AGGREGATOR), checked(subtractor, node, *_AGGREGATOR)
            return TableAggregate(store, checked(initializer, node), add, subtract)

        return self._aggregate("KTABLE-AGGREGATE-", make, None, named, materialized)

    def _aggregate(
        self,
        prefix: str,
        make: Make,
        value: Serde[VR] | None,
        named: NamedOrStr | Materialized[K, VR],
        materialized: MaterializedOrStr[K, VR],
    ) -> KTable[K, VR]:
        named, how = _shifted(named, materialized)
        graph, grouped = self._graph, self._how
        key, value = how.key or grouped.key, how.value or value
        store = graph.store_name("KTABLE-AGGREGATE-", how)  # of a reduce too, as in Kafka Streams
        sink, source = graph.name("KSTREAM-SINK-", named, "-sink"), graph.name("KSTREAM-SOURCE-", named, "-source")
        name = graph.name(prefix, named)
        supplier = make(name, store)
        if self._source is not None and grouped.name is not None:
            graph.topology.move_to_end(self._source)
        else:
            topic = f"{name_of(grouped.name) or store}-repartition"
            self._source = graph.pipe(
                self._node, sink, source, topic, Repartition(topic, grouped.key, wrapped(grouped.value, ChangedSerde))
            )
        graph.topology.add_store_factory(store, key_value_store(store, how, key, value))
        graph.operator(name, supplier, (self._source,), (store,))
        return KTable(graph, name, key, value, frozenset((self._source,)), store, how.name is not None)
