"""The nodes of a topology, and its sub-topologies, as data. Nothing here runs; `pipeline.py` compiles the nodes of a sub-topology into
function calls.

Sub-topologies are the connected parts of a topology, each of which has one task per partition of its input. Two nodes are connected if one
feeds the other, or if they share a store (union-find, as in Kafka Streams' `InternalTopologyBuilder`). A part gets its number when its
first node is added, as in Kafka Streams, so that task ids and state directories are the same. A part that only fills a global store has a
number too, but no tasks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from penstock.runtime.model.ids import TaskId, TopicPartition, changelog_topic
from penstock.runtime.model.offsets import AutoOffsetReset
from penstock.runtime.model.record import RecordContext
from penstock.runtime.model.type_variables import K, V
from penstock.runtime.serdes.serde import Serde
from penstock.runtime.stores.base import StateStore, StoreBuilder

if TYPE_CHECKING:
    from penstock.runtime.operators.base import OperatorSupplier
    from penstock.runtime.operators.wrapper import ProcessorWrapper

Partitioner: TypeAlias = Callable[[str, K, V, int], int | Collection[int] | None]
"""`(topic, key, value, number of partitions) -> partition`, or several, or none (empty); None: by the key's murmur2 hash
(`StreamPartitioner`, KIP-837)."""

TopicNameExtractor: TypeAlias = Callable[[K, V], str] | Callable[[K, V, RecordContext], str]
"""`(key, value) -> topic`, or `(key, value, record context) -> topic`: a sink that chooses the topic per record."""


@dataclass(frozen=True, slots=True)
class SourceNode:
    """A node that reads topics. `offset_reset` and a serde of None mean the configured default. With a `pattern`, `topics` are those that
    matched when the brokers were last polled."""

    name: str
    topics: tuple[str, ...]
    key_serde: Serde | None
    value_serde: Serde | None
    timestamp_extractor: object | None = None
    offset_reset: AutoOffsetReset | None = None
    pattern: re.Pattern[str] | None = None


@dataclass(frozen=True, slots=True)
class ProcessorNode:
    """A node that processes records, and the stores it may use."""

    name: str
    supplier: OperatorSupplier
    stores: tuple[str, ...] = ()
    wrapper: ProcessorWrapper | None = None
    """Of an operator of the DSL, around which it is called (`processor.wrapper.class`)."""


@dataclass(frozen=True, slots=True)
class SinkNode:
    """A node that writes to a topic, fixed or chosen per record."""

    name: str
    topic: str | TopicNameExtractor
    key_serde: Serde | None
    value_serde: Serde | None
    partitioner: Partitioner | None = None
    by_window_key: bool = False
    """Without a partitioner: send all windows of a key to the key's partition, as the DSL's sinks do."""


Node: TypeAlias = SourceNode | ProcessorNode | SinkNode


@dataclass(frozen=True, slots=True)
class InternalTopic:
    """A topic that the application creates, with Kafka Streams' name and settings.

    `partitions` is None if other topics determine it: for a repartition topic the largest of its inputs, for a changelog one per task of
    `subtopology`. For a repartition topic, `subtopology` reads it and `writers` write it.
    """

    name: str
    kind: str
    config: Mapping[str, str]
    partitions: int | None
    subtopology: int
    writers: tuple[int, ...] = ()


StoreFactory = Callable[[Serde | None, Serde | None], StoreBuilder[StateStore]]
"""Returns a store's builder, given the configured default serdes. Raises TopologyError if a serde is needed and missing."""


@dataclass(slots=True)
class Draft:
    """A mutable copy of a topology's tables, which the optimizations rewrite: nodes in order, their parents, stores, repartition topics
    with their configured number of partitions, sets of copartitioned sources, and source topics that serve as the changelog of a store."""

    nodes: dict[str, Node]
    parents: dict[str, tuple[str, ...]]
    stores: dict[str, StoreFactory]
    repartitions: dict[str, int | None]
    copartitioned: list[frozenset[str]]
    source_changelogs: dict[str, str]

    def children(self) -> dict[str, tuple[str, ...]]:
        """Return the names of each node's children, in the order of the nodes."""
        found: dict[str, tuple[str, ...]] = dict.fromkeys(self.nodes, ())
        for name in self.nodes:
            for parent in self.parents[name]:
                found[parent] += (name,)
        return found


