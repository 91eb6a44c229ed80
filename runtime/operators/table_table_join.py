"""Joins of two tables by their keys (Kafka Streams' `KTableKTableInnerJoin`, `…LeftJoin`, `…RightJoin`, `…OuterJoin`, `…JoinMerger`).

A change of a row of either table is joined with the current row of the other table. There is a node for each side, and one that merges both
and stores the result if it has a store. A result has the larger of the two rows' timestamps. Changes with a result:

    inner                      those whose key has a row on the other side; deleting either row deletes the result
    left, on the left side     all; joined with None if there is no right row
    left, on the right side    as inner, but deleting the right row leaves the left one joined with None
    outer                      all; joined with None if the other row is missing; deleting the last of both deletes the result

An out-of-order change of a versioned table is dropped and counted (KIP-914).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.runtime.model.record import Change, OutOfOrder
from penstock.runtime.operators.base import OperatorSupplier, of_changes
from penstock.runtime.operators.context import Forward, NodeContext, RowGetter
from penstock.runtime.operators.materialized import materialize

Joiner = Callable[..., object]
"""(left, right), or (key, left, right) with `with_key`."""
JoinOne = Callable[[object, object, object], object]
"""(key, this side's value, the other side's value) -> result."""


@dataclass(frozen=True, slots=True)
class TableJoin(OperatorSupplier):
    """One side of a join of two tables. Its parent is this side's table; `other` is the node of the other table.

    `left`: this is the left side. `keeps_this`: a row of this side without a match is a result; `keeps_other`: the same for the other side.
    `versioned`: this side's table is versioned.
    """

    other: str
    joiner: Joiner
    left: bool
    keeps_this: bool = False
    keeps_other: bool = False
    versioned: bool = False
    with_key: bool = False

    def wants_old(self, wanted_below: bool) -> bool:
        return wanted_below or self.keeps_this

    def can_send_old(self, parent_can: bool) -> bool:
        return parent_can

    def _join_one(self) -> JoinOne:
        joiner = self.joiner
        if self.left:
            return joiner if self.with_key else lambda key, this, other: joiner(this, other)
        return (lambda key, this, other: joiner(key, other, this)) if self.with_key else lambda key, this, other: joiner(other, this)

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        get, drop = context.rows(self.other), context.task.dropped.add
        join_one, keeps_this, keeps_other = self._join_one(), self.keeps_this, self.keeps_other
        send_old, versioned = context.send_old, self.versioned

        def join(key: object, change: Change, timestamp: int) -> None:
            if key is None or (versioned and type(change) is OutOfOrder):
                drop()
                return
            new, old = change
            row = get(key, None)
            if row is None:
                if not keeps_this or (new is None and old is None):
                    return
                other, at, present = None, timestamp, False
            else:
                other, at, present = row[0], max(row[1], timestamp), keeps_other
            joined = join_one(key, new, other) if present or new is not None else None
            before = join_one(key, old, other) if send_old and (present or old is not None) else None
            forward(key, Change(joined, before), at)

        return of_changes(join)

    def row_getter(self, context: NodeContext, parent: RowGetter | None) -> RowGetter:
        assert parent is not None, context.name
        this, other, join_one = parent, context.rows(self.other), self._join_one()
        keeps_this, keeps_other = self.keeps_this, self.keeps_other

        def get(key: object, as_of: int | None) -> tuple[object, int] | None:
            mine, theirs = this(key, None), other(key, None)
            if (mine is None and (theirs is None or not keeps_other)) or (theirs is None and not keeps_this):
                return None
            value, timestamp = mine or (None, -1)
            other_value, other_timestamp = theirs or (None, -1)
            joined = join_one(key, value, other_value)
            return None if joined is None else (joined, max(timestamp, other_timestamp))

        return get


@dataclass(frozen=True, slots=True)
class TableJoinMerge(OperatorSupplier):
    """The result table of a join of two tables: with a store, or computed from both tables when it is read."""

    store_name: str | None = None

    def wants_old(self, wanted_below: bool) -> bool:
        return wanted_below

    def can_send_old(self, parent_can: bool) -> bool:
        return parent_can or self.store_name is not None

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        return forward if self.store_name is None else self._build_stored(context, forward, self.store_name)

    def _build_stored(self, context: NodeContext, forward: Forward, store_name: str) -> Forward:
        to_bytes, load, update, _, _, emit, _ = materialize(context, forward, store_name)
        task = context.task

        def merge(key: object, change: Change, timestamp: int) -> None:
            raw = to_bytes(key)
            update(raw, key, load(raw), change[0], timestamp, task.headers)
            if emit is not None:
                emit(key, change[0], change[1], timestamp)

        return of_changes(merge)

    def row_getter(self, context: NodeContext, parent: RowGetter | None) -> RowGetter:
        assert parent is not None, context.name
        return parent
