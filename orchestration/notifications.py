"""Who is told of alerts: messages through apprise, by the rules in `streams.toml`.

Telling is apart from opening: an alert is written down first, then sent, at least once. A message that cannot be sent is tried again at
later ticks, five times in all, and what became of it stands in the alert's history. An alert that got worse is sent again.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from sqlalchemy import select

from orchestration import alert_text, alerts
from orchestration.applications import NotificationRule, Severity
from orchestration.control_plane import ControlPlane
from orchestration.control_plane.models import Alert

logger = logging.getLogger(__name__)

NOTIFY_ATTEMPTS = 5


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
        row = alerts.get(session, alert.id)
        row.notify_attempts += 1
        if delivered:
            row.notified_at = at
        if urls:
            alerts.note(session, row, "notifications", "alert sent" if delivered else "alert not sent", at, detail)
    return int(delivered and bool(urls))


def _concerns(rule: NotificationRule, alert: Alert) -> bool:
    return (
        Severity(alert.severity).rank >= rule.severity.rank
        and (not rule.kinds or alert.kind in rule.kinds)
        and (not rule.applications or alert.application in rule.applications)
    )


def _body(alert: Alert) -> str:
    facts = [f"{name}: {value}" for name, value in alert_text.facts(alert).items() if not name.endswith("_hex")]
    commands = ["", "next:", *alert_text.next_commands(alert), f"penstock alerts show {alert.id}"]
    return "\n".join([alert.title, f"seen: {alert_text.seen(alert)}", *facts, *commands])
