"""Snapshots in Dagster: the job `take_snapshot`, and a schedule for each application that declares an interval."""

import zlib

import dagster as dg
from pydantic import Field

from penstock.orchestration.dagster.resources import PenstockResource
from penstock.orchestration.declarations.applications import Application, Applications
from penstock.orchestration.instances.operations import Operations
from penstock.orchestration.snapshots.exports import export_snapshot
from penstock.orchestration.snapshots.taking import TAKE_SECONDS, Progress, take_snapshot
from penstock.runtime.model.states import State

_TELL_PERCENT = 10
APPLICATION = "penstock/application"
"""Tag of a run with the id of its application."""
_ACTIVE = [dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED]
_LIVING = {State.RUNNING.value, State.REBALANCING.value, State.RESTORING.value}


class SnapshotConfig(dg.Config):
    """Configuration of a snapshot."""

    application: str = Field(description="The application.id, for example flight-board")
    timeout_seconds: float = Field(default=TAKE_SECONDS, description="How long all tasks together may take", gt=0)
    export: bool = Field(default=True, description="Export it too, if streams.toml declares where to")


@dg.op(
    out=dg.Out(description="The snapshot's id"),
)
def take(context: dg.OpExecutionContext, config: SnapshotConfig, penstock: PenstockResource) -> str:
    """Take a snapshot of all tasks, as of a commit, wait until it is complete, and export it if that is declared."""
    operations = penstock.operations
    application = operations.applications.named(config.application)
    actor = f"dagster run {context.run.run_id[:8]}"
    snapshot = take_snapshot(
        operations, application, actor=actor, timeout_s=config.timeout_seconds, progress=_in_log(context, "{done} of {total} tasks are in")
    )
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
    return snapshot.id


def _in_log(context: dg.OpExecutionContext, text: str) -> Progress:
    """Return a progress callback that logs each tenth to the run's log."""
    logged = -1

    def progress(done: int, total: int) -> None:
        nonlocal logged
        step = 100 * done // total // _TELL_PERCENT if total else -1
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
    scheduled = [(application, cron) for application in applications.applications if (cron := application.snapshots.cron) is not None]
    plain = [_plain_name(application.id) for application, _ in scheduled]
    return [
        _schedule(name if plain.count(name) == 1 else f"{name}_{zlib.crc32(application.id.encode()):08x}", application, cron)
        for (application, cron), name in zip(scheduled, plain, strict=True)
    ]


def _plain_name(application_id: str) -> str:
    """Return a name that Dagster accepts. Ids that differ in punctuation only get the same name."""
    return f"snapshots_of_{''.join(letter if letter.isalnum() else '_' for letter in application_id)}"


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
    if not any(operations.look(name)[0].state in _LIVING for name in operations.instances(application)):
        return dg.SkipReason(f"no instance of {application.id} runs")
    config = dg.RunConfig(ops={take.name: SnapshotConfig(application=application.id)})
    return dg.RunRequest(run_config=config, tags={APPLICATION: application.id})
