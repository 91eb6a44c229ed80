"""Local state is removed when the group has had the task elsewhere for `state.cleanup.delay.ms`, and for no other reason."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.runtime.coordination.log import Entry
from penstock.runtime.coordination.records import ASSIGNMENT_KEY, Assignment, Grant, Member, Reserved, TaskReport
from penstock.runtime.coordination.registry import Registry
from penstock.runtime.model.ids import TaskId
from penstock.runtime.model.states import TaskKind, TaskState
from penstock.runtime.stores.directory import StateDirectory
from penstock.runtime.worker.periodic_jobs import StateCleaner
from penstock.testing import ManualClock

TASK, OTHER = TaskId(0, 0), TaskId(0, 1)
DELAY_MS = 30_000


@dataclass
class Group:
    """The group's view of the tasks."""

    in_touch: bool = True
    elsewhere: set[TaskId] = field(default_factory=set)

    def runs_elsewhere(self, task: TaskId) -> bool:
        return task in self.elsewhere


class World:
    """An instance with two tasks on its disk, last written in 1970."""

    def __init__(self, folder: Path) -> None:
        self.group = Group()
        self.clock = ManualClock()
        self.directory = StateDirectory(folder, "app")
        for task in (TASK, OTHER):
            path = self.directory.task_directory(task) / "rocksdb"
            path.mkdir()
            for each in (path, path.parent):
                os.utime(each, (0, 0))
        self.cleaner = StateCleaner(self.directory, self.group, self.clock, DELAY_MS)

    def look(self, after_ms: int, *owned: TaskId) -> list[TaskId]:
        self.clock.advance(after_ms)
        return self.cleaner.run(owned)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_old_state_of_an_unassigned_task_stays(world: World) -> None:
    """Its task may wait for a worker that restarts, or for a version that has the task."""
    assert world.look(0) == [] and world.look(10 * DELAY_MS) == []


def test_the_delay_counts_from_the_loss_of_the_task(world: World) -> None:
    world.group.elsewhere = {TASK}
    assert world.look(0, TASK) == [] and world.look(10 * DELAY_MS, TASK) == [], "it is open here"
    assert world.look(0) == [] and world.look(DELAY_MS - 1) == []
    assert world.look(1) == [TASK]
    assert world.directory.tasks_on_disk() == [OTHER]


def test_a_task_that_comes_back_begins_the_delay_again(world: World) -> None:
    world.group.elsewhere = {TASK}
    world.look(0)
    world.group.elsewhere = set()
    world.look(DELAY_MS - 1)
    world.group.elsewhere = {TASK}
    assert world.look(1) == [] and world.look(DELAY_MS - 1) == [] and world.look(1) == [TASK]


def test_time_without_the_group_does_not_count_for_the_removal(world: World) -> None:
    world.group.elsewhere = {TASK}
    world.look(0)
    world.group.in_touch = False
    assert world.look(10 * DELAY_MS) == []
    world.group.in_touch = True
    assert world.look(0) == [] and world.look(DELAY_MS - 1) == [] and world.look(1) == [TASK]


@given(st.lists(st.tuples(st.integers(0, 2 * DELAY_MS), st.sampled_from(["elsewhere", "here", "away", "open"])), max_size=12))
def test_only_an_uninterrupted_absence_of_a_task_removes_its_state(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, str]]
) -> None:
    world = World(tmp_path_factory.mktemp("state"))
    absent_ms: int | None = None
    for after_ms, state in steps:
        world.group.in_touch = state != "away"
        world.group.elsewhere = {TASK} if state != "here" else set()
        removed = world.look(after_ms, *([TASK] if state == "open" else []))
        absent_ms = None if state != "elsewhere" else 0 if absent_ms is None else absent_ms + after_ms
        assert removed == ([TASK] if absent_ms is not None and absent_ms >= DELAY_MS else [])
        if removed:
            return


def _report(kind: TaskKind = TaskKind.ACTIVE) -> TaskReport:
    return TaskReport(kind=kind, state=TaskState.RUNNING, offset_sum=0, end_sum=0, lag=0)


def _member(instance: str, worker: int = 1, incarnation: int = 1, **tasks: TaskReport) -> Member:
    return Member(
        instance=instance,
        worker=worker,
        incarnation=incarnation,
        transactional_id="t",
        host="h",
        pid=1,
        member_id=f"{instance}{worker}{incarnation}",
        tasks={name.removeprefix("t"): report for name, report in tasks.items()},
    )


def _grant(instance: str, *active: str, standby: tuple[str, ...] = (), worker: int = 1) -> Grant:
    return Grant(
        member_id=f"{instance}{worker}1", incarnation=1, instance=instance, worker=worker, active=list(active), standby=list(standby)
    )


AT_B = _grant("b", "0_0")


@pytest.mark.parametrize(
    "members, assignment, at_a",
    [
        ([_member("a"), _member("b")], Assignment(leader="", grants=[_grant("a"), AT_B]), False),
        ([_member("a"), _member("b")], Assignment(leader="", grants=[_grant("a", standby=("0_0",)), AT_B]), True),
        ([_member("a"), _member("b")], Assignment(leader="", grants=[_grant("a"), AT_B], heirs={"0_0": "a/1/1"}), True),
        ([_member("a"), _member("b")], Assignment(leader="", grants=[AT_B], revoking={"a/1/1": ["0_0"]}), True),
        ([_member("b")], Assignment(leader="", grants=[AT_B], reserved={"0_0": Reserved(instance="a", until_ms=1)}), True),
        ([_member("a", 1), _member("a", 2, t0_0=_report()), _member("b")], Assignment(leader="", grants=[AT_B]), True),
        ([_member("a", 1), _member("a", 2), _member("b")], Assignment(leader="", grants=[_grant("a", "0_0", worker=2)]), True),
        ([_member("a/b"), _member("a")], Assignment(leader="", grants=[_grant("a/b", "0_0")], heirs={"0_0": "a/b/1/1"}), False),
    ],
)
def test_a_task_is_at_an_instance_that_may_have_it_or_is_promised_it(members: list[Member], assignment: Assignment, at_a: bool) -> None:
    registry = Registry()
    for offset, member in enumerate(members):
        registry.apply(Entry(offset, member, member.key, None), 0)
    registry.apply(Entry(10, assignment, ASSIGNMENT_KEY, None), 0)
    assert registry.is_at("0_0", "a") is at_a


def test_a_grant_to_a_member_that_is_gone_is_no_grant() -> None:
    registry = Registry()
    registry.apply(Entry(0, _member("a"), _member("a").key, None), 0)
    registry.apply(Entry(1, Assignment(leader="", grants=[AT_B]), ASSIGNMENT_KEY, None), 0)
    assert not registry.is_granted("0_0")
    registry.apply(Entry(2, _member("b"), _member("b").key, None), 0)
    assert registry.is_granted("0_0")
