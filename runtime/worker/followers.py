"""Standbys and learners of a worker: opened on the leader's order, kept up to date from their changelogs, and reported when they have
caught up."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from penstock.runtime.changelog.restore import Restorer
from penstock.runtime.model.clock import Clock
from penstock.runtime.model.errors import BrokerUnavailableError, StateDirectoryLockedError, TaskCorruptedError
from penstock.runtime.model.ids import TaskId
from penstock.runtime.model.states import TaskKind, TaskState
from penstock.runtime.seeds.first_state import FirstState
from penstock.runtime.tasks.follower import FollowerTask
from penstock.runtime.worker.lock_waits import LockWaits
from penstock.runtime.worker.openings import Openings
from penstock.runtime.worker.task_factory import TaskFactory

logger = logging.getLogger(__name__)


class Followers:
    """All standbys and learners of one worker. Used by the worker's thread only."""

    def __init__(
        self, task_factory: TaskFactory, restorer: Restorer, clock: Clock, acceptable_lag: int, recently_ms: int, first_state: FirstState
    ) -> None:
        """`acceptable_lag` in records (`acceptable.recovery.lag`). Records that arrived within `recently_ms`, two commits, do not count:
        the end of a busy changelog is never reached (rules.md, 25)."""
        self._task_factory = task_factory
        self._restorer = restorer
        self._clock = clock
        self._waits = LockWaits(clock)
        self._openings = Openings(clock)
        self._first_state = first_state
        self._acceptable_lag = acceptable_lag
        self._recently_ms = recently_ms
        self._tasks: dict[TaskId, FollowerTask] = {}
        self._ends: dict[TaskId, tuple[int, int, int]] = {}
        """By task: the sums of its changelogs' ends at two moments, and the monotonic time of the later one in ms. Renewed every half
        `recently_ms`, so that the earlier one is always old enough."""
        self.changed = False
        """Set when a task was opened, closed, changed its kind or caught up. Reset when that is published."""

    def all(self) -> list[FollowerTask]:
        """Return every task, in the order of ids."""
        return [self._tasks[task] for task in sorted(self._tasks)]

    def __contains__(self, task: object) -> bool:
        return task in self._tasks

    @property
    def behind(self) -> bool:
        """True while one of them has not caught up."""
        return any(task.followed and not task.caught_up for task in self._tasks.values())

    def close_unwanted(self, wanted: Mapping[TaskId, TaskKind]) -> None:
        """Close the tasks that are no longer wanted; the others may change their kind."""
        for task in self.all():
            kind = wanted.get(task.id)
            if kind is None:
                self._close(task)
            elif kind is not task.kind:
                task.kind, self.changed = kind, True

    def promote(self, ids: Collection[TaskId]) -> list[FollowerTask]:
        """Remove and return the tasks that become active as they are: open, and following. The restorer continues to read for them. Others
        are closed before the active task opens the same directory."""
        promoted = []
        for task in self.all():
            if task.id in ids and task.followed:
                self._forget(task)
                task.plan.metrics.remove(task_id=str(task.id))
                promoted.append(task)
            elif task.id in ids:
                self._close(task)
        return promoted

    def open(self, wanted: Mapping[TaskId, TaskKind]) -> None:
        """Open the tasks that are not open yet; of many, `advance` opens the rest. Raises StateDirectoryError."""
        for task_id, kind in wanted.items():
            if task_id not in self._tasks:
                self._tasks[task_id] = self._task_factory.follower(task_id, kind)
        self._open_some()

    def _open_some(self) -> None:
        for task in self._openings.of_this_turn([task for task in self.all() if task.state is TaskState.CREATED]):
            self._open(task)

    def _open(self, task: FollowerTask) -> None:
        try:
            if not self._first_state.is_settled(task.plan):
                return
            task.open()
        except StateDirectoryLockedError as error:
            self._waits.wait(task.id, error)
            return
        except BrokerUnavailableError as error:  # the next `advance` opens it
            logger.warning("standbys and learners wait for the broker: %s", error)
            return
        self._waits.done(task.id)
        logger.info("task %s is followed as %s", task.id, task.kind.value, extra={"task": task.id})
        self.changed = True

    def advance(self) -> None:
        """Start to follow newly opened tasks, and check which have caught up. The restorer does the reading, as for all stores.

        If a broker does not answer, the next call asks again. Raises MissingSourceTopicError for a missing changelog.
        """
        self._open_some()
        waiting = [task for task in self._tasks.values() if not task.followed and task.state is not TaskState.CREATED]
        if waiting:
            try:
                self._follow(waiting)
            except BrokerUnavailableError as error:
                logger.warning("standbys and learners wait for the broker: %s", error)
        now_ms = self._clock.monotonic_ms()
        for task in self._tasks.values():
            caught_up = task.followed and self._has_caught_up(task, now_ms)
            if caught_up is not task.caught_up:
                task.caught_up, self.changed = caught_up, True

    def _follow(self, tasks: list[FollowerTask]) -> None:
        changelogs = self._task_factory.changelogs([partition for task in tasks for partition in task.changelogs.values()])
        for task in tasks:
            self._restorer.follow(task.id, [(task.stores[name], changelogs[partition]) for name, partition in task.changelogs.items()])
            task.plan.prepare_restore(task.stores, task.changelogs)
            task.followed = True

    def _has_caught_up(self, task: FollowerTask, now_ms: int) -> bool:
        lag = self.lag(task.id)
        if lag is None:
            return False
        task.measure(lag, now_ms)
        end = task.position + lag
        earlier, later, since_ms = self._ends.get(task.id, (end, end, now_ms))
        if now_ms - since_ms >= self._recently_ms // 2:
            earlier, later, since_ms = later, end, now_ms
        self._ends[task.id] = earlier, later, since_ms
        limit = max(self._acceptable_lag, end - earlier)
        return lag <= (2 * limit if task.caught_up else limit)  # hysteresis, so that the state does not change with every commit

    def lag(self, task: TaskId) -> int | None:
        """Return how many records a task is behind its changelogs; None while that is unknown."""
        return self._restorer.lag(task)

    def checkpoint(self) -> dict[TaskId, dict[str, dict[str, int]]]:
        """Write checkpoints of the tasks that have read something since their last one (KIP-116). Return their offsets by changelog and
        store."""
        moved = [task for task in self._tasks.values() if task.followed and task.position != task.checkpoint_position]
        return {task.id: task.checkpoint(self._clock.wall_ms()) for task in moved}

    def wipe(self, error: TaskCorruptedError) -> None:
        """Wipe those of the named tasks that are here and restart them: their stores do not fit their changelogs."""
        for task_id in error.tasks:
            task = self._tasks.get(task_id)
            if task is not None:
                logger.warning("%s of task %s is restored from scratch: %s", task.kind.value.lower(), task_id, error)
                self._restorer.remove(task_id)
                task.wipe()

    def close(self) -> None:
        """Close all of them."""
        for task in self.all():
            self._close(task)

    def _close(self, task: FollowerTask) -> None:
        self._forget(task)
        self._restorer.remove(task.id)
        task.close()

    def _forget(self, task: FollowerTask) -> None:
        del self._tasks[task.id]
        self._waits.done(task.id)
        self._first_state.forget(task.id)
        self._ends.pop(task.id, None)
        self.changed = True
