"""Alerts in Dagster: a check of each application's asset that fails while an alert is open, and an entry in its event log for each alert
that is opened or resolved. They show the same details as `penstock alerts show`: the record, the error, and the next command.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import quote

import dagster as dg
from sqlalchemy import select
from sqlalchemy.orm import Session

from penstock.orchestration.alerts import alert_text, alerts
from penstock.orchestration.alerts.incidents import GLOBAL_RECOVERY, INSTANCE_DIED
from penstock.orchestration.alerts.launchpad import launchpad_path
from penstock.orchestration.dagster import live_metadata
from penstock.orchestration.dagster.names import instances_key
from penstock.orchestration.database.models import Alert, AlertState
from penstock.orchestration.declarations.policies import Severity
from penstock.orchestration.instances.operations import Operations
from penstock.orchestration.run_books.inputs import (
    RestartInstanceInputs,
    RestoreGlobalTopicInputs,
    ResumeTaskInputs,
    RunBookInputs,
    SkipRecordInputs,
)
from penstock.runtime.model.events import EventKind

NO_OPEN_ALERTS = "no_open_alerts"
_ROWS = 100
_REPAIR = 6
"""Number of the section of `alert_text.sections` that the links follow."""
_LONG = ("4.1 stack", "4.3 log excerpt")
"""Sections that the page opens by a click, as it does with all Markdown; text is shown at once, in one line."""
_DECISIONS = {
    "approve": "execute the run-book that waits",
    "reject": "do not execute it; the alert stays open",
    "repair": "execute the run-book that fits",
    "try": "a dry run: say what each step would do",
    "rehearse": "if the code is wrong: run the record with the corrected code on a copy of the task's state, before it is deployed",
}
"""Links that open a form which is filled in. They are longer than a page is wide, and Dagster shows a link of metadata as its address, so
they are in one Markdown text, with names."""
_TRIED = [("dry run", "nothing is changed; each step says what it would do:")]
_REJECTED = [("reject", "the run-book is not executed. Write a reason and your name: the alert shows them")]
"""Comments of forms that execute nothing."""


def check_spec(application_id: str) -> dg.AssetCheckSpec:
    return dg.AssetCheckSpec(
        NO_OPEN_ALERTS,
        asset=instances_key(application_id),
        description="No alert is open or acknowledged (those that are only for information do not count). The metadata shows each, the "
        "record that is in the way, and what to do next.",
    )


def result(operations: Operations, application_id: str) -> dg.AssetCheckResult:
    """Return the current result of an application's check."""
    unresolved = select(Alert).where(Alert.application == application_id, Alert.state != AlertState.RESOLVED.value)
    with operations.control_plane.reading() as session:
        found = list(session.scalars(unresolved.order_by(Alert.id)))
    failing = sorted((alert for alert in found if Severity(alert.severity) is not Severity.INFO), key=_urgency)
    errors = any(Severity(alert.severity) is Severity.ERROR for alert in failing)
    return dg.AssetCheckResult(
        asset_key=instances_key(application_id),
        check_name=NO_OPEN_ALERTS,
        passed=not failing,
        severity=dg.AssetCheckSeverity.ERROR if errors else dg.AssetCheckSeverity.WARN,
        description=live_metadata.sentence("; ".join(alert.title for alert in failing[:5])) or "no alert is open",
        metadata={**_pages(failing), "8 all alerts": _table(found[-_ROWS:]), "open_alerts": dg.MetadataValue.int(len(failing))},
    )


def evaluation(operations: Operations, application_id: str) -> dg.AssetCheckEvaluation:
    """Return the current result of an application's check, as a run or a sensor reports it."""
    return as_evaluation(result(operations, application_id))


def as_evaluation(found: dg.AssetCheckResult) -> dg.AssetCheckEvaluation:
    """Convert the result of a check to the form in which a run or a sensor reports it."""
    assert found.asset_key is not None  # every check names its application's asset
    return dg.AssetCheckEvaluation(
        asset_key=found.asset_key,
        check_name=str(found.check_name),
        passed=found.passed,
        severity=found.severity,
        description=found.description,
        metadata=found.metadata,
    )


def observation(operations: Operations, alert: Alert) -> dg.AssetObservation:
    """Return an entry for the asset's event log with the current state of an alert."""
    partition = alert.instance if alert.instance in operations.applications.instances else None
    more = alert.resolution or alert.detail.get("run-book")
    description = f"alert {alert.id} {alert.state}: {alert.title}" + (f" ({more})" if more else "")
    return dg.AssetObservation(
        asset_key=instances_key(alert.application),
        partition=partition,
        description=live_metadata.sentence(description),
        metadata=metadata(alert),
    )


def metadata(alert: Alert) -> Mapping[str, dg.MetadataValue]:
    """Return what an operator needs, in the order in which it is needed (`alert_text.sections`), and a link for each decision."""
    shown: dict[str, dg.MetadataValue] = {}
    for name, value in alert_text.sections(alert).items():
        shown[name] = live_metadata.lines(value) if name in _LONG else live_metadata.text(value.replace("\n", " · "))
    if alert.state == AlertState.RESOLVED.value:  # the page of the instance keeps it until the next alert
        shown["1 what"] = live_metadata.text(f"resolved: {alert.title}")
    found = links(alert)
    # One name in all states: Dagster shows the newest entry of each name, so links would outlive their alert under a name of their own.
    name = f"{_REPAIR}.1 decisions"
    if decisions := [f"- [{each}]({found[each]}): {what}" for each, what in _DECISIONS.items() if each in found]:
        shown[name] = dg.MetadataValue.md("\n".join(decisions))
    else:
        shown[name] = dg.MetadataValue.text("none: the alert is resolved" if alert.state == AlertState.RESOLVED.value else "none")
    if "instance" in found:
        shown[f"{_REPAIR}.2 instance"] = live_metadata.link(found["instance"], str(alert.instance))
    return dict(sorted(shown.items()))


