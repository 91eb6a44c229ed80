"""The text of a topology, equal to the one that Kafka Streams prints (`TopologyDescription`).

Kafka Streams builds it with `HashMap` and `TreeSet`, so the order in a line such as `--> A, B` depends on hash codes, and on the sizes that
nodes had while the tree set was filled. Sorted names would be simpler. But users compare this text with that of their Java application, and
every difference looks like a change. So the order of Java's collections is reproduced here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.runtime.topology.nodes import Node, ProcessorNode, SinkNode, SourceNode


@dataclass(frozen=True, slots=True)
class TopologyDescription:
    """The parts of a topology as text, one per sub-topology or global store, in the order of their numbers. `call_sites`: the call and line
    that made a node, by the nodes with generated names; they are not part of the text, which is Kafka Streams'."""

    parts: tuple[str, ...]
    call_sites: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return "Topologies:\n " + "".join(f"  {part}" for part in self.parts)


def describe(
    groups: Sequence[Sequence[str]],
    nodes: Mapping[str, Node],
    parents: Mapping[str, Sequence[str]],
    global_sources: Collection[str],
    call_sites: Mapping[str, str],
) -> TopologyDescription:
    """Describe each group of connected nodes. Nodes with more descendants come first, then by name."""
    parts = []
    for number, names in enumerate(groups):
        title = f"Sub-topology: {number}"
        text = _part(names, nodes, parents)
        is_global = any(name in global_sources for name in names)
        parts.append(f"{title} for global store (will not generate tasks)\n{text}" if is_global else f"{title}\n{text}\n")
    return TopologyDescription(tuple(parts), call_sites)


def _part(names: Sequence[str], nodes: Mapping[str, Node], parents: Mapping[str, Sequence[str]]) -> str:
    """Return the text of one part. Nodes are connected in Java's order, because a node's size at that moment decides its position."""
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


def map_order(names: Collection[str]) -> list[str]:
    """Return the names in the order of a `HashMap` or `HashSet` to which they were added one by one."""
    capacity = 16
    while len(names) > capacity * 3 // 4:
        capacity *= 2
    return _by_bucket(names, capacity)


def copied_set_order(names: Collection[str]) -> list[str]:
    """Return the names in the order of `new HashSet<>(names)`, whose table is sized in advance."""
    least, capacity = int(len(names) / 0.75) + 1, 16
    while capacity < least:
        capacity *= 2
    return _by_bucket(names, capacity)


def _by_bucket(names: Collection[str], capacity: int) -> list[str]:
    return sorted(names, key=lambda name: _spread(name) & (capacity - 1))


def _spread(text: str) -> int:
    """Return `String.hashCode`, with its upper half folded in as in `HashMap`."""
    code = 0
    for character in text:
        code = (31 * code + ord(character)) & 0xFFFFFFFF
    return code ^ (code >> 16)


@dataclass(slots=True, eq=False)
class _Cell:
    name: str
    parent: _Cell | None = None
    left: _Cell | None = None
    right: _Cell | None = None
    red: bool = True


class TreeOrder:
    """A `TreeSet` of names whose ranks may change later: a name's position is determined when it is added.

    It is a red-black tree, because the tree's shape decides with which names a new one is compared.
    """

    def __init__(self, rank: Callable[[str], tuple[int, str]]) -> None:
        self._rank = rank
        self._root: _Cell | None = None

    def add(self, name: str) -> None:
        """Add a name, unless the search for its position finds it."""
        above, at = None, self._root
        while at is not None:
            if at.name == name:
                return
            above, at = at, at.left if self._rank(name) < self._rank(at.name) else at.right
        cell = _Cell(name, above)
        if above is None:
            self._root = cell
        elif self._rank(name) < self._rank(above.name):
            above.left = cell
        else:
            above.right = cell
        self._balance(cell)

    def _balance(self, cell: _Cell) -> None:
        while (above := cell.parent) is not None and above.red and (top := above.parent) is not None:
            leftward = above is top.left
            uncle = top.right if leftward else top.left
            if uncle is not None and uncle.red:
                above.red = uncle.red = False
                top.red = True
                cell = top
                continue
            if cell is (above.right if leftward else above.left):
                self._rotate(above, leftward)
                cell, above = above, cell
            above.red, top.red = False, True
            self._rotate(top, not leftward)
        assert self._root is not None
        self._root.red = False

    def _rotate(self, cell: _Cell, leftward: bool) -> None:
        """Rotate: replace the cell by its right child (left child if not `leftward`), and put the cell below that."""
        rising = cell.right if leftward else cell.left
        assert rising is not None
        moved = rising.left if leftward else rising.right
        if leftward:
            cell.right, rising.left = moved, cell
        else:
            cell.left, rising.right = moved, cell
        if moved is not None:
            moved.parent = cell
        rising.parent, above = cell.parent, cell.parent
        cell.parent = rising
        if above is None:
            self._root = rising
        elif above.left is cell:
            above.left = rising
        else:
            above.right = rising

    def __iter__(self) -> Iterator[str]:
        def walk(cell: _Cell | None) -> Iterator[str]:
            if cell is not None:
                yield from walk(cell.left)
                yield cell.name
                yield from walk(cell.right)

        return walk(self._root)
