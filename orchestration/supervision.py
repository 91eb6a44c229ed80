"""What should run and does not: seen, counted, and started again with growing patience.

The sensor on instances asks `examine_instance` every few seconds. The first death is answered at once; an instance that keeps dying waits
10 s, 20 s, 40 s … up to 5 minutes between starts, and its alert becomes an ERROR. Having run for 5 minutes makes it healthy again. One
death counts once, by the process that died. While somebody is starting it (the sensor's own run, a person, a restart) nobody else does.

Only processes of this machine can be seen; an instance that last ran elsewhere is left to the check on heartbeats.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy.orm import Session

from orchestration import alerts, audit, incidents, projection
from orchestration.alerts import NewAlert
from orchestration.applications import Application
from orchestration.control_plane.models import Instance
from orchestration.launcher import Launcher, Process
from orchestration.policies import Severity

STARTING = timedelta(seconds=60)
HEALTHY = timedelta(minutes=5)
FIRST_WAIT, LONGEST_WAIT = timedelta(seconds=10), timedelta(minutes=5)
KEEPS_DYING = 3
"""So many deaths in a row make its alert an ERROR."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to be done about an instance: `start` it now, or why not."""

    start: bool
    reason: str


def wait_before_start(deaths: int) -> timedelta:
    """How long after the last of so many deaths in a row the next start may come."""
    if deaths <= 1:
        return timedelta(0)
    return min(FIRST_WAIT * (1 << min(deaths - 2, 10)), LONGEST_WAIT)


def examine_instance(session: Session, application: Application, name: str, launcher: Launcher, at: datetime) -> Verdict:
    """Looks at one declared instance within the caller's transaction: counts a death, opens and closes its alerts, decides on a start.

    When it says `start`, the start counts as requested; it says so again only if no process has come up within a minute.
    """
    row = projection.instance_row(session, application.id, name)
    if not row.wanted:
        return Verdict(False, "not wanted")
    last = launcher.last(name)
    if last is not None and last.alive:
        incidents.resolve_instance_alerts(session, row, at)
        return Verdict(False, f"runs as process {last.pid}")
    if last is None and row.host not in (None, socket.gethostname()):
        return Verdict(False, f"last ran on {row.host}: not this machine's to start")
    if is_being_started(row, last, at):
        return Verdict(False, "is being started")
    if last is not None:
        _count_death(session, row, last, launcher, at)
    due = (row.died_at or at) + wait_before_start(row.deaths)
    if at < due:
        return Verdict(False, f"died {row.deaths} times in a row: next start in {(due - at).total_seconds():.0f} s")
    request_start(row, last, at)
    return Verdict(True, "wanted, and no process of it lives")


def request_start(row: Instance, last: Process | None, at: datetime) -> None:
    """Writes down that somebody is about to start a process in place of `last`: one that is gone for it has not died."""
    row.start_requested_at, row.start_replaces = at, None if last is None else last.key


def is_being_started(row: Instance, last: Process | None, at: datetime) -> bool:
    """True for a minute after a request, unless another process has come up since: then that start is over.

    Told by which process was the last one, not by times: a process's time of creation is off by up to a second.
    """
    if row.start_requested_at is None or at - row.start_requested_at > STARTING:
        return False
    return row.start_replaces == (None if last is None else last.key)


def _count_death(session: Session, row: Instance, dead: Process, launcher: Launcher, at: datetime) -> None:
    if row.dead_process == dead.key:
        return
    lived = at - datetime.fromtimestamp(dead.created, UTC)
    row.deaths = 1 if lived > HEALTHY else row.deaths + 1
    row.died_at, row.dead_process = at, dead.key
    last_words = launcher.last_words(row.name)
    detail = {"pid": dead.pid, "deaths": row.deaths, "lived_s": round(lived.total_seconds()), "last words": last_words}
    audit.record(session, incidents.ACTOR, "instance died", at=at, application=row.application, instance=row.name, detail=detail)
    times = f" ({row.deaths} times in a row)" if row.deaths > 1 else ""
    new = NewAlert(
        occurrence=f"{row.application}/{row.name}/{incidents.INSTANCE_DIED}/{dead.key}",
        kind=incidents.INSTANCE_DIED,
        severity=Severity.ERROR if row.deaths >= KEEPS_DYING else Severity.WARN,
        application=row.application,
        instance=row.name,
        subject=row.name,
        seen_at=at,
        title=f"instance {row.name} (process {dead.pid}) died{times}: {last_words}",
        detail={**detail, "log": row.log_path},
    )
    alert, opened = alerts.open_alert(session, new, actor=incidents.ACTOR, at=at)
    if not opened:
        alert.title, alert.detail = new.title, dict(new.detail)  # of the last death
