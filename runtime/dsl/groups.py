"""What the aggregates of grouped streams have in common, with windows or without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeAlias

from runtime.dsl.graph import Graph, Repartition
from runtime.dsl.ktable import KTable
from runtime.dsl.options import Grouped, Materialized, MaterializedOrStr, NamedOrStr, materialized_of
from runtime.operators.base import OperatorSupplier
from runtime.serdes.serde import Serde
from runtime.topology.draft import StoreFactory
from runtime.type_variables import KR, VR, K, V

Initializer: TypeAlias = Callable[[], VR]
Aggregator: TypeAlias = Callable[[K, V, VR], VR | None]
"""Takes (key, value, aggregate)."""
Reducer: TypeAlias = Callable[[V, V], V | None]
"""Takes (aggregate, value)."""
Merger: TypeAlias = Callable[[K, VR, VR], VR | None]
"""Takes (key, aggregate, other aggregate)."""
Make = Callable[[str, str], OperatorSupplier]
"""Makes the operator of an aggregate, given the names of its node and store. Raises TopologyError for functions that do not fit."""

AGGREGATOR = ("key", "value", "aggregate")
REDUCER = ("aggregate", "value")
MERGER = ("key", "aggregate", "other aggregate")


def shifted(named: NamedOrStr | Materialized, materialized: MaterializedOrStr) -> tuple[NamedOrStr, Materialized]:
    """Kafka Streams has the overload without a name: `count(Materialized(…))`."""
    if isinstance(named, Materialized):
        return None, named
    return named, materialized_of(materialized)


def unnamed_count(graph: Graph, named: NamedOrStr | Materialized, materialized: MaterializedOrStr) -> None:
    """Draws one number more where a count's store is configured and not named, as Kafka Streams does."""
    configured = isinstance(named, Materialized) or materialized is not None
    if configured and shifted(named, materialized)[1].name is None:
        graph.store_name("KSTREAM-AGGREGATE-", Materialized())


class Groups(Generic[K, V]):
    """Where an aggregate of grouped records hangs: behind a repartition topic if the key was changed."""

    def __init__(self, graph: Graph, node: str, how: Grouped[K, V], sources: frozenset[str], repartition: bool) -> None:
        self.graph = graph
        self.how = how
        self.node = node
        self.sources = sources
        self.repartition = repartition
        self._source: str | None = None

    def parent(self, store: str) -> tuple[str, frozenset[str]]:
        """The node above the aggregate, and its sources. A repartition topic with a name of its own is shared by all aggregates."""
        if not self.repartition:
            return self.node, self.sources
        shared = None if self.how.name is None else self._source
        self._source = self.graph.repartition(self.node, self.through(store), shared)
        if shared is not None:
            self.graph.topology.move_to_end(shared)
        return self._source, frozenset((self._source,))

    def through(self, store: str) -> Repartition:
        """The way to an aggregate with this store."""
        return Repartition(self.how.name or store, self.how.key, self.how.value)

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
        above, sources = self.parent(store[0])
        self.graph.topology.add_store_factory(*store)
        self.graph.operator(name, supplier, (above,), store[:1])
        return KTable(
            self.graph,
            name,
            *serdes,
            sources,
            store[0],
            materialized.name is not None,
            versioned=materialized.versioned,
            history=materialized.history_ms,
        )
