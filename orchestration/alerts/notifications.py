"""Notifications of alerts: messages sent through apprise, by the rules in `streams.toml`.

An alert is recorded first and sent afterwards, at least once. A failed message is retried at later ticks, five times in all; the alert's
history shows the result. An alert whose severity rises is sent again. One that is resolved before it could be sent is not sent.

A message leaves the company's own systems, so it contains coordinates and errors, but no content of records. An error may quote its record.
If the alert contains the whole record, as text, and a serde could not read it, everything that the error's text has in common with it is
replaced by `…`. Otherwise the text ends after the record's coordinates and the error's type: the application's code may quote stores and
other records, and of bytes in binary form it is not known what they mean. `include-record = true` in the rule sends the full text, as
`penstock alerts show` prints it.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from datetime import datetime

from sqlalchemy import select

from penstock.orchestration.alerts import alert_text, alerts, raw_bytes
from penstock.orchestration.database import ControlPlane
from penstock.orchestration.database.models import Alert, AlertState
from penstock.orchestration.declarations.applications import NotificationRule, Severity
from penstock.runtime.config.environment import filled_in
from penstock.runtime.model.error_details import ErrorDetails
from penstock.runtime.model.errors import StreamsConfigError

_LEFT_OUT = "…"
_OF_RECORDS = ("key", "value", "headers", "differences", "stack", "log_end")
"""Facts with content of records; a stack has lines of the program, which may be confidential too, as may a log."""
_OF_NO_RECORD = (
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestamp_ms",
    "error_type",
    "tasks",
    "key_bytes",
    "value_bytes",
    "left_out_bytes",
    "since",
    "since_ms",
)
"""Facts without content of records. So are all of `ErrorDetails`."""
_AFTER_COORDINATES = re.compile(r"(\S+-\d+@\d+(?:, at .+?:\d+ in [^\s:]+)?[^:]*:)(\s*[A-Za-z_][\w.]*:(?=\s))?.*", re.DOTALL)
_AFTER_TYPE = re.compile(r"(\b(?:raised [A-Za-z_][\w.]*|[A-Za-z_][\w.]*(?:Error|Exception)):)\s.*", re.DOTALL)
"""An error without coordinates, as in the last words of an instance."""
_ESCAPED = re.compile(r"(?:\\u[0-9a-fA-F]{4})+")
_DETAILS = frozenset(field.name for field in fields(ErrorDetails))
_READING = "deserialization"
"""`reason` of a pause at a record that a serde could not read."""
_SHORTEST_QUOTE = 5
"""Length from which a quote is removed inside words too; shorter quotes are removed only as whole words."""
_WORD = re.compile(r"\w+")


def message_title(alert: Alert, *, include_record: bool) -> str:
    """Return one line: the application, and what happened."""
    return f"{alert.application}: {alert.title if include_record else _title(alert)}"


def message_body(alert: Alert, *, include_record: bool) -> str:
    """Return the alert's title, its facts, and the next commands."""
    facts = {name: value for name, value in alert_text.facts(alert).items() if not name.endswith("_hex")}
    head = alert.title
    if not include_record:
        head = _title(alert)
        facts = {name: _without_record(alert, name, value) for name, value in facts.items() if name not in _OF_RECORDS}
    lines = [f"{name}: {value}" for name, value in facts.items()]
    commands = ["", "next:", *alert_text.next_commands(alert), f"penstock alerts show {alert.id}"]
    return "\n".join([head, f"seen: {alert_text.seen(alert)}", *lines, *commands])


def _title(alert: Alert) -> str:
    error = str(alert.detail.get("error") or "")
    error_type = str(alert.detail.get("error_type") or "")
    at = f", at {alert.detail['location']}" if alert.detail.get("location") else ""
    match alert.kind:
        case "TASK_PAUSED" if error_type:
            return f"task {alert.task} is paused at {alert.subject}{at}: {error_type}: {_without_record(alert, 'error', error)}"
        case "BAD_DEPLOY":
            why = alert.detail.get("why")
            return f"it looks like a bad deploy: {why}. Nothing is skipped until this is resolved. Last error{at}: {error_type}"
        case "TABLE_DIFFERS" | "STATE_DIFFERS":
            counts = alert.detail.get("counts")
            numbers = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count) if isinstance(counts, dict) else _LEFT_OUT
            of_table = alert.kind == "TABLE_DIFFERS"
            what = (
                f"table {alert.subject} is not what its changelog says"
                if of_table
                else f"store {alert.subject} is not what its input gives"
            )
            return f"{what} ({numbers})"
        case _:
            return _without_record(alert, "title", alert.title)


def _without_record(alert: Alert, name: str, text: str) -> str:
    if name in _OF_NO_RECORD or name in _DETAILS:
        return text
    record = _record(alert)
    if record is not None:
        return leave_out(text, record)
    if name == "error":
        return _LEFT_OUT
    text = _AFTER_COORDINATES.sub(lambda found: f"{found[1]}{found[2] or ''} {_LEFT_OUT}", text)
    return _AFTER_TYPE.sub(rf"\1 {_LEFT_OUT}", text)


def _record(alert: Alert) -> bytes | None:
    """Return key and value of the alert's record, if the alert contains all of it, as text, and its error can be about nothing else."""
    detail = alert.detail
    if detail.get("reason", _READING) != _READING:
        return None
    parts = [raw_bytes.from_base64(detail.get(name)) or b"" for name in ("key_base64", "value_base64")]
    cut = any(len(part) >= raw_bytes.SHOWN for part in parts) or bool(detail.get("left_out_bytes"))
    read = parts[0] if detail.get("part") == "key" else parts[1]
    return None if cut or "value_base64" not in detail or not _is_text(read) else b"\n".join(parts)


