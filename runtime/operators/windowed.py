"""Aggregates over hopping and tumbling windows (Kafka Streams' `KStreamWindowAggregate`), and over custom windows.

A record belongs to every window [start, start + size) around its timestamp, where starts are multiples of the advance and never negative. A
window accepts records while its end is later than stream time minus grace; a late record is dropped and counted. Stream time here is the
largest timestamp that this node has seen. It is committed with the store, so that records which were late before a restart are late after
it (Kafka Streams loses it).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast, runtime_checkable

from penstock.runtime.model.errors import InvalidStateStoreError
from penstock.runtime.model.record import Window, Windowed
from penstock.runtime.operators.aggregate import Aggregator, Initializer, StoreAggregate
from penstock.runtime.operators.context import Forward, LookUp, NodeContext, ValueGetter
from penstock.runtime.operators.event_time import OBSERVED_TIME, DroppedRecords, OpenWindows, commit_time, committed_time
from penstock.runtime.operators.materialized import (
    Materialized,
    change_emitter,
    entries_of,
    finder,
    key_bytes,
    materialize,
    materialize_silent,
)
from penstock.runtime.operators.mistakes import watch_results
from penstock.runtime.serdes.keys import WINDOW_SUFFIX, pack_window_suffix
from penstock.runtime.stores.segmented import LAST
from penstock.runtime.stores.window import StagedWindowStore


class Windows(Protocol):
    """Protocol of windows, in ms (Kafka Streams' `Windows`); custom windows implement it."""

    @property
    def size_ms(self) -> int:
        """Size of the windows, which their store needs."""
        ...

    @property
    def grace_period_ms(self) -> int:
        """Time after its end during which a window still accepts records."""
        ...

    def windows_for(self, timestamp: int) -> Mapping[int, Window]:
        """Return the windows that contain a timestamp, by their starts, in the order in which they are updated."""
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


class WindowedAggregate(StoreAggregate):
    """Base of aggregates over windows or sessions."""

    __slots__ = ()

    def value_getter(self, context: NodeContext, parent: ValueGetter | None) -> ValueGetter:
        return window_getter(context, self.store_name)


@dataclass(frozen=True, slots=True)
class WindowAggregate(WindowedAggregate):
    """`aggregate` of a windowed stream; the result is a table of `Windowed` keys.

    `on_close`: results are emitted when their window closes. `part`: the aggregate's number if several share one store (`cogroup`).
    """

    store_name: str
    windows: Windows | FixedWindows
    initializer: Initializer
    aggregator: Aggregator
    on_close: bool = False
    part: int = 0

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        table, opened = windows_table(context, forward, self.store_name, self.on_close)
        if isinstance(self.windows, FixedWindows):
            return self._fixed(context, table, opened, self.windows)
        return self._custom(context, table, self.windows)

    def _fixed(self, context: NodeContext, table: Materialized, opened: OpenWindows | None, windows: FixedWindows) -> Forward:
        to_bytes, load, update, value_of, objects, emit, store = table
        initializer, aggregator, task, drops = self.initializer, self.aggregator, context.task, DroppedRecords(context)
        size, advance, grace, send_old = windows.size_ms, windows.advance_ms, windows.grace_period_ms, context.send_old
        suffix, find = pack_window_suffix, finder(store)
        window = Window(0, size)  # the last window used, which most records share with the previous one
        observed = committed_time(context, store, observed_name(self.part))
        commit_time(context, store, observed_name(self.part), lambda: observed)

        def use(chosen: Aggregator) -> None:
            nonlocal aggregator
            aggregator = chosen

        watch_results(context, aggregator, use)

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
                # An entry that exists has its key object already.
                windowed = entry.key
                if windowed is None:
                    if window[0] != start:
                        window = Window(start, min(start + size, LAST))
                    windowed = Windowed(key, window)
                if emit is not None:
                    before = (old if objects else value_of(entry)) if send_old else None
                    update(raw, windowed, entry, new, at, task.headers)
                    emit(windowed, new, before, at)
                else:
                    # As in Kafka Streams, a deletion forwarded by a cache has the record's timestamp.
                    update(raw, windowed, entry, new, timestamp if new is None else at, task.headers)
                    if opened is not None and old is None:
                        opened.add(start, raw, cast(Windowed, windowed))
                start += advance
            if opened is not None and opened.first <= open_after:
                opened.emit(open_after, observed - grace)

        return aggregate

    def _custom(self, context: NodeContext, table: Materialized, windows: Windows) -> Forward:
        to_bytes, load, update, value_of, _, emit, store = table
        initializer, aggregator, task, drops = self.initializer, self.aggregator, context.task, DroppedRecords(context)
        grace, send_old = windows.grace_period_ms, context.send_old
        observed = committed_time(context, store, observed_name(self.part))
        commit_time(context, store, observed_name(self.part), lambda: observed)

        def use(chosen: Aggregator) -> None:
            nonlocal aggregator
            aggregator = chosen

        watch_results(context, aggregator, use)

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

    def look_up(self, context: NodeContext) -> LookUp | None:
        if not isinstance(self.windows, FixedWindows):
            return None
        suffix, size, advance = pack_window_suffix, self.windows.size_ms, self.windows.advance_ms

        def keys(raw: Sequence[bytes], timestamps: Sequence[int]) -> list[bytes]:
            if size == advance:
                return [key + suffix(at // size * size, 0) for key, at in zip(raw, timestamps, strict=True) if at >= 0]
            firsts = [max(0, at - size + advance) // advance * advance for at in timestamps]
            starts = [range(first, at + 1, advance) for first, at in zip(firsts, timestamps, strict=True)]
            return [key + suffix(start, 0) for key, those in zip(raw, starts, strict=True) for start in those]

        return entries_of(context, self.store_name, keys)


def observed_name(part: int) -> str:
    """Return the name of an aggregate's stream time in its store. Each aggregate of a cogroup has its own, as in Kafka Streams."""
    return f"{OBSERVED_TIME}.{part}" if part else OBSERVED_TIME


def windows_table(
    context: NodeContext, forward: Forward, store_name: str, on_close: bool, last: int = 0
) -> tuple[Materialized, OpenWindows | None]:
    """Return the store of a windowed aggregate and, for results on close, the windows in it that are not emitted yet. `last` is 1 for
    windows with an inclusive end."""
    if not on_close:
        return materialize(context, forward, store_name), None
    table = materialize_silent(context, store_name)
    store = table.store
    if not isinstance(store, StagedWindowStore):
        raise InvalidStateStoreError(f"node {context.name}: store {store_name!r} is not a window store")
    opened = OpenWindows(context, table, change_emitter(context, forward), lambda store_key: store_key[:-WINDOW_SUFFIX])
    for windowed, _ in store.all():
        start, end = windowed.window
        if end + last > opened.emitted or opened.emitted < 0:
            opened.add(start, table.to_bytes(windowed.key) + pack_window_suffix(start, 0), windowed)
    return table, opened


def window_getter(context: NodeContext, store_name: str) -> ValueGetter:
    """Return a function that reads a windowed table by its `Windowed` keys."""
    store = context.engine_store(store_name)
    to_bytes, load, value_of = key_bytes(store), store.entry, store.value_of

    def get(key: object) -> object:
        inner, window = cast(Windowed, key)
        return value_of(load(to_bytes(inner) + pack_window_suffix(window.start, 0)))

    return get
