"""What should run and does not is started again."""

import dagster as dg

from orchestration import audit
from orchestration.applications import Application, Applications
from orchestration.operations import Operations
from orchestration.resources import PenstockResource
from orchestration.supervision import examine_instance
from runtime.errors import BrokerUnavailableError
from sensors.ticks import INTERVAL_SECONDS, for_each_application, skip_message

START_JOB = "start_instances"


@dg.sensor(
    job_name=START_JOB,
    minimum_interval_seconds=INTERVAL_SECONDS,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Starts instances that should run and do not; one that keeps dying is started with growing patience.",
)
def instances_that_should_run(context: dg.SensorEvaluationContext, penstock: PenstockResource) -> dg.SensorResult:
    """A run for each instance to start: it materialises the instance's partition."""
    operations = penstock.operations
    reasons: list[str] = []
    requests: list[dg.RunRequest] = []

    def act(application: Application) -> None:
        _publish(operations, application, context)
        for name in application.instances:
            at = audit.now()
            with operations.control_plane.writing() as session:
                verdict = examine_instance(session, application, name, operations.launcher, at)
            if verdict.start:
                key = f"{name}/{at.isoformat(timespec='milliseconds')}"  # the request itself is counted once, in the database
                requests.append(dg.RunRequest(partition_key=name, run_key=key, tags={"penstock/instance": name}))
            else:
                reasons.append(f"{name}: {verdict.reason}")

    away = for_each_application(operations, act)
    reason = None if requests else skip_message(away, "; ".join(reasons) or _nothing_declared(operations.applications))
    return dg.SensorResult(run_requests=requests, skip_reason=reason)


def _publish(operations: Operations, application: Application, context: dg.SensorEvaluationContext) -> None:
    try:
        operations.publish_wanted(application)
    except BrokerUnavailableError as error:
        context.log.warning(str(error))


def _nothing_declared(applications: Applications) -> str:
    return f"no instance is declared in {applications.source}"
