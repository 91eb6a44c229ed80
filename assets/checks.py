"""Checks of an application's asset. A check covers the asset as a whole, not a partition: it lists every instance and fails with the worst.

The checks run with every materialisation, and each minute by a schedule, which reports results that have changed without starting a run.
The job `instance_checks`, which a person starts, reports all results in a run.
"""

import logging
import re
import traceback
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial

import dagster as dg
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecord

from penstock.assets.status import is_due, observations
from penstock.orchestration.dagster import alert_check, day_events, live_metadata, rehearsal_check
from penstock.orchestration.dagster.names import instances_key
from penstock.orchestration.dagster.resources import PenstockResource
from penstock.orchestration.database.audit import now
from penstock.orchestration.database.models import Task, is_global
from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.declarations.policies import Severity
from penstock.orchestration.health import DESCRIPTIONS, CheckResult, checks, facts, is_new, remember, report, results_of
from penstock.orchestration.health.checks import Known
from penstock.orchestration.health.figures import Report, unknown_report
from penstock.orchestration.instances.operations import Operations
from penstock.orchestration.projection.feed import SilentBrokers
from penstock.runtime.kafka.failures import lacks_right
from penstock.runtime.model.errors import BrokerUnavailableError, StreamsError
from penstock.runtime.model.states import TaskState

_COLUMNS = {
    checks.FRESHNESS: ("task", "instance", "checkpoint_age_s", "unsaved_s", "restore_debt"),
    checks.STANDBYS: ("task", "instance", "standbys", "wanted", "on"),
}
"""Columns of checks that have more than a page of 1440 pixels has room for, which is five."""
_MOST_ROWS = 100
_MOST_PROBLEMS = 30
_MOST_NAMED = 5
_AT_ONCE = 8
_LATE_SECONDS = 60
_TICK_SECONDS = 40
"""A tick ends after this time, since Dagster gives up after 60 s; a check that was not written is reported by the next one."""
_PASSED_SECONDS, _FAILED_SECONDS = 6 * 3600, 600
_NUMBER = re.compile(r"(?<![\w@-])\d+(\.\d+)?(?![\w@-])")
"""Numbers in a sentence; those in names of tasks, instances and records belong to the names."""


def health_checks(application: Application, plain_name: str) -> dg.AssetChecksDefinition:
    """Return the checks of an application, which run with each run that materialises its instances."""
    key = instances_key(application.id)

    @dg.multi_asset_check(
        name=f"{plain_name}__health",
        specs=[
            *(dg.AssetCheckSpec(name, asset=key, description=description) for name, description in DESCRIPTIONS.items()),
            alert_check.check_spec(application.id),
            *rehearsal_check.check_specs(application.id),
        ],
    )
    def health(context: dg.AssetCheckExecutionContext, penstock: PenstockResource) -> Iterator[dg.AssetCheckResult]:
        yield from check_results(penstock.operations, penstock.operations.applications.named(application.id), context.log)

    return health


def check_results(operations: Operations, application: Application, log: logging.Logger) -> Sequence[dg.AssetCheckResult]:
    """Run all checks of an application on the state that Kafka has now; open and resolve the alerts that follow from them."""
    at = now()
    results, _, _ = look_at(operations, application, at, log, SilentBrokers())
    return (
        *(as_dagster(result, at) for result in results),
        alert_check.result(operations, application.id),
        rehearsal_check.result(operations.paths, application.id),
        rehearsal_check.audit_result(operations.paths, application.id),
    )


