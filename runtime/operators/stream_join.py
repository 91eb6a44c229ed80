"""Joins of two streams over a window of time (Kafka Streams' `KStreamJoinWindow`, `KStreamKStreamJoin`).

Each stream has a store of its records. A record is joined with every record of its key in the other stream's store whose timestamp is in
the window, in the order of timestamps; then it is added to its own store. The result has the larger of the two timestamps and the headers
of the record that arrived last. A record without a key or value is dropped and counted.

A left or outer join also emits records without a match, with None for the other side and their own timestamp, but only when no match can
arrive any more. Until then they wait in a store that both sides share. When stream time advances, the store is scanned, oldest record
first; a record is due when stream time has passed the end of its window and the grace period. As in Kafka Streams, a record is emitted at
once if its window ends before stream time, or if it has no key, so that nothing can match it.

A scan is expensive, so it happens only when a record can be due, and at most once per second of wall-clock time
(`TaskContext.emit_interval_ms`). Only the timestamp of the record at which the scan ended is remembered. If the two sides have windows of
different lengths, an older record may still be waiting, and is then emitted later than possible: Kafka Streams does the same, and results
are the same as there. Kafka Streams loses the stream time on a restart; here it is committed with the store, so that late records stay
late.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast

from penstock.runtime.model.errors import InvalidStateStoreError
from penstock.runtime.operators.base import OperatorSupplier
from penstock.runtime.operators.context import Forward, NodeContext
from penstock.runtime.operators.event_time import OBSERVED_TIME, commit_time, committed_time
from penstock.runtime.operators.materialized import key_bytes
from penstock.runtime.operators.mistakes import dropping
from penstock.runtime.serdes.internal import JoinKey, JoinValues
from penstock.runtime.stores.duplicates import StagedDuplicatesStore
from penstock.runtime.stores.key_value import StagedKeyValueStore

Joiner = Callable[..., object]
"""(left, right), or (key, left, right) with `with_key`."""
JoinOne = Callable[[object, object, object], object]
"""(key, this side's value, the other side's value) -> result."""

_EMPTY = 2**63 - 1
"""`min_time` if no record waits."""


class JoinWindow(Protocol):
    """Range of time before and after a record of the left stream that contains its matches, and the grace period for late records, all in
    ms (`JoinWindows`)."""

    @property
    def before_ms(self) -> int: ...

    @property
    def after_ms(self) -> int: ...

    @property
    def grace_period_ms(self) -> int: ...


def duplicates(context: NodeContext, name: str) -> StagedDuplicatesStore:
    """Return the store of one stream's records. Raises InvalidStateStoreError if it does not retain duplicates."""
    store = context.engine_store(name)
    if not isinstance(store, StagedDuplicatesStore):
        raise InvalidStateStoreError(f"node {context.name}: store {name!r} of a join of streams must retain duplicates")
    return store


@dataclass(frozen=True, slots=True)
class StreamWindowed(OperatorSupplier):
    """Stores a stream's records for the other side. Each is forwarded to the join before it is stored, so that it does not match itself."""

    store_name: str

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        store = duplicates(context, self.store_name)
        add, see, to_bytes, drop = store.add, store.see, key_bytes(store), context.task.dropped.add

        def keep(key: object, value: object, timestamp: int) -> None:
            forward(key, value, timestamp)
            if key is not None:
                live = see(timestamp) if value is None else add(to_bytes(key), value, timestamp, timestamp)
                if not live:
                    drop()

        return keep


@dataclass(frozen=True, slots=True)
class StreamJoin(OperatorSupplier):
    """One side of a join of streams: the left one, or the right one if not `left`.

    `store_name`: the store of the other stream's records. `waiting`: the store that both sides of a left or outer join share, None for an
    inner join. `outer`: this side's records are results without a match, too.
    """

    store_name: str
    windows: JoinWindow
    joiner: Joiner
    with_key: bool = False
    left: bool = True
    outer: bool = False
    waiting: str | None = None

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        return self._build_inner(context, forward) if self.waiting is None else self._build_outer(context, forward)

    def _reach(self) -> tuple[int, int]:
        """Return how far before and after a record of this side its matches may be."""
        before, after = self.windows.before_ms, self.windows.after_ms
        return (before, after) if self.left else (after, before)

    def _join_one(self) -> JoinOne:
        joiner = self.joiner
        if self.left:
            return joiner if self.with_key else lambda key, value, other: joiner(value, other)
        return (lambda key, value, other: joiner(key, other, value)) if self.with_key else lambda key, value, other: joiner(other, value)

    def _build_inner(self, context: NodeContext, forward: Forward) -> Forward:
        store = duplicates(context, self.store_name)
        values_between, to_bytes, drop = store.values_between, key_bytes(store), dropping(context)
        (back, ahead), join_one = self._reach(), self._join_one()

        def join(key: object, value: object, timestamp: int) -> None:
            if key is None or value is None:
                drop(key)
                return
            for time, other in values_between(to_bytes(key), timestamp - back, max(0, timestamp + ahead)):
                forward(key, join_one(key, value, other), timestamp if timestamp > time else time)

        return join

    def _build_outer(self, context: NodeContext, forward: Forward) -> Forward:
        store = duplicates(context, self.store_name)
        values_between, to_bytes, drop = store.values_between, key_bytes(store), dropping(context)
        (back, ahead), join_one, left, outer = self._reach(), self._join_one(), self.left, self.outer
        waiting_name = cast(str, self.waiting)
        waiting = context.task.share(waiting_name, lambda: _Waiting(context, waiting_name))
        emit = _emitter(waiting, context, forward, self)

        def join(key: object, value: object, timestamp: int) -> None:
            if timestamp > waiting.stream_time:
                waiting.stream_time = timestamp
            if key is None and value is not None and outer:
                forward(key, join_one(key, value, None), timestamp)
                return
            if key is None or value is None:
                drop(key)
                return
            if timestamp == waiting.stream_time:
                emit()
            alone = True
            for time, other in values_between(to_bytes(key), timestamp - back, max(0, timestamp + ahead)):
                alone = False
                waiting.remove(JoinKey(time, not left, key))
                forward(key, join_one(key, value, other), timestamp if timestamp > time else time)
            if alone and outer:
                if max(0, timestamp + ahead) < waiting.stream_time:
                    forward(key, join_one(key, value, None), timestamp)
                else:
                    waiting.add(JoinKey(timestamp, left, key), value)

        return join


