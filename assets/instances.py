"""The asset `instances`: one partition for each instance that is declared or was asked for. Materialised means: it is wanted, and it runs.

The run starts the process unless it lives, waits until it says RUNNING, records what somebody wants to know, and ends. The process is
detached and lives on without Dagster; stopping it is a job.
"""

import base64
import shlex
from collections.abc import Iterable

import dagster as dg

from orchestration.audit import now
from orchestration.control_plane.models import Instance, Task
from orchestration.dagster_alerts import INSTANCES
from orchestration.drawing import parse, svg
from orchestration.drawing.live import newest_text, notes
from orchestration.instance_partitions import PARTITIONS
from orchestration.observer import Observer, Picture
from orchestration.operations import Started
from orchestration.places import Places
from orchestration.resources import PenstockResource
from runtime.errors import StreamsError
from runtime.states import TaskKind

GROUP = "streams"


def instances_asset(topics: Iterable[dg.AssetKey] = ()) -> dg.AssetsDefinition:
    """The asset over all instances. `topics` stand before it in the lineage: what the applications read."""

    @dg.asset(
        key=INSTANCES,
        deps=topics,
        partitions_def=dg.DynamicPartitionsDefinition(name=PARTITIONS),
        group_name=GROUP,
        kinds={"kafka", "python"},
        description="Running instances of the applications in `streams.toml`, one partition each. Materialise one to start it; the jobs "
        "`scale_application`, `drain_instance`, `stop_instance`, `restart_instance`, `resume_task` and `skip_record` do the rest. The "
        "process outlives Dagster.",
    )
    def instances(context: dg.AssetExecutionContext, penstock: PenstockResource) -> dg.MaterializeResult[None]:
        operations = penstock.operations
        started = operations.start(context.partition_key, actor=f"dagster run {context.run.run_id[:8]}", progress=context.log.info)
        metadata = instance_metadata(operations.places, started)
        application = operations.applications.of_instance(context.partition_key)
        try:
            metadata |= topology_metadata(Observer(application.id, application.bootstrap_servers).look())
        except StreamsError as error:
            context.log.warning(f"the instance runs, but its topology cannot be shown: {error}")
        return dg.MaterializeResult(metadata=metadata)

    return instances


def instance_metadata(places: Places, started: Started) -> dict[str, dg.MetadataValue]:
    """What a materialisation of an instance shows. Numbers have stable names, so that Dagster plots them over time."""
    row, tasks, at = started.instance, started.tasks, now()
    ages = [(at - task.checkpoint_at).total_seconds() for task in tasks if task.checkpoint_at is not None]
    metadata: dict[str, dg.MetadataValue] = {
        "state": dg.MetadataValue.text(row.state or "unknown"),
        "pid": dg.MetadataValue.int(started.process.pid),
        "started_by_this_run": dg.MetadataValue.bool(started.started),
        "tasks": tasks_table(tasks, row),
        "workers": dg.MetadataValue.int(len({task.worker for task in tasks}) or 1),
        "task_count": dg.MetadataValue.int(len(tasks)),
        **{f"{kind.value.lower()}_tasks": dg.MetadataValue.int(sum(task.kind == kind.value for task in tasks)) for kind in TaskKind},
        "lag": dg.MetadataValue.int(sum(task.lag or 0 for task in tasks if task.kind == TaskKind.ACTIVE.value)),
        "records_to_learn": dg.MetadataValue.int(sum(task.lag or 0 for task in tasks if task.kind == TaskKind.LEARNER.value)),
        "log": dg.MetadataValue.path(str(places.log_path(row.name))),
        "state_folder": dg.MetadataValue.path(str(places.state_dir(row.name))),
        "next_command": dg.MetadataValue.md(f"`penstock status {shlex.quote(row.name)}`"),
    }
    if ages:
        metadata["oldest_checkpoint_age_s"] = dg.MetadataValue.float(max(ages))
    if row.metrics_port:
        metadata["metrics"] = dg.MetadataValue.url(f"http://127.0.0.1:{row.metrics_port}/metrics")
    return metadata


def topology_metadata(picture: Picture) -> dict[str, dg.MetadataValue]:
    """The topology that the application runs, as a picture in the page; `penstock topology` draws the same, with rates."""
    text = newest_text(picture)
    if text is None:
        return {}
    drawn = base64.b64encode(svg(parse(text, notes(picture))).encode()).decode()
    return {"topology": dg.MetadataValue.md(f"![topology of {picture.application}](data:image/svg+xml;base64,{drawn})")}


def tasks_table(tasks: tuple[Task, ...], row: Instance) -> dg.TableMetadataValue:
    """A row for each task of the instance, copies included: of an active task `lag` is its input's, of a copy its changelogs'."""
    at = now()
    columns = {
        "task": "string",
        "worker": "int",
        "kind": "string",
        "state": "string",
        "lag": "int",
        "learned_percent": "float",
        "checkpoint_age_s": "float",
        "paused_at": "string",
    }
    records = [
        dg.TableRecord(
            {
                "task": task.task,
                "worker": task.worker,
                "kind": task.kind,
                "state": task.state,
                "lag": task.lag,
                "learned_percent": learned_percent(task),
                "checkpoint_age_s": None if task.checkpoint_at is None else round((at - task.checkpoint_at).total_seconds(), 1),
                "paused_at": None if task.paused_topic is None else f"{task.paused_topic}-{task.paused_partition}@{task.paused_offset}",
            }
        )
        for task in tasks
    ]
    schema = dg.TableSchema(columns=[dg.TableColumn(name, kind) for name, kind in columns.items()])
    return dg.MetadataValue.table(records=records, schema=schema)


def learned_percent(task: Task) -> float | None:
    """How much of its changelogs a copy has read; None of an active task, and where the end is not known."""
    if task.kind == TaskKind.ACTIVE.value or task.lag is None or not task.end_sum:
        return None
    return round(100 * (1 - task.lag / task.end_sum), 1)
