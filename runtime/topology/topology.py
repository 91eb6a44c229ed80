"""Topology: the graph of sources, processors, sinks and stores that an application runs (Kafka Streams' class of the same name).

The DSL or the user's code builds it with the methods here. It is only data; nothing runs. `resolved` fills in what depends on the
configuration: the application id in the names of internal topics, and default serdes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import TypeVar

from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.model.arity import takes_context
from penstock.runtime.model.call_sites import call_site
from penstock.runtime.model.errors import TopologyError
from penstock.runtime.model.handlers import make_handler
from penstock.runtime.model.offsets import AutoOffsetReset
from penstock.runtime.operators.base import OperatorSupplier
from penstock.runtime.operators.map_async import MapAsync
from penstock.runtime.operators.processor import MakesProcessor, UserProcessor, stores_of
from penstock.runtime.operators.wrapper import PROCESSOR_WRAPPER, ProcessorWrapper, wrapped_user_processor
from penstock.runtime.serdes.serde import PendingSerde, Serde, resolved_serde
from penstock.runtime.stores.base import EngineStore, StateStore, StoreBuilder
from penstock.runtime.stores.suppliers import Builder
from penstock.runtime.topology.checks import (
    check_apart,
    check_builder,
    check_extractor,
    check_partitioner,
    check_serde_pair,
    check_supplier,
    has_effect,
    how_to_name,
    matched,
    unnamed,
)
from penstock.runtime.topology.describe import TopologyDescription, describe
from penstock.runtime.topology.internal_topics import changelog_topics, repartition_topics
from penstock.runtime.topology.nodes import (
    Draft,
    GlobalStoreTopology,
    InternalTopic,
    Node,
    Partitioner,
    ProcessorNode,
    SinkNode,
    SourceNode,
    StoreFactory,
    SubTopology,
    TopicNameExtractor,
    labelled,
    node_groups,
)

S = TypeVar("S", bound=EngineStore)
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


@dataclass(frozen=True, slots=True)
class _GlobalStore:
    source: str
    processor: str
    store: str
    own_processor: bool


class Topology:
    """Build it with `StreamsBuilder`, or with `add_source`, `add_processor`, `add_sink` and `add_state_store`. Names must be unique."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._parents: dict[str, tuple[str, ...]] = {}
        self._children: dict[str, tuple[str, ...]] = {}
        self._stores: dict[str, StoreFactory] = {}
        self._builders: dict[str, StoreBuilder[StateStore]] = {}
        self._repartitions: dict[str, int | None] = {}
        self._copartitioned: list[frozenset[str]] = []
        self._global_stores: list[_GlobalStore] = []
        self._source_changelogs: dict[str, str] = {}
        self._optimizations: frozenset[str] = frozenset()
        self._given_names: set[str] = set()
        self._call_sites: dict[str, str] = {}
        self._application_id: str | None = None
        self._additional_retention_ms = 0

    # -- building --------------------------------------------------------------------------------------------------------------

    def add_source(
        self,
        name: str,
        topics: str | Iterable[str] | re.Pattern[str],
        *more_topics: str,
        key_serde: Serde | None = None,
        value_serde: Serde | None = None,
        timestamp_extractor: object | None = None,
        offset_reset: AutoOffsetReset | str | None = None,
    ) -> Topology:
        """Add a node that reads topics, or all topics whose whole name matches a compiled pattern. A serde of None is the configured
        default. Raises TopologyError."""
        if not isinstance(topics, str | re.Pattern | Iterable):
            raise TopologyError(f"source {name}: a topic, several of them or a compiled pattern, not {topics!r}")
        pattern = topics if isinstance(topics, re.Pattern) else None
        read = () if isinstance(topics, re.Pattern) else (topics,) if isinstance(topics, str) else tuple(topics)
        read += more_topics
        if not read and pattern is None:
            raise TopologyError(f"source {name}: at least one topic is needed")
        for topic in read:
            _check_topic(topic, f"source {name}")
        if len(set(read)) < len(read):
            raise TopologyError(f"source {name}: a topic is named twice: {', '.join(read)}")
        try:
            reset = None if offset_reset is None else AutoOffsetReset.of(offset_reset)
        except ValueError as error:
            raise TopologyError(f"source {name}: {error}") from error
        check_serde_pair(f"source {name}", key_serde, value_serde)
        check_extractor(name, timestamp_extractor)
        check_apart(name, pattern, read, self._nodes.values())
        return self._add(SourceNode(name, read, key_serde, value_serde, timestamp_extractor, reset, pattern), ())

    def add_processor(self, name: str, supplier: MakesProcessor, *parents: str, stores: Iterable[str] = ()) -> Topology:
        """Add a user's processor below `parents`. `supplier` is a `Processor` class, a callable that makes one, or a
        `ProcessorSupplier`, which may declare stores. Raises TopologyError."""
        return self.add_user_processor(name, UserProcessor(supplier), parents, stores)

    def add_user_processor(self, name: str, supplier: UserProcessor, parents: Iterable[str], stores: Iterable[str] = ()) -> Topology:
        """As `add_processor`, also for a processor with fixed keys. Adds the stores that its supplier declares."""
        check_supplier(name, supplier.supplier, "process")
        supplied = self.add_stores_of(supplier.supplier)
        return self.add_operator(name, supplier, parents, (*(builder.name for builder in supplied), *stores))

    def add_stores_of(self, supplier: object) -> Sequence[StoreBuilder[StateStore]]:
        """Add the stores that a user's supplier declares; return their builders."""
        supplied = stores_of(supplier)
        for builder in supplied:
            self.add_state_store(builder)
        return supplied

    def add_operator(self, name: str, supplier: OperatorSupplier, parents: Iterable[str], stores: Iterable[str] = ()) -> Topology:
        """Add an operator of the DSL below `parents`."""
        parents = tuple(parents)
        if not parents:
            raise TopologyError(f"processor {name}: at least one parent is needed")
        wanted = tuple(dict.fromkeys(stores))
        self._check_stores(name, wanted)
        return self._add(ProcessorNode(name, supplier, wanted), parents)

    def add_sink(
        self,
        name: str,
        topic: str | TopicNameExtractor,
        *parents: str,
        key_serde: Serde | None = None,
        value_serde: Serde | None = None,
        partitioner: Partitioner | None = None,
        by_window_key: bool = False,
    ) -> Topology:
        """Add a node that writes to a topic, or to the topic that `topic(key, value)` or `topic(key, value, context)` returns.
        `by_window_key`: without a partitioner, all windows of a key go to one partition, as in the DSL. Raises TopologyError."""
        if not parents:
            raise TopologyError(f"sink {name}: at least one parent is needed")
        if callable(topic):
            takes_context(topic, name)
        else:
            _check_topic(topic, f"sink {name}")
        check_serde_pair(f"sink {name}", key_serde, value_serde)
        check_partitioner(name, partitioner)
        return self._add(SinkNode(name, topic, key_serde, value_serde, partitioner, by_window_key), parents)

    def add_state_store(self, builder: StoreBuilder[StateStore], *processors: str) -> Topology:
        """Add a store and connect it to processors. The same builder may be added again. Raises TopologyError if another store has its
        name."""
        check_builder(builder)
        if self._builders.get(builder.name) is not builder:
            self.add_store_factory(builder.name, lambda _key, _value: builder)
            self._builders[builder.name] = builder
        for processor in processors:
            self.connect_processor_and_state_stores(processor, builder.name)
        return self

    def add_store_factory(self, name: str, factory: StoreFactory) -> None:
        """Add a store whose builder is made when the configuration is known."""
        if name in self._stores:
            raise TopologyError(f"store {name!r} was added before: names of stores are unique in a topology")
        self._stores[name] = factory

    def reads_store(self, node: str, store: str) -> bool:
        """Return whether a node is connected to a store."""
        found = self._nodes[node]
        return isinstance(found, ProcessorNode) and store in found.stores

    def replace_operator(self, name: str, supplier: OperatorSupplier, stores: tuple[str, ...]) -> None:
        """Replace the operator and stores of a DSL node, for example when a table needs a store after all."""
        node = self._nodes[name]
        assert isinstance(node, ProcessorNode), name
        self._nodes[name] = replace(node, supplier=supplier, stores=stores)

    def parents(self, name: str) -> tuple[str, ...]:
        """Return the names of a node's parents."""
        return self._parents[name]

    def move_to_end(self, name: str) -> None:
        """Move a node and all its descendants to the end of the order of nodes, which determines the numbers of sub-topologies. Kafka
        Streams does so with a repartition topic to which another aggregate is added."""
        moved = [name]
        for moving in moved:
            moved.extend(child for child in self._children[moving] if child not in moved)
        for moving in [each for each in self._nodes if each in moved]:
            self._nodes[moving] = self._nodes.pop(moving)

    def connect_processor_and_state_stores(self, processor: str, *stores: str) -> Topology:
        """Connect a processor to stores that were added. Raises TopologyError."""
        node = self._nodes.get(processor)
        if not isinstance(node, ProcessorNode):
            raise TopologyError(f"{processor!r} is not a processor of this topology: stores can be connected to processors only")
        self._check_stores(processor, stores)
        self._nodes[processor] = replace(node, stores=tuple(dict.fromkeys((*node.stores, *stores))))
        return self

    def add_global_store(
        self,
        builder: StoreBuilder[StateStore],
        source_name: str,
        topic: str,
        processor_name: str,
        supplier: MakesProcessor,
        *,
        key_serde: Serde | None = None,
        value_serde: Serde | None = None,
        timestamp_extractor: object | None = None,
    ) -> Topology:
        """Add a store of which every instance has a full copy; the user's processor fills it from all partitions of `topic`.

        The topic should be compacted. Otherwise a rebuilt store (KIP-406) lacks the records that retention has deleted. Raises
        TopologyError for a store with a time to live.
        """
        _refuse_ttl(builder)
        self.add_source(source_name, topic, key_serde=key_serde, value_serde=value_serde, timestamp_extractor=timestamp_extractor)
        self.add_state_store(builder)
        self.add_processor(processor_name, supplier, source_name, stores=(builder.name,))
        return self.mark_global(source_name, processor_name, builder.name, own_processor=True)

    def add_read_only_state_store(
        self,
        builder: Builder[S],
        source_name: str,
        topic: str,
        processor_name: str,
        supplier: MakesProcessor,
        *,
        key_serde: Serde | None = None,
        value_serde: Serde | None = None,
        timestamp_extractor: object | None = None,
    ) -> Topology:
        """Add a store that is a copy of a topic, which is also its changelog (KIP-813): the store is restored from it up to the committed
        offset. The processor must put each record into the store unchanged; other processors may only read the store. The topic should be
        compacted. Raises TopologyError."""
        _refuse_ttl(builder)
        self.add_source(
            source_name,
            topic,
            key_serde=key_serde,
            value_serde=value_serde,
            timestamp_extractor=timestamp_extractor,
            offset_reset=AutoOffsetReset.earliest(),
        )
        self.add_state_store(builder.with_logging_disabled())
        self.add_processor(processor_name, supplier, source_name, stores=(builder.name,))
        self._source_changelogs[builder.name] = topic
        return self

    def mark_global(self, source: str, processor: str, store: str, *, own_processor: bool) -> Topology:
        """Declare that the store which `processor` fills from `source` is global."""
        self._global_stores.append(_GlobalStore(source, processor, store, own_processor))
        return self

    def add_repartition_topic(self, topic: str, partitions: int | None) -> None:
        """Declare an internal topic (without the application id), with this number of partitions, or that of its input."""
        self._repartitions[topic] = partitions

    def copartition(self, sources: Iterable[str]) -> None:
        """Require the same number of partitions for the topics of these source nodes."""
        group = frozenset(sources)
        if len(group) > 1:
            self._copartitioned.append(group)

    def _add(self, node: Node, parents: tuple[str, ...]) -> Topology:
        if not node.name:
            raise TopologyError("a node's name must not be empty")
        if node.name in self._nodes:
            raise TopologyError(f"node {node.name!r} was added before: names of nodes are unique in a topology")
        for parent in parents:
            above = self._nodes.get(parent)
            if above is None:
                raise TopologyError(f"node {node.name}: its parent {parent!r} was not added")
            if isinstance(above, SinkNode):
                raise TopologyError(f"node {node.name}: its parent {parent!r} is a sink, which has no children")
        self._nodes[node.name] = node
        self._parents[node.name] = parents
        self._children[node.name] = ()
        if (site := call_site()) is not None:
            self._call_sites[node.name] = site
        for parent in parents:
            self._children[parent] += (node.name,)
        return self

    def _check_stores(self, name: str, stores: Iterable[str]) -> None:
        global_stores = {found.store for found in self._global_stores}
        for store in stores:
            if store not in self._stores:
                raise TopologyError(f"node {name}: store {store!r} was not added")
            if store in global_stores:
                raise TopologyError(f"node {name}: store {store!r} is global; every processor may read it without being connected")

    # -- reading ---------------------------------------------------------------------------------------------------------------

    def resolved(self, config: StreamsConfig) -> Topology:
        """Return this topology for a configuration: with the application id in the names of internal topics, and a serde for every node.

        Raises TopologyError naming the node or store that lacks a serde.
        """
        if self._application_id is not None:
            return self
        if not any(isinstance(node, SourceNode) for node in self._nodes.values()):
            raise TopologyError("the topology reads no topic: add a stream, a table or a source")
        self._check_optimizations(config)
        self._check_names(config)
        key, value = config.default_key_serde, config.default_value_serde
        made = Topology()
        wrapper = self._wrapper(config)
        made._stores = dict(self._stores)
        for name, node in self._nodes.items():
            resolved = self._resolve(node, config.application_id, key, value)
            made._nodes[name] = resolved if wrapper is None else made._wrapped(resolved, wrapper)
        made._parents, made._children = dict(self._parents), dict(self._children)
        headers = config.text("dsl.store.format") == "HEADERS"
        builders = {name: _formatted(self._store_builder(name, factory, key, value), headers) for name, factory in made._stores.items()}
        made._stores = {name: _constant(builder) for name, builder in builders.items()}
        made._repartitions = {f"{config.application_id}-{topic}": partitions for topic, partitions in self._repartitions.items()}
        made._copartitioned, made._global_stores = list(self._copartitioned), list(self._global_stores)
        made._source_changelogs, made._optimizations = dict(self._source_changelogs), self._optimizations
        made._given_names, made._call_sites = self._given_names, self._call_sites
        made._application_id = config.application_id
        made._additional_retention_ms = config.integer("windowstore.changelog.additional.retention.ms")
        return made

    def _wrapper(self, config: StreamsConfig) -> ProcessorWrapper | None:
        setting = config[PROCESSOR_WRAPPER]
        return None if setting is None else make_handler(setting, ProcessorWrapper, config, PROCESSOR_WRAPPER)

    def _wrapped(self, node: Node, wrapper: ProcessorWrapper) -> Node:
        """Return the node with its processor wrapped; add the stores that the wrapper brings."""
        if not isinstance(node, ProcessorNode):
            return node
        if not isinstance(node.supplier, UserProcessor):
            return replace(node, wrapper=wrapper)
        supplier = wrapped_user_processor(wrapper, node.name, node.supplier)
        supplied = [builder for builder in stores_of(supplier.supplier) if builder.name not in node.stores]
        for builder in supplied:
            if builder.name not in self._stores:
                self.add_state_store(builder)
        return replace(node, supplier=supplier, stores=(*node.stores, *(builder.name for builder in supplied)))

    def _store_builder(self, name: str, factory: StoreFactory, key: Serde | None, value: Serde | None) -> StoreBuilder[StateStore]:
        try:
            return factory(key, value)
        except TopologyError as error:
            users = [node.name for node in self._nodes.values() if isinstance(node, ProcessorNode) and name in node.stores]
            raise TopologyError(f"node {self._label(users[0])}: {error}" if users else str(error)) from error

    def draft(self) -> Draft:
        """Return a mutable copy, for the optimizations."""
        return Draft(
            dict(self._nodes),
            dict(self._parents),
            dict(self._stores),
            dict(self._repartitions),
            list(self._copartitioned),
            dict(self._source_changelogs),
        )

    def redrawn(self, draft: Draft, optimizations: frozenset[str]) -> Topology:
        """Return this topology with the nodes of an optimized draft."""
        made = copy(self)
        made._nodes, made._parents, made._children = draft.nodes, draft.parents, draft.children()
        made._stores, made._builders, made._global_stores = draft.stores, dict(self._builders), list(self._global_stores)
        made._repartitions, made._copartitioned = draft.repartitions, draft.copartitioned
        made._source_changelogs, made._optimizations = draft.source_changelogs, optimizations
        return made

    @property
    def call_sites(self) -> Mapping[str, str]:
        """The call and line that made a node, `count at topology.py:31`, by the nodes with generated names."""
        found = unnamed(self._nodes, self._given_names)
        return {name: self._call_sites[name] for name in found if name in self._call_sites}

    def _label(self, node: str) -> str:
        return labelled(node, self._call_sites) if unnamed([node], self._given_names) else node

    def give_name(self, name: str) -> None:
        """Declare that this name comes from the user, although it may look generated (as users do to keep a store)."""
        self._given_names.add(name)

    def generated_names(self) -> str:
        """List stores and repartition topics with generated names, each with the line that made it and the way to name it; empty if there
        are none."""
        used = self._stores_of(self._nodes)
        found = unnamed([*used, *(topic for topic in self._repartitions if topic not in used)], self._given_names)
        what = {name: "store" if name in self._stores else "repartition topic" for name in found}
        sites = {name: self._call_sites.get(node.name) for node in reversed(self._nodes.values()) for name in _made_by(node)}
        by = {name: f" of {sites[name]}" if sites.get(name) else "" for name in found}
        return ", ".join(f"{what[name]} {name}{by[name]} ({how_to_name(name)})" for name in found)

    def without_effect(self) -> str:
        """List sub-topologies that write no topic, keep no store and call nothing of the application that could act (`peek`, `foreach`, a
        processor), each with the lines at which it ends; empty if there are none."""
        found = []
        for number, names in enumerate(self._groups()):
            if not any(has_effect(self._nodes[name]) for name in names):
                ends = (labelled(name, self._call_sites) for name in names if not self._children[name])
                found.append(f"sub-topology {number}, which ends at {' and '.join(ends)}")
        return ", ".join(found)

    def longest_turn_ms(self, unlimited_ms: int) -> int:
        """Return how long a turn of a task may wait for calls of `map_async`: twice the timeout of each in its sub-topology.
        `unlimited_ms`: the same for calls without a timeout."""
        return max((sum(self._waits_ms(name, unlimited_ms) for name in names) for names in self._groups()), default=0)

    def _waits_ms(self, name: str, unlimited_ms: int) -> int:
        node = self._nodes[name]
        if not isinstance(node, ProcessorNode) or not isinstance(node.supplier, MapAsync):
            return 0
        timeout_ms = node.supplier.timeout_ms
        return unlimited_ms if timeout_ms is None else 2 * timeout_ms

    def _check_names(self, config: StreamsConfig) -> None:
        if config["ensure.explicit.internal.resource.naming"] == "true" and (generated := self.generated_names()):
            raise TopologyError(
                "ensure.explicit.internal.resource.naming = true, but names were generated, which move when something is put before them. "
                f"Name each as its brackets say: {generated}"
            )

    def _check_optimizations(self, config: StreamsConfig) -> None:
        """Raise TopologyError if the configured optimizations are not those with which the topology was built. (`build` optimizes, so that
        the topology that is printed is the one that runs.)"""
        wanted = config.optimizations
        if wanted and wanted != self._optimizations:
            raise TopologyError(
                f"topology.optimization = {config['topology.optimization']}, but the topology was built "
                f"{'with ' + ', '.join(sorted(self._optimizations)) if self._optimizations else 'without it'}: give the same configuration "
                "to StreamsBuilder.build(config), or take the key out here"
            )

    @property
    def patterns(self) -> tuple[re.Pattern[str], ...]:
        """The patterns of the source nodes."""
        return tuple(node.pattern for node in self._nodes.values() if isinstance(node, SourceNode) and node.pattern is not None)

    @property
    def matched_topics(self) -> dict[str, str]:
        """The pattern of each topic that a source node reads by a pattern."""
        nodes = (node for node in self._nodes.values() if isinstance(node, SourceNode))
        return {topic: node.pattern.pattern for node in nodes if node.pattern is not None for topic in node.topics}

    def matched(self, existing: Collection[str]) -> Topology:
        """Return this resolved topology, with the existing topics that its patterns match, except internal ones. Raises TopologyError if
        two patterns match one topic."""
        if not self.patterns:
            return self
        found = copy(self)
        found._nodes = matched(self._nodes, existing, f"{self._application_id}-")
        return found

    def _resolve(self, node: Node, application_id: str, key: Serde | None, value: Serde | None) -> Node:
        if isinstance(node, ProcessorNode):
            supplier = node.supplier.resolved(self._label(node.name), key, value)
            return node if supplier is node.supplier else replace(node, supplier=supplier)
        label = f"node {self._label(node.name)}"
        key_serde = resolved_serde(node.key_serde, key, "key", label)
        around_key = isinstance(node.value_serde, PendingSerde) and node.value_serde.of_key
        value_serde = resolved_serde(node.value_serde, *((key, "key") if around_key else (value, "value")), label)
        if isinstance(node, SourceNode):
            topics = tuple(self._decorated(topic, application_id) for topic in node.topics)
            return replace(node, topics=topics, key_serde=key_serde, value_serde=value_serde)
        topic = self._decorated(node.topic, application_id) if isinstance(node.topic, str) else node.topic
        return replace(node, topic=topic, key_serde=key_serde, value_serde=value_serde)

    def _decorated(self, topic: str, application_id: str) -> str:
        return f"{application_id}-{topic}" if topic in self._repartitions else topic

    def _groups(self) -> list[list[str]]:
        return node_groups(self._nodes, self._parents)

    def sub_topologies(self) -> tuple[SubTopology, ...]:
        """Return the sub-topologies that have tasks, ordered by id. (Ids have gaps, because global stores have numbers too.)"""
        global_sources = {found.source for found in self._global_stores}
        return tuple(
            SubTopology(
                id=number,
                nodes=tuple(self._nodes[name] for name in names),
                children={name: self._children[name] for name in names},
                parents={name: self._parents[name] for name in names},
                stores=tuple(self._builder(store) for store in self._stores_of(names)),
                source_changelogs={
                    store: self._source_changelogs[store] for store in self._stores_of(names) if store in self._source_changelogs
                },
                call_sites={name: self._call_sites[name] for name in names if name in self._call_sites},
                unnamed=unnamed(names, self._given_names),
            )
            for number, names in enumerate(self._groups())
            if not global_sources & set(names)
        )

    def global_stores(self) -> tuple[GlobalStoreTopology, ...]:
        """Return the global stores, ordered by number."""
        numbers = {name: number for number, names in enumerate(self._groups()) for name in names}
        found = (
            GlobalStoreTopology(
                id=numbers[entry.source],
                source=self._source(entry.source),
                processor=self._processor(entry.processor),
                store=self._builder(entry.store),
                own_processor=entry.own_processor,
                source_label=self._label(entry.source),
            )
            for entry in self._global_stores
        )
        return tuple(sorted(found, key=lambda entry: entry.id))

    def _source(self, name: str) -> SourceNode:
        node = self._nodes[name]
        assert isinstance(node, SourceNode)
        return node

    def _processor(self, name: str) -> ProcessorNode:
        node = self._nodes[name]
        assert isinstance(node, ProcessorNode)
        return node

    def _builder(self, store: str) -> StoreBuilder[StateStore]:
        return self._stores[store](None, None)

    def _stores_of(self, names: Iterable[str]) -> list[str]:
        nodes = (self._nodes[name] for name in names)
        return list(dict.fromkeys(store for node in nodes if isinstance(node, ProcessorNode) for store in node.stores))

    @property
    def source_topics(self) -> tuple[str, ...]:
        """Return the sorted topics that must exist before the start: those of tasks and global stores, without repartition topics."""
        read = {topic for node in self._nodes.values() if isinstance(node, SourceNode) for topic in node.topics}
        return tuple(sorted(read - set(self._repartitions)))

    @property
    def sink_topics(self) -> tuple[str, ...]:
        """Return the topics of sinks with a fixed topic, without repartition topics. Sorted."""
        written = {node.topic for node in self._nodes.values() if isinstance(node, SinkNode) and isinstance(node.topic, str)}
        return tuple(sorted(written - set(self._repartitions)))

    @property
    def global_topics(self) -> tuple[str, ...]:
        """Return the topics of the global stores, sorted."""
        return tuple(sorted({topic for entry in self._global_stores for topic in self._source(entry.source).topics}))

    def internal_topics(self) -> tuple[InternalTopic, ...]:
        """Return the repartition and changelog topics of a resolved topology, sorted by name."""
        if self._application_id is None:
            raise TopologyError("internal topics carry the application's id: call resolved(config) first")
        parts = self.sub_topologies()
        found = (
            *repartition_topics(parts, self._repartitions),
            *changelog_topics(parts, self._application_id, self._additional_retention_ms),
        )
        return tuple(sorted(found, key=lambda topic: topic.name))

    def copartition_groups(self) -> tuple[frozenset[str], ...]:
        """Return the sets of topics that must have the same number of partitions."""
        return tuple(frozenset(topic for source in group for topic in self._source(source).topics) for group in self._copartitioned)

    def describe(self) -> TopologyDescription:
        """Return the description; its `str()` equals Kafka Streams'."""
        return describe(self._groups(), self._nodes, self._parents, {entry.source for entry in self._global_stores}, self.call_sites)

    def hash(self) -> str:
        """Return a SHA-256 in hexadecimal, equal for topologies with compatible tasks and state: of the description and the repartition
        topics."""
        text = f"{self.describe()}\n{sorted(self._repartitions.items(), key=lambda item: item[0])}"
        if self._source_changelogs:
            text += f"\n{sorted(self._source_changelogs.items())}"
        return hashlib.sha256(text.encode()).hexdigest()


