"""Records that an aggregate over windows cannot use: counted, with the reason, and told of in the log.

Kafka Streams writes a line for each. A topic that is read anew may hold millions of them, so here one line tells of all since the last
commit: how many, and where the last one stands.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from runtime.metrics import NODE, Counter
from runtime.operators.context import NodeContext

logger = logging.getLogger(__name__)


class _Place(NamedTuple):
    topic: str
    partition: int
    offset: int


class _Late(NamedTuple):
    place: _Place
    timestamp: int
    window: str
    expiration: int
    stream_time: int


class Drops:
    """The dropped records of one node. The task's `dropped-records-total` counts them; the node's `dropped-records-by-reason-total` has the
    tag `reason`: `null-key-or-value` or `expired-window`."""

    __slots__ = ("_last_late", "_last_null", "_late", "_null", "_told_late", "_told_null", "node", "task")

    def __init__(self, context: NodeContext) -> None:
        self.task, self.node = context.task, context.name
        self._null, self._late = self._counter("null-key-or-value"), self._counter("expired-window")
        self._told_null, self._told_late = self._null.value, self._late.value
        self._last_null: _Place | None = None
        self._last_late: _Late | None = None
        context.hooks.before_commit.append(self.tell)

    def _counter(self, reason: str) -> Counter:
        of_node = {"task_id": str(self.task.task_id), "processor_node_id": self.node}
        return self.task.metrics.counter("dropped-records-by-reason-total", NODE, **of_node, reason=reason)

    def null(self) -> None:
        """A record without key or value."""
        self.task.dropped.add()
        self._null.add()
        self._last_null = self._place()

    def late(self, timestamp: int, window: str, expiration: int, stream_time: int) -> None:
        """A record for a window that was over when stream time passed its end and grace: `expiration` is how far windows are closed, all in
        ms."""
        self.task.dropped.add()
        self._late.add()
        self._last_late = _Late(self._place(), timestamp, window, expiration, stream_time)

    def _place(self) -> _Place:
        return _Place(self.task.topic, self.task.partition, self.task.offset)

    def tell(self) -> None:
        """Writes the lines of what was dropped since the last commit."""
        null, late = self._last_null, self._last_late
        if null is not None:
            count, self._told_null, self._last_null = self._null.value - self._told_null, self._null.value, None
            logger.warning(
                "task %s, node %s: skipped %d records due to null key or value. topic=[%s] partition=[%d] offset=[%d]",
                *(self.task.task_id, self.node, count, *null),
                extra={"task": self.task.task_id},
            )
        if late is not None:
            count, self._told_late, self._last_late = self._late.value - self._told_late, self._late.value, None
            logger.warning(
                "task %s, node %s: skipped %d records for expired windows. topic=[%s] partition=[%d] offset=[%d] timestamp=[%d] window=%s "
                "expiration=[%d] streamTime=[%d]",
                *(self.task.task_id, self.node, count, *late.place, late.timestamp, late.window, late.expiration, late.stream_time),
                extra={"task": self.task.task_id},
            )