class _Waiting:
    """Shared by both sides of a left or outer join in one task: the store of records without a match, and the times that decide when they
    are emitted (Kafka Streams' `TimeTracker`)."""

    __slots__ = ("min_time", "next_scan_ms", "store", "stream_time", "to_bytes")

    def __init__(self, context: NodeContext, store_name: str) -> None:
        store = context.engine_store(store_name)
        assert isinstance(store, StagedKeyValueStore), store_name
        self.store = store
        self.to_bytes = key_bytes(store)
        self.stream_time = committed_time(context, store, OBSERVED_TIME)
        commit_time(context, store, OBSERVED_TIME, lambda: self.stream_time)
        self.min_time = next((cast(JoinKey, found).timestamp for found, _ in store.all()), _EMPTY)
        self.next_scan_ms = 0

    def add(self, key: JoinKey, value: object) -> None:
        """Add a record without a match."""
        if key.timestamp < self.min_time:
            self.min_time = key.timestamp
        raw = self.to_bytes(key)
        entry = self.store.entry(raw)
        present = cast("JoinValues | None", self.store.value_of(entry)) or ()
        self.store.update(raw, key, entry, (*present, (key.left, value)), key.timestamp, None)

    def remove(self, key: JoinKey) -> None:
        """Remove the records of this key, which have a match now."""
        self.keep(key, ())

    def keep(self, key: JoinKey, values: JoinValues) -> None:
        """Keep only these records of a key."""
        raw = self.to_bytes(key)
        entry = self.store.entry(raw)
        if entry.value is not None:
            self.store.update(raw, key, entry, values or None, key.timestamp, None)


def _emitter(waiting: _Waiting, context: NodeContext, forward: Forward, side: StreamJoin) -> Callable[[], None]:
    """Return a function that emits the records that are due."""
    before, after, grace = side.windows.before_ms, side.windows.after_ms, side.windows.grace_period_ms
    joiner, with_key, clock, interval = side.joiner, side.with_key, context.task.clock, context.task.emit_interval_ms
    release = context.task.release
    ahead = after if side.left else before

    def emit() -> None:
        stream_time = waiting.stream_time
        if waiting.min_time + ahead + grace >= stream_time:
            return
        now = clock.wall_ms()
        if now < waiting.next_scan_ms:
            return
        waiting.next_scan_ms = now + interval
        release(scan)

    def scan() -> None:
        stream_time = waiting.stream_time
        waiting.min_time = _EMPTY
        left_open = right_open = False
        for found, values in waiting.store.all():
            timestamp, left, key = cast(JoinKey, found)
            waiting.min_time = timestamp
            if left_open and right_open:
                break
            if timestamp + (after if left else before) + grace >= stream_time:
                left_open, right_open = left_open or left, right_open or not left
                continue
            for done, (_, value) in enumerate(cast(JoinValues, values), 1):
                # Before the result, so that one that fails is not repeated for every later record.
                waiting.keep(JoinKey(timestamp, left, key), cast(JoinValues, values)[done:])
                pair = (value, None) if left else (None, value)
                forward(key, joiner(key, *pair) if with_key else joiner(*pair), timestamp)

    return emit


@dataclass(frozen=True, slots=True)
class StreamSelfJoin(OperatorSupplier):
    """An inner join of a stream with itself in one node and one store (Kafka Streams' `KStreamKStreamSelfJoin`, KIP-862).

    Its parent is the node that stores the stream's records (`StreamWindowed`), which forwards a record before storing it. Results and their
    order are those of the join it replaces. A record older than `retention_ms`, the store's retention, is joined with other records only.
    (That starts 1 ms earlier than in the join, as in Kafka Streams.)
    """

    store_name: str
    windows: JoinWindow
    joiner: Joiner
    with_key: bool
    retention_ms: int

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        store = duplicates(context, self.store_name)
        values_between, to_bytes, drop = store.values_between, key_bytes(store), dropping(context)
        before, after, retention, joiner = self.windows.before_ms, self.windows.after_ms, self.retention_ms, self.joiner
        join_one: JoinOne = joiner if self.with_key else lambda _key, left, right: joiner(left, right)
        observed = committed_time(context, store, OBSERVED_TIME)
        commit_time(context, store, OBSERVED_TIME, lambda: observed)

        def join(key: object, value: object, timestamp: int) -> None:
            nonlocal observed
            if key is None or value is None:
                drop(key)
                return
            observed = max(observed, timestamp)
            raw = to_bytes(key)
            for time, other in values_between(raw, timestamp - before, timestamp + after):
                forward(key, join_one(key, value, other), max(time, timestamp))
            itself = timestamp > observed - retention + 1
            for time, other in values_between(raw, timestamp - after, timestamp + before):
                if itself and time > timestamp:  # results come in the order of time
                    itself = False
                    forward(key, join_one(key, value, value), timestamp)
                forward(key, join_one(key, other, value), max(time, timestamp))
            if itself:
                forward(key, join_one(key, value, value), timestamp)

        return join
