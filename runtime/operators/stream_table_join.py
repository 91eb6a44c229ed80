"""Joins of a stream with a table, as of the processing of the stream's record (Kafka Streams' `KStreamKTableJoinProcessor`).

A record without a value is dropped and counted. So is one without a key (for a global table: one whose mapped key is None), except that a
left join accepts a record without a key and joins it with None (KIP-962). The joined record has the key, timestamp and headers of the
stream's record.

With a grace period, for a versioned table (KIP-923; Kafka Streams' `RocksDBTimeOrderedKeyValueBuffer`), a record is buffered until stream
time exceeds its timestamp by the grace period. Then it is joined with the row that was valid at its timestamp; rows that arrive late are
thus found too. Buffered records are emitted ordered by timestamp, key bytes and arrival. A record that is late already is joined at once,
and so is one without a key, for which a left join has no row. Stream time here is the largest timestamp of a buffered record; it is
committed with the buffer's store.

    key in the store     0 · int64 timestamp · the record's key · int32 sequence number, for uniqueness         TimeFirstWindowKeySchema
    value                the record and its origin, as in `stores/buffer.py`

The buffer may be larger than memory, so only the keys of the next records to emit are in memory (`_Order`); the records are in the store.
"""

from __future__ import annotations

import struct
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from typing import cast

from penstock.runtime.operators.base import OperatorSupplier
from penstock.runtime.operators.context import Forward, LookUp, NodeContext
from penstock.runtime.operators.event_time import OBSERVED_TIME, commit_time, committed_time
from penstock.runtime.operators.materialized import entries_of, store_getter
from penstock.runtime.operators.mistakes import dropping
from penstock.runtime.serdes.serde import Serde, resolved_serde
from penstock.runtime.stores.buffer import BufferValue, Origin
from penstock.runtime.stores.key_value import StagedKeyValueStore

Joiner = Callable[..., object]
"""(left, right), or (key, left, right) with `with_key`."""


def _with_key(joiner: Joiner, with_key: bool) -> Callable[[object, object, object], object]:
    return joiner if with_key else lambda key, left, right: joiner(left, right)


@dataclass(frozen=True, slots=True)
class StreamTableJoin(OperatorSupplier):
    """`join` and `left_join` of a stream with a table. `table` is the name of the table's node, in the same sub-topology."""

    table: str
    joiner: Joiner
    left: bool = False
    with_key: bool = False
    versioned: bool = False

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        if self.versioned:
            return self._build_as_of(context, forward)
        get, joiner, drop = context.getter(self.table), self.joiner, dropping(context)
        join_with_key = _with_key(joiner, self.with_key)

        def join(key: object, value: object, timestamp: int) -> None:
            if key is None or value is None:
                drop(key)
                return
            other = get(key)
            if other is not None:
                forward(key, joiner(value, other), timestamp)

        def join_key(key: object, value: object, timestamp: int) -> None:
            if key is None or value is None:
                drop(key)
                return
            other = get(key)
            if other is not None:
                forward(key, join_with_key(key, value, other), timestamp)

        def left_join(key: object, value: object, timestamp: int) -> None:
            if value is None:
                drop(key)
                return
            forward(key, join_with_key(key, value, None if key is None else get(key)), timestamp)

        if self.left:
            return left_join
        return join_key if self.with_key else join

    def look_up(self, context: NodeContext) -> LookUp | None:
        return entries_of(context, None if self.versioned else context.store_of(self.table))

    def _build_as_of(self, context: NodeContext, forward: Forward) -> Forward:
        """Return the join with a versioned table, which uses the row as of the record's timestamp."""
        rows, drop, left = context.rows(self.table), dropping(context), self.left
        join_one = _with_key(self.joiner, self.with_key)

        def join(key: object, value: object, timestamp: int) -> None:
            if value is None or (key is None and not left):
                drop(key)
                return
            row = None if key is None else rows(key, timestamp)
            if row is not None or left:
                forward(key, join_one(key, value, None if row is None else row[0]), timestamp)

        return join


@dataclass(frozen=True, slots=True)
class StreamGlobalTableJoin(OperatorSupplier):
    """`join` and `left_join` of a stream with a global table; `key_mapper(key, value)` gives the table's key."""

    store_name: str
    key_mapper: Callable[..., object]
    joiner: Joiner
    left: bool = False
    with_key: bool = False

    def global_stores(self) -> frozenset[str] | None:
        return frozenset({self.store_name})

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        get, mapper, left, drop = store_getter(context, self.store_name), self.key_mapper, self.left, context.task.dropped.add
        joiner, with_key = self.joiner, self.with_key

        def join(key: object, value: object, timestamp: int) -> None:
            mapped = None if value is None else mapper(key, value)
            if mapped is None and (key is not None or value is None or not left):
                drop()
                return
            other = None if mapped is None else get(mapped)
            if left or other is not None:
                forward(key, joiner(key, value, other) if with_key else joiner(value, other), timestamp)

        return join


