"""Event time of a node: the times that it commits, the records that it drops, and the open windows that it emits when they close.

A node commits its own stream time, and the time up to which it has emitted closed windows. They are written in the batch of the store's
commit, and in the metadata of the committed offsets, because a store restored from its changelog has no times. Kafka Streams commits only
the second, with the offsets (`ProcessorMetadata`). It loses the first, so that after a restart it accepts records that were late before.

Records that a windowed aggregate drops are counted by reason, and logged. Kafka Streams logs a line for each. A topic that is read again
from the start may have millions of them, so one line is logged per commit and reason, with their number and the coordinates of the last
one.

The result of an open window of `EmitStrategy.on_window_close` is emitted once, when stream time has passed its end and grace. Kafka Streams
reads a range of a store ordered by time. Here, open windows are also indexed by time in memory: a dict of keys for each end, and a heap of
the ends. Each record checks the first one. Results are emitted in the order of Kafka Streams' store, by time and then by the bytes of the
key. No window is missed when stream time jumps by more than the retention (in Kafka Streams, the range then starts later). The time up to
which windows are emitted is committed with the store, so that a restart neither repeats nor misses a result.
"""

from __future__ import annotations

import heapq
import logging
import struct
from collections.abc import Callable, Mapping
from typing import NamedTuple

from penstock.runtime.model.clock import NEVER
from penstock.runtime.model.metrics import NODE, Counter
from penstock.runtime.model.once import first_time
from penstock.runtime.model.record import Windowed
from penstock.runtime.operators.context import NodeContext
from penstock.runtime.operators.materialized import Emit, Materialized
from penstock.runtime.stores.base import EngineStore

logger = logging.getLogger(__name__)

OBSERVED_TIME = "observed.stream.time"
"""Name of an aggregate's stream time in its store."""
EMITTED_TIME = "emitted.until"
"""Name of the time up to which closed windows are emitted."""
_INT64 = struct.Struct(">q")


def committed_time(context: NodeContext, store: EngineStore, name: str) -> int:
    """Return the time in ms that was committed with the store or the offsets, -1 if there is none."""
    stored = store.get_meta(name)
    with_store = -1 if stored is None else int(_INT64.unpack(stored)[0])
    return max(with_store, context.task.processor_metadata.get(_metadata_name(store.name, name), -1))


def commit_time(context: NodeContext, store: EngineStore, name: str, now: Callable[[], int]) -> None:
    """Write the result of `now()` at each commit at which it has changed."""
    metadata, metadata_name = context.task.processor_metadata, _metadata_name(store.name, name)
    written = -1

    def write() -> None:
        nonlocal written
        if now() != written:
            written = now()
            store.set_meta(name, _INT64.pack(written))
            metadata[metadata_name] = written

    context.hooks.before_commit.append(write)


def select_processor_metadata(store: str, metas: Mapping[str, bytes]) -> dict[str, int]:
    """Select the times among a store's metadata, under their names in the metadata of the committed offsets."""
    times = {name: metas[name] for name in (OBSERVED_TIME, EMITTED_TIME) if name in metas}
    return {_metadata_name(store, name): int(_INT64.unpack(value)[0]) for name, value in times.items()}


def encoded_time(time: int) -> bytes:
    """Encode a time in ms as a store's metadata."""
    return _INT64.pack(time)


def _metadata_name(store: str, name: str) -> str:
    """Name of a time in the offsets. As in Kafka Streams, that of emitted windows is the store's name alone."""
    return store if name == EMITTED_TIME else f"{store}/{name}"


class _Coordinates(NamedTuple):
    topic: str
    partition: int
    offset: int


class _Late(NamedTuple):
    coordinates: _Coordinates
    timestamp: int
    window: str
    expiration: int
    stream_time: int


class DroppedRecords:
    """The dropped records of one node. The task's `dropped-records-total` counts them; the node's `dropped-records-by-reason-total` has the
    tag `reason`: `null-key-or-value` or `expired-window`."""

    __slots__ = ("_last_late", "_late", "_logged_late", "_null", "label", "node", "task")

    def __init__(self, context: NodeContext) -> None:
        self.task, self.node, self.label = context.task, context.name, context.label
        self._null, self._late = self._counter("null-key-or-value"), self._counter("expired-window")
        self._logged_late = self._late.value
        self._last_late: _Late | None = None
        context.hooks.before_commit.append(self.log)

    def _counter(self, reason: str) -> Counter:
        of_node = {"task_id": str(self.task.task_id), "processor_node_id": self.node}
        return self.task.metrics.counter("dropped-records-by-reason-total", NODE, **of_node, reason=reason)

    def null(self) -> None:
        """Count a record without a key or value. The first one is logged with its coordinates."""
        self.task.dropped.add()
        self._null.add()
        if first_time("null-key-or-value", self.task.application_id, self.node):
            logger.warning(
                "task %s, node %s: dropped a record without a key or value: %s-%d@%d. Operations by key need both: select_key, group_by, "
                "filter. Further records are only counted, in dropped-records-by-reason-total",
                *(self.task.task_id, self.label, *self._coordinates()),
                extra={"task": self.task.task_id},
            )

    def late(self, timestamp: int, window: str, expiration: int, stream_time: int) -> None:
        """Count a record for a closed window. Windows are closed up to `expiration`; all times in ms."""
        self.task.dropped.add()
        self._late.add()
        self._last_late = _Late(self._coordinates(), timestamp, window, expiration, stream_time)

    def _coordinates(self) -> _Coordinates:
        return _Coordinates(self.task.topic, self.task.partition, self.task.offset)

    def log(self) -> None:
        """Log the records dropped for closed windows since the last commit."""
        late = self._last_late
        if late is not None:
            count, self._logged_late, self._last_late = self._late.value - self._logged_late, self._late.value, None
            logger.warning(
                "task %s, node %s: skipped %d records for expired windows. topic=[%s] partition=[%d] offset=[%d] timestamp=[%d] window=%s "
                "expiration=[%d] streamTime=[%d]",
                *(self.task.task_id, self.label, count, *late.coordinates, late.timestamp, late.window, late.expiration, late.stream_time),
                extra={"task": self.task.task_id},
            )


Order = bytes | tuple[bytes, bytes]
"""The sort key of windows with the same time."""


class OpenWindows:
    """The open windows of one node. `order` is the sort key of windows that close together."""

    __slots__ = (
        "_clock",
        "_closed",
        "_counter",
        "_emit",
        "_ends",
        "_interval",
        "_last",
        "_latency",
        "_load",
        "_next_ms",
        "_open",
        "_order",
        "_release",
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
        self._release, self._last, self._closed = task.release, -1, -1
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
        self._last, self._closed = last, closed
        self._release(self._emit_closed)

    def _emit_closed(self) -> None:
        emitted, began = 0, self._clock.monotonic_ms()
        while self._ends and self._ends[0] <= self._last:
            keys = self._open[self._ends[0]]
            for store_key in sorted(keys, key=self._order):
                windowed, entry = keys.pop(store_key), self._load(store_key)  # a result that fails is not repeated, and the others follow
                value = self._value_of(entry)
                if value is not None:
                    self._emit(windowed, value, None, entry.timestamp)
                    emitted += 1
            del self._open[heapq.heappop(self._ends)]
        self.first = self._ends[0] if self._ends else NEVER
        self.emitted = self._closed
        self._counter.add(emitted)
        self._latency.record(self._clock.monotonic_ms() - began)
