"""Jobs: run-books, scaling, rehearsals, deployment, draining, seeds, stops, and snapshots with a schedule for each application that
declares an interval. `orchestration.run_books`, `operations`, `rehearsals` and `snapshots` do the work.

Every job runs in the process of its run: it takes about a second, and a process per step would take five. The steps of a run-book are ops
that share one execution. To repeat a run that was killed, launch it again (*Re-execute all* or *from failure* in the UI, which are the same
here: a new process executes the steps from the first, and effects that are there already are recognised).
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal

import dagster as dg
from pydantic import BaseModel, Field, create_model

from penstock.orchestration.alerts import alerts
from penstock.orchestration.dagster import alert_check
from penstock.orchestration.dagster.instance_partitions import follow_instances
from penstock.orchestration.dagster.names import plain_names
from penstock.orchestration.dagster.ops import actor_of, explained, failure
from penstock.orchestration.dagster.rehearsal_ops import AuditConfig, RehearsalConfig, RepairConfig, audit, rehearse, repair, run_audit
from penstock.orchestration.dagster.resources import PenstockResource
from penstock.orchestration.database.models import RunBookRun, RunBookState
from penstock.orchestration.declarations.applications import Application, Applications
from penstock.orchestration.instances.deployment import DEPLOY_SECONDS, Deployment
from penstock.orchestration.instances.draining import DRAIN_SECONDS
from penstock.orchestration.instances.operations import Operations
from penstock.orchestration.rehearsals.continuity import NoBeginningError
from penstock.orchestration.rehearsals.demand import demand
from penstock.orchestration.rehearsals.reporter import Reporter
from penstock.orchestration.run_books import Execution, RunBook, RunBookInputs, Step, approve, approved_run_book, reject
from penstock.orchestration.run_books.base import Subject, text_of
from penstock.orchestration.run_books.inputs import BY, DECLARED, PROPOSED
from penstock.orchestration.snapshots.exports import export_snapshot
from penstock.orchestration.snapshots.taking import TAKE_SECONDS, Progress, take_snapshot
from penstock.runtime.model.states import State

APPLICATION = "penstock/application"
"""Tag of a run with the id of its application."""
_TAG_LENGTH = 200
_TITLE_LENGTH = 32
"""Number of characters that the list of runs has room for, in a window of 1440 pixels."""
_NAMED = 20
"""Maximum number of instances that the description of a field names."""


@dataclass(frozen=True, slots=True)
class Choices:
    """The declared applications, among which a form lets choose, and instances, which it names: others may have been added by `scale`.
    Without applications, each name is taken, and looked up when the run begins."""

    applications: Sequence[str] = ()
    instances: Sequence[str] = ()

    @classmethod
    def of(cls, applications: Applications) -> "Choices":
        return cls([application.id for application in applications.applications], applications.instances)

    def schema(self, form: type[BaseModel]) -> Mapping[str, dg.Field]:
        """Return the schema of a form's fields."""
        fields: dict[str, object] = {}
        for name, field in form.model_fields.items():
            if name == "application" and field.is_required() and self.applications:
                fields[name] = (Literal[tuple(self.applications)], Field(description="The application"))
            elif name == "instance" and self.instances:
                more = f" and {len(self.instances) - _NAMED} more" if len(self.instances) > _NAMED else ""
                named = f"{(field.description or '').split(',')[0]}. Declared: {', '.join(self.instances[:_NAMED])}{more}"
                fields[name] = (field.annotation, Field(field.get_default(call_default_factory=True), description=named))
            else:
                fields[name] = (field.annotation, field)
        made = create_model(form.__name__, __base__=dg.Config, __doc__=form.__doc__, **fields)  # type: ignore[call-overload]
        return made.to_fields_dict()  # type: ignore[no-any-return]  # of a model that is made here

    def typed(self, op: dg.OpDefinition, form: type[dg.Config]) -> dg.OpDefinition:
        """Return an op with the schema of its form."""
        schema = self.schema(form)
        return op.configured(lambda inputs: inputs, name=op.name, config_schema=schema, description=op.description)


class StopConfig(dg.Config):
    """Configuration of a stop."""

    instance: str = Field(description="The name of a declared instance, for example flight-board-1")
    timeout_seconds: float = Field(default=60.0, description="How long a clean close may take")
    kill: bool = Field(default=False, description="End the process by force when the time is up")


class ScaleConfig(dg.Config):
    """Configuration of scaling."""

    application: str = Field(description="The application.id, for example flight-board")
    instances: int = Field(description="Number of instances that should run", ge=1)


