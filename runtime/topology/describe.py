"""The text of a topology, as Kafka Streams prints it (`TopologyDescription`), so that what users paste and compare stays the same."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from runtime.topology.java_order import TreeOrder, copied_set_order, map_order
from runtime.topology.nodes import Node, ProcessorNode, SinkNode, SourceNode


@dataclass(frozen=True, slots=True)
class TopologyDescription:
    """The parts of a topology as text, one per sub-topology or global store, in the order of their numbers."""

    parts: tuple[str, ...]

    def __str__(self) -> str:
        return "Topologies:\n " + "".join(f"  {part}" for part in self.parts)


def describe(
    groups: Sequence[Sequence[str]],
    nodes: Mapping[str, Node],
    parents: Mapping[str, Sequence[str]],
    global_sources: Collection[str],
) -> TopologyDescription:
    """Describes each group of connected nodes. Nodes with more below them come first, then by name."""
    parts = []
    for number, names in enumerate(groups):
        title = f"Sub-topology: {number}"
        text = _part(names, nodes, parents)
        is_global = any(name in global_sources for name in names)
        parts.append(f"{title} for global store (will not generate tasks)\n{text}" if is_global else f"{title}\n{text}\n")
    return TopologyDescription(tuple(parts))


def _part(names: Sequence[str], nodes: Mapping[str, Node], parents: Mapping[str, Sequence[str]]) -> str:
    """The nodes of one part, connected in Java's order, because a node's place among its siblings is that of its size at that moment."""
    sizes = dict.fromkeys(names, 1)

    def rank(name: str) -> tuple[int, str]:
        return -sizes[name], name

    above = {name: TreeOrder(rank) for name in names}
    below = {name: TreeOrder(rank) for name in names}

    def grow(name: str, by: int) -> None:
        sizes[name] += by
        for parent in above[name]:
            grow(parent, by)

    for name in map_order(names):
        for parent in parents[name]:
            above[name].add(parent)
            below[parent].add(name)
            grow(parent, sizes[name])
    return "".join(f"    {_node(nodes[name], above[name], below[name])}\n" for name in sorted(names, key=rank))


def _node(node: Node, parents: Iterable[str], children: Iterable[str]) -> str:
    below = f"\n      --> {_names(children)}"
    above = f"\n      <-- {_names(parents)}"
    match node:
        case SourceNode():
            topics = f"[{', '.join(copied_set_order(node.topics))}]" if node.pattern is None else node.pattern.pattern
            return f"Source: {node.name} (topics: {topics}){below}"
        case ProcessorNode():
            return f"Processor: {node.name} (stores: [{', '.join(copied_set_order(node.stores))}]){below}{above}"
        case SinkNode():
            where = f"topic: {node.topic}" if isinstance(node.topic, str) else f"extractor class: {_name_of(node.topic)}"
            return f"Sink: {node.name} ({where}){above}"


def _names(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def _name_of(function: object) -> str:
    return str(getattr(function, "__qualname__", type(function).__name__))