def _made_by(node: Node) -> tuple[str, ...]:
    """Return the names of the stores that a node uses, or of the topic that it writes."""
    match node:
        case ProcessorNode():
            return node.stores
        case SinkNode(topic=str(topic)):
            return (topic,)
    return ()


def _check_topic(topic: object, where: str) -> None:
    """Raise TopologyError for an invalid name of a topic (the rules of Kafka's class `Topic`)."""
    if not isinstance(topic, str) or not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise TopologyError(f"{where}: a topic's name has 1 to 249 characters of a-z, A-Z, 0-9, '.', '_' and '-'; this is none: {topic!r}")


def _refuse_ttl(builder: object) -> None:
    """Raise TopologyError for a store that expires. Expired entries are deleted on a changelog, which a copy of a topic does not have."""
    if isinstance(builder, Builder) and builder.settings.ttl_ms is not None:
        raise TopologyError(f"store {builder.name}: its entries cannot expire; its content is that of the topic")


def _formatted(builder: StoreBuilder[StateStore], headers: bool) -> StoreBuilder[StateStore]:
    """Return the builder of a store that keeps headers if `dsl.store.format` says so, for one that leaves it open."""
    if not isinstance(builder, Builder) or builder.settings.headers is not None:
        return builder
    return replace(builder, settings=replace(builder.settings, headers=headers))


def _constant(builder: StoreBuilder[StateStore]) -> StoreFactory:
    return lambda _key, _value: builder
