"""Changes in the database for records of `<app>-events` and `<app>-coordination`. SQL only; `feed` reads and commits.

MEMBER records are the current state of instances and tasks, events are the history. Both topics report pauses: the report that is newer by
the instance's own clock wins, so the order in which the topics are read does not matter.

A record that cannot be read, because a newer version wrote it, is logged and skipped: one such record must not block the feed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec
from sqlalchemy import ColumnElement, Select, select
from sqlalchemy.orm import Session

from penstock.orchestration.database.models import GLOBAL_KIND, Checkpoint, Instance, Task, from_ms, global_task
from penstock.orchestration.database.models import Event as EventRow
from penstock.runtime.coordination import records
from penstock.runtime.model.errors import StreamsError
from penstock.runtime.model.events import Event, EventKind
from penstock.runtime.model.states import TaskKind, TaskState
from penstock.runtime.stores.process_memory import RESIDENT

logger = logging.getLogger(__name__)


def store_events(session: Session, application: str, sequence: int, values: Sequence[bytes | None]) -> int:
    """Store and apply events that are not stored yet. Returns the sequence number of the application's last event."""
    events = {event.id: event for value in values if (event := _decode(application, value)) is not None}
    known = set(session.scalars(select(EventRow.id).where(EventRow.id.in_(events))))
    for event in events.values():
        if event.id in known:
            continue
        sequence += 1
        session.add(
            EventRow(
                id=event.id,
                application=application,
                sequence=sequence,
                instance=event.instance,
                incarnation=event.incarnation,
                kind=event.kind.value,
                task=event.task,
                at=from_ms(event.at_ms),
                payload=event.payload,
            )
        )
        _apply_event(session, application, event)
    return sequence


def _decode(application: str, value: bytes | None) -> Event | None:
    if value is None:
        return None
    try:
        return Event.from_json(value)
    except msgspec.DecodeError as error:
        logger.warning("%s: an event cannot be read and is left out: %s", application, error)
        return None


def _apply_event(session: Session, application: str, event: Event) -> None:
    at = from_ms(event.at_ms)
    if event.kind is EventKind.INSTANCE_STATE:
        _apply_state(session, application, event, at)
    elif event.kind is EventKind.CHECKPOINT:
        stores, worker = _mapping(event.payload.get("stores")), event.payload.get("worker")
        number = worker if isinstance(worker, int) else 1
        parts = {event.task: stores} if event.task is not None else {global_task(store, number): {store: stores[store]} for store in stores}
        for of, offsets in parts.items():
            session.merge(Checkpoint(application=application, task=of, instance=event.instance, at=at, stores=offsets))
            task = session.get(Task, (application, of, event.instance))
            if task is not None and (task.checkpoint_at is None or task.checkpoint_at < at):
                task.checkpoint_at = at
    elif event.task is None:
        return
    elif event.kind is EventKind.TASK_PAUSED:
        _apply_pause(session, application, event, at, TaskState.PAUSED)
    elif event.kind is EventKind.TASK_RESUMED:
        _apply_pause(session, application, event, at, TaskState.RUNNING)


def _apply_state(session: Session, application: str, event: Event, at: datetime) -> None:
    instance = instance_row(session, application, event.instance)
    if instance.state_at is not None and instance.state_at > at:
        return
    new, pid, log_path = event.payload.get("new"), event.payload.get("pid"), event.payload.get("log_path")
    instance.state, instance.state_at = str(new), at
    if isinstance(pid, int):
        if instance.pid != pid:
            instance.started_at = at
        instance.pid = pid
    if isinstance(log_path, str):
        instance.log_path = log_path


def _apply_pause(session: Session, application: str, event: Event, at: datetime, state: TaskState) -> None:
    assert event.task is not None  # the caller's branch
    task = _task_row(session, application, event.task, event.instance, at)
    if task.updated_at > at:
        return
    task.state, task.updated_at = state.value, at
    if state is not TaskState.PAUSED:
        _resumed(task)
        for elsewhere in session.scalars(_elsewhere(task)):
            _resumed(elsewhere)
        return
    topic, partition, offset = (event.payload.get(name) for name in ("topic", "partition", "offset"))
    _paused(
        session,
        task,
        topic if isinstance(topic, str) else None,
        partition if isinstance(partition, int) else None,
        offset if isinstance(offset, int) else None,
        at,
    )


