"""KTable and GlobalKTable: the latest value per key (Kafka Streams' classes of the same names)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Generic, overload

from runtime.dsl.arity import checked, takes_key
from runtime.dsl.graph import Graph, key_value_store
from runtime.dsl.kstream import KStream
from runtime.dsl.options import (
    GroupedOrStr,
    Materialized,
    MaterializedOrStr,
    Named,
    NamedOrStr,
    grouped_of,
    materialized_of,
    named_and_stores,
)
from runtime.dsl.suppressed import Suppressed, buffer_store
from runtime.dsl.table_joins import TableJoins
from runtime.errors import TopologyError
from runtime.operators.base import OperatorSupplier
from runtime.operators.suppress import Suppress
from runtime.operators.table import TableFilter, TableGroupBy, TableMapValues, TableSource, ToStream
from runtime.operators.transform_values import MakesValueTransformer, TableTransformValues
from runtime.serdes.serde import Serde
from runtime.topology.given import check_supplier
from runtime.type_variables import KR, VR, K, K_co, V, V_co

if TYPE_CHECKING:
    from runtime.dsl.grouped import KGroupedTable


@dataclass(frozen=True, slots=True)
class TableRoot:
    """How a table read straight from a topic gets its store, the first time that something needs one: until then it is a mere stream of
    changes, and has no changelog."""

    store: str
    materialized: Materialized
    from_topic: bool = True
    """Only what changes something is told (KIP-557)."""


@dataclass(frozen=True, slots=True)
class KTable(TableJoins[K_co, V_co]):
    """A table of keys K and rows V; made by `StreamsBuilder.table` and by aggregations. Every method adds a node and returns a new table or
    stream."""

    _graph: Graph
    node: str
    """Name of the node that is this table."""
    _key: Serde[K_co] | None
    _value: Serde[V_co] | None
    sources: frozenset[str]
    """Names of the source nodes that feed it."""
    _store: str | None = None
    _queryable: bool = False
    _parent: KTable | None = None
    _root: TableRoot | None = None
    _other: KTable | None = None
    """The second parent of a join."""
    _buffer: str | None = None
    """The buffer of a suppressed table."""
    versioned: bool = False
    """Its rows are kept with their history, or computed from such ones: changes that are not the latest of their key are marked."""
    history: int | None = None
    """For how long its own store keeps older rows, in ms."""

    @property
    def queryable_store_name(self) -> str | None:
        """The store's name, if it was given one."""
        return self._store if self._queryable else None

    @property
    def history_ms(self) -> int | None:
        """For how long its rows can be read as they were, in ms; None: only as they are now."""
        if self._store is not None or self._parent is None or self._other is not None:
            return self.history
        return self._parent.history_ms

    def _tells_old(self) -> bool:
        """Whether, as far as the topology is defined by now, its changes can carry old values."""
        if self._store is not None or self._other is not None:
            return True
        if self._parent is not None:
            return self._parent._tells_old()
        return self._root is not None and self._graph.topology.reads_store(self.node, self._root.store)

    def readable_stores(self) -> tuple[str, ...]:
        """The stores behind this table's rows; a table from a topic gets its store now."""
        if self._store is not None:
            return (self._store,)
        if self._parent is not None:
            others = () if self._other is None else self._other.readable_stores()
            buffers = () if self._buffer is None else (self._buffer,)
            return tuple(dict.fromkeys((*buffers, *self._parent.readable_stores(), *others)))
        assert self._root is not None, self.node
        topology = self._graph.topology
        if not topology.reads_store(self.node, self._root.store):
            topology.add_store_factory(self._root.store, key_value_store(self._root.store, self._root.materialized, self._key, self._value))
            topology.replace_operator(self.node, TableSource(self._root.store, self._root.from_topic), (self._root.store,))
        return (self._root.store,)

    def filter(
        self,
        predicate: Callable[[K_co, V_co], object],
        named: NamedOrStr | Materialized[K_co, V_co] = None,
        materialized: MaterializedOrStr[K_co, V_co] = None,
    ) -> KTable[K_co, V_co]:
        """The rows for which `predicate(key, value)` is true; a row that stops matching is deleted."""
        return self._filter(predicate, named, materialized, negate=False)

    def filter_not(
        self,
        predicate: Callable[[K_co, V_co], object],
        named: NamedOrStr | Materialized[K_co, V_co] = None,
        materialized: MaterializedOrStr[K_co, V_co] = None,
    ) -> KTable[K_co, V_co]:
        """The rows for which `predicate(key, value)` is false; a row that starts matching is deleted."""
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
            return TableFilter(checked(predicate, node, "key", "value"), store, negate, self.versioned, self._tells_old())

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
        """`mapper(value)` or `mapper(key, value)` gives the new value of each row."""

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
        """A table computed from this one: kept in a store of its own only where `materialized` names one."""
        if isinstance(named, Materialized):  # Kafka Streams has the overload without a name
            named, materialized = None, named
        graph, how = self._graph, materialized_of(materialized)
        key, value = how.key or self._key, how.value or value
        store = how.name
        if store is not None:
            graph.topology.add_store_factory(store, key_value_store(store, how, key, value))
        elif materialized is not None:
            graph.store_name(prefix, how)  # draws a number for a store that there is not, as Kafka Streams does
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
        """`map_values` by a `ValueTransformerWithKey`, which may use stores (connected by their names, or brought by the supplier) and is
        called for deletions too. A table that it makes has a store only where `materialized` names one. A `Materialized` and a `Named` may
        stand in front of the stores, as in Kafka Streams."""
        if materialized is None and state_store_names and isinstance(state_store_names[0], Materialized):
            materialized, state_store_names = state_store_names[0], state_store_names[1:]
        named, connected = named_and_stores(named, state_store_names)
        graph, how = self._graph, materialized_of(materialized)
        store, key = how.name, how.key or self._key
        if store is not None:
            graph.topology.add_store_factory(store, key_value_store(store, how, key, how.value))
        name = graph.name("KTABLE-TRANSFORMVALUES-", named)
        check_supplier(name, transformer_supplier, "transform")
        brought = [builder.name for builder in graph.topology.add_stores_of(transformer_supplier)]
        supplier = TableTransformValues(transformer_supplier, store, self.versioned)
        stores = (*(() if store is None else (store,)), *brought, *connected)
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
        """The changes of the table as a stream of its new values; `mapper(key, value)`, if given, gives each record a new key."""
        if mapper is not None and not callable(mapper):  # Kafka Streams has the overload with a name alone
            mapper, named = None, mapper
        name = self._graph.operator(self._graph.name("KTABLE-TOSTREAM-", named), ToStream(), (self.node,))
        stream = KStream(self._graph, name, self._key, self._value, self.sources)
        return stream if mapper is None else stream.select_key(mapper)

    def suppress(self, suppressed: Suppressed) -> KTable[K_co, V_co]:
        """The table with changes that wait: `suppress(Suppressed.until_window_closes(Suppressed.BufferConfig.unbounded()))`. Raises
        TopologyError for a versioned table, and where results of windows shall wait and there are none."""
        return suppressed_table(self, self._graph, suppressed)

    def group_by(
        self, selector: Callable[[K_co, V_co], tuple[KR, VR] | None], grouped: GroupedOrStr[KR, VR] = None
    ) -> KGroupedTable[KR, VR]:
        """Groups the rows by `selector(key, value)`, a pair of a new key and value; None leaves the row out."""
        from runtime.dsl.grouped import KGroupedTable

        how = grouped_of(grouped)
        self.readable_stores()  # a change must carry the old row, for it to be taken out of its old group
        name = self._graph.name("KTABLE-SELECT-", how.name)
        self._graph.operator(name, TableGroupBy(checked(selector, name, "key", "value"), self.versioned), (self.node,))
        return KGroupedTable(self._graph, name, how)


