"""Sensor on alerts: reports opened and resolved ones in Dagster's event log and in a check, and sends notifications."""

import dagster as dg
import msgspec

from penstock.orchestration.alerts import notifications
from penstock.orchestration.dagster import alert_check
from penstock.orchestration.dagster.resources import PenstockResource
from penstock.orchestration.database import audit
from penstock.sensors.ticks import INTERVAL_SECONDS


@dg.sensor(
    minimum_interval_seconds=INTERVAL_SECONDS,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Shows alerts that were opened or resolved in the event log and in the check `no_open_alerts`, and notifies people.",
)
def open_alerts(context: dg.SensorEvaluationContext, penstock: PenstockResource) -> dg.SensorResult:
    """Report changes of alerts. Uses only the database, so it works while a broker is down. Its cursor is the last reported state."""
    operations = penstock.operations
    seen = _parse(context.cursor)
    with operations.control_plane.reading() as session:
        news, now = alert_check.changed(session, seen or {})
    notifications.notify_pending(operations.control_plane, operations.applications.notifications, notifications.send, at=audit.now())
    if not news and seen is not None:
        return dg.SensorResult(skip_reason="nothing new")
    events: list[dg.AssetObservation | dg.AssetMaterialization | dg.AssetCheckEvaluation] = []
    events.extend(alert_check.observation(operations, alert) for alert in news)
    events.append(alert_check.evaluation(operations))
    return dg.SensorResult(asset_events=events, cursor=msgspec.json.encode(now, order="sorted").decode())


def _parse(cursor: str | None) -> dict[str, str] | None:
    """Return the state reported last, by number of the alert; None if nothing was reported yet."""
    if cursor is None:
        return None
    try:
        return msgspec.json.decode(cursor, type=dict[str, str])
    except msgspec.DecodeError:  # written by another version: report open alerts again
        return None
