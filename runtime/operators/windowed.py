"""Aggregates over hopping and tumbling windows (Kafka Streams' `KStreamWindowAggregate`).

A record belongs to every window [start, start + size) around its timestamp, where starts are multiples of the advance and never negative. A
window takes records while its end is later than stream time minus grace; a record for an earlier one is late: dropped and counted.
Stream time here is the largest timestamp that this node has seen. It is kept with the store at each commit, so a restart does not let
records in that were late before it (Kafka Streams forgets it).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Protocol, cast

from runtime.operators.aggregate import Aggregator, Initializer, Reducer, nothing
from runtime.operators.base import OperatorSupplier
from runtime.operators.context import Forward, NodeContext, ValueGetter
from runtime.operators.materialized import key_bytes, materialize
from runtime.record import Window, Windowed
from runtime.serdes.keys import pack_window_suffix
from runtime.stores.base import EngineStore

OBSERVED_TIME = "observed.stream.time"
"""Name under which a window store keeps its aggregate's stream time."""
_INT64 = struct.Struct(">q")


class FixedWindows(Protocol):
    """Windows of a fixed size, all in ms (`TimeWindows`)."""

    @property
    def size_ms(self) -> int: ...

    @property
    def advance_ms(self) -> int: ...

    @property
    def grace_ms(self) -> int: ...


def window_starts(timestamp: int, size: int, advance: int) -> range:
    """Starts of the windows that hold a timestamp, earliest first (Kafka Streams' `TimeWindows.windowsFor`)."""
    return range(max(0, timestamp - size + advance) // advance * advance, timestamp + 1, advance)


def _observed_time(store: EngineStore) -> int:
    kept = store.get_meta(OBSERVED_TIME)
    return -1 if kept is None else int(_INT64.unpack(kept)[0])


@dataclass(frozen=True, slots=True)
class WindowAggregate(OperatorSupplier):
    """`aggregate` of a windowed stream; the result is a table of `Windowed` keys."""

    store_name: str
    windows: FixedWindows
    initializer: Initializer
    aggregator: Aggregator

    def can_send_old(self, parent_can: bool) -> bool:
        return True

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        to_bytes, load, update, value_of, objects, emit, store = materialize(context, forward, self.store_name)
        initializer, aggregator, task, drop = self.initializer, self.aggregator, context.task, context.task.dropped.add
        size, advance, grace, send_old = self.windows.size_ms, self.windows.advance_ms, self.windows.grace_ms, context.send_old
        suffix = pack_window_suffix
        kept = observed = _observed_time(store)

        def keep_observed_time() -> None:
            nonlocal kept
            if observed != kept:
                store.set_meta(OBSERVED_TIME, _INT64.pack(observed))
                kept = observed

        context.hooks.before_commit.append(keep_observed_time)

        def aggregate(key: object, value: object, timestamp: int) -> None:
            nonlocal observed
            if key is None or value is None:
                drop()
                return
            if timestamp > observed:
                observed = timestamp
            open_after = observed - grace - size
            raw_key = to_bytes(key)
            first = timestamp - size + advance
            start = first // advance * advance if first > 0 else 0
            while start <= timestamp:
                if start <= open_after:
                    drop()
                    start += advance
                    continue
                raw = raw_key + suffix(start, 0)
                entry = load(raw)
                old = entry.value if objects else value_of(entry)
                at = timestamp
                if old is None:
                    new = aggregator(key, value, initializer())
                else:
                    if entry.timestamp > at:
                        at = entry.timestamp
                    new = aggregator(key, value, old)
                # A window that is updated again needs no new key object.
                windowed = entry.key
                if windowed is None:
                    windowed = Windowed(key, Window(start, start + size))
                if emit is None:
                    update(raw, windowed, entry, new, at, task.headers)
                else:
                    before = (old if objects else value_of(entry)) if send_old else None
                    update(raw, windowed, entry, new, at, task.headers)
                    emit(windowed, new, before, at)
                start += advance

        return aggregate

    def value_getter(self, context: NodeContext, parent: ValueGetter | None) -> ValueGetter:
        return window_getter(context, self.store_name)


def window_getter(context: NodeContext, store_name: str) -> ValueGetter:
    """Reads a windowed table by its `Windowed` keys."""
    store = context.engine_store(store_name)
    to_bytes, load, value_of = key_bytes(store), store.entry, store.value_of

    def get(key: object) -> object:
        inner, window = cast(Windowed, key)
        return value_of(load(to_bytes(inner) + pack_window_suffix(window.start, 0)))

    return get


class _SpecialWindowAggregate(OperatorSupplier):
    """A window aggregate that the DSL has its own word for."""

    __slots__ = ()
    store_name: str

    def _general(self) -> WindowAggregate:
        raise NotImplementedError

    def can_send_old(self, parent_can: bool) -> bool:
        return True

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        return self._general().build(context, forward)

    def value_getter(self, context: NodeContext, parent: ValueGetter | None) -> ValueGetter:
        return window_getter(context, self.store_name)


@dataclass(frozen=True, slots=True)
class WindowCount(_SpecialWindowAggregate):
    """`count` of a windowed stream."""

    store_name: str
    windows: FixedWindows

    def _general(self) -> WindowAggregate:
        def count(key: object, value: object, aggregate: object) -> object:
            return aggregate + 1  # type: ignore[operator]  # a count is an int

        return WindowAggregate(self.store_name, self.windows, lambda: 0, count)


@dataclass(frozen=True, slots=True)
class WindowReduce(_SpecialWindowAggregate):
    """`reduce` of a windowed stream: the first value of a window is its first aggregate."""

    store_name: str
    windows: FixedWindows
    reducer: Reducer

    def _general(self) -> WindowAggregate:
        reducer = self.reducer

        def reduce(key: object, value: object, aggregate: object) -> object:
            return value if aggregate is None else reducer(aggregate, value)

        return WindowAggregate(self.store_name, self.windows, nothing, reduce)
