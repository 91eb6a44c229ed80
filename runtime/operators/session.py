"""Aggregates over sessions (Kafka Streams' `KStreamSessionWindowAggregate`).

A session is a period of activity of a key without a pause longer than the inactivity gap. A record is merged with all sessions within the
gap (the merger combines their aggregates), or starts a new one. Each session that is replaced is removed, with a tombstone, before the
merged one is put. A result's timestamp is the end of its session. A record is late if the session that would contain it ended before stream
time minus grace minus gap.

The sessions of a key are cached in memory (`StagedSegmentedStore.suffixes`); Kafka Streams reads a range of the store for each record.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from penstock.runtime.model.errors import InvalidStateStoreError
from penstock.runtime.model.record import Headers, SessionWindow, Windowed
from penstock.runtime.operators.aggregate import Aggregator, Initializer
from penstock.runtime.operators.context import Forward, NodeContext, ValueGetter
from penstock.runtime.operators.event_time import DroppedRecords, OpenWindows, Order, commit_time, committed_time
from penstock.runtime.operators.materialized import Emit, Materialized, change_emitter, key_bytes, materialize, materialize_silent
from penstock.runtime.operators.mistakes import watch_results
from penstock.runtime.operators.windowed import WindowedAggregate, observed_name
from penstock.runtime.serdes.keys import SESSION_SUFFIX, pack_session_suffix, pack_timestamp, unpack_session_suffix
from penstock.runtime.stores.base import Entry
from penstock.runtime.stores.window import StagedSessionStore

Merger = Callable[[object, object, object], object]
"""(key, aggregate, aggregate) -> aggregate."""


_Merged = tuple[bytes, int, int, Entry]
"""A session that a record is merged with: the part of its store key after the record's key, start and end in ms, entry."""


