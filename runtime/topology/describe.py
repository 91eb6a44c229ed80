"""The text of a topology, as Kafka Streams prints it (`TopologyDescription`), so that what users paste and compare stays the same."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

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
    children: Mapping[str, Sequence[str]],
    global_sources: Collection[str],
) -> TopologyDescription:
    """Describes each group of connected nodes. Nodes with more below them come first, then by name, as in Kafka Streams."""
    sizes: dict[str, int] = {}

    def size(name: str) -> int:
        if name not in sizes:
            sizes[name] = 1 + sum(size(child) for child in children[name])
        return sizes[name]

    parts = []
    for number, names in enumerate(groups):
        is_global = any(name in global_sources for name in names)
        ordered = sorted(names, key=lambda name: (-size(name), name))
        text = "".join(f"    {_node(nodes[name], parents[name], children[name])}\n" for name in ordered)
        title = f"Sub-topology: {number}"
        parts.append(f"{title} for global store (will not generate tasks)\n{text}" if is_global else f"{title}\n{text}\n")
    return TopologyDescription(tuple(parts))


def _node(node: Node, parents: Sequence[str], children: Sequence[str]) -> str:
    below = f"\n      --> {_names(children)}"
    above = f"\n      <-- {_names(parents)}"
    match node:
        case SourceNode():
            return f"Source: {node.name} (topics: [{', '.join(sorted(node.topics))}]){below}"
        case ProcessorNode():
            return f"Processor: {node.name} (stores: [{', '.join(sorted(node.stores))}]){below}{above}"
        case SinkNode():
            where = f"topic: {node.topic}" if isinstance(node.topic, str) else f"extractor class: {_name_of(node.topic)}"
            return f"Sink: {node.name} ({where}){above}"


def _names(names: Sequence[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _name_of(function: object) -> str:
    return str(getattr(function, "__qualname__", type(function).__name__))
