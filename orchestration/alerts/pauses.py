"""Alerts on pauses, and the run-books that the application's policy starts for them.

One bad record is an incident: an alert, and perhaps a run-book that skips the record. A bad deploy looks the same at first, because code
that cannot read anything pauses at every record. It is recognised by one of two signs: several tasks pause on the same type of error within
a short time, or the hourly budget of automatic skips is used up. Then one alert, BAD_DEPLOY, replaces those on the single pauses and counts
the following pauses. Run-books that have not begun are cancelled, and nothing is skipped until it is resolved, by a person or because all
of its tasks run again.

A run is *reserved* in the transaction that opens the alert, and reservations count against the budget. Reading the same event again yields
the same alert and the same run. The injected time (`at`) is the only clock here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import datetime, timedelta

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from penstock.orchestration.alerts import alerts, raw_bytes
from penstock.orchestration.alerts.alerts import NewAlert
from penstock.orchestration.database.models import Alert, AlertSighting, AlertState, Event, RunBookRun, RunBookState, Task
from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.declarations.policies import RunBook, Severity, Start
from penstock.runtime.model.error_details import ErrorDetails
from penstock.runtime.model.events import EventKind
from penstock.runtime.model.states import TaskKind, TaskState

TASK_PAUSED = EventKind.TASK_PAUSED.value
BAD_DEPLOY = "BAD_DEPLOY"
BUDGET_PERIOD = timedelta(hours=1)
PATIENCE = timedelta(minutes=5)
"""Time after its last report, which its process makes also within a step, from which an unfinished run of the policy counts as killed, and
is started again."""
MOST_ATTEMPTS = 3
ACTOR = "sensor"
_WAITING = (RunBookState.PROPOSED.value, RunBookState.REQUESTED.value)
_BY_HAND = "command"
_DETAILS = ("since_ms", *(field.name for field in fields(ErrorDetails)))


def of_pause(session: Session, application: Application, event: Event, at: datetime) -> RunBookRun | None:
    """Open the alert of a pause, or count the pause in an open BAD_DEPLOY. Return the run to start now, reserved."""
    deploys = alerts.unresolved(session, application=application.id, kinds=[BAD_DEPLOY])
    if deploys and not _by_hand(event):
        _add(session, deploys[0], event)
        return None
    alert, _ = alerts.open_alert(session, pause_alert(event), actor=ACTOR, at=at)
    if alert.kind != TASK_PAUSED or alert.state == AlertState.RESOLVED.value:
        return None
    later = _later(session, event)
    if later is not None:
        if later.kind != TASK_PAUSED or _place(later) != _place(event):
            alerts.resolve(session, alert, actor=ACTOR, at=at, resolution="the task was resumed, or has paused elsewhere, since")
        return None
    _supersede(session, application, alert, at)
    if _by_hand(event):
        return None
    reason = _same_error(session, application, event)
    if reason is not None:
        _open_bad_deploy(session, application, event, reason, at)
        return None
    return _reserve(session, application, alert, event, at)


def resolve_running(session: Session, application: Application, at: datetime, kinds: tuple[str, ...] = (TASK_PAUSED,)) -> None:
    """Resolve the alerts of tasks that have been reported RUNNING since: resumed manually, or restarted with code that reads the record."""
    for alert in alerts.unresolved(session, application=application.id, kinds=kinds):
        instance = _runs_since(session, application, str(alert.task), alert.last_seen_at)
        if instance is not None:
            alerts.resolve(session, alert, actor=ACTOR, at=at, resolution=f"the task runs on {instance}")
    for alert in alerts.unresolved(session, application=application.id, kinds=[BAD_DEPLOY]):
        if all(_runs_since(session, application, task, alert.last_seen_at) for task in _tasks(alert)):
            alerts.resolve(session, alert, actor=ACTOR, at=at, resolution="all of its tasks run again")


def unfinished(session: Session, application: Application, at: datetime, book: RunBook = RunBook.SKIP_RECORD) -> list[RunBookRun]:
    """Return the policy's runs of a run-book to start again: killed before their end, or failed and, for a pause, still needed; at most
    `MOST_ATTEMPTS` times in all. Each is returned once per attempt. A run that was killed after its effects finds them, and ends DONE. One
    that was killed at its last attempt, too, is recorded as FAILED, and its alert says so."""
    states = [RunBookState.REQUESTED.value, RunBookState.RUNNING.value, RunBookState.FAILED.value]
    query = select(RunBookRun).where(
        RunBookRun.application == application.id,
        RunBookRun.by_policy,
        RunBookRun.run_book == book.value,
        RunBookRun.state.in_(states),
        (RunBookRun.attempts < MOST_ATTEMPTS) | (RunBookRun.state != RunBookState.FAILED.value),
        RunBookRun.requested_at > at - BUDGET_PERIOD,
    )
    again: list[RunBookRun] = []
    for run in session.scalars(query.order_by(RunBookRun.id).with_for_update()):
        times = [run.requested_at, run.started_at, run.alive_at, run.ended_at, *(step.ended_at or step.started_at for step in run.steps)]
        paused = alerts.unresolved(session, application=application.id, kinds=[TASK_PAUSED], subject=run.subject)
        needed = paused or run.state == RunBookState.RUNNING.value or book is not RunBook.SKIP_RECORD
        if not needed or at - max(time for time in times if time is not None) < PATIENCE:
            continue
        if run.attempts < MOST_ATTEMPTS:
            run.attempts, run.requested_at = run.attempts + 1, at
            again.append(run)
        else:
            _give_up(run, paused, at)
    return again


def _give_up(run: RunBookRun, paused: Sequence[Alert], at: datetime) -> None:
    run.state, run.ended_at = RunBookState.FAILED.value, at
    run.reason = f"started {run.attempts} times, and did not end: it is not started again. Look at its runs in Dagster, then repair by hand"
    for alert in paused:
        _say(alert, f"{run.run_book} {run.reason}", run.id)


def _reserve(session: Session, application: Application, alert: Alert, event: Event, at: datetime) -> RunBookRun | None:
    policy = application.paused
    if policy.run_book is RunBook.NONE:
        return None
    known = session.scalar(
        select(RunBookRun)
        .where(RunBookRun.application == application.id, RunBookRun.by_policy, RunBookRun.subject == _place(event))
        .where(RunBookRun.state.in_([*_WAITING, RunBookState.RUNNING.value]))
    )
    if known is not None:
        return known if known.state == RunBookState.REQUESTED.value else None
    if not policy.may_skip(str(event.payload.get("error_type")), str(event.payload.get("error"))):
        _say(alert, "none: no pattern of skip-errors matches the error")
        return None
    if policy.start is Start.AFTER_APPROVAL:
        run = _new_run(session, application, event, RunBookState.PROPOSED, at)
        _say(alert, f"{policy.run_book.value} waits for approval: run {run.id}", run.id)
        alert.detail = {**alert.detail, "waits_for_approval": True}
        return None
    if used_up(session, application, at):
        _open_bad_deploy(session, application, event, f"the budget of {policy.budget_per_hour} records an hour is used up", at)
        return None
    run = _new_run(session, application, event, RunBookState.REQUESTED, at)
    _say(alert, f"{policy.run_book.value} is started by the policy: run {run.id}", run.id)
    return run


def used_up(session: Session, application: Application, at: datetime) -> bool:
    """Return True if the hourly budget of automatic skips is fully reserved."""
    counted = select(func.count()).where(
        RunBookRun.application == application.id,
        RunBookRun.by_policy,
        RunBookRun.run_book == RunBook.SKIP_RECORD.value,
        RunBookRun.requested_at > at - BUDGET_PERIOD,
        RunBookRun.state.not_in([RunBookState.REFUSED.value, RunBookState.PROPOSED.value]),
    )
    return (session.scalar(counted) or 0) >= application.paused.budget_per_hour


def _new_run(session: Session, application: Application, event: Event, state: RunBookState, at: datetime) -> RunBookRun:
    run = RunBookRun(
        run_book=application.paused.run_book.value,
        application=application.id,
        subject=_place(event),
        task=str(event.task),
        topic=str(event.payload["topic"]),
        partition=int(str(event.payload["partition"])),
        offset=int(str(event.payload["offset"])),
        occurrence=event.id,
        by_policy=True,
        attempts=1,
        requested_by="policy",
        requested_at=at,
        state=state.value,
    )
    session.add(run)
    session.flush()
    return run


def _say(alert: Alert, run_book: str, run: int | None = None) -> None:
    alert.detail = {**alert.detail, "run-book": run_book, "run_book_run": run}


def _same_error(session: Session, application: Application, event: Event) -> str | None:
    """Return why this looks like a bad deploy: several tasks have just paused on the same type of error; else None."""
    policy = application.paused
    query = select(Event).where(
        Event.application == application.id,
        Event.kind == TASK_PAUSED,
        Event.at > event.at - timedelta(seconds=policy.bad_deploy_seconds),
        Event.sequence <= event.sequence,
    )
    error_type = event.payload.get("error_type")
    tasks = {each.task for each in session.scalars(query) if not _by_hand(each) and each.payload.get("error_type") == error_type}
    if len(tasks) < policy.bad_deploy_tasks:
        return None
    return f"{len(tasks)} tasks paused on {error_type} within {policy.bad_deploy_seconds} s"


def _open_bad_deploy(session: Session, application: Application, event: Event, reason: str, at: datetime) -> None:
    """Replace the alerts on single pauses by one, and cancel runs that have not begun."""
    payload = event.payload
    new = NewAlert(
        occurrence=f"{event.id}/{BAD_DEPLOY}",
        kind=BAD_DEPLOY,
        severity=Severity.ERROR,
        application=application.id,
        subject=application.id,
        title=f"it looks like a bad deploy: {reason}. Nothing is skipped until this is resolved. "
        f"Last error{_at(payload)}: {payload.get('error')}",
        detail={"why": reason, **{name: payload.get(name) for name in ("error_type", "error", "location")}, "tasks": {}},
        seen_at=event.at,
    )
    deploy, _ = alerts.open_alert(session, new, actor=ACTOR, at=at)
    tasks: dict[str, str] = {}
    for alert in alerts.unresolved(session, application=application.id, kinds=[TASK_PAUSED]):
        if alert.detail.get("reason") != _BY_HAND:
            tasks[str(alert.task)] = alert.subject
            alerts.resolve(session, alert, actor=ACTOR, at=at, resolution=f"part of alert {deploy.id}: it looks like a bad deploy")
    deploy.detail = {**deploy.detail, "tasks": tasks}
    deploy.count = max(1, len(tasks))
    of_policy = select(RunBookRun).where(RunBookRun.application == application.id, RunBookRun.by_policy, RunBookRun.state.in_(_WAITING))
    for run in session.scalars(of_policy.where(RunBookRun.run_book == RunBook.SKIP_RECORD.value).with_for_update()):
        run.state, run.ended_at, run.reason = RunBookState.REFUSED.value, at, f"called off by alert {deploy.id}: it looks like a bad deploy"


def _add(session: Session, deploy: Alert, event: Event) -> None:
    if session.get(AlertSighting, event.id) is not None:
        return
    alerts.see_again(session, deploy, event.id, Severity.ERROR, event.at)
    deploy.detail = {**deploy.detail, "tasks": {**_tasks(deploy), str(event.task): _place(event)}}


def _tasks(deploy: Alert) -> Mapping[str, object]:
    tasks = deploy.detail.get("tasks")
    return tasks if isinstance(tasks, dict) else {}


def _runs_since(session: Session, application: Application, task: str, since: datetime) -> str | None:
    """Return the instance that reported the task RUNNING after `since`; None if none did, or the task has changed its state since."""
    query = select(Task).where(Task.application == application.id, Task.task == task, Task.kind == TaskKind.ACTIVE.value)
    row = session.scalar(query.order_by(Task.updated_at.desc()).limit(1))
    return row.instance if row is not None and row.state == TaskState.RUNNING.value and row.updated_at > since else None


def _later(session: Session, event: Event) -> Event | None:
    """Return the task's last event after this pause: resumed, or paused again."""
    later = select(Event).where(
        Event.application == event.application,
        Event.task == event.task,
        Event.sequence > event.sequence,
        Event.kind.in_([TASK_PAUSED, EventKind.TASK_RESUMED.value]),
    )
    return session.scalar(later.order_by(Event.sequence.desc()).limit(1))


