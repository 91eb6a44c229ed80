"""Checks of an application's asset. A check covers the asset as a whole, not a partition: it lists every instance and fails with the worst.

The checks run with every materialisation, and each minute by a schedule. The schedule starts a job whose op runs the checks:
a scheduled run of the asset itself would need a partition.
"""

from collections.abc import Iterator, Sequence

import dagster as dg

from penstock.orchestration.dagster import alert_check
from penstock.orchestration.dagster.names import instances_key
from penstock.orchestration.dagster.resources import PenstockResource
from penstock.orchestration.database.audit import now
from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.declarations.policies import Severity
from penstock.orchestration.health import DESCRIPTIONS, CheckResult, examine_one, remember
from penstock.orchestration.instances.operations import Operations
from penstock.runtime.model.errors import BrokerUnavailableError

_MOST_ROWS = 500
_MOST_SHOWN = 30


def health_checks(application: Application, plain_name: str) -> dg.AssetChecksDefinition:
    """Return the checks of an application, which run with each run that materialises its instances."""
    key = instances_key(application.id)

    @dg.multi_asset_check(
        name=f"{plain_name}__health",
        specs=[
            *(dg.AssetCheckSpec(name, asset=key, description=description) for name, description in DESCRIPTIONS.items()),
            alert_check.check_spec(application.id),
        ],
    )
    def health(context: dg.AssetCheckExecutionContext, penstock: PenstockResource) -> Iterator[dg.AssetCheckResult]:
        yield from check_results(penstock.operations, penstock.operations.applications.named(application.id), context.log)

    return health


def check_results(operations: Operations, application: Application, log: dg.DagsterLogManager) -> Sequence[dg.AssetCheckResult]:
    """Run all checks of an application on the state that Kafka has now; open and resolve the alerts that follow from them."""
    results = [_result(result) for result in checks_of(operations, application, log)]
    return (*results, alert_check.result(operations, application.id))


def checks_of(operations: Operations, application: Application, log: dg.DagsterLogManager) -> list[CheckResult]:
    """Run the checks of one application. If no broker answers, no check passes: each says so, and the problems of the last known state."""
    at = now()
    try:
        with operations.feed(application) as feed:
            feed.step()
        results = examine_one(application, operations.control_plane, at, brokers=True)
    except BrokerUnavailableError as error:
        log.warning(str(error))
        unknown = f"no broker answers at {application.bootstrap_servers}"
        results = examine_one(application, operations.control_plane, at, brokers=False, unknown=unknown)
    remember(operations.control_plane, application, results, at)
    return results


def _result(result: CheckResult) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        asset_key=instances_key(result.application),
        check_name=result.name,
        passed=result.passed,
        severity=dg.AssetCheckSeverity.ERROR if result.severity is Severity.ERROR else dg.AssetCheckSeverity.WARN,
        description=result.summary,
        metadata={**_numbers(result), "overview": dg.MetadataValue.md(_markdown(result)), "table": _table(result)},
    )


def _numbers(result: CheckResult) -> dict[str, dg.MetadataValue]:
    """Return metadata under stable names, so that Dagster plots it."""
    return {name: dg.MetadataValue.float(v) if isinstance(v, float) else dg.MetadataValue.int(v) for name, v in result.numbers.items()}


def _lines(result: CheckResult) -> list[dict[str, str | int | float | bool | None]]:
    """Return a line per row, failures first."""
    rows = sorted(result.rows, key=lambda row: -row.severity.rank)
    return [{**row.cells, "severity": row.severity.value, "problem": row.problem} for row in rows]


def _markdown(result: CheckResult) -> str:
    """Return the table that is displayed with the check, in Markdown."""
    lines = _lines(result)
    if not lines:
        return "nothing to check"
    head = list(lines[0])
    rows = [[("" if line.get(name) is None else str(line.get(name))).replace("|", "\\|") for name in head] for line in lines[:_MOST_SHOWN]]
    rest = f"\n\n… and {len(lines) - _MOST_SHOWN} more" if len(lines) > _MOST_SHOWN else ""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)) + rest


def _table(result: CheckResult) -> dg.TableMetadataValue:
    lines = _lines(result)[:_MOST_ROWS]
    columns = list(lines[0]) if lines else ["instance"]
    kinds = {bool: "bool", int: "int", float: "float"}
    schema = dg.TableSchema(
        [
            dg.TableColumn(name, next((kinds.get(type(line[name]), "string") for line in lines if line.get(name) is not None), "string"))
            for name in columns
        ]
    )
    return dg.MetadataValue.table(records=[dg.TableRecord(line) for line in lines], schema=schema)


@dg.op(description="Computes the checks of all applications: every instance and task, the worst decides.")
def compute_instance_checks(context: dg.OpExecutionContext, penstock: PenstockResource) -> None:
    for application in penstock.operations.applications.applications:
        for result in check_results(penstock.operations, application, context.log):
            context.log_event(alert_check.as_evaluation(result))  # type: ignore[arg-type]  # it takes these too; its annotation is behind its code


@dg.job(executor_def=dg.in_process_executor, description="The health of all instances and tasks, and open alerts, as asset checks.")
def instance_checks() -> None:
    compute_instance_checks()


instance_checks_schedule = dg.ScheduleDefinition(
    name="instance_checks_each_minute",
    job=instance_checks,
    cron_schedule="* * * * *",
    default_status=dg.DefaultScheduleStatus.RUNNING,
)
