"""StreamsBuilder: the start of every topology (Kafka Streams' class of the same name)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import cast, overload

from penstock.runtime.config.optimizations import optimizations_of
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.dsl.graph import GlobalKTable, Graph, TableRoot, table_from
from penstock.runtime.dsl.kstream import KStream
from penstock.runtime.dsl.ktable import KTable
from penstock.runtime.dsl.options import Consumed, ConsumedOrStr, Materialized, MaterializedOrStr, consumed_of, materialized_of
from penstock.runtime.dsl.stores import key_value_store
from penstock.runtime.model.errors import TopologyError
from penstock.runtime.model.type_variables import K, V
from penstock.runtime.operators.processor import MakesProcessor
from penstock.runtime.operators.table import TableSource
from penstock.runtime.serdes.serde import Serde
from penstock.runtime.stores.base import EntryStore, StateStore, StoreBuilder
from penstock.runtime.stores.suppliers import Builder
from penstock.runtime.topology.nodes import StoreFactory
from penstock.runtime.topology.optimization import optimize
from penstock.runtime.topology.topology import Topology

_NOT_NEEDED_TO_BUILD = {"application.id": "unnamed", "bootstrap.servers": "localhost:9092"}
"""Keys that `KafkaStreams` requires and `StreamsBuilder.build` does not."""


class StreamsBuilder:
    """Builds a topology from streams and tables. `build()` returns it; nothing starts to run."""

    def __init__(self) -> None:
        self._graph = Graph()

    def stream(
        self,
        topics: str | Iterable[str] | re.Pattern[str],
        consumed: ConsumedOrStr[K, V] = None,
        *,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
    ) -> KStream[K, V]:
        """Read one or more topics as a stream, or all topics whose whole name matches a compiled pattern, including topics created later.
        `key` and `value` are the serdes; with more to say, give a `Consumed` instead.

        Streams of the same topics share one source. Raises TopologyError if the topics of two streams overlap without being the same, or a
        table reads one of them.
        """
        how = consumed_of(consumed, key, value)
        if not isinstance(topics, re.Pattern):
            if not isinstance(topics, Iterable):
                raise TopologyError(f"stream: a topic, several of them or a compiled pattern, not {topics!r}")
            topics = (topics,) if isinstance(topics, str) else tuple(topics)
        name = self._graph.stream(topics, how)
        return KStream(self._graph, name, how.key, how.value, frozenset((name,)))

    @overload
    def table(
        self, topic: str, consumed: Consumed[K, V], materialized: Materialized | str | None = None, *, emit_on_change: bool = False
    ) -> KTable[K, V]: ...

    @overload
    def table(
        self,
        topic: str,
        consumed: Materialized | str | None = None,
        materialized: Materialized | str | None = None,
        *,
        key: Serde[K] | None = None,
        value: Serde[V],
        emit_on_change: bool = False,
    ) -> KTable[K, V]: ...

    @overload
    def table(
        self,
        topic: str,
        consumed: Materialized[K, V],
        *,
        key: Serde[K] | None = None,
        emit_on_change: bool = False,
    ) -> KTable[K, V]: ...

    @overload
    def table(
        self,
        topic: str,
        consumed: str | None = None,
        materialized: MaterializedOrStr[K, V] = None,
        *,
        key: Serde[K] | None = None,
        emit_on_change: bool = False,
    ) -> KTable[K, V]: ...

    def table(
        self,
        topic: str,
        consumed: ConsumedOrStr[K, V] | Materialized[K, V] = None,
        materialized: MaterializedOrStr[K, V] = None,
        *,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        emit_on_change: bool = False,
    ) -> KTable[K, V]:
        """Read a topic as a table of the latest value of each key. A record without a value deletes its key; a record without a key is
        dropped and counted. `key` and `value` are the serdes; with more to say, give a `Consumed` instead.

        Without a name in `materialized`, the rows are stored only if another operation reads them. The topic's serdes take precedence
        over those of `materialized`, because the store's changelog contains the topic's bytes.

        Each update is forwarded, also if the value is equal, as in Kafka Streams since KAFKA-12508. With `emit_on_change` an update with
        the same bytes that is not older is dropped, and so is a deletion of an absent key (KIP-557); the rows are then always stored.
        Raises TopologyError for a versioned table, whose updates are all versions.
        """
        graph, how, kept = self._graph, *_of_topic(consumed, materialized, key, value)
        if emit_on_change and kept.versioned:
            raise TopologyError(f"table {topic}: its store is versioned, so each update is a version; emit_on_change cannot drop any")
        root = TableRoot(graph.store_name(f"{topic}-", kept), kept, emit_on_change)
        source = graph.source(graph.name("KSTREAM-SOURCE-", how.name, "-source"), (topic,), how)
        node = graph.name("KTABLE-SOURCE-", how.name)
        if not kept.expires:  # tombstones of expired rows need a changelog of the table's own
            graph.hints.tables[node] = root.store, topic
        return KTable._of(table_from(graph, source, node, root))

    @overload
    def global_table(self, topic: str, consumed: Consumed[K, V], materialized: Materialized | str | None = None) -> GlobalKTable[K, V]: ...

    @overload
    def global_table(
        self,
        topic: str,
        consumed: Materialized | str | None = None,
        materialized: Materialized | str | None = None,
        *,
        key: Serde[K] | None = None,
        value: Serde[V],
    ) -> GlobalKTable[K, V]: ...

    @overload
    def global_table(self, topic: str, consumed: Materialized[K, V], *, key: Serde[K] | None = None) -> GlobalKTable[K, V]: ...

    @overload
    def global_table(
        self,
        topic: str,
        consumed: str | None = None,
        materialized: MaterializedOrStr[K, V] = None,
        *,
        key: Serde[K] | None = None,
    ) -> GlobalKTable[K, V]: ...

    def global_table(
        self,
        topic: str,
        consumed: ConsumedOrStr[K, V] | Materialized[K, V] = None,
        materialized: MaterializedOrStr[K, V] = None,
        *,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
    ) -> GlobalKTable[K, V]:
        """Read a topic as a table of which every instance keeps all partitions; arguments as in `table`. The topic should be compacted: a
        store that is rebuilt (KIP-406) contains only what the topic still has, so retention by time would silently lose rows
        (`global.topic.compaction.check`). It is always read from its start: raises TopologyError for an `offset_reset_policy`."""
        graph, how, kept = self._graph, *_of_topic(consumed, materialized, key, value)
        _refuse_offset_reset(f"global table {topic}", how)
        if kept.versioned:
            raise TopologyError(f"global table {topic}: its store cannot be versioned; every join reads the rows as they are now")
        if kept.expires:
            raise TopologyError(f"global table {topic}: its rows cannot expire; its content is that of the topic")
        store = graph.store_name(f"{topic}-", kept)
        source = graph.source(graph.name("KSTREAM-SOURCE-", how.name, "-source"), (topic,), how)
        node = graph.name("KTABLE-SOURCE-", how.name)
        graph.topology.add_store_factory(store, _global_store(key_value_store(store, kept, how.key, how.value)))
        graph.operator(node, TableSource(store), (source,), (store,))
        graph.topology.mark_global(source, node, store, own_processor=False)
        return GlobalKTable(store, graph)

    def add_state_store(self, builder: StoreBuilder[StateStore]) -> StreamsBuilder:
        """Add a store that processors can be connected to by name."""
        self._graph.topology.add_state_store(builder)
        return self

    def add_global_store(
        self, builder: StoreBuilder[StateStore], topic: str, consumed: ConsumedOrStr[K, V], supplier: MakesProcessor[K, V]
    ) -> StreamsBuilder:
        """Add a store that every instance keeps in full; your processor fills it from all partitions of `topic`. The topic should be
        compacted. It is always read from its start: raises TopologyError for an `offset_reset_policy`."""
        graph, how = self._graph, consumed_of(consumed)
        _refuse_offset_reset(f"global store of topic {topic}", how)
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
        """Return the topology. With a configuration, it is optimized by `topology.optimization` and checked as `KafkaStreams` does: raises
        TopologyError naming the node that lacks a serde. A configuration of `topology.optimization` alone optimizes without the check."""
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
    consumed: ConsumedOrStr[K, V] | Materialized[K, V],
    materialized: MaterializedOrStr[K, V],
    key: Serde[K] | None,
    value: Serde[V] | None,
) -> tuple[Consumed[K, V], Materialized[K, V]]:
    """Sort the arguments of a table, and give both the same serdes."""
    if isinstance(consumed, Materialized):  # Kafka Streams has the overload with it alone
        if materialized is not None:
            raise TopologyError(f"the store is given twice: {consumed!r} and {materialized!r}")
        consumed, materialized = None, consumed
    how, kept = consumed_of(consumed, key, value), materialized_of(materialized)
    key, value = how.key or kept.key, how.value or kept.value
    return replace(how, key=key, value=value), replace(kept, key=key, value=value)


def _refuse_offset_reset(what: str, how: Consumed[K, V]) -> None:
    if how.offset_reset_policy is not None:
        raise TopologyError(
            f"{what}: offset_reset_policy={how.offset_reset_policy} is not possible: it holds the whole topic, so it is read from the "
            "topic's start, also when its position is lost (KIP-406). Leave offset_reset_policy out of its Consumed"
        )


def _global_store(factory: StoreFactory) -> StoreFactory:
    """Disable logging, because the topic is the changelog, and caching, because readers must see every update at once."""
    return lambda key, value: cast(Builder[EntryStore], factory(key, value)).with_logging_disabled().with_caching_disabled()
