"""Alerts for events and checks of tables: what opens them, and what resolves them.

    kind of alert                opened by                        resolved by
    TASK_PAUSED, BAD_DEPLOY      see `pauses`                     the run-book; the tasks run again; it pauses elsewhere (a new alert)
    TASK_CORRUPTED               the event                        the task runs again
    OFFSET_MOVED, OFFSET_RESET   the event                        a person
    GLOBAL_RECOVERY              GLOBAL_RECOVERY_STARTED          the instance is RUNNING, and no run-book waits for an approval
    GLOBAL_TOPIC_NOT_COMPACTED   the event, once per topic        the topic is compacted (`health`); a person
    INPUT_PARTITIONS_ADDED       the event, where no task reads   all partitions have a task (`health`); a person
                                 them; once per topic
    INSTANCE_DIED                the sensor on instances          the instance is RUNNING
    TABLE_DIFFERS                the check of a table             the check
    STATE_DIFFERS                an audit of the state            an audit

Every function works within the caller's transaction and is idempotent: an occurrence is identified by the event's id, or the
check's, and counts once.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from penstock.orchestration.alerts import alerts, pauses
from penstock.orchestration.alerts.alerts import NewAlert
from penstock.orchestration.database.models import Alert, AlertState, Event, Instance, RunBookRun, RunBookState, from_ms
from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.declarations.policies import GlobalRecoveryPolicy, RunBook, Severity, Start
from penstock.runtime.model.events import EventKind
from penstock.runtime.model.states import State

TASK_KINDS = (EventKind.TASK_PAUSED, EventKind.TASK_CORRUPTED, EventKind.OFFSET_MOVED, EventKind.OFFSET_RESET)
GLOBAL_KINDS = (
    EventKind.GLOBAL_RECOVERY_STARTED,
    EventKind.GLOBAL_RECOVERY_ENDED,
    EventKind.GLOBAL_TOPIC_NOT_COMPACTED,
    EventKind.INPUT_PARTITIONS_ADDED,
)
INPUT_PARTITIONS = EventKind.INPUT_PARTITIONS_ADDED.value
GLOBAL_RECOVERY = "GLOBAL_RECOVERY"
_NAMED = 3
"""Number of keys, or of partitions, in a title; the details have more."""
_WAITING = "; tasks that read it wait"
INSTANCE_DIED = "INSTANCE_DIED"
_RUN = ("run-book", "run_book_run", "waits_for_approval")
"""Details of an alert about the run-book that the policy proposed or started."""
_MENDED_BY_RUNNING = (EventKind.TASK_PAUSED.value, EventKind.TASK_CORRUPTED.value)
ACTOR = pauses.ACTOR


def of_tasks(session: Session, application: Application, events: Sequence[Event], at: datetime) -> list[RunBookRun]:
    """Open the alerts of these events; return the run-books that the policy starts, each reserved and in the database."""
    runs: list[RunBookRun] = []
    for event in events:
        if event.kind != EventKind.TASK_PAUSED.value:
            alerts.open_alert(session, _task_alert(event), actor=ACTOR, at=at)
            continue
        run = pauses.of_pause(session, application, event, at)
        if run is not None:
            runs.append(run)
    pauses.resolve_running(session, application, at, _MENDED_BY_RUNNING)
    return runs


def of_globals(session: Session, application: Application, events: Sequence[Event], at: datetime) -> list[RunBookRun]:
    """Open the alerts of these events, and resolve those on recoveries of instances that are RUNNING again. Return the run-books that the
    policy starts, each reserved and in the database."""
    runs: list[RunBookRun] = []
    for event in events:
        if event.kind == EventKind.GLOBAL_RECOVERY_STARTED.value:
            new = _recovery_alert(event, application.global_recovery)
            alert, opened = alerts.open_alert(session, new, actor=ACTOR, at=at)
            if not opened and alert.last_seen_at == event.at:
                run = {name: value for name, value in alert.detail.items() if name in _RUN}
                new = _recovery_alert(event, application.global_recovery, alert.detail)
                alert.title, alert.detail = alerts.as_title(new.title), {**new.detail, **run}  # from the last recovery
            runs += _restore(session, application, alert, event, at)
        elif event.kind == EventKind.GLOBAL_TOPIC_NOT_COMPACTED.value:
            alerts.open_alert(session, _compaction_alert(event, application), actor=ACTOR, at=at)
        elif event.kind == INPUT_PARTITIONS and event.payload.get("reason"):
            alerts.open_or_update(session, _partitions_alert(event), actor=ACTOR, at=at)
    for alert in alerts.unresolved(session, application=application.id, kinds=[GLOBAL_RECOVERY]):
        ended = _recovery_ended(session, application, alert)
        if ended is not None:
            _end(session, alert, ended, at)
    return runs


def _end(session: Session, alert: Alert, ended: str, at: datetime) -> None:
    """Resolve the alert of a recovery that is over, unless the policy's run-book waits for an approval: the rows are not there yet."""
    run = _run_of(session, alert)
    if run is not None and run.state == RunBookState.PROPOSED.value:
        alert.title = alert.title.replace(_WAITING, f"; {ended}")
        return
    if run is not None and run.state != RunBookState.REQUESTED.value:
        outcome = f"{run.run_book} {run.state}" + (f" ({run.reason})" if run.reason else "")
        alert.detail = {**alert.detail, "run-book": f"{outcome}: run {run.id}", "waits_for_approval": False}
        ended += f"; run-book {outcome}"
    alerts.resolve(session, alert, actor=ACTOR, at=at, resolution=ended)


