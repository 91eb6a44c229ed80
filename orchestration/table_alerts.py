"""Alerts on tables that are not what their changelogs say: opened by a check, counted while it fails, resolved when it passes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy.orm import Session

from orchestration import alerts
from orchestration.alerts import NewAlert
from orchestration.control_plane.models import Alert
from orchestration.policies import Severity

TABLE_DIFFERS = "TABLE_DIFFERS"
_NAMED = 3
"""Keys in the title; the details have more."""


@dataclass(frozen=True, slots=True)
class TableCheck:
    """What a check of a table found. `occurrence` names the check once and for all. `counts`: rows by what is wrong with them, empty or
    zeros if nothing is. `first`: sentences about the first rows; `location`: the table that has all of them."""

    application: str
    table: str
    occurrence: str
    counts: Mapping[str, int] = field(default_factory=dict)
    first: tuple[str, ...] = ()
    location: str = ""

    @property
    def differences(self) -> int:
        return sum(self.counts.values())


def of_check(session: Session, check: TableCheck, *, actor: str, at: datetime) -> Alert | None:
    """Opens or counts the alert of a table that differs, and returns it; resolves the one that is open if the table does not differ."""
    if check.differences:
        new = _alert(check, at)
        alert, opened = alerts.open_alert(session, new, actor=actor, at=at)
        if not opened:
            alert.title, alert.detail = alerts.printable(new.title, alerts.MOST_TITLE), dict(new.detail)  # of the last check
        return alert
    for alert in alerts.unresolved(session, application=check.application, kinds=[TABLE_DIFFERS], subject=check.table):
        alerts.resolve(session, alert, actor=actor, at=at, resolution=f"the table equals its changelog (check {check.occurrence})")
    return None


def _alert(check: TableCheck, at: datetime) -> NewAlert:
    counts = ", ".join(f"{count} {kind}" for kind, count in check.counts.items() if count)
    return NewAlert(
        occurrence=f"{check.application}/{check.table}/{TABLE_DIFFERS}/{check.occurrence}",
        kind=TABLE_DIFFERS,
        severity=Severity.ERROR,
        application=check.application,
        subject=check.table,
        title=f"table {check.table} is not what its changelog says ({counts}): {'; '.join(check.first[:_NAMED])}",
        detail={"counts": dict(check.counts), "differences": "\n".join(check.first), "all of them are in": check.location},
        seen_at=at,
    )
