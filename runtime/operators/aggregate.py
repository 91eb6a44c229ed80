"""Aggregates of grouped streams and grouped tables (Kafka Streams' `KStreamAggregate`, `KStreamReduce`, `KTableAggregate`, `KTableReduce`).

The timestamp of a result is the larger of the record's and the aggregate's. A deletion forwarded by a cache has the record's timestamp, as
in Kafka Streams, whose caches keep no timestamp without a value. A stream's record without a key or value is dropped and counted. For a
change of a grouped table, the old value is subtracted before the new one is added. A result of None is a tombstone: the next record starts
again from the initializer.

The count of a stream has its own operator, because it is the most common aggregate and calling an aggregator would double its cost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.runtime.model.record import Change
from penstock.runtime.operators.base import OperatorSupplier, of_changes
from penstock.runtime.operators.context import Forward, LookUp, NodeContext, ValueGetter
from penstock.runtime.operators.materialized import entries_of, finder, materialize, store_getter
from penstock.runtime.operators.mistakes import dropping, watch_results

Initializer = Callable[[], object]
Aggregator = Callable[..., object]
"""(key, value, aggregate) -> aggregate."""
Reducer = Callable[..., object]
"""(aggregate, value) -> aggregate."""


class StoreAggregate(OperatorSupplier):
    """Base of all aggregates. They are tables with a store, so they can send old values."""

    __slots__ = ()
    store_name: str

    def can_send_old(self, parent_can: bool) -> bool:
        return True

    def value_getter(self, context: NodeContext, parent: ValueGetter | None) -> ValueGetter:
        return store_getter(context, self.store_name)


class _StreamAggregate(StoreAggregate):
    """Base of aggregates of a stream, which read the entry of each record's key."""

    __slots__ = ()

    def look_up(self, context: NodeContext) -> LookUp | None:
        return entries_of(context, self.store_name)


def nothing() -> None:
    """The initializer of a reduce: there is no aggregate before the first value."""


def counted(key: object, value: object, count: object) -> object:
    """Aggregator of a count."""
    return count + 1  # type: ignore[operator]  # a count is an int


def zero() -> int:
    """Initializer of a count."""
    return 0


def reducing(reducer: Reducer) -> Aggregator:
    """Return the aggregator of a reduce: the first value is the first aggregate."""

    def reduce(key: object, value: object, aggregate: object) -> object:
        return value if aggregate is None else reducer(aggregate, value)

    return reduce


@dataclass(frozen=True, slots=True)
class StreamCount(_StreamAggregate):
    """`count` of a grouped stream."""

    store_name: str

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        to_bytes, load, update, value_of, objects, emit, store = materialize(context, forward, self.store_name)
        task, drop, find = context.task, dropping(context), finder(store)

        def count_cached(key: object, value: object, timestamp: int) -> None:
            if key is None or value is None:
                drop(key)
                return
            raw = to_bytes(key)
            entry = find(raw) or load(raw)
            old = entry.value
            if old is None:
                update(raw, key, entry, 1, timestamp, task.headers)
            else:
                held = entry.timestamp
                update(raw, key, entry, old + 1, timestamp if timestamp > held else held, task.headers)  # type: ignore[operator]

        def count(key: object, value: object, timestamp: int) -> None:
            if key is None or value is None:
                drop(key)
                return
            raw = to_bytes(key)
            entry = find(raw) or load(raw)
            old = entry.value if objects else value_of(entry)
            new = 1
            if old is not None:
                new = old + 1  # type: ignore[operator]  # a count is an int
                if entry.timestamp > timestamp:
                    timestamp = entry.timestamp
            update(raw, key, entry, new, timestamp, task.headers)
            if emit is not None:
                emit(key, new, old, timestamp)

        return count_cached if objects and emit is None else count


