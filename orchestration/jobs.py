"""The jobs: the run-books, scaling, and ending an instance. Thin: the work is in `orchestration.run_books` and `operations`.

All run in the run's own process: they take a second of work, and a process for each step would take five. A run that was killed is started
again with the same configuration (*Re-execute all* in the UI): what was done is found done.
"""

import dagster as dg
from pydantic import Field

from orchestration import dagster_alerts
from orchestration.applications import Application
from orchestration.control_plane.models import RunBookState
from orchestration.draining import DRAIN_SECONDS
from orchestration.instance_partitions import follow_instances
from orchestration.operations import Operations
from orchestration.resources import PenstockResource
from orchestration.run_books import (
    RebuildGlobalStore,
    RecordInTheWay,
    ReplayDeadLetters,
    Request,
    RestartInstance,
    ResumeTask,
    RunBook,
    SkipRecord,
    approve,
    approved_run_book,
    reject,
)
from runtime.ids import TaskId


class RunBookConfig(dg.Config):
    """What all run-books take."""

    reason: str = Field(default="", description="Why, for the audit trail")
    dry_run: bool = Field(default=False, description="Only say what would be done")


class StopConfig(dg.Config):
    """Which instance, and how long it may take."""

    instance: str = Field(description="The name of a declared instance, for example flight-board-1")
    timeout_seconds: float = Field(default=60.0, description="How long a clean close may take")
    kill: bool = Field(default=False, description="End the process by force when the time is up")


class ScaleConfig(dg.Config):
    """How many instances of which application."""

    application: str = Field(description="The application.id, for example flight-board")
    instances: int = Field(description="How many shall run", ge=1)


class DrainConfig(dg.Config):
    """Which instance, and how long the others may take."""

    instance: str = Field(description="The name of an instance, for example flight-board-2")
    application: str = Field(default="", description="Its application.id; needed for one that is no longer declared")
    timeout_seconds: float = Field(
        default=DRAIN_SECONDS, description="After so long it hands over what the others have not learned yet", gt=0
    )


class SeedConfig(dg.Config):
    """Which seed, and whose state directory its files come to."""

    instance: str = Field(description="The name of a declared instance, for example flight-board-1; its application must stand still")
    seed: str = Field(description="Path or URI of a seed or snapshot")
    reset_offsets: bool = Field(default=False, description="Changelogs were lost: put their tasks back to it, state and input offsets")


class RestartConfig(RunBookConfig):
    """Which instance."""

    instance: str = Field(description="The name of a declared instance, for example flight-board-1")


class TaskConfig(RunBookConfig):
    """Which task."""

    application: str = Field(description="The application.id, for example flight-board")
    task: str = Field(description="The task's id: <subtopology>_<partition>, for example 0_3")


class SkipRecordConfig(TaskConfig):
    """Which record of a paused task. It is skipped only if the task is paused at exactly this one."""

    topic: str = Field(description="The topic of the record that the task is paused at")
    partition: int = Field(description="Its partition", ge=0)
    offset: int = Field(description="Its offset", ge=0)
    run_book_run: int | None = Field(default=None, description="A run that the policy has reserved; leave it empty")
    occurrence: str | None = Field(default=None, description="The event that this answers; leave it empty")


class ReplayConfig(RunBookConfig):
    """Which dead letters; all, if neither `records` nor `error` says otherwise."""

    application: str = Field(description="The application.id, for example flight-board")
    records: list[str] = Field(default=[], description="Where they stood: topic-partition@offset")
    error: str = Field(default="", description="A regular expression on 'type: message' of the error")


class RebuildConfig(RunBookConfig):
    """Which global store, and where."""

    application: str = Field(description="The application.id, for example flight-board")
    store: str = Field(description="The store's name")
    instance: str | None = Field(default=None, description="The instance; leave it empty for all that run")


class ApprovalConfig(dg.Config):
    """Which proposed run, and what becomes of it."""

    run_book_run: int = Field(description="The number of the run, as the alert and `penstock run-books` show it")
    reject: bool = Field(default=False, description="Not to be run")
    reason: str = Field(default="", description="Why, for the audit trail")


