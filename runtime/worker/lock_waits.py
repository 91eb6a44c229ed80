"""Tasks whose folder another process still holds.

Workers of one instance share its state directory. A task is granted to the next worker when the last one is known to have let go of it, or
to be dead to the group; but a process that the group has dropped may still be there, frozen or on its way out, with the lock of the folder
in its hands. Its supervisor ends it before long. So who finds the door locked waits there, for a while.
"""

from __future__ import annotations

import logging

from runtime.clock import Clock
from runtime.errors import StateDirectoryLockedError
from runtime.ids import TaskId

logger = logging.getLogger(__name__)

PATIENCE_MS = 60_000


class LockWaits:
    """Since when each task waits. Belongs to the worker's thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since_ms: dict[TaskId, int] = {}

    def wait(self, task: TaskId, error: StateDirectoryLockedError) -> None:
        """The task could not be opened, and is to be tried again. Raises `error` when that has gone on for `PATIENCE_MS`."""
        now_ms = self._clock.monotonic_ms()
        since_ms = self._since_ms.get(task)
        if since_ms is None:
            self._since_ms[task] = now_ms
            logger.info("task %s waits: %s", task, error, extra={"task": task})
        elif now_ms - since_ms >= PATIENCE_MS:
            raise error

    def over(self, task: TaskId) -> None:
        """The task was opened, or is not wanted any more."""
        self._since_ms.pop(task, None)
