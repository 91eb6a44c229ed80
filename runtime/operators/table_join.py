"""Joins of a stream with a table, as of the processing of the stream's record (Kafka Streams' `KStreamKTableJoinProcessor`).

A record without a value is dropped and counted. So is one without a key (for a global table: one whose mapped key is None), except that a
left join accepts a record without a key and joins it with None (KIP-962). The joined record has the key, timestamp and headers of the
stream's record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.runtime.operators.base import OperatorSupplier
from penstock.runtime.operators.context import Forward, LookUp, NodeContext
from penstock.runtime.operators.materialized import entries_of, store_getter

Joiner = Callable[..., object]
"""(left, right), or (key, left, right) with `with_key`."""


def _with_key(joiner: Joiner, with_key: bool) -> Callable[[object, object, object], object]:
    return joiner if with_key else lambda key, left, right: joiner(left, right)


@dataclass(frozen=True, slots=True)
class StreamTableJoin(OperatorSupplier):
    """`join` and `left_join` of a stream with a table. `table` is the name of the table's node, in the same sub-topology."""

    table: str
    joiner: Joiner
    left: bool = False
    with_key: bool = False
    versioned: bool = False

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        if self.versioned:
            return self._build_as_of(context, forward)
        get, joiner, drop = context.getter(self.table), self.joiner, context.task.dropped.add
        join_with_key = _with_key(joiner, self.with_key)

        def join(key: object, value: object, timestamp: int) -> None:
            if key is None or value is None:
                drop()
                return
            other = get(key)
            if other is not None:
                forward(key, joiner(value, other), timestamp)

        def join_key(key: object, value: object, timestamp: int) -> None:
            if key is None or value is None:
                drop()
                return
            other = get(key)
            if other is not None:
                forward(key, join_with_key(key, value, other), timestamp)

        def left_join(key: object, value: object, timestamp: int) -> None:
            if value is None:
                drop()
                return
            forward(key, join_with_key(key, value, None if key is None else get(key)), timestamp)

        if self.left:
            return left_join
        return join_key if self.with_key else join

    def look_up(self, context: NodeContext) -> LookUp | None:
        store = None if self.versioned else context.store_of(self.table)
        return None if store is None else entries_of(context, store)

    def _build_as_of(self, context: NodeContext, forward: Forward) -> Forward:
        """Return the join with a versioned table, which uses the row as of the record's timestamp."""
        rows, drop, left = context.rows(self.table), context.task.dropped.add, self.left
        join_one = _with_key(self.joiner, self.with_key)

        def join(key: object, value: object, timestamp: int) -> None:
            if value is None or (key is None and not left):
                drop()
                return
            row = None if key is None else rows(key, timestamp)
            if row is not None or left:
                forward(key, join_one(key, value, None if row is None else row[0]), timestamp)

        return join


@dataclass(frozen=True, slots=True)
class StreamGlobalTableJoin(OperatorSupplier):
    """`join` and `left_join` of a stream with a global table; `key_mapper(key, value)` gives the table's key."""

    store_name: str
    key_mapper: Callable[..., object]
    joiner: Joiner
    left: bool = False
    with_key: bool = False

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        get, mapper, left, drop = store_getter(context, self.store_name), self.key_mapper, self.left, context.task.dropped.add
        joiner, with_key = self.joiner, self.with_key

        def join(key: object, value: object, timestamp: int) -> None:
            mapped = None if value is None else mapper(key, value)
            if mapped is None and (key is not None or value is None or not left):
                drop()
                return
            other = None if mapped is None else get(mapped)
            if left or other is not None:
                forward(key, joiner(key, value, other) if with_key else joiner(value, other), timestamp)

        return join