def _is_text(data: bytes) -> bool:
    try:
        return all(character.isprintable() or character.isspace() for character in data.decode())
    except UnicodeDecodeError:
        return False


def leave_out(text: str, record: bytes) -> str:
    """Remove from a text what it shares with a record: as text, as written by Python or JSON, or as bytes in hex or base64."""
    decoded = record.decode("utf-8", errors="backslashreplace")
    forms = (
        decoded,
        _ESCAPED.sub(lambda found: json.loads(f'"{found[0]}"'), decoded),
        repr(record),
        repr(decoded),
        record.hex(),
        record.hex(" "),
        raw_bytes.to_base64(record) or "",
        raw_bytes.decoded(record),
    )
    content = "\n".join(forms).casefold()
    words = {word for word in _WORD.findall(content) if len(word) > 2 or word.isdigit()}
    return _WORD.sub(lambda found: _LEFT_OUT if found[0].casefold() in words else found[0], _without_quotes(text, content))


def _without_quotes(text: str, content: str) -> str:
    kept: list[str] = []
    folded, at = text.casefold(), 0
    if len(folded) != len(text):  # a letter that casefolds to two: positions would differ
        text = folded
    while at < len(text):
        end = at + _SHORTEST_QUOTE
        if end > len(text) or folded[at:end] not in content:
            kept.append(text[at])
            at += 1
            continue
        while end < len(text) and folded[at : end + 1] in content:
            end += 1
        kept.append(_LEFT_OUT)
        at = end
    return "".join(kept)


logger = logging.getLogger(__name__)

_SCHEME = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]*)://")
_VARIABLE = re.compile(r"\$\{\w+\}")
NOTIFY_ATTEMPTS = 5
SEND_SECONDS = 10.0
"""Longest wait for the addresses of one message. One that answers byte by byte would hold the sensor for as long as it likes."""
TICK_SECONDS = 20.0
"""Time after which the remaining messages are left to the next tick: Dagster ends a tick after 60 s, and with it the count of attempts."""
Send = Callable[[Sequence[str], str, str, Severity], None]
"""Sends a message: URLs, title, text, severity. Raises NotificationError if it could not be delivered."""


class NotificationError(Exception):
    """A message could not be delivered; the text does not contain the URL, which may contain a password."""


def send(urls: Sequence[str], title: str, body: str, severity: Severity) -> None:
    """Send a message through apprise (mail, chats, webhooks, by URL). Raises NotificationError if it could not be delivered. A redirect is
    not followed unless the address has `redirect=yes`: it would send the message to where its receiver points."""
    import apprise  # importing it takes half a second, and few processes have a message to send

    kinds = {
        Severity.INFO: apprise.NotifyType.INFO,
        Severity.WARN: apprise.NotifyType.WARNING,
        Severity.ERROR: apprise.NotifyType.FAILURE,
    }
    messenger = apprise.Apprise(asset=apprise.AppriseAsset(http_redirects=False))
    for url in urls:
        try:
            address = filled_in(url, "a notification in streams.toml")
        except StreamsConfigError as error:
            raise NotificationError(str(error)) from error
        if (scheme := _SCHEME.match(address)) is None:  # apprise would log all of it
            named = ", ".join(_VARIABLE.findall(url))
            raise NotificationError(f"the address {named}{' ' if named else ''}has no scheme, such as json:// or mailto://")
        if not messenger.add(address):
            raise NotificationError(f"{scheme[1]}://… is not an address that apprise knows")
    outcome: list[bool] = []
    thread = threading.Thread(
        target=lambda: outcome.append(bool(messenger.notify(title=title, body=body, notify_type=kinds[severity]))),
        name="notification",
        daemon=True,
    )
    thread.start()
    thread.join(SEND_SECONDS)
    if thread.is_alive():
        raise NotificationError(f"at least one address has not taken the message within {SEND_SECONDS:.0f} s")
    if outcome != [True]:
        raise NotificationError("at least one address did not take the message; the log says which")


def notify_pending(
    control_plane: ControlPlane,
    rules: Sequence[NotificationRule],
    deliver: Send,
    *,
    at: datetime,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Send notifications of all alerts that need one, within `TICK_SECONDS`, those with the fewest attempts first. Return the number
    sent. Never raises for an undeliverable message."""
    if not rules:
        return 0
    begun = clock()
    unsent = (Alert.notified_at.is_(None), Alert.notify_attempts < NOTIFY_ATTEMPTS, Alert.state != AlertState.RESOLVED.value)
    with control_plane.reading() as session:
        waiting = list(session.scalars(select(Alert.id).where(*unsent).order_by(Alert.notify_attempts, Alert.id)))
    sent = 0
    for number in waiting:  # each is read again: sending those before it takes seconds, and it may be over since
        if clock() - begun > TICK_SECONDS:
            break
        with control_plane.reading() as session:
            alert = session.scalar(select(Alert).where(Alert.id == number, *unsent))
        if alert is not None:
            sent += _notify(control_plane, alert, rules, deliver, at)
    return sent


def _notify(control_plane: ControlPlane, alert: Alert, rules: Sequence[NotificationRule], deliver: Send, at: datetime) -> int:
    concerned = [rule for rule in rules if _concerns(rule, alert)]
    urls = [url for rule in concerned for url in rule.urls]
    detail: dict[str, object] = {"addresses": len(urls)}
    delivered = True
    try:
        for whole in (False, True):
            if addressed := [url for rule in concerned if rule.include_record is whole for url in rule.urls]:
                title, body = (part(alert, include_record=whole) for part in (message_title, message_body))
                deliver(addressed, title, body, Severity(alert.severity))
    except NotificationError as error:
        delivered = False
        detail["error"] = str(error)
        logger.warning("alert %d: no notification was delivered: %s", alert.id, error)
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
