"""Alerts: opened once per occurrence, acknowledged by a person, resolved by whoever mended it, with their history in the audit trail.

An occurrence is named by what made it (an event's id, an instance and the process that died). Opening the same occurrence again changes
nothing, so sensors may read an event twice, and may lose their cursor. A resolved alert stays resolved; what happens again is a new one.

Who is told is decided by rules in `streams.toml`. Telling is apart from opening: an alert is written down first, then sent, at least
once; a message that cannot be sent is tried again at later ticks, five times in all, and what became of it stands in the audit trail.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from sqlalchemy import select
from sqlalchemy.orm import Session

from orchestration import audit
from orchestration.applications import NotificationRule, Severity
from orchestration.control_plane import ControlPlane
from orchestration.control_plane.models import Alert, AlertState

logger = logging.getLogger(__name__)

NOTIFY_ATTEMPTS = 5


class UnknownAlertError(Exception):
    """There is no alert of that number."""


@dataclass(frozen=True, slots=True)
class NewAlert:
    """What to open: `occurrence` names it once and for all, `title` is one sentence, `detail` what somebody needs in order to act."""

    occurrence: str
    kind: str
    severity: Severity
    application: str
    title: str
    instance: str | None = None
    task: str | None = None
    detail: Mapping[str, object] = field(default_factory=dict)


def open_alert(session: Session, new: NewAlert, *, actor: str, at: datetime) -> tuple[Alert, bool]:
    """The alert of this occurrence, and True if it was opened now."""
    known = session.scalar(select(Alert).where(Alert.occurrence == new.occurrence))
    if known is not None:
        return known, False
    alert = Alert(
        occurrence=new.occurrence,
        kind=new.kind,
        severity=new.severity.value,
        application=new.application,
        instance=new.instance,
        task=new.task,
        title=new.title,
        detail=dict(new.detail),
        state=AlertState.OPEN.value,
        opened_at=at,
    )
    session.add(alert)
    session.flush()
    _audit(session, alert, actor, "alert opened", at, {"title": new.title, "severity": new.severity.value})
    return alert, True


def acknowledge(session: Session, alert_id: int, *, actor: str, at: datetime) -> Alert:
    """Somebody has seen it and looks after it. Raises UnknownAlertError."""
    alert = _get(session, alert_id)
    if alert.state == AlertState.OPEN.value:
        alert.state, alert.acknowledged_at, alert.acknowledged_by = AlertState.ACKNOWLEDGED.value, at, actor
        _audit(session, alert, actor, "alert acknowledged", at, {})
    return alert


def resolve(session: Session, alert: Alert | int, *, actor: str, at: datetime, resolution: str) -> Alert:
    """Closes an alert, with the reason; one that is closed stays as it is. Raises UnknownAlertError."""
    found = _get(session, alert) if isinstance(alert, int) else alert
    if found.state != AlertState.RESOLVED.value:
        found.state, found.resolved_at, found.resolved_by, found.resolution = AlertState.RESOLVED.value, at, actor, resolution
        _audit(session, found, actor, "alert resolved", at, {"resolution": resolution})
    return found


def unresolved(
    session: Session,
    *,
    application: str | None = None,
    kinds: Sequence[str] = (),
    instance: str | None = None,
    task: str | None = None,
) -> list[Alert]:
    """Alerts that are open or acknowledged, oldest first."""
    query = select(Alert).where(Alert.state != AlertState.RESOLVED.value).order_by(Alert.id).with_for_update()
    if application is not None:
        query = query.where(Alert.application == application)
    if kinds:
        query = query.where(Alert.kind.in_(kinds))
    if instance is not None:
        query = query.where(Alert.instance == instance)
    if task is not None:
        query = query.where(Alert.task == task)
    return list(session.scalars(query))


def _get(session: Session, alert_id: int) -> Alert:
    alert = session.get(Alert, alert_id, with_for_update=True)
    if alert is None:
        raise UnknownAlertError(f"there is no alert {alert_id}; `penstock alerts --all` lists them")
    return alert


def _audit(session: Session, alert: Alert, actor: str, action: str, at: datetime, detail: Mapping[str, object]) -> None:
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


class Messenger(Protocol):
    """Sends one message. Raises NotificationError if it could not be delivered."""

    def send(self, urls: Sequence[str], title: str, body: str, severity: Severity) -> None: ...


class NotificationError(Exception):
    """A message could not be delivered; the message does not show the URL, which may hold a password."""


class Apprise:
    """Messages through apprise: mail, chats, web hooks, by URL."""

    def send(self, urls: Sequence[str], title: str, body: str, severity: Severity) -> None:
        import apprise  # half a second of imports, for the few processes that have a message to send

        kinds = {
            Severity.INFO: apprise.NotifyType.INFO,
            Severity.WARN: apprise.NotifyType.WARNING,
            Severity.ERROR: apprise.NotifyType.FAILURE,
        }
        messenger = apprise.Apprise()
        for url in urls:
            address = _with_environment(url)
            if not messenger.add(address):
                raise NotificationError(f"{address.split('://', 1)[0]}://… is not an address that apprise knows")
        if not messenger.notify(title=title, body=body, notify_type=kinds[severity]):
            raise NotificationError("at least one address did not take the message; the log says which")


def _with_environment(url: str) -> str:
    def value(match: re.Match[str]) -> str:
        name = match[1]
        if name not in os.environ:
            raise NotificationError(f"the environment has no {name}, which a notification in streams.toml reads")
        return os.environ[name]

    return re.sub(r"\$\{(\w+)\}", value, url)


def notify_pending(control_plane: ControlPlane, rules: Sequence[NotificationRule], messenger: Messenger, *, at: datetime) -> int:
    """Tells of every alert that nobody was told of yet. Returns how many were sent. Never raises for a message that cannot be delivered."""
    if not rules:
        return 0
    with control_plane.reading() as session:
        query = select(Alert).where(Alert.notified_at.is_(None), Alert.notify_attempts < NOTIFY_ATTEMPTS).order_by(Alert.id)
        waiting = list(session.scalars(query))
    return sum(_notify(control_plane, alert, rules, messenger, at) for alert in waiting)


def _notify(control_plane: ControlPlane, alert: Alert, rules: Sequence[NotificationRule], messenger: Messenger, at: datetime) -> int:
    urls = [url for rule in rules if _concerns(rule, alert) for url in rule.urls]
    detail: dict[str, object] = {"addresses": len(urls)}
    delivered = True
    try:
        if urls:
            messenger.send(urls, f"{alert.application}: {alert.title}", _body(alert), Severity(alert.severity))
    except NotificationError as error:
        delivered = False
        detail["error"] = str(error)
        logger.warning("alert %d: nobody could be told: %s", alert.id, error)
    with control_plane.writing() as session:
        row = _get(session, alert.id)
        row.notify_attempts += 1
        if delivered:
            row.notified_at = at
        if urls:
            _audit(session, row, "notifications", "alert sent" if delivered else "alert not sent", at, detail)
    return int(delivered and bool(urls))


def _concerns(rule: NotificationRule, alert: Alert) -> bool:
    return (
        Severity(alert.severity).rank >= rule.severity.rank
        and (not rule.kinds or alert.kind in rule.kinds)
        and (not rule.applications or alert.application in rule.applications)
    )


def _body(alert: Alert) -> str:
    lines = [f"{key}: {value}" for key, value in alert.detail.items() if value is not None]
    return "\n".join([alert.title, *lines, f"penstock alerts show {alert.id}"])
