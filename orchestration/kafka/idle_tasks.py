"""Tasks that no instance runs, and the reason, from the records on the coordination topic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from penstock.orchestration.kafka.observer import Picture
from penstock.runtime.coordination.records import Assignment, Member, TaskReport, TopologyText
from penstock.runtime.coordination.resets import reset_command
from penstock.runtime.model.ids import TaskId
from penstock.runtime.model.states import TaskKind, TaskState
from penstock.runtime.topology.shape import tasks_of

_NO_ASSIGNMENT = Assignment(leader="", grants=[])


@dataclass(frozen=True, slots=True)
class IdleTask:
    """Task that no instance runs, and what it waits for."""

    task: str
    reason: str


def idle_tasks(picture: Picture, lives: Callable[[Member], bool], now_ms: int) -> list[IdleTask]:
    """Return the tasks of an application that no instance runs; nothing if it is stopped: no instance is wanted and no member is left.

    `lives`: whether a member runs, as far as this machine can say. `now_ms`: wall-clock time.
    """
    living = [
        member for member in picture.members.values() if lives(member) and not member.returns and member.identity not in picture.deaths
    ]
    wanted = any(desired.running for desired in picture.desired.values())
    crashed = any(not member.returns and not _is_unwanted(picture, member.instance) for member in picture.members.values())
    if not living and not wanted and not crashed:
        return []
    reasons = _Reasons(picture, living, now_ms)
    run = {task for member in living for task, report in member.tasks.items() if _is_run(report)}
    return [IdleTask(str(task), reasons.of(task)) for task in sorted(_tasks(picture, living)) if str(task) not in run]


def _is_unwanted(picture: Picture, instance: str) -> bool:
    desired = picture.desired.get(instance)
    return desired is not None and not desired.running


def _is_run(report: TaskReport) -> bool:
    """Return True if a worker has the task, also while it restores or is paused, which it reports itself."""
    return report.kind is TaskKind.ACTIVE and report.state is not TaskState.CREATED


def _tasks(picture: Picture, living: Sequence[Member]) -> set[TaskId]:
    """Return the tasks of the running topologies and of the one started last; those of the assignment if no record has them."""
    versions = [picture.versions[member.topology] for member in living if member.topology in picture.versions]
    versions += [*picture.versions.values()][-1:]
    found = {task for version in versions for task in tasks_of(version.parts)}
    return found or {TaskId.parse(task) for task in _assigned(picture.assignment or _NO_ASSIGNMENT)}


def _assigned(assignment: Assignment) -> set[str]:
    granted = {task for grant in assignment.grants for task in grant.active}
    return granted.union(assignment.heirs, assignment.reserved, *assignment.revoking.values())


class _Reasons:
    """Reasons why tasks are not run; the first that applies is used."""

    def __init__(self, picture: Picture, living: Sequence[Member], now_ms: int) -> None:
        self._picture = picture
        self._assignment = picture.assignment or _NO_ASSIGNMENT
        self._living = living
        self._names = {member.identity for member in living}
        self._now_ms = now_ms

    def of(self, task: TaskId) -> str:
        looks = (
            self._reset,
            self._no_member,
            self._not_open,
            self._no_version,
            self._kept,
            self._being_fenced,
            self._on_its_way,
            self._granted,
        )
        return next((reason for look in looks if (reason := look(task))), "the leader has not assigned it yet")

    def _reset(self, task: TaskId) -> str | None:
        reset = self._picture.unfinished_reset
        return None if reset is None else f"a reset has not ended: {reset_command(reset, self._picture.application)}"

    def _no_member(self, task: TaskId) -> str | None:
        if self._living:
            return None
        names = sorted(instance for instance, desired in self._picture.desired.items() if desired.running)
        start = f": penstock start {' '.join(names)}" if names else ": start an instance"
        return f"no instance runs{start}"

    def _not_open(self, task: TaskId) -> str | None:
        for member in self._living:
            report = member.tasks.get(str(task))
            if report is not None and report.kind is TaskKind.ACTIVE:
                return f"{member.instance} opens it: its folder is locked by another process, or its first state is copied (see its log)"
        return None

    def _no_version(self, task: TaskId) -> str | None:
        versions = [self._picture.versions.get(member.topology) for member in self._living]
        if any(version is None or _has(version, task) for version in versions):
            return None
        return f"no instance that runs has a version of the topology with sub-topology {task.subtopology}: penstock deploy, or start one"

    def _kept(self, task: TaskId) -> str | None:
        kept = self._assignment.reserved.get(str(task))
        if kept is None or kept.until_ms <= self._now_ms:
            return None
        until = datetime.fromtimestamp(kept.until_ms / 1000, UTC).astimezone()
        return f"kept until {until:%H:%M:%S} for {kept.instance}, which restarts: penstock start {kept.instance}, or stop it for good"

    def _being_fenced(self, task: TaskId) -> str | None:
        for member in self._picture.members.values():
            if member.identity not in self._names and str(task) in member.active and not member.returns:
                if member.identity in self._picture.deaths:
                    return f"{member.instance} ran it and is dead: its transaction is being aborted"
                return f"{member.instance} ran it and does not answer: others wait for the end of its session (session.timeout.ms)"
        return None

    def _on_its_way(self, task: TaskId) -> str | None:
        heir = self._assignment.heirs.get(str(task))
        holders = [identity for identity, tasks in self._assignment.revoking.items() if str(task) in tasks]
        if heir is None and not holders:
            return None
        waits = f", which waits until {_instance(holders[0])} has let go of it" if holders else ""
        return f"it moves to {_instance(heir) if heir else 'another instance'}{waits}"

    def _granted(self, task: TaskId) -> str | None:
        for grant in self._assignment.grants:
            if str(task) in grant.active:
                gone = "" if grant.identity in self._names else " and does not run any more"
                return f"it was granted to {grant.instance}, which has not opened it{gone or ' yet'}"
        return None


def _has(version: TopologyText, task: TaskId) -> bool:
    return task in tasks_of(version.parts)


def _instance(identity: str) -> str:
    """Return the instance of an identity (`<instance>/<worker>/<incarnation>`)."""
    return identity.rsplit("/", 2)[0]
