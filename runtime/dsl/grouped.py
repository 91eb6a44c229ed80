"""Groups of records and of rows, and what is aggregated over them (`KGroupedStream`, `TimeWindowedKStream`, `KGroupedTable`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from runtime.dsl.graph import Graph, Repartition, key_value_store, window_store
from runtime.dsl.ktable import KTable
from runtime.dsl.options import Grouped, Materialized, MaterializedOrStr, NamedOrStr, materialized_of
from runtime.dsl.windows import TimeWindows
from runtime.operators.aggregate import StreamAggregate, StreamCount, StreamReduce, TableAggregate, TableCount, TableReduce
from runtime.operators.base import OperatorSupplier
from runtime.operators.windowed import WindowAggregate, WindowCount, WindowReduce
from runtime.serdes import LONG, time_windowed
from runtime.serdes.changed import ChangedSerde
from runtime.serdes.serde import Serde
from runtime.topology.nodes import wrapped
from runtime.topology.topology import StoreFactory

Initializer = Callable[[], object]
Aggregator = Callable[[object, object, object], object]
Reducer = Callable[[object, object], object]


def _shifted(named: NamedOrStr | Materialized, materialized: MaterializedOrStr) -> tuple[NamedOrStr, Materialized]:
    """Kafka Streams has the overload without a name: `count(Materialized(…))`."""
    if isinstance(named, Materialized):
        return None, named
    return named, materialized_of(materialized)


class _Groups:
    """Where an aggregate of grouped records hangs: behind a repartition topic if the key was changed."""

    def __init__(self, graph: Graph, node: str, how: Grouped, sources: frozenset[str], repartition: bool) -> None:
        self.graph = graph
        self.how = how
        self._node = node
        self._sources = sources
        self._repartition = repartition
        self._source: str | None = None

    def parent(self, store: str) -> tuple[str, frozenset[str]]:
        """The node above the aggregate, and its sources. A repartition topic with a name of its own is shared by all aggregates."""
        if not self._repartition:
            return self._node, self._sources
        if self._source is None or self.how.name is None:
            self._source = self.graph.repartition(self._node, Repartition(self.how.name or store, self.how.key, self.how.value))
        return self._source, frozenset((self._source,))

    def aggregate(
        self,
        prefix: str,
        named: NamedOrStr,
        store: str,
        supplier: OperatorSupplier,
        factory: StoreFactory,
        serdes: tuple[Serde | None, Serde | None],
        materialized: Materialized,
    ) -> KTable:
        name = self.graph.name(prefix, named)
        above, sources = self.parent(store)
        self.graph.topology.add_store_factory(store, factory)
        self.graph.operator(name, supplier, (above,), (store,))
        return KTable(self.graph, name, *serdes, sources, store, materialized.name is not None)


class KGroupedStream:
    """Records grouped by key, made by `group_by` and `group_by_key`. Records without key or value are dropped and counted."""

    def __init__(self, graph: Graph, node: str, how: Grouped, sources: frozenset[str], repartition: bool) -> None:
        self._groups = _Groups(graph, node, how, sources, repartition)

    def count(self, named: NamedOrStr | Materialized = None, materialized: MaterializedOrStr = None) -> KTable:
        """The number of records per key (LONG)."""
        return self._aggregate("KSTREAM-AGGREGATE-", StreamCount, LONG, named, materialized)

    def reduce(self, reducer: Reducer, named: NamedOrStr | Materialized = None, materialized: MaterializedOrStr = None) -> KTable:
        """`reducer(aggregate, value)`, begun with the first value of a key."""
        return self._aggregate("KSTREAM-REDUCE-", lambda store: StreamReduce(store, reducer), self._groups.how.value, named, materialized)

    def aggregate(
        self,
        initializer: Initializer,
        aggregator: Aggregator,
        named: NamedOrStr | Materialized = None,
        materialized: MaterializedOrStr = None,
    ) -> KTable:
        """`aggregator(key, value, aggregate)`, begun with `initializer()` per key. An aggregate of None deletes the row."""
        return self._aggregate(
            "KSTREAM-AGGREGATE-", lambda store: StreamAggregate(store, initializer, aggregator), None, named, materialized
        )

    def _aggregate(
        self,
        prefix: str,
        make: Callable[[str], OperatorSupplier],
        value: Serde | None,
        named: NamedOrStr | Materialized,
        materialized: MaterializedOrStr,
    ) -> KTable:
        named, how = _shifted(named, materialized)
        groups = self._groups
        key, value = how.key or groups.how.key, how.value or value
        store = groups.graph.store_name(prefix, how)
        return groups.aggregate(prefix, named, store, make(store), key_value_store(store, how, key, value), (key, value), how)

    def windowed_by(self, windows: TimeWindows) -> TimeWindowedKStream:
        """Groups by window as well."""
        return TimeWindowedKStream(self._groups, windows)


@dataclass(frozen=True, slots=True)
class TimeWindowedKStream:
    """Records grouped by key and window; a late record, whose windows are over, is dropped and counted. Results have `Windowed` keys."""

    _groups: _Groups
    _windows: TimeWindows

    def count(self, named: NamedOrStr | Materialized = None, materialized: MaterializedOrStr = None) -> KTable:
        """The number of records per key and window (LONG)."""
        return self._aggregate("KSTREAM-AGGREGATE-", lambda store: WindowCount(store, self._windows), LONG, named, materialized)

    def reduce(self, reducer: Reducer, named: NamedOrStr | Materialized = None, materialized: MaterializedOrStr = None) -> KTable:
        """`reducer(aggregate, value)`, begun with the first value of a key in a window."""
        value = self._groups.how.value
        return self._aggregate("KSTREAM-REDUCE-", lambda store: WindowReduce(store, self._windows, reducer), value, named, materialized)

    def aggregate(
        self,
        initializer: Initializer,
        aggregator: Aggregator,
        named: NamedOrStr | Materialized = None,
        materialized: MaterializedOrStr = None,
    ) -> KTable:
        """`aggregator(key, value, aggregate)`, begun with `initializer()` per key and window."""
        return self._aggregate(
            "KSTREAM-AGGREGATE-", lambda store: WindowAggregate(store, self._windows, initializer, aggregator), None, named, materialized
        )

    def _aggregate(
        self,
        prefix: str,
        make: Callable[[str], OperatorSupplier],
        value: Serde | None,
        named: NamedOrStr | Materialized,
        materialized: MaterializedOrStr,
    ) -> KTable:
        named, how = _shifted(named, materialized)
        groups, windows = self._groups, self._windows
        inner, value = how.key or groups.how.key, how.value or value
        store = groups.graph.store_name(prefix, how)
        factory = window_store(store, how, inner, value, windows.size_ms, windows.grace_ms)
        key = wrapped(inner, lambda serde: time_windowed(serde, windows.size_ms))
        return groups.aggregate(prefix, named, store, make(store), factory, (key, value), how)


@dataclass(slots=True)
class KGroupedTable:
    """Rows grouped by a new key, made by `KTable.group_by`. A row that changes leaves its old group before it enters the new one."""

    _graph: Graph
    _node: str
    _how: Grouped
    _source: str | None = field(default=None, init=False)

    def count(self, named: NamedOrStr | Materialized = None, materialized: MaterializedOrStr = None) -> KTable:
        """The number of rows per key (LONG)."""
        return self._aggregate("KTABLE-AGGREGATE-", TableCount, LONG, named, materialized)

    def reduce(
        self, adder: Reducer, subtractor: Reducer, named: NamedOrStr | Materialized = None, materialized: MaterializedOrStr = None
    ) -> KTable:
        """`adder(aggregate, new value)` and `subtractor(aggregate, old value)`, begun with the first value of a key."""
        return self._aggregate("KTABLE-REDUCE-", lambda store: TableReduce(store, adder, subtractor), self._how.value, named, materialized)

    def aggregate(
        self,
        initializer: Initializer,
        adder: Aggregator,
        subtractor: Aggregator,
        named: NamedOrStr | Materialized = None,
        materialized: MaterializedOrStr = None,
    ) -> KTable:
        """`adder(key, new value, aggregate)` and `subtractor(key, old value, aggregate)`, begun with `initializer()` per key."""
        return self._aggregate(
            "KTABLE-AGGREGATE-", lambda store: TableAggregate(store, initializer, adder, subtractor), None, named, materialized
        )

    def _aggregate(
        self,
        prefix: str,
        make: Callable[[str], OperatorSupplier],
        value: Serde | None,
        named: NamedOrStr | Materialized,
        materialized: MaterializedOrStr,
    ) -> KTable:
        named, how = _shifted(named, materialized)
        graph = self._graph
        key, value = how.key or self._how.key, how.value or value
        store = graph.store_name(prefix, how)
        sink, source = graph.name("KSTREAM-SINK-", named, "-sink"), graph.name("KSTREAM-SOURCE-", named, "-source")
        name = graph.name(prefix, named)
        if self._source is None or self._how.name is None:
            topic = f"{self._how.name or store}-repartition"
            graph.pipe(self._node, sink, source, topic, Repartition(topic, self._how.key, wrapped(self._how.value, ChangedSerde)))
            self._source = source
        graph.topology.add_store_factory(store, key_value_store(store, how, key, value))
        graph.operator(name, make(store), (self._source,), (store,))
        return KTable(graph, name, key, value, frozenset((self._source,)), store, how.name is not None)
