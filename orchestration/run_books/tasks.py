"""What run-books about a paused task share, and the smallest of them: *resume*."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from sqlalchemy import select

from orchestration import alerts, audit
from orchestration.applications import Application
from orchestration.control_plane import ControlPlane
from orchestration.control_plane.models import Event, Task
from orchestration.run_books.base import Found, Progress, Request, RunBook, RunBookError, Step, Subject
from orchestration.tasks import RefusedError
from runtime.events import EventKind
from runtime.ids import TaskId
from runtime.states import TaskKind, TaskState

SETTLE_SECONDS = 10.0
VERIFY_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class RecordInTheWay:
    """The record that a task is paused at."""

    task: TaskId
    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}@{self.offset}"

    def is_at(self, coordinates: Mapping[str, object]) -> bool:
        """True if `topic`, `partition` and `offset` are this record's."""
        return tuple(coordinates.get(name) for name in ("topic", "partition", "offset")) == (self.topic, self.partition, self.offset)


def paused_at(task: Task) -> RecordInTheWay | None:
    """The record that a task's row says it is, or was, paused at."""
    if task.paused_topic is None or task.paused_partition is None or task.paused_offset is None:
        return None
    return RecordInTheWay(TaskId.parse(task.task), task.paused_topic, task.paused_partition, task.paused_offset)


def _is_past(task: Task, record: RecordInTheWay | None) -> bool:
    """True if the task runs, or is paused at another record."""
    return task.state == TaskState.RUNNING.value or (task.state == TaskState.PAUSED.value and paused_at(task) != record)


def _not_running(task: TaskId) -> RunBookError:
    return RunBookError(f"task {task} is not running {VERIFY_SECONDS:.0f} s after it was resumed")


class TaskRunBook(RunBook):
    """A run-book about one task: its row, its pause, its alert."""

    task_id: TaskId

    def task(self) -> Task | None:
        """The task's row, of the owner that reported last."""
        query = (
            select(Task)
            .where(Task.application == self.application.id, Task.task == str(self.task_id), Task.kind == TaskKind.ACTIVE.value)
            .order_by(Task.updated_at.desc())
            .limit(1)
        )
        with self.control_plane.reading() as session:
            return session.scalar(query)

    def pause_event(self, record: RecordInTheWay) -> Event | None:
        """The newest event that tells of this pause."""
        query = (
            select(Event)
            .where(Event.application == self.application.id, Event.task == str(self.task_id))
            .where(Event.kind == EventKind.TASK_PAUSED.value)
            .order_by(Event.sequence.desc())
        )
        with self.control_plane.reading() as session:
            return next((event for event in session.scalars(query) if record.is_at(event.payload)), None)

    def ask_to_resume(self, record: RecordInTheWay | None) -> str:
        """Who resumed the task. A refusal counts only if the task is still paused there: somebody may have been quicker."""
        try:
            return self.commands.resume(self.task_id)
        except RefusedError:
            self.feed.step()
            task = self.task()
            if task is None or not _is_past(task, record):
                raise
            return f"{task.instance} (before us)"

    def wait_until_past(self, record: RecordInTheWay | None) -> Task:
        """The task's row, once it runs, or is paused at another record. Raises RunBookError."""
        deadline = time.monotonic() + VERIFY_SECONDS
        while time.monotonic() < deadline:
            self.feed.step()
            task = self.task()
            if task is not None and _is_past(task, record):
                return task
            time.sleep(0.2)
        raise _not_running(self.task_id)

    def close_alerts(self, record: RecordInTheWay | None, resolution: str) -> list[int]:
        """Resolves the task's alerts on this pause; their numbers."""
        kinds = [EventKind.TASK_PAUSED.value]
        with self.control_plane.writing() as session:
            found = alerts.unresolved(session, application=self.application.id, kinds=kinds, task=str(self.task_id))
            mine = [alert for alert in found if record is None or record.is_at(alert.detail)]
            for alert in mine:
                alerts.resolve(session, alert, actor=self.request.requested_by, at=audit.now(), resolution=resolution)
            return [alert.id for alert in mine]


class ResumeTask(TaskRunBook):
    """Lets a paused task go on from the offsets that are committed now: after a pause by hand, or after somebody moved them."""

    NAME = "resume"
    STEPS: ClassVar[tuple[Step, ...]] = (
        Step("check", "the task is paused"),
        Step("resume", "the owner reads the committed offsets again and goes on"),
        Step("verify", "the task runs, or has paused at another record"),
        Step("close", "the alert on the pause is resolved"),
    )

    def __init__(
        self, application: Application, control_plane: ControlPlane, task: TaskId, request: Request, progress: Progress = lambda _: None
    ) -> None:
        super().__init__(application, control_plane, request, progress)
        self.task_id = task
        self._record: RecordInTheWay | None = None
        self._known_pause = 0
        self._ran = False

    def subject(self) -> Subject:
        return Subject(f"task {self.task_id}", str(self.task_id))

    def needless(self, step: Step) -> bool:
        return self._ran and step.name != "close"

    def look(self, found: Found) -> None:
        self.feed.step()
        task = self.task()
        if task is None:
            raise RefusedError(f"no instance has reported a task {self.task_id}")
        found.update({"state": task.state, "instance": task.instance})
        if task.state == TaskState.RUNNING.value:
            self._ran = True
            return
        if task.state != TaskState.PAUSED.value:
            raise RefusedError(f"task {self.task_id} is not paused: it is {task.state} on {task.instance}")
        self._record = paused_at(task)
        event = None if self._record is None else self.pause_event(self._record)
        self._known_pause = 0 if event is None else event.sequence
        found["paused at"] = None if self._record is None else str(self._record)

    def take(self, step: Step, found: Found) -> None:
        match step.name:
            case "resume":
                found["by"] = self.ask_to_resume(self._record)
            case "verify":
                task = self._verify()
                found.update({"state": task.state, "instance": task.instance})
            case "close":
                found["alerts"] = self.close_alerts(self._record, f"resumed by {self.request.requested_by}")

    def _verify(self) -> Task:
        """The task's row, once it has passed the record that it was paused at, or is paused elsewhere; or still runs when the time is up,
        if nothing was committed meanwhile. Raises RunBookError at once if it paused at the same record again."""
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

    def _has_passed(self, record: RecordInTheWay | None, event: Event | None) -> bool:
        """True if the record is behind the task; or if there is none that was in its way."""
        if record is None or event is None or event.payload.get("reason") == "command":
            return True
        committed = self.commands.committed(record.topic, record.partition)
        return committed is not None and committed > record.offset

    def outcome(self) -> str:
        return f"task {self.task_id} ran already" if self._ran else f"task {self.task_id} runs"
