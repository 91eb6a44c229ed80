"""Run-books: what an operator would do, step by step, written down before it is done.

*Skip record* takes one unreadable record out of a paused task's way:

    check    the task is paused at exactly this record
    keep     the raw record, its headers and the error go to `<app>-dead-letter`, exactly once
    shift    the committed offset moves by one (compare-and-set)
    resume   the owner reads the committed offset and goes on
    verify   the task runs, or at least paused later than here
    close    the alert is resolved

Each step is committed to the database as STARTED before anything is done, then as DONE, REFUSED or FAILED with what was found; a run that
was killed shows how far it came. Each is safe to repeat: keeping looks for the coordinates first, shifting compares first, resuming a
running task changes nothing. So a run-book is repeated as a whole, and two at once do what one would.

Refused, with a reason: the task is not paused, or is paused at another record. A record that this run-book took out of the way before
counts as done, and changes nothing.

A policy may start it without asking, within a budget per hour and application. The run is *reserved* (REQUESTED) in the transaction that
opens the alert, and reservations count: a bad deploy that can read nothing ends in an alert, never in a topic skipped record by record.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from orchestration import alerts, audit, dead_letter
from orchestration.applications import Application, RunBook
from orchestration.control_plane import ControlPlane
from orchestration.control_plane.models import Event, RunBookRun, RunBookState, RunBookStep, StepState, Task
from orchestration.feed import Feed
from orchestration.tasks import RefusedError, TaskCommands
from runtime.events import EventKind
from runtime.ids import TaskId
from runtime.states import TaskKind, TaskState

SKIP_RECORD = RunBook.SKIP_RECORD.value
BUDGET_PERIOD = timedelta(hours=1)
_SETTLE_SECONDS = 10.0
_VERIFY_SECONDS = 30.0

Progress = Callable[[str], None]
"""Told of each step as it begins and ends, in a sentence."""


class RunBookError(Exception):
    """A run-book began and could not be brought to its end; it may be started again."""


@dataclass(frozen=True, slots=True)
class RecordInTheWay:
    """The record that a task is paused at."""

    task: TaskId
    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}@{self.offset}"


@dataclass(frozen=True, slots=True)
class Request:
    """Who wants a record skipped. `run_id` is a run reserved by the policy; `occurrence` the event that it answers."""

    requested_by: str
    reason: str = ""
    run_id: int | None = None
    occurrence: str | None = None
    dagster_run_id: str | None = None


def reserve(session: Session, application: Application, event: Event, *, at: datetime) -> RunBookRun | str:
    """A run for this pause under the application's policy, or the reason why there is none. The same event gets the same run."""
    policy = application.paused
    if policy.run_book is RunBook.NONE:
        return "the policy starts no run-book"
    known = session.scalar(select(RunBookRun).where(RunBookRun.occurrence == event.id, RunBookRun.by_policy))
    if known is not None:
        return known
    counted = select(func.count()).where(
        RunBookRun.application == application.id,
        RunBookRun.by_policy,
        RunBookRun.requested_at > at - BUDGET_PERIOD,
        RunBookRun.state != RunBookState.REFUSED.value,
    )
    used = session.scalar(counted) or 0
    if used >= policy.budget_per_hour:
        return f"the budget of {policy.budget_per_hour} records an hour is used up: somebody must look"
    payload = event.payload
    run = RunBookRun(
        run_book=policy.run_book.value,
        application=application.id,
        task=str(event.task),
        topic=str(payload["topic"]),
        partition=int(str(payload["partition"])),
        offset=int(str(payload["offset"])),
        occurrence=event.id,
        by_policy=True,
        requested_by="policy",
        requested_at=at,
        state=RunBookState.REQUESTED.value,
    )
    session.add(run)
    session.flush()
    return run


