"""Sensor on global stores: alerts while one is rebuilt or if its topic is not compacted, resolved when the instance is RUNNING again."""

import dagster as dg

from penstock.orchestration.alerts import incidents
from penstock.orchestration.dagster.resources import PenstockResource
from penstock.orchestration.database import audit
from penstock.orchestration.declarations.applications import Application
from penstock.sensors.event_cursor import Cursor
from penstock.sensors.ticks import INTERVAL_SECONDS, for_each_application, skip_message


@dg.sensor(
    minimum_interval_seconds=INTERVAL_SECONDS,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Opens an alert when an instance rebuilds a global store, and resolves it when the instance is RUNNING.",
)
def global_recoveries(context: dg.SensorEvaluationContext, penstock: PenstockResource) -> dg.SensorResult:
    """Start no runs: an instance rebuilds the store by itself; the alert only informs operators."""
    operations = penstock.operations
    cursor = Cursor.parse(context.cursor)
    seen = 0

    def act(application: Application) -> None:
        nonlocal cursor, seen
        with operations.control_plane.writing() as session:
            events, cursor = cursor.read(session, application.id, incidents.GLOBAL_KINDS)
            incidents.of_globals(session, application, events, audit.now())
        seen += len(events)

    away = for_each_application(operations, act)
    return dg.SensorResult(cursor=str(cursor), skip_reason=skip_message(away, f"{seen} new events" if seen else "nothing new"))
