"""Tasks whose folder another process still holds.

Workers of one instance share its state directory. A task is granted to the next worker when the last one is known to have let go of it, or
to be dead to the group; but a process that the group has dropped may still be there, frozen or on its way out, with the lock of the folder
in its hands. Its supervisor ends it before long. And a worker that hands a task over says so before it has closed the stores. So who finds
the door locked waits there, for a while.
"""

from __future__ import annotations

import logging

from runtime.clock import Clock
from runtime.errors import StateDirectoryLockedError
from runtime.ids import TaskId

logger = logging.getLogger(__name__)

PATIENCE_MS = 60_000
WORTH_A_LINE_MS = 1_000


class LockWaits:
    """Since when each task waits. Belongs to the worker's thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since_ms: dict[TaskId, int] = {}
        self._told: set[TaskId] = set()

    def wait(self, task: TaskId, error: StateDirectoryLockedError) -> None:
        """The task could not be opened, and is to be tried again. Raises `error` when that has gone on for `PATIENCE_MS`."""
        now_ms = self._clock.monotonic_ms()
        waited_ms = now_ms - self._since_ms.setdefault(task, now_ms)
        if waited_ms >= PATIENCE_MS:
            raise error
        if waited_ms >= WORTH_A_LINE_MS and task not in self._told:
            self._told.add(task)
            logger.info("task %s waits for its folder: %s", task, error, extra={"task": task})

    def over(self, task: TaskId) -> None:
        """The task was opened, or is not wanted any more."""
        self._since_ms.pop(task, None)
        self._told.discard(task)
