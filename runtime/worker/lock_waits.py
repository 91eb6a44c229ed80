"""Tasks whose directory another process still locks.

Workers of one instance share its state directory. A task is assigned to the next worker when the previous one has released it, or counts as
dead in the group. But a process that the group has dropped may still exist, frozen or exiting, and hold the directory's lock; its
supervisor kills it before long. And a worker that hands a task over reports that before it has closed the stores. So a worker that finds
the lock taken waits for a while.
"""

from __future__ import annotations

import logging

from penstock.runtime.model.clock import Clock
from penstock.runtime.model.errors import StateDirectoryLockedError
from penstock.runtime.model.ids import TaskId

logger = logging.getLogger(__name__)

PATIENCE_MS = 60_000
WORTH_A_LINE_MS = 1_000


class LockWaits:
    """Waiting time of each locked task. Used by the worker's thread only."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since_ms: dict[TaskId, int] = {}
        self._logged: set[TaskId] = set()

    def wait(self, task: TaskId, error: StateDirectoryLockedError) -> None:
        """Note that a task could not be opened, and will be tried again. Raises `error` after `PATIENCE_MS`."""
        now_ms = self._clock.monotonic_ms()
        waited_ms = now_ms - self._since_ms.setdefault(task, now_ms)
        if waited_ms >= PATIENCE_MS:
            raise error
        if waited_ms >= WORTH_A_LINE_MS and task not in self._logged:
            self._logged.add(task)
            logger.info("task %s waits for its folder: %s", task, error, extra={"task": task})

    def done(self, task: TaskId) -> None:
        """Note that a task was opened, or is no longer wanted."""
        self._since_ms.pop(task, None)
        self._logged.discard(task)
