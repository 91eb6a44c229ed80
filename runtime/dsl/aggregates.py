"""Shared parts of the aggregates of grouped and cogrouped streams: their callbacks, their operators, and their place in the graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeAlias

from penstock.runtime.dsl.graph import Graph, Repartition, TableNode
from penstock.runtime.dsl.options import Grouped, Materialized, MaterializedOrStr, NamedOrStr, materialized_of
from penstock.runtime.dsl.stores import table_key, table_store
from penstock.runtime.dsl.windows import AnyWindows, SessionWindows, SlidingWindows
from penstock.runtime.model.type_variables import VR, K, V
from penstock.runtime.operators.aggregate import StreamAggregate
from penstock.runtime.operators.base import OperatorSupplier
from penstock.runtime.operators.session import SessionAggregate
from penstock.runtime.operators.sliding import SlidingAggregate
from penstock.runtime.operators.windowed import WindowAggregate
from penstock.runtime.serdes.serde import Serde

Initializer: TypeAlias = Callable[[], VR]
Aggregator: TypeAlias = Callable[[K, V, VR], VR | None]
"""`(key, value, aggregate) -> aggregate`"""
Reducer: TypeAlias = Callable[[V, V], V | None]
"""`(aggregate, value) -> aggregate`"""
Merger: TypeAlias = Callable[[K, VR, VR], VR | None]
"""`(key, aggregate, other aggregate) -> aggregate`"""
AggregateFunctions: TypeAlias = (
    tuple[Callable[[], object], Callable[..., object]] | tuple[Callable[[], object], Callable[..., object], Callable[..., object]]
)
"""Initializer and aggregator; for sessions also the merger."""
NodeAndStore: TypeAlias = tuple[str | None, Materialized]
"""The name of an aggregate's node, if the user gave one, and how its table is stored (`node_and_store`)."""
MakeOperator = Callable[[str, str], OperatorSupplier]
"""Makes the operator of an aggregate from the names of its node and store. Raises TopologyError for callbacks with other parameters."""

AGGREGATOR = ("key", "value", "aggregate")
REDUCER = ("aggregate", "value")
MERGER = ("key", "aggregate", "other aggregate")


def name_and_materialized(named: NamedOrStr | Materialized, materialized: MaterializedOrStr) -> tuple[NamedOrStr, Materialized]:
    """Sort the arguments of Kafka Streams' overload without a name: `count(Materialized(…))`."""
    if isinstance(named, Materialized):
        return None, named
    return named, materialized_of(materialized)


def aggregate_operator(
    store: str,
    windows: AnyWindows | None,
    initializer: Callable[[], object],
    aggregator: Callable[..., object],
    merger: Callable[..., object] | None = None,
    *,
    on_close: bool = False,
    part: int = 0,
) -> OperatorSupplier:
    """Return the operator of an aggregate by key, window or session. `part` is the number of the stream in a cogroup."""
    match windows:
        case None:
            return StreamAggregate(store, initializer, aggregator)
        case SessionWindows():
            assert merger is not None
            gap, grace = windows.inactivity_gap, windows.grace_period_ms
            return SessionAggregate(store, gap, grace, initializer, aggregator, merger, on_close, part)
        case SlidingWindows():
            difference, grace = windows.time_difference_ms, windows.grace_period_ms
            return SlidingAggregate(store, difference, grace, initializer, aggregator, on_close, part)
    return WindowAggregate(store, windows, initializer, aggregator, on_close, part)


def closes_after_ms(windows: AnyWindows) -> int:
    """Return the time in ms after its end during which a window can still change."""
    if isinstance(windows, SessionWindows):
        return windows.inactivity_gap + windows.grace_period_ms
    return windows.grace_period_ms


class Groups(Generic[K, V]):
    """Records grouped by key. Their aggregates read a repartition topic if the key may have changed."""

    def __init__(self, graph: Graph, node: str, how: Grouped[K, V], sources: frozenset[str], repartition: bool) -> None:
        self._graph = graph
        self._how = how
        self._node = node
        self._sources = sources
        self._repartition = repartition
        self._source: str | None = None

    def _parent(self, store: str) -> tuple[str, frozenset[str]]:
        """Return the node above an aggregate with this store, and its sources. All aggregates share a repartition topic that the user
        named."""
        if not self._repartition:
            return self._node, self._sources
        shared = None if self._how.name is None else self._source
        self._source = self._graph.repartition(self._node, self._repartition_topic(store), shared)
        if shared is not None:
            self._graph.topology.move_to_end(shared)
        return self._source, frozenset((self._source,))

    def _repartition_topic(self, store: str) -> Repartition:
        return Repartition(self._how.name or store, self._how.key, self._how.value)

    def _advance_for_unnamed_count(self, *given: object) -> None:
        """Take a number more from the counter if a count's store is configured but not named, as Kafka Streams does."""
        if any(isinstance(each, Materialized) and each.name is None for each in given):
            self._graph.store_name("KSTREAM-AGGREGATE-", Materialized())

    def _add_aggregate(
        self,
        prefix: str,
        make: MakeOperator,
        value: Serde | None,
        kept: NodeAndStore,
        windows: AnyWindows | None = None,
    ) -> TableNode:
        """Add an aggregate and its store; return the table. `value` is the inherited serde of the aggregate."""
        named, how = kept
        graph, key, value = self._graph, how.key or self._how.key, how.value or value
        store = graph.store_name(prefix, how)
        factory = table_store(store, how, key, value, windows)
        name = graph.name(prefix, named)
        operator = make(name, store)
        if windows is not None:
            graph.closes_after(name, closes_after_ms(windows))
        parent, sources = self._parent(store)
        graph.topology.add_store_factory(store, factory)
        graph.operator(name, operator, (parent,), (store,))
        return aggregate_table(graph, name, table_key(key, windows), value, sources, store, how)


def aggregate_table(
    graph: Graph, node: str, key: Serde | None, value: Serde | None, sources: frozenset[str], store: str, how: Materialized
) -> TableNode:
    """Return the table of an aggregate's node."""
    return TableNode(graph, node, key, value, sources, store, how.name is not None, versioned=how.versioned, history=how.history_ms)
