"""Joins of a stream with a versioned table after a grace period (KIP-923; Kafka Streams' `RocksDBTimeOrderedKeyValueBuffer`).

A record waits until stream time is the grace period past its time, and is then joined with the row of its time, which may have come late.
What waits leaves in the order of time, then of the keys' bytes, then of coming. A record whose time is over already when it comes does not
wait, nor does one without a key, for which a left join has no row to wait for. Stream time here is the largest time of a record that
waited; it is kept with what waits.

    key in the store     0 · int64 time · the record's key · int32 number, so that nothing is overwritten       TimeFirstWindowKeySchema
    value                the record and where it came from, as in `buffer_format.py`

What waits may be more than memory holds, so only the keys of the next records to leave are in memory (`_Order`); the records themselves are
where staging and RocksDB have them.
"""

from __future__ import annotations

import struct
from bisect import bisect_right, insort
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from typing import cast

from runtime.operators.base import OperatorSupplier
from runtime.operators.context import Forward, NodeContext
from runtime.operators.kept_time import OBSERVED_TIME, keep_time, kept_time
from runtime.operators.table_join import StreamTableJoin
from runtime.serdes.serde import Serde
from runtime.stores.buffer_format import BufferValue, Origin
from runtime.stores.key_value import StagedKeyValueStore

_HEAD, _TAIL = struct.Struct(">Bq"), struct.Struct(">i")
_NUMBER = "sequence.number"
"""Name under which the store keeps the last number given."""
_LAST_NUMBER = 2**31 - 1
_NEXT = 4096
"""Keys in memory after what leaves next was looked up; twice as many make it forget half."""


class _Order:
    """The keys of what waits, in order, as far as they are known: all up to `horizon` (None: all)."""

    __slots__ = ("_known", "horizon", "store")

    def __init__(self, store: StagedKeyValueStore) -> None:
        self.store = store
        self._known: list[bytes] = []
        self.horizon: bytes | None = b""

    def add(self, key: bytes) -> None:
        """A record began to wait; it is in the store already."""
        if self.horizon is not None and key > self.horizon:
            return
        insort(self._known, key)
        if len(self._known) > 2 * _NEXT:
            self.horizon = self._known[_NEXT]
            del self._known[_NEXT + 1 :]

    def due(self, last: bytes) -> list[bytes]:
        """The next keys up to `last`, which are then forgotten; empty if there are none."""
        if not self._known and self.horizon is not None:
            self._look()
        count = bisect_right(self._known, last)
        found = self._known[:count]
        del self._known[:count]
        return found

    def _look(self) -> None:
        rows = self.store.range(self.horizon or None, None)
        self._known = [cast(bytes, key) for key, _ in islice(rows, _NEXT) if key != self.horizon]
        self.horizon = self._known[-1] if len(self._known) >= _NEXT - 1 else None


@dataclass(frozen=True, slots=True)
class StreamTableGraceJoin(OperatorSupplier):
    """`join` with a versioned table, `grace_ms` later; `store_name` is where records wait."""

    join: StreamTableJoin
    store_name: str
    grace_ms: int
    key: Serde | None
    value: Serde | None

    def resolved(self, node: str, default_key: Serde | None, default_value: Serde | None) -> OperatorSupplier:
        from runtime.topology.topology import resolved_serde

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
        observed, number = kept_time(context, store, OBSERVED_TIME), max(0, kept_time(context, store, _NUMBER))
        keep_time(context, store, OBSERVED_TIME, lambda: observed)
        keep_time(context, store, _NUMBER, lambda: number)

        def wait(key: object, value: object, timestamp: int) -> None:
            nonlocal observed, number
            if value is None or (key is None and not left):
                task.dropped.add()
                return
            if key is None or observed - grace > timestamp:
                join(key, value, timestamp)
                return
            observed, number = max(observed, timestamp), (number + 1) & _LAST_NUMBER
            raw = _HEAD.pack(0, timestamp) + (write_key(key) or b"") + _TAIL.pack(number)
            origin = Origin(task.topic, task.partition, task.offset, task.headers)
            waiting = BufferValue(None, None, write_value(value), timestamp, origin, 0).to_bytes()
            store.update(raw, raw, store.entry(raw), waiting, timestamp, None)
            order.add(raw)
            last = _HEAD.pack(0, max(0, observed - grace) + 1) if observed >= grace else b""
            while due := order.due(last):
                for each in due:
                    emit(each)

        return wait


def _emitter(
    context: NodeContext, store: StagedKeyValueStore, join: Forward, key_serde: Serde, value_serde: Serde
) -> Callable[[bytes], None]:
    """What joins a record that has waited, as if it came now."""
    task = context.task
    read_key = key_serde.deserializer(context.name, lambda: task.headers)
    read_value = value_serde.deserializer(context.name, lambda: task.headers)

    def emit(raw: bytes) -> None:
        entry = store.entry(raw)
        waited = BufferValue.from_bytes(cast(bytes, store.value_of(entry)))
        now = task.topic, task.partition, task.offset, task.headers
        task.topic, task.partition, task.offset, task.headers = waited.origin
        try:
            join(read_key(raw[_HEAD.size : -_TAIL.size]), read_value(cast(bytes, waited.new)), waited.timestamp)
        finally:
            task.topic, task.partition, task.offset, task.headers = now
        store.update(raw, raw, entry, None, waited.timestamp, None)

    return emit
