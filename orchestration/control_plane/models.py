"""The tables of the control plane. A change here needs a migration (`migrations/versions`); a test holds one against the other."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import ClassVar

from sqlalchemy import JSON, BigInteger, Boolean, DateTime, Dialect, ForeignKey, Index, Integer, MetaData, String, Text, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship
from sqlalchemy.types import TypeDecorator

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class UtcDateTime(TypeDecorator[datetime]):
    """A point in time, in UTC, with its zone. SQLite gives back naive ones; and a naive one handed in is a mistake, not a guess."""

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


def from_ms(milliseconds: int) -> datetime:
    """Milliseconds since the epoch, as the engine writes them, as a time of the database."""
    return _EPOCH + timedelta(milliseconds=milliseconds)


def to_ms(at: datetime) -> int:
    """The opposite of `from_ms`; what is below a millisecond is dropped."""
    return (at - _EPOCH) // timedelta(milliseconds=1)


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


Number = BigInteger().with_variant(Integer, "sqlite")  # SQLite counts up only a column that is INTEGER


class Instance(Base):
    """A declared instance: what is wanted of it, what it last said of itself, and how often it died."""

    __tablename__ = "instances"

    application: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    wanted: Mapped[bool] = mapped_column(Boolean, default=False)
    wanted_at: Mapped[datetime | None]
    wanted_by: Mapped[str | None]
    wanted_published: Mapped[bool] = mapped_column(Boolean, default=True)
    """False while what is wanted has not reached the coordination topic yet (no broker answered)."""
    state: Mapped[str | None]
    state_at: Mapped[datetime | None]
    pid: Mapped[int | None]
    host: Mapped[str | None]
    incarnation: Mapped[int | None] = mapped_column(BigInteger)
    member_id: Mapped[str | None]
    log_path: Mapped[str | None] = mapped_column(Text)
    state_dir: Mapped[str | None] = mapped_column(Text)
    metrics_port: Mapped[int | None]
    heartbeat_at: Mapped[datetime | None]
    started_at: Mapped[datetime | None]
    start_requested_at: Mapped[datetime | None]
    """When somebody last set out to start a process for it: until that has had time to come up, nobody else does."""
    start_replaces: Mapped[str | None]
    """The last process as of then: as soon as there is another one, that start is over."""
    deaths: Mapped[int] = mapped_column(default=0)
    """Deaths in a row: since it last ran for long enough to count as healthy."""
    died_at: Mapped[datetime | None]
    dead_process: Mapped[str | None]
    """The process whose death was counted last, so that one death counts once."""


class Task(Base):
    """A task as its owner last reported it. One row for each instance that has it (active, standby)."""

    __tablename__ = "tasks"

    application: Mapped[str] = mapped_column(primary_key=True)
    task: Mapped[str] = mapped_column(primary_key=True)
    instance: Mapped[str] = mapped_column(primary_key=True)
    worker: Mapped[int] = mapped_column(server_default="1")
    """Which worker of the instance."""
    incarnation: Mapped[int | None] = mapped_column(BigInteger)
    """Of that worker."""
    kind: Mapped[str]
    state: Mapped[str]
    lag: Mapped[int | None] = mapped_column(BigInteger)
    offset_sum: Mapped[int | None] = mapped_column(BigInteger)
    end_sum: Mapped[int | None] = mapped_column(BigInteger)
    moved_at: Mapped[datetime | None]
    """When `offset_sum` last changed: work after the last checkpoint is what a power loss would repeat. Null for a task without stores."""
    first_moved_at: Mapped[datetime | None]
    """When `offset_sum` first changed, for a task with stores that has no checkpoint yet."""
    checkpoint_at: Mapped[datetime | None]
    paused_topic: Mapped[str | None]
    paused_partition: Mapped[int | None]
    paused_offset: Mapped[int | None] = mapped_column(BigInteger)
    updated_at: Mapped[datetime]


class Checkpoint(Base):
    """The last checkpoint of a task's stores on one instance: next offsets by store."""

    __tablename__ = "checkpoints"

    application: Mapped[str] = mapped_column(primary_key=True)
    task: Mapped[str] = mapped_column(primary_key=True)
    instance: Mapped[str] = mapped_column(primary_key=True)
    at: Mapped[datetime]
    stores: Mapped[dict[str, object]]


