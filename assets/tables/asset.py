"""Asset of one table."""

import dagster as dg
from pydantic import Field

from penstock.assets.instances import GROUP
from penstock.assets.spark.process.pipes import SparkJobs
from penstock.assets.spark.tables.job import make
from penstock.assets.tables.days import asked_for, partitions
from penstock.assets.tables.lineage import Topics, dependencies
from penstock.assets.tables.metadata import history, table_metadata
from penstock.assets.tables.requests import new_version, table_request
from penstock.orchestration.dagster.resources import PenstockResource
from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.declarations.state_tables import StateTable
from penstock.orchestration.instances.operations import Operations
from penstock.orchestration.snapshots.taking import local_root, take_snapshot
from penstock.runtime.snapshots.catalogue import find

NEW, NEWEST = "new", "newest"
IO_MANAGER = "tables"


class TableConfig(dg.Config):
    """Configuration of a table's run."""

    snapshot: str = Field(
        default=NEW,
        description="Which snapshot the table is made of: `new`, one that is taken for it; `newest`, the newest that there is; or an id",
    )


def table_asset(table: StateTable, application: Application, topics: Topics) -> dg.AssetsDefinition:
    """Materialise: make the table again from the application's state, whole or for the days of the run's partitions. A backfill over
    many days is one run."""

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
        with spark.turn(context):  # first, so that the snapshot and the version are current when Spark begins
            snapshot = _snapshot(application, operations, config, context) if table.source == "snapshot" else None
            request = table_request(table, application, operations.paths, new_version(), snapshot, asked_for(context))
            before = history(context.instance, context.asset_key)
            result = spark.run(context, make, request, delta=table.format == "delta")
        return dg.MaterializeResult(metadata=table_metadata(table, result, topics, before))

    return state_table


def _snapshot(application: Application, operations: Operations, config: TableConfig, context: dg.AssetExecutionContext) -> str:
    """Return the location of the snapshot for a run; take one if the run names none."""
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
