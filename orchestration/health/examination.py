"""Examination of an application: gather facts, compute the checks, store measurements for trends, open and close alerts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from types import MappingProxyType

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from penstock.orchestration.alerts import alerts
from penstock.orchestration.alerts.alerts import NewAlert
from penstock.orchestration.alerts.incidents import INPUT_PARTITIONS
from penstock.orchestration.database import ControlPlane
from penstock.orchestration.database.models import Checkpoint, Event, Instance, RunBookRun, RunBookState, Sample, Task, is_global
from penstock.orchestration.declarations.applications import Application, Applications
from penstock.orchestration.declarations.policies import Severity
from penstock.orchestration.health import checks
from penstock.orchestration.health.broker_facts import ask_broker
from penstock.orchestration.health.checks import CheckResult, Known
from penstock.orchestration.health.figures import Report
from penstock.orchestration.run_books import SkipRecord
from penstock.runtime.model.events import EventKind

ACTOR = "health"
_LAG = "lag"
_KEPT = timedelta(days=1)
_NOT_COMPACTED = EventKind.GLOBAL_TOPIC_NOT_COMPACTED.value


def examine(applications: Applications, control_plane: ControlPlane, at: datetime, brokers: bool = False) -> list[CheckResult]:
    """Return the checks of all declared applications, from the database as of `at`; with `brokers` also from the brokers' current answers.

    Raises BrokerUnavailableError, only with `brokers`.
    """
    return [result for application in applications.applications for result in examine_one(application, control_plane, at, brokers=brokers)]


def examine_one(
    application: Application, control_plane: ControlPlane, at: datetime, *, brokers: bool, unknown: str = ""
) -> list[CheckResult]:
    """Return the checks of one application, like `examine`. `unknown`: why the database is not up to date, if so."""
    return results_of(facts(application, control_plane, at, brokers=brokers), unknown)


def facts(application: Application, control_plane: ControlPlane, at: datetime, *, brokers: bool) -> Known:
    """Return the facts in the database, with `brokers` also those that the brokers know. Raises BrokerUnavailableError, only
    with `brokers`.
    """
    with control_plane.reading() as session:
        known = gather(session, application, at)
    if not brokers:
        return known
    logs = {log for checkpoint in known.checkpoints.values() for log in checks.saved_offsets(checkpoint)}
    logs |= {log for task in known.tasks for log in known.changelogs(task.task)}
    broker = ask_broker(application, logs, known.global_topics)
    for task in known.tasks:
        task.lag = checks.measured_lag(task, broker)  # of these facts; the session is closed, so it is not written
    return replace(known, broker=broker)


def results_of(known: Known, unknown: str = "") -> list[CheckResult]:
    """Return the results of all checks. `unknown`: why the facts are not up to date, if so."""
    known = known.as_last_heard() if unknown else known
    idle = known.idle()
    return [replace(check(known), unknown=unknown, idle=idle, at=known.at) for check in checks.ALL]


def gather(session: Session, application: Application, at: datetime) -> Known:
    """Return the facts about an application that are in the database."""
    of = application.id
    checkpoints = session.scalars(select(Checkpoint).where(Checkpoint.application == of))
    samples = select(Sample).where(Sample.application == of, Sample.at < at).order_by(Sample.at)
    lags: dict[str, list[tuple[datetime, int]]] = {}
    counters: dict[tuple[str, str], tuple[datetime, int]] = {}
    window = at - timedelta(minutes=2 * max(application.health.lag_grows_minutes, 15))
    for sample in session.scalars(samples.where(Sample.at > window)):
        if sample.kind == _LAG:
            lags.setdefault(sample.subject, []).append((sample.at, sample.value))
        else:
            counters[sample.kind, sample.subject] = (sample.at, sample.value)
    return Known(
        application=application,
        at=at,
        instances={row.name: row for row in session.scalars(select(Instance).where(Instance.application == of))},
        tasks=tuple(session.scalars(select(Task).where(Task.application == of).order_by(Task.task, Task.instance))),
        checkpoints={(row.task, row.instance): row for row in checkpoints},
        global_topics=_global_topics(session, of),
        partitions_added={alert.subject: alert.detail for alert in alerts.unresolved(session, application=of, kinds=[INPUT_PARTITIONS])},
        skipped_hour=_skipped(session, of, at - timedelta(hours=1)),
        skipped_day=_skipped(session, of, at - timedelta(days=1)),
        lags=lags,
        counters=counters,
    )


def remember(
    control_plane: ControlPlane,
    application: Application,
    results: list[CheckResult],
    at: datetime,
    counters: Mapping[tuple[str, str], int] = MappingProxyType({}),
) -> None:
    """Store the current lags and `counters` (by kind and subject, from which the next rates are computed), and open, count and close the
    alerts that follow from the checks, in one transaction."""
    with control_plane.writing() as session:
        session.execute(delete(Sample).where(Sample.application == application.id, Sample.at < at - _KEPT))
        if counters:
            session.execute(delete(Sample).where(Sample.application == application.id, Sample.kind.in_({kind for kind, _ in counters})))
            session.add_all(
                Sample(application=application.id, kind=kind, subject=subject, at=at, value=value)
                for (kind, subject), value in counters.items()
            )
        for result in results:
            if result.name == checks.LAG:
                _keep_lags(session, result, at)
            _alert(session, result, at)
        _resolve_topics(session, application, results, at)


def is_new(control_plane: ControlPlane, application: Application, found: Report) -> bool:
    """Return True if the sentence of a report is not that of the previous one; store it for the next."""
    ((kind, subject), checksum), *_ = found.samples.items()
    with control_plane.reading() as session:
        before = session.scalar(
            select(Sample.value).where(Sample.application == application.id, Sample.kind == kind, Sample.subject == subject)
        )
    remember(control_plane, application, [], found.at, found.samples)
    return before != checksum


def _keep_lags(session: Session, result: CheckResult, at: datetime) -> None:
    lags = {str(row.cells["task"]): row.cells["lag"] for row in result.rows} | {checks.TOTAL: int(result.numbers["lag"])}
    session.execute(delete(Sample).where(Sample.application == result.application, Sample.kind == _LAG, Sample.at == at))
    session.add_all(
        Sample(application=result.application, kind=_LAG, subject=subject, at=at, value=value)
        for subject, value in lags.items()
        if isinstance(value, int)
    )


def _alert(session: Session, result: CheckResult, at: datetime) -> None:
    """Open, count or close the alert of a check: one per check and application, closed when the check passes. While no broker answers
    nothing is new, and no problem is over."""
    if result.unknown:
        return
    kinds = _KINDS[result.name]
    open_now = alerts.unresolved(session, application=result.application, kinds=[kinds], subject=result.name) if kinds else []
    if result.severity is Severity.INFO:
        for alert in open_now:
            alerts.resolve(session, alert, actor=ACTOR, at=at, resolution="all is well again")
        return
    if result.alert is None:
        return
    texts = result.texts
    commands = [command for row in result.rows for command in row.commands]
    new = NewAlert(
        occurrence=f"{result.application}/{result.alert}/{at.isoformat()}",
        kind=result.alert,
        severity=result.severity,
        application=result.application,
        subject=result.name,
        title="; ".join(texts[:3]) + (f"; and {len(texts) - 3} more" if len(texts) > 3 else ""),
        detail={"problems": texts[:50], **result.numbers, **({"commands": commands[:50]} if commands else {})},
        seen_at=at,
    )
    alerts.open_or_update(session, new, actor=ACTOR, at=at)


def _resolve_topics(session: Session, application: Application, results: list[CheckResult], at: datetime) -> None:
    """Resolve the alerts of events about topics that a check finds in order now."""
    for result in results:
        if result.name not in _OF_TOPICS or result.unknown:
            continue
        kind, resolution = _OF_TOPICS[result.name]
        for topic in (str(row.cells["topic"]) for row in result.rows if not row.problem):
            for alert in alerts.unresolved(session, application=application.id, kinds=[kind], subject=topic):
                alerts.resolve(session, alert, actor=ACTOR, at=at, resolution=resolution.format(topic=topic))


_OF_TOPICS = {
    checks.COMPACTION: (_NOT_COMPACTED, "{topic} is compacted now"),
    checks.PARTITIONS: (INPUT_PARTITIONS, "every partition of {topic} has a task"),
}
_KINDS = {
    checks.FRESHNESS: "CHECKPOINT_STALE",
    checks.LIVENESS: "INSTANCE_SILENT",
    checks.LAG: "LAG",
    checks.STANDBYS: "UNDER_REPLICATED",
    checks.DEAD_LETTERS: "DEAD_LETTERS",
    checks.EXPIRY: "OFFSETS_EXPIRE",
    checks.COMPACTION: None,
    checks.PARTITIONS: None,
    checks.TRANSACTIONS: "HANGING_TRANSACTION",
}


def _skipped(session: Session, application: str, since: datetime) -> int:
    """Return the number of records skipped by handlers and run-books."""
    skipped = select(func.count()).where(Event.application == application, Event.kind == EventKind.RECORD_SKIPPED.value, Event.at > since)
    by_run_books = select(func.count()).where(
        RunBookRun.application == application,
        RunBookRun.run_book == SkipRecord.NAME,
        RunBookRun.state == RunBookState.DONE.value,
        RunBookRun.ended_at > since,
    )
    return (session.scalar(skipped) or 0) + (session.scalar(by_run_books) or 0)


def _global_topics(session: Session, application: str) -> frozenset[str]:
    """Return the topics of the global stores, as named in their last checkpoints, in warnings and in recoveries."""
    of_globals = [_NOT_COMPACTED, EventKind.GLOBAL_RECOVERY_STARTED.value]
    query = select(Event).where(Event.application == application, Event.kind.in_(of_globals))
    topics = {str(event.payload.get("topic")) for event in session.scalars(query)}
    checkpoints = session.scalars(select(Checkpoint).where(Checkpoint.application == application))
    return frozenset(topics.union(*({log.topic for log in checks.saved_offsets(each)} for each in checkpoints if is_global(each.task))))