def _actor(context: dg.OpExecutionContext) -> str:
    return f"dagster run {context.run.run_id[:8]}"


def _request(context: dg.OpExecutionContext, config: RunBookConfig) -> Request:
    return Request(requested_by=_actor(context), reason=config.reason, dagster_run_id=context.run.run_id)


def _carry_out(context: dg.OpExecutionContext, operations: Operations, book: RunBook, *, dry_run: bool) -> None:
    """Runs a run-book, or says what it would do. Fails if it is refused, with the reason. The check on alerts is evaluated anew."""
    if dry_run:
        told = book.dry_run()
        for line in told.lines:
            context.log.info(f"would {line}" if told.refused is None else line)
        if told.refused is not None:
            raise dg.Failure(description=f"would be refused: {told.refused}", allow_retries=False)
        return
    run = book.run()
    context.log_event(dagster_alerts.evaluation(operations))  # type: ignore[arg-type]  # it takes these too; its annotation is behind its code
    if run.state == RunBookState.REFUSED.value:
        raise dg.Failure(description=f"refused: {run.reason}", metadata={"run_book_run": run.id}, allow_retries=False)


def _named(penstock: PenstockResource, application: str) -> Application:
    return penstock.operations.applications.named(application)


@dg.op
def stop(context: dg.OpExecutionContext, config: StopConfig, penstock: PenstockResource) -> None:
    """The instance is no longer wanted, and is closed cleanly."""
    ran = penstock.operations.stop(config.instance, actor=_actor(context), timeout_s=config.timeout_seconds, kill=config.kill)
    context.log.info(f"{config.instance} {'closed cleanly' if ran else 'did not run'}")


@dg.op
def scale(context: dg.OpExecutionContext, config: ScaleConfig, penstock: PenstockResource) -> None:
    """So many instances are wanted and run; the others have handed their tasks over and stay stopped. The asset's partitions follow."""
    operations = penstock.operations
    operations.scale(config.application, config.instances, actor=_actor(context), progress=context.log.info)
    follow_instances(context.instance, operations)


@dg.op
def drain(context: dg.OpExecutionContext, config: DrainConfig, penstock: PenstockResource) -> None:
    """The others learn the instance's tasks and take them over; then it ends and stays stopped."""
    operations = penstock.operations
    application = _named(penstock, config.application) if config.application else operations.applications.of_instance(config.instance)
    ran = operations.drain(application, config.instance, actor=_actor(context), timeout_s=config.timeout_seconds, progress=context.log.info)
    context.log.info(f"{config.instance} {'has handed its tasks over and ended' if ran else 'did not run'}")
    follow_instances(context.instance, operations)


@dg.op
def install_seed(context: dg.OpExecutionContext, config: SeedConfig, penstock: PenstockResource) -> None:
    """The application's state and input offsets are those of the seed; nothing is started. Fails with what is in the way."""
    actor = _actor(context)
    context.log.info(penstock.operations.seed(config.instance, config.seed, actor=actor, reset=config.reset_offsets))


@dg.op
def restart(context: dg.OpExecutionContext, config: RestartConfig, penstock: PenstockResource) -> None:
    """The instance is closed cleanly and started again, with the code and configuration of now."""
    book = RestartInstance(penstock.operations, config.instance, _request(context, config), context.log.info)
    _carry_out(context, penstock.operations, book, dry_run=config.dry_run)


@dg.op
def resume(context: dg.OpExecutionContext, config: TaskConfig, penstock: PenstockResource) -> None:
    """The task's owner reads the committed offsets again and goes on. Fails with the owner's reason if the task is not paused."""
    application, task = _named(penstock, config.application), TaskId.parse(config.task)
    book = ResumeTask(application, penstock.operations.control_plane, task, _request(context, config), context.log.info)
    _carry_out(context, penstock.operations, book, dry_run=config.dry_run)