def look_at(
    operations: Operations, application: Application, at: datetime, log: logging.Logger, brokers: SilentBrokers
) -> tuple[list[CheckResult], Report, Known]:
    """Run the checks of one application. If no broker answers, or this client has not the rights, no check passes: each says so, and the
    problems of the last known state."""
    unknown = ""
    try:
        with brokers.asking(application):
            with operations.feed(application) as feed:
                feed.step()
            known = facts(application, operations.control_plane, at, brokers=True)
    except StreamsError as error:
        refused = lacks_right(error)
        if not refused and not isinstance(error, BrokerUnavailableError):
            raise
        log.warning(str(error))
        unknown = str(error) if refused else f"no broker answers at {application.bootstrap_servers}"
        known = facts(application, operations.control_plane, at, brokers=False)
    results = results_of(known, unknown)
    found = report(known, results, _dead(operations, known))
    remember(operations.control_plane, application, results, at, found.samples)
    return results, found, known


def _dead(operations: Operations, known: Known) -> frozenset[str]:
    """Return the instances of this machine whose process has ended, also while their last heartbeat is recent."""
    last = {name: operations.launcher.last(name) for name in known.instances}
    return frozenset(name for name, process in last.items() if process and process.pid == known.instances[name].pid and not process.alive)


def as_dagster(result: CheckResult, at: datetime) -> dg.AssetCheckResult:
    """Return the result of a check as Dagster shows it. `at`: now."""
    return dg.AssetCheckResult(
        asset_key=instances_key(result.application),
        check_name=result.name,
        passed=result.passed,
        severity=dg.AssetCheckSeverity.ERROR if result.severity is Severity.ERROR else dg.AssetCheckSeverity.WARN,
        description=live_metadata.sentence(result.summary),
        metadata={
            **({"1 problems": dg.MetadataValue.md(live_metadata.breakable(_problems(result)))} if result.texts else {}),
            "2 looked at": _table(result),
            "3 as of": dg.MetadataValue.timestamp(result.at or at),
            **_numbers(result),
        },
    )


def _numbers(result: CheckResult) -> dict[str, dg.MetadataValue]:
    """Return metadata under stable names, so that Dagster plots it; a figure of the past is no point of the plot now."""
    if result.unknown:
        return dict(live_metadata.numbers(dict.fromkeys(result.numbers)))
    return {name: dg.MetadataValue.float(v) if isinstance(v, float) else dg.MetadataValue.int(v) for name, v in result.numbers.items()}


def _problems(result: CheckResult) -> str:
    """Return a list of the problems, in Markdown."""
    texts = result.texts
    more = [f"and {len(texts) - _MOST_PROBLEMS} more"] if len(texts) > _MOST_PROBLEMS else []
    return "\n".join(f"- {text}" for text in (*texts[:_MOST_PROBLEMS], *more))


def _table(result: CheckResult) -> dg.TableMetadataValue:
    """Return what was looked at, failures first."""
    rows = [row.cells for row in sorted(result.rows, key=lambda row: -row.severity.rank)[:_MOST_ROWS]]
    names = _COLUMNS.get(result.name) or (tuple(rows[0]) if rows else ("instance",))
    kinds = {bool: "bool", int: "int", float: "float"}
    columns = {name: next((kinds.get(type(row[name]), "string") for row in rows if row[name] is not None), "string") for name in names}
    return live_metadata.table(columns, [dg.TableRecord({name: row[name] for name in names}) for row in rows])


Event = dg.AssetCheckEvaluation | dg.AssetObservation


@dataclass(frozen=True, slots=True)
class Reports:
    """Events to report to Dagster, and what they are about. `kept`: changes, and results of checks. `of_the_day`: observations of a minute
    in which nothing has changed. `errors`: of the applications whose checks could not be computed."""

    kept: list[Event]
    of_the_day: list[dg.AssetObservation]
    applications: int
    problems: list[str]
    errors: list[Exception]

    @property
    def events(self) -> list[Event]:
        return [*self.kept, *self.of_the_day]

    @property
    def line(self) -> str:
        """One line: what was looked at, and what was found."""
        found = "; ".join(self.problems[:_MOST_NAMED]) or "nothing is wrong"
        more = f"; and {len(self.problems) - _MOST_NAMED} more" if len(self.problems) > _MOST_NAMED else ""
        return f"looked at {_plural(self.applications, 'application')}, reported {_plural(len(self.events), 'event')}: {found}{more}"


