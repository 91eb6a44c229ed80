"""KTable and KGroupedTable: the latest value per key (Kafka Streams' classes of the same names)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Generic, overload

from penstock.runtime.dsl.aggregates import (
    AGGREGATOR,
    REDUCER,
    Aggregator,
    Initializer,
    MakeOperator,
    NodeAndStore,
    Reducer,
    aggregate_table,
)
from penstock.runtime.dsl.graph import Graph, Repartition, TableNode
from penstock.runtime.dsl.joins import join_foreign, join_tables
from penstock.runtime.dsl.options import (
    Grouped,
    GroupedOrStr,
    Materialized,
    MaterializedOrStr,
    Named,
    NamedOrStr,
    StoreOrNamed,
    TableJoinedOrStr,
    grouped_of,
    materialized_of,
    name_of,
    named_and_stores,
    node_and_store,
)
from penstock.runtime.dsl.signatures import with_overloads
from penstock.runtime.dsl.stores import buffer_store, key_value_store
from penstock.runtime.dsl.windows import Suppressed
from penstock.runtime.model.arity import checked, takes_key
from penstock.runtime.model.errors import TopologyError
from penstock.runtime.model.type_variables import KR, VO, VR, K, K_co, V, V_co
from penstock.runtime.operators.aggregate import TableAggregate, TableCount, TableReduce
from penstock.runtime.operators.base import OperatorSupplier
from penstock.runtime.operators.suppress import Suppress
from penstock.runtime.operators.table import TableFilter, TableGroupBy, TableMapValues, ToStream
from penstock.runtime.operators.transform_values import MakesValueTransformer, TableTransformValues
from penstock.runtime.serdes import LONG
from penstock.runtime.serdes.internal import ChangedSerde
from penstock.runtime.serdes.serde import Serde, wrapped
from penstock.runtime.topology.checks import check_supplier

if TYPE_CHECKING:
    from penstock.runtime.dsl.kstream import KStream


@dataclass(frozen=True, slots=True)
class KTable(TableNode[K_co, V_co]):
    """A table of keys K and rows V; made by `StreamsBuilder.table` and by aggregations. Every method adds a node and returns a new table or
    stream."""

    @classmethod
    def _of(cls, table: TableNode[K, V]) -> KTable[K, V]:
        """Give a node of the graph the operations of a table."""
        return KTable(*(getattr(table, each.name) for each in fields(table)))

    def filter(
        self,
        predicate: Callable[[K_co, V_co], object],
        named: NamedOrStr | Materialized[K_co, V_co] = None,
        materialized: MaterializedOrStr[K_co, V_co] = None,
    ) -> KTable[K_co, V_co]:
        """Keep the rows for which `predicate(key, value)` is true. A row that stops matching is deleted."""
        return self._filter(predicate, named, materialized, negate=False)

    def filter_not(
        self,
        predicate: Callable[[K_co, V_co], object],
        named: NamedOrStr | Materialized[K_co, V_co] = None,
        materialized: MaterializedOrStr[K_co, V_co] = None,
    ) -> KTable[K_co, V_co]:
        """Keep the rows for which `predicate(key, value)` is false. A row that starts matching is deleted."""
        return self._filter(predicate, named, materialized, negate=True)

    def _filter(
        self,
        predicate: Callable[[K_co, V_co], object],
        named: NamedOrStr | Materialized[K_co, V_co],
        materialized: MaterializedOrStr[K_co, V_co],
        *,
        negate: bool,
    ) -> KTable[K_co, V_co]:
        def supplier(node: str, store: str | None) -> OperatorSupplier:
            return TableFilter(checked(predicate, node, "key", "value"), store, negate, self.versioned, self._sends_old_values())

        return self._derived("KTABLE-FILTER-", supplier, self._value, named, materialized)

    @overload
    def map_values(
        self,
        mapper: Callable[[V_co], VR],
        named: NamedOrStr | Materialized[K_co, VR] = None,
        materialized: MaterializedOrStr[K_co, VR] = None,
    ) -> KTable[K_co, VR]: ...

    @overload
    def map_values(
        self,
        mapper: Callable[[K_co, V_co], VR],
        named: NamedOrStr | Materialized[K_co, VR] = None,
        materialized: MaterializedOrStr[K_co, VR] = None,
    ) -> KTable[K_co, VR]: ...

    def map_values(
        self,
        mapper: Callable[..., VR],
        named: NamedOrStr | Materialized[K_co, VR] = None,
        materialized: MaterializedOrStr[K_co, VR] = None,
    ) -> KTable[K_co, VR]:
        """Replace the value of each row by the result of `mapper(value)` or `mapper(key, value)`."""

        def supplier(node: str, store: str | None) -> OperatorSupplier:
            return TableMapValues(mapper, takes_key(mapper, 1, node), store, self.versioned)

        return self._derived("KTABLE-MAPVALUES-", supplier, None, named, materialized)

    def _derived(
        self,
        prefix: str,
        supplier: Callable[[str, str | None], OperatorSupplier],
        value: Serde[VR] | None,
        named: NamedOrStr | Materialized[K_co, VR],
        materialized: MaterializedOrStr[K_co, VR],
    ) -> KTable[K_co, VR]:
        """Add a table computed from this one. It has its own store only if `materialized` names one."""
        if isinstance(named, Materialized):  # Kafka Streams has the overload without a name
            named, materialized = None, named
        graph, how = self._graph, materialized_of(materialized)
        key, value = how.key or self._key, how.value or value
        store = how.name
        if store is not None:
            graph.topology.add_store_factory(store, key_value_store(store, how, key, value))
        elif materialized is not None:
            graph.store_name(prefix, how)  # advances the counter although there is no store, as Kafka Streams does
        name = graph.name(prefix, named)
        graph.operator(name, supplier(name, store), (self.node,), () if store is None else (store,))
        versioned = self.versioned if materialized is None else how.versioned
        return KTable(graph, name, key, value, self.sources, store, store is not None, self, versioned=versioned, history=how.history_ms)

    def transform_values(
        self,
        transformer_supplier: MakesValueTransformer[K_co, V_co, VR],
        *state_store_names: str | Named | Materialized[K_co, VR],
        materialized: MaterializedOrStr[K_co, VR] = None,
        named: NamedOrStr = None,
    ) -> KTable[K_co, VR]:
        """Replace the value of each row by a `ValueTransformerWithKey`, which may use stores (connected by name, or declared by its
        supplier) and is called for deletions too. The result has its own store only if `materialized` names one. The first of
        `state_store_names` may be a `Materialized` and a `Named`, as in Kafka Streams."""
        if materialized is None and state_store_names and isinstance(state_store_names[0], Materialized):
            materialized, state_store_names = state_store_names[0], state_store_names[1:]
        named, connected = named_and_stores(named, state_store_names)
        graph, how = self._graph, materialized_of(materialized)
        store, key = how.name, how.key or self._key
        if store is not None:
            graph.topology.add_store_factory(store, key_value_store(store, how, key, how.value))
        name = graph.name("KTABLE-TRANSFORMVALUES-", named)
        check_supplier(name, transformer_supplier, "transform")
        supplied = [builder.name for builder in graph.topology.add_stores_of(transformer_supplier)]
        supplier = TableTransformValues(transformer_supplier, store, self.versioned)
        stores = (*(() if store is None else (store,)), *supplied, *connected)
        graph.operator(name, supplier, (self.node,), stores)
        versioned = self.versioned if materialized is None else how.versioned
        table = KTable(graph, name, key, how.value, self.sources, store, store is not None, self)
        return replace(table, versioned=versioned, history=how.history_ms)

    @overload
    def to_stream(self, mapper: NamedOrStr = None, named: NamedOrStr = None) -> KStream[K_co, V_co]: ...

    @overload
    def to_stream(self, mapper: Callable[[K_co, V_co], KR], named: NamedOrStr = None) -> KStream[KR, V_co]: ...

    def to_stream(
        self, mapper: Callable[[K_co, V_co], KR] | NamedOrStr = None, named: NamedOrStr = None
    ) -> KStream[KR, V_co] | KStream[K_co, V_co]:
        """Return the new values of the table's changes as a stream, with the key that `mapper(key, value)` returns if it is given."""
        if mapper is not None and not callable(mapper):  # Kafka Streams has the overload with a name alone
            mapper, named = None, mapper
        from penstock.runtime.dsl.kstream import KStream  # a stream and a table each have a method that returns the other

        name = self._graph.operator(self._graph.name("KTABLE-TOSTREAM-", named), ToStream(), (self.node,))
        stream = KStream(self._graph, name, self._key, self._value, self.sources)
        return stream if mapper is None else stream.select_key(mapper)

    def suppress(self, suppressed: Suppressed) -> KTable[K_co, V_co]:
        """Hold back changes: `suppress(Suppressed.until_window_closes(Suppressed.BufferConfig.unbounded()))`. Raises TopologyError for a
        versioned table, and for `until_window_closes` on a table without windows."""
        if not isinstance(suppressed, Suppressed):
            raise TopologyError(f"suppress: expected Suppressed.until_window_closes(...) or until_time_limit(...), not {suppressed!r}")
        if self.versioned:
            raise TopologyError(f"table {self.node} is versioned: only tables without history can be suppressed")
        graph, limits, wait_ms = self._graph, suppressed.buffer, suppressed.wait_ms
        name = suppressed.name or graph.name("KTABLE-SUPPRESS-")
        wait = graph.window_grace_ms(self.node) if wait_ms is None else wait_ms
        buffer = graph.store_name("KTABLE-SUPPRESS-", Materialized(None if suppressed.name is None else f"{suppressed.name}-store"))
        self.readable_stores()  # a change must carry the old value, from which the buffer takes the one sent downstream last
        graph.topology.add_store_factory(buffer, buffer_store(buffer, limits.logging, self._key, self._value))
        supplier = Suppress(buffer, wait, wait_ms is None, limits.records, limits.bytes, limits.emits_early)
        graph.operator(name, supplier, (self.node,), (buffer,))
        return KTable(graph, name, self._key, self._value, self.sources, _parent=self, _buffer=buffer)

    def group_by(
        self,
        selector: Callable[[K_co, V_co], tuple[KR, VR] | None],
        grouped: GroupedOrStr[KR, VR] = None,
        *,
        key: Serde[KR] | None = None,
        value: Serde[VR] | None = None,
    ) -> KGroupedTable[KR, VR]:
        """Group the rows by `selector(key, value)`, which returns a new key and value, or None to leave the row out. `key` and `value` are
        their serdes."""
        how = grouped_of(grouped, key, value)
        self.readable_stores()  # a change must carry the old row, so that it can be removed from its old group
        name = self._graph.name("KTABLE-SELECT-", how.name)
        self._graph.operator(name, TableGroupBy(checked(selector, name, "key", "value"), self.versioned), (self.node,))
        return KGroupedTable(self._graph, name, how)

    # -- joins -------------------------------------------------------------------------------------------------------------------

    @overload
    def join(
        self,
        other: KTable[K_co, VO],
        joiner: Callable[[V_co, VO], VR],
        named: NamedOrStr | Materialized[K_co, VR] = None,
        materialized: MaterializedOrStr[K_co, VR] = None,
    ) -> KTable[K_co, VR]: ...

    @overload
    def join(
        self,
        other: KTable[KR, VO],
        foreign_key_extractor: Callable[[V_co], KR | None],
        joiner: Callable[[V_co, VO], VR],
        table_joined: TableJoinedOrStr | Materialized[K_co, VR] = None,
        materialized: MaterializedOrStr[K_co, VR] = None,
    ) -> KTable[K_co, VR]: ...

    @overload
    def join(
        self,
        other: KTable[KR, VO],
        foreign_key_extractor: Callable[[K_co, V_co], KR | None],
        joiner: Callable[[V_co, VO], VR],
        table_joined: TableJoinedOrStr | Materialized[K_co, VR] = None,
        materialized: MaterializedOrStr[K_co, VR] = None,
    ) -> KTable[K_co, VR]: ...

    @with_overloads
    def join(self, other: KTable, *arguments: object, **keywords: object) -> KTable:
        """Join the rows of two tables; `joiner` takes `(left, right)` or `(key, left, right)`. A row without a partner has no result.

        By key: `join(table, joiner, named=None, materialized=None)`; both must have the same number of partitions. By a foreign key:
        `join(table, foreign_key_extractor, joiner, table_joined=None, materialized=None)`, where `foreign_key_extractor(value)` or
        `(key, value)` returns the other table's key, or None to leave the row out. Results have this table's keys.
        """
        return self._join(other, arguments, keywords, left=False)

    @overload
    def left_join(
        self,
        other: KTable[K_co, VO],
        joiner: Callable[[V_co, VO | None], VR],
        named: NamedOrStr | Materialized[K_co, VR] = None,
        materialized: MaterializedOrStr[K_co, VR] = None,
    ) -> KTable[K_co, VR]: ...

    @overload
    def left_join(
        self,
        other: KTable[KR, VO],
        foreign_key_extractor: Callable[[V_co], KR | None],
        joiner: Callable[[V_co, VO | None], VR],
        table_joined: TableJoinedOrStr | Materialized[K_co, VR] = None,
        materialized: MaterializedOrStr[K_co, VR] = None,
    ) -> KTable[K_co, VR]: ...

    @overload
    def left_join(
        self,
        other: KTable[KR, VO],
        foreign_key_extractor: Callable[[K_co, V_co], KR | None],
        joiner: Callable[[V_co, VO | None], VR],
        table_joined: TableJoinedOrStr | Materialized[K_co, VR] = None,
        materialized: MaterializedOrStr[K_co, VR] = None,
    ) -> KTable[K_co, VR]: ...

    @with_overloads
    def left_join(self, other: KTable, *arguments: object, **keywords: object) -> KTable:
        """As `join`; a row of this table without a partner is joined with None."""
        return self._join(other, arguments, keywords, left=True)

    def outer_join(
        self,
        other: KTable[K_co, VO],
        joiner: Callable[[V_co | None, VO | None], VR],
        named: NamedOrStr | Materialized[K_co, VR] = None,
        materialized: MaterializedOrStr[K_co, VR] = None,
    ) -> KTable[K_co, VR]:
        """As `left_join` by key; a row of the other table without a partner is joined with None as well."""
        return KTable._of(join_tables(self, other, joiner, named, materialized, of_left=True, of_right=True))

    def _join(self, other: KTable, arguments: tuple[object, ...], keywords: dict[str, object], *, left: bool) -> KTable:
        foreign = "foreign_key_extractor" in keywords or (arguments and "joiner" in keywords) or (arguments[1:] and callable(arguments[1]))
        # The overloads declare the arguments.
        if foreign:
            return KTable._of(join_foreign(self, other, *arguments, left_join=left, **keywords))  # type: ignore[arg-type]
        return KTable._of(join_tables(self, other, *arguments, of_left=left, of_right=False, **keywords))  # type: ignore[arg-type]


