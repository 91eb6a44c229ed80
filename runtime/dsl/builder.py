"""StreamsBuilder: where a topology begins (Kafka Streams' class of the same name)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import cast, overload

from runtime.config import StreamsConfig
from runtime.dsl.graph import Graph, key_value_store
from runtime.dsl.kstream import KStream
from runtime.dsl.ktable import GlobalKTable, KTable, TableRoot, table_from
from runtime.dsl.options import Consumed, ConsumedOrStr, Materialized, MaterializedOrStr, consumed_of, materialized_of
from runtime.errors import TopologyError
from runtime.operators.processor import MakesProcessor
from runtime.operators.table import TableSource
from runtime.optimizations import optimizations_of
from runtime.stores.base import EntryStore, StateStore, StoreBuilder
from runtime.stores.suppliers import Builder
from runtime.topology.draft import StoreFactory
from runtime.topology.optimization import optimize
from runtime.topology.topology import Topology
from runtime.type_variables import K, V

_NOT_NEEDED_TO_BUILD = {"application.id": "unnamed", "bootstrap.servers": "localhost:9092"}
"""What `KafkaStreams` must be told and `StreamsBuilder.build` need not."""


class StreamsBuilder:
    """Builds a topology from streams and tables. `build()` gives the topology; building starts nothing."""

    def __init__(self) -> None:
        self._graph = Graph()

    def stream(self, topics: str | Iterable[str] | re.Pattern[str], consumed: ConsumedOrStr[K, V] = None) -> KStream[K, V]:
        """The records of one or more topics, or of all whose whole name matches a compiled pattern, also of those that are made later.

        Streams of the same topics share one source. Raises TopologyError where the topics overlap without being the same, or a table
        reads one of them.
        """
        how = consumed_of(consumed)
        if not isinstance(topics, re.Pattern):
            if not isinstance(topics, Iterable):
                raise TopologyError(f"stream: a topic, several of them or a compiled pattern, not {topics!r}")
            topics = (topics,) if isinstance(topics, str) else tuple(topics)
        name = self._graph.stream(topics, how)
        return KStream(self._graph, name, how.key, how.value, frozenset((name,)))

    @overload
    def table(self, topic: str, consumed: Consumed[K, V], materialized: Materialized | str | None = None) -> KTable[K, V]: ...

    @overload
    def table(self, topic: str, consumed: Materialized[K, V]) -> KTable[K, V]: ...

    @overload
    def table(self, topic: str, consumed: str | None = None, materialized: MaterializedOrStr[K, V] = None) -> KTable[K, V]: ...

    def table(
        self, topic: str, consumed: ConsumedOrStr[K, V] | Materialized[K, V] = None, materialized: MaterializedOrStr[K, V] = None
    ) -> KTable[K, V]:
        """The latest value per key of a topic; a record without a value deletes its key, one without a key is dropped and counted.

        Without a name in `materialized` the rows are kept only if something reads them. Serdes of `consumed` come before those of
        `materialized`: the store's changelog has the topic's bytes.
        """
        graph, how, kept = self._graph, *_of_topic(consumed, materialized)
        root = TableRoot(graph.store_name(f"{topic}-", kept), kept)
        source = graph.source(graph.name("KSTREAM-SOURCE-", how.name, "-source"), (topic,), how)
        node = graph.name("KTABLE-SOURCE-", how.name)
        graph.hints.tables[node] = root.store, topic
        return table_from(graph, source, node, root)

    @overload
    def global_table(self, topic: str, consumed: Consumed[K, V], materialized: Materialized | str | None = None) -> GlobalKTable[K, V]: ...

    @overload
    def global_table(self, topic: str, consumed: Materialized[K, V]) -> GlobalKTable[K, V]: ...

    @overload
    def global_table(self, topic: str, consumed: str | None = None, materialized: MaterializedOrStr[K, V] = None) -> GlobalKTable[K, V]: ...

    def global_table(
        self, topic: str, consumed: ConsumedOrStr[K, V] | Materialized[K, V] = None, materialized: MaterializedOrStr[K, V] = None
    ) -> GlobalKTable[K, V]:
        """A table of which every instance keeps all partitions. The topic should be compacted: a store that must be rebuilt (KIP-406) holds
        what the topic still has, and retention by time would silently lose rows (`global.topic.compaction.check`)."""
        graph, how, kept = self._graph, *_of_topic(consumed, materialized)
        if kept.versioned:
            raise TopologyError(f"global table {topic}: its store cannot be versioned; every join reads the rows as they are now")
        store = graph.store_name(f"{topic}-", kept)
        source = graph.source(graph.name("KSTREAM-SOURCE-", how.name, "-source"), (topic,), how)
        node = graph.name("KTABLE-SOURCE-", how.name)
        graph.topology.add_store_factory(store, _global_store(key_value_store(store, kept, how.key, how.value)))
        graph.operator(node, TableSource(store), (source,), (store,))
        graph.topology.mark_global(source, node, store, own_processor=False)
        return GlobalKTable(store, graph)

    def add_state_store(self, builder: StoreBuilder[StateStore]) -> StreamsBuilder:
        """Adds a store, for processors to be connected to by its name."""
        self._graph.topology.add_state_store(builder)
        return self

    def add_global_store(
        self, builder: StoreBuilder[StateStore], topic: str, consumed: ConsumedOrStr[K, V], supplier: MakesProcessor[K, V]
    ) -> StreamsBuilder:
        """Adds a store that every instance keeps whole, filled from all partitions of `topic` by a processor of the user's. The topic
        should be compacted."""
        graph, how = self._graph, consumed_of(consumed)
        source = graph.name("KSTREAM-SOURCE-", how.name, "-source")
        graph.topology.add_global_store(
            builder,
            source,
            topic,
            graph.name("KTABLE-SOURCE-", how.name),
            supplier,
            key_serde=how.key,
            value_serde=how.value,
            timestamp_extractor=how.timestamp_extractor,
        )
        return self

    def build(self, config: Mapping[str, object] | StreamsConfig | None = None) -> Topology:
        """The topology. With a configuration it is optimized as `topology.optimization` says, and checked at once, as `KafkaStreams` does:
        raises TopologyError naming the node that lacks a serde. `{"topology.optimization": …}` alone will do, without a check."""
        if config is None:
            return self._graph.topology
        if not isinstance(config, StreamsConfig) and set(config) == {"topology.optimization"}:
            return self._optimized(optimizations_of(str(config["topology.optimization"])))
        settings = config if isinstance(config, StreamsConfig) else StreamsConfig({**_NOT_NEEDED_TO_BUILD, **config})
        topology = self._optimized(settings.optimizations)
        topology.resolved(settings)
        return topology

    def _optimized(self, wanted: frozenset[str]) -> Topology:
        if not wanted:
            return self._graph.topology
        draft = self._graph.topology.draft()
        optimize(draft, self._graph.hints, wanted)
        return self._graph.topology.redrawn(draft, wanted)


def _of_topic(
    consumed: ConsumedOrStr[K, V] | Materialized[K, V], materialized: MaterializedOrStr[K, V]
) -> tuple[Consumed[K, V], Materialized[K, V]]:
    """How a table's topic is read and its rows are kept, with the same serdes in both."""
    if isinstance(consumed, Materialized):  # Kafka Streams has the overload with it alone
        consumed, materialized = None, consumed
    how, kept = consumed_of(consumed), materialized_of(materialized)
    key, value = how.key or kept.key, how.value or kept.value
    return replace(how, key=key, value=value), replace(kept, key=key, value=value)


def _global_store(factory: StoreFactory) -> StoreFactory:
    """A global store is its own topic's copy: it needs no changelog, and its readers want every update at once."""
    return lambda key, value: cast(Builder[EntryStore], factory(key, value)).with_logging_disabled().with_caching_disabled()
