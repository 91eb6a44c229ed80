"""Tables of the database. A change here needs a migration (`migrations/versions`); a test compares the two."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import ClassVar

from sqlalchemy import JSON, BigInteger, Boolean, DateTime, Dialect, ForeignKey, Index, Integer, MetaData, String, Text, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship
from sqlalchemy.types import TypeDecorator

from penstock.runtime.model.clock import from_ms as from_ms

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class UtcDateTime(TypeDecorator[datetime]):
    """Point in time in UTC. SQLite returns naive times, which are taken as UTC; a naive time passed in is a programming error."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is not None and value.tzinfo is None:
            raise ValueError(f"{value!r} has no time zone")
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def to_ms(at: datetime) -> int:
    """Convert a time to milliseconds since the epoch; fractions of a millisecond are dropped."""
    return (at - _EPOCH) // timedelta(milliseconds=1)


GLOBAL_KIND = "GLOBAL"
"""`Task.kind` of a worker's copy of a global store."""


def global_task(store: str, worker: int = 1) -> str:
    """Return `Task.task` of a worker's copy of a global store."""
    return f"global {store}" + (f" (worker {worker})" if worker > 1 else "")


def is_global(task: str) -> bool:
    """Return True for a name by `global_task`."""
    return task.startswith("global ")


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map: ClassVar[dict[object, object]] = {datetime: UtcDateTime(), dict[str, object]: JSON(), str: String(255)}


Number = BigInteger().with_variant(Integer, "sqlite")  # SQLite autoincrements only a column of type INTEGER


class Instance(Base):
    """Declared instance: its desired state, the state it reported last, and the number of its deaths."""

    __tablename__ = "instances"

    application: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    wanted: Mapped[bool] = mapped_column(Boolean, default=False)
    wanted_at: Mapped[datetime | None]
    wanted_by: Mapped[str | None]
    wanted_published: Mapped[bool] = mapped_column(Boolean, default=True)
    """False until the desired state is on the coordination topic (no broker answered)."""
    state: Mapped[str | None]
    state_at: Mapped[datetime | None]
    pid: Mapped[int | None]
    host: Mapped[str | None]
    incarnation: Mapped[int | None] = mapped_column(BigInteger)
    member_id: Mapped[str | None]
    log_path: Mapped[str | None] = mapped_column(Text)
    state_dir: Mapped[str | None] = mapped_column(Text)
    metrics_port: Mapped[int | None]
    resident: Mapped[dict[str, object] | None]
    """Resident memory of its processes in bytes, by number of the worker."""
    written: Mapped[dict[str, object] | None]
    """Number of records that each of its workers has written to output and repartition topics since it started, by number of the worker."""
    throttled: Mapped[dict[str, object] | None]
    """Longest delay in ms that a quota has imposed on a request in the minute before the last report, by number of the worker."""
    heartbeat_at: Mapped[datetime | None]
    started_at: Mapped[datetime | None]
    start_requested_at: Mapped[datetime | None]
    """Time of the last request to start it. No other start is made until the process has had time to come up."""
    start_replaces: Mapped[str | None]
    """The process of the instance at that time; the start is complete as soon as another process appears."""
    deaths: Mapped[int] = mapped_column(default=0)
    """Consecutive deaths, reset when the instance has run long enough to count as healthy."""
    died_at: Mapped[datetime | None]
    dead_process: Mapped[str | None]
    """The process whose death was counted last, so that each death counts once."""


