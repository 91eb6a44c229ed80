"""Base of all run-books: steps that are recorded before they run, can be repeated, and can be listed without running them.

A run-book lists its steps (`STEPS`). Each is committed to the database as STARTED before it does anything, then as DONE, REFUSED or FAILED
with its findings, so a killed run leaves a record of its progress. Each step is idempotent: a killed run-book is started again from its
first step, and two concurrent runs have the effect of one. A test kills every run-book of `orchestration.run_books.ALL` after each of its
steps.

A dry run executes the first step, which changes nothing, and describes the others.

`RunBook.run` executes all steps. `Execution` executes them one by one, for a caller that shows each by itself: an op of Dagster's job.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from sqlalchemy.orm import Session

from penstock.orchestration.alerts import alerts
from penstock.orchestration.database import ControlPlane, ControlPlaneError, audit
from penstock.orchestration.database.models import RunBookRun, RunBookState, RunBookStep, StepState
from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.declarations.errors import ExpectedError
from penstock.orchestration.kafka.task_commands import RefusedError, TaskCommands
from penstock.orchestration.projection.feed import Feed

Progress = Callable[[str], None]
"""Called with a sentence when a step begins and when it ends."""
Findings = dict[str, object]
"""Findings of a step, recorded with it."""
ALIVE_SECONDS = 30.0
"""Interval at which a run records that it goes on."""


class RunBookError(ExpectedError):
    """A run-book has started and could not complete; it may be started again."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step's name, and its description: one sentence without a full stop."""

    name: str
    what: str


@dataclass(frozen=True, slots=True)
class Request:
    """Requester of a run, and the reason. `run_id`: a run that is in the database already, reserved by the policy, or killed. `occurrence`:
    the event that caused it."""

    requested_by: str
    reason: str = ""
    run_id: int | None = None
    occurrence: str | None = None
    dagster_run_id: str | None = None


@dataclass(frozen=True, slots=True)
class Subject:
    """Subject of a run: a name for display; the task and record, if any."""

    name: str
    task: str | None = None
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class DryRun:
    """Result of a dry run: a line for each step, or the reason for a refusal."""

    lines: tuple[str, ...]
    refused: str | None = None


