"""Notifications of alerts: messages sent through apprise, by the rules in `streams.toml`.

An alert is recorded first and sent afterwards, at least once. A failed message is retried at later ticks, five times in all; the alert's
history shows the result. An alert whose severity rises is sent again.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from sqlalchemy import select

from penstock.orchestration.alerts import alerts, notification_text
from penstock.orchestration.database import ControlPlane
from penstock.orchestration.database.models import Alert
from penstock.orchestration.declarations.applications import NotificationRule, Severity

logger = logging.getLogger(__name__)

NOTIFY_ATTEMPTS = 5


class Messenger(Protocol):
    """Sender of messages. Raises NotificationError if a message could not be delivered."""

    def send(self, urls: Sequence[str], title: str, body: str, severity: Severity) -> None: ...


class NotificationError(Exception):
    """A message could not be delivered; the text does not contain the URL, which may contain a password."""


class Apprise:
    """Sender through apprise: mail, chats, webhooks, by URL."""

    def send(self, urls: Sequence[str], title: str, body: str, severity: Severity) -> None:
        import apprise  # importing it takes half a second, and few processes have a message to send

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
    """Send notifications of all alerts that need one. Return the number sent. Never raises for an undeliverable message."""
    if not rules:
        return 0
    with control_plane.reading() as session:
        query = select(Alert).where(Alert.notified_at.is_(None), Alert.notify_attempts < NOTIFY_ATTEMPTS).order_by(Alert.id)
        waiting = list(session.scalars(query))
    return sum(_notify(control_plane, alert, rules, messenger, at) for alert in waiting)


def _notify(control_plane: ControlPlane, alert: Alert, rules: Sequence[NotificationRule], messenger: Messenger, at: datetime) -> int:
    concerned = [rule for rule in rules if _concerns(rule, alert)]
    urls = [url for rule in concerned for url in rule.urls]
    detail: dict[str, object] = {"addresses": len(urls)}
    delivered = True
    try:
        for whole in (False, True):
            if addressed := [url for rule in concerned if rule.include_record is whole for url in rule.urls]:
                title, body = (part(alert, include_record=whole) for part in (notification_text.title, notification_text.body))
                messenger.send(addressed, title, body, Severity(alert.severity))
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
