"""Checks of an application's asset. A check covers the asset as a whole, not a partition: it lists every instance and fails with the worst.

The checks run with every materialisation, and each minute by a schedule, which reports results that have changed without starting a run.
The job `instance_checks`, which a person starts, reports all results in a run.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime

import dagster as dg

from penstock.assets.status import is_due, observations
from penstock.orchestration.dagster import alert_check
from penstock.orchestration.dagster.names import instances_key
from penstock.orchestration.dagster.resources import PenstockResource
from penstock.orchestration.database.audit import now
from penstock.orchestration.database.models import Task, is_global
from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.declarations.policies import Severity
from penstock.orchestration.health import DESCRIPTIONS, CheckResult, facts, remember, report, results_of
from penstock.orchestration.health.checks import Known
from penstock.orchestration.health.figures import Report
from penstock.orchestration.instances.operations import Operations
from penstock.orchestration.projection.feed import SilentBrokers
from penstock.runtime.model.errors import BrokerUnavailableError
from penstock.runtime.model.states import TaskState

_MOST_ROWS = 500
_MOST_SHOWN = 30
_MOST_NAMED = 5
_AT_ONCE = 8
_LATE_SECONDS = 60
_TICK_SECONDS = 40
"""A tick ends after this time, since Dagster gives up after 60 s; a check that was not written is reported by the next one."""
_REPORT_AGAIN_SECONDS = 600
"""A result that has not changed is reported again after this time, with the figures of then."""


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


def check_results(operations: Operations, application: Application, log: logging.Logger) -> Sequence[dg.AssetCheckResult]:
    """Run all checks of an application on the state that Kafka has now; open and resolve the alerts that follow from them."""
    at = now()
    results, _, _ = look_at(operations, application, (), at, log, SilentBrokers())
    return (*(_result(result, at) for result in results), alert_check.result(operations, application.id))


def look_at(
    operations: Operations, application: Application, outputs: Sequence[str], at: datetime, log: logging.Logger, brokers: SilentBrokers
) -> tuple[list[CheckResult], Report, Known]:
    """Run the checks of one application. If no broker answers, no check passes: each says so, and the problems of the last known state.
    `outputs`: the topics that it writes."""
    unknown = ""
    try:
        with brokers.asking(application):
            with operations.feed(application) as feed:
                feed.step()
            known = facts(application, operations.control_plane, at, brokers=True, outputs=outputs)
    except BrokerUnavailableError as error:
        log.warning(str(error))
        unknown = f"no broker answers at {application.bootstrap_servers}"
        known = facts(application, operations.control_plane, at, brokers=False)
    results = results_of(known, unknown)
    found = report(known, results, _dead(operations, known))
    remember(operations.control_plane, application, results, at, found.samples)
    return results, found, known


def _dead(operations: Operations, known: Known) -> frozenset[str]:
    """Return the instances of this machine whose process has ended, also while their last heartbeat is recent."""
    last = {name: operations.launcher.last(name) for name in known.instances}
    return frozenset(name for name, process in last.items() if process and process.pid == known.instances[name].pid and not process.alive)


def _result(result: CheckResult, at: datetime) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        asset_key=instances_key(result.application),
        check_name=result.name,
        passed=result.passed,
        severity=dg.AssetCheckSeverity.ERROR if result.severity is Severity.ERROR else dg.AssetCheckSeverity.WARN,
        description=result.summary,
        metadata={
            **_numbers(result),
            "as_of": dg.MetadataValue.timestamp(at),
            "overview": dg.MetadataValue.md(f"{result.summary}\n\n{_markdown(result)}"),
            "table": _table(result),
        },
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


Event = dg.AssetCheckEvaluation | dg.AssetObservation


@dataclass(frozen=True, slots=True)
class Reports:
    """Events to report to Dagster, and what they are about."""

    events: list[Event]
    applications: int
    problems: list[str]

    @property
    def line(self) -> str:
        """One line: what was looked at, and what was found."""
        found = "; ".join(self.problems[:_MOST_NAMED]) or "nothing is wrong"
        more = f"; and {len(self.problems) - _MOST_NAMED} more" if len(self.problems) > _MOST_NAMED else ""
        return f"looked at {_plural(self.applications, 'application')}, reported {_plural(len(self.events), 'event')}: {found}{more}"


def _plural(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"


def reports(
    operations: Operations,
    dagster: dg.DagsterInstance,
    outputs: Mapping[str, Sequence[str]],
    at: datetime,
    log: logging.Logger,
    *,
    everything: bool = False,
) -> Reports:
    """Look at all applications, and return what Dagster does not show yet: checks whose result is another than the last one, or is older
    than some minutes, and observations (`assets.status`); or `everything`. `outputs`: the topics that each application writes, by its id.

    Several applications are looked at at once, since most of the time is spent waiting for brokers.
    """
    applications = operations.applications.applications
    brokers = SilentBrokers()

    def look(application: Application) -> tuple[Application, list[dg.AssetCheckResult], Report, Known]:
        results, found, known = look_at(operations, application, outputs.get(application.id, ()), at, log, brokers)
        return application, [*(_result(result, at) for result in results), alert_check.result(operations, application.id)], found, known

    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="checks") as threads:
        seen = list(threads.map(look, applications))
    expected = sum(1 + sum(figures.runs for figures in found.instances.values()) for _, _, found, _ in seen)
    evaluations = [alert_check.as_evaluation(result) for _, results, _, _ in seen for result in results]
    events: list[Event] = [*(evaluations if everything else _news(dagster, evaluations, at))]
    for application, _, found, known in seen:
        if everything or is_due(found, application.id, expected):
            events.extend(observations(application.id, found, _tasks(known)))
    problems = [f"{application.id}: {found.sentence}" for application, results, found, _ in seen if not all(r.passed for r in results)]
    return Reports(events, len(applications), problems)


def _tasks(known: Known) -> dict[str, list[Task]]:
    """Return the tasks that each instance runs, without copies of global stores."""
    found: dict[str, list[Task]] = {}
    for task in known.tasks:
        if task.state != TaskState.CLOSED.value and not is_global(task.task):
            found.setdefault(task.instance, []).append(task)
    return found


def _news(dagster: dg.DagsterInstance, evaluations: Sequence[dg.AssetCheckEvaluation], at: datetime) -> Iterator[dg.AssetCheckEvaluation]:
    """Yield the results that differ from the last ones in Dagster, or whose last one is old."""
    last = dagster.event_log_storage.get_latest_asset_check_execution_by_key([evaluation.asset_check_key for evaluation in evaluations])
    oldest = at.timestamp() - _REPORT_AGAIN_SECONDS
    for evaluation in evaluations:
        record = last.get(evaluation.asset_check_key)
        before = None if record is None else record.evaluation
        shown = before is not None and record is not None and record.create_timestamp > oldest
        if not shown or before is None or _outcome(before) != _outcome(evaluation):
            yield evaluation


def _outcome(evaluation: dg.AssetCheckEvaluation) -> tuple[bool, dg.AssetCheckSeverity, str | None]:
    return evaluation.passed, evaluation.severity, evaluation.description


def checks_job(outputs: Mapping[str, Sequence[str]]) -> dg.JobDefinition:
    """Return the job that looks at all applications now. `outputs`: the topics that each application writes, by its id."""

    @dg.op(description="Computes the checks of all applications: every instance and task, the worst decides.")
    def compute_instance_checks(context: dg.OpExecutionContext, penstock: PenstockResource) -> None:
        found = reports(penstock.operations, context.instance, outputs, now(), context.log, everything=True)
        for event in found.events:
            context.log_event(event)  # type: ignore[arg-type]  # it takes checks too; its annotation is behind its code
        context.log.info(found.line)

    @dg.job(executor_def=dg.in_process_executor, description="The health of all instances and tasks, and open alerts, as asset checks.")
    def instance_checks() -> None:
        compute_instance_checks()

    return instance_checks


def checks_schedule(job: dg.JobDefinition, outputs: Mapping[str, Sequence[str]]) -> dg.ScheduleDefinition:
    """Return the schedule that looks at all applications each minute and reports to Dagster without a run (decision 11). The tick's line
    says what was found. A tick that is late is left to the next one."""

    @dg.schedule(
        job=job,
        name="instance_checks_each_minute",
        cron_schedule="* * * * *",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Looks at all applications each minute, and reports checks and observations, without a run.",
    )
    def each_minute(context: dg.ScheduleEvaluationContext, penstock: PenstockResource) -> dg.SkipReason:
        at = now()
        late = (at - context.scheduled_execution_time).total_seconds()
        if late > _LATE_SECONDS:
            return dg.SkipReason(f"looked at nothing: this tick is {late:.0f} s late, and the next one looks")
        found = reports(penstock.operations, context.instance, outputs, at, context.log)
        for number, event in enumerate(found.events):
            if (now() - at).total_seconds() > _TICK_SECONDS:
                return dg.SkipReason(f"{found.line}; {len(found.events) - number} of the events are left to the next tick")
            context.instance.report_runless_asset_event(event)
        return dg.SkipReason(found.line)

    return each_minute