class SkipRecord:
    """One run of the run-book. `run()` does all steps and returns the row with its end; it raises only what is no answer."""

    def __init__(
        self,
        application: Application,
        control_plane: ControlPlane,
        record: RecordInTheWay,
        request: Request,
        progress: Progress = lambda _: None,
    ) -> None:
        self._application = application
        self._control_plane = control_plane
        self._record = record
        self._request = request
        self._progress = progress
        self._run_id = 0
        self._number = 0

    def run(self) -> RunBookRun:
        """Ends as DONE or REFUSED. Raises RunBookError, BrokerUnavailableError, DeadLetterError, … after writing FAILED and why."""
        self._begin()
        try:
            commands = TaskCommands(self._application, self._request.requested_by)
            with commands, Feed(self._application, self._control_plane) as feed:
                reason = self._steps(commands, feed)
        except RefusedError as error:
            return self._end(RunBookState.REFUSED, str(error))
        except Exception as error:
            self._end(RunBookState.FAILED, f"{type(error).__name__}: {error}")
            raise
        return self._end(RunBookState.DONE, reason)

    def _steps(self, commands: TaskCommands, feed: Feed) -> str:
        record = self._record
        with self._step("check") as found:
            owner, done = self._check(commands, feed)
            found.update({"owner": owner, "already skipped": done})
        if done:
            self._close(f"{record} had been skipped before")
            return "it had been skipped before; nothing was changed"
        with self._step("keep") as found:
            kept = self._keep()
            found.update({"topic": kept.topic, "offset": kept.offset, "already": kept.already})
        with self._step("shift") as found:
            shift = commands.shift(record.task, record.topic, record.partition, record.offset)
            found.update({"to": record.offset + 1, "by": shift.by, "already": shift.already})
        if owner is None:
            self._close(f"{record} skipped; no instance runs, the next one goes on after it")
            return "no instance runs: the next one goes on after the record"
        with self._step("resume") as found:
            found["by"] = self._resume(commands, feed)
        with self._step("verify") as found:
            found.update(self._verify(commands, feed))
        self._close(f"{record} skipped and kept in {kept.topic}@{kept.offset}")
        return f"{record} kept in {kept.topic}@{kept.offset}; the task runs"

    def _check(self, commands: TaskCommands, feed: Feed) -> tuple[str | None, bool]:
        """The owner's name (None: nobody runs), and whether the record was skipped before. Raises RefusedError."""
        owner_lives = commands.owner_lives()
        deadline = time.monotonic() + _SETTLE_SECONDS
        while True:
            feed.step()
            task = self._task()
            if task is not None and self._paused_here(task, owner_lives=owner_lives):
                return (task.instance if owner_lives else None), False
            if self._skipped_before(commands):
                return None if task is None else task.instance, True
            if task is not None or time.monotonic() > deadline:  # an owner that has just started has not reported its tasks yet
                break
        raise RefusedError(self._why_not(task))

    def _paused_here(self, task: Task, *, owner_lives: bool = True) -> bool:
        """True if the task is paused at the record; or was, when its last owner closed it, if nobody lives."""
        waiting = task.state == TaskState.PAUSED.value or (task.state == TaskState.CLOSED.value and not owner_lives)
        paused = (task.paused_topic, task.paused_partition, task.paused_offset)
        return waiting and paused == (self._record.topic, self._record.partition, self._record.offset)

    def _why_not(self, task: Task | None) -> str:
        if task is None:
            return f"no instance has reported a task {self._record.task}"
        if task.state != TaskState.PAUSED.value:
            return f"task {task.task} is not paused: it is {task.state} on {task.instance}"
        return f"task {task.task} is paused at {task.paused_topic}-{task.paused_partition}@{task.paused_offset}, not at {self._record}"

    def _skipped_before(self, commands: TaskCommands) -> bool:
        record = self._record
        committed = commands.committed(record.topic, record.partition)
        if committed is None or committed <= record.offset:
            return False
        return dead_letter.is_kept(self._application.bootstrap_servers, self._application.id, record.topic, record.partition, record.offset)

    def _keep(self) -> dead_letter.Kept:
        record, event = self._record, self._pause_event()
        servers = self._application.bootstrap_servers
        raw = dead_letter.read_record(servers, record.topic, record.partition, record.offset)
        if raw is None:  # the topic's retention was faster than us: the event has the bytes
            raw = self._from_event(event)
        payload = {} if event is None else event.payload
        error_type, error = str(payload.get("error_type", "unknown")), str(payload.get("error", "unknown"))
        return dead_letter.keep(servers, self._application.id, raw, error_type, error)

    def _from_event(self, event: Event | None) -> dead_letter.RawRecord:
        if event is None or event.payload.get("left_out_bytes"):
            raise RunBookError(f"{self._record} is no longer in its topic, and no event holds its bytes: not kept, so not skipped")
        timestamp = event.payload.get("timestamp_ms")
        return dead_letter.RawRecord(
            topic=self._record.topic,
            partition=self._record.partition,
            offset=self._record.offset,
            key=_from_base64(event.payload.get("key_base64")),
            value=_from_base64(event.payload.get("value_base64")),
            timestamp_ms=timestamp if isinstance(timestamp, int) else None,
            headers=_headers_of(event.payload.get("headers")),
        )

    def _resume(self, commands: TaskCommands, feed: Feed) -> str:
        """Who resumed the task. A refusal counts only if the task is still paused here: somebody may have been quicker."""
        try:
            return commands.resume(self._record.task)
        except RefusedError:
            feed.step()
            task = self._task()
            if task is None or self._paused_here(task):
                raise
            return f"{task.instance} (before us)"

    def _verify(self, commands: TaskCommands, feed: Feed) -> dict[str, object]:
        deadline = time.monotonic() + _VERIFY_SECONDS
        while time.monotonic() < deadline:
            feed.step()
            task = self._task()
            if task is not None and task.state in (TaskState.RUNNING.value, TaskState.PAUSED.value) and not self._paused_here(task):
                committed = commands.committed(self._record.topic, self._record.partition)
                if committed is None or committed <= self._record.offset:
                    raise RunBookError(f"the task runs, but {self._record.topic}-{self._record.partition} is committed at {committed}")
                return {"state": task.state, "instance": task.instance, "committed": committed}
            time.sleep(0.2)
        raise RunBookError(f"task {self._record.task} is not running {_VERIFY_SECONDS:.0f} s after it was resumed")

    def _close(self, resolution: str) -> None:
        kinds = [EventKind.TASK_PAUSED.value]
        with self._step("close") as found, self._control_plane.writing() as session:
            mine = [
                alert
                for alert in alerts.unresolved(session, application=self._application.id, kinds=kinds, task=str(self._record.task))
                if self._is_here(alert.detail)
            ]
            for alert in mine:
                alerts.resolve(session, alert, actor=self._request.requested_by, at=audit.now(), resolution=resolution)
            found["alerts"] = [alert.id for alert in mine]

    def _is_here(self, coordinates: Mapping[str, object]) -> bool:
        here = (self._record.topic, self._record.partition, self._record.offset)
        return tuple(coordinates.get(name) for name in ("topic", "partition", "offset")) == here

    def _task(self) -> Task | None:
        """The task's row, of the owner that reported last."""
        query = (
            select(Task)
            .where(Task.application == self._application.id, Task.task == str(self._record.task), Task.kind == TaskKind.ACTIVE.value)
            .order_by(Task.updated_at.desc())
            .limit(1)
        )
        with self._control_plane.reading() as session:
            return session.scalar(query)

    def _pause_event(self) -> Event | None:
        """The newest event that tells of this pause."""
        query = (
            select(Event)
            .where(Event.application == self._application.id, Event.task == str(self._record.task))
            .where(Event.kind == EventKind.TASK_PAUSED.value)
            .order_by(Event.sequence.desc())
        )
        with self._control_plane.reading() as session:
            return next((event for event in session.scalars(query) if self._is_here(event.payload)), None)

    def _begin(self) -> None:
        request, record, at = self._request, self._record, audit.now()
        with self._control_plane.writing() as session:
            run = session.get(RunBookRun, request.run_id, with_for_update=True) if request.run_id is not None else None
            if run is None or run.state != RunBookState.REQUESTED.value:
                run = RunBookRun(
                    run_book=SKIP_RECORD,
                    application=self._application.id,
                    task=str(record.task),
                    topic=record.topic,
                    partition=record.partition,
                    offset=record.offset,
                    occurrence=request.occurrence,
                    by_policy=False,
                    requested_by=request.requested_by,
                    requested_at=at,
                    state=RunBookState.REQUESTED.value,
                )
                session.add(run)
                session.flush()
            run.state, run.started_at, run.dagster_run_id = RunBookState.RUNNING.value, at, request.dagster_run_id
            self._run_id = run.id
            self._audit(session, "run-book started", at, {"record": str(record), "reason": request.reason})

    def _end(self, state: RunBookState, reason: str) -> RunBookRun:
        at = audit.now()
        with self._control_plane.writing() as session:
            run = session.get_one(RunBookRun, self._run_id, with_for_update=True)
            run.state, run.ended_at, run.reason = state.value, at, reason
            self._audit(session, f"run-book {state.value.lower()}", at, {"record": str(self._record), "reason": reason})
            session.refresh(run, ["steps"])
        self._progress(f"run-book {state.value}: {reason}")
        return run

    @contextmanager
    def _step(self, name: str) -> Iterator[dict[str, object]]:
        """Writes the step down before and after. The block fills the dictionary with what it found."""
        self._number += 1
        number, at = self._number, audit.now()
        with self._control_plane.writing() as session:
            session.add(RunBookStep(run_id=self._run_id, number=number, name=name, state=StepState.STARTED.value, started_at=at, detail={}))
            self._audit(session, f"step {name} started", at, {})
        found: dict[str, object] = {}
        try:
            yield found
        except RefusedError as error:
            self._end_step(number, name, StepState.REFUSED, {**found, "reason": str(error)})
            raise
        except BaseException as error:  # also Ctrl-C and a run that Dagster cancels: the trail must not end in the middle
            self._end_step(number, name, StepState.FAILED, {**found, "error": f"{type(error).__name__}: {error}"})
            raise
        self._end_step(number, name, StepState.DONE, found)

    def _end_step(self, number: int, name: str, state: StepState, found: dict[str, object]) -> None:
        at = audit.now()
        with self._control_plane.writing() as session:
            step = session.get_one(RunBookStep, (self._run_id, number), with_for_update=True)
            step.state, step.ended_at, step.detail = state.value, at, found
            self._audit(session, f"step {name} {state.value.lower()}", at, found)
        shown = ", ".join(f"{key} {value}" for key, value in found.items() if value is not None)
        self._progress(f"{name}: {state.value.lower()}" + (f" ({shown})" if shown else ""))

    def _audit(self, session: Session, action: str, at: datetime, detail: dict[str, object]) -> None:
        audit.record(
            session,
            self._request.requested_by,
            action,
            at=at,
            application=self._application.id,
            task=str(self._record.task),
            run_book_run_id=self._run_id,
            detail=detail,
        )


def _from_base64(text: object) -> bytes | None:
    return base64.b64decode(text) if isinstance(text, str) else None


def _headers_of(listed: object) -> tuple[tuple[str, bytes | None], ...]:
    """Headers of an event's payload: a list of name and base64."""
    pairs = listed if isinstance(listed, list) else []
    return tuple((str(pair[0]), _from_base64(pair[1])) for pair in pairs if isinstance(pair, list) and len(pair) == 2)
