"""Sub-topologies: the connected parts of a topology, each of which has one task per partition of its input.

Two nodes are connected if one feeds the other, or if they share a store (union-find, as in Kafka Streams' `InternalTopologyBuilder`). A
part gets its number when its first node is added, as in Kafka Streams, so that task ids and state directories are the same. A part that
only fills a global store has a number too, but no tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from penstock.runtime.model.ids import Partition, TaskId, changelog_topic
from penstock.runtime.stores.base import StateStore, StoreBuilder
from penstock.runtime.topology.nodes import Node, ProcessorNode, SinkNode, SourceNode


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

    @property
    def sources(self) -> tuple[SourceNode, ...]:
        return tuple(node for node in self.nodes if isinstance(node, SourceNode))

    @property
    def processors(self) -> tuple[ProcessorNode, ...]:
        return tuple(node for node in self.nodes if isinstance(node, ProcessorNode))

    @property
    def sinks(self) -> tuple[SinkNode, ...]:
        return tuple(node for node in self.nodes if isinstance(node, SinkNode))

    def changelogs(self, application_id: str, task: TaskId) -> dict[str, Partition]:
        """Return the partition from which each store of a task is restored, without stores that are not logged."""
        own = {
            store.name: Partition(changelog_topic(application_id, store.name), task.partition)
            for store in self.stores
            if store.logging_enabled
        }
        return own | {store: Partition(topic, task.partition) for store, topic in self.source_changelogs.items()}

    @property
    def source_topics(self) -> tuple[str, ...]:
        """All topics that its tasks read, sorted."""
        return tuple(sorted({topic for source in self.sources for topic in source.topics}))


@dataclass(frozen=True, slots=True)
class GlobalStoreTopology:
    """A global store and the topic that fills it. `own_processor`: filled by a custom processor (`add_global_store`)."""

    id: int
    source: SourceNode
    processor: ProcessorNode
    store: StoreBuilder[StateStore]
    own_processor: bool

    @property
    def topic(self) -> str:
        return self.source.topics[0]


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
