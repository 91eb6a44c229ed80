"""Periodic jobs of a worker: purge repartition topics, compare committed offsets, commit idle ones again, remove state that has moved.

Each job is cheap, has its own interval, and may fail without harm when the broker is away: it is tried again after its interval.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from penstock.runtime.model.clock import Clock
from penstock.runtime.model.errors import StreamsError, TaskCorruptedError, TaskMigratedError, TransactionAbortedError
from penstock.runtime.model.ids import TaskId, TopicPartition
from penstock.runtime.model.states import TaskState
from penstock.runtime.stores.directory import StateDirectory
from penstock.runtime.worker.task_manager import TaskManager

logger = logging.getLogger(__name__)

MOVED_OFFSETS_MS = 10_000
"""Interval at which committed offsets are compared with those that this worker committed last (rules.md, 19)."""
CHANGELOGS_MS = 10_000
"""Interval at which the worker checks that its changelogs still exist."""
RECOMMIT_MS = 6 * 3_600_000
"""Interval at which idle offsets are committed again: a quarter of one day, the shortest default of `offsets.retention.minutes` (brokers
before Kafka 2.0; today's is seven days) (rules.md, 20)."""
SHORTEST_LOOK_MS, LONGEST_LOOK_MS = 1_000, 60_000


@dataclass(slots=True)
class _Job:
    name: str
    interval_ms: int
    work: Callable[[], None]
    due_ms: int


class PeriodicJobs:
    """The periodic jobs of one worker, checked once per turn."""

    def __init__(self) -> None:
        self._jobs: list[_Job] = []
        self._next_ms = 0

    def add(self, name: str, interval_ms: int, work: Callable[[], None], now_ms: int) -> None:
        """Call `work` every `interval_ms`, first after one interval. Log errors of the broker; raise those of a commit."""
        self._jobs.append(_Job(name, interval_ms, work, now_ms + interval_ms))
        self._next_ms = min(job.due_ms for job in self._jobs)

    def run(self, now_ms: int) -> None:
        """Run the jobs whose interval has passed. Raises TransactionAbortedError, TaskMigratedError and TaskCorruptedError only."""
        if now_ms < self._next_ms:
            return
        for job in self._jobs:
            if now_ms >= job.due_ms:
                job.due_ms = now_ms + job.interval_ms
                try:
                    job.work()
                except (TransactionAbortedError, TaskMigratedError, TaskCorruptedError):
                    raise
                except StreamsError as error:
                    logger.warning("%s: %s; next attempt in %d s", job.name, error, job.interval_ms // 1000)
        self._next_ms = min(job.due_ms for job in self._jobs)


def purge_repartition_topics(
    tasks: TaskManager, topics: Collection[str], delete_records: Callable[[Mapping[TopicPartition, int]], object]
) -> None:
    """Delete processed records of repartition topics (Kafka Streams' purge): no other application reads them."""
    done: dict[TopicPartition, int] = {}
    for task in tasks.in_state(TaskState.RUNNING):
        for partition, at in task.committed_offsets.items():
            if partition.topic in topics and task.queues is not None:
                # An offset that was moved forward from outside while the task runs does not mean that the records are processed (rules.md,
                # 19).
                done[partition] = min(at.offset, task.queues[partition].next_offset)
    if done:
        delete_records(done)


class Placement(Protocol):
    """The group's placement of tasks (`Coordination`)."""

    @property
    def in_touch(self) -> bool: ...

    def runs_elsewhere(self, task: TaskId) -> bool: ...


class StateCleaner:
    """Removes the state of tasks that have run elsewhere for long enough (Kafka Streams' `StateDirectory.cleanRemovedTasks`). Used by
    the worker's thread only.

    The age of a directory does not say that its state is unneeded: while the broker is away nothing is written, and after a long absence
    the worker owns nothing until its tasks are assigned again. So the group decides. A task's directory is removed when, for
    `state.cleanup.delay.ms` without interruption, this worker was a current member, and the assignment had the task at another instance and
    not at this one. The time begins when the task is lost, or with the first such assignment in the life of this process, and again after
    each absence.
    """

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
