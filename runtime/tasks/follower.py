"""Follower of a task's state: a standby or a learner (Kafka Streams' `StandbyTask`; KIP-429 v3's learner).

It has the active task's stores, in the same folder, and reads their changelogs as they grow. It neither processes nor commits to the
brokers, and does not affect the client's state (rules.md, 1). When its member is granted the task, the active task takes the stores over
while they are open: opening them again would take most of the hand-over's time.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from penstock.runtime.model.ids import TaskId, TopicPartition
from penstock.runtime.model.metrics import TASK
from penstock.runtime.model.states import TaskKind, TaskState, check_task_move
from penstock.runtime.stores.base import EngineStore
from penstock.runtime.tasks.plan import TaskPlan

logger = logging.getLogger(__name__)

SAMPLE_MS = 1_000
"""Interval of the measurements for the rate."""
_SAMPLES = 10
"""Number of measurements for the rate."""


def _no_record() -> int:
    """Return 0: a follower processes no record."""
    return 0


class FollowerTask:
    """Standby or learner. Used by the worker's thread only; `kind` may change while it runs."""

    def __init__(self, plan: TaskPlan, kind: TaskKind) -> None:
        self.id: TaskId = plan.task_id
        self.plan = plan
        self.kind = kind
        self.state = TaskState.CREATED
        self.stores: dict[str, EngineStore] = {}
        self.changelogs: dict[str, TopicPartition] = {}
        """Changelog partition by name of a logged store."""
        self.checkpoint_ms: int | None = None
        self.checkpoint_position: int | None = None
        """`position` as of the last checkpoint."""
        self.followed = False
        """True once the changelogs are being read."""
        self.caught_up = False
        """True if the stores have caught up (rules.md, 25)."""
        self.record_time: Callable[[], int] = _no_record
        """Timestamp of the record in process, for the stores."""
        metrics, of_task = plan.metrics, {"task_id": str(self.id)}
        metrics.gauge_of("task-kind", TASK, lambda: float(self.kind.number), **of_task)
        self._updated = metrics.counter("update-total", TASK, **of_task)
        self._rate = metrics.gauge("update-rate", TASK, **of_task)
        self._remaining = metrics.gauge("update-remaining-records", TASK, **of_task)
        self._samples: deque[tuple[int, int]] = deque(maxlen=_SAMPLES)
        """Moments (monotonic ms), and the records applied by then."""

    @property
    def inputs(self) -> tuple[TopicPartition, ...]:
        """Input partitions of the task, which a follower does not read."""
        return self.plan.inputs

    def open(self) -> None:
        """Open the stores; damaged ones are empty then. CREATED → RUNNING, as standbys in Kafka Streams. Raises StateDirectoryError."""
        self.stores, damaged = self.plan.open_stores(lambda: self.record_time())
        for store in damaged:
            logger.warning(
                "%s task %s: the files of store %s were damaged; it is restored from scratch", self.kind.value.lower(), self.id, store.name
            )
        self.changelogs = self.plan.changelogs
        for state in (TaskState.RESTORING, TaskState.RUNNING):
            self.state = check_task_move(self.state, state)

    @property
    def position(self) -> int:
        """Sum of the next offsets of its changelogs."""
        return sum(self.stores[name].committed_offset(changelog) or 0 for name, changelog in self.changelogs.items())

    def measure(self, lag: int, now_ms: int) -> None:
        """Update the metrics of the progress. `lag` in records; `now_ms` is monotonic time."""
        self._remaining.set(lag)
        if self._samples and now_ms - self._samples[-1][0] < SAMPLE_MS:
            return
        self._samples.append((now_ms, self._updated.value))
        since_ms, before = self._samples[0]
        self._rate.set(0 if now_ms == since_ms else (self._updated.value - before) * 1000 / (now_ms - since_ms))

    def wipe(self) -> None:
        """Empty the stores, to follow from the log's start."""
        for store in self.stores.values():
            store.wipe()
        self.followed = self.caught_up = False

    def checkpoint(self, now_ms: int) -> dict[str, dict[str, int]]:
        """Write a checkpoint, as an active task (KIP-116)."""
        self.checkpoint_ms, self.checkpoint_position = now_ms, self.position
        return self.plan.checkpoint(self.stores, self.changelogs)

    def hand_over(self) -> dict[str, EngineStore]:
        """Hand the stores and the folder's lock over to the active task. RUNNING → CLOSED."""
        self.state = check_task_move(self.state, TaskState.CLOSED)
        return self.stores

    def close(self) -> None:
        """Write `.checkpoint` and close the stores. Safe to call twice."""
        if self.state is TaskState.CLOSED:
            return
        try:
            if self.followed:
                self.checkpoint(self.plan.clock.wall_ms())
        finally:
            for store in self.stores.values():
                store.close()
            self.plan.lock.release()
            self.state = check_task_move(self.state, TaskState.CLOSED)
            self.plan.metrics.remove(task_id=str(self.id))
