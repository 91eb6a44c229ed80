"""Groups of records and of rows, and what is aggregated over them (`KGroupedStream`, `KGroupedTable`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, overload

from runtime.dsl.arity import checked
from runtime.dsl.cogrouped import Cogroup, CogroupedKStream
from runtime.dsl.graph import Graph, Repartition, key_value_store
from runtime.dsl.groups import AGGREGATOR, REDUCER, Aggregator, Groups, Initializer, Make, Reducer, shifted, unnamed_count
from runtime.dsl.ktable import KTable
from runtime.dsl.options import Grouped, Materialized, MaterializedOrStr, NamedOrStr, name_of
from runtime.dsl.session import SessionWindowedKStream
from runtime.dsl.windowed import TimeWindowedKStream
from runtime.dsl.windows import SessionWindows, SlidingWindows, Windows, checked_windows
from runtime.operators.aggregate import StreamAggregate, StreamCount, StreamReduce, TableAggregate, TableCount, TableReduce
from runtime.operators.base import OperatorSupplier
from runtime.serdes import LONG
from runtime.serdes.changed import ChangedSerde
from runtime.serdes.serde import Serde
from runtime.topology.nodes import wrapped
from runtime.type_variables import VR, K, V


class KGroupedStream(Generic[K, V]):
    """Records grouped by key, made by `group_by` and `group_by_key`. Records without key or value are dropped and counted."""

    def __init__(self, graph: Graph, node: str, how: Grouped[K, V], sources: frozenset[str], repartition: bool) -> None:
        self.groups: Groups[K, V] = Groups(graph, node, how, sources, repartition)

    def count(self, named: NamedOrStr | Materialized[K, int] = None, materialized: MaterializedOrStr[K, int] = None) -> KTable[K, int]:
        """The number of records per key (LONG)."""
        unnamed_count(self.groups.graph, named, materialized)
        return self._aggregate("KSTREAM-AGGREGATE-", lambda _node, store: StreamCount(store), LONG, named, materialized)

    def reduce(
        self, reducer: Reducer[V], named: NamedOrStr | Materialized[K, V] = None, materialized: MaterializedOrStr[K, V] = None
    ) -> KTable[K, V]:
        """`reducer(aggregate, value)`, begun with the first value of a key."""

        def make(node: str, store: str) -> OperatorSupplier:
            return StreamReduce(store, checked(reducer, node, *REDUCER))

        return self._aggregate("KSTREAM-REDUCE-", make, self.groups.how.value, named, materialized)

    def aggregate(
        self,
        initializer: Initializer[VR],
        aggregator: Aggregator[K, V, VR],
        named: NamedOrStr | Materialized[K, VR] = None,
        materialized: MaterializedOrStr[K, VR] = None,
    ) -> KTable[K, VR]:
        """`aggregator(key, value, aggregate)`, begun with `initializer()` per key. An aggregate of None deletes the row."""

        def make(node: str, store: str) -> OperatorSupplier:
            return StreamAggregate(store, checked(initializer, node), checked(aggregator, node, *AGGREGATOR))

        return self._aggregate("KSTREAM-AGGREGATE-", make, None, named, materialized)

    def _aggregate(
        self,
        prefix: str,
        make: Make,
        value: Serde[VR] | None,
        named: NamedOrStr | Materialized[K, VR],
        materialized: MaterializedOrStr[K, VR],
    ) -> KTable[K, VR]:
        named, how = shifted(named, materialized)
        groups = self.groups
        key, value = how.key or groups.how.key, how.value or value
        store = groups.graph.store_name(prefix, how)
        return groups.aggregate(prefix, named, (store, key_value_store(store, how, key, value)), make, (key, value), how)

    def cogroup(self, aggregator: Aggregator[K, V, VR]) -> CogroupedKStream[K, VR]:
        """Begins an aggregate of several grouped streams; `aggregator(key, value, aggregate)` is this one's."""
        return CogroupedKStream(Cogroup(self.groups, aggregator))

    @overload
    def windowed_by(self, windows: SessionWindows) -> SessionWindowedKStream[K, V]: ...

    @overload
    def windowed_by(self, windows: Windows | SlidingWindows) -> TimeWindowedKStream[K, V]: ...

    def windowed_by(self, windows: Windows | SlidingWindows | SessionWindows) -> TimeWindowedKStream[K, V] | SessionWindowedKStream[K, V]:
        """Groups by window as well: `TimeWindows`, `SlidingWindows`, `SessionWindows`, `UnlimitedWindows` or windows of one's own."""
        if isinstance(windows, SessionWindows):
            return SessionWindowedKStream(self.groups, windows)
        return TimeWindowedKStream(self.groups, checked_windows(windows))


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
            return TableReduce(store, checked(adder, node, *REDUCER), checked(subtractor, node, *REDUCER))

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
            add, subtract = checked(adder, node, *AGGREGATOR), checked(subtractor, node, *AGGREGATOR)
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
        named, how = shifted(named, materialized)
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
        return KTable(
            graph,
            name,
            key,
            value,
            frozenset((self._source,)),
            store,
            how.name is not None,
            versioned=how.versioned,
            history=how.history_ms,
        )
