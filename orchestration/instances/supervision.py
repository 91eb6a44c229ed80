"""Supervision: deaths of wanted instances are counted, and the instances restarted, with growing delays.

The sensor on instances calls `examine_instance` every few seconds. After its first death an instance is restarted at once; if it keeps
dying, the delay grows to 10 s, 20 s, 40 s … up to 5 minutes, and its alert becomes an ERROR. After running for 5 minutes it counts as
healthy again. A death is identified by the process that died, and counts once. While one start is in progress (by the sensor's own run, a
person, a restart) no other is made.

Only processes of this machine are visible here; the check on heartbeats covers instances that last ran elsewhere.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy.orm import Session

from penstock.orchestration.alerts import alerts, incidents
from penstock.orchestration.alerts.alerts import NewAlert
from penstock.orchestration.database import audit
from penstock.orchestration.database.models import Instance
from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.declarations.policies import Severity
from penstock.orchestration.instances.launcher import Launcher, Process
from penstock.orchestration.projection import writer

STARTING = timedelta(seconds=60)
HEALTHY = timedelta(minutes=5)
FIRST_WAIT, LONGEST_WAIT = timedelta(seconds=10), timedelta(minutes=5)
KEEPS_DYING = 3
"""Number of consecutive deaths that makes the alert an ERROR."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Decision on an instance: `start` it now, or the reason not to. `runs`: that is the reason."""

    start: bool
    reason: str
    runs: bool = False


def wait_before_start(deaths: int) -> timedelta:
    """Return the delay before the next start, after this many consecutive deaths."""
    if deaths <= 1:
        return timedelta(0)
    return min(FIRST_WAIT * (1 << min(deaths - 2, 10)), LONGEST_WAIT)


def examine_instance(session: Session, application: Application, name: str, launcher: Launcher, at: datetime) -> Verdict:
    """Examine a declared instance within the caller's transaction: count a death, open and close its alerts, decide whether to start it.

    If it decides on a start, that counts as requested; it repeats the decision only if no process has appeared within a minute.
    """
    row = writer.instance_row(session, application.id, name)
    if not row.wanted:
        row.deaths = 0  # a stop on purpose ends the series
        return Verdict(False, "not wanted")
    last = launcher.last(name)
    if last is not None and last.alive:
        if row.deaths and at - datetime.fromtimestamp(last.created, UTC) > HEALTHY:
            row.deaths = 0
        incidents.resolve_instance_alerts(session, row, at)
        return Verdict(False, f"runs as process {last.pid}", runs=True)
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
    """Record a planned start that replaces `last`, so that its end does not count as a death."""
    row.start_requested_at, row.start_replaces = at, None if last is None else last.key


def is_being_started(row: Instance, last: Process | None, at: datetime) -> bool:
    """Return True for a minute after a request, unless another process has appeared since, which completes that start.

    Compares processes instead of times, because a process's creation time is off by up to a second.
    """
    if row.start_requested_at is None or at - row.start_requested_at > STARTING:
        return False
    return row.start_replaces == (None if last is None else last.key)


def _count_death(session: Session, row: Instance, dead: Process, launcher: Launcher, at: datetime) -> None:
    if row.dead_process == dead.key:
        return
    created = datetime.fromtimestamp(dead.created, UTC)
    heard = None if row.heartbeat_at is None or row.heartbeat_at < created else row.heartbeat_at.timestamp()
    # until its last sign of life: its death may be noticed much later
    lived = datetime.fromtimestamp(launcher.last_sign(dead, heard), UTC) - created
    row.deaths = 1 if lived > HEALTHY else row.deaths + 1
    row.died_at, row.dead_process = at, dead.key
    cause = launcher.cause_of_end(dead, heard)
    detail: dict[str, object] = {
        "pid": dead.pid,
        "ended": launcher.end_of(dead, heard) or "nothing is known: a signal such as SIGKILL, or a crash",
        "deaths": row.deaths,
        "lived_at_most_s": round((at - created).total_seconds()),  # until its death was noticed
        "log_end": "\n".join(launcher.log_end(row.name) or [launcher.last_words(row.name)]),
    }
    audit.record(session, incidents.ACTOR, "instance died", at=at, application=row.application, instance=row.name, detail=detail)
    times = f" ({row.deaths} times in a row)" if row.deaths > 1 else ""
    why = ", and nothing is known of how" if cause is None else f" {cause}"
    new = NewAlert(
        occurrence=f"{row.application}/{row.name}/{incidents.INSTANCE_DIED}/{dead.key}",
        kind=incidents.INSTANCE_DIED,
        severity=Severity.ERROR if row.deaths >= KEEPS_DYING else Severity.WARN,
        application=row.application,
        instance=row.name,
        subject=row.name,
        seen_at=at,
        title=f"instance {row.name} (process {dead.pid}) died{times}{why}",
        detail={**detail, "log": row.log_path},
    )
    alerts.open_or_update(session, new, actor=incidents.ACTOR, at=at)