def _paused(session: Session, task: Task, topic: str | None, partition: int | None, offset: int | None, at: datetime) -> None:
    """Set where the task is paused, and since when. A task that moves pauses again before the same record, and is held up since the first
    time."""
    here = (topic, partition, offset)
    if _place(task) != here:
        task.paused_topic, task.paused_partition, task.paused_offset = here
        elsewhere = [row.paused_at for row in session.scalars(_elsewhere(task)) if _place(row) == here and row.paused_at is not None]
        task.paused_at = min([at, *elsewhere])
    elif task.paused_at is None or task.paused_at > at:
        task.paused_at = at


def _place(task: Task) -> tuple[str | None, int | None, int | None]:
    return task.paused_topic, task.paused_partition, task.paused_offset


def _elsewhere(task: Task) -> Select[Task]:
    """Return the rows of a task that other instances have run."""
    return select(Task).where(Task.application == task.application, Task.task == task.task, Task.instance != task.instance)


def _resumed(task: Task) -> None:
    task.paused_topic = task.paused_partition = task.paused_offset = task.paused_at = None


def store_coordination(session: Session, application: str, key: bytes, value: bytes | None) -> None:
    """Apply a record of the coordination topic; records between the instances alone are ignored."""
    try:
        record = records.decode(key, value)
    except StreamsError as error:
        logger.warning("%s: left out: %s", application, error)
        return
    if isinstance(record, records.Member):
        _apply_member(session, application, record)
    elif isinstance(record, records.Desired):
        _apply_desired(session, application, record)
    elif isinstance(record, records.Tombstone) and record.kind == records.MEMBER:
        _apply_departure(session, application, record.id)


def _apply_desired(session: Session, application: str, desired: records.Desired) -> None:
    row = instance_row(session, application, desired.instance)
    at = from_ms(desired.at_ms)
    if row.wanted_at is None or row.wanted_at <= at:
        row.wanted, row.wanted_at, row.wanted_by, row.wanted_published = desired.running, at, desired.by, True


def _apply_member(session: Session, application: str, member: records.Member) -> None:
    row = instance_row(session, application, member.instance)
    at = from_ms(member.heartbeat_ms)
    if row.heartbeat_at is None or row.heartbeat_at <= at:
        _apply_process(row, member, at)
    # Each worker of an instance reports its own tasks, and their reports of the same moment arrive in any order.
    reports: dict[str, records.TaskReport | records.GlobalStoreReport] = {**member.tasks}
    reports |= {global_task(store, member.worker): copy for store, copy in member.global_stores.items()}
    _close_tasks(session, application, member.instance, at, Task.worker == member.worker, Task.task.not_in(list(reports)))
    for task, report in reports.items():
        opened = _task_row(session, application, task, member.instance, at)
        if opened.updated_at > at:
            continue
        if opened.state == TaskState.CLOSED.value and _ran_elsewhere(session, opened):
            # it is restored here: no checkpoint that it had here has its state, and none of its work is from before
            opened.offset_sum = opened.moved_at = opened.first_moved_at = opened.checkpoint_at = None
        if isinstance(report, records.GlobalStoreReport):
            opened.kind, opened.state, opened.lag = GLOBAL_KIND, report.state.value, report.lag
            _apply_position(opened, report.position, report.end, report.checkpoint_ms, at)
        else:
            _apply_report(session, opened, report, at)
        opened.worker, opened.incarnation, opened.updated_at = member.worker, member.incarnation, at


def _ran_elsewhere(session: Session, closed: Task) -> bool:
    """Return True if another instance has run a task since this one closed it."""
    others = select(Task.instance).where(
        Task.application == closed.application,
        Task.task == closed.task,
        Task.instance != closed.instance,
        Task.kind == TaskKind.ACTIVE.value,
        Task.updated_at > closed.updated_at,
    )
    return session.scalar(others.limit(1)) is not None