def _supersede(session: Session, application: Application, alert: Alert, at: datetime) -> None:
    for older in alerts.unresolved(session, application=application.id, kinds=[TASK_PAUSED], task=alert.task):
        if older.id < alert.id:
            alerts.resolve(session, older, actor=ACTOR, at=at, resolution=f"the task paused again: alert {alert.id}")


def _by_hand(event: Event) -> bool:
    return event.payload.get("reason") == _BY_HAND


def _place(event: Event) -> str:
    return f"{event.payload.get('topic')}-{event.payload.get('partition')}@{event.payload.get('offset')}"


def _at(payload: Mapping[str, object]) -> str:
    """Return the line of the application that failed, for a title."""
    return f", at {payload['location']}" if payload.get("location") else ""


def pause_alert(event: Event) -> NewAlert:
    """Return the alert of a pause, with the beginning of the bad record."""
    payload, place = event.payload, _place(event)
    by_hand = _by_hand(event)
    key, value = (raw_bytes.from_base64(payload.get(name)) for name in ("key_base64", "value_base64"))
    shown: dict[str, object] = {
        name: payload.get(name)
        for name in ("topic", "partition", "offset", "timestamp_ms", "error_type", "error", "reason", "left_out_bytes", *_DETAILS)
        if name in payload or name not in _DETAILS
    }
    if not by_hand:
        shown |= {
            "key_base64": raw_bytes.to_base64(None if key is None else key[: raw_bytes.SHOWN]),
            "value_base64": raw_bytes.to_base64(None if value is None else value[: raw_bytes.SHOWN]),
            "key_bytes": None if key is None else len(key),
            "value_bytes": None if value is None else len(value),
        }
    return NewAlert(
        occurrence=event.id,
        kind=event.kind,
        severity=Severity.INFO if by_hand else Severity.ERROR,
        application=event.application,
        subject=place,
        instance=event.instance,
        task=event.task,
        title=f"task {event.task} was paused by hand"
        if by_hand
        else f"task {event.task} is paused at {place}{_at(payload)}: {payload.get('error')}",
        detail=shown,
        seen_at=event.at,
    )
