"""Ops of the rehearsals: new code beside the code that runs, a repair before it is deployed, an audit of the state."""

from datetime import date
from typing import Final, Literal

import dagster as dg
from pydantic import Field

from penstock.orchestration.dagster import alert_check, rehearsal_check
from penstock.orchestration.dagster.ops import actor_of, explained, failure
from penstock.orchestration.dagster.resources import PenstockResource
from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.declarations.rehearsal_limits import allowances
from penstock.orchestration.instances.operations import Operations
from penstock.orchestration.rehearsals.demand import compare
from penstock.orchestration.rehearsals.repair import rehearsed_repair
from penstock.orchestration.rehearsals.report import report_audit
from penstock.orchestration.rehearsals.reporter import Reporter
from penstock.orchestration.rehearsals.state_audit import audit_state
from penstock.runtime.model.ids import TaskId

DECLARED: Final = "declared"
"""The engine that `streams.toml` declares."""
Engine = Literal["declared", "auto", "spark", "local"]


class RehearsalConfig(dg.Config):
    """Configuration of a rehearsal."""

    application: str = Field(description="The application.id, for example flight-board")
    factory: str = Field(default="", description="The new build, module:function; empty: the declared one, with the code as it is now")
    since: str = Field(default="", description="Begin with the newest snapshot that is at least so old, for example 6h; empty: the newest")
    records: int = Field(default=0, description="At most so many records of each input partition; 0: all since the snapshot", ge=0)
    snapshot: str = Field(default="", description="Id, path or URI of the snapshot to begin with, in place of the one that since chooses")
    allow: list[str] = Field(
        default=[],
        description="Keys that may differ, for example counts=10, alerts=1%, sums=any; empty: as [applications.NAME.deploy] says",
    )
    engine: Engine = Field(default=DECLARED, description="Where it runs: on Spark, on this machine, or by the number of records (auto)")


class RepairConfig(dg.Config):
    """Configuration of the rehearsal of a repair."""

    application: str = Field(description="The application.id, for example flight-board")
    task: str = Field(description="The paused task, for example 0_4")
    factory: str = Field(
        default="", description="The corrected build, module:function; empty: the declared one, with the code as it is now"
    )
    records: int = Field(default=10, description="At most so many records of each input after the one at which the task is paused", ge=0)
    snapshot: str = Field(
        default="", description="Id, path or URI of the snapshot with the task's state; empty: the newest before the pause"
    )


class AuditConfig(dg.Config):
    """Configuration of an audit of state."""

    application: str = Field(description="The application.id, for example flight-board")
    day: str = Field(default="", description="From the last snapshot before this day (UTC, 2026-11-25) to the first one after it")
    first: str = Field(default="", description="Snapshot to begin with, or start; empty: the one before the last")
    last: str = Field(default="", description="Snapshot to compare with; empty: the newest")
    engine: Engine = Field(
        default=DECLARED, description="Where it is computed: on Spark, on this machine, or by the number of records (auto)"
    )


@dg.op
def rehearse(context: dg.OpExecutionContext, config: RehearsalConfig, penstock: PenstockResource) -> None:
    """Run new code beside the code in operation, over the same state and records; nothing of the application changes. Fails if stores,
    outputs or rejected records differ by more than is allowed."""
    operations = penstock.operations
    with explained():
        application = operations.applications.named(config.application)
        try:
            allowed = allowances(config.allow) if config.allow else application.deploy.allow
            found, failed = compare(
                operations.paths,
                application,
                Reporter(context.log.info),
                factory=config.factory or None,
                since=config.since or None,
                records=config.records or None,
                snapshot=config.snapshot or None,
                allowed=allowed,
                engine=None if config.engine == DECLARED else config.engine,
            )
        except ValueError as error:
            raise failure(str(error)) from error
    for each in found.differences:
        for key, before, after in found.texts.get(each.label, ()):
            context.log.info(f"{each.label}, {key}: {before} -> {after}")
    for note in found.notes:
        context.log.warning(note)
    checked = rehearsal_check.result(operations.paths, application.id)
    context.add_output_metadata(checked.metadata or {})
    # Not `context.log_event`: what a failed op has logged is dropped.
    context.instance.report_runless_asset_event(alert_check.as_evaluation(checked))
    if failed:
        raise failure("; ".join(failed))


@dg.op
def repair(context: dg.OpExecutionContext, config: RepairConfig, penstock: PenstockResource) -> None:
    """Run the record at which a task is paused, and some after it, with corrected code on a copy of the task's state. Fails if one of them
    is rejected."""
    paths = penstock.operations.paths
    with explained():
        application = penstock.operations.applications.named(config.application)
        try:
            task = TaskId.parse(config.task)
        except ValueError as error:
            raise failure(str(error)) from error
        found = rehearsed_repair(
            paths,
            application,
            task,
            Reporter(context.log.info),
            factory=config.factory or None,
            following=config.records,
            snapshot=config.snapshot or None,
        )
    for topic, key, value in found.outputs:
        context.log.info(f"writes to {topic}: {key} = {value}")
    for difference, samples in found.changes:
        for key, before, now in samples:
            context.log.info(f"changes store {difference.name}, {key}: {before} -> {now}")
    context.add_output_metadata(
        {
            "1 record": found.at,
            "2 finding": "it is processed" if found.read else "it is rejected again",
            "3 rejected": "\n".join(f"{each}: {each.error}" for each in found.rejected) or "none",
            "4 records": found.records,
            "5 written": found.written,
            "6 snapshot": found.snapshot or f"none: the task {'has no stores' if found.stateless else 'began without state'}",
        }
    )
    if found.rejected:
        raise failure("; ".join(f"{each} is rejected: {each.error}" for each in found.rejected[:5]))


@dg.op
def audit(context: dg.OpExecutionContext, config: AuditConfig, penstock: PenstockResource) -> None:
    """Compute the state of a snapshot again from its input, and hold it against the stream's. Fails if a store differs; an alert is open
    for each then."""
    operations = penstock.operations
    with explained():
        application = operations.applications.named(config.application)
        try:
            day = date.fromisoformat(config.day) if config.day else None
        except ValueError as error:
            raise failure(f"{config.day!r} is not a day: expected for example 2026-11-25") from error
        engine = None if config.engine == DECLARED else config.engine
        run_audit(context, operations, application, day, config.first or None, config.last or None, engine)


def run_audit(
    context: dg.OpExecutionContext,
    operations: Operations,
    application: Application,
    day: date | None,
    first: str | None,
    last: str | None,
    engine: str | None = None,
) -> None:
    """Audit the state, show the result with the op and in the check. Fail if a store differs."""
    found = audit_state(operations.paths, application, Reporter(context.log.info), day=day, first=first, last=last, engine=engine)
    report_audit(operations, application, found, actor=actor_of(context))
    for note in found.notes:
        context.log.warning(note)
    checked = rehearsal_check.audit_result(operations.paths, application.id)
    context.log.info(str(checked.description))
    context.instance.report_runless_asset_event(alert_check.as_evaluation(checked))  # kept although the op fails
    if found.differing:
        raise failure(str(checked.description))