@dg.op
def skip(context: dg.OpExecutionContext, config: SkipRecordConfig, penstock: PenstockResource) -> None:
    """The run-book: check, keep, shift, resume, verify, close. Fails if it was refused, with the reason."""
    record = RecordInTheWay(TaskId.parse(config.task), config.topic, config.partition, config.offset)
    request = Request(
        requested_by=f"policy ({_actor(context)})" if config.run_book_run is not None else _actor(context),
        reason=config.reason,
        run_id=config.run_book_run,
        occurrence=config.occurrence,
        dagster_run_id=context.run.run_id,
    )
    book = SkipRecord(_named(penstock, config.application), penstock.operations.control_plane, record, request, context.log.info)
    _carry_out(context, penstock.operations, book, dry_run=config.dry_run)


@dg.op
def replay(context: dg.OpExecutionContext, config: ReplayConfig, penstock: PenstockResource) -> None:
    """The dead letters go back into their input, each exactly once."""
    book = ReplayDeadLetters(
        _named(penstock, config.application),
        penstock.operations.control_plane,
        _request(context, config),
        context.log.info,
        records=config.records,
        error=config.error,
    )
    _carry_out(context, penstock.operations, book, dry_run=config.dry_run)


@dg.op
def rebuild(context: dg.OpExecutionContext, config: RebuildConfig, penstock: PenstockResource) -> None:
    """The instances wipe their copy of the global store and read its topic anew."""
    book = RebuildGlobalStore(
        _named(penstock, config.application),
        penstock.operations.control_plane,
        config.store,
        _request(context, config),
        context.log.info,
        instance=config.instance,
    )
    _carry_out(context, penstock.operations, book, dry_run=config.dry_run)


@dg.op
def decide(context: dg.OpExecutionContext, config: ApprovalConfig, penstock: PenstockResource) -> None:
    """Approves a run that a policy proposed, and runs it; or rejects it."""
    operations, actor = penstock.operations, _actor(context)
    if config.reject:
        run = reject(operations.control_plane, config.run_book_run, actor, config.reason)
        context.log.info(f"run {run.id}: {run.reason}")
        return
    run = approve(operations.control_plane, config.run_book_run, actor)
    book = approved_run_book(operations, run, actor, context.log.info, context.run.run_id)
    _carry_out(context, operations, book, dry_run=False)


@dg.job(executor_def=dg.in_process_executor)
def stop_instance() -> None:
    """Stop an instance: it is no longer wanted, and is closed cleanly."""
    stop()


@dg.job(executor_def=dg.in_process_executor)
def scale_application() -> None:
    """Scale an application: so many instances run; tasks move as soon as their state is there, and others are drained."""
    scale()


@dg.job(executor_def=dg.in_process_executor)
def drain_instance() -> None:
    """Drain an instance: others learn its tasks and take them over, then it ends and stays stopped."""
    drain()


@dg.job(executor_def=dg.in_process_executor)
def seed_application() -> None:
    """Install a seed or snapshot in an application that stands still: changelogs, stores and input offsets."""
    install_seed()


@dg.job(executor_def=dg.in_process_executor)
def restart_instance() -> None:
    """Run-book: close an instance cleanly and start it again."""
    restart()


@dg.job(executor_def=dg.in_process_executor)
def resume_task() -> None:
    """Run-book: resume a paused task, from the offsets that are committed now."""
    resume()


@dg.job(executor_def=dg.in_process_executor)
def skip_record() -> None:
    """Run-book: keep the record that a task is paused at in the dead-letter topic, go on after it, close the alert."""
    skip()


@dg.job(executor_def=dg.in_process_executor)
def replay_dead_letters() -> None:
    """Run-book, after a fix: dead letters go back into their input, each exactly once, in order per key among them."""
    replay()


@dg.job(executor_def=dg.in_process_executor)
def rebuild_global_store() -> None:
    """Run-book: a global store is wiped and read anew; tasks that read it wait, the others go on."""
    rebuild()


@dg.job(executor_def=dg.in_process_executor)
def approve_run_book() -> None:
    """Approve a run-book that a policy proposed, and run it; or reject it."""
    decide()


JOBS = (
    scale_application,
    drain_instance,
    stop_instance,
    seed_application,
    restart_instance,
    resume_task,
    skip_record,
    replay_dead_letters,
    rebuild_global_store,
    approve_run_book,
)
