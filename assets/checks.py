"""Checks of the asset `instances`. A check covers the asset as a whole, not a partition: it lists every instance and fails with the worst.

The checks run with every materialisation, and each minute by a schedule. The schedule starts a job whose op runs the checks:
a scheduled run of the asset itself would need a partition.
"""

from collections.abc import Iterator, Sequence

import dagster as dg

from penstock.orchestration.dagster import alert_check
from penstock.orchestration.dagster.alert_check import INSTANCES
from penstock.orchestration.dagster.resources import PenstockResource
from penstock.orchestration.database.audit import now
from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.declarations.policies import Severity
from penstock.orchestration.health import DESCRIPTIONS, CheckResult, by_name, examine_one, remember, worst
from penstock.orchestration.instances.operations import Operations
from penstock.runtime.model.errors import BrokerUnavailableError

_MOST_ROWS = 500
_MOST_SHOWN = 30


@dg.multi_asset_check(
    name="instances_health",
    specs=[
        *(dg.AssetCheckSpec(name, asset=INSTANCES, description=description) for name, description in DESCRIPTIONS.items()),
        alert_check.check_spec(),
    ],
)
def instances_health(context: dg.AssetCheckExecutionContext, penstock: PenstockResource) -> Iterator[dg.AssetCheckResult]:
    """Run all checks, as part of a run that materialises instances."""
    yield from check_results(penstock.operations, context.log)


def check_results(operations: Operations, log: dg.DagsterLogManager) -> Sequence[dg.AssetCheckResult]:
    """Run all checks on the state that Kafka has now; open and resolve the alerts that follow from them."""
    results = [result for application in operations.applications.applications for result in checks_of(operations, application, log)]
    found = by_name(results)
    return (*(_result(name, found.get(name, [])) for name in DESCRIPTIONS), alert_check.result(operations))


def checks_of(operations: Operations, application: Application, log: dg.DagsterLogManager) -> list[CheckResult]:
    """Run the checks of one application. If no broker answers, use the last known state, whose age the checks then report."""
    at = now()
    try:
        with operations.feed(application) as feed:
            feed.step()
        results = examine_one(application, operations.control_plane, at, brokers=True)
    except BrokerUnavailableError as error:
        log.warning(str(error))
        results = examine_one(application, operations.control_plane, at, brokers=False)
    remember(operations.control_plane, application, results, at)
    return results


def _result(name: str, results: Sequence[CheckResult]) -> dg.AssetCheckResult:
    """Combine the results of all applications into one check: numbers are summed, except ages, of which the largest counts."""
    severity = worst(result.severity for result in results)
    texts = [text for result in results for text in result.texts]
    rows = sum(len(result.rows) for result in results)
    return dg.AssetCheckResult(
        asset_key=INSTANCES,
        check_name=name,
        passed=severity is Severity.INFO,
        severity=dg.AssetCheckSeverity.ERROR if severity is Severity.ERROR else dg.AssetCheckSeverity.WARN,
        description="; ".join(texts[:5]) + (f"; and {len(texts) - 5} more" if len(texts) > 5 else "") or f"{rows} looked at, all well",
        metadata={**_numbers(results), "overview": dg.MetadataValue.md(_markdown(results)), "table": _table(results)},
    )


def _numbers(results: Sequence[CheckResult]) -> dict[str, dg.MetadataValue]:
    """Return metadata under stable names, so that Dagster plots it; with more than one application, also per application."""
    totals: dict[str, int | float] = {}
    for result in results:
        for name, value in result.numbers.items():
            totals[name] = max(totals.get(name, 0), value) if name.startswith("oldest") else totals.get(name, 0) + value
            if len(results) > 1:
                totals[f"{name} {result.application}"] = value
    return {name: dg.MetadataValue.float(v) if isinstance(v, float) else dg.MetadataValue.int(v) for name, v in totals.items()}


def _lines(results: Sequence[CheckResult]) -> list[dict[str, str | int | float | bool | None]]:
    """Return a line per row, failures first."""
    lines = [(row, {"application": result.application, **row.cells}) for result in results for row in result.rows]
    lines.sort(key=lambda line: -line[0].severity.rank)
    return [{**cells, "severity": row.severity.value, "problem": row.problem} for row, cells in lines]


def _markdown(results: Sequence[CheckResult]) -> str:
    """Return the table that is displayed with the check, in Markdown."""
    lines = _lines(results)
    if not lines:
        return "nothing to check"
    head = list(lines[0])
    rows = [[("" if line.get(name) is None else str(line.get(name))).replace("|", "\\|") for name in head] for line in lines[:_MOST_SHOWN]]
    rest = f"\n\n… and {len(lines) - _MOST_SHOWN} more" if len(lines) > _MOST_SHOWN else ""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)) + rest


def _table(results: Sequence[CheckResult]) -> dg.TableMetadataValue:
    lines = _lines(results)[:_MOST_ROWS]
    columns = list(lines[0]) if lines else ["application"]
    kinds = {bool: "bool", int: "int", float: "float"}
    schema = dg.TableSchema(
        [
            dg.TableColumn(name, next((kinds.get(type(line[name]), "string") for line in lines if line.get(name) is not None), "string"))
            for name in columns
        ]
    )
    return dg.MetadataValue.table(records=[dg.TableRecord(line) for line in lines], schema=schema)


@dg.op(description="Computes the checks of the asset `instances`: every instance and task, the worst decides.")
def compute_instance_checks(context: dg.OpExecutionContext, penstock: PenstockResource) -> None:
    for result in check_results(penstock.operations, context.log):
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
