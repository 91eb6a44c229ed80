"""The asset of one table."""

import dagster as dg
from pydantic import Field

from assets.instances import GROUP
from assets.spark.pipes import SparkJobs
from assets.spark.table_job import make
from assets.tables.days import asked_for, partitions
from assets.tables.lineage import Topics, dependencies
from assets.tables.metadata import history, table_metadata
from assets.tables.requests import new_version, table_request
from orchestration.applications import Application
from orchestration.operations import Operations
from orchestration.resources import PenstockResource
from orchestration.snapshots import local_root, take_snapshot
from orchestration.state_tables import StateTable
from runtime.snapshots.catalogue import find

NEW, NEWEST = "new", "newest"
IO_MANAGER = "tables"


class TableConfig(dg.Config):
    """What a run may be told."""

    snapshot: str = Field(
        default=NEW,
        description="Which snapshot the table is made of: `new`, one that is taken for it; `newest`, the newest that there is; or an id",
    )


def table_asset(table: StateTable, application: Application, topics: Topics) -> dg.AssetsDefinition:
    """Materialised means: made anew of the application's state, whole or for the days of the run's partitions. A backfill over many days
    is one run."""

    @dg.asset(
        name=table.name,
        deps=dependencies(topics, table.store),
        partitions_def=partitions(table.days),
        backfill_policy=None if table.days is None else dg.BackfillPolicy.single_run(),
        group_name=GROUP,
        kinds={"spark", table.format},
        io_manager_key=IO_MANAGER,
        description=_description(table),
    )
    def state_table(
        context: dg.AssetExecutionContext, config: TableConfig, penstock: PenstockResource, spark: SparkJobs
    ) -> dg.MaterializeResult[None]:
        operations = penstock.operations
        with spark.turn(context):  # first: a snapshot and a version are to be of now when Spark begins
            snapshot = _snapshot(application, operations, config, context) if table.source == "snapshot" else None
            request = table_request(table, application, operations.places, new_version(), snapshot, asked_for(context))
            before = history(context.instance, context.asset_key)
            result = spark.run(context, make, request, delta=table.format == "delta")
        return dg.MaterializeResult(metadata=table_metadata(table, result, topics, before))

    return state_table


def _snapshot(application: Application, operations: Operations, config: TableConfig, context: dg.AssetExecutionContext) -> str:
    """The place of the snapshot that a run is for."""
    if config.snapshot == NEW:
        taken = take_snapshot(operations, application, actor=f"dagster run {context.run.run_id[:8]}")
    else:
        taken = find(local_root(operations, application), None if config.snapshot == NEWEST else config.snapshot)
    context.log.info(f"snapshot {taken.id} is at {taken.place.uri}")
    return taken.place.uri


def _description(table: StateTable) -> str:
    made = "its changelog, run by run" if table.source == "changelog" else "a snapshot of it"
    about = f"The store `{table.store}` of `{table.application}` as a table, made of {made}."
    return about if table.description is None else f"{table.description}\n\n{about}"