def _apply_process(row: Instance, member: records.Member, at: datetime) -> None:
    row.heartbeat_at, row.member_id, row.incarnation = at, member.member_id, member.incarnation
    row.host, row.log_path, row.state_dir, row.metrics_port = member.host, member.log_path, member.state_dir, member.metrics_port or None
    if row.pid != member.pid:
        row.pid, row.started_at = member.pid, at
    row.resident = _of_workers(row.resident, member, member.memory.get(RESIDENT, 0))
    row.written = _of_workers(row.written, member, member.written)
    row.throttled = _of_workers(row.throttled, member, member.throttled_ms)
    alone = member.workers == 1  # with several workers, the instance's state combines theirs, and its events report it
    if row.state_at is None or (alone and row.state_at <= at):
        row.state, row.state_at = member.state.value, at


def _of_workers(known: Mapping[str, object] | None, member: records.Member, value: int | None) -> dict[str, object]:
    """Return a figure of each worker, with that of this one."""
    kept = {worker: figure for worker, figure in (known or {}).items() if int(worker) <= member.workers}
    return {**kept, str(member.worker): value}


def _apply_departure(session: Session, application: str, identity: str) -> None:
    """Close the tasks of a worker that left or was fenced. `identity`: `<instance>/<worker>/<incarnation>`; tasks of later incarnations are
    kept."""
    name, worker, incarnation = identity.rsplit("/", 2)
    row = session.get(Instance, (application, name), with_for_update=True)
    if row is None or row.heartbeat_at is None:
        return
    its_own = Task.incarnation == int(incarnation)
    if row.incarnation == int(incarnation):
        row.member_id = None
        its_own = its_own | Task.incarnation.is_(None)  # known from an event alone
    _close_tasks(session, application, name, row.heartbeat_at, Task.worker == int(worker), its_own)


def _close_tasks(session: Session, application: str, instance: str, at: datetime, *which: ColumnElement[bool]) -> None:
    """Mark tasks as no longer run by the instance. A pause is kept: the task pauses again wherever it is opened next."""
    query = select(Task).where(
        Task.application == application,
        Task.instance == instance,
        *which,
        Task.updated_at <= at,
        Task.state != TaskState.CLOSED.value,  # keep the time of the first closing: another instance may have reported the task since
    )
    for task in session.scalars(query):
        task.state, task.updated_at = TaskState.CLOSED.value, at


def _apply_report(session: Session, task: Task, report: records.TaskReport, at: datetime) -> None:
    task.kind, task.state, task.lag = report.kind.value, report.state.value, report.lag
    _apply_position(task, report.offset_sum, report.end_sum, report.checkpoint_ms, at, stateful=report.stateful)
    paused = report.paused
    if paused is None:
        _resumed(task)
    else:
        _paused(session, task, paused.topic, paused.partition, paused.offset, at if paused.since_ms is None else from_ms(paused.since_ms))


def _apply_position(task: Task, offsets: int, ends: int, checkpoint_ms: int | None, at: datetime, *, stateful: bool = True) -> None:
    first_seen = task.offset_sum is None and checkpoint_ms is not None  # new database: the time of the move is unknown
    if stateful and task.offset_sum != offsets and not first_seen:
        task.moved_at = at
        task.first_moved_at = task.first_moved_at or at
    task.offset_sum, task.end_sum = offsets, ends
    if checkpoint_ms is not None:
        task.checkpoint_at = from_ms(checkpoint_ms)


def instance_row(session: Session, application: str, instance: str) -> Instance:
    """Return the instance's row, created if missing."""
    row = session.get(Instance, (application, instance), with_for_update=True)
    if row is None:
        row = Instance(application=application, name=instance, wanted=False, wanted_published=True, deaths=0)
        session.add(row)
        session.flush()
    return row


def _task_row(session: Session, application: str, task: str, instance: str, at: datetime) -> Task:
    row = session.get(Task, (application, task, instance))
    if row is None:
        row = Task(application=application, task=task, instance=instance, kind="ACTIVE", state="CREATED", updated_at=at)
        session.add(row)
        session.flush()
    return row


def _mapping(value: object) -> dict[str, object]:
    return {str(key): entry for key, entry in value.items()} if isinstance(value, dict) else {}