class Task(Base):
    """Task as its owner last reported it. One row for each instance that has it (active, standby), and for each worker's copy of a global
    store (`global_task`)."""

    __tablename__ = "tasks"

    application: Mapped[str] = mapped_column(primary_key=True)
    task: Mapped[str] = mapped_column(primary_key=True)
    instance: Mapped[str] = mapped_column(primary_key=True)
    worker: Mapped[int] = mapped_column(server_default="1")
    """The instance's worker that runs the task."""
    incarnation: Mapped[int | None] = mapped_column(BigInteger)
    """The incarnation of that worker."""
    kind: Mapped[str]
    state: Mapped[str]
    lag: Mapped[int | None] = mapped_column(BigInteger)
    offset_sum: Mapped[int | None] = mapped_column(BigInteger)
    end_sum: Mapped[int | None] = mapped_column(BigInteger)
    moved_at: Mapped[datetime | None]
    """Time of the last change of `offset_sum`. Work after the last checkpoint would be repeated after a power loss. Null without stores."""
    first_moved_at: Mapped[datetime | None]
    """Time of the first change of `offset_sum`, for a task with stores that has no checkpoint yet."""
    checkpoint_at: Mapped[datetime | None]
    paused_topic: Mapped[str | None]
    paused_partition: Mapped[int | None]
    paused_offset: Mapped[int | None] = mapped_column(BigInteger)
    paused_at: Mapped[datetime | None]
    """Time of the pause."""
    updated_at: Mapped[datetime]


class Checkpoint(Base):
    """Last checkpoint of a task's stores, or of a copy of a global store, on one instance: next offsets by store."""

    __tablename__ = "checkpoints"

    application: Mapped[str] = mapped_column(primary_key=True)
    task: Mapped[str] = mapped_column(primary_key=True)
    instance: Mapped[str] = mapped_column(primary_key=True)
    at: Mapped[datetime]
    stores: Mapped[dict[str, object]]


class FeedOffset(Base):
    """Next offset of a topic for the feed. Written in the transaction of the rows, so each record is stored exactly once."""

    __tablename__ = "feed_offsets"

    application: Mapped[str] = mapped_column(primary_key=True)
    topic: Mapped[str] = mapped_column(primary_key=True)
    partition: Mapped[int] = mapped_column(primary_key=True)
    topic_id: Mapped[str]
    next_offset: Mapped[int] = mapped_column(BigInteger)
    sequence: Mapped[int] = mapped_column(BigInteger, default=0)
    """The number of the application's last event; see `Event.sequence`."""
    updated_at: Mapped[datetime]


class Event(Base):
    """Event of an application. `sequence` counts 1, 2, 3 … per application without gaps, in the order of the topic. It is assigned under
    the lock of the feed's row: number n is never committed before n − 1, so `sequence > cursor` misses nothing."""

    __tablename__ = "events"
    __table_args__ = (UniqueConstraint("application", "sequence"),)

    id: Mapped[str] = mapped_column(String(767), primary_key=True)
    application: Mapped[str]
    sequence: Mapped[int] = mapped_column(BigInteger)
    instance: Mapped[str]
    incarnation: Mapped[int] = mapped_column(BigInteger)
    kind: Mapped[str] = mapped_column(index=True)
    task: Mapped[str | None]
    at: Mapped[datetime]
    payload: Mapped[dict[str, object]]


class AlertState(Enum):
    OPEN = "OPEN"
    ACKNOWLEDGED = "ACKNOWLEDGED"
    RESOLVED = "RESOLVED"


class Alert(Base):
    """Problem to report to people. `occurrence` identifies the first occurrence; further occurrences on the same subject are counted
    (`AlertSighting`) until the alert is resolved."""

    __tablename__ = "alerts"
    __table_args__ = (Index(None, "application", "state"),)

    id: Mapped[int] = mapped_column(Number, primary_key=True, autoincrement=True)
    occurrence: Mapped[str] = mapped_column(String(767), unique=True)
    kind: Mapped[str]
    severity: Mapped[str]
    application: Mapped[str]
    instance: Mapped[str | None]
    task: Mapped[str | None]
    subject: Mapped[str] = mapped_column(String(767))
    """Subject as shown to users: `flights-3@1201`, an instance, a store. At most one alert of a kind is open per subject."""
    title: Mapped[str] = mapped_column(Text)
    detail: Mapped[dict[str, object]]
    state: Mapped[str] = mapped_column(default=AlertState.OPEN.value)
    opened_at: Mapped[datetime]
    """Time of the first occurrence."""
    last_seen_at: Mapped[datetime]
    count: Mapped[int] = mapped_column(default=1)
    """Number of occurrences."""
    acknowledged_at: Mapped[datetime | None]
    acknowledged_by: Mapped[str | None]
    resolved_at: Mapped[datetime | None]
    resolved_by: Mapped[str | None]
    resolution: Mapped[str | None] = mapped_column(Text)
    """Reason for which it was closed."""
    notified_at: Mapped[datetime | None]
    notify_attempts: Mapped[int] = mapped_column(default=0)


