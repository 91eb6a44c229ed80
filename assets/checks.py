"""Checks of the asset `instances`. A check belongs to the asset, not to a partition: it lists everything and fails on the worst.

They are evaluated with every materialisation, and each minute by a schedule. The schedule starts a job whose op computes the checks:
Dagster would otherwise want to know for which partition.
"""

from collections.abc import Iterator, Sequence

import dagster as dg

from assets.instances import INSTANCES
from orchestration.applications import Severity
from orchestration.audit import now
from orchestration.health import Health, InstanceHealth, TaskHealth, examine
from orchestration.operations import Operations
from orchestration.resources import PenstockResource
from runtime.errors import BrokerUnavailableError

FRESHNESS, LIVENESS = "checkpoint_freshness", "instances_alive"


@dg.multi_asset_check(
    name="instances_health",
    specs=[
        dg.AssetCheckSpec(
            FRESHNESS,
            asset=INSTANCES,
            description="The oldest work that is in no checkpoint is younger than the limits in `streams.toml`; a row for each task.",
        ),
        dg.AssetCheckSpec(
            LIVENESS, asset=INSTANCES, description="Every instance that is wanted has said something in the last 30 seconds."
        ),
    ],
)
def instances_health(context: dg.AssetCheckExecutionContext, penstock: PenstockResource) -> Iterator[dg.AssetCheckResult]:
    """Both checks, as part of a run that materialises instances."""
    yield from health_results(look(penstock.operations, context.log))


def look(operations: Operations, log: dg.DagsterLogManager) -> Health:
    """The health of all, by what is on Kafka now; where no broker answers, by what was known last, which then grows old by itself."""
    for application in operations.applications.applications:
        try:
            with operations.feed(application) as feed:
                feed.step()
        except BrokerUnavailableError as error:
            log.warning(str(error))
    return examine(operations.applications, operations.control_plane, now())


def health_results(health: Health) -> Sequence[dg.AssetCheckResult]:
    """The two checks' results."""
    tasks = [f"{task.application} {task.task}: {task.problem}" for task in health.tasks if task.problem]
    oldest = health.oldest_checkpoint_s
    instances = [f"{instance.instance}: {instance.problem}" for instance in health.instances if instance.problem]
    return (
        dg.AssetCheckResult(
            asset_key=INSTANCES,
            check_name=FRESHNESS,
            passed=health.freshness is Severity.INFO,
            severity=_severity(health.freshness),
            description=_summary(tasks, len(health.tasks), "tasks"),
            metadata={
                **({} if oldest is None else {"oldest_checkpoint_age_s": dg.MetadataValue.float(round(oldest, 1))}),
                "oldest_unsaved_s": dg.MetadataValue.float(round(health.oldest_unsaved_s, 1)),
                "restore_debt": dg.MetadataValue.int(health.restore_debt),
                "tasks": _tasks_table(health.tasks),
            },
        ),
        dg.AssetCheckResult(
            asset_key=INSTANCES,
            check_name=LIVENESS,
            passed=health.liveness is Severity.INFO,
            severity=_severity(health.liveness),
            description=_summary(instances, len(health.instances), "instances"),
            metadata={"instances": _instances_table(health.instances)},
        ),
    )


def _severity(severity: Severity) -> dg.AssetCheckSeverity:
    return dg.AssetCheckSeverity.ERROR if severity is Severity.ERROR else dg.AssetCheckSeverity.WARN


def _summary(problems: Sequence[str], count: int, what: str) -> str:
    return "; ".join(problems) if problems else f"{count} {what}, all well"


def _tasks_table(tasks: Sequence[TaskHealth]) -> dg.TableMetadataValue:
    columns = {"application": "string", "instance": "string", "task": "string", "kind": "string", "state": "string", "lag": "int"}
    columns |= {"checkpoint_age_s": "float", "unsaved_s": "float", "severity": "string", "problem": "string"}
    records = [
        dg.TableRecord(
            {
                "application": task.application,
                "instance": task.instance,
                "task": task.task,
                "kind": task.kind,
                "state": task.state,
                "lag": task.lag,
                "checkpoint_age_s": None if task.checkpoint_age_s is None else round(task.checkpoint_age_s, 1),
                "unsaved_s": round(task.unsaved_s, 1),
                "severity": task.severity.value,
                "problem": task.problem,
            }
        )
        for task in tasks
    ]
    return dg.MetadataValue.table(records=records, schema=_schema(columns))


def _instances_table(instances: Sequence[InstanceHealth]) -> dg.TableMetadataValue:
    columns = {"application": "string", "instance": "string", "wanted": "bool", "state": "string", "silent_s": "float", "tasks": "int"}
    columns |= {"severity": "string", "problem": "string"}
    records = [
        dg.TableRecord(
            {
                "application": instance.application,
                "instance": instance.instance,
                "wanted": instance.wanted,
                "state": instance.state,
                "silent_s": None if instance.silent_s is None else round(instance.silent_s, 1),
                "tasks": instance.tasks,
                "severity": instance.severity.value,
                "problem": instance.problem,
            }
        )
        for instance in instances
    ]
    return dg.MetadataValue.table(records=records, schema=_schema(columns))


def _schema(columns: dict[str, str]) -> dg.TableSchema:
    return dg.TableSchema(columns=[dg.TableColumn(name, kind) for name, kind in columns.items()])


@dg.op(description="Computes the checks of the asset `instances`: every instance and task, the worst decides.")
def compute_instance_checks(context: dg.OpExecutionContext, penstock: PenstockResource) -> None:
    for result in health_results(look(penstock.operations, context.log)):
        evaluation = dg.AssetCheckEvaluation(
            asset_key=INSTANCES,
            check_name=str(result.check_name),
            passed=result.passed,
            severity=result.severity,
            description=result.description,
            metadata=result.metadata,
        )
        context.log_event(evaluation)  # type: ignore[arg-type]  # it takes these too; its annotation is behind its code


@dg.job(executor_def=dg.in_process_executor, description="Checkpoint freshness and liveness of all instances, as asset checks.")
def instance_checks() -> None:
    compute_instance_checks()


instance_checks_schedule = dg.ScheduleDefinition(
    name="instance_checks_each_minute",
    job=instance_checks,
    cron_schedule="* * * * *",
    default_status=dg.DefaultScheduleStatus.RUNNING,
)