class DeployConfig(dg.Config):
    """Configuration of a deployment."""

    application: str = Field(description="The application.id, for example flight-board")
    dry_run: bool = Field(default=False, description="Only check, and say what would be done")
    everything: bool = Field(default=False, description="Also instances that run this code already")
    timeout_seconds: float = Field(default=DEPLOY_SECONDS, description="How long an instance may take to run and to catch up", gt=0)


class DrainConfig(dg.Config):
    """Configuration of draining."""

    instance: str = Field(description="The name of an instance, for example flight-board-2")
    application: str = Field(default="", description="Its application.id; needed for one that is no longer declared")
    timeout_seconds: float = Field(
        default=DRAIN_SECONDS, description="After so long it hands over what the others have not learned yet", gt=0
    )


class SeedConfig(dg.Config):
    """Configuration of installing a seed."""

    instance: str = Field(description="The name of a declared instance, for example flight-board-1; its application must stand still")
    seed: str = Field(description="Path or URI of a seed or snapshot")
    reset_offsets: bool = Field(default=False, description="Changelogs were lost: put their tasks back to it, state and input offsets")


class Decision(Enum):
    """Decision on a proposed run."""

    approve = "approve"
    reject = "reject"


class ApprovalConfig(dg.Config):
    """Configuration of a decision on a proposed run."""

    run_book_run: int = Field(description="The number of the run, as the alert and `penstock run-books` show it")
    decision: Decision = Field(description="approve: run it now. reject: it is not run, and the alert stays open")
    reason: str = Field(default="", description="Why, for the audit trail")
    by: str = Field(default="", description=BY)


def title(run_book: str, subject: str) -> dict[str, str]:
    """Return the tag by which the list of runs reads `skip: flights-4@15535`. The list cuts a tag at its end, so a long name is shortened
    in its middle; the tag `penstock/record` has it whole."""
    verb = run_book.split("-")[0]
    most = _TITLE_LENGTH - len(verb)
    end = most * 2 // 3
    return {verb: subject if len(subject) <= most else f"{subject[: most - end - 1]}…{subject[-end:]}"}


def _tag(context: dg.OpExecutionContext, operations: Operations, verb: str, application: str, subject: Subject) -> None:
    """Tag the run with what it is about: its title, by which the list of runs shows it, and application, record, task and alert."""
    with operations.control_plane.reading() as session:
        found = [alert.id for alert in alerts.unresolved(session, application=application, subject=subject.name)]
    tags = {
        **title(verb, subject.name),
        APPLICATION: application,
        "penstock/record": subject.name if subject.offset is not None else None,
        "penstock/task": subject.task,
        "penstock/alert": str(found[-1]) if found else None,
    }
    context.instance.add_run_tags(context.run_id, {name: value[:_TAG_LENGTH] for name, value in tags.items() if value is not None})


def _report(context: dg.OpExecutionContext, operations: Operations, run: RunBookRun) -> None:
    """Evaluate the check on alerts after a run-book. Fail with the reason if it was refused."""
    context.log_event(alert_check.evaluation(operations, run.application))  # type: ignore[arg-type]  # it takes these too; its annotation is behind its code
    if run.state == RunBookState.REFUSED.value:
        raise failure(f"refused: {run.reason} (run {run.id}: penstock run-books)")


def _show_plan(context: dg.OpExecutionContext, execution: Execution, step: Step) -> None:
    """Show what a step would do. Fail with the reason if the run-book would be refused."""
    plan = execution.plan()
    if plan.refused is not None:
        raise failure(f"would be refused: {plan.refused}")
    line = next((line for line in plan.lines if line.startswith(f"{step.name}: ")), f"{step.name}: not needed")
    context.log.info(f"would {line}")
    context.add_output_metadata({"would": line.removeprefix(f"{step.name}: ")})


def _execute(context: dg.OpExecutionContext, operations: Operations, execution: Execution, step: Step) -> None:
    """Execute a step, and show its findings with the op. Fail with the reason if the run-book is refused."""
    over = execution.result is not None
    findings = execution.execute_until(step.name)
    if findings is None:
        findings = {"finding": "not needed" if execution.result is None else f"the run is over: {execution.result.reason}"}
    context.add_output_metadata({name: text_of(value) for name, value in findings.items() if value not in (None, [], {}, "")})
    if execution.result is not None and not over:
        _report(context, operations, execution.result)


@dg.op
def stop(context: dg.OpExecutionContext, config: StopConfig, penstock: PenstockResource) -> None:
    """Stop an instance: it is no longer wanted, and is closed cleanly."""
    with explained():
        ran = penstock.operations.stop(config.instance, actor=actor_of(context), timeout_s=config.timeout_seconds, kill=config.kill)
    context.log.info(f"{config.instance} {'closed cleanly' if ran else 'did not run'}")