_HEAD, _TAIL = struct.Struct(">Bq"), struct.Struct(">i")
_NUMBER = "sequence.number"
"""Name of the last sequence number in the store's metadata."""
_LAST_NUMBER = 2**31 - 1
_NEXT = 4096
"""Keys to read from the store at a time. When twice as many are in memory, half are dropped."""


class _Order:
    """The ordered keys of buffered records that are in memory: all keys up to `horizon` (None: all keys)."""

    __slots__ = ("_known", "horizon", "store")

    def __init__(self, store: StagedKeyValueStore) -> None:
        self.store = store
        self._known: list[bytes] = []
        self.horizon: bytes | None = b""

    def add(self, key: bytes) -> None:
        """Add the key of a record that was just stored."""
        if self.horizon is not None and key > self.horizon:
            return
        insort(self._known, key)
        if len(self._known) > 2 * _NEXT:
            self.horizon = self._known[_NEXT]
            del self._known[_NEXT + 1 :]

    def due(self, last: bytes) -> bytes | None:
        """Remove and return the next key, if it is at most `last`."""
        if not self._known and self.horizon is not None:
            self._read_next()
        return self._known.pop(0) if self._known and self._known[0] <= last else None

    def _read_next(self) -> None:
        rows = self.store.range(self.horizon or None, None)
        self._known = [cast(bytes, key) for key, _ in islice(rows, _NEXT) if key != self.horizon]
        self.horizon = self._known[-1] if len(self._known) >= _NEXT - 1 else None


@dataclass(frozen=True, slots=True)
class StreamTableGraceJoin(OperatorSupplier):
    """`join` with a versioned table, `grace_ms` later. `store_name`: the store of buffered records."""

    join: StreamTableJoin
    store_name: str
    grace_ms: int
    key: Serde | None
    value: Serde | None

    def resolved(self, node: str, default_key: Serde | None, default_value: Serde | None) -> OperatorSupplier:
        key = resolved_serde(self.key, default_key, "key", f"node {node}")
        return replace(self, key=key, value=resolved_serde(self.value, default_value, "value", f"node {node}"))

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        store = context.engine_store(self.store_name)
        assert isinstance(store, StagedKeyValueStore), self.store_name
        task, join, grace, left = context.task, self.join.build(context, forward), self.grace_ms, self.join.left
        key_serde, value_serde = cast(Serde, self.key), cast(Serde, self.value)
        write_key = key_serde.serializer(context.name, lambda: task.headers)
        write_value = value_serde.serializer(context.name, lambda: task.headers)
        order, emit = _Order(store), _emitter(context, store, join, key_serde, value_serde)
        observed, number = committed_time(context, store, OBSERVED_TIME), max(0, committed_time(context, store, _NUMBER))
        commit_time(context, store, OBSERVED_TIME, lambda: observed)
        commit_time(context, store, _NUMBER, lambda: number)
        drop, release = dropping(context), task.release

        def join_later(key: object, value: object, timestamp: int) -> None:
            nonlocal observed, number
            if value is None or (key is None and not left):
                drop(key)
                return
            if key is None or observed - grace > timestamp:
                join(key, value, timestamp)
                return
            observed, number = max(observed, timestamp), (number + 1) & _LAST_NUMBER
            raw = _HEAD.pack(0, timestamp) + (write_key(key) or b"") + _TAIL.pack(number)
            origin = Origin(task.topic, task.partition, task.offset, task.headers)
            buffered = BufferValue(None, None, write_value(value), timestamp, origin, 0).to_bytes()
            store.update(raw, raw, store.entry(raw), buffered, timestamp, None)
            order.add(raw)
            if observed >= grace:
                release(emit_due)

        def emit_due() -> None:
            last = _HEAD.pack(0, max(0, observed - grace) + 1)
            while (due := order.due(last)) is not None:
                emit(due)

        return join_later


def _emitter(
    context: NodeContext, store: StagedKeyValueStore, join: Forward, key_serde: Serde, value_serde: Serde
) -> Callable[[bytes], None]:
    """Return a function that joins a buffered record, with the record's own offset and headers, and removes it from the buffer."""
    task = context.task
    read_key = key_serde.deserializer(context.name, lambda: task.headers)
    read_value = value_serde.deserializer(context.name, lambda: task.headers)

    def emit(raw: bytes) -> None:
        entry = store.entry(raw)
        buffered = BufferValue.from_bytes(cast(bytes, store.value_of(entry)))
        store.update(raw, raw, entry, None, buffered.timestamp, None)  # first, so that a result that fails is not repeated after a restart
        current, origin = (task.topic, task.partition, task.offset, task.headers), buffered.origin
        task.topic, task.partition, task.offset, task.headers = origin.topic, origin.partition, origin.offset, origin.headers
        try:
            join(read_key(raw[_HEAD.size : -_TAIL.size]), read_value(cast(bytes, buffered.new)), buffered.timestamp)
        finally:
            task.topic, task.partition, task.offset, task.headers = current

    return emit