class AlertSighting(Base):
    """Occurrence counted by an alert. Each counts once, however often it is read, and none reopens an alert."""

    __tablename__ = "alert_sightings"

    occurrence: Mapped[str] = mapped_column(String(767), primary_key=True)
    alert_id: Mapped[int] = mapped_column(Number, ForeignKey("alerts.id"), index=True)
    at: Mapped[datetime]


class RunBookState(Enum):
    """State of a run. PROPOSED: waits for an approval; REQUESTED: to be run."""

    PROPOSED = "PROPOSED"
    REQUESTED = "REQUESTED"
    RUNNING = "RUNNING"
    DONE = "DONE"
    REFUSED = "REFUSED"
    FAILED = "FAILED"


class RunBookRun(Base):
    """One run of a run-book. `subject` names what it acts on; task and coordinates are set if that is a task, or a record."""

    __tablename__ = "run_book_runs"
    __table_args__ = (Index(None, "application", "requested_at"),)

    id: Mapped[int] = mapped_column(Number, primary_key=True, autoincrement=True)
    run_book: Mapped[str]
    application: Mapped[str]
    subject: Mapped[str] = mapped_column(String(767))
    task: Mapped[str | None]
    topic: Mapped[str | None]
    partition: Mapped[int | None]
    offset: Mapped[int | None] = mapped_column(BigInteger)
    occurrence: Mapped[str | None] = mapped_column(String(767), index=True)
    """The event that caused the run; None if a person requested it without one."""
    by_policy: Mapped[bool] = mapped_column(Boolean, default=False)
    attempts: Mapped[int] = mapped_column(default=1)
    """Number of starts by the policy, which restarts a run that was killed."""
    requested_by: Mapped[str]
    requested_at: Mapped[datetime]
    state: Mapped[str]
    started_at: Mapped[datetime | None]
    alive_at: Mapped[datetime | None]
    """Time of the last report that a process executes it."""
    ended_at: Mapped[datetime | None]
    dagster_run_id: Mapped[str | None]
    reason: Mapped[str | None] = mapped_column(Text)
    steps: Mapped[list[RunBookStep]] = relationship(order_by="RunBookStep.number", lazy="selectin")


class StepState(Enum):
    STARTED = "STARTED"
    DONE = "DONE"
    REFUSED = "REFUSED"
    FAILED = "FAILED"


class RunBookStep(Base):
    """Step of a run: stored as STARTED before anything is done, then with its result."""

    __tablename__ = "run_book_steps"

    run_id: Mapped[int] = mapped_column(Number, ForeignKey("run_book_runs.id"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    state: Mapped[str]
    started_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]
    detail: Mapped[dict[str, object]]


class Sample(Base):
    """Past measurement, kept for a day, from which trends and rates are computed. Of a counter only the last one is kept."""

    __tablename__ = "samples"

    application: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(primary_key=True)
    """`lag`; of the counters `read` and `written` (`health/figures.py`); `unanswered`, `open` (`health/checks.py`)."""
    subject: Mapped[str] = mapped_column(primary_key=True)
    """A task, or `*` for all of the application; of `open`, a partition and an offset."""
    at: Mapped[datetime] = mapped_column(primary_key=True)
    value: Mapped[int] = mapped_column(BigInteger)


class AuditEntry(Base):
    """Entry of the audit trail: starts, stops, alerts opened and closed, every step of a run-book. Rows are only added."""

    __tablename__ = "audit"

    id: Mapped[int] = mapped_column(Number, primary_key=True, autoincrement=True)
    at: Mapped[datetime] = mapped_column(index=True)
    actor: Mapped[str]
    action: Mapped[str]
    application: Mapped[str | None]
    instance: Mapped[str | None]
    task: Mapped[str | None]
    alert_id: Mapped[int | None] = mapped_column(Number, ForeignKey("alerts.id"), index=True)
    run_book_run_id: Mapped[int | None] = mapped_column(Number, ForeignKey("run_book_runs.id"), index=True)
    detail: Mapped[dict[str, object]]
