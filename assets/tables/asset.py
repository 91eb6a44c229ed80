"""The declared tables in Dagster: an asset for each, and the check that it equals its changelog at the offsets at which it was built."""

from collections.abc import Mapping
from datetime import date, timedelta

import dagster as dg
from pydantic import Field

from penstock.assets.lineage import Topics, dependencies, topics_of_all
from penstock.assets.spark.process.pipes import SparkJobs
from penstock.assets.spark.tables.check import TableCheck, check
from penstock.assets.spark.tables.job import make
from penstock.assets.tables.io_manager import TablesIOManager
from penstock.assets.tables.metadata import history, table_metadata
from penstock.assets.tables.requests import new_version, table_request
from penstock.orchestration.alerts import incidents
from penstock.orchestration.dagster.names import plain_names
from penstock.orchestration.dagster.resources import PenstockResource
from penstock.orchestration.database import audit
from penstock.orchestration.declarations.applications import Application, Applications
from penstock.orchestration.declarations.state_tables import Days, StateTable
from penstock.orchestration.instances.operations import Operations
from penstock.orchestration.snapshots.taking import local_root, take_snapshot
from penstock.runtime.snapshots.catalogue import find


def partitions(days: Days | None) -> dg.DailyPartitionsDefinition | None:
    """Return a partition for each day (UTC), including today: its windows exist as soon as they have begun."""
    if days is None:
        return None
    first = days.first.isoformat()
    if days.last is None:
        return dg.DailyPartitionsDefinition(first, end_offset=1)
    return dg.DailyPartitionsDefinition(first, (days.last + timedelta(days=1)).isoformat())


def asked_for(context: dg.AssetExecutionContext) -> tuple[date, date] | None:
    """Return the first and the last day of a run; None if the table has no days."""
    if not context.has_partition_key and not context.has_partition_key_range:
        return None
    keys = context.partition_key_range
    return date.fromisoformat(keys.start), date.fromisoformat(keys.end)


NEW, NEWEST = "new", "newest"
IO_MANAGER = "tables"
JOB = "state_tables"


class TableConfig(dg.Config):
    """Configuration of a table's run."""

    snapshot: str = Field(
        default=NEW,
        description="Which snapshot the table is made of: `new`, one that is taken for it; `newest`, the newest that there is; or an id",
    )


def table_asset(table: StateTable, application: Application, group: str, topics: Topics) -> dg.AssetsDefinition:
    """Materialise: make the table again from the application's state, whole or for the days of the run's partitions. A backfill over
    many days is one run. `group`: of the application."""

    @dg.asset(
        name=table.name,
        deps=dependencies(application.id, topics, table.store),
        partitions_def=partitions(table.days),
        backfill_policy=None if table.days is None else dg.BackfillPolicy.single_run(),
        group_name=group,
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


CHECK = "equals_changelog"


def table_check(table: StateTable, application: Application) -> dg.AssetChecksDefinition:
    """Return the check. Differences are written to the table `<table>__differences`, and open an alert, which the next passing check
    resolves."""

    @dg.asset_check(
        asset=dg.AssetKey([table.name]),
        name=CHECK,
        description="Every row is in the changelog, as of the table's offsets, with the same value and time, and the other way round. Keys "
        "whose record compaction has taken since are counted as moved on. Of a table by days, the days that were made last are looked at.",
    )
    def equals_changelog(context: dg.AssetCheckExecutionContext, penstock: PenstockResource, spark: SparkJobs) -> dg.AssetCheckResult:
        operations = penstock.operations
        with spark.turn(context):
            request = table_request(table, application, operations.paths, new_version(), None, None)
            found = spark.run(context, check, request, delta=table.format == "delta")
        report_differences(operations, table, found, occurrence=request.version, actor=f"dagster run {context.run.run_id[:8]}")
        return check_result(found)

    return equals_changelog


def report_differences(operations: Operations, table: StateTable, found: TableCheck, *, occurrence: str, actor: str) -> None:
    """Open, count or resolve the alert on the table."""
    counts = {"missing": found.missing, "surplus": found.surplus, "different": found.different}
    checked = incidents.DifferenceCheck(
        incidents.TABLE_DIFFERS, table.application, table.name, occurrence, counts, found.first, found.differences
    )
    with operations.control_plane.writing() as session:
        incidents.of_check(session, checked, actor=actor, at=audit.now())


def check_result(found: TableCheck) -> dg.AssetCheckResult:
    """Convert the result to Dagster's."""
    numbers = ("rows", "expected", "missing", "surplus", "different", "moved_on", "malformed")
    metadata: dict[str, dg.MetadataValue] = {name: dg.MetadataValue.int(getattr(found, name)) for name in numbers}
    metadata |= {"version": dg.MetadataValue.text(found.version), "differences": dg.MetadataValue.text(found.differences)}
    if found.snapshot is not None:
        metadata["snapshot"] = dg.MetadataValue.text(found.snapshot)
    for name, lines in (("first_differences", found.first), ("notes", found.notes)):
        if lines:
            metadata[name] = dg.MetadataValue.md("\n".join(f"    {line}" for line in lines))
    return dg.AssetCheckResult(passed=found.equal, severity=dg.AssetCheckSeverity.ERROR, description=_text(found), metadata=metadata)


def _text(found: TableCheck) -> str:
    text = f"{found.rows:,} rows equal the changelog"
    if not found.equal:
        text = (
            f"{found.different:,} rows differ from the changelog, {found.missing:,} are missing, {found.surplus:,} are in the table only, "
            f"of {found.expected:,}: see {found.differences}"
        )
    if found.days:
        text += f" (days {found.days[0]} to {found.days[1]})"
    if found.moved_on:
        text += f"; {found.moved_on:,} keys were not compared, because they were written again since"
    return text


def table_definitions(applications: Applications, topics: Mapping[str, Topics] | None = None) -> dg.Definitions:
    """Return assets and checks of all declared tables, and the job for those without days. `topics`: the result of `topics_of_all`,
    if the caller already has it.

    The resources are defined even without tables: users' own assets may need them.
    """
    resources = {IO_MANAGER: TablesIOManager(), "spark": SparkJobs()}
    if not applications.tables:
        return dg.Definitions(resources=resources)
    topics = topics_of_all(applications) if topics is None else topics
    assets: list[dg.AssetsDefinition] = []
    checks: list[dg.AssetChecksDefinition] = []
    groups = plain_names(applications)
    for table in applications.tables:
        application, known = applications.named(table.application), topics[table.application]
        assets.append(table_asset(table, application, groups[application.id], known))
        if not known.of_stores or table.store in known.of_stores:
            checks.append(table_check(table, application))
    # Tables by days are not in the job: their runs need days, which a backfill in the UI names.
    whole = [asset for asset in assets if asset.partitions_def is None]
    jobs = []
    if whole:
        tables = dg.AssetSelection.assets(*whole) | dg.AssetSelection.checks_for_assets(*whole)
        description = "Build the tables of state again, and compare them with the changelogs."
        jobs.append(dg.define_asset_job(JOB, selection=tables, description=description, executor_def=dg.in_process_executor))
    return dg.Definitions(assets=assets, asset_checks=checks, jobs=jobs, resources=resources)