def resolve_instance_alerts(session: Session, instance: Instance, at: datetime) -> None:
    """Resolve the alerts on the deaths of an instance that is RUNNING in another process."""
    for alert in alerts.unresolved(session, application=instance.application, kinds=[INSTANCE_DIED], instance=instance.name):
        if instance.state == State.RUNNING.value and instance.pid != alert.detail.get("pid"):
            alerts.resolve(session, alert, actor=ACTOR, at=at, resolution=f"runs again as process {instance.pid}")


def _task_alert(event: Event) -> NewAlert:
    payload = event.payload
    place = f"{payload.get('topic')}-{payload.get('partition')}"
    titles = {
        EventKind.TASK_CORRUPTED.value: f"task {event.task}: its state does not fit its changelog and is restored: {payload.get('reason')}",
        EventKind.OFFSET_MOVED.value: f"the committed offset of {place} is {payload.get('committed')}, not {payload.get('expected')} as "
        f"the instance left it: another program moved it while task {event.task} ran, where it counts for paused tasks only",
        EventKind.OFFSET_RESET.value: f"{place} continues at {payload.get('to')}, not at {payload.get('from')}, which is no longer there "
        f"(policy {payload.get('policy')}{_because(payload)}): records in between were not processed",
    }
    subject = str(event.task) if event.kind == EventKind.TASK_CORRUPTED.value else place
    return _event_alert(event, subject, titles[event.kind], task=event.task)


def _event_alert(
    event: Event, subject: str, title: str, *, kind: str | None = None, severity: Severity = Severity.WARN, task: str | None = None
) -> NewAlert:
    return NewAlert(
        occurrence=event.id,
        kind=kind or event.kind,
        severity=severity,
        application=event.application,
        instance=event.instance,
        task=task,
        subject=subject,
        title=title,
        detail=event.payload,
        seen_at=event.at,
    )


def _because(payload: Mapping[str, object]) -> str:
    reason = payload.get("reason")
    return f"; {reason}" if reason else ""


