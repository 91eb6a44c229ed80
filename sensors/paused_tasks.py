"""A task paused: an alert first, then the run-book, where the application's policy says so and its budget allows it."""

import dagster as dg

from orchestration import audit, incidents, pauses
from orchestration.applications import Application
from orchestration.control_plane.models import RunBookRun
from orchestration.cursor import Cursor
from orchestration.jobs import SkipRecordConfig, skip_record
from orchestration.resources import PenstockResource
from sensors.ticks import INTERVAL_SECONDS, for_each_application, skip_message


@dg.sensor(
    job=skip_record,
    minimum_interval_seconds=INTERVAL_SECONDS,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Opens an alert for each task that paused, and starts the run-book where the policy in `streams.toml` says so.",
)
def paused_tasks(context: dg.SensorEvaluationContext, penstock: PenstockResource) -> dg.SensorResult:
    """One run for each pause, never two: the run's key is the event's id. One that was killed is started again, under its next attempt."""
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
    assert run.task is not None and run.topic is not None and run.partition is not None and run.offset is not None  # a skip-record
    config = SkipRecordConfig(
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
        run_config=dg.RunConfig(ops={"skip": config}),
        tags={"penstock/application": run.application, "penstock/task": run.task},
    )
