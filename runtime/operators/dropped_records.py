"""Records that a windowed aggregate drops: counted by reason, and logged.

Kafka Streams logs a line for each. A topic that is read again from the start may have millions of them, so one line is logged per commit
and reason, with their number and the coordinates of the last one.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from penstock.runtime.model.metrics import NODE, Counter
from penstock.runtime.operators.context import NodeContext

logger = logging.getLogger(__name__)


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

    __slots__ = ("_last_late", "_last_null", "_late", "_logged_late", "_logged_null", "_null", "node", "task")

    def __init__(self, context: NodeContext) -> None:
        self.task, self.node = context.task, context.name
        self._null, self._late = self._counter("null-key-or-value"), self._counter("expired-window")
        self._logged_null, self._logged_late = self._null.value, self._late.value
        self._last_null: _Coordinates | None = None
        self._last_late: _Late | None = None
        context.hooks.before_commit.append(self.log)

    def _counter(self, reason: str) -> Counter:
        of_node = {"task_id": str(self.task.task_id), "processor_node_id": self.node}
        return self.task.metrics.counter("dropped-records-by-reason-total", NODE, **of_node, reason=reason)

    def null(self) -> None:
        """Count a record without a key or value."""
        self.task.dropped.add()
        self._null.add()
        self._last_null = self._coordinates()

    def late(self, timestamp: int, window: str, expiration: int, stream_time: int) -> None:
        """Count a record for a closed window. Windows are closed up to `expiration`; all times in ms."""
        self.task.dropped.add()
        self._late.add()
        self._last_late = _Late(self._coordinates(), timestamp, window, expiration, stream_time)

    def _coordinates(self) -> _Coordinates:
        return _Coordinates(self.task.topic, self.task.partition, self.task.offset)

    def log(self) -> None:
        """Log the records dropped since the last commit."""
        null, late = self._last_null, self._last_late
        if null is not None:
            count, self._logged_null, self._last_null = self._null.value - self._logged_null, self._null.value, None
            logger.warning(
                "task %s, node %s: skipped %d records due to null key or value. topic=[%s] partition=[%d] offset=[%d]",
                *(self.task.task_id, self.node, count, *null),
                extra={"task": self.task.task_id},
            )
        if late is not None:
            count, self._logged_late, self._last_late = self._late.value - self._logged_late, self._late.value, None
            logger.warning(
                "task %s, node %s: skipped %d records for expired windows. topic=[%s] partition=[%d] offset=[%d] timestamp=[%d] window=%s "
                "expiration=[%d] streamTime=[%d]",
                *(self.task.task_id, self.node, count, *late.coordinates, late.timestamp, late.window, late.expiration, late.stream_time),
                extra={"task": self.task.task_id},
            )
