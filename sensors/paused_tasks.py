"""Sensor on paused tasks: opens an alert, then starts the run-book if the application's policy and its budget allow it."""

import dagster as dg

from penstock.orchestration.alerts import incidents, pauses
from penstock.orchestration.dagster.jobs import RUN_BOOK_JOBS
from penstock.orchestration.dagster.resources import PenstockResource
from penstock.orchestration.database import audit
from penstock.orchestration.database.models import RunBookRun
from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.run_books.inputs import SkipRecordInputs
from penstock.sensors.event_cursor import Cursor
from penstock.sensors.ticks import INTERVAL_SECONDS, for_each_application, skip_message


@dg.sensor(
    job=RUN_BOOK_JOBS[SkipRecordInputs],
    minimum_interval_seconds=INTERVAL_SECONDS,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Opens an alert for each task that paused, and starts the run-book where the policy in `streams.toml` says so.",
)
def paused_tasks(context: dg.SensorEvaluationContext, penstock: PenstockResource) -> dg.SensorResult:
    """Request exactly one run per pause: the run's key is the event's id. A killed run is started again, under its next attempt."""
    operations = penstock.operations
    cursor = Cursor.parse(context.cursor)
    requests: list[dg.RunRequest] = []
    seen = 0

    def act(application: Application) -> None:
        nonlocal cursor, seen
        with operations.control_plane.writing() as session:
            events, cursor = cursor.read(session, application.id, incidents.TASK_KINDS)
            at = audit.now()
            runs = [*incidents.of_tasks(session, application, events, at), *pauses.unfinished(session, application, at)]
        seen += len(events)
        requests.extend(_request(run) for run in runs)

    away = for_each_application(operations, act)
    reason = None if requests else skip_message(away, f"{seen} new events, none needs a run-book" if seen else "nothing new")
    return dg.SensorResult(run_requests=requests, cursor=str(cursor), skip_reason=reason)


def _request(run: RunBookRun) -> dg.RunRequest:
    assert run.task is not None and run.topic is not None and run.partition is not None and run.offset is not None  # set for skip-record
    inputs = SkipRecordInputs(
        application=run.application,
        task=run.task,
        topic=run.topic,
        partition=run.partition,
        offset=run.offset,
        reason="the policy in streams.toml",
        run_book_run=run.id,
        occurrence=run.occurrence,
    )
    return dg.RunRequest(
        run_key=run.occurrence if run.attempts == 1 else f"{run.occurrence}#{run.attempts}",
        run_config={"ops": {SkipRecordInputs.OP: {"config": inputs.model_dump()}}},
        tags={"penstock/application": run.application, "penstock/task": run.task},
    )
