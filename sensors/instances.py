"""Sensors on instances: start those that should run and do not, and newly declared ones; drain those no longer declared."""

from collections.abc import Mapping

import dagster as dg

from penstock.orchestration.dagster import instance_life
from penstock.orchestration.dagster.instance_partitions import follow_instances
from penstock.orchestration.dagster.jobs import title
from penstock.orchestration.dagster.resources import PenstockResource
from penstock.orchestration.database import audit
from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.instances.operations import Operations
from penstock.orchestration.instances.supervision import examine_instance
from penstock.runtime.model.errors import BrokerUnavailableError
from penstock.sensors.ticks import INTERVAL_SECONDS, failing_with_a_sentence, for_each_application, new_message, skip_message

DRAIN_JOB = "drain_instance"
ACTOR = "sensor instances_that_should_run"
_DRAIN_AGAIN_MINUTES = 5
_NAMED = 10
"""Instances that the line of a tick names, of those that do not simply run."""


def start_sensor(jobs: Mapping[str, "dg.UnresolvedAssetJobDefinition"]) -> dg.SensorDefinition:
    """Return the sensor that starts instances. `jobs`: the job of each application, by its id."""

    @dg.sensor(
        jobs=list(jobs.values()),
        minimum_interval_seconds=INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Starts instances that should run and do not; one that keeps dying is started with growing patience. Instances by "
        "which a number in `streams.toml` was raised are started too.",
    )
    @failing_with_a_sentence
    def instances_that_should_run(context: dg.SensorEvaluationContext, penstock: PenstockResource) -> dg.SensorResult:
        return evaluate(context, penstock.operations, {application: job.name for application, job in jobs.items()})

    return instances_that_should_run


def evaluate(context: dg.SensorEvaluationContext, operations: Operations, jobs: Mapping[str, str]) -> dg.SensorResult:
    """Request a run for each instance to start: it materialises the instance's partition. Report starts and ends that no run has
    reported. The cursor is the state that was reported last."""
    reasons: list[str] = []
    running = 0
    lives = instance_life.parse(context.cursor)
    events: list[dg.AssetMaterialization | dg.AssetObservation | dg.AssetCheckEvaluation] = []
    requests: list[dg.RunRequest] = []

    def act(application: Application) -> None:
        nonlocal running
        if application.id not in jobs:
            reasons.append(new_message(operations, application))
            return
        operations.follow_declaration(application, actor=ACTOR)
        _publish(operations, application, context)
        for name in operations.instances(application):
            at = audit.now()
            with operations.control_plane.writing() as session:
                verdict = examine_instance(session, application, name, operations.launcher, at)
            if verdict.start:
                key = f"{name}/{at.isoformat(timespec='milliseconds')}"  # the database counts the request itself once
                tags = {**title("start", name), "penstock/instance": name}
                requests.append(dg.RunRequest(job_name=jobs[application.id], partition_key=name, run_key=key, tags=tags))
            elif verdict.runs:
                running += 1
            else:
                reasons.append(f"{name}: {verdict.reason}")
        events.extend(instance_life.follow(context.instance, operations, application, lives, audit.now()))

    try:
        away = for_each_application(operations, act)
    finally:  # also if no broker answers
        follow_instances(context.instance, operations)
    said = [*(f"reported: {event.description}" for event in events), *reasons]
    more = [f"and {len(said) - _NAMED} more"] if len(said) > _NAMED else []
    runs = [f"{running} wanted instance{'s run' if running != 1 else ' runs'}"] if running else []
    reason = None if requests else skip_message(operations, away, "; ".join([*runs, *said[:_NAMED], *more]) or "no instance is declared")
    return dg.SensorResult(run_requests=requests, skip_reason=reason, cursor=instance_life.cursor_of(lives), asset_events=events)


@dg.sensor(
    job_name=DRAIN_JOB,
    minimum_interval_seconds=INTERVAL_SECONDS,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Drains instances that were taken out of `streams.toml`: others learn their tasks, then they end.",
)
@failing_with_a_sentence
def instances_no_longer_declared(context: dg.SensorEvaluationContext, penstock: PenstockResource) -> dg.SensorResult:
    """Request a run for each instance to drain; request it again after some minutes if the run was killed."""
    operations = penstock.operations
    at = audit.now()
    slot = at.replace(minute=at.minute // _DRAIN_AGAIN_MINUTES * _DRAIN_AGAIN_MINUTES).isoformat(timespec="minutes")
    requests: list[dg.RunRequest] = []
    for application in operations.applications.applications:
        for name in operations.retired(application):  # it is loaded: it had instances before the file was changed
            config = dg.RunConfig(ops={"drain": {"config": {"instance": name, "application": application.id}}})
            tags = {**title("drain", name), "penstock/instance": name}
            requests.append(dg.RunRequest(run_key=f"drain/{name}/{slot}", run_config=config, tags=tags))
    reason = skip_message(operations, [], "every instance that is wanted is declared, or was added by hand")
    return dg.SensorResult(run_requests=requests, skip_reason=None if requests else reason)


def _publish(operations: Operations, application: Application, context: dg.SensorEvaluationContext) -> None:
    try:
        operations.publish_wanted(application)
    except BrokerUnavailableError as error:
        context.log.warning(str(error))