@dataclass(frozen=True, slots=True)
class _Seen:
    """State of an application at a tick. `tasks`: those of each instance. `error`: the reason why its checks could not be computed."""

    application: Application
    results: Sequence[dg.AssetCheckResult]
    report: Report
    tasks: Mapping[str, Sequence[Task]] = field(default_factory=dict)
    error: Exception | None = None


def _plural(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"


def reports(
    operations: Operations,
    dagster: dg.DagsterInstance,
    at: datetime,
    log: logging.Logger,
    *,
    everything: bool = False,
) -> Reports:
    """Look at all applications, and return what Dagster does not show yet: checks whose result is another than the last one, or is old,
    and observations (`assets.status`); or `everything`.

    Several applications are looked at at once, since most of the time is spent waiting for brokers. An error of one is shown by its checks
    and by its status, and does not concern the others.
    """
    applications = operations.applications.applications
    brokers = SilentBrokers()

    def look(application: Application) -> _Seen:
        try:
            results, found, known = look_at(operations, application, at, log, brokers)
            shown = [
                *(as_dagster(result, at) for result in results),
                alert_check.result(operations, application.id),
                rehearsal_check.result(operations.paths, application.id),
                rehearsal_check.audit_result(operations.paths, application.id),
            ]
            return _Seen(application, shown, found, _tasks(known))
        except Exception as error:  # whatever it is, it is shown
            log.exception("the checks of %s cannot be computed", application.id)
            return _not_seen(operations, application, error, at)

    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="checks") as threads:
        seen = list(threads.map(look, applications))
    expected = sum(1 + sum(figures.runs for figures in each.report.instances.values()) for each in seen)
    evaluations = [alert_check.as_evaluation(result) for each in seen for result in each.results]
    changes: list[dg.AssetObservation] = []
    of_the_day: list[dg.AssetObservation] = []
    for each in seen:
        if everything or is_due(each.report, each.application.id, expected):
            observed = observations(each.application.id, each.report, each.tasks, everything=everything)
            (changes if everything or each.report.changed else of_the_day).extend(observed)
    return Reports(
        kept=[*changes, *(evaluations if everything else _news(dagster, evaluations, at))],  # changes first: they are not seen again
        of_the_day=of_the_day,
        applications=len(applications),
        problems=[f"{each.application.id}: {each.report.sentence}" for each in seen if not all(r.passed for r in each.results)],
        errors=[each.error for each in seen if each.error is not None],
    )


def _not_seen(operations: Operations, application: Application, error: Exception, at: datetime) -> _Seen:
    """Return that nothing is known of an application, because of an unexpected error."""
    unknown = f"its checks cannot be computed: {type(error).__name__}: {error}"
    found = unknown_report(application, unknown, at)
    found = replace(found, changed=is_new(operations.control_plane, application, found))
    stack = "".join(traceback.format_exception(error))
    results = [
        dg.AssetCheckResult(
            asset_key=instances_key(application.id),
            check_name=name,
            passed=False,
            severity=dg.AssetCheckSeverity.ERROR,
            description=live_metadata.sentence(found.sentence),
            metadata={"1 error": live_metadata.lines(stack), "3 as of": dg.MetadataValue.timestamp(at)},
        )
        for name in (*DESCRIPTIONS, alert_check.NO_OPEN_ALERTS)
    ]
    return _Seen(application, results, found, error=error)


def _tasks(known: Known) -> dict[str, list[Task]]:
    """Return the tasks that each instance runs, without copies of global stores."""
    found: dict[str, list[Task]] = {}
    for task in known.tasks:
        if task.state != TaskState.CLOSED.value and not is_global(task.task):
            found.setdefault(task.instance, []).append(task)
    return found


