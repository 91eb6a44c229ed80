"""Aggregates over sliding windows (Kafka Streams' `KStreamSlidingWindowAggregate`).

A window [t, t + difference] includes both ends. For each record there is one that ends at it (its left window), and one that begins a
millisecond after it (its right window), as soon as that contains a record. So a record updates the windows that contain it, and may create
three: the right window of the previous record, its own left window and its own right window. A new window is initialised from a neighbour:
the left one with the aggregate of the window that contains the previous records, the right one with a copy of the window of later records.

Windows do not begin before 0: records earlier than the difference go into [0, difference]. The windows of a key are cached in memory
(`StagedSegmentedStore.suffixes`); Kafka Streams reads a range of the store for each record.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

from penstock.runtime.model.errors import InvalidStateStoreError
from penstock.runtime.model.record import Window, Windowed
from penstock.runtime.operators.aggregate import Aggregator, Initializer
from penstock.runtime.operators.context import Forward, NodeContext
from penstock.runtime.operators.event_time import DroppedRecords, commit_time, committed_time
from penstock.runtime.operators.mistakes import watch_results
from penstock.runtime.operators.windowed import WindowedAggregate, observed_name, windows_table
from penstock.runtime.serdes.keys import pack_timestamp, pack_window_suffix
from penstock.runtime.stores.base import Entry
from penstock.runtime.stores.segmented import LAST
from penstock.runtime.stores.window import StagedWindowStore


@dataclass(frozen=True, slots=True)
class SlidingAggregate(WindowedAggregate):
    """`aggregate` over windows of records that are at most `difference_ms` apart; both times in ms. `on_close` and `part` as in
    `WindowAggregate`."""

    store_name: str
    difference_ms: int
    grace_ms: int
    initializer: Initializer
    aggregator: Aggregator
    on_close: bool = False
    part: int = 0

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        (to_bytes, load, update, value_of, _, emit, store), opened = windows_table(context, forward, self.store_name, self.on_close, 1)
        if not isinstance(store, StagedWindowStore):
            raise InvalidStateStoreError(f"node {context.name}: store {self.store_name!r} is not a window store")
        initializer, aggregator, task, drops = self.initializer, self.aggregator, context.task, DroppedRecords(context)
        difference, grace, send_old, suffixes = self.difference_ms, self.grace_ms, context.send_old, store.suffixes
        observed = committed_time(context, store, observed_name(self.part))
        commit_time(context, store, observed_name(self.part), lambda: observed)

        def put(key: object, raw: bytes, start: int, entry: Entry, value: object, timestamp: int) -> None:
            """Store the window's new value and forward it."""
            suffix = pack_window_suffix(start, 0)
            windowed = entry.key
            if windowed is None:
                windowed = Windowed(key, Window(start, min(start + difference, LAST)))
            absent = entry.value is None
            before = value_of(entry) if send_old and emit is not None else None
            update(raw + suffix, windowed, entry, value, timestamp, task.headers)
            if value is None:
                if not absent:
                    suffixes(raw).remove(suffix)
            elif absent:
                insort(suffixes(raw), suffix)
                if opened is not None:
                    opened.add(start, raw + suffix, windowed)  # type: ignore[arg-type]  # the key of an entry of windows
            if emit is not None:
                emit(windowed, value, before, timestamp)

        def take(key: object, value: object, timestamp: int, raw: bytes, start: int) -> None:
            """Add the record to an existing window."""
            entry = load(raw + pack_window_suffix(start, 0))
            add(key, value, timestamp, raw, start, entry, entry)

        def begin(key: object, value: object, timestamp: int, raw: bytes, start: int, held: Entry | None = None) -> None:
            """Create a window with the aggregate `held` and add the record. (The record may have created the same window already.)"""
            add(key, value, timestamp, raw, start, load(raw + pack_window_suffix(start, 0)), held)

        def add(key: object, value: object, timestamp: int, raw: bytes, start: int, entry: Entry, held: Entry | None) -> None:
            if start + difference < observed - grace:
                drops.late(timestamp, f"[{start},{start + difference}]", observed - grace, observed)
                return
            old = None if held is None else value_of(held)
            at = timestamp if old is None or held is not entry else max(timestamp, entry.timestamp)
            new = aggregator(key, value, initializer() if old is None else old)
            # As in Kafka Streams, a deletion forwarded by a cache has the record's timestamp.
            put(key, raw, start, entry, new, timestamp if new is None and emit is None else at)

        def early(key: object, value: object, timestamp: int, raw: bytes) -> None:
            """Process a record with a timestamp below `difference`: its left window is [0, difference]."""
            known = suffixes(raw)
            starts = {int.from_bytes(suffix[:8], "big") for suffix in known[: bisect_left(known, (timestamp + 2).to_bytes(8, "big"))]}
            combined = load(raw + pack_window_suffix(0, 0)) if 0 in starts else None
            right: Entry | None = None
            for start in sorted(starts):
                if 0 < start <= timestamp:
                    right = _copy(load(raw + pack_window_suffix(start, 0)))
                    take(key, value, timestamp, raw, start)
            if right is None and combined is not None and combined.timestamp > timestamp:
                right = _copy(combined)
            if timestamp + 1 not in starts and right is not None and right.timestamp > timestamp:
                put(key, raw, timestamp + 1, load(raw + pack_window_suffix(timestamp + 1, 0)), value_of(right), right.timestamp)
            if combined is not None and combined.timestamp < timestamp and combined.timestamp + 1 not in starts:
                begin(key, value, timestamp, raw, combined.timestamp + 1)
            take(key, value, timestamp, raw, 0)

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
            closed = observed - grace
            if timestamp + difference < closed:
                drops.late(timestamp, f"[{timestamp},{timestamp + difference}]", closed, observed)
                return
            raw = to_bytes(key)
            if timestamp < difference:
                early(key, value, timestamp, raw)
            else:
                slide(key, value, timestamp, raw)
            if opened is not None and opened.first < closed - difference:
                opened.emit(closed - difference - 1, closed)

        def slide(key: object, value: object, timestamp: int, raw: bytes) -> None:
            known = suffixes(raw)
            first = bisect_left(known, pack_timestamp(max(0, timestamp - 2 * difference)))
            near = known[first : bisect_left(known, (timestamp + 2).to_bytes(8, "big"))]
            starts: set[int] = set()
            left: Entry | None = None
            right: Entry | None = None
            left_made, previous = False, -1
            for suffix in reversed(near):
                start = int.from_bytes(suffix[:8], "big")
                starts.add(start)
                end = start + difference
                if start == timestamp + 1:
                    continue
                entry = load(raw + suffix)
                latest = entry.timestamp
                if end > timestamp:
                    if right is None:
                        right = _copy(entry)
                    take(key, value, timestamp, raw, start)
                elif end == timestamp:
                    left_made = True
                    take(key, value, timestamp, raw, start)
                    if latest >= timestamp:
                        return  # another record with the same timestamp has created all windows
                    previous = latest
                else:
                    left, previous = _copy(entry), latest
                    break
            if previous >= 0 and previous + 1 not in starts and previous + 1 + difference >= timestamp:
                begin(key, value, timestamp, raw, previous + 1)
            if not left_made:
                begin(key, value, timestamp, raw, timestamp - difference, left if timestamp - difference <= previous else None)
            if timestamp + 1 not in starts and right is not None and right.timestamp > timestamp:
                put(key, raw, timestamp + 1, load(raw + pack_window_suffix(timestamp + 1, 0)), value_of(right), right.timestamp)

        return aggregate


def _copy(entry: Entry) -> Entry:
    """Return a copy of an entry, which later updates do not change."""
    return Entry(entry.value, entry.timestamp)
