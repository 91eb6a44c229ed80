"""Aggregates over hopping and tumbling windows (Kafka Streams' `KStreamWindowAggregate`), and over windows of the user's own making.

A record belongs to every window [start, start + size) around its timestamp, where starts are multiples of the advance and never negative. A
window takes records while its end is later than stream time minus grace; a record for an earlier one is late: dropped and counted.
Stream time here is the largest timestamp that this node has seen. It is kept with the store at each commit, so a restart does not let
records in that were late before it (Kafka Streams forgets it).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, cast, runtime_checkable

from runtime.errors import InvalidStateStoreError
from runtime.operators.aggregate import Aggregator, Initializer, Reducer
from runtime.operators.base import OperatorSupplier
from runtime.operators.context import Forward, NodeContext, ValueGetter
from runtime.operators.drops import Drops
from runtime.operators.final import OpenWindows
from runtime.operators.kept_time import OBSERVED_TIME, keep_time, kept_time
from runtime.operators.materialized import Materialized, change_emitter, finder, key_bytes, materialize, materialize_silent
from runtime.record import Window, Windowed
from runtime.serdes.keys import WINDOW_SUFFIX, pack_window_suffix
from runtime.stores.window import StagedWindowStore


class Windows(Protocol):
    """How time is cut (Kafka Streams' `Windows`); also what a class of the user's must have. In ms."""

    @property
    def size_ms(self) -> int:
        """The size of the windows, which their store needs to know."""
        ...

    @property
    def grace_period_ms(self) -> int:
        """How long after its end a window still takes records."""
        ...

    def windows_for(self, timestamp: int) -> Mapping[int, Window]:
        """The windows that hold a timestamp, by their starts, in the order in which they are updated."""
        ...


@runtime_checkable
class FixedWindows(Protocol):
    """Windows of a fixed size that begin at multiples of the advance, in ms (`TimeWindows`)."""

    @property
    def size_ms(self) -> int: ...

    @property
    def advance_ms(self) -> int: ...

    @property
    def grace_period_ms(self) -> int: ...


@dataclass(frozen=True, slots=True)
class WindowAggregate(OperatorSupplier):
    """`aggregate` of a windowed stream; the result is a table of `Windowed` keys.

    `on_close`: results go out when their window is closed. `part`: its number where several aggregates fill one store (`cogroup`).
    """

    store_name: str
    windows: Windows | FixedWindows
    initializer: Initializer
    aggregator: Aggregator
    on_close: bool = False
    part: int = 0

    def can_send_old(self, parent_can: bool) -> bool:
        return True

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        table, opened = windows_table(context, forward, self.store_name, self.on_close)
        if isinstance(self.windows, FixedWindows):
            return self._fixed(context, table, opened, self.windows)
        return self._of_users(context, table, opened, self.windows)

    def _fixed(self, context: NodeContext, table: Materialized, opened: OpenWindows | None, windows: FixedWindows) -> Forward:
        to_bytes, load, update, value_of, objects, emit, store = table
        initializer, aggregator, task, drops = self.initializer, self.aggregator, context.task, Drops(context)
        size, advance, grace, send_old = windows.size_ms, windows.advance_ms, windows.grace_period_ms, context.send_old
        suffix, find = pack_window_suffix, finder(store)
        window = Window(0, size)  # the last one: most records belong to the same as the one before
        observed = kept_time(context, store, observed_name(self.part))
        keep_time(context, store, observed_name(self.part), lambda: observed)

        def aggregate(key: object, value: object, timestamp: int) -> None:
            nonlocal observed, window
            if key is None or value is None:
                drops.null()
                return
            if timestamp > observed:
                observed = timestamp
            open_after = observed - grace - size
            raw_key = to_bytes(key)
            first = timestamp - size + advance
            start = first // advance * advance if first > 0 else 0
            while start <= timestamp:
                if start <= open_after:
                    drops.late(timestamp, f"[{start},{start + size})", observed - grace, observed)
                    start += advance
                    continue
                raw = raw_key + suffix(start, 0)
                entry = find(raw) or load(raw)
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
                    if window[0] != start:
                        window = Window(start, start + size)
                    windowed = Windowed(key, window)
                if emit is not None:
                    before = (old if objects else value_of(entry)) if send_old else None
                    update(raw, windowed, entry, new, at, task.headers)
                    emit(windowed, new, before, at)
                else:
                    # As in Kafka Streams, a deletion that a cache tells of has the record's own time.
                    update(raw, windowed, entry, new, timestamp if new is None else at, task.headers)
                    if opened is not None and old is None:
                        opened.add(start, raw, cast(Windowed, windowed))
                start += advance
            if opened is not None and opened.first <= open_after:
                opened.emit(open_after, observed - grace)

        return aggregate

    def _of_users(self, context: NodeContext, table: Materialized, opened: OpenWindows | None, windows: Windows) -> Forward:
        to_bytes, load, update, value_of, _, emit, store = table
        initializer, aggregator, task, drops = self.initializer, self.aggregator, context.task, Drops(context)
        grace, send_old = windows.grace_period_ms, context.send_old
        observed = kept_time(context, store, observed_name(self.part))
        keep_time(context, store, observed_name(self.part), lambda: observed)

        def aggregate(key: object, value: object, timestamp: int) -> None:
            nonlocal observed
            if key is None or value is None:
                drops.null()
                return
            observed = max(observed, timestamp)
            closed = observed - grace
            raw_key = to_bytes(key)
            for start, window in windows.windows_for(timestamp).items():
                if window.end <= closed:
                    drops.late(timestamp, f"[{start},{window.end})", closed, observed)
                    continue
                raw = raw_key + pack_window_suffix(start, 0)
                entry = load(raw)
                old = value_of(entry)
                at = timestamp if old is None else max(timestamp, entry.timestamp)
                new = aggregator(key, value, initializer() if old is None else old)
                windowed = Windowed(key, window)
                before = value_of(entry) if emit is not None and send_old else None
                update(raw, windowed, entry, new, timestamp if new is None and emit is None else at, task.headers)
                if emit is not None:
                    emit(windowed, new, before, at)

        return aggregate

    def value_getter(self, context: NodeContext, parent: ValueGetter | None) -> ValueGetter:
        return window_getter(context, self.store_name)


def observed_name(part: int) -> str:
    """Under which name the store keeps an aggregate's stream time; each of a cogroup has its own, as in Kafka Streams."""
    return f"{OBSERVED_TIME}.{part}" if part else OBSERVED_TIME


def windows_table(
    context: NodeContext, forward: Forward, store_name: str, on_close: bool, last: int = 0
) -> tuple[Materialized, OpenWindows | None]:
    """The store of an aggregate over windows and, where results go out on close, the windows in it that are not out yet. `last` is 1 for
    windows whose end belongs to them."""
    if not on_close:
        return materialize(context, forward, store_name), None
    table = materialize_silent(context, store_name)
    store = table.store
    if not isinstance(store, StagedWindowStore):
        raise InvalidStateStoreError(f"node {context.name}: store {store_name!r} keeps no windows")
    opened = OpenWindows(context, table, change_emitter(context, forward), lambda store_key: store_key[:-WINDOW_SUFFIX])
    for windowed, _ in store.all():
        start, end = windowed.window
        if end + last > opened.emitted or opened.emitted < 0:
            opened.add(start, table.to_bytes(windowed.key) + pack_window_suffix(start, 0), windowed)
    return table, opened


def window_getter(context: NodeContext, store_name: str) -> ValueGetter:
    """Reads a windowed table by its `Windowed` keys."""
    store = context.engine_store(store_name)
    to_bytes, load, value_of = key_bytes(store), store.entry, store.value_of

    def get(key: object) -> object:
        inner, window = cast(Windowed, key)
        return value_of(load(to_bytes(inner) + pack_window_suffix(window.start, 0)))

    return get


def counted(key: object, value: object, count: object) -> object:
    """The aggregator of a count."""
    return count + 1  # type: ignore[operator]  # a count is an int


def zero() -> int:
    """The initializer of a count."""
    return 0


def reducing(reducer: Reducer) -> Aggregator:
    """The aggregator of a reduce: the first value is the first aggregate."""

    def reduce(key: object, value: object, aggregate: object) -> object:
        return value if aggregate is None else reducer(aggregate, value)

    return reduce
