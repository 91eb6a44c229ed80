"""Periodic jobs of a worker: purge repartition topics, compare committed offsets, commit idle ones again, remove state that has moved.

Each job is cheap, has its own interval, and may fail without harm when the broker is away: it is tried again after its interval.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from penstock.runtime.model.errors import StreamsError, TaskCorruptedError, TaskMigratedError, TransactionAbortedError
from penstock.runtime.model.ids import Partition
from penstock.runtime.model.states import TaskState
from penstock.runtime.worker.task_manager import TaskManager

logger = logging.getLogger(__name__)

MOVED_OFFSETS_MS = 10_000
"""Interval at which committed offsets are compared with those that this worker committed last (rules.md, 19)."""
CHANGELOGS_MS = 10_000
"""Interval at which the worker checks that its changelogs still exist."""
RECOMMIT_MS = 6 * 3_600_000
"""Interval at which idle offsets are committed again: a quarter of one day, the shortest default of `offsets.retention.minutes` (brokers
before Kafka 2.0; today's is seven days) (rules.md, 20)."""


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
    tasks: TaskManager, topics: Collection[str], delete_records: Callable[[Mapping[Partition, int]], object]
) -> None:
    """Delete processed records of repartition topics (Kafka Streams' purge): no other application reads them."""
    done: dict[Partition, int] = {}
    for task in tasks.in_state(TaskState.RUNNING):
        for partition, at in task.committed_offsets.items():
            if partition.topic in topics and task.queues is not None:
                # An offset that was moved forward from outside while the task runs does not mean that the records are processed (rules.md,
                # 19).
                done[partition] = min(at.offset, task.queues[partition].next_offset)
    if done:
        delete_records(done)
