"""Alerts in Dagster: a check of the asset `instances` that fails while an alert is open, and an entry in its event log for each alert that
is opened or resolved. They show the same details as `penstock alerts show`: the record, the error, and the next command.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import dagster as dg
from sqlalchemy import select
from sqlalchemy.orm import Session

from penstock.orchestration.alerts import alert_text, alerts
from penstock.orchestration.alerts.incidents import GLOBAL_RECOVERY
from penstock.orchestration.alerts.launchpad import launchpad_path
from penstock.orchestration.database.models import Alert, AlertState
from penstock.orchestration.declarations.policies import Severity
from penstock.orchestration.instances.operations import Operations
from penstock.runtime.model.events import EventKind

INSTANCES = dg.AssetKey("instances")
NO_OPEN_ALERTS = "no_open_alerts"
_ROWS = 100


def check_spec() -> dg.AssetCheckSpec:
    return dg.AssetCheckSpec(
        NO_OPEN_ALERTS,
        asset=INSTANCES,
        description="No alert is open or acknowledged (those that are only for information do not count). The metadata shows each, the "
        "record that is in the way, and what to do next.",
    )


def result(operations: Operations) -> dg.AssetCheckResult:
    """Return the check's current result."""
    with operations.control_plane.reading() as session:
        found = list(session.scalars(select(Alert).where(Alert.state != AlertState.RESOLVED.value).order_by(Alert.id)))
    failing = [alert for alert in found if Severity(alert.severity) is not Severity.INFO]
    errors = any(Severity(alert.severity) is Severity.ERROR for alert in failing)
    return dg.AssetCheckResult(
        asset_key=INSTANCES,
        check_name=NO_OPEN_ALERTS,
        passed=not failing,
        severity=dg.AssetCheckSeverity.ERROR if errors else dg.AssetCheckSeverity.WARN,
        description="; ".join(alert.title for alert in failing[:5]) or "no alert is open",
        metadata={"open_alerts": dg.MetadataValue.int(len(failing)), **_pages(failing), "alerts": _table(found[-_ROWS:])},
    )


def evaluation(operations: Operations) -> dg.AssetCheckEvaluation:
    """Return the check's current result, as a run or a sensor reports it."""
    return as_evaluation(result(operations))


def as_evaluation(found: dg.AssetCheckResult) -> dg.AssetCheckEvaluation:
    """Convert the result of a check of the asset `instances` to the form in which a run or a sensor reports it."""
    return dg.AssetCheckEvaluation(
        asset_key=INSTANCES,
        check_name=str(found.check_name),
        passed=found.passed,
        severity=found.severity,
        description=found.description,
        metadata=found.metadata,
    )


def observation(operations: Operations, alert: Alert) -> dg.AssetObservation:
    """Return an entry for the asset's event log with the current state of an alert."""
    partition = alert.instance if alert.instance in operations.applications.instances else None
    description = f"alert {alert.id} {alert.state}: {alert.title}" + (f" ({alert.resolution})" if alert.resolution else "")
    return dg.AssetObservation(asset_key=INSTANCES, partition=partition, description=description, metadata=metadata(alert))


def metadata(alert: Alert) -> Mapping[str, dg.MetadataValue]:
    """Return what an operator needs: the record's coordinates, its bytes decoded and as hex, the error, the next command."""
    shown: dict[str, dg.MetadataValue] = {
        "alert": dg.MetadataValue.int(alert.id),
        "severity": dg.MetadataValue.text(alert.severity),
        "subject": dg.MetadataValue.text(alert.subject),
        "seen": dg.MetadataValue.text(alert_text.seen(alert)),
    }
    for name, value in alert_text.facts(alert).items():
        shown[name] = dg.MetadataValue.md(f"```\n{value}\n```") if "\n" in value else dg.MetadataValue.text(value)
    first, *others = alert_text.next_commands(alert)
    shown["next_command"] = dg.MetadataValue.text(first)
    if others:
        shown["or"] = dg.MetadataValue.text("; ".join(others))
    link = launchpad(alert)
    if link is not None:
        shown["run_book"] = dg.MetadataValue.url(link)
    return shown


def launchpad(alert: Alert) -> str | None:
    """Return the path, within Dagster's UI, of the launchpad with the run-book for this alert filled in; None if no run-book fits."""
    if (run := alert_text.waits_for_approval(alert)) is not None:
        return launchpad_path("approve_run_book", "decide", {"run_book_run": run})
    if alert.kind == GLOBAL_RECOVERY and alert.detail.get("lost"):
        return launchpad_path("restore_global_topic", "restore", {"application": alert.application, "topic": alert.detail.get("topic")})
    if alert.kind != EventKind.TASK_PAUSED.value:
        return None
    task = {"application": alert.application, "task": alert.task}
    if alert.detail.get("reason") == "command":
        return launchpad_path("resume_task", "resume", task)
    return launchpad_path("skip_record", "skip", {**task, **{name: alert.detail.get(name) for name in ("topic", "partition", "offset")}})


def changed(session: Session, seen: Mapping[str, str]) -> tuple[Sequence[Alert], dict[str, str]]:
    """Return the alerts whose state has changed since `seen`, and the new value of `seen`: state by number, without resolved alerts."""
    now = {str(alert.id): alert.state for alert in alerts.unresolved(session)}
    news = sorted(int(number) for number in {*seen, *now} if seen.get(number) != now.get(number))
    found = [alert for number in news if (alert := session.get(Alert, number)) is not None]
    return found, now


def _pages(failing: Sequence[Alert]) -> dict[str, dg.MetadataValue]:
    """Return the details of the newest alert of the highest severity; the others are in the table."""
    if not failing:
        return {}
    worst = max(failing, key=lambda alert: (Severity(alert.severity).rank, alert.id))
    return dict(metadata(worst))


def _table(found: Sequence[Alert]) -> dg.TableMetadataValue:
    columns = {"alert": "int", "severity": "string", "state": "string", "kind": "string", "application": "string", "subject": "string"}
    columns |= {"what": "string", "first_seen": "string", "last_seen": "string", "count": "int", "next": "string"}
    records = [
        dg.TableRecord(
            {
                "alert": alert.id,
                "severity": alert.severity,
                "state": alert.state,
                "kind": alert.kind,
                "application": alert.application,
                "subject": alert.subject,
                "what": alert.title,
                "first_seen": alert.opened_at.isoformat(timespec="seconds"),
                "last_seen": alert.last_seen_at.isoformat(timespec="seconds"),
                "count": alert.count,
                "next": alert_text.next_commands(alert)[0],
            }
        )
        for alert in found
    ]
    return dg.MetadataValue.table(records=records, schema=dg.TableSchema([dg.TableColumn(name, kind) for name, kind in columns.items()]))
