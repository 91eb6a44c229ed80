"""The orders in which Java's collections hand out names, where they show in the text of a topology.

Kafka Streams describes a topology through `HashMap` and `TreeSet`, so a line such as `--> A, B` has an order that follows from hash codes,
and from sizes that were still growing while the tree set was filled. Sorting the names would be simpler; but people compare these texts
with those of their Java applications to see that nothing moved, and there every difference is an alarm. So both are done as Java does them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass


def map_order(names: Collection[str]) -> list[str]:
    """The order of a `HashMap` or `HashSet` into which the names were put one by one."""
    capacity = 16
    while len(names) > capacity * 3 // 4:
        capacity *= 2
    return _by_bucket(names, capacity)


def copied_set_order(names: Collection[str]) -> list[str]:
    """The order of `new HashSet<>(names)`, whose table is sized in advance."""
    least, capacity = int(len(names) / 0.75) + 1, 16
    while capacity < least:
        capacity *= 2
    return _by_bucket(names, capacity)


def _by_bucket(names: Collection[str], capacity: int) -> list[str]:
    return sorted(names, key=lambda name: _spread(name) & (capacity - 1))


def _spread(text: str) -> int:
    """`String.hashCode`, with its upper half folded in as `HashMap` does."""
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
    """A `TreeSet` of names whose order may change while they are inside: a name's place is found when it is added, and kept.

    A red-black tree, because which names a new one is compared with depends on the tree's shape.
    """

    def __init__(self, rank: Callable[[str], tuple[int, str]]) -> None:
        self._rank = rank
        self._root: _Cell | None = None

    def add(self, name: str) -> None:
        """Adds a name, unless it is met on the way to its place."""
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
        """Puts the cell's right child (left child if not `leftward`) in its place, and the cell below it."""
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