@dataclass(frozen=True, slots=True)
class SessionAggregate(WindowedAggregate):
    """`aggregate` over sessions; gap and grace in ms. `on_close` and `part` as in `WindowAggregate`."""

    store_name: str
    gap_ms: int
    grace_ms: int
    initializer: Initializer
    aggregator: Aggregator
    merger: Merger
    on_close: bool = False
    part: int = 0

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        table, opened = self._table(context, forward)
        to_bytes, load, update, value_of, objects, emit, store = table
        assert isinstance(store, StagedSessionStore)  # `_table` has checked it
        suffixes, extend, task = store.suffixes, store.extend, context.task
        drops, send_old = DroppedRecords(context), context.send_old
        initializer, aggregator, merger = self.initializer, self.aggregator, self.merger
        gap, grace = self.gap_ms, self.grace_ms
        observed = committed_time(context, store, observed_name(self.part))
        commit_time(context, store, observed_name(self.part), lambda: observed)

        def forward_result(windowed: Windowed, new: object, old: object, end: int) -> None:
            """Forward a result without headers, as Kafka Streams does without a cache."""
            headers, task.headers = task.headers, None
            emit(windowed, new, old, end)  # type: ignore[misc]  # the callers have checked that it is not None
            task.headers = headers

        def remove(key: object, raw: bytes, merged: _Merged, timestamp: int, known: list[bytes]) -> None:
            """Remove a session that is merged into another one."""
            suffix, start, end, entry = merged
            windowed = cast("Windowed | None", entry.key) or Windowed(key, SessionWindow(start, end))
            before = value_of(entry) if send_old and emit is not None else None
            known.remove(suffix)
            update(raw + suffix, windowed, entry, None, timestamp, task.headers)
            if emit is not None:
                forward_result(windowed, None, before, end)
            elif opened is not None:
                opened.remove(end, raw + suffix)

        def use(chosen: Aggregator) -> None:
            nonlocal aggregator
            aggregator = chosen

        watch_results(context, aggregator, use)

        def aggregate(key: object, value: object, timestamp: int) -> None:
            nonlocal observed
            if key is None or value is None:
                drops.null()
                return
            if timestamp > observed:
                observed = timestamp
            closed = observed - grace - gap
            raw = to_bytes(key)
            known = suffixes(raw)
            total = initializer()
            start = end = timestamp
            merged: list[_Merged] = []
            if known:
                for suffix in known[bisect_left(known, pack_timestamp(max(0, timestamp - gap))) :]:
                    other_end, other_start = unpack_session_suffix(suffix)
                    if other_start > timestamp + gap:
                        break
                    entry = load(raw + suffix)
                    total = merger(key, total, entry.value if objects else value_of(entry))
                    if other_start < start:
                        start = other_start
                    if other_end > end:
                        end = other_end
                    merged.append((suffix, other_start, other_end, entry))
            if end < closed:
                drops.late(timestamp, f"[{start},{end}]", closed, observed)
            else:
                own = pack_session_suffix(end, start)
                total = aggregator(key, value, total)
                windowed = Windowed(key, SessionWindow(start, end))
                if len(merged) == 1 and total is not None and merged[0][0] != own:
                    suffix, *_, entry = merged[0]
                    if extend(raw + suffix, raw + own, windowed, entry, total, timestamp, task.headers):
                        known.remove(suffix)
                        insort(known, own)
                        return
                if start != end or end != timestamp:
                    for each in merged:
                        if each[0] != own or emit is not None:  # in a cache, only the last update of a session counts
                            remove(key, raw, each, timestamp, known)
                entry = load(raw + own)
                absent = entry.value is None
                update(raw + own, windowed, entry, total, timestamp, task.headers)
                if total is None:
                    if not absent:
                        known.remove(own)
                elif absent:
                    insort(known, own)
                    if opened is not None:
                        opened.add(end, raw + own, windowed)
                if emit is not None:
                    forward_result(windowed, total, None, end)
            if opened is not None and opened.first < closed:
                opened.emit(closed - 1, closed)

        return aggregate

    def _table(self, context: NodeContext, forward: Forward) -> tuple[Materialized, OpenWindows | None]:
        emit = change_emitter(context, forward)
        if self.on_close:
            table = materialize_silent(context, self.store_name)
        else:
            table = materialize(context, forward, self.store_name, _flush_listener(context, emit, self.store_name))
        store = table.store
        if not isinstance(store, StagedSessionStore):
            raise InvalidStateStoreError(f"node {context.name}: store {self.store_name!r} is not a session store")
        if not self.on_close:
            return table, None
        opened = OpenWindows(context, table, _at_end(emit), _by_start if store.persistent else _by_key)
        for windowed, _ in store.all():
            start, end = windowed.window
            if end >= opened.emitted:
                opened.add(end, table.to_bytes(windowed.key) + pack_session_suffix(end, start), windowed)
        return table, opened

    def value_getter(self, context: NodeContext, parent: ValueGetter | None) -> ValueGetter:
        store = context.engine_store(self.store_name)
        to_bytes, load, value_of = key_bytes(store), store.entry, store.value_of

        def get(key: object) -> object:
            inner, window = cast("Windowed", key)
            return value_of(load(to_bytes(inner) + pack_session_suffix(window.end, window.start)))

        return get


def _by_start(store_key: bytes) -> Order:
    """Return the sort key of sessions with the same end: start, then key, as in Kafka Streams' `TimeFirstSessionKeySchema`."""
    return store_key[-8:], store_key[:-SESSION_SUFFIX]


def _by_key(store_key: bytes) -> Order:
    """Return the sort key for stores in memory: key, then start (`InMemorySessionStore`)."""
    return store_key[:-SESSION_SUFFIX], store_key[-8:]


def _at_end(emit: Emit) -> Emit:
    """Return an `emit` that sets a result's timestamp to the end of its session."""

    def emit_at_end(key: object, new: object, old: object, timestamp: int) -> None:
        emit(key, new, old, cast("Windowed", key).window.end)

    return emit_at_end


def _flush_listener(context: NodeContext, emit: Emit, store_name: str) -> Callable[..., None]:
    """Return the cache's flush listener. A result's timestamp is the end of its session (Kafka Streams' `SessionCacheFlushListener`). From
    a store with headers it has those of the session there, which are none (`SessionCacheFlushListenerWithHeader`)."""
    task, without_headers = context.task, context.engine_store(store_name).keeps_headers

    def flushed(key: object, new: object, old: object, timestamp: int, headers: Headers | None) -> None:
        before = task.headers, task.offset
        task.headers, task.offset = None if without_headers else headers, -1
        try:
            emit(key, new, old, cast("Windowed", key).window.end)
        finally:
            task.headers, task.offset = before

    return flushed
