"""Is what should run healthy? Checkpoint freshness, restore debt, stale instances: a row for each task and instance, and the worst of them.

How old a checkpoint is says little by itself: a task that has had nothing to do since its last one has nothing to lose. What counts is
the age of *unsaved work*: the time since the last checkpoint, if the task's offsets moved after it. Without any checkpoint, time counts
from when the offsets first moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select

from orchestration.applications import Application, Applications, Severity
from orchestration.control_plane import ControlPlane
from orchestration.control_plane.models import Instance, Task
from runtime.states import TaskState

HEARTBEAT_SECONDS = 30.0
"""An instance that is wanted and has said nothing for so long is stale."""


@dataclass(frozen=True, slots=True)
class TaskHealth:
    """One task on one instance. Ages in seconds; `None` where there is nothing to count from."""

    application: str
    instance: str
    task: str
    kind: str
    state: str
    lag: int | None
    checkpoint_age_s: float | None
    unsaved_s: float
    severity: Severity
    problem: str


@dataclass(frozen=True, slots=True)
class InstanceHealth:
    """One declared instance: whether it is wanted, what it says, and since when it has said nothing."""

    application: str
    instance: str
    wanted: bool
    state: str
    silent_s: float | None
    tasks: int
    severity: Severity
    problem: str


@dataclass(frozen=True, slots=True)
class Health:
    """Everything, in the order of `streams.toml`, tasks by id."""

    instances: tuple[InstanceHealth, ...]
    tasks: tuple[TaskHealth, ...]

    @property
    def freshness(self) -> Severity:
        """The worst of the tasks."""
        return worst([task.severity for task in self.tasks])

    @property
    def liveness(self) -> Severity:
        """The worst of the instances."""
        return worst([instance.severity for instance in self.instances])

    @property
    def oldest_checkpoint_s(self) -> float | None:
        """None if no task has a checkpoint yet."""
        return max((task.checkpoint_age_s for task in self.tasks if task.checkpoint_age_s is not None), default=None)

    @property
    def oldest_unsaved_s(self) -> float:
        return max((task.unsaved_s for task in self.tasks), default=0.0)

    @property
    def restore_debt(self) -> int:
        """Records that restoring tasks have still to read."""
        return sum(task.lag or 0 for task in self.tasks if task.state == TaskState.RESTORING.value)


def worst(severities: Sequence[Severity]) -> Severity:
    return max(severities, key=lambda severity: severity.rank, default=Severity.INFO)


def examine(applications: Applications, control_plane: ControlPlane, at: datetime) -> Health:
    """The health of all that is declared, by what the control plane knows at `at`."""
    instances: list[InstanceHealth] = []
    tasks: list[TaskHealth] = []
    with control_plane.reading() as session:
        for application in applications.applications:
            rows = {row.name: row for row in session.scalars(select(Instance).where(Instance.application == application.id))}
            query = select(Task).where(Task.application == application.id, Task.state != TaskState.CLOSED.value).order_by(Task.task)
            reported = list(session.scalars(query))
            for name in application.instances:
                row = rows.get(name)
                own = [task for task in reported if task.instance == name]
                instances.append(_instance(application, name, row, len(own), at))
                if row is not None and row.wanted:
                    tasks.extend(_task(application, task, at) for task in own)
    return Health(tuple(instances), tuple(tasks))


def _instance(application: Application, name: str, row: Instance | None, tasks: int, at: datetime) -> InstanceHealth:
    wanted = row is not None and row.wanted
    state = (row.state if row is not None else None) or "never started"
    silent = None if row is None or row.heartbeat_at is None else max(0.0, (at - row.heartbeat_at).total_seconds())
    since = row.wanted_at if row is not None else None
    waiting = silent if silent is not None else 0.0 if since is None else (at - since).total_seconds()
    problem = f"wanted, and silent for {waiting:.0f} s" if wanted and waiting > HEARTBEAT_SECONDS else ""
    return InstanceHealth(application.id, name, wanted, state, silent, tasks, Severity.ERROR if problem else Severity.INFO, problem)


def _task(application: Application, task: Task, at: datetime) -> TaskHealth:
    age = None if task.checkpoint_at is None else max(0.0, (at - task.checkpoint_at).total_seconds())
    unsaved = _unsaved_seconds(task, at)
    limits = application.freshness
    severity, problem = Severity.INFO, ""
    if unsaved >= limits.error_seconds:
        severity, problem = Severity.ERROR, f"work of {unsaved:.0f} s is not in a checkpoint (limit {limits.error_seconds} s)"
    elif unsaved >= limits.warn_seconds:
        severity, problem = Severity.WARN, f"work of {unsaved:.0f} s is not in a checkpoint (limit {limits.warn_seconds} s)"
    elif task.state == TaskState.PAUSED.value:
        severity, problem = Severity.WARN, f"paused at {task.paused_topic}-{task.paused_partition}@{task.paused_offset}"
    return TaskHealth(application.id, task.instance, task.task, task.kind, task.state, task.lag, age, unsaved, severity, problem)


def _unsaved_seconds(task: Task, at: datetime) -> float:
    if task.moved_at is None:
        return 0.0
    if task.checkpoint_at is None:
        return max(0.0, (at - (task.first_moved_at or task.moved_at)).total_seconds())
    return max(0.0, (at - task.checkpoint_at).total_seconds()) if task.moved_at > task.checkpoint_at else 0.0