def links(alert: Alert) -> dict[str, str]:
    """Return the paths, within Dagster's UI, of the decisions on this alert, by name: forms that are filled in, and the instance's page."""
    found: dict[str, str] = {}
    if alert.state != AlertState.RESOLVED.value:
        run, repair = alert_text.waits_for_approval(alert), _repair(alert)
        steps = [] if repair is None else [(f"step {step.name}", step.what) for step in repair[0].BOOK.STEPS]
        if run is not None:
            for decision, said in (("approve", steps), ("reject", _REJECTED)):
                asked = {"run_book_run": run, "decision": decision, "reason": "", "by": ""}
                found[decision] = _launchpad(alert, "approve_run_book", "decide", asked, said)
        if repair is not None:
            declared, values = repair
            if run is None:
                found["repair"] = _launchpad(alert, declared.JOB, declared.OP, {**values, "reason": "", "by": "", "dry_run": False}, steps)
            found["try"] = _launchpad(alert, declared.JOB, declared.OP, {**values, "reason": "", "dry_run": True}, [*_TRIED, *steps])
        if alert.kind == EventKind.TASK_PAUSED.value and alert.detail.get("reason") != "command":
            corrected = {"application": alert.application, "task": alert.task, "factory": "", "records": 10}
            found["rehearse"] = _launchpad(alert, "rehearse_repair", "repair", corrected)
    if alert.instance:
        asset = quote("/".join(instances_key(alert.application).path))
        found["instance"] = f"/assets/{asset}?view=partitions&partition={quote(alert.instance, safe='')}"
    return found


def _repair(alert: Alert) -> tuple[type[RunBookInputs], Mapping[str, object]] | None:
    """Return the run-book that fits this alert, and its inputs; None if none does."""
    if alert.kind == GLOBAL_RECOVERY and alert.detail.get("lost"):
        return RestoreGlobalTopicInputs, {"application": alert.application, "topic": alert.detail.get("topic")}
    if alert.kind == INSTANCE_DIED:
        return RestartInstanceInputs, {"instance": alert.instance}
    if alert.kind != EventKind.TASK_PAUSED.value:
        return None
    task = {"application": alert.application, "task": alert.task}
    if alert.detail.get("reason") == "command":
        return ResumeTaskInputs, task
    return SkipRecordInputs, {**task, **{name: alert.detail.get(name) for name in ("topic", "partition", "offset")}}


def _launchpad(alert: Alert, job: str, op: str, config: Mapping[str, object], steps: Sequence[tuple[str, str]] = ()) -> str:
    """Return the path of a launchpad whose form is filled in, with comments on the alert and on what the steps will do."""
    said: list[tuple[str, object]] = [
        ("alert", f"{alert.id}, {alert.kind} {alert.subject}"),
        ("task", alert.task),
        ("error", alert.detail.get("error")),
    ]
    facts = alert_text.facts(alert)
    said += [(f"first bytes of the {part}", facts.get(part)) for part in ("key", "value")]
    return launchpad_path(job, op, config, facts=[*said, *steps])


def changed(session: Session, seen: Mapping[str, str]) -> tuple[Sequence[Alert], dict[str, str]]:
    """Return the alerts that have changed since `seen`, and the new value of `seen`: state and run-book by number, without resolved
    alerts."""
    now = {str(alert.id): f"{alert.state} {alert.detail.get('run-book', '')}".rstrip() for alert in alerts.unresolved(session)}
    news = sorted(int(number) for number in {*seen, *now} if seen.get(number) != now.get(number))
    found = [alert for number in news if (alert := session.get(Alert, number)) is not None]
    return found, now


def _pages(failing: Sequence[Alert]) -> dict[str, dg.MetadataValue]:
    """Return the details of the newest alert of the highest severity; the others are in the table."""
    if not failing:
        return {}
    return dict(metadata(min(failing, key=_urgency)))


def _urgency(alert: Alert) -> tuple[int, int]:
    """Return a key that sorts the most severe alert first, of several the newest."""
    return -Severity(alert.severity).rank, -alert.id


def _table(found: Sequence[Alert]) -> dg.TableMetadataValue:
    """Return the alerts, the most severe first, in columns that a page of 1440 pixels has room for."""
    columns = {"alert": "int", "severity": "string", "since": "string", "what": "string", "next": "string"}
    records = [
        dg.TableRecord(
            {
                "alert": alert.id,
                "severity": alert.severity + (" (acknowledged)" if alert.state == AlertState.ACKNOWLEDGED.value else ""),
                "since": alert_text.seen(alert),
                "what": f"{alert.application}: {alert.title}",
                "next": alert_text.next_commands(alert)[0],
            }
        )
        for alert in sorted(found, key=_urgency)
    ]
    return live_metadata.table(columns, records)