@dataclass(frozen=True, slots=True)
class StreamAggregate(_StreamAggregate):
    """`aggregate` of a grouped stream."""

    store_name: str
    initializer: Initializer
    aggregator: Aggregator

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        to_bytes, load, update, value_of, objects, emit, store = materialize(context, forward, self.store_name)
        initializer, aggregator, send_old = self.initializer, self.aggregator, context.send_old
        task, drop, find = context.task, dropping(context), finder(store)

        def use(chosen: Aggregator) -> None:
            nonlocal aggregator
            aggregator = chosen

        watch_results(context, aggregator, use)

        def aggregate(key: object, value: object, timestamp: int) -> None:
            if key is None or value is None:
                drop(key)
                return
            raw = to_bytes(key)
            entry = find(raw) or load(raw)
            old = entry.value if objects else value_of(entry)
            at = timestamp
            if old is None:
                new = aggregator(key, value, initializer())
            else:
                if entry.timestamp > at:
                    at = entry.timestamp
                new = aggregator(key, value, old)
            if emit is None:
                update(raw, key, entry, new, timestamp if new is None else at, task.headers)
            else:
                # Read again: the aggregator may have changed `old` in place.
                before = (old if objects else value_of(entry)) if send_old else None
                update(raw, key, entry, new, at, task.headers)
                emit(key, new, before, at)

        return aggregate


@dataclass(frozen=True, slots=True)
class StreamReduce(_StreamAggregate):
    """`reduce` of a grouped stream: the first value of a key is its first aggregate."""

    store_name: str
    reducer: Reducer

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        return StreamAggregate(self.store_name, nothing, reducing(self.reducer)).build(context, forward)


@dataclass(frozen=True, slots=True)
class TableAggregate(StoreAggregate):
    """`aggregate` of a grouped table."""

    store_name: str
    initializer: Initializer
    adder: Aggregator
    subtractor: Aggregator

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        to_bytes, load, update, value_of, objects, emit, _ = materialize(context, forward, self.store_name)
        initializer, adder, subtractor = self.initializer, self.adder, self.subtractor
        task, drop, send_old = context.task, dropping(context), context.send_old

        def use(chosen: Aggregator) -> None:
            nonlocal adder
            adder = chosen

        watch_results(context, adder, use)

        def aggregate(key: object, change: Change, timestamp: int) -> None:
            if key is None:
                drop(key)
                return
            added, removed = change
            raw = to_bytes(key)
            entry = load(raw)
            value = entry.value if objects else value_of(entry)
            known, at = value is not None, timestamp
            if known:
                if entry.timestamp > at and (added is not None or removed is not None):
                    at = entry.timestamp
                if removed is not None:
                    value = subtractor(key, removed, value)
            if added is not None:
                value = adder(key, added, initializer() if value is None else value)
            if value is None and not known:
                return
            before = None if emit is None or not send_old else entry.value if objects else value_of(entry)
            update(raw, key, entry, value, timestamp if value is None else at, task.headers)
            if emit is not None:
                emit(key, value, before, at)

        return of_changes(aggregate)


@dataclass(frozen=True, slots=True)
class TableReduce(StoreAggregate):
    """`reduce` of a grouped table."""

    store_name: str
    adder: Reducer
    subtractor: Reducer

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        subtractor = self.subtractor

        def subtract(key: object, value: object, aggregate: object) -> object:
            return subtractor(aggregate, value)

        return TableAggregate(self.store_name, nothing, reducing(self.adder), subtract).build(context, forward)


@dataclass(frozen=True, slots=True)
class TableCount(StoreAggregate):
    """`count` of a grouped table: the number of rows in each group, 0 after the last row has left."""

    store_name: str

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        def subtract(key: object, value: object, count: object) -> object:
            return count - 1  # type: ignore[operator]  # a count is an int

        return TableAggregate(self.store_name, zero, counted, subtract).build(context, forward)


@dataclass(frozen=True, slots=True)
class Cogrouped(OperatorSupplier):
    """The table of a cogroup, whose aggregates share one store (Kafka Streams' `KTablePassThrough`). `first` is one of the aggregates."""

    first: OperatorSupplier

    @property
    def store_name(self) -> str | None:
        """Name of the table's store."""
        return getattr(self.first, "store_name", None)

    def wants_old(self, wanted_below: bool) -> bool:
        return wanted_below

    def can_send_old(self, parent_can: bool) -> bool:
        return parent_can

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        return forward

    def build_plain(self, context: NodeContext, forward: Forward) -> Forward | None:
        return context.plain_forward

    def value_getter(self, context: NodeContext, parent: ValueGetter | None) -> ValueGetter:
        return self.first.value_getter(context, None)
