"""What an operator is to the pipeline.

An operator supplier is a frozen dataclass with what the user gave (a predicate, a store's name). `build` makes the node for one task: a
closure of (key, value, timestamp) over local variables that calls `forward` for each result, as deep as the chain goes. No object per
record, no dispatch, no type tests: what can be decided per task is decided in `build`.

Two questions about tables are answered before anything is built, so that no old value is computed that nobody reads (Kafka Streams'
`enableSendingOldValues`): whether a node *wants* old values from its parent, and whether it *can send* them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import cast

from runtime.operators.context import Forward, NodeContext, RowGetter, ValueGetter
from runtime.record import Change
from runtime.serdes.serde import Serde


class OperatorSupplier(ABC):
    """One kind of node with its parameters; makes as many nodes as there are tasks."""

    __slots__ = ()

    @abstractmethod
    def build(self, context: NodeContext, forward: Forward) -> Forward:
        """The node's function. `forward` calls all children, in their order."""

    def resolved(self, node: str, default_key: Serde | None, default_value: Serde | None) -> OperatorSupplier:
        """This operator with the serdes that the configuration gives to those it was not given. Raises TopologyError for one that is
        missing."""
        return self

    def wants_old(self, wanted_below: bool) -> bool:
        """Whether the parent's changes should carry old values; `wanted_below`: whether a child of this node wants this node's."""
        return False

    def can_send_old(self, parent_can: bool) -> bool:
        """Whether this node's own changes can carry old values; `parent_can`: whether its parent's can."""
        return False

    def build_plain(self, context: NodeContext, forward: Forward) -> Forward | None:
        """The node's function for a parent that hands over new values in place of changes; None if it needs the changes."""
        return None

    def value_getter(self, context: NodeContext, parent: ValueGetter | None) -> ValueGetter:
        """Reads the table that this node is. `parent` reads the table above it, None if there is none.

        Raises TypeError if this node is no table.
        """
        rows = context.rows(context.name)

        def get(key: object) -> object:
            row = rows(key, None)
            return None if row is None else row[0]

        return get

    def row_getter(self, context: NodeContext, parent: RowGetter | None) -> RowGetter:
        """As `value_getter`, but with the times of the rows; asked only of a table that has no store of its own."""
        raise TypeError(f"node {context.name} ({type(self).__name__}) is not a table")


def no_children(key: object, value: object, timestamp: int) -> None:
    """Where a chain ends."""


def of_changes(function: Callable[[object, Change, int], None]) -> Forward:
    """The function of a node that is fed by a table: its values are changes (only type checkers see a difference)."""
    return cast(Forward, function)
