"""Joins of two streams over a window of time (Kafka Streams' `KStreamJoinWindow`, `KStreamKStreamJoin`).

Each stream has a store of its records. A record is looked up in the other stream's store, and joined with every record of its key
there whose time is near enough, in the order of their times; then it goes into its own. The result has the later of the two times and
the headers of the record that came last. A record without a key or value is dropped and counted.

A left or outer join also gives records that found no partner, with None in its place and their own time; but only when none can come any
more. Until then they wait in a store that both sides share. What waits is looked at when stream time moves, oldest first; a record's turn
has come when stream time has passed the end of its window and the grace period. Two more cases are told apart, as Kafka Streams does: a
record whose window ended before stream time at once goes on alone, and so does one without a key, which nothing can join.

A look costs a scan of the store, so it is taken only when something can be due, and at most once a second of wall-clock time
(`TaskContext.emit_interval_ms`). What is remembered of a look is the time of the record at which it ended. Where the two sides have windows
of different lengths an older one may still wait, and then comes out later than it might: Kafka Streams does so, and its results are what
counts here. After a restart it forgets the stream time; here that is kept with what waits, so that a late record stays late.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast

from runtime.errors import InvalidStateStoreError
from runtime.operators.base import OperatorSupplier
from runtime.operators.context import Forward, NodeContext
from runtime.operators.kept_time import OBSERVED_TIME, keep_time, kept_time
from runtime.operators.materialized import key_bytes
from runtime.serdes.join_sides import JoinKey, JoinValues
from runtime.stores.duplicates import StagedDuplicatesStore
from runtime.stores.key_value import StagedKeyValueStore

Joiner = Callable[..., object]
"""(left, right), or (key, left, right) with `with_key`."""
JoinOne = Callable[[object, object, object], object]
"""(key, this side's value, the other side's value) -> result."""

_EMPTY = 2**63 - 1
"""`min_time` when nothing waits."""


class JoinWindow(Protocol):
    """How far before and after a record of the left stream its partners may be, and how long late ones are waited for, all in ms
    (`JoinWindows`)."""

    @property
    def before_ms(self) -> int: ...

    @property
    def after_ms(self) -> int: ...

    @property
    def grace_period_ms(self) -> int: ...


def duplicates(context: NodeContext, name: str) -> StagedDuplicatesStore:
    """The store of one stream's records. Raises InvalidStateStoreError."""
    store = context.engine_store(name)
    if not isinstance(store, StagedDuplicatesStore):
        raise InvalidStateStoreError(f"node {context.name}: store {name!r} of a join of streams must retain duplicates")
    return store


@dataclass(frozen=True, slots=True)
class StreamWindowed(OperatorSupplier):
    """Keeps a stream's records for the join below: each goes there first, so that it does not meet itself, and then into the store."""

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
    """One side of a join: what a record of the left stream (or of the right one, if not `left`) does.

    `store_name` is the store of the other stream's records. `waiting` is the store that both sides of a left or outer join share, None for
    an inner one; `outer`: this side's records are results without a partner, too.
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
        """How far back and ahead of a record of this side its partners may be."""
        before, after = self.windows.before_ms, self.windows.after_ms
        return (before, after) if self.left else (after, before)

    def _join_one(self) -> JoinOne:
        joiner = self.joiner
        if self.left:
            return joiner if self.with_key else lambda key, value, other: joiner(value, other)
        return (lambda key, value, other: joiner(key, other, value)) if self.with_key else lambda key, value, other: joiner(other, value)

    def _build_inner(self, context: NodeContext, forward: Forward) -> Forward:
        store = duplicates(context, self.store_name)
        values_between, to_bytes, drop = store.values_between, key_bytes(store), context.task.dropped.add
        (back, ahead), join_one = self._reach(), self._join_one()

        def join(key: object, value: object, timestamp: int) -> None:
            if key is None or value is None:
                drop()
                return
            for time, other in values_between(to_bytes(key), timestamp - back, max(0, timestamp + ahead)):
                forward(key, join_one(key, value, other), timestamp if timestamp > time else time)

        return join

    def _build_outer(self, context: NodeContext, forward: Forward) -> Forward:
        store = duplicates(context, self.store_name)
        values_between, to_bytes, drop = store.values_between, key_bytes(store), context.task.dropped.add
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
                drop()
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
    """What both sides of a left or outer join share in one task: the store of records without a partner, and the times by which they are
    let go (Kafka Streams' `TimeTracker`)."""

    __slots__ = ("min_time", "next_look_ms", "store", "stream_time", "to_bytes")

    def __init__(self, context: NodeContext, store_name: str) -> None:
        store = context.engine_store(store_name)
        assert isinstance(store, StagedKeyValueStore), store_name
        self.store = store
        self.to_bytes = key_bytes(store)
        self.stream_time = kept_time(context, store, OBSERVED_TIME)
        keep_time(context, store, OBSERVED_TIME, lambda: self.stream_time)
        self.min_time = next((cast(JoinKey, found).timestamp for found, _ in store.all()), _EMPTY)
        self.next_look_ms = 0

    def add(self, key: JoinKey, value: object) -> None:
        """A record begins to wait."""
        if key.timestamp < self.min_time:
            self.min_time = key.timestamp
        raw = self.to_bytes(key)
        entry = self.store.entry(raw)
        present = cast("JoinValues | None", self.store.value_of(entry)) or ()
        self.store.update(raw, key, entry, (*present, (key.left, value)), key.timestamp, None)

    def remove(self, key: JoinKey) -> None:
        """Records have found a partner."""
        raw = self.to_bytes(key)
        entry = self.store.entry(raw)
        if entry.value is not None:
            self.store.update(raw, key, entry, None, key.timestamp, None)


def _emitter(waiting: _Waiting, context: NodeContext, forward: Forward, side: StreamJoin) -> Callable[[], None]:
    """What lets records go whose time has come."""
    before, after, grace = side.windows.before_ms, side.windows.after_ms, side.windows.grace_period_ms
    joiner, with_key, clock, interval = side.joiner, side.with_key, context.task.clock, context.task.emit_interval_ms
    ahead = after if side.left else before

    def emit() -> None:
        stream_time = waiting.stream_time
        if waiting.min_time + ahead + grace >= stream_time:
            return
        now = clock.wall_ms()
        if now < waiting.next_look_ms:
            return
        waiting.next_look_ms = now + interval
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
            for _, value in cast(JoinValues, values):
                pair = (value, None) if left else (None, value)
                forward(key, joiner(key, *pair) if with_key else joiner(*pair), timestamp)
            waiting.remove(JoinKey(timestamp, left, key))

    return emit
