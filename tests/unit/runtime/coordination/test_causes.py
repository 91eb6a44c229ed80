"""The cause that the leader writes into an assignment, and what the log says of a task's release."""

from __future__ import annotations

import pytest

from penstock.runtime.coordination.decision import Cause, cause_of
from penstock.runtime.coordination.log import Entry
from penstock.runtime.coordination.records import Assignment, Grant, Member, TaskReport, Tombstone
from penstock.runtime.coordination.registry import Registry, Released
from penstock.runtime.model.states import TaskKind, TaskState


def grant(name: str, *active: str, learner: str = "") -> Grant:
    return Grant(member_id=name, incarnation=1, instance=name, active=list(active), learner=[learner] if learner else [])


def assignment(*grants: Grant, **fields: object) -> Assignment:
    return Assignment(leader="a/1/1", grants=list(grants), **fields)  # type: ignore[arg-type]


ONE = assignment(grant("a", "0_0", "0_1"))
LEARNS = assignment(grant("a", "0_0", "0_1"), grant("b", learner="0_1"))
TWO = assignment(grant("a", "0_0"), grant("b", "0_1"))


@pytest.mark.parametrize(
    ("before", "after", "dead", "leaving", "cause"),
    [
        (None, ONE, [], [], Cause.FIRST),
        (ONE, LEARNS, [], [], Cause.MEMBER_JOINED),
        (LEARNS, TWO, [], [], Cause.TASKS_MOVED),
        (LEARNS, TWO, [], ["a/1/1"], Cause.MEMBER_LEAVES),
        (LEARNS, assignment(*LEARNS.grants, heirs={"0_1": "b/1/1"}), [], [], Cause.TASKS_MOVED),
        (TWO, ONE, [], [], Cause.MEMBER_LEFT),
        (TWO, ONE, ["b/1/1"], [], Cause.MEMBER_DIED),
        (TWO, assignment(grant("a", "0_0", learner="0_1"), grant("b", "0_1")), [], [], Cause.COPIES_CHANGED),
        (TWO, assignment(*TWO.grants, ran={"x": ["0_0"]}), [], [], Cause.OTHER),
    ],
)
def test_the_cause(before: Assignment | None, after: Assignment, dead: list[str], leaving: list[str], cause: Cause) -> None:
    assert cause_of(before, after, dead, leaving) is cause


def member(name: str, *active: str, epoch: int = 0) -> Member:
    report = TaskReport(kind=TaskKind.ACTIVE, state=TaskState.RUNNING, offset_sum=0, end_sum=0, lag=None)
    tasks = dict.fromkeys(active, report)
    return Member(instance=name, incarnation=1, transactional_id=name, host="h", pid=1, member_id=name, tasks=tasks, epoch=epoch)


def test_a_release_is_dated_by_the_record_that_shows_it_or_by_the_last_record_of_an_owner_that_died() -> None:
    registry = Registry()

    def read(record: Member | Assignment | Tombstone, offset: int, at_ms: int) -> None:
        registry.apply(Entry(offset, record, b"", at_ms), at_ms)

    read(ONE, 0, 10)
    read(member("a", "0_0", "0_1"), 1, 20)
    assert registry.released == {}
    read(TWO, 2, 30)
    assert registry.released == {}, "it still runs there"
    read(member("a", "0_0", epoch=2), 3, 40)
    assert registry.released == {"0_1": Released("a/1/1", 40)}
    read(Tombstone("member", "a/1/1"), 4, 90)
    assert registry.released == {"0_1": Released("a/1/1", 40), "0_0": Released("a/1/1", 40)}
