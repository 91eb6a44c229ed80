"""The stores of a topology by name, with the metadata that queries need: the sub-topology and topics that fill them, and their serdes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from penstock.runtime.serdes.serde import Serde
from penstock.runtime.stores.base import StateStore, StoreBuilder
from penstock.runtime.stores.suppliers import Builder
from penstock.runtime.topology.nodes import ProcessorNode, SourceNode, SubTopology
from penstock.runtime.topology.topology import Topology


@dataclass(frozen=True, slots=True)
class KnownStore:
    """A store. `kind`: as in `StoreLayout`. `subtopology` is None for a global store. `topics`: the topics above the store, whose
    partitions are those of its keys (Kafka Streams' source topics of a store), sorted. The serdes are None for a custom store; `key_serde`
    of a window or session store is that of the record's key. `source_changelog`: the source topic that serves as its changelog."""

    name: str
    kind: str
    subtopology: int | None
    topics: tuple[str, ...]
    key_serde: Serde | None = None
    value_serde: Serde | None = None
    timestamped: bool = False
    source_changelog: str | None = None

    @property
    def is_global(self) -> bool:
        return self.subtopology is None


def known_stores(topology: Topology) -> Mapping[str, KnownStore]:
    """Return the stores of a resolved topology."""
    found: dict[str, KnownStore] = {}
    for part in topology.sub_topologies():
        for builder in part.stores:
            known = _known(builder, part.id, _topics(part, builder.name))
            found[builder.name] = replace(known, source_changelog=part.source_changelogs.get(builder.name))
    for entry in topology.global_stores():
        found[entry.store.name] = _known(entry.store, None, (entry.topic,))
    return found


def _known(builder: StoreBuilder[StateStore], subtopology: int | None, topics: tuple[str, ...]) -> KnownStore:
    if not isinstance(builder, Builder):
        return KnownStore(builder.name, "custom", subtopology, topics)
    settings = builder.settings
    return KnownStore(settings.name, settings.kind, subtopology, topics, settings.key_serde, settings.value_serde, settings.timestamped)


def _topics(part: SubTopology, store: str) -> tuple[str, ...]:
    """Return the source topics above the processors that use the store (Kafka Streams' `findSourcesForProcessorPredecessors`)."""
    nodes = {node.name: node for node in part.nodes}
    waiting = [node.name for node in part.nodes if isinstance(node, ProcessorNode) and store in node.stores]
    seen: set[str] = set()
    topics: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        node = nodes[name]
        if isinstance(node, SourceNode):
            topics.update(node.topics)
        waiting.extend(part.parents[name])
    return tuple(sorted(topics))
