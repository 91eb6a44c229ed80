"""What all run-books share: steps that are written down before they are taken, can be repeated, and can be shown without taking them.

A run-book lists its steps (`STEPS`). Each is committed to the database as STARTED before anything is done, then as DONE, REFUSED or FAILED
with what was found; a run that was killed shows how far it came. Each step is safe to repeat, so a run-book that was killed is started
again as a whole, and two at once do what one would. A test kills every run-book of `orchestration.run_books.ALL` after each of its steps.

A dry run takes the first step, which changes nothing, and says what the others would do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from sqlalchemy.orm import Session

from orchestration import alerts, audit
from orchestration.applications import Application
from orchestration.control_plane import ControlPlane
from orchestration.control_plane.models import RunBookRun, RunBookState, RunBookStep, StepState
from orchestration.feed import Feed
from orchestration.tasks import RefusedError, TaskCommands

Progress = Callable[[str], None]
"""Told of each step as it begins and ends, in a sentence."""
Found = dict[str, object]
"""What a step found: written down with it."""


class RunBookError(Exception):
    """A run-book began and could not be brought to its end; it may be started again."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step's name, and what it does in one sentence without a full stop."""

    name: str
    what: str


@dataclass(frozen=True, slots=True)
class Request:
    """Who wants it and why. `run_id` is a run that is in the database already: reserved by the policy, or killed half-way; `occurrence`
    the event that it answers."""

    requested_by: str
    reason: str = ""
    run_id: int | None = None
    occurrence: str | None = None
    dagster_run_id: str | None = None


@dataclass(frozen=True, slots=True)
class Subject:
    """What a run is about: a name for people, and the task and record where there are any."""

    name: str
    task: str | None = None
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class DryRun:
    """What a run would do: a line for each step, or why it would be refused."""

    lines: tuple[str, ...]
    refused: str | None = None


class RunBook(ABC):
    """One run of a run-book. `run()` takes all steps and returns the row with its end; it raises only what is no answer."""

    NAME: ClassVar[str]
    STEPS: ClassVar[tuple[Step, ...]]

    def __init__(
        self, application: Application, control_plane: ControlPlane, request: Request, progress: Progress = lambda _: None
    ) -> None:
        """Contacts nobody."""
        self.application = application
        self.control_plane = control_plane
        self.request = request
        self.progress = progress
        self.run_id = 0
        self._number = 0
        self._commands: TaskCommands | None = None
        self._feed: Feed | None = None

    @abstractmethod
    def subject(self) -> Subject:
        """What this run is about."""

    @abstractmethod
    def look(self, found: Found) -> None:
        """The first step: sees whether it can be done, and changes nothing. Raises RefusedError."""

    @abstractmethod
    def take(self, step: Step, found: Found) -> None:
        """Takes another step. Raises RefusedError, RunBookError, BrokerUnavailableError, …"""

    @abstractmethod
    def outcome(self) -> str:
        """What was done, in a sentence; asked after the last step."""

    def needless(self, step: Step) -> bool:
        """True for a step that has nothing to do, after what the steps before it found."""
        return False

    @property
    def commands(self) -> TaskCommands:
        assert self._commands is not None  # steps are taken within `_connected`
        return self._commands

    @property
    def feed(self) -> Feed:
        assert self._feed is not None  # as above
        return self._feed

    def run(self) -> RunBookRun:
        """Ends as DONE or REFUSED. Raises RunBookError, BrokerUnavailableError, DeadLetterError, … after writing FAILED and why."""
        over = self._begin()
        if over is not None:
            return over
        try:
            with self._connected():
                self._take_all()
        except RefusedError as error:
            return self._end(RunBookState.REFUSED, str(error))
        except Exception as error:
            self._end(RunBookState.FAILED, f"{type(error).__name__}: {error}")
            raise
        return self._end(RunBookState.DONE, self.outcome())

    def dry_run(self) -> DryRun:
        """What `run()` would do now. Writes neither to Kafka nor into the database's run-books."""
        first, *others = self.STEPS
        found: Found = {}
        with self._connected():
            try:
                self.look(found)
            except RefusedError as error:
                return DryRun((f"{first.name}: {_shown(found)}" if found else f"{first.name}: refused",), str(error))
            needed = [step for step in others if not self.needless(step)]
        return DryRun((f"{first.name}: {_shown(found) or 'nothing is in the way'}", *(f"{step.name}: {step.what}" for step in needed)))

    def _take_all(self) -> None:
        first, *others = self.STEPS
        with self.step(first) as found:
            self.look(found)
        for step in others:
            if not self.needless(step):
                with self.step(step) as found:
                    self.take(step, found)

    @contextmanager
    def _connected(self) -> Iterator[None]:
        with ExitStack() as stack:
            self._commands = stack.enter_context(TaskCommands(self.application, self.request.requested_by))
            self._feed = stack.enter_context(Feed(self.application, self.control_plane))
            yield

    # -- what is written down ----------------------------------------------------------------------------------------------------

    def _begin(self) -> RunBookRun | None:
        """Finds or makes the row of this run. Returns it if it is over already: called off, or done by an earlier start."""
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
            self._number = max((step.number for step in run.steps), default=0)
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
            run.state, run.ended_at, run.reason = state.value, at, reason
            self._audit(session, f"run-book {state.value.lower()}", at, {"subject": self.subject().name, "reason": reason})
            session.refresh(run, ["steps"])
        self.progress(f"run-book {state.value}: {reason}")
        return run

    @contextmanager
    def step(self, step: Step) -> Iterator[Found]:
        """Writes the step down before and after. The block fills the dictionary with what it found."""
        self._number += 1
        number, at = self._number, audit.now()
        with self.control_plane.writing() as session:
            started = StepState.STARTED.value
            session.add(RunBookStep(run_id=self.run_id, number=number, name=step.name, state=started, started_at=at, detail={}))
            self._audit(session, f"step {step.name} started", at, {})
        found: Found = {}
        try:
            yield found
        except RefusedError as error:
            self.end_step(number, step, StepState.REFUSED, {**found, "reason": str(error)})
            raise
        except BaseException as error:  # also Ctrl-C and a run that Dagster cancels: the trail must not end in the middle
            self.end_step(number, step, StepState.FAILED, {**found, "error": f"{type(error).__name__}: {error}"})
            raise
        self.end_step(number, step, StepState.DONE, found)

    def end_step(self, number: int, step: Step, state: StepState, found: Found) -> None:
        """Writes down how a step ended."""
        at = audit.now()
        with self.control_plane.writing() as session:
            row = session.get_one(RunBookStep, (self.run_id, number), with_for_update=True)
            row.state, row.ended_at, row.detail = state.value, at, found
            self._audit(session, f"step {step.name} {state.value.lower()}", at, found)
        shown = _shown(found)
        self.progress(f"{step.name}: {state.value.lower()}" + (f" ({shown})" if shown else ""))

    def _audit(self, session: Session, action: str, at: datetime, detail: Found) -> None:
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


def _shown(found: Found) -> str:
    return ", ".join(f"{key} {value}" for key, value in found.items() if value not in (None, [], ""))
