"""Alerts as they are opened and resolved, by whoever does it: shown in Dagster's event log and in a check, and told to people."""

import dagster as dg
import msgspec

from orchestration import audit, dagster_alerts, notifications
from orchestration.resources import PenstockResource
from sensors.ticks import INTERVAL_SECONDS


@dg.sensor(
    minimum_interval_seconds=INTERVAL_SECONDS,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Shows alerts that were opened or resolved in the event log and in the check `no_open_alerts`, and notifies people.",
)
def open_alerts(context: dg.SensorEvaluationContext, penstock: PenstockResource) -> dg.SensorResult:
    """Reads the database alone, so it works while a broker is away. Its cursor is what it showed last."""
    operations = penstock.operations
    seen = _parse(context.cursor)
    with operations.control_plane.reading() as session:
        news, now = dagster_alerts.changed(session, seen or {})
    notifications.notify_pending(operations.control_plane, operations.applications.notifications, notifications.Apprise(), at=audit.now())
    if not news and seen is not None:
        return dg.SensorResult(skip_reason="nothing new")
    events: list[dg.AssetObservation | dg.AssetMaterialization | dg.AssetCheckEvaluation] = []
    events.extend(dagster_alerts.observation(operations, alert) for alert in news)
    events.append(dagster_alerts.evaluation(operations))
    return dg.SensorResult(asset_events=events, cursor=msgspec.json.encode(now, order="sorted").decode())


def _parse(cursor: str | None) -> dict[str, str] | None:
    """What was shown last: state by number of the alert. None if nothing ever was."""
    if cursor is None:
        return None
    try:
        return msgspec.json.decode(cursor, type=dict[str, str])
    except msgspec.DecodeError:  # another version's: what is open is shown once more
        return None