def _news(dagster: dg.DagsterInstance, evaluations: Sequence[dg.AssetCheckEvaluation], at: datetime) -> Iterator[dg.AssetCheckEvaluation]:
    """Yield the results that differ from the last ones in Dagster, or whose last one is old or not shown."""
    last = dagster.event_log_storage.get_latest_asset_check_execution_by_key([evaluation.asset_check_key for evaluation in evaluations])
    records = dagster.get_asset_records(list({evaluation.asset_key for evaluation in evaluations}))
    made = {record.asset_entry.asset_key: record.asset_entry.last_materialization_record for record in records}
    for evaluation in evaluations:
        record = last.get(evaluation.asset_check_key)
        before = None if record is None or not isinstance(record.evaluation, dg.AssetCheckEvaluation) else record.evaluation  # else planned
        if (
            record is None
            or before is None
            or _outcome(before) != _outcome(evaluation)
            or at.timestamp() - record.create_timestamp >= _shown_for(evaluation)
            or not _is_shown(record, before, made.get(evaluation.asset_key))
        ):
            yield evaluation


def _is_shown(record: AssetCheckExecutionRecord, evaluation: dg.AssetCheckEvaluation, made: dg.EventLogRecord | None) -> bool:
    """Return False for a result that Dagster's page replaces by *Not Evaluated*: the asset was materialised by another run since. A tick
    reports in the middle of a run that starts an instance; then its result is the last one, and the run's own, which follows, is not."""
    if made is None or made.run_id == record.run_id:
        return True
    target = evaluation.target_materialization_data
    return made.timestamp < record.create_timestamp if target is None else target.storage_id == made.storage_id


def _outcome(evaluation: dg.AssetCheckEvaluation) -> tuple[bool, dg.AssetCheckSeverity, str]:
    """Return what a result says, without the numbers in its text, most of which change each minute while a check fails."""
    return evaluation.passed, evaluation.severity, _NUMBER.sub("#", evaluation.description or "")


def _shown_for(evaluation: dg.AssetCheckEvaluation) -> int:
    """Return the seconds after which a result is reported again, with the figures of then. Dagster keeps results for ever; those of many
    applications are spread over an hour."""
    return _PASSED_SECONDS + zlib.crc32(str(evaluation.asset_key.path).encode()) % 3600 if evaluation.passed else _FAILED_SECONDS


def checks_job() -> dg.JobDefinition:
    """Return the job that looks at all applications now."""

    @dg.op(description="Computes the checks of all applications: every instance and task, the worst decides.")
    def compute_instance_checks(context: dg.OpExecutionContext, penstock: PenstockResource) -> None:
        found = reports(penstock.operations, context.instance, now(), context.log, everything=True)
        for event in found.events:
            context.log_event(event)  # type: ignore[arg-type]  # it takes checks too; its annotation is behind its code
        context.log.info(found.line)

    @dg.job(executor_def=dg.in_process_executor, description="The health of all instances and tasks, and open alerts, as asset checks.")
    def instance_checks() -> None:
        compute_instance_checks()

    return instance_checks


def checks_schedule(job: dg.JobDefinition) -> dg.ScheduleDefinition:
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
        found = reports(penstock.operations, context.instance, at, context.log)
        day_events.delete_old(context.instance, at)
        reporting = [
            *(partial(context.instance.report_runless_asset_event, event) for event in found.kept),
            *(partial(day_events.report, context.instance, event, at) for event in found.of_the_day),
        ]
        for number, report_event in enumerate(reporting):
            if (now() - at).total_seconds() > _TICK_SECONDS:
                return dg.SkipReason(f"{found.line}; {len(reporting) - number} of the events are left to the next tick")
            report_event()
        if found.errors and len(found.errors) == found.applications:
            raise ExceptionGroup("the checks of no application can be computed", found.errors)
        return dg.SkipReason(found.line)

    return each_minute