@dataclass(slots=True)
class KGroupedTable(Generic[K, V]):
    """Rows grouped by a new key, made by `KTable.group_by`. A changed row is removed from its old group before it is added to the new
    one."""

    _graph: Graph
    _node: str
    _how: Grouped[K, V]
    _source: str | None = field(default=None, init=False)

    def count(
        self, store: StoreOrNamed[K, int] = None, materialized: MaterializedOrStr[K, int] = None, *, named: NamedOrStr = None
    ) -> KTable[K, int]:
        """Count the rows of each key (LONG)."""
        return self._aggregate(
            "KTABLE-AGGREGATE-", lambda _node, store: TableCount(store), LONG, node_and_store(store, materialized, named)
        )

    def reduce(
        self,
        adder: Reducer[V],
        subtractor: Reducer[V],
        store: StoreOrNamed[K, V] = None,
        materialized: MaterializedOrStr[K, V] = None,
        *,
        named: NamedOrStr = None,
    ) -> KTable[K, V]:
        """Combine the values of each key by `adder(aggregate, new value)` and `subtractor(aggregate, old value)`; the first value is the
        first aggregate."""

        def make(node: str, store: str) -> OperatorSupplier:
            return TableReduce(store, checked(adder, node, *REDUCER), checked(subtractor, node, *REDUCER))

        return self._aggregate("KTABLE-REDUCE-", make, self._how.value, node_and_store(store, materialized, named))

    def aggregate(
        self,
        initializer: Initializer[VR],
        adder: Aggregator[K, V, VR],
        subtractor: Aggregator[K, V, VR],
        store: StoreOrNamed[K, VR] = None,
        materialized: MaterializedOrStr[K, VR] = None,
        *,
        value: Serde[VR] | None = None,
        named: NamedOrStr = None,
    ) -> KTable[K, VR]:
        """Aggregate the rows of each key by `adder(key, new value, aggregate)` and `subtractor(key, old value, aggregate)`, starting with
        `initializer()`."""

        def make(node: str, store: str) -> OperatorSupplier:
            add, subtract = checked(adder, node, *AGGREGATOR), checked(subtractor, node, *AGGREGATOR)
            return TableAggregate(store, checked(initializer, node), add, subtract)

        return self._aggregate("KTABLE-AGGREGATE-", make, None, node_and_store(store, materialized, named, value))

    def _aggregate(
        self,
        prefix: str,
        make: MakeOperator,
        value: Serde[VR] | None,
        kept: NodeAndStore,
    ) -> KTable[K, VR]:
        named, how = kept
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
            self._source = graph.internal_topic(
                self._node, sink, source, topic, Repartition(topic, grouped.key, wrapped(grouped.value, ChangedSerde))
            )
        graph.topology.add_store_factory(store, key_value_store(store, how, key, value))
        graph.operator(name, supplier, (self._source,), (store,))
        return KTable._of(aggregate_table(graph, name, key, value, frozenset((self._source,)), store, how))
