"""The interface between an operator and the pipeline.

An operator supplier is a frozen dataclass of the user's parameters (a predicate, a store's name). `build` makes the node of one task: a
closure that takes (key, value, timestamp) and calls `forward` for each result. There is no object per record, no dispatch and no type test:
whatever is known per task is decided in `build`.

Before nodes are built, each table node declares whether it *wants* old values from its parent and whether it *can send* them, so that no
old value is computed that no node reads (Kafka Streams' `enableSendingOldValues`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import cast

from penstock.runtime.model.record import Change
from penstock.runtime.operators.context import Forward, LookUp, NodeContext, RowGetter, ValueGetter
from penstock.runtime.serdes.serde import Serde


class OperatorSupplier(ABC):
    """A kind of node with its parameters. Builds one node per task."""

    __slots__ = ()

    @abstractmethod
    def build(self, context: NodeContext, forward: Forward) -> Forward:
        """Return the node's function. `forward` calls all children, in their order."""

    def resolved(self, node: str, default_key: Serde | None, default_value: Serde | None) -> OperatorSupplier:
        """Return this operator with the configured default serdes where it has none. Raises TopologyError if one is missing."""
        return self

    def wants_old(self, wanted_below: bool) -> bool:
        """Return True if the parent's changes should carry old values; `wanted_below`: whether a child of this node wants this node's."""
        return False

    def can_send_old(self, parent_can: bool) -> bool:
        """Return True if this node's own changes can carry old values; `parent_can`: whether its parent's can."""
        return False

    def keeps_key(self) -> bool:
        """Return True if the node forwards at once, with the key and timestamp of its input record."""
        return False

    def defers(self) -> bool:
        """Return True if the node may forward a record later, after others have reached it (`operators/deferred.py`)."""
        return False

    def global_stores(self) -> frozenset[str] | None:
        """Return the global stores that the node may read; None: any, because it has user code that may ask for them."""
        return frozenset()

    def look_up(self, context: NodeContext) -> LookUp | None:
        """Return the store entries that the node reads for each record, if they are known before the record is processed."""
        return None

    def build_plain(self, context: NodeContext, forward: Forward) -> Forward | None:
        """Return the node's function for a parent that forwards new values instead of changes; None if the node needs changes."""
        return None

    def value_getter(self, context: NodeContext, parent: ValueGetter | None) -> ValueGetter:
        """Return a function that reads this node's table. `parent` reads the parent's table; None if the parent is not a table.

        Raises TypeError if this node is not a table.
        """
        rows = context.rows(context.name)

        def get(key: object) -> object:
            row = rows(key, None)
            return None if row is None else row[0]

        return get

    def row_getter(self, context: NodeContext, parent: RowGetter | None) -> RowGetter:
        """As `value_getter`, with the timestamps of the rows. Called only for a table without its own store."""
        raise TypeError(f"node {context.name} ({type(self).__name__}) is not a table")


def no_children(key: object, value: object, timestamp: int) -> None:
    """The `forward` of a node without children."""


def of_changes(function: Callable[[object, Change, int], None]) -> Forward:
    """Return the function of a node whose parent is a table and whose values are changes. (A cast for type checkers.)"""
    return cast(Forward, function)