class FeedOffset(Base):
    """Where the feed goes on reading a topic. Written in the transaction of the rows that were read (rules: exactly once into SQL)."""

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
    """An event of an application. `sequence` counts 1, 2, 3 … per application without gaps, in the order of the topic, and is given out
    under the lock of the feed's row: number n is never committed before n − 1, so `sequence > cursor` misses nothing."""

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
    """Something that somebody should know. `occurrence` names what happened first; what happens to the same subject while the alert is
    not resolved is counted in it (`AlertSighting`)."""

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
    """What it is about, as people name it: `flights-3@1201`, an instance, a store. One alert of a kind is open per subject."""
    title: Mapped[str] = mapped_column(Text)
    detail: Mapped[dict[str, object]]
    state: Mapped[str] = mapped_column(default=AlertState.OPEN.value)
    opened_at: Mapped[datetime]
    """When it was first seen."""
    last_seen_at: Mapped[datetime]
    count: Mapped[int] = mapped_column(default=1)
    """How often it was seen."""
    acknowledged_at: Mapped[datetime | None]
    acknowledged_by: Mapped[str | None]
    resolved_at: Mapped[datetime | None]
    resolved_by: Mapped[str | None]
    resolution: Mapped[str | None] = mapped_column(Text)
    """Why it was closed."""
    notified_at: Mapped[datetime | None]
    notify_attempts: Mapped[int] = mapped_column(default=0)


class AlertSighting(Base):
    """An occurrence that an alert has counted: none counts twice, however often it is read, and none opens an alert again."""

    __tablename__ = "alert_sightings"

    occurrence: Mapped[str] = mapped_column(String(767), primary_key=True)
    alert_id: Mapped[int] = mapped_column(Number, ForeignKey("alerts.id"), index=True)
    at: Mapped[datetime]


class RunBookState(Enum):
    """PROPOSED waits for somebody's approval; REQUESTED is to be run."""

    PROPOSED = "PROPOSED"
    REQUESTED = "REQUESTED"
    RUNNING = "RUNNING"
    DONE = "DONE"
    REFUSED = "REFUSED"
    FAILED = "FAILED"


class RunBookRun(Base):
    """One run of a run-book. `subject` is what it is about; task and coordinates are there where it is about a task, and a record."""

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
    """The event that it answers; None if a person asked for it without one."""
    by_policy: Mapped[bool] = mapped_column(Boolean, default=False)
    attempts: Mapped[int] = mapped_column(default=1)
    """How often the policy had it started: one that was killed is started again."""
    requested_by: Mapped[str]
    requested_at: Mapped[datetime]
    state: Mapped[str]
    started_at: Mapped[datetime | None]
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
    """A step of a run: written down as STARTED before anything is done, then with its end."""

    __tablename__ = "run_book_steps"

    run_id: Mapped[int] = mapped_column(Number, ForeignKey("run_book_runs.id"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    state: Mapped[str]
    started_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]
    detail: Mapped[dict[str, object]]


class Sample(Base):
    """A number of the past, kept for a day: what a trend or a growth is counted from."""

    __tablename__ = "samples"

    application: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(primary_key=True)
    """`lag` or `dead-letters`."""
    subject: Mapped[str] = mapped_column(primary_key=True)
    """A task, or a topic."""
    at: Mapped[datetime] = mapped_column(primary_key=True)
    value: Mapped[int] = mapped_column(BigInteger)


class AuditEntry(Base):
    """Who did what, when: starts, stops, alerts opened and closed, every step of a run-book. Only ever added to."""

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