class RunBook(ABC):
    """One run of a run-book. `run()` executes all steps and returns the row with the result; it raises only if neither DONE nor REFUSED."""

    NAME: ClassVar[str]
    STEPS: ClassVar[tuple[Step, ...]]
    NOT_SHOWN: ClassVar[frozenset[str]] = frozenset()
    """Names of findings that are recorded, but not shown in the progress message of their step."""

    def __init__(
        self, application: Application, control_plane: ControlPlane, request: Request, progress: Progress = lambda _: None
    ) -> None:
        """Prepare a run; neither Kafka nor the database is contacted."""
        self.application = application
        self.control_plane = control_plane
        self.request = request
        self.progress = progress
        self.run_id = 0
        self._commands: TaskCommands | None = None
        self._feed: Feed | None = None

    @abstractmethod
    def subject(self) -> Subject:
        """Return the subject of this run."""

    @abstractmethod
    def inspect(self, findings: Findings) -> None:
        """Execute the first step: check whether the run is possible, without changing anything. Raises RefusedError."""

    @abstractmethod
    def take(self, step: Step, findings: Findings) -> None:
        """Execute another step. Raises RefusedError, RunBookError, BrokerUnavailableError, …"""

    @abstractmethod
    def outcome(self) -> str:
        """Return a sentence about the result; called after the last step."""

    def needless(self, step: Step) -> bool:
        """Return True if a step has nothing to do, according to the findings of earlier steps."""
        return False

    @property
    def commands(self) -> TaskCommands:
        assert self._commands is not None  # steps run within `_connected`
        return self._commands

    @property
    def feed(self) -> Feed:
        assert self._feed is not None  # as above
        return self._feed

    def run(self) -> RunBookRun:
        """Execute all steps; the state is then DONE or REFUSED. Raises RunBookError, BrokerUnavailableError, DeadLetterError, … after
        recording FAILED and the reason."""
        steps = self.steps()
        while True:
            try:
                next(steps)
            except StopIteration as end:
                run: RunBookRun = end.value
                return run

    def steps(self) -> Generator[tuple[Step, Findings | None], None, RunBookRun]:
        """Execute the steps one by one: yield each with its findings once they are recorded, or with None if it is needless. Return and
        raise like `run`. A generator that is closed before the last step records FAILED: the run was interrupted."""
        over = self._begin()
        if over is not None:
            return over
        try:
            with self._reported_alive(), self._connected():
                yield from self._take_all()
        except RefusedError as error:
            return self._end(RunBookState.REFUSED, str(error))
        except GeneratorExit:
            self._end(RunBookState.FAILED, "interrupted between two steps")
            raise
        except Exception as error:
            self._end(RunBookState.FAILED, f"{type(error).__name__}: {error}")
            raise
        return self._end(RunBookState.DONE, self.outcome())

    def dry_run(self) -> DryRun:
        """Return what `run()` would do now. Writes nothing to Kafka, and no run-book to the database."""
        first, *others = self.STEPS
        findings: Findings = {}
        with self._connected():
            try:
                self.inspect(findings)
            except RefusedError as error:
                return DryRun((f"{first.name}: {_shown(findings)}" if findings else f"{first.name}: refused",), str(error))
            needed = [step for step in others if not self.needless(step)]
        return DryRun((f"{first.name}: {_shown(findings) or 'nothing is in the way'}", *(f"{step.name}: {step.what}" for step in needed)))

    def _take_all(self) -> Iterator[tuple[Step, Findings | None]]:
        first, *others = self.STEPS
        with self.step(first) as findings:
            self.inspect(findings)
        yield first, findings
        for step in others:
            if self.needless(step):
                yield step, None
                continue
            with self.step(step) as findings:
                self.take(step, findings)
            yield step, findings

    @contextmanager
    def _connected(self) -> Iterator[None]:
        with ExitStack() as stack:
            self._commands = stack.enter_context(TaskCommands(self.application, self.request.requested_by))
            self._feed = stack.enter_context(Feed(self.application, self.control_plane))
            yield

    @contextmanager
    def _reported_alive(self) -> Iterator[None]:
        """Record periodically that a process executes this run: a step may take longer than the time after which a silent run counts as
        killed (`alerts.pauses.PATIENCE`)."""
        over = threading.Event()

        def report() -> None:
            while not over.wait(ALIVE_SECONDS):
                try:
                    with self.control_plane.writing() as session:
                        session.get_one(RunBookRun, self.run_id, with_for_update=True).alive_at = audit.now()
                except ControlPlaneError as error:  # the step itself fails if the database stays away
                    self.progress(f"it is not recorded that this run goes on: {error}")

        thread = threading.Thread(target=report, name="run-book-alive", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    # -- records in the database --------------------------------------------------------------------------------------------------

    def _begin(self) -> RunBookRun | None:
        """Find or create the row of this run. Return it if the run is over: cancelled, or completed by an earlier start."""
        request, subject, at = self.request, self.subject(), audit.now()
        with self.control_plane.writing() as session:
            run = session.get(RunBookRun, request.run_id, with_for_update=True) if request.run_id is not None else None
            if run is not None and run.state in (RunBookState.REFUSED.value, RunBookState.DONE.value):
                self.progress(f"run {run.id} is {run.state} already: {run.reason}")
                return run
            if run is None:
                run = self._new_run(subject, at)
                session.add(run)
                session.flush()
            run.state, run.started_at, run.dagster_run_id = RunBookState.RUNNING.value, at, request.dagster_run_id
            run.ended_at, run.reason = None, None
            self.run_id = run.id
            self._audit(session, "run-book started", at, {"run-book": self.NAME, "subject": subject.name, "reason": request.reason})
        return None

    def _new_run(self, subject: Subject, at: datetime) -> RunBookRun:
        return RunBookRun(
            run_book=self.NAME,
            application=self.application.id,
            subject=subject.name,
            task=subject.task,
            topic=subject.topic,
            partition=subject.partition,
            offset=subject.offset,
            occurrence=self.request.occurrence,
            by_policy=False,
            attempts=1,
            requested_by=self.request.requested_by,
            requested_at=at,
            state=RunBookState.REQUESTED.value,
            steps=[],
        )

    def _end(self, state: RunBookState, reason: str) -> RunBookRun:
        at, reason = audit.now(), alerts.printable(reason)
        with self.control_plane.writing() as session:
            run = session.get_one(RunBookRun, self.run_id, with_for_update=True)
            if run.state != RunBookState.DONE.value:  # another process that executed this run, too, may have completed it
                run.state, run.ended_at, run.reason = state.value, at, reason
            self._audit(session, f"run-book {state.value.lower()}", at, {"subject": self.subject().name, "reason": reason})
            session.refresh(run, ["steps"])
        self.progress(f"run-book {state.value}: {reason}")
        return run

    @contextmanager
    def step(self, step: Step) -> Iterator[Findings]:
        """Record a step before and after the block, which fills the dictionary with its findings."""
        at = audit.now()
        with self.control_plane.writing() as session:
            started = StepState.STARTED.value
            run = session.get_one(RunBookRun, self.run_id, with_for_update=True)
            number = 1 + max((each.number for each in run.steps), default=0)  # another process may execute this run, too
            session.add(RunBookStep(run_id=self.run_id, number=number, name=step.name, state=started, started_at=at, detail={}))
            self._audit(session, f"step {step.name} started", at, {})
        findings: Findings = {}
        try:
            yield findings
        except RefusedError as error:
            self.end_step(number, step, StepState.REFUSED, {**findings, "reason": str(error)})
            raise
        except BaseException as error:  # also Ctrl-C and runs that Dagster cancels: the audit trail must not end in the middle
            self.end_step(number, step, StepState.FAILED, {**findings, "error": f"{type(error).__name__}: {error}"})
            raise
        self.end_step(number, step, StepState.DONE, findings)

    def end_step(self, number: int, step: Step, state: StepState, findings: Findings) -> None:
        """Record the result of a step."""
        at = audit.now()
        with self.control_plane.writing() as session:
            row = session.get_one(RunBookStep, (self.run_id, number), with_for_update=True)
            row.state, row.ended_at, row.detail = state.value, at, findings
            self._audit(session, f"step {step.name} {state.value.lower()}", at, findings)
        shown = _shown({name: found for name, found in findings.items() if name not in self.NOT_SHOWN})
        self.progress(f"{step.name}: {state.value.lower()}" + (f" ({shown})" if shown else ""))

    def _audit(self, session: Session, action: str, at: datetime, detail: Findings) -> None:
        audit.record(
            session,
            self.request.requested_by,
            action,
            at=at,
            application=self.application.id,
            task=self.subject().task,
            run_book_run_id=self.run_id,
            detail=detail,
        )


class Execution:
    """A run-book whose steps are executed one by one, each when it is asked for. After the last step, or a refusal, `result` is the row."""

    def __init__(self, book: RunBook) -> None:
        self.book = book
        self.result: RunBookRun | None = None
        self._steps = book.steps()
        self._plan: DryRun | None = None

    def plan(self) -> DryRun:
        """Return the result of a dry run, which is made once."""
        self._plan = self._plan or self.book.dry_run()
        return self._plan

    def execute_until(self, name: str) -> Findings | None:
        """Execute the steps up to this one, those before it first if this process has not executed them: they are idempotent. Return its
        findings, or None if it is needless, or the run is over. Raises like `RunBook.run`."""
        while self.result is None:
            try:
                step, findings = next(self._steps)
            except StopIteration as end:
                self.result = end.value
                break
            if step.name == name:
                if step is self.book.STEPS[-1]:
                    self.result = self._end()
                return findings
        return None

    def _end(self) -> RunBookRun:
        """Leave the last step, and return the row."""
        try:
            next(self._steps)
        except StopIteration as end:
            run: RunBookRun = end.value
            return run
        raise AssertionError("a step follows the last one")

    def close(self) -> None:
        """Close the connections. A run that is not over is recorded as FAILED."""
        self._steps.close()


def _shown(findings: Findings) -> str:
    return ", ".join(f"{key} {text_of(value)}" for key, value in findings.items() if value not in (None, [], {}, ""))


def text_of(value: object) -> str:
    """Return a finding as text."""
    match value:
        case list():
            return " ".join(map(text_of, value))
        case dict():
            return " ".join(f"{key}={text_of(each)}" for key, each in value.items())
    return str(value)
