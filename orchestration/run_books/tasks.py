"""Base of run-books on a paused task, and the simplest of them, *resume*."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from sqlalchemy import select

from penstock.orchestration.alerts import alerts
from penstock.orchestration.database import ControlPlane, audit
from penstock.orchestration.database.models import Event, Task
from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.kafka.task_commands import RefusedError
from penstock.orchestration.run_books.base import Findings, Progress, Request, RunBook, RunBookError, Step, Subject
from penstock.runtime.model.events import EventKind
from penstock.runtime.model.ids import TaskId
from penstock.runtime.model.states import TaskKind, TaskState

SETTLE_SECONDS = 10.0
VERIFY_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class PausedRecord:
    """Record at which a task is paused."""

    task: TaskId
    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}@{self.offset}"

    def is_at(self, coordinates: Mapping[str, object]) -> bool:
        """Return True if `topic`, `partition` and `offset` are this record's."""
        return tuple(coordinates.get(name) for name in ("topic", "partition", "offset")) == (self.topic, self.partition, self.offset)


def paused_at(task: Task) -> PausedRecord | None:
    """Return the record at which a task is, or was, paused according to its row."""
    if task.paused_topic is None or task.paused_partition is None or task.paused_offset is None:
        return None
    return PausedRecord(TaskId.parse(task.task), task.paused_topic, task.paused_partition, task.paused_offset)


def _is_past(task: Task, record: PausedRecord | None) -> bool:
    """Return True if the task runs, or is paused at another record."""
    return task.state == TaskState.RUNNING.value or (task.state == TaskState.PAUSED.value and paused_at(task) != record)


def _not_running(task: TaskId) -> RunBookError:
    return RunBookError(f"task {task} is not running {VERIFY_SECONDS:.0f} s after it was resumed")


class TaskRunBook(RunBook):
    """Run-book on one task: its row, its pause, its alerts."""

    task_id: TaskId

    def task(self) -> Task | None:
        """Return the task's row, of the owner that reported last."""
        query = (
            select(Task)
            .where(Task.application == self.application.id, Task.task == str(self.task_id), Task.kind == TaskKind.ACTIVE.value)
            .order_by(Task.updated_at.desc())
            .limit(1)
        )
        with self.control_plane.reading() as session:
            return session.scalar(query)

    def pause_event(self, record: PausedRecord) -> Event | None:
        """Return the newest event that reports this pause."""
        query = (
            select(Event)
            .where(Event.application == self.application.id, Event.task == str(self.task_id))
            .where(Event.kind == EventKind.TASK_PAUSED.value)
            .order_by(Event.sequence.desc())
        )
        with self.control_plane.reading() as session:
            return next((event for event in session.scalars(query) if record.is_at(event.payload)), None)

    def ask_to_resume(self, record: PausedRecord | None) -> str:
        """Request a resume; return the instance that did it. A refusal is ignored unless the task is still paused at the record."""
        try:
            return self.commands.resume(self.task_id)
        except RefusedError:
            self.feed.step()
            task = self.task()
            if task is None or not _is_past(task, record):
                raise
            return f"{task.instance} (before us)"

    def wait_until_past(self, record: PausedRecord | None) -> Task:
        """Wait until the task runs, or is paused at another record; return its row. Raises RunBookError."""
        deadline = time.monotonic() + VERIFY_SECONDS
        while time.monotonic() < deadline:
            self.feed.step()
            task = self.task()
            if task is not None and _is_past(task, record):
                return task
            time.sleep(0.2)
        raise _not_running(self.task_id)

    def close_alerts(self, record: PausedRecord | None, resolution: str) -> list[int]:
        """Resolve the task's alerts on this pause; return their numbers."""
        kinds = [EventKind.TASK_PAUSED.value]
        with self.control_plane.writing() as session:
            findings = alerts.unresolved(session, application=self.application.id, kinds=kinds, task=str(self.task_id))
            mine = [alert for alert in findings if record is None or record.is_at(alert.detail)]
            for alert in mine:
                alerts.resolve(session, alert, actor=self.request.requested_by, at=audit.now(), resolution=resolution)
            return [alert.id for alert in mine]


class ResumeTask(TaskRunBook):
    """Resume a paused task from the committed offsets: after a manual pause, or after its offsets were moved."""

    NAME = "resume"
    STEPS: ClassVar[tuple[Step, ...]] = (
        Step("check", "the task is paused"),
        Step("resume", "the owner reads the committed offsets again and continues"),
        Step("verify", "the task runs, or has paused at another record"),
        Step("close", "the alert on the pause is resolved"),
    )

    def __init__(
        self, application: Application, control_plane: ControlPlane, task: TaskId, request: Request, progress: Progress = lambda _: None
    ) -> None:
        super().__init__(application, control_plane, request, progress)
        self.task_id = task
        self._record: PausedRecord | None = None
        self._known_pause = 0
        self._ran = False

    def subject(self) -> Subject:
        return Subject(f"task {self.task_id}", str(self.task_id))

    def needless(self, step: Step) -> bool:
        return self._ran and step.name != "close"

    def inspect(self, findings: Findings) -> None:
        self.feed.step()
        task = self.task()
        if task is None:
            raise RefusedError(f"no instance has reported a task {self.task_id}")
        findings.update({"state": task.state, "instance": task.instance})
        if task.state == TaskState.RUNNING.value:
            self._ran = True
            return
        if task.state != TaskState.PAUSED.value:
            shows = f"`penstock tasks {self.application.id}` shows those that are"
            raise RefusedError(f"task {self.task_id} is not paused: it is {task.state} on {task.instance}. {shows}")
        self._record = paused_at(task)
        event = None if self._record is None else self.pause_event(self._record)
        self._known_pause = 0 if event is None else event.sequence
        findings["paused at"] = None if self._record is None else str(self._record)

    def take(self, step: Step, findings: Findings) -> None:
        match step.name:
            case "resume":
                findings["by"] = self.ask_to_resume(self._record)
            case "verify":
                task = self._verify()
                findings.update({"state": task.state, "instance": task.instance})
            case "close":
                findings["alerts"] = self.close_alerts(self._record, f"resumed by {self.request.requested_by}")

    def _verify(self) -> Task:
        """Wait until the task has passed the record that it was paused at, is paused elsewhere, or still runs after the timeout without
        having committed; return its row. Raises RunBookError at once if it paused at the same record again."""
        deadline = time.monotonic() + VERIFY_SECONDS
        while True:
            self.feed.step()
            record, event = self._record, None if self._record is None else self.pause_event(self._record)
            if event is not None and event.sequence > self._known_pause:
                raise RunBookError(f"task {self.task_id} paused at {record} again: {event.payload.get('error')}")
            task, late = self.task(), time.monotonic() > deadline
            if task is not None and _is_past(task, record) and (late or self._has_passed(record, event)):
                return task
            if late:
                raise _not_running(self.task_id)
            time.sleep(0.2)

    def _has_passed(self, record: PausedRecord | None, event: Event | None) -> bool:
        """Return True if the task has committed past the record, or if the pause was not caused by a record."""
        if record is None or event is None or event.payload.get("reason") == "command":
            return True
        committed = self.commands.committed(record.topic, record.partition)
        return committed is not None and committed > record.offset

    def outcome(self) -> str:
        return f"task {self.task_id} ran already" if self._ran else f"task {self.task_id} runs"