def _recovery_alert(event: Event, policy: GlobalRecoveryPolicy, known: Mapping[str, object] | None = None) -> NewAlert:
    """Return the alert of a recovery: its title says which records were deleted before they were read, and when at the earliest. `known`:
    details of the alert that it continues, whose losses are not over because the store is rebuilt once more."""
    payload = event.payload
    attempt, wait, current_ms = (payload.get(name) for name in ("attempt", "wait_seconds", "current_ms"))
    number = attempt if isinstance(attempt, int) else 1
    again = f" (recovery {number} in a row, after a wait of {wait:g} s)" if number > 1 and isinstance(wait, (int, float)) else ""
    store = f"{payload.get('store')} on {event.instance}"
    current = since = f"{from_ms(current_ms):%Y-%m-%d %H:%M:%S} UTC" if isinstance(current_ms, int) else None
    lost = {log: _records(offsets) for log, offsets in lost_offsets(event).items()}
    before = {} if known is None else known.get("lost")
    if known is not None:
        earlier = known.get("complete until")
        current = earlier if isinstance(earlier, str) else current
        if isinstance(before, dict) and before:
            since = current
            for log, records in before.items():
                later = lost.get(log, records)
                lost[log] = records if later in records else f"{records}, then {later}"
    lost = dict(sorted(lost.items(), key=lambda each: _by_partition(each[0])))
    gone = ", ".join(f"{records} of {log}" for log, records in list(lost.items())[:_NAMED])
    more = f", and of {len(lost) - _NAMED} more partitions" if len(lost) > _NAMED else ""
    # A record that is lost while the store is being rebuilt may be older than the time until which the store was complete.
    losses = f"; lost: {gone}{more}" + (f", written after {since}" if since else "") if gone else ""
    title = f"global store {store} is rebuilt from {payload.get('topic')}{again}: {payload.get('reason')}{losses}{_WAITING}"
    new = _event_alert(event, store, title, kind=GLOBAL_RECOVERY, severity=policy.severity(number))
    shown = {name: value for name, value in payload.items() if name != "current_ms"}
    return replace(new, detail={**shown, "lost": lost, "complete until": current})


def _restore(session: Session, application: Application, alert: Alert, event: Event, at: datetime) -> list[RunBookRun]:
    """Reserve the policy's run-book for the topic of a recovery that lost records: the run to start now, none if it waits for an approval.
    Instances that lost the same records share one run."""
    policy, topic = application.global_recovery, str(event.payload.get("topic"))
    if policy.run_book is RunBook.NONE or not lost_offsets(event) or alert.state == AlertState.RESOLVED.value:
        return []
    begun = [RunBookState.PROPOSED.value, RunBookState.REQUESTED.value, RunBookState.RUNNING.value]
    waiting = select(RunBookRun).where(RunBookRun.run_book == policy.run_book.value, RunBookRun.topic == topic, RunBookRun.state.in_(begun))
    answered = select(RunBookRun).where(RunBookRun.run_book == policy.run_book.value, RunBookRun.occurrence == event.id)
    run = next((found for query in (answered, waiting) if (found := session.scalar(query.limit(1))) is not None), None)
    if run is None:
        proposed = policy.start is Start.AFTER_APPROVAL
        run = RunBookRun(
            run_book=policy.run_book.value,
            application=application.id,
            subject=f"global topic {topic}",
            topic=topic,
            occurrence=event.id,
            by_policy=True,
            attempts=1,
            requested_by="policy",
            requested_at=at,
            state=(RunBookState.PROPOSED if proposed else RunBookState.REQUESTED).value,
        )
        session.add(run)
        session.flush()
    waits = run.state == RunBookState.PROPOSED.value
    how = "waits for approval" if waits else "is started by the policy"
    alert.detail = {**alert.detail, "run-book": f"{run.run_book} {how}: run {run.id}", "run_book_run": run.id, "waits_for_approval": waits}
    return [run] if run.state == RunBookState.REQUESTED.value else []


def _run_of(session: Session, alert: Alert) -> RunBookRun | None:
    """Return the run-book that the policy proposed or started for this alert."""
    number = alert.detail.get("run_book_run")
    return session.get(RunBookRun, number) if isinstance(number, int) else None


def _by_partition(log: str) -> tuple[str, int]:
    topic, _, partition = log.rpartition("-")
    return topic, int(partition) if partition.isdigit() else -1


def lost_offsets(event: Event) -> dict[str, range]:
    """Return the offsets that were deleted before a global store had read them, by topic and partition; empty if none are known."""
    lost = event.payload.get("lost")
    found = lost.items() if isinstance(lost, dict) else ()
    return {str(log): range(offsets["from"], offsets["to"]) for log, offsets in found}


def _records(offsets: range) -> str:
    return f"at most {len(offsets)} record{'s' * (len(offsets) != 1)} (offsets {offsets.start} to {offsets.stop - 1})"


def _compaction_alert(event: Event, application: Application) -> NewAlert:
    topic = str(event.payload.get("topic"))
    tool = application.connection.tool("kafka-configs")
    alter = f"{tool} --alter --entity-type topics --entity-name {shlex.quote(topic)} --add-config cleanup.policy=compact"
    title = (
        f"global topic {topic} is not compacted (cleanup.policy={event.payload.get('cleanup_policy')}): what retention deletes is "
        f"lost to new instances. {alter}"
    )
    new = _event_alert(event, topic, title)
    return replace(new, detail={**event.payload, "commands": [alter]})


