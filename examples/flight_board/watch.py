"""Progress of the replay, and the events meanwhile: the pause, the alert, the run-book's steps, the resume.

Progress is measured by the offsets that the application's group has committed on its input topics. The replay is done when all flights are
committed, every task has then reported a lag of 0, and every run-book has ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import datetime

from confluent_kafka import Consumer, TopicPartition
from sqlalchemy import select

from examples.flight_board import topology
from examples.flight_board.data import PARTITIONS
from penstock.orchestration.alerts.incidents import GLOBAL_RECOVERY
from penstock.orchestration.database.audit import now
from penstock.orchestration.database.models import Alert, AlertState, AuditEntry, Event, Instance, RunBookRun, RunBookState, Task
from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.instances.operations import Operations
from penstock.orchestration.projection.feed import Feed
from penstock.runtime.model.errors import BrokerUnavailableError
from penstock.runtime.model.events import EventKind
from penstock.runtime.model.states import State, TaskState

STUCK_SECONDS = 180.0
_POLL_SECONDS = 0.5
_SHOWN = (
    EventKind.TASK_PAUSED.value,
    EventKind.TASK_RESUMED.value,
    EventKind.TASK_CORRUPTED.value,
    EventKind.GLOBAL_RECOVERY_STARTED.value,
    EventKind.GLOBAL_RECOVERY_ENDED.value,
)


class StuckError(Exception):
    """The replay makes no progress; the message says where it stopped."""


@dataclass(slots=True)
class Progress:
    """Progress of the replay. `working_s` is the time with commits; it excludes waiting for a paused task."""

    flights: int
    done: int = 0
    working_s: float = 0.0
    whole_s: float = 0.0
    paused: tuple[str, ...] = ()
    _offsets: Mapping[tuple[str, int], int] = field(default_factory=dict)

    def update(self, offsets: Mapping[tuple[str, int], int], seconds: float, paused: tuple[str, ...]) -> bool:
        """Take the currently committed offsets; return True if they have moved."""
        moved = offsets != self._offsets
        self._offsets, self.paused = offsets, paused
        self.done = sum(offset for (topic, _), offset in offsets.items() if topic == topology.FLIGHTS)
        self.whole_s += seconds
        self.working_s += seconds if moved else 0.0
        return moved


def watch(operations: Operations, application: Application, flights: int, on_progress: Callable[[Progress], None]) -> Iterator[str]:
    """Yield a line for each event until the replay of `flights` records is done. Raises StuckError."""
    progress = Progress(flights)
    trail, looked, moved_at = Trail(application.id), time.monotonic(), time.monotonic()
    complete_at: datetime | None = None
    with operations.feed(application) as feed, _committed(application) as committed:
        while True:
            yield from _news(feed, trail, operations)
            at = time.monotonic()
            if progress.update(committed(), at - looked, _paused(operations, application)):
                moved_at = at
            looked = at
            on_progress(progress)
            if complete_at is None and progress.done >= flights:
                complete_at = now()
            if complete_at is not None and _settled(operations, application, complete_at):
                yield from trail.news(operations)
                return
            if at - max(moved_at, trail.last_at) > STUCK_SECONDS:
                raise StuckError(_where(operations, application, progress, feed))
            time.sleep(_POLL_SECONDS)


def watch_recovery(operations: Operations, application: Application, lose: Callable[[], object]) -> Iterator[str]:
    """Call `lose`, which takes records away from a global table. Yield a line for each event until the alert about it is resolved. Raises
    StuckError."""
    trail = Trail(application.id)
    trail.news(operations)
    lose()
    with operations.feed(application) as feed:
        while not _recovered(operations, application):
            yield from _news(feed, trail, operations)
            if time.monotonic() - trail.last_at > STUCK_SECONDS:
                raise StuckError(f"no global table of {application.id} has recovered after {STUCK_SECONDS:.0f} s; see its log")
            time.sleep(_POLL_SECONDS)
    yield from trail.news(operations)


class Trail:
    """New entries of the audit trail, and new events, as lines."""

    def __init__(self, application_id: str) -> None:
        self._application = application_id
        self._entry = self._event = 0
        self.last_at = time.monotonic()

    def news(self, operations: Operations) -> list[str]:
        """Return the lines recorded since the last call, oldest first."""
        events = select(Event).where(Event.application == self._application, Event.sequence > self._event).order_by(Event.sequence)
        entries = select(AuditEntry).where(AuditEntry.id > self._entry).order_by(AuditEntry.id)
        lines: list[tuple[datetime, str]] = []
        with operations.control_plane.reading() as session:
            for event in session.scalars(events):
                self._event = event.sequence
                if event.kind in _SHOWN:
                    lines.append((event.at, event_line(event)))
            for entry in session.scalars(entries):
                self._entry = entry.id
                lines.append((entry.at, entry_line(entry)))
        if lines:
            self.last_at = time.monotonic()
        return [f"[dim]{at.astimezone():%H:%M:%S}[/dim]  {line}" for at, line in sorted(lines, key=lambda pair: pair[0])]


def _news(feed: Feed, trail: Trail, operations: Operations) -> list[str]:
    """Return the lines of what has happened. A broker that does not answer, as on a laptop with other work, is asked again."""
    try:
        feed.step(_POLL_SECONDS)
    except BrokerUnavailableError as error:
        return [f"[yellow]{_escaped(str(error))}[/yellow]; asking again"]
    return trail.news(operations)


def entry_line(entry: AuditEntry) -> str:
    """Return an entry of the audit trail as one line of rich markup."""
    detail = ", ".join(f"{key} {value}" for key, value in entry.detail.items() if value not in (None, "") and not key.endswith("_base64"))
    return f"{entry.action}  [dim]{_escaped(entry.actor)}{': ' if detail else ''}{_escaped(detail)}[/dim]"


def event_line(event: Event) -> str:
    """Return an event as one line of rich markup."""
    if event.kind in (EventKind.GLOBAL_RECOVERY_STARTED.value, EventKind.GLOBAL_RECOVERY_ENDED.value):
        reported = event.payload.get("reason") or f"{event.payload.get('records')} records in {event.payload.get('seconds')} s"
        return f"[bold]{event.kind}[/bold]  global table {event.payload.get('store')} of {event.instance}: {_escaped(str(reported))}"
    comments = {
        EventKind.TASK_PAUSED.value: "; it keeps its place, all other tasks run on",
        EventKind.TASK_RESUMED.value: " continues after it",
    }
    return f"[bold]{event.kind}[/bold]  task {event.task} of {event.instance}{place_of(event.payload)}{comments.get(event.kind, '')}"


def place_of(payload: Mapping[str, object]) -> str:
    """Return ` at flights-3@25013: <error>`, without the parts that the payload does not have."""
    if "topic" not in payload:
        return ""
    error = f": {_escaped(str(payload['error']))}" if payload.get("error") else ""
    return f" at {payload['topic']}-{payload.get('partition')}@{payload.get('offset')}{error}"


def _escaped(text: str) -> str:
    return text.replace("[", r"\[")


@contextmanager
def _committed(application: Application) -> Iterator[Callable[[], Mapping[tuple[str, int], int]]]:
    """Yield a function that returns the offsets that the application's group has committed on its input topics."""
    topics = [topology.FLIGHTS, topology.WEATHER, *(f"{application.id}-{name}-repartition" for name in topology.REPARTITIONS)]
    asked = [TopicPartition(topic, partition) for topic in topics for partition in range(PARTITIONS)]
    settings: dict[str, str | int | float | bool] = {"bootstrap.servers": application.bootstrap_servers, "group.id": application.id}
    with closing(Consumer(settings)) as consumer:  # it never subscribes, so it is not a member of the group
        yield lambda: {(place.topic, place.partition): max(0, place.offset) for place in consumer.committed(asked, timeout=30)}


