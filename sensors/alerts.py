"""Sensors on events and alerts: they open alerts, start the run-books that the policy and its budget allow, resolve alerts when the cause
is gone, and report them in Dagster and by notifications."""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime

import dagster as dg
import msgspec
from sqlalchemy.orm import Session

from penstock.orchestration.alerts import incidents, notifications, pauses
from penstock.orchestration.dagster import alert_check
from penstock.orchestration.dagster.jobs import APPLICATION, title
from penstock.orchestration.dagster.resources import PenstockResource
from penstock.orchestration.database import audit
from penstock.orchestration.database.models import Event, RunBookRun
from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.declarations.policies import RunBook
from penstock.orchestration.run_books.inputs import RestoreGlobalTopicInputs, SkipRecordInputs
from penstock.runtime.model.events import EventKind
from penstock.sensors.event_cursor import Cursor
from penstock.sensors.ticks import INTERVAL_SECONDS, failing_with_a_sentence, for_each_application, is_loaded, new_message, skip_message

_POLICY = "the policy in streams.toml"
_NAMED = 3
"""Alerts that the line of a tick names."""


@dg.sensor(
    job_name=SkipRecordInputs.JOB,
    minimum_interval_seconds=INTERVAL_SECONDS,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Opens an alert for each task that paused, and starts the run-book where the policy in `streams.toml` says so.",
)
@failing_with_a_sentence
def paused_tasks(context: dg.SensorEvaluationContext, penstock: PenstockResource) -> dg.SensorResult:
    """Request exactly one run per pause: the run's key is the event's id. A killed run is started again, under its next attempt."""
    nothing = "no task was paused, resumed or damaged since the last tick"
    return _start_runs(context, penstock, incidents.TASK_KINDS, incidents.of_tasks, RunBook.SKIP_RECORD, _skip_request, "tasks", nothing)


def _start_runs(
    context: dg.SensorEvaluationContext,
    penstock: PenstockResource,
    kinds: Collection[EventKind],
    open_alerts: Callable[[Session, Application, Sequence[Event], datetime], list[RunBookRun]],
    run_book: RunBook,
    request: Callable[[RunBookRun], dg.RunRequest],
    subject: str,
    nothing: str,
) -> dg.SensorResult:
    """Open the alerts of the events since the last tick, and request the policy's new and unfinished runs of a run-book."""
    operations = penstock.operations
    cursor = Cursor.parse(context.cursor)
    requests: list[dg.RunRequest] = []
    new: list[str] = []
    seen = 0

    def act(application: Application) -> None:
        nonlocal cursor, seen
        if not is_loaded(context, application):  # its events are read when it is
            new.append(new_message(operations, application))
            return
        with operations.control_plane.writing() as session:
            events, cursor = cursor.read(session, application.id, kinds)
            at = audit.now()
            runs = [*open_alerts(session, application, events, at), *pauses.unfinished(session, application, at, run_book)]
        seen += len(events)
        _end_killed(context.instance, runs)
        requests.extend(map(request, runs))

    away = for_each_application(operations, act)
    news = f"{seen} new events of {subject}, none needs a run-book" if seen else nothing
    reason = None if requests else skip_message(operations, [*new, *away], news)
    return dg.SensorResult(run_requests=requests, cursor=str(cursor), skip_reason=reason)


def _skip_request(run: RunBookRun) -> dg.RunRequest:
    assert run.task is not None and run.topic is not None and run.partition is not None and run.offset is not None  # set for skip-record
    inputs = SkipRecordInputs(
        application=run.application,
        task=run.task,
        topic=run.topic,
        partition=run.partition,
        offset=run.offset,
        reason=_POLICY,
        run_book_run=run.id,
        occurrence=run.occurrence,
    )
    return _run_request(run, inputs, {APPLICATION: run.application, "penstock/task": run.task})


