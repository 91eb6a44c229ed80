"""Removal of local state that this instance no longer needs (Kafka Streams' `StateDirectory.cleanRemovedTasks`).

The age of a directory does not say that its state is unneeded: while the broker is away nothing is written, and after a long absence the
worker owns nothing until its tasks are assigned again. So the group decides. A task's directory is removed when, for
`state.cleanup.delay.ms` without interruption, this worker was a current member, and the assignment had the task at another instance and not
at this one. The time begins when the task is lost, or with the first such assignment in the life of this process, and again after each
absence.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from penstock.runtime.model.clock import Clock
from penstock.runtime.model.ids import TaskId
from penstock.runtime.stores.directory import StateDirectory

SHORTEST_LOOK_MS, LONGEST_LOOK_MS = 1_000, 60_000


class Placement(Protocol):
    """The group's placement of tasks (`Coordination`)."""

    @property
    def in_touch(self) -> bool: ...

    def runs_elsewhere(self, task: TaskId) -> bool: ...


class StateCleaner:
    """Removes the state of tasks that have run elsewhere for long enough. Used by the worker's thread only."""

    def __init__(self, directory: StateDirectory, placement: Placement, clock: Clock, delay_ms: int) -> None:
        """`delay_ms`: `state.cleanup.delay.ms`."""
        self._directory = directory
        self._placement = placement
        self._clock = clock
        self._delay_ms = delay_ms
        self._since_ms: dict[TaskId, int] = {}
        """Since when each task on disk has been elsewhere (monotonic time)."""

    @property
    def interval_ms(self) -> int:
        """Interval at which `run` should be called."""
        return max(SHORTEST_LOOK_MS, min(LONGEST_LOOK_MS, self._delay_ms // 10))

    def run(self, owned: Collection[TaskId]) -> list[TaskId]:
        """Check once. Return the tasks whose state was removed. `owned`: tasks that this worker has open, of any kind. Raises
        StateDirectoryError."""
        if not self._placement.in_touch:
            self._since_ms.clear()
            return []
        now_ms = self._clock.monotonic_ms()
        on_disk = self._directory.tasks_on_disk()
        elsewhere = [task for task in on_disk if task not in owned and self._placement.runs_elsewhere(task)]
        self._since_ms = {task: self._since_ms.get(task, now_ms) for task in elsewhere}
        left = {task for task, since_ms in self._since_ms.items() if now_ms - since_ms >= self._delay_ms}
        if not left:
            return []
        return self._directory.clean({*on_disk} - left, self._delay_ms, self._clock.wall_ms())