def _paused(operations: Operations, application: Application) -> tuple[str, ...]:
    query = select(Task.task).where(Task.application == application.id, Task.state == TaskState.PAUSED.value).order_by(Task.task)
    with operations.control_plane.reading() as session:
        return tuple(session.scalars(query))


def _settled(operations: Operations, application: Application, since: datetime) -> bool:
    """Return True if all instances and tasks have reported since then that they run without lag, and no alert or run-book is open."""
    ended = (RunBookState.DONE.value, RunBookState.REFUSED.value, RunBookState.FAILED.value)
    with operations.control_plane.reading() as session:
        owned = select(Task).where(Task.application == application.id, Task.state != TaskState.CLOSED.value)
        tasks = session.scalars(owned).all()
        instances = session.scalars(select(Instance).where(Instance.application == application.id)).all()
        runs = session.scalars(select(RunBookRun).where(RunBookRun.application == application.id)).all()
        alerts = session.scalars(select(Alert).where(Alert.application == application.id)).all()
    return (
        bool(tasks)
        and all(task.state == TaskState.RUNNING.value and task.lag == 0 and task.updated_at > since for task in tasks)
        and all(instance.state == State.RUNNING.value for instance in instances)
        and all(run.state in ended for run in runs)
        and all(alert.state == AlertState.RESOLVED.value for alert in alerts)
    )


def _recovered(operations: Operations, application: Application) -> bool:
    """Return True if there are alerts on global recoveries, all of them resolved."""
    query = select(Alert.state).where(Alert.application == application.id, Alert.kind == GLOBAL_RECOVERY)
    with operations.control_plane.reading() as session:
        return set(session.scalars(query)) == {AlertState.RESOLVED.value}


def _where(operations: Operations, application: Application, progress: Progress, feed: Feed) -> str:
    """Return a message about a stuck replay: instances, tasks and alerts."""
    feed.step()
    lines = [f"nothing has moved for {STUCK_SECONDS:.0f} s; {progress.done:,} of {progress.flights:,} flights are processed"]
    for name in application.instances:
        row, tasks = operations.rows(name)
        lines.append(f"{name} is {row.state or 'unknown'}; its log: {operations.paths.log_path(name)}")
        lines += [f"  task {task.task} {task.state} lag {task.lag}" for task in tasks if task.state != TaskState.RUNNING.value or task.lag]
    with operations.control_plane.reading() as session:
        alerts = session.scalars(select(Alert).where(Alert.application == application.id, Alert.state != AlertState.RESOLVED.value)).all()
        lines += [f"  alert {alert.id} {alert.state}: {alert.title}" for alert in alerts]
    return "\n".join(lines)