def _end_killed(dagster: dg.DagsterInstance, runs: Sequence[RunBookRun]) -> None:
    """End the previous Dagster runs of run-books that are started again: they were killed, and would look as if they still ran."""
    for run in runs:
        previous = None if run.dagster_run_id is None else dagster.get_run_by_id(run.dagster_run_id)
        if previous is not None and not previous.is_finished:
            message = f"its process was killed: run-book {run.id} is started again, attempt {run.attempts}"
            dagster.report_run_failed(previous, message)


def _run_request(run: RunBookRun, inputs: SkipRecordInputs | RestoreGlobalTopicInputs, tags: Mapping[str, str]) -> dg.RunRequest:
    return dg.RunRequest(
        run_key=run.occurrence if run.attempts == 1 else f"{run.occurrence}#{run.attempts}",
        run_config={"ops": {inputs.OP: {"config": inputs.model_dump()}}},
        tags={**title(run.run_book, run.subject), **tags},
    )


@dg.sensor(
    job_name=RestoreGlobalTopicInputs.JOB,
    minimum_interval_seconds=INTERVAL_SECONDS,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Opens an alert when an instance rebuilds a global store, and resolves it when the instance is RUNNING. Starts the "
    "run-book for a topic that has lost records, where the policy in `streams.toml` says so.",
)
@failing_with_a_sentence
def global_recoveries(context: dg.SensorEvaluationContext, penstock: PenstockResource) -> dg.SensorResult:
    """An instance rebuilds the store by itself. Request one run per loss of records, like `paused_tasks`."""
    book, nothing = RunBook.RESTORE_GLOBAL_TOPIC, "no global store was rebuilt since the last tick"
    return _start_runs(context, penstock, incidents.GLOBAL_KINDS, incidents.of_globals, book, _restore_request, "global stores", nothing)


def _restore_request(run: RunBookRun) -> dg.RunRequest:
    assert run.topic is not None  # set for restore-global-topic
    inputs = RestoreGlobalTopicInputs(
        application=run.application, topic=run.topic, reason=_POLICY, run_book_run=run.id, occurrence=run.occurrence
    )
    return _run_request(run, inputs, {APPLICATION: run.application})


@dg.sensor(
    minimum_interval_seconds=INTERVAL_SECONDS,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Shows alerts that were opened or resolved in the event log and in the check `no_open_alerts`, and notifies people.",
)
@failing_with_a_sentence
def open_alerts(context: dg.SensorEvaluationContext, penstock: PenstockResource) -> dg.SensorResult:
    """Report changes of alerts. Uses only the database, so it works while a broker is down. Its cursor is the last reported state."""
    operations = penstock.operations
    seen = _parse(context.cursor)
    with operations.control_plane.reading() as session:
        news, now = alert_check.changed(session, seen or {})
    notifications.notify_pending(operations.control_plane, operations.applications.notifications, notifications.send, at=audit.now())
    if not news and seen is not None:
        return dg.SensorResult(skip_reason=skip_message(operations, [], f"{_open(len(now))}, as at the last tick"))
    events: list[dg.AssetObservation | dg.AssetMaterialization | dg.AssetCheckEvaluation] = []
    events.extend(alert_check.observation(operations, alert) for alert in news)
    changed = {alert.application for alert in news}
    for application in operations.applications.applications:
        if seen is None or application.id in changed:
            events.append(alert_check.evaluation(operations, application.id))
    summary = "; ".join(f"reported alert {alert.id} {alert.state}: {alert.title}" for alert in news[:_NAMED]) or _open(len(now))
    line = skip_message(operations, [], summary + (f"; and {len(news) - _NAMED} more" if len(news) > _NAMED else ""))
    return dg.SensorResult(asset_events=events, cursor=msgspec.json.encode(now, order="sorted").decode(), skip_reason=line)


def _open(number: int) -> str:
    return f"{number} alert{' is' if number == 1 else 's are'} open or acknowledged"


def _parse(cursor: str | None) -> dict[str, str] | None:
    """Return the state reported last, by number of the alert; None if nothing was reported yet."""
    if cursor is None:
        return None
    try:
        return msgspec.json.decode(cursor, type=dict[str, str])
    except msgspec.DecodeError:  # written by another version: report open alerts again
        return None
