"""Suppression: a table that buffers its changes (Kafka Streams' `KTableSuppressProcessor`, KIP-328).

A change is added to a buffer, where it replaces an earlier change of its key. It is emitted when stream time has advanced by the duration
since the buffer time of its key: the timestamp of the first buffered change, or the end of the key's window. If the buffer exceeds its
limits, the oldest change is emitted early, or the application stops. Stream time here is the largest timestamp of a change that this node
has seen, committed with the buffer.

The old value of an emitted change is the value last emitted for the key. (Kafka Streams sends the value before the last change, even if it
was never emitted; an aggregate of the suppressed table then subtracts a value that it never added.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from penstock.runtime.model.errors import InvalidStateStoreError, StreamsError
from penstock.runtime.model.metrics import NODE, STATE
from penstock.runtime.model.record import Change
from penstock.runtime.operators.base import OperatorSupplier, of_changes
from penstock.runtime.operators.context import Forward, NodeContext, Row, RowGetter, ValueGetter
from penstock.runtime.operators.event_time import OBSERVED_TIME, commit_time, committed_time
from penstock.runtime.operators.materialized import change_emitter
from penstock.runtime.stores.buffer import ChangeBuffer, Origin

UNLIMITED = 2**63 - 1
_UNKNOWN_TIME = -1
_Getter = TypeVar("_Getter", ValueGetter, RowGetter)


@dataclass(frozen=True, slots=True)
class Suppress(OperatorSupplier):
    """`suppress` of a table.

    `by_window_end`: changes are ordered by the end of their key's window, and deletions of windows are dropped, because no result of such a
    window was emitted before. `emit_early`: emit the oldest change when a limit is exceeded; otherwise the node raises.
    """

    buffer_name: str
    wait_ms: int
    by_window_end: bool = False
    max_records: int = UNLIMITED
    max_bytes: int = UNLIMITED
    emit_early: bool = False

    def wants_old(self, wanted_below: bool) -> bool:
        return True

    def can_send_old(self, parent_can: bool) -> bool:
        return parent_can

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        buffer, task = self._buffer(context), context.task
        of_node = {"task_id": str(task.task_id), "processor_node_id": context.name}
        of_buffer = {"task_id": str(task.task_id), "in_memory_suppression_state_id": self.buffer_name}
        emitted = task.metrics.counter("suppression-emit-total", NODE, **of_node)
        counts = task.metrics.latency("suppression-buffer-count", STATE, **of_buffer)
        sizes = task.metrics.latency("suppression-buffer-size", STATE, **of_buffer)

        def record_size(count: int, size: int) -> None:
            counts.record(count)
            sizes.record(size)

        buffer.counts_bytes = self.max_bytes < UNLIMITED
        buffer.load(record_size)
        observed = committed_time(context, buffer, OBSERVED_TIME)
        commit_time(context, buffer, OBSERVED_TIME, lambda: observed)
        emit, put, evict, release = change_emitter(context, forward), buffer.put, buffer.evict, task.release
        wait, by_window_end, max_records, max_bytes = self.wait_ms, self.by_window_end, self.max_records, self.max_bytes
        limited = max_records < UNLIMITED or max_bytes < UNLIMITED

        def send() -> None:
            """Emit the first change, with the origin of its input record."""
            key, new, old, timestamp, origin = evict()
            if new is None and by_window_end:
                return
            task.topic, task.partition, task.offset, task.headers = origin.topic, origin.partition, origin.offset, origin.headers
            emit(key, new, old, timestamp)
            emitted.add()

        def send_due() -> None:
            current = task.topic, task.partition, task.offset, task.headers
            try:
                send_all_due()
            finally:
                task.topic, task.partition, task.offset, task.headers = current

        def send_all_due() -> None:
            expiry = observed - wait
            while buffer.first <= expiry:
                send()
            if limited:
                while len(buffer) > max_records or buffer.size > max_bytes:
                    if not self.emit_early:
                        raise StreamsError(
                            f"{context.name} buffer exceeded its max capacity. Currently [{len(buffer)}/{max_records}] records and "
                            f"[{buffer.size}/{max_bytes}] bytes."
                        )
                    send()

        def suppress(key: object, change: Change, timestamp: int) -> None:
            nonlocal observed
            if timestamp > observed:
                observed = timestamp
            time = key.window.end if by_window_end else timestamp  # type: ignore[attr-defined]  # `Windowed` keys then
            put(time, key, change[0], change[1], timestamp, Origin(task.topic, task.partition, task.offset, task.headers))
            if buffer.first <= observed - wait or limited:
                release(send_due)

        return of_changes(suppress)

    def _buffer(self, context: NodeContext) -> ChangeBuffer:
        buffer = context.task.store(self.buffer_name)
        if not isinstance(buffer, ChangeBuffer):
            raise InvalidStateStoreError(f"node {context.name}: store {self.buffer_name!r} is not a suppression buffer")
        return buffer

    def value_getter(self, context: NodeContext, parent: ValueGetter | None) -> ValueGetter:
        """Return a function that reads the table as downstream knows it: the last emitted value of a buffered key, else the row itself."""
        prior, row = self._buffer(context).prior, _table_of(context, parent)

        def get(key: object) -> object:
            waiting = prior(key)
            return row(key) if waiting is None else waiting[0]

        return get

    def row_getter(self, context: NodeContext, parent: RowGetter | None) -> RowGetter:
        prior, rows = self._buffer(context).prior, _table_of(context, parent)

        def get(key: object, as_of: int | None) -> Row | None:
            waiting = prior(key)
            if waiting is None:
                return rows(key, as_of)
            return None if waiting[0] is None else (waiting[0], _UNKNOWN_TIME)

        return get


def _table_of(context: NodeContext, parent: _Getter | None) -> _Getter:
    """Return the function that reads the parent's table. Raises TypeError if the parent is not a table."""
    if parent is None:
        raise TypeError(f"node {context.name} suppresses no table")
    return parent
