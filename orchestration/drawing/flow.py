"""Topology as a graph of topics and sub-topologies, with a place for each: records flow from lower to higher columns.

The other diagrams show every node; this one shows the edges whose rates Kafka knows, which are those between topics and sub-topologies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from penstock.orchestration.drawing.description import Drawing, Part

_SWEEPS = 6


class PlaceKind(StrEnum):
    """Kind of a shape in the graph."""

    TOPIC = "topic"
    PART = "part"
    GLOBAL = "global"


@dataclass(frozen=True, slots=True)
class Place:
    """Topic, sub-topology or global store. `number`: of the sub-topology. `column` and `row`: its place, in shapes; rows may be fractions.
    `nodes`: its processors, by name or by the call and line that made them, in order."""

    key: str
    kind: PlaceKind
    name: str
    column: int
    row: float
    number: int | None = None
    stores: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Edge:
    """Reading or writing of a topic by a sub-topology: `start` and `end` are keys of places, one of them the topic's."""

    start: str
    end: str
    topic: str
    reads: bool

    @property
    def key(self) -> str:
        return f"{self.start} > {self.end}"


@dataclass(frozen=True, slots=True)
class Flow:
    """The whole graph."""

    places: tuple[Place, ...] = ()
    edges: tuple[Edge, ...] = ()

    @property
    def topics(self) -> set[str]:
        """All topics."""
        return {edge.topic for edge in self.edges}

    @property
    def read_by_tasks(self) -> dict[str, int]:
        """Topics that tasks read, with the number of their sub-topology; those of global stores have no tasks."""
        numbers = {place.key: place.number for place in self.places if place.kind is PlaceKind.PART}
        return {edge.topic: number for edge in self.edges if edge.reads and (number := numbers.get(edge.end)) is not None}


def flow(drawing: Drawing) -> Flow:
    """Return the graph of a topology, laid out."""
    edges: dict[str, Edge] = {}
    parts: dict[str, Part] = {}
    for part in drawing.parts:
        key = f"part {part.number}"
        parts[key] = part
        for node in part.nodes:
            for topic in node.topics:
                reads = node.kind == "source"
                ends = (f"topic {topic}", key) if reads else (key, f"topic {topic}")
                edge = Edge(*ends, topic, reads)
                edges[edge.key] = edge
    keys = list(dict.fromkeys([*parts, *(end for edge in edges.values() for end in (edge.start, edge.end))]))
    lines = [(edge.start, edge.end) for edge in edges.values()]
    columns = _columns(keys, lines)
    rows = _rows(keys, lines, columns)
    places = [_place(key, parts.get(key), columns[key], rows[key]) for key in keys]
    return Flow(tuple(places), tuple(edges.values()))


def _place(key: str, part: Part | None, column: int, row: float) -> Place:
    if part is None:
        return Place(key, PlaceKind.TOPIC, key.removeprefix("topic "), column, row)
    stores = tuple(dict.fromkeys(store for node in part.nodes for store in node.stores))
    nodes = tuple(dict.fromkeys(node.title for node in part.nodes if node.kind == "processor"))
    name = ", ".join(stores) if part.is_global else f"Sub-topology {part.number}"
    return Place(key, PlaceKind.GLOBAL if part.is_global else PlaceKind.PART, name, column, row, part.number, stores, nodes)


def _columns(keys: Sequence[str], lines: Sequence[tuple[str, str]]) -> dict[str, int]:
    """Return the longest path to each key; a line that closes a cycle is ignored. What nothing leads to stands beside its first reader."""
    before: dict[str, list[str]] = {key: [] for key in keys}
    after: dict[str, list[str]] = {key: [] for key in keys}
    for start, end in lines:
        before[end].append(start)
        after[start].append(end)
    found: dict[str, int] = {}

    def column(key: str, path: frozenset[str]) -> int:
        if key not in found:
            found[key] = max((column(each, path | {key}) + 1 for each in before[key] if each not in path and each != key), default=0)
        return found[key]

    for key in keys:
        column(key, frozenset())
    moved = {key: max(0, min(found[each] for each in after[key]) - 1) for key in keys if not before[key] and after[key]}
    return found | moved


def _rows(keys: Sequence[str], lines: Sequence[tuple[str, str]], columns: Mapping[str, int]) -> dict[str, float]:
    """Return a row for each key: near the mean of its neighbours', and at least one apart from others in its column; the first is 0."""
    near: dict[str, list[str]] = {key: [] for key in keys}
    for start, end in lines:
        near[start].append(end)
        near[end].append(start)
    grid: dict[int, list[str]] = {}
    for key in keys:
        grid.setdefault(columns[key], []).append(key)
    rows = {key: float(number) for column in grid.values() for number, key in enumerate(column)}
    for sweep in range(_SWEEPS):
        for number in sorted(grid, reverse=sweep % 2 == 1):
            wanted = {key: sum(rows[each] for each in near[key]) / len(near[key]) if near[key] else rows[key] for key in grid[number]}
            rows.update(_spread(wanted))
    least = min(rows.values(), default=0.0)
    return {key: round(row - least, 2) for key, row in rows.items()}


def _spread(wanted: Mapping[str, float]) -> dict[str, float]:
    """Move the rows of a column at least one apart, in the order that is wanted, with the least shift of their mean."""
    ordered = sorted(wanted, key=lambda key: wanted[key])
    found: dict[str, float] = {}
    edge = float("-inf")
    for key in ordered:
        found[key] = edge = max(wanted[key], edge + 1.0)
    shift = sum(wanted[key] - found[key] for key in ordered) / (len(ordered) or 1)
    return {key: row + shift for key, row in found.items()}
