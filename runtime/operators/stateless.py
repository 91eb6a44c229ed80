"""The stateless operators of streams, each Kafka Streams' `KStream…` processor of the same name.

A result has the timestamp and headers of its input record.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from penstock.runtime.operators.base import OperatorSupplier, no_children
from penstock.runtime.operators.context import Forward, NodeContext
from penstock.runtime.operators.mistakes import dropping_without_key

KeyValue = tuple[object, object]
"""A key-value result of a user's mapper."""


def as_pair(result: object, operation: str) -> KeyValue:
    """Convert a key-value result that is a named tuple or a list. Raises TypeError for anything else."""
    if isinstance(result, tuple | list) and len(result) == 2:
        return result[0], result[1]
    raise TypeError(f"{operation} expects a pair (key, value), a tuple, from its mapper, which returned {result!r}")


@dataclass(frozen=True, slots=True)
class PassThrough(OperatorSupplier):
    """Forwards records unchanged: the node of a `merge`, or of a source."""

    def keeps_key(self) -> bool:
        return True

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        return forward


@dataclass(frozen=True, slots=True)
class Filter(OperatorSupplier):
    """`filter` and (negated) `filter_not`; `predicate(key, value)`."""

    predicate: Callable[..., object]
    negate: bool = False

    def keeps_key(self) -> bool:
        return True

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        predicate = self.predicate

        def keep(key: object, value: object, timestamp: int) -> None:
            if predicate(key, value):
                forward(key, value, timestamp)

        def drop(key: object, value: object, timestamp: int) -> None:
            if not predicate(key, value):
                forward(key, value, timestamp)

        return drop if self.negate else keep


@dataclass(frozen=True, slots=True)
class HasKey(OperatorSupplier):
    """Drops records without a key before a repartition topic. They are counted by reason, but not in `dropped-records-total`, as in Kafka
    Streams."""

    def keeps_key(self) -> bool:
        return True

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        drop = dropping_without_key(context)

        def keep(key: object, value: object, timestamp: int) -> None:
            if key is None:
                drop()
            else:
                forward(key, value, timestamp)

        return keep


@dataclass(frozen=True, slots=True)
class Map(OperatorSupplier):
    """`map`; `fn(key, value)` returns the new key and value as a pair."""

    fn: Callable[..., KeyValue]

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        fn = self.fn

        def map_record(key: object, value: object, timestamp: int) -> None:
            pair = fn(key, value)
            if type(pair) is not tuple:  # unpacking would accept a str of two characters
                pair = as_pair(pair, "map")
            new_key, new_value = pair
            forward(new_key, new_value, timestamp)

        return map_record


@dataclass(frozen=True, slots=True)
class MapValues(OperatorSupplier):
    """`map_values`; `fn(value)`, or `fn(key, value)` if `with_key`."""

    fn: Callable[..., object]
    with_key: bool = False

    def keeps_key(self) -> bool:
        return True

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        fn = self.fn

        def map_value(key: object, value: object, timestamp: int) -> None:
            forward(key, fn(value), timestamp)

        def map_value_with_key(key: object, value: object, timestamp: int) -> None:
            forward(key, fn(key, value), timestamp)

        return map_value_with_key if self.with_key else map_value


@dataclass(frozen=True, slots=True)
class FlatMap(OperatorSupplier):
    """`flat_map`; `fn(key, value)` returns the pairs that take the record's place."""

    fn: Callable[..., Iterable[KeyValue]]

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        fn = self.fn

        def flat_map(key: object, value: object, timestamp: int) -> None:
            for pair in fn(key, value):
                if type(pair) is not tuple:
                    pair = as_pair(pair, "flat_map")
                new_key, new_value = pair
                forward(new_key, new_value, timestamp)

        return flat_map


@dataclass(frozen=True, slots=True)
class FlatMapValues(OperatorSupplier):
    """`flat_map_values`; `fn(value)`, or `fn(key, value)` if `with_key`, returns the values that take the record's place."""

    fn: Callable[..., Iterable[object]]
    with_key: bool = False

    def keeps_key(self) -> bool:
        return True

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        fn = self.fn

        def flat_map_values(key: object, value: object, timestamp: int) -> None:
            for new_value in fn(value):
                forward(key, new_value, timestamp)

        def flat_map_values_with_key(key: object, value: object, timestamp: int) -> None:
            for new_value in fn(key, value):
                forward(key, new_value, timestamp)

        return flat_map_values_with_key if self.with_key else flat_map_values


@dataclass(frozen=True, slots=True)
class SelectKey(OperatorSupplier):
    """`select_key` and the key of `group_by`; `fn(key, value)` returns the new key."""

    fn: Callable[..., object]

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        fn = self.fn

        def select_key(key: object, value: object, timestamp: int) -> None:
            forward(fn(key, value), value, timestamp)

        return select_key


@dataclass(frozen=True, slots=True)
class Split(OperatorSupplier):
    """`split`: forwards a record to the first branch whose predicate matches, else to `default`, if there is one.

    `branches`: predicates of (key, value), each with the name of the branch's node.
    """

    branches: tuple[tuple[Callable[..., object], str], ...]
    default: str | None

    def keeps_key(self) -> bool:
        return True

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        branches = tuple((predicate, context.children[name]) for predicate, name in self.branches)
        rest = no_children if self.default is None else context.children[self.default]

        def split(key: object, value: object, timestamp: int) -> None:
            for predicate, branch in branches:
                if predicate(key, value):
                    branch(key, value, timestamp)
                    return
            rest(key, value, timestamp)

        return split


@dataclass(frozen=True, slots=True)
class Peek(OperatorSupplier):
    """`peek`; calls `fn(key, value)` for its side effect and forwards the record."""

    fn: Callable[..., object]

    def keeps_key(self) -> bool:
        return True

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        fn = self.fn

        def peek(key: object, value: object, timestamp: int) -> None:
            fn(key, value)
            forward(key, value, timestamp)

        return peek


@dataclass(frozen=True, slots=True)
class Foreach(OperatorSupplier):
    """`foreach`; calls `fn(key, value)` for its side effect and forwards nothing."""

    fn: Callable[..., object]

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        fn = self.fn

        def foreach(key: object, value: object, timestamp: int) -> None:
            fn(key, value)

        return foreach


@dataclass(frozen=True, slots=True)
class Print(OperatorSupplier):
    """`print`: a line for each record, the label followed by `text(key, value)`. Standard output is looked up at each record. A file is
    opened for appending, because all tasks write to it, and flushed at each commit."""

    label: str
    text: Callable[..., str]
    path: Path | None = None

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        label, text = self.label, self.text
        if self.path is None:

            def to_sys_out(key: object, value: object, timestamp: int) -> None:
                print(f"[{label}]: {text(key, value)}", file=sys.stdout, flush=True)

            return to_sys_out
        file = self.path.open("a", encoding="utf-8")
        context.hooks.before_commit.append(file.flush)
        context.hooks.close.append((context.name, file.close))
        write = file.write

        def to_file(key: object, value: object, timestamp: int) -> None:
            write(f"[{label}]: {text(key, value)}\n")

        return to_file


def key_and_value(key: object, value: object) -> str:
    """Return the default text of a record."""
    return f"{key}, {value}"
