"""The jobs: stop and restart an instance, resume a task, skip a record. Thin: the work is in `operations`, `tasks` and `run_books`.

All run in the run's own process: they take a second of work, and a process for each step would take five.
"""

import dagster as dg
from pydantic import Field

from orchestration import audit
from orchestration.control_plane.models import RunBookState
from orchestration.resources import PenstockResource
from orchestration.run_books import RecordInTheWay, Request, SkipRecord
from orchestration.tasks import TaskCommands
from runtime.ids import TaskId


class InstanceConfig(dg.Config):
    """Which instance."""

    instance: str = Field(description="The name of a declared instance, for example flight-board-1")


class StopConfig(InstanceConfig):
    """Which instance, and how long it may take."""

    timeout_seconds: float = Field(default=60.0, description="How long a clean close may take")
    kill: bool = Field(default=False, description="End the process by force when the time is up")


class TaskConfig(dg.Config):
    """Which task."""

    application: str = Field(description="The application.id, for example flight-board")
    task: str = Field(description="The task's id: <subtopology>_<partition>, for example 0_3")


class SkipRecordConfig(TaskConfig):
    """Which record of a paused task. It is skipped only if the task is paused at exactly this one."""

    topic: str = Field(description="The topic of the record that the task is paused at")
    partition: int = Field(description="Its partition", ge=0)
    offset: int = Field(description="Its offset", ge=0)
    reason: str = Field(default="", description="Why, for the audit trail")
    run_book_run: int | None = Field(default=None, description="A run that the policy has reserved; leave it empty")
    occurrence: str | None = Field(default=None, description="The event that this answers; leave it empty")


def _actor(context: dg.OpExecutionContext) -> str:
    return f"dagster run {context.run.run_id[:8]}"


@dg.op
def stop(context: dg.OpExecutionContext, config: StopConfig, penstock: PenstockResource) -> None:
    """The instance is no longer wanted, and is closed cleanly."""
    ran = penstock.operations.stop(config.instance, actor=_actor(context), timeout_s=config.timeout_seconds, kill=config.kill)
    context.log.info(f"{config.instance} {'closed cleanly' if ran else 'did not run'}")


@dg.op
def restart(context: dg.OpExecutionContext, config: InstanceConfig, penstock: PenstockResource) -> None:
    """The instance is closed cleanly and started again, with the code and configuration of now."""
    started = penstock.operations.restart(config.instance, actor=_actor(context), progress=context.log.info)
    context.log.info(f"{config.instance} is {started.instance.state} as process {started.process.pid}")


@dg.op
def resume(context: dg.OpExecutionContext, config: TaskConfig, penstock: PenstockResource) -> None:
    """The task's owner reads the committed offsets again and goes on. Fails with the owner's reason if the task is not paused."""
    operations = penstock.operations
    application = operations.applications.named(config.application)
    with TaskCommands(application, _actor(context)) as commands:
        by = commands.resume(TaskId.parse(config.task))
    with operations.control_plane.writing() as session:
        audit.record(session, _actor(context), "task resumed", at=audit.now(), application=application.id, task=config.task)
    context.log.info(f"task {config.task} resumed by {by}")


@dg.op
def skip(context: dg.OpExecutionContext, config: SkipRecordConfig, penstock: PenstockResource) -> None:
    """The run-book: check, keep, shift, resume, verify, close. Fails if it was refused, with the reason."""
    operations = penstock.operations
    record = RecordInTheWay(TaskId.parse(config.task), config.topic, config.partition, config.offset)
    request = Request(
        requested_by=f"policy ({_actor(context)})" if config.run_book_run is not None else _actor(context),
        reason=config.reason,
        run_id=config.run_book_run,
        occurrence=config.occurrence,
        dagster_run_id=context.run.run_id,
    )
    application = operations.applications.named(config.application)
    run = SkipRecord(application, operations.control_plane, record, request, context.log.info).run()
    if run.state == RunBookState.REFUSED.value:
        raise dg.Failure(description=f"refused: {run.reason}", metadata={"run_book_run": run.id}, allow_retries=False)


@dg.job(executor_def=dg.in_process_executor)
def stop_instance() -> None:
    """Stop an instance: it is no longer wanted, and is closed cleanly."""
    stop()


@dg.job(executor_def=dg.in_process_executor)
def restart_instance() -> None:
    """Close an instance cleanly and start it again."""
    restart()


@dg.job(executor_def=dg.in_process_executor)
def resume_task() -> None:
    """Resume a paused task, from the offsets that are committed now."""
    resume()


@dg.job(executor_def=dg.in_process_executor)
def skip_record() -> None:
    """Run-book: keep the record that a task is paused at in the dead-letter topic, go on after it, close the alert."""
    skip()


JOBS = (stop_instance, restart_instance, resume_task, skip_record)