@dataclass(frozen=True, slots=True)
class SubTopology:
    """A connected part. `nodes` are in the order in which they were added; `children` and `parents` are by node name, in order."""

    id: int
    nodes: tuple[Node, ...]
    children: Mapping[str, tuple[str, ...]]
    parents: Mapping[str, tuple[str, ...]]
    stores: tuple[StoreBuilder[StateStore], ...]
    source_changelogs: Mapping[str, str] = field(default_factory=dict)
    """Source topics that serve as changelogs, by store."""
    call_sites: Mapping[str, str] = field(default_factory=dict)
    """The call and line that made a node: `count at topology.py:31`."""
    unnamed: Collection[str] = ()
    """Nodes with generated names."""

    def label(self, node: str) -> str:
        """Return a node's name for a message, with the line that made it if the name was generated."""
        return labelled(node, self.call_sites) if node in self.unnamed else node

    @property
    def sources(self) -> tuple[SourceNode, ...]:
        return tuple(node for node in self.nodes if isinstance(node, SourceNode))

    @property
    def processors(self) -> tuple[ProcessorNode, ...]:
        return tuple(node for node in self.nodes if isinstance(node, ProcessorNode))

    @property
    def sinks(self) -> tuple[SinkNode, ...]:
        return tuple(node for node in self.nodes if isinstance(node, SinkNode))

    def changelogs(self, application_id: str, task: TaskId) -> dict[str, TopicPartition]:
        """Return the partition from which each store of a task is restored, without stores that are not logged."""
        own = {
            store.name: TopicPartition(changelog_topic(application_id, store.name), task.partition)
            for store in self.stores
            if store.logging_enabled
        }
        return own | {store: TopicPartition(topic, task.partition) for store, topic in self.source_changelogs.items()}

    @property
    def global_stores(self) -> frozenset[str] | None:
        """Global stores that its tasks may read; None: any."""
        found: set[str] = set()
        for node in self.processors:
            names = None if node.wrapper is not None else node.supplier.global_stores()
            if names is None:
                return None
            found |= names
        return frozenset(found)

    @property
    def source_topics(self) -> tuple[str, ...]:
        """All topics that its tasks read, sorted."""
        return tuple(sorted({topic for source in self.sources for topic in source.topics}))


@dataclass(frozen=True, slots=True)
class GlobalStoreTopology:
    """A global store and the topic that fills it. `own_processor`: filled by a custom processor (`add_global_store`). `source_label`: the
    name of the source for a message, with the line that made it."""

    id: int
    source: SourceNode
    processor: ProcessorNode
    store: StoreBuilder[StateStore]
    own_processor: bool
    source_label: str

    @property
    def topic(self) -> str:
        return self.source.topics[0]


def labelled(node: str, call_sites: Mapping[str, str]) -> str:
    """Return a node's name, with the line that made it, if that is known."""
    return f"{node} ({call_sites[node]})" if node in call_sites else node


def node_groups(nodes: Mapping[str, Node], parents: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Return the names of connected nodes, a list per part, ordered by the parts' numbers; names are in the order of `nodes`."""
    root = {name: name for name in nodes}

    def find(name: str) -> str:
        while root[name] != name:
            root[name] = root[root[name]]
            name = root[name]
        return name

    by_store: dict[str, str] = {}
    for name, node in nodes.items():
        for parent in parents.get(name, ()):
            root[find(name)] = find(parent)
        for store in node.stores if isinstance(node, ProcessorNode) else ():
            root[find(name)] = find(by_store.setdefault(store, name))
    order: dict[str, int] = {}
    for name in nodes:
        order.setdefault(find(name), len(order))
    groups: list[list[str]] = [[] for _ in order]
    for name in nodes:
        groups[order[find(name)]].append(name)
    return groups
