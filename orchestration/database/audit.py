"""The audit trail: who did what, when. Each entry is written in the transaction of the change it records, and never changed."""

from __future__ import annotations

import getpass
from collections.abc import Mapping
from datetime import UTC, datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from penstock.orchestration.database.models import AuditEntry


def now() -> datetime:
    """Return the current time, with its time zone."""
    return datetime.now(UTC)


def this_user() -> str:
    """Return the user that runs this process, as an actor of the audit trail."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return "unknown"


def record(
    session: Session,
    actor: str,
    action: str,
    *,
    at: datetime,
    application: str | None = None,
    instance: str | None = None,
    task: str | None = None,
    alert_id: int | None = None,
    run_book_run_id: int | None = None,
    detail: Mapping[str, object] | None = None,
) -> None:
    """Add an entry. `action` is a past participle after its subject: `alert opened`, `instance stopped`."""
    session.add(
        AuditEntry(
            at=at,
            actor=actor,
            action=action,
            application=application,
            instance=instance,
            task=task,
            alert_id=alert_id,
            run_book_run_id=run_book_run_id,
            detail=dict(detail or {}),
        )
    )


def latest(session: Session, *, application: str | None = None, alert_id: int | None = None, limit: int = 50) -> list[AuditEntry]:
    """Return the newest entries, in chronological order."""
    query = select(AuditEntry).order_by(AuditEntry.id.desc()).limit(limit)
    if application is not None:
        query = query.where(AuditEntry.application == application)
    if alert_id is not None:
        query = query.where(AuditEntry.alert_id == alert_id)
    return list(reversed(session.scalars(query).all()))