@dg.op
def scale(context: dg.OpExecutionContext, config: ScaleConfig, penstock: PenstockResource) -> None:
    """Scale an application to a number of instances; tasks move as soon as their state is restored, and surplus instances are drained."""
    operations = penstock.operations
    with explained():
        operations.scale(config.application, config.instances, actor=actor_of(context), progress=context.log.info)
    follow_instances(context.instance, operations)


@dg.op
def deploy(context: dg.OpExecutionContext, config: DeployConfig, penstock: PenstockResource) -> None:
    """Check the new code, then roll it over an application's instances, one by one, while the others keep processing."""
    deployment = Deployment(
        penstock.operations,
        config.application,
        actor=actor_of(context),
        everything=config.everything,
        timeout_s=config.timeout_seconds,
        progress=context.log.info,
        demand=lambda declared: demand(penstock.operations.paths, declared, Reporter(context.log.info)),
    )
    with explained():
        plan = deployment.plan() if config.dry_run else deployment.run()
    for line in plan.lines() if config.dry_run else ():
        context.log.info(line)


@dg.op
def drain(context: dg.OpExecutionContext, config: DrainConfig, penstock: PenstockResource) -> None:
    """Drain an instance: others learn its tasks and take them over, then it ends and stays stopped."""
    operations, given = penstock.operations, config.application
    with explained():
        application = operations.applications.named(given) if given else operations.applications.of_instance(config.instance)
        ran = operations.drain(
            application, config.instance, actor=actor_of(context), timeout_s=config.timeout_seconds, progress=context.log.info
        )
    context.log.info(f"{config.instance} {'has handed its tasks over and ended' if ran else 'did not run'}")
    follow_instances(context.instance, operations)


@dg.op
def install_seed(context: dg.OpExecutionContext, config: SeedConfig, penstock: PenstockResource) -> None:
    """Install a seed or snapshot in a stopped application: changelogs, stores and input offsets."""
    with explained():
        context.log.info(penstock.operations.seed(config.instance, config.seed, actor=actor_of(context), reset=config.reset_offsets))


def _job(name: str, node: dg.OpDefinition | dg.GraphDefinition) -> dg.JobDefinition:
    return dg.GraphDefinition(name, node_defs=[node], description=node.description).to_job(executor_def=dg.in_process_executor)


Dependencies = dict[dg.NodeInvocation, dict[str, dg.DependencyDefinition]]
Begin = Callable[[dg.OpExecutionContext, Operations], RunBook]
"""Return the run-book that the steps of a run execute."""


def run_book_job(declared: type[RunBookInputs], choices: Choices = Choices()) -> dg.JobDefinition:
    """Return the job of a run-book, made from its declaration: an op for each step, configured together by one form."""
    schema, steps = choices.schema(declared), declared.BOOK.STEPS

    def begin(context: dg.OpExecutionContext, operations: Operations) -> RunBook:
        try:
            asked = declared(**context.op_config)
            return asked.run_book(operations, asked.request(actor_of(context, asked.by), context.run.run_id), context.log.info)
        except ValueError as error:
            raise failure(str(error)) from error

    def configure(inputs: Mapping[str, object]) -> Mapping[str, object]:
        return {step.name: {"config": inputs} for step in steps}

    ops = [_step_op(f"{declared.OP}_{step.name}", step, schema, begin, first=step is steps[0]) for step in steps]
    graph = dg.GraphDefinition(
        declared.OP,
        description=inspect.getdoc(declared),
        node_defs=ops,
        dependencies=_one_after_the_other({step.name: op for step, op in zip(steps, ops, strict=True)}, None),
        config=dg.ConfigMapping(configure, config_schema=schema),
    )
    return _job(declared.JOB, graph)


