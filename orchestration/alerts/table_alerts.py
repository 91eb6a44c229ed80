"""Alerts on tables that differ from their changelogs: opened by a check, counted while it fails, resolved when it passes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy.orm import Session

from penstock.orchestration.alerts import alerts
from penstock.orchestration.alerts.alerts import NewAlert
from penstock.orchestration.database.models import Alert
from penstock.orchestration.declarations.policies import Severity

TABLE_DIFFERS = "TABLE_DIFFERS"
_NAMED = 3
"""Number of keys in the title; the details have more."""


@dataclass(frozen=True, slots=True)
class TableCheck:
    """Result of a table's check. `occurrence` identifies the check. `counts`: rows by kind of difference, empty or zeros if there is none.
    `first`: descriptions of the first rows; `location`: the table with all differing rows."""

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
    """Open or count the alert of a table that differs, and return it; resolve an open one if the table does not differ."""
    if check.differences:
        new = _alert(check, at)
        alert, opened = alerts.open_alert(session, new, actor=actor, at=at)
        if not opened:
            alert.title, alert.detail = alerts.printable(new.title, alerts.MOST_TITLE), dict(new.detail)  # from the last check
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