def suppressed_table(table: KTable[K, V], graph: Graph, how: Suppressed) -> KTable[K, V]:
    """`KTable.suppress`."""
    if not isinstance(how, Suppressed):
        raise TopologyError(f"suppress: expected Suppressed.until_window_closes(...) or until_time_limit(...), not {how!r}")
    if table.versioned:
        raise TopologyError(f"table {table.node} is versioned: only tables without history can be suppressed")
    name = how.name or graph.name("KTABLE-SUPPRESS-")
    wait = graph.window_grace_ms(table.node) if how.wait_ms is None else how.wait_ms
    buffer = graph.store_name("KTABLE-SUPPRESS-", Materialized(None if how.name is None else f"{how.name}-store"))
    table.readable_stores()  # a change must carry the old row, for what downstream knows to be known
    limits = how.buffer
    graph.topology.add_store_factory(buffer, buffer_store(buffer, limits.logging, table._key, table._value))
    supplier = Suppress(buffer, wait, how.wait_ms is None, limits.records, limits.bytes, limits.emits_early)
    graph.operator(name, supplier, (table.node,), (buffer,))
    return KTable(graph, name, table._key, table._value, table.sources, _parent=table, _buffer=buffer)


@dataclass(frozen=True, slots=True)
class GlobalKTable(Generic[K_co, V_co]):
    """A table of which every instance keeps the whole, for joins by any key. Made by `StreamsBuilder.global_table`."""

    queryable_store_name: str
    """The name of its store."""
    _graph: Graph = field(repr=False, compare=False)


def table_from(graph: Graph, above: str, node: str, root: TableRoot, sources: frozenset[str] | None = None) -> KTable:
    """The table whose changes are the records of the node `above`, by default a source. With a name it has its store at once."""
    graph.operator(node, TableSource(None), (above,))
    kept = root.materialized
    table = KTable(graph, node, kept.key, kept.value, sources or frozenset((above,)), None, False, None, root)
    if kept.name is None:
        return table
    table.readable_stores()
    return replace(table, _store=root.store, _queryable=True, versioned=kept.versioned, history=kept.history_ms)
