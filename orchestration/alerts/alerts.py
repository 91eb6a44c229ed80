"""Alerts: opened once per occurrence, acknowledged and commented by people, resolved when the cause is gone. The audit trail contains their
history.

An occurrence is identified by its cause (an event's id; an instance and the process that died) and counts once, so a sensor may read an
event twice or lose its cursor. Further occurrences on the same subject are counted in its unresolved alert, with the time of the last one.
A resolved alert stays resolved; a later occurrence opens a new one. The severity of an alert only rises.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from penstock.orchestration.database import audit
from penstock.orchestration.database.models import Alert, AlertSighting, AlertState
from penstock.orchestration.declarations.applications import Severity
from penstock.orchestration.declarations.errors import ExpectedError
from penstock.orchestration.kafka.event_text import one_line

MOST_TITLE = 400
"""Maximum length of a title; the details contain the full text."""


class UnknownAlertError(ExpectedError):
    """There is no alert with that number."""


@dataclass(frozen=True, slots=True)
class NewAlert:
    """Alert to open. `occurrence` identifies the cause, `subject` the affected object, `title` describes it in one sentence, `detail`
    contains what an operator needs. `seen_at`: time of the occurrence, if it is not now."""

    occurrence: str
    kind: str
    severity: Severity
    application: str
    subject: str
    title: str
    instance: str | None = None
    task: str | None = None
    detail: Mapping[str, object] = field(default_factory=dict)
    seen_at: datetime | None = None


def open_alert(session: Session, new: NewAlert, *, actor: str, at: datetime) -> tuple[Alert, bool]:
    """Return the alert of this occurrence, and True if this call opened it."""
    counted = session.get(AlertSighting, new.occurrence)
    if counted is not None:
        return session.get_one(Alert, counted.alert_id), False
    seen_at = new.seen_at or at
    for known in unresolved(session, application=new.application, kinds=[new.kind], subject=new.subject):
        see_again(session, known, new.occurrence, new.severity, seen_at)
        return known, False
    alert = Alert(
        occurrence=new.occurrence,
        kind=new.kind,
        severity=new.severity.value,
        application=new.application,
        instance=new.instance,
        task=new.task,
        subject=new.subject,
        title=as_title(new.title),
        detail=dict(new.detail),
        state=AlertState.OPEN.value,
        opened_at=seen_at,
        last_seen_at=seen_at,
        count=1,
        notify_attempts=0,
    )
    session.add(alert)
    session.flush()
    session.add(AlertSighting(occurrence=new.occurrence, alert_id=alert.id, at=seen_at))
    note(session, alert, actor, "alert opened", at, {"title": alert.title, "severity": alert.severity})
    return alert, True


def open_or_update(session: Session, new: NewAlert, *, actor: str, at: datetime) -> Alert:
    """Return the alert of this occurrence, like `open_alert`; an alert that is open already gets its title and details."""
    alert, opened = open_alert(session, new, actor=actor, at=at)
    if not opened:
        alert.title, alert.detail = as_title(new.title), dict(new.detail)
    return alert


def see_again(session: Session, alert: Alert, occurrence: str, severity: Severity, seen_at: datetime) -> None:
    """Count an occurrence in an alert, once. If its severity rises, notifications are sent again."""
    session.add(AlertSighting(occurrence=occurrence, alert_id=alert.id, at=seen_at))
    alert.count += 1
    alert.last_seen_at = max(alert.last_seen_at, seen_at)
    if severity.rank > Severity(alert.severity).rank:
        alert.severity, alert.notified_at, alert.notify_attempts = severity.value, None, 0
    session.flush()


def last_occurrence(session: Session, alert: Alert) -> str:
    """Return the last occurrence counted in an alert."""
    query = select(AlertSighting.occurrence).where(AlertSighting.alert_id == alert.id).order_by(AlertSighting.at.desc()).limit(1)
    return session.scalar(query) or alert.occurrence


def acknowledge(session: Session, alert_id: int, *, actor: str, at: datetime) -> Alert:
    """Record that a person takes care of the alert. Raises UnknownAlertError."""
    alert = get(session, alert_id)
    if alert.state == AlertState.OPEN.value:
        alert.state, alert.acknowledged_at, alert.acknowledged_by = AlertState.ACKNOWLEDGED.value, at, actor
        note(session, alert, actor, "alert acknowledged", at, {})
    return alert


def comment(session: Session, alert_id: int, text: str, *, actor: str, at: datetime) -> Alert:
    """Add a comment to the alert's history, in any state. Raises UnknownAlertError."""
    alert = get(session, alert_id)
    note(session, alert, actor, "alert commented", at, {"comment": printable(text)})
    return alert


def resolve(session: Session, alert: Alert | int, *, actor: str, at: datetime, resolution: str) -> Alert:
    """Resolve an alert, with the reason; a resolved one is not changed. Raises UnknownAlertError."""
    found = get(session, alert) if isinstance(alert, int) else alert
    if found.state != AlertState.RESOLVED.value:
        found.state, found.resolved_at, found.resolved_by, found.resolution = AlertState.RESOLVED.value, at, actor, resolution
        note(session, found, actor, "alert resolved", at, {"resolution": resolution})
    return found


def unresolved(
    session: Session,
    *,
    application: str | None = None,
    kinds: Sequence[str] = (),
    instance: str | None = None,
    task: str | None = None,
    subject: str | None = None,
) -> list[Alert]:
    """Return alerts that are open or acknowledged, oldest first; locked for the caller's transaction."""
    query = select(Alert).where(Alert.state != AlertState.RESOLVED.value).order_by(Alert.id).with_for_update()
    named = {"application": application, "instance": instance, "task": task, "subject": subject}
    query = query.filter_by(**{column: value for column, value in named.items() if value is not None})
    return list(session.scalars(query.where(Alert.kind.in_(kinds)) if kinds else query))


def as_title(text: str) -> str:
    """Return the title of an alert: one line, whatever an error says."""
    return printable(one_line(text, MOST_TITLE), MOST_TITLE)


def printable(text: str, most: int = 10_000) -> str:
    """Make a text safe for every database and terminal: control characters are escaped, long texts are cut."""
    clean = "".join(char if char.isprintable() or char == "\n" else char.encode("unicode_escape").decode() for char in text[: most + 1])
    return clean if len(clean) <= most else f"{clean[: most - 1]}…"


def get(session: Session, alert_id: int, *, lock: bool = True) -> Alert:
    """Return an alert, locked for the caller's transaction. Raises UnknownAlertError."""
    alert = session.get(Alert, alert_id, with_for_update=lock)
    if alert is None:
        raise UnknownAlertError(f"there is no alert {alert_id}; `penstock alerts --all` lists them")
    return alert


def note(session: Session, alert: Alert, actor: str, action: str, at: datetime, detail: Mapping[str, object]) -> None:
    """Add an entry to the alert's history."""
    audit.record(
        session,
        actor,
        action,
        at=at,
        application=alert.application,
        instance=alert.instance,
        task=alert.task,
        alert_id=alert.id,
        detail={"kind": alert.kind, **detail},
    )