def approval_job() -> dg.JobDefinition:
    """Return the job of a decision on a proposed run: an op that records it, and the steps of each run-book that may be proposed, as ops
    that are skipped unless it is approved."""
    run = {name: field for name, field in ApprovalConfig.to_fields_dict().items() if name in ("run_book_run", "by")}

    @dg.op(out={declared.OP: dg.Out(dg.Nothing, is_required=False) for declared in PROPOSED})
    def decision(context: dg.OpExecutionContext, config: ApprovalConfig, penstock: PenstockResource) -> Iterator[dg.Output[None]]:
        """Record the decision."""
        operations, actor = penstock.operations, actor_of(context, config.by)
        with explained():
            if config.decision is Decision.reject:
                rejected = reject(operations.control_plane, config.run_book_run, actor, config.reason)
                context.log.info(f"run {rejected.id}: {rejected.reason}")
                subject = Subject(rejected.subject, rejected.task, rejected.topic, rejected.partition, rejected.offset)
                _tag(context, operations, "reject", rejected.application, subject)
                context.log_event(alert_check.evaluation(operations, rejected.application))  # type: ignore[arg-type]  # as in `_report`
                return
            approved = approve(operations.control_plane, config.run_book_run, actor)
        context.log.info(f"run {approved.id} is approved: {approved.run_book} {approved.subject}")
        yield dg.Output(None, next(declared.OP for declared in PROPOSED if approved.run_book == declared.BOOK.NAME))

    def begin(context: dg.OpExecutionContext, operations: Operations) -> RunBook:
        config = context.op_config
        return approved_run_book(operations, config["run_book_run"], actor_of(context, config["by"]), context.log.info, context.run.run_id)

    branches = {
        declared: {
            f"{declared.OP}_{step.name}": _step_op(f"approved_{declared.OP}_{step.name}", step, run, begin, first=False)
            for step in declared.BOOK.STEPS
        }
        for declared in PROPOSED
    }
    steps = {node: op for branch in branches.values() for node, op in branch.items()}

    def configure(inputs: Mapping[str, object]) -> Mapping[str, object]:
        decided = {**inputs, "decision": Decision(inputs["decision"]).name}  # as a form says it
        asked = {name: inputs[name] for name in run}
        return {decision.name: {"config": decided}, **{node: {"config": asked} for node in steps}}

    dependencies: Dependencies = {dg.NodeInvocation(decision.name): {}}
    for declared, branch in branches.items():
        dependencies |= _one_after_the_other(branch, dg.DependencyDefinition(decision.name, declared.OP))
    graph = dg.GraphDefinition(
        "decide",
        description="Approve a run-book that a policy proposed, and run it; or reject it.",
        node_defs=[decision, *steps.values()],
        dependencies=dependencies,
        config=dg.ConfigMapping(configure, config_schema=ApprovalConfig.to_fields_dict()),
    )
    return _job("approve_run_book", graph)


def _one_after_the_other(steps: Mapping[str, dg.OpDefinition], before: dg.DependencyDefinition | None) -> Dependencies:
    """Return the dependencies of a run-book's steps, by the names of their nodes; the first follows `before`."""
    found: Dependencies = {}
    for node, op in steps.items():
        found[dg.NodeInvocation(op.name, alias=node)] = {} if before is None else {"after": before}
        before = dg.DependencyDefinition(node)
    return found


def _step_op(name: str, step: Step, schema: Mapping[str, dg.Field], begin: Begin, *, first: bool) -> dg.OpDefinition:
    """Return the op of a run-book's step."""

    @dg.op(
        name=name,
        description=f"{step.what[0].upper()}{step.what[1:]}.",
        ins={} if first else {"after": dg.In(dg.Nothing)},
        out=dg.Out(dg.Nothing),
        config_schema=schema,
    )
    def take(context: dg.OpExecutionContext, penstock: PenstockResource) -> None:
        operations = penstock.operations

        def execution() -> Execution:
            book = begin(context, operations)
            verb = "try" if context.op_config.get("dry_run") else book.NAME
            _tag(context, operations, verb, book.application.id, book.subject())
            return Execution(book)

        with explained():
            shared = penstock.execution(execution)
            shared.book.progress = context.log.info  # of the op whose step it is
            if context.op_config.get("dry_run"):
                _show_plan(context, shared, step)
            else:
                _execute(context, operations, shared, step)

    return take


def jobs(applications: Applications) -> Sequence[dg.JobDefinition]:
    """Return all jobs but those that start instances and take snapshots. Their forms know the declared applications."""
    choices = Choices.of(applications)
    return [
        _job("scale_application", choices.typed(scale, ScaleConfig)),
        _job("deploy_application", choices.typed(deploy, DeployConfig)),
        _job("rehearse_application", choices.typed(rehearse, RehearsalConfig)),
        _job("rehearse_repair", choices.typed(repair, RepairConfig)),
        _job("audit_state", choices.typed(audit, AuditConfig)),
        _job("drain_instance", choices.typed(drain, DrainConfig)),
        _job("stop_instance", choices.typed(stop, StopConfig)),
        _job("seed_application", choices.typed(install_seed, SeedConfig)),
        *(run_book_job(declared, choices) for declared in DECLARED),
        approval_job(),
    ]


_REPORT_PERCENT = 10
_ACTIVE = [dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED]
_LIVE_STATES = {State.RUNNING.value, State.REBALANCING.value, State.RESTORING.value}


