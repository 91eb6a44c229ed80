"""Results on window close (`EmitStrategy.on_window_close`): a window's result goes out once, when stream time has passed its end and grace.

Kafka Streams keeps such windows in a store ordered by time and reads a range of it. Here the open windows are also known by time in memory:
a dict of keys for each end, and a heap of the ends. A record looks at the first of them; what is emitted comes in the order of Kafka
Streams' store, by time and then by the bytes of the key. So no window is passed over when stream time jumps by more than the retention
(there, the range no longer reaches back to it).

How far results are out is kept with the store, so that a restart neither repeats nor forgets one.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from runtime.metrics import NODE
from runtime.operators.context import NodeContext
from runtime.operators.kept_time import EMITTED_TIME, keep_time, kept_time
from runtime.operators.materialized import Emit, Materialized
from runtime.record import Windowed
from runtime.tasks.punctuation import NEVER

Order = bytes | tuple[bytes, bytes]
"""What windows of one time are sorted by."""


class OpenWindows:
    """The open windows of one node. `order` puts store keys that close together in the order in which they go out."""

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
        """The time in ms by which the first open window is known; NEVER if there is none."""
        self.emitted = kept_time(context, table.store, EMITTED_TIME)
        """Windows that were closed at this stream time less grace are out; -1 before the first."""
        keep_time(context, table.store, EMITTED_TIME, lambda: self.emitted)

    def add(self, time: int, store_key: bytes, windowed: Windowed) -> None:
        """A window that may be new. `time` orders it among the open ones: the start of windows of one size, the end of sessions."""
        keys = self._open.get(time)
        if keys is None:
            keys = self._open[time] = {}
            heapq.heappush(self._ends, time)
            self.first = self._ends[0]
        keys[store_key] = windowed

    def remove(self, time: int, store_key: bytes) -> None:
        """A session that has become part of another one."""
        keys = self._open.get(time)
        if keys is not None:
            keys.pop(store_key, None)

    def emit(self, last: int, closed: int) -> None:
        """Sends the results of the windows whose time is `last` or earlier; `closed` is how far windows are closed. Not more often than
        every second of wall-clock time, as in Kafka Streams."""
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
