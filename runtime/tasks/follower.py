"""A task whose state is only followed: a standby or a learner (Kafka Streams' `StandbyTask`; KIP-429 v3's learner).

It has the stores of the active task, in the same folder, and reads their changelogs as they grow. It processes nothing, commits nothing
to the brokers, and has no say in the client's state (rules.md, 1). When its member is granted the task, the active one takes the stores
over as they are, open and a moment behind: opening them anew would be most of what a hand-over takes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from runtime.ids import Partition, TaskId
from runtime.states import TaskKind, TaskState, check_task_move
from runtime.stores.base import EngineStore
from runtime.tasks.plan import TaskPlan

logger = logging.getLogger(__name__)


def _no_record() -> int:
    """Nothing is processed."""
    return 0


class FollowerTask:
    """One standby or learner. Belongs to the worker's thread; `kind` may change while it runs."""

    def __init__(self, plan: TaskPlan, kind: TaskKind) -> None:
        self.id: TaskId = plan.task_id
        self.plan = plan
        self.kind = kind
        self.state = TaskState.CREATED
        self.stores: dict[str, EngineStore] = {}
        self.changelogs: dict[str, Partition] = {}
        """Changelog partition by store name, of the stores that have one."""
        self.checkpoint_ms: int | None = None
        self.checkpoint_position: int | None = None
        """`position` as of the last checkpoint."""
        self.followed = False
        """True once the changelogs are being read."""
        self.caught_up = False
        """True when the stores are as good as whole (rules.md, 25)."""
        self.record_time: Callable[[], int] = _no_record
        """What the stores are told is the timestamp of the record that is being processed."""

    @property
    def inputs(self) -> tuple[Partition, ...]:
        """The input partitions of the task, which this one does not read."""
        return self.plan.inputs

    def open(self) -> None:
        """Opens the stores; those whose files are damaged are empty then. CREATED → RUNNING, as standbys in Kafka Streams. Raises
        StateDirectoryError."""
        self.stores, damaged = self.plan.open_stores(lambda: self.record_time())
        for store in damaged:
            logger.warning("%s task %s: the files of store %s were damaged; it begins anew", self.kind.value.lower(), self.id, store.name)
        self.changelogs = self.plan.changelogs
        for state in (TaskState.RESTORING, TaskState.RUNNING):
            self.state = check_task_move(self.state, state)

    @property
    def position(self) -> int:
        """Sum of the next offsets of its changelogs."""
        return sum(self.stores[name].committed_offset(changelog) or 0 for name, changelog in self.changelogs.items())

    def wipe(self) -> None:
        """Empties the stores, to follow from the start."""
        for store in self.stores.values():
            store.wipe()
        self.followed = self.caught_up = False

    def checkpoint(self, now_ms: int) -> dict[str, dict[str, int]]:
        """As of an active task (KIP-116)."""
        self.checkpoint_ms, self.checkpoint_position = now_ms, self.position
        return self.plan.checkpoint(self.stores, self.changelogs)

    def hand_over(self) -> dict[str, EngineStore]:
        """The stores, and with them the lock of the folder, are the active task's from now on. RUNNING → CLOSED."""
        self.state = check_task_move(self.state, TaskState.CLOSED)
        return self.stores

    def close(self) -> None:
        """Writes `.checkpoint` and closes the stores. Safe to call twice."""
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