class SnapshotConfig(dg.Config):
    """Configuration of a snapshot."""

    application: str = Field(description="The application.id, for example flight-board")
    timeout_seconds: float = Field(default=TAKE_SECONDS, description="How long all tasks together may take", gt=0)
    export: bool = Field(default=True, description="Export it too, if streams.toml declares where to")


@dg.op(out=dg.Out(description="The snapshot's id"))
def take(context: dg.OpExecutionContext, config: SnapshotConfig, penstock: PenstockResource) -> str:
    """Take a snapshot of all tasks, as of a commit, wait until it is complete, and export it if that is declared."""
    operations, actor = penstock.operations, actor_of(context)
    with explained():
        application = operations.applications.named(config.application)
        progress = _in_log(context, "{done} of {total} tasks are in")
        snapshot = take_snapshot(operations, application, actor=actor, timeout_s=config.timeout_seconds, progress=progress)
        context.log.info(
            f"snapshot {snapshot.id} is complete: {len(snapshot.tasks)} tasks, {snapshot.manifest.bytes:,} bytes, at {snapshot.place}"
        )
        metadata: dict[str, dg.MetadataValue] = {
            "snapshot": dg.MetadataValue.text(snapshot.id),
            "tasks": dg.MetadataValue.int(len(snapshot.tasks)),
            "stores": dg.MetadataValue.text(", ".join(snapshot.manifest.stores)),
            "bytes": dg.MetadataValue.int(snapshot.manifest.bytes),
            "path": dg.MetadataValue.path(str(snapshot.place)),
        }
        if config.export and application.snapshots.export is not None:
            progress = _in_log(context, "{done:,} of {total:,} bytes are exported")
            exported = export_snapshot(operations, application, actor=actor, snapshot_id=snapshot.id, progress=progress)
            context.log.info(f"snapshot {snapshot.id} is exported to {exported.place}")
            metadata["exported"] = dg.MetadataValue.text(str(exported.place))
        context.add_output_metadata(metadata)
        if application.snapshots.audit:
            try:
                run_audit(context, operations, application, None, None, snapshot.id)
            except NoBeginningError as error:
                context.log.warning(f"the state is not audited: {error}")
        return snapshot.id


def _in_log(context: dg.OpExecutionContext, text: str) -> Progress:
    """Return a progress callback that logs each tenth to the run's log."""
    logged = -1

    def progress(done: int, total: int) -> None:
        nonlocal logged
        step = 100 * done // total // _REPORT_PERCENT if total else -1
        if step > logged:
            logged = step
            context.log.info(text.format(done=done, total=total))

    return progress


@dg.job(name="take_snapshot", executor_def=dg.in_process_executor)
def take_snapshot_job() -> None:
    """Take a snapshot of all state of an application, and export it where that is declared."""
    take()


def snapshot_schedules(applications: Applications) -> list[dg.ScheduleDefinition]:
    """Return a schedule for each application with `every-minutes` in `streams.toml`."""
    plain = plain_names(applications)
    scheduled = [(application, cron) for application in applications.applications if (cron := application.snapshots.cron) is not None]
    return [_schedule(f"snapshots_of_{plain[application.id]}", application, cron) for application, cron in scheduled]


def _schedule(name: str, application: Application, cron: str) -> dg.ScheduleDefinition:
    @dg.schedule(
        name=name,
        job=take_snapshot_job,
        cron_schedule=cron,
        description=f"Snapshots of {application.id}, every {application.snapshots.every_minutes} minutes.",
        default_status=dg.DefaultScheduleStatus.RUNNING,
    )
    def snapshots(context: dg.ScheduleEvaluationContext, penstock: PenstockResource) -> dg.RunRequest | dg.SkipReason:
        return tick(context.instance, penstock.operations, application)

    return snapshots


def tick(dagster: dg.DagsterInstance, operations: Operations, application: Application) -> dg.RunRequest | dg.SkipReason:
    """Return the run of a schedule's tick; skip it while the last run is in progress, or while no instance runs."""
    under_way = dg.RunsFilter(job_name=take_snapshot_job.name, statuses=_ACTIVE, tags={APPLICATION: application.id})
    if dagster.get_runs(under_way, limit=1):
        return dg.SkipReason(f"the last snapshot of {application.id} is still being taken or exported")
    if not any(operations.rows(name)[0].state in _LIVE_STATES for name in operations.instances(application)):
        return dg.SkipReason(f"no instance of {application.id} runs")
    config = dg.RunConfig(ops={take.name: SnapshotConfig(application=application.id)})
    return dg.RunRequest(run_config=config, tags={APPLICATION: application.id})
