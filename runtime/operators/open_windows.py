"""Open windows of `EmitStrategy.on_window_close`, whose result is emitted once, when stream time has passed their end and grace.

Kafka Streams reads a range of a store ordered by time. Here, open windows are also indexed by time in memory: a dict of keys for each end,
and a heap of the ends. Each record checks the first one. Results are emitted in the order of Kafka Streams' store, by time and then by the
bytes of the key. No window is missed when stream time jumps by more than the retention (in Kafka Streams, the range then starts later).

The time up to which windows are emitted is committed with the store, so that a restart neither repeats nor misses a result.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from penstock.runtime.model.clock import NEVER
from penstock.runtime.model.metrics import NODE
from penstock.runtime.model.record import Windowed
from penstock.runtime.operators.context import NodeContext
from penstock.runtime.operators.materialized import Emit, Materialized
from penstock.runtime.operators.node_times import EMITTED_TIME, commit_time, committed_time

Order = bytes | tuple[bytes, bytes]
"""The sort key of windows with the same time."""


class OpenWindows:
    """The open windows of one node. `order` is the sort key of windows that close together."""

    __slots__ = (
        "_clock",
        "_counter",
        "_emit",
        "_ends",
        "_interval",
        "_latency",
        "_load",
        "_next_ms",
        "_open",
        "_order",
        "_value_of",
        "emitted",
        "first",
    )

    def __init__(self, context: NodeContext, table: Materialized, emit: Emit, order: Callable[[bytes], Order]) -> None:
        task = context.task
        of_node = {"task_id": str(task.task_id), "processor_node_id": context.name}
        self._counter = task.metrics.counter("window-aggregate-final-emit-total", NODE, **of_node)
        self._latency = task.metrics.latency("window-aggregate-final-emit-latency", NODE, **of_node)
        self._clock, self._interval, self._next_ms = task.clock, task.emit_interval_ms, 0
        self._load, self._value_of, self._emit, self._order = table.load, table.value_of, emit, order
        self._open: dict[int, dict[bytes, Windowed]] = {}
        self._ends: list[int] = []
        self.first = NEVER
        """Time of the first open window, in ms; NEVER if there is none."""
        self.emitted = committed_time(context, table.store, EMITTED_TIME)
        """Windows are emitted up to this stream time minus grace; -1 before the first."""
        commit_time(context, table.store, EMITTED_TIME, lambda: self.emitted)

    def add(self, time: int, store_key: bytes, windowed: Windowed) -> None:
        """Add a window, if it is new. `time` orders open windows: the start of fixed-size windows, the end of sessions."""
        keys = self._open.get(time)
        if keys is None:
            keys = self._open[time] = {}
            heapq.heappush(self._ends, time)
            self.first = self._ends[0]
        keys[store_key] = windowed

    def remove(self, time: int, store_key: bytes) -> None:
        """Remove a session that was merged into another one."""
        keys = self._open.get(time)
        if keys is not None:
            keys.pop(store_key, None)

    def emit(self, last: int, closed: int) -> None:
        """Emit the results of windows whose time is `last` or earlier; windows are closed up to `closed`. Does nothing within a second of
        wall-clock time after the last call, as in Kafka Streams."""
        now = self._clock.wall_ms()
        if now < self._next_ms:
            return
        self._next_ms = now + self._interval
        emitted, began = 0, self._clock.monotonic_ms()
        while self._ends and self._ends[0] <= last:
            keys = self._open.pop(heapq.heappop(self._ends))
            for store_key in sorted(keys, key=self._order):
                entry = self._load(store_key)
                value = self._value_of(entry)
                if value is not None:
                    self._emit(keys[store_key], value, None, entry.timestamp)
                    emitted += 1
        self.first = self._ends[0] if self._ends else NEVER
        self.emitted = closed
        self._counter.add(emitted)
        self._latency.record(self._clock.monotonic_ms() - began)