def _partitions_alert(event: Event) -> NewAlert:
    payload = event.payload
    topic, read, partitions = (payload.get(name) for name in ("topic", "read", "partitions"))
    if payload.get("store") is None:
        what = f"input topic {topic} has {partitions} partitions, and {read} are read: records in the new ones are not processed"
    else:
        what = f"global topic {topic} has {partitions} partitions, and had {read}"
    title = f"{what} ({payload.get('reason')})"
    return _event_alert(event, str(topic), title, severity=Severity.ERROR)


def _recovery_ended(session: Session, application: Application, alert: Alert) -> str | None:
    """Return why a recovery is over: the instance was RUNNING after it began, or a short one has ended without a change of its state; None
    if it is not over."""
    began = session.get(Event, alerts.last_occurrence(session, alert))
    if began is None:
        return "its event is no longer known"
    query = (
        select(Event)
        .where(
            Event.application == application.id,
            Event.instance == began.instance,
            Event.sequence > began.sequence,
            Event.kind.in_([EventKind.INSTANCE_STATE.value, EventKind.GLOBAL_RECOVERY_ENDED.value]),
        )
        .order_by(Event.sequence)
    )
    seconds = ""
    for event in session.scalars(query):
        if event.kind == EventKind.GLOBAL_RECOVERY_ENDED.value and event.payload.get("store") == began.payload.get("store"):
            seconds = f" after {event.payload.get('records')} records in {event.payload.get('seconds')} s"
        elif event.payload.get("new") == State.RUNNING.value:
            return f"{began.instance} is RUNNING{seconds}"
    of_instance = (Event.application == application.id, Event.instance == began.instance, Event.kind == EventKind.INSTANCE_STATE.value)
    last = session.scalars(select(Event).where(*of_instance).order_by(Event.sequence.desc()).limit(1)).first()
    unchanged = seconds and last is not None and last.payload.get("new") == State.RUNNING.value
    return f"{began.instance} is RUNNING{seconds}" if unchanged else None


TABLE_DIFFERS, STATE_DIFFERS = "TABLE_DIFFERS", "STATE_DIFFERS"


@dataclass(frozen=True, slots=True)
class DifferenceCheck:
    """Result of a check that compares a table with its changelog, or a store with what its input gives (`kind`). `subject`: its name.
    `occurrence` identifies the check. `counts`: rows by kind of difference, empty or zeros if there is none. `first`: descriptions of the
    first rows; `location`: the table with all differing rows."""

    kind: str
    application: str
    subject: str
    occurrence: str
    counts: Mapping[str, int] = field(default_factory=dict)
    first: tuple[str, ...] = ()
    location: str = ""

    @property
    def differences(self) -> int:
        return sum(self.counts.values())


_WHAT = {
    TABLE_DIFFERS: ("table", "what its changelog says", "the table equals its changelog (check {})"),
    STATE_DIFFERS: ("store", "what its input gives", "the store equals what its input gives (audit {})"),
}


def of_check(session: Session, check: DifferenceCheck, *, actor: str, at: datetime) -> Alert | None:
    """Open or count the alert of a difference, and return it; resolve an open one if nothing differs."""
    what, expected, equal = _WHAT[check.kind]
    if check.differences:
        return alerts.open_or_update(session, _difference(check, what, expected, at), actor=actor, at=at)
    for alert in alerts.unresolved(session, application=check.application, kinds=[check.kind], subject=check.subject):
        alerts.resolve(session, alert, actor=actor, at=at, resolution=equal.format(check.occurrence))
    return None


def _difference(check: DifferenceCheck, what: str, expected: str, at: datetime) -> NewAlert:
    counts = ", ".join(f"{count} {kind}" for kind, count in check.counts.items() if count)
    return NewAlert(
        occurrence=f"{check.application}/{check.subject}/{check.kind}/{check.occurrence}",
        kind=check.kind,
        severity=Severity.ERROR,
        application=check.application,
        subject=check.subject,
        title=f"{what} {check.subject} is not {expected} ({counts}): {'; '.join(check.first[:_NAMED])}",
        detail={"counts": dict(check.counts), "differences": "\n".join(check.first), "all of them are in": check.location},
        seen_at=at,
    )
