"""The asset of an application: one partition for each instance that is declared or was added by `scale`. A materialised instance should
run, and is running.

The run starts the process unless it is running already, waits until it reports RUNNING, records its metadata, and succeeds. The process
is detached and keeps running without Dagster; a job stops it.
"""

import base64
import os
import shlex
from urllib.parse import quote

import dagster as dg

from penstock.assets.lineage import Topics, source_keys
from penstock.orchestration.dagster import live_metadata
from penstock.orchestration.dagster.names import RUNNING, instances_key, partitions_name
from penstock.orchestration.dagster.ops import actor_of, explained
from penstock.orchestration.dagster.resources import PenstockResource
from penstock.orchestration.database.audit import now
from penstock.orchestration.database.models import global_task, to_ms
from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.declarations.project_paths import ProjectPaths
from penstock.orchestration.drawing import parse, svg
from penstock.orchestration.drawing.live import newest_call_sites, newest_text, notes
from penstock.orchestration.health.figures import Figures
from penstock.orchestration.instances.operations import Started
from penstock.orchestration.kafka.observer import Observer, Picture
from penstock.runtime.model.errors import StreamsError
from penstock.runtime.model.states import TaskKind, TaskState

_PICTURE_WIDTH = 460
"""Pixels that the page of an instance has for a picture, in a window of 1440 pixels."""


def instances_asset(application: Application, group: str, topics: Topics) -> dg.AssetsDefinition:
    """Return the asset over an application's instances. Its upstream assets are the topics that it reads. `group`: its name in Dagster."""
    key = instances_key(application.id)

    @dg.multi_asset(
        name=f"{group}__instances",
        specs=[
            dg.AssetSpec(
                key,
                deps=source_keys(topics),
                group_name=group,
                kinds=set(application.kinds),
                owners=application.owners,
                tags=application.tags,
                description=_description(application, topics),
                metadata=_links(application),
            )
        ],
        partitions_def=dg.DynamicPartitionsDefinition(name=partitions_name(application.id)),
    )
    def instances(context: dg.AssetExecutionContext, penstock: PenstockResource) -> dg.MaterializeResult[None]:
        operations = penstock.operations
        with explained():
            started = operations.start(context.partition_key, actor=actor_of(context), progress=context.log.info)
        metadata = instance_metadata(operations.paths, started)
        declared = operations.applications.of_instance(context.partition_key)
        try:
            picture = Observer(declared.id, declared.connection).observe()
            metadata |= topology_metadata(picture) | global_stores_metadata(picture, context.partition_key)
        except StreamsError as error:
            context.log.warning(f"the instance runs, but its topology and its global stores cannot be shown: {error}")
        return dg.MaterializeResult(asset_key=key, metadata=metadata, data_version=RUNNING)

    return instances


def _description(application: Application, topics: Topics) -> str:
    """Return the description in `streams.toml`, else the factory's docstring, and how the asset is used."""
    about = application.description or topics.docstring
    how = (
        f"The running instances of `{application.id}` (`{application.factory}`), one partition each. Materialise one to start it; the jobs "
        "`scale_application`, `drain_instance`, `stop_instance`, `restart_instance`, `resume_task` and `skip_record` do the rest. The "
        "process outlives Dagster. "
        f"`penstock board {application.id} --open` shows them live."
    )
    return f"{about}\n\n{how}" if about else how


def _links(application: Application) -> dict[str, dg.MetadataValue]:
    """Return a link to the application on the live board, if the environment says where that is."""
    board = os.environ.get("PENSTOCK_BOARD_URL", "").rstrip("/")
    if not board.startswith(("http://", "https://")):
        return {}
    return {"board": dg.MetadataValue.url(f"{board}/#app={quote(application.id, safe='')}")}


def instance_metadata(paths: ProjectPaths, started: Started) -> dict[str, dg.MetadataValue]:
    """Return metadata of an instance's materialisation."""
    row, tasks, at = started.instance, started.tasks, now()
    ages = [(at - task.checkpoint_at).total_seconds() for task in tasks if task.checkpoint_at is not None]
    kinds = [task.kind for task in tasks]
    figures = Figures(
        row.state or "unknown",
        {kind: kinds.count(kind) for kind in kinds},
        paused=sum(task.state == TaskState.PAUSED.value for task in tasks),
        lag=sum(task.lag or 0 for task in tasks if task.kind == TaskKind.ACTIVE.value),
        oldest_checkpoint_s=max(ages, default=None),
    )
    metadata: dict[str, dg.MetadataValue] = {
        **live_metadata.instance_metadata(figures, tasks, at),
        "pid": dg.MetadataValue.int(started.process.pid),
        "started_by_this_run": dg.MetadataValue.bool(started.started),
        "log": live_metadata.path(str(paths.log_path(row.name))),
        "state_folder": live_metadata.path(str(paths.state_dir(row.name))),
        "next_command": live_metadata.lines(f"penstock status {shlex.quote(row.name)}"),
    }
    if row.metrics_port:
        metadata["metrics"] = dg.MetadataValue.url(f"http://127.0.0.1:{row.metrics_port}/metrics")
    return metadata


def topology_metadata(picture: Picture) -> dict[str, dg.MetadataValue]:
    """Return a diagram of the running topology; `penstock topology` draws the same one, with rates."""
    text = newest_text(picture)
    if text is None:
        return {}
    drawn = base64.b64encode(svg(parse(text, notes(picture), newest_call_sites(picture)), widest=_PICTURE_WIDTH).encode()).decode()
    return {"topology": dg.MetadataValue.md(f"![topology of {picture.application}](data:image/svg+xml;base64,{drawn})")}


def global_stores_metadata(picture: Picture, instance: str) -> dict[str, dg.MetadataValue]:
    """Return a row per global store and worker of the instance; nothing without global stores."""
    columns = {"store": "string", "topic": "string", "state": "string", "lag": "int", "checkpoint_s": "float"}
    at_ms = to_ms(now())
    records = [
        dg.TableRecord(
            {
                "store": global_task(store, worker),
                "topic": report.topic,
                "state": report.state.value,
                "lag": report.lag,
                "checkpoint_s": None if report.checkpoint_ms is None else round((at_ms - report.checkpoint_ms) / 1000, 1),
            }
        )
        for store, of, worker, report in picture.global_stores()
        if of == instance
    ]
    return {"global_stores": live_metadata.table(columns, records)} if records else {}
