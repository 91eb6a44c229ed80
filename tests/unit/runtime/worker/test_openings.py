"""Hundreds of tasks are opened in slices of a turn: those that run, the reports and the leader's work do not wait for all of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from penstock.runtime.model.ids import TaskId
from penstock.runtime.model.metrics import Metrics
from penstock.runtime.model.states import TaskKind, TaskState
from penstock.runtime.worker.followers import Followers
from penstock.runtime.worker.openings import OPENING_MS
from penstock.runtime.worker.task_manager import TaskManager

OPENS_MS = 30
IN_A_TURN = -(-OPENING_MS // OPENS_MS)
TASKS = [TaskId(0, number) for number in range(10)]


@dataclass(slots=True)
class Disk:
    """A slow disk with a clock."""

    now_ms: int = 0
    opened: list[TaskId] = field(default_factory=list)

    def monotonic_ms(self) -> int:
        return self.now_ms

    def task(self, task_id: TaskId, kind: TaskKind = TaskKind.ACTIVE) -> SimpleNamespace:
        task = SimpleNamespace(id=task_id, kind=kind, state=TaskState.CREATED, plan=None, followed=False, caught_up=False)

        def open_it() -> list[object]:
            self.now_ms += OPENS_MS
            self.opened.append(task_id)
            task.state = TaskState.RESTORING
            return []

        task.open = open_it
        return task


SETTLED = SimpleNamespace(is_settled=lambda plan: True)


def test_active_tasks_are_opened_a_few_in_a_turn_and_their_restore_begins_at_once() -> None:
    disk = Disk()
    waits, restorer = SimpleNamespace(done=lambda task: None), SimpleNamespace(restoring=set(), step=lambda timeout: set())
    factory = SimpleNamespace(task=disk.task)
    none = cast(Any, None)
    manager = TaskManager(
        cast(Any, factory),
        none,
        cast(Any, restorer),
        None,
        none,
        none,
        none,
        cast(Any, waits),
        cast(Any, SETTLED),
        Metrics(),
        cast(Any, disk),
    )
    begun: list[TaskId] = []

    def restore(tasks: list[Any]) -> None:
        begun.extend(task.id for task in tasks)
        restorer.restoring.update(begun)

    cast(Any, manager)._restore = restore
    manager.create(TASKS)
    assert disk.opened == begun == TASKS[:IN_A_TURN] and manager.opening
    manager.advance(0.0)
    assert disk.opened == begun == TASKS[: 2 * IN_A_TURN] and manager.opening
    manager.advance(0.0)
    assert disk.opened == begun == TASKS and not manager.opening


def test_followers_are_opened_a_few_in_a_turn() -> None:
    disk = Disk()
    factory = SimpleNamespace(follower=disk.task)
    followers = Followers(cast(Any, factory), cast(Any, None), cast(Any, disk), 0, 200, cast(Any, SETTLED))
    cast(Any, followers)._follow = lambda tasks: None
    followers.open(dict.fromkeys(TASKS, TaskKind.STANDBY))
    assert disk.opened == TASKS[:IN_A_TURN] and len(followers.all()) == len(TASKS)
    followers.advance()
    followers.advance()
    assert disk.opened == TASKS
