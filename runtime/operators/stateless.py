"""Operators without state, on streams. Each is Kafka Streams' `KStream…` processor of the same name.

Timestamps and headers of results are those of the record they come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from runtime.operators.base import OperatorSupplier, no_children
from runtime.operators.context import Forward, NodeContext

KeyValue = tuple[object, object]
"""A key-value result of a user's mapper."""


def as_pair(result: object, operation: str) -> KeyValue:
    """A key-value result that is not a plain tuple: a named tuple or a list will do. Raises TypeError for anything else."""
    if isinstance(result, tuple | list) and len(result) == 2:
        return result[0], result[1]
    raise TypeError(f"{operation} expects a pair (key, value), a tuple, from its mapper, which returned {result!r}")


@dataclass(frozen=True, slots=True)
class PassThrough(OperatorSupplier):
    """Hands on what it gets: the node of a `merge`, or of a source that feeds an operator of another kind."""

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        return forward


@dataclass(frozen=True, slots=True)
class Filter(OperatorSupplier):
    """`filter` and (negated) `filter_not`; `predicate(key, value)`."""

    predicate: Callable[..., object]
    negate: bool = False

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
class Map(OperatorSupplier):
    """`map`; `fn(key, value)` returns the new key and value as a pair."""

    fn: Callable[..., KeyValue]

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        fn = self.fn

        def map_record(key: object, value: object, timestamp: int) -> None:
            pair = fn(key, value)
            if type(pair) is not tuple:  # a str of two characters could be unpacked too
                pair = as_pair(pair, "map")
            new_key, new_value = pair
            forward(new_key, new_value, timestamp)

        return map_record


@dataclass(frozen=True, slots=True)
class MapValues(OperatorSupplier):
    """`map_values`; `fn(value)`, or `fn(key, value)` if `with_key`."""

    fn: Callable[..., object]
    with_key: bool = False

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
    """The head of `split`: `branches` are predicates of (key, value), each with the name of the child that gets its records; what none of
    them takes goes to `default`, if there is one."""

    branches: tuple[tuple[Callable[..., object], str], ...]
    default: str | None

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
    """`peek`; `fn(key, value)` is called for its effect, then the record goes on."""

    fn: Callable[..., object]

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        fn = self.fn

        def peek(key: object, value: object, timestamp: int) -> None:
            fn(key, value)
            forward(key, value, timestamp)

        return peek


@dataclass(frozen=True, slots=True)
class Foreach(OperatorSupplier):
    """`foreach`; `fn(key, value)` is called for its effect; nothing follows."""

    fn: Callable[..., object]

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        fn = self.fn

        def foreach(key: object, value: object, timestamp: int) -> None:
            fn(key, value)

        return foreach
