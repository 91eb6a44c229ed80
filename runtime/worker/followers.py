"""The standbys and learners of a worker: opens what the leader wants copies of, follows their changelogs, and says which have caught up."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from runtime.changelog.restore import Restorer
from runtime.clock import Clock
from runtime.errors import BrokerUnavailableError, StateDirectoryLockedError, TaskCorruptedError
from runtime.ids import TaskId
from runtime.seeds.first_state import FirstState
from runtime.states import TaskKind, TaskState
from runtime.tasks.follower import FollowerTask
from runtime.worker.lock_waits import LockWaits
from runtime.worker.plans import Planner

logger = logging.getLogger(__name__)


class Followers:
    """All tasks of one worker that are only followed. Belongs to the worker's thread."""

    def __init__(
        self, planner: Planner, restorer: Restorer, clock: Clock, acceptable_lag: int, recently_ms: int, first_state: FirstState
    ) -> None:
        """`acceptable_lag` in records (`acceptable.recovery.lag`). What arrived within `recently_ms`, two commits, is no lag either: a
        changelog that is written to without a pause is never read to its end (rules.md, 25)."""
        self._planner = planner
        self._restorer = restorer
        self._clock = clock
        self._waits = LockWaits(clock)
        self._first_state = first_state
        self._acceptable_lag = acceptable_lag
        self._recently_ms = recently_ms
        self._tasks: dict[TaskId, FollowerTask] = {}
        self._ends: dict[TaskId, tuple[int, int, int]] = {}
        """By task: the sums of its changelogs' ends at two moments, and the monotonic time of the later one in ms; renewed every half
        `recently_ms`, so that the earlier one is always a while ago."""
        self.changed = False
        """Set when a task came, went, changed its kind or caught up; whoever publishes that resets it."""

    def all(self) -> list[FollowerTask]:
        """Every task, in the order of ids."""
        return [self._tasks[task] for task in sorted(self._tasks)]

    def __contains__(self, task: object) -> bool:
        return task in self._tasks

    @property
    def behind(self) -> bool:
        """True while one of them has not caught up."""
        return any(task.followed and not task.caught_up for task in self._tasks.values())

    def keep(self, wanted: Mapping[TaskId, TaskKind]) -> None:
        """Closes the tasks that are not wanted any more; the others may change their kind."""
        for task in self.all():
            kind = wanted.get(task.id)
            if kind is None:
                self._close(task)
            elif kind is not task.kind:
                task.kind, self.changed = kind, True

    def promote(self, ids: Collection[TaskId]) -> list[FollowerTask]:
        """Gives out those that are to be active now and can be as they are: open, and followed. The restorer goes on reading for them. The
        others are closed before the active one opens the same folder."""
        given = []
        for task in self.all():
            if task.id in ids and task.followed:
                self._forget(task)
                given.append(task)
            elif task.id in ids:
                self._close(task)
        return given

    def open(self, wanted: Mapping[TaskId, TaskKind]) -> None:
        """Opens the tasks that are not here yet. Raises StateDirectoryError."""
        for task_id, kind in sorted(wanted.items(), key=lambda each: each[0]):
            if task_id not in self._tasks:
                self._open(self._planner.follower(task_id, kind))

    def _open(self, task: FollowerTask) -> None:
        self._tasks[task.id] = task
        try:
            if not self._first_state.is_settled(task.plan):
                return
            task.open()
        except StateDirectoryLockedError as error:
            self._waits.wait(task.id, error)
            return
        self._waits.over(task.id)
        logger.info("task %s is followed as %s", task.id, task.kind.value, extra={"task": task.id})
        self.changed = True

    def advance(self) -> None:
        """Begins to follow what was opened, and looks who has caught up. The reading itself is the restorer's, with all its other stores.

        A broker that does not answer is asked again the next time. Raises MissingSourceTopicError for a changelog that is not there.
        """
        for task in self.all():
            if task.state is TaskState.CREATED:
                self._open(task)
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
        changelogs = self._planner.changelogs([partition for task in tasks for partition in task.changelogs.values()])
        for task in tasks:
            self._restorer.follow(task.id, [(task.stores[name], changelogs[partition]) for name, partition in task.changelogs.items()])
            task.plan.restore_begins(task.stores, task.changelogs)
            task.followed = True

    def _has_caught_up(self, task: FollowerTask, now_ms: int) -> bool:
        lag = self.lag(task.id)
        if lag is None:
            return False
        end = task.position + lag
        earlier, later, since_ms = self._ends.get(task.id, (end, end, now_ms))
        if now_ms - since_ms >= self._recently_ms // 2:
            earlier, later, since_ms = later, end, now_ms
        self._ends[task.id] = earlier, later, since_ms
        limit = max(self._acceptable_lag, end - earlier)
        return lag <= (2 * limit if task.caught_up else limit)  # so that it does not come and go with every commit

    def lag(self, task: TaskId) -> int | None:
        """Records that a task is behind its changelogs; None until that is known."""
        return self._restorer.lag(task)

    def checkpoint(self) -> dict[TaskId, dict[str, dict[str, int]]]:
        """Of those that have read something since their last one (KIP-116): offsets by changelog and store."""
        moved = [task for task in self._tasks.values() if task.followed and task.position != task.checkpoint_position]
        return {task.id: task.checkpoint(self._clock.wall_ms()) for task in moved}

    def wipe(self, error: TaskCorruptedError) -> None:
        """Those of the tasks named that are here begin anew: their stores do not fit their changelogs."""
        for task_id in error.tasks:
            task = self._tasks.get(task_id)
            if task is not None:
                logger.warning("%s of task %s begins anew: %s", task.kind.value.lower(), task_id, error)
                self._restorer.remove(task_id)
                task.wipe()

    def close(self) -> None:
        """Closes all of them."""
        for task in self.all():
            self._close(task)

    def _close(self, task: FollowerTask) -> None:
        self._forget(task)
        self._restorer.remove(task.id)
        task.close()

    def _forget(self, task: FollowerTask) -> None:
        del self._tasks[task.id]
        self._waits.over(task.id)
        self._first_state.forget(task.id)
        self._ends.pop(task.id, None)
        self.changed = True
