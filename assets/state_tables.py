"""Tables that Spark makes of stores: one asset for each that `streams.toml` declares, and a check that it equals the changelog.

    [applications.flight-board.tables.hourly_delay]
    store = "hourly-delay"                                # the store
    value-schema = "flights BIGINT, delay DOUBLE"         # fields of the JSON values; inferred if not given
    key-column = "origin"                                 # names in place of `key` and `value`

Materialising one has the running instances take a snapshot of their stores, reads it with the data source `state`, and replaces the Parquet
in one step. The check reads the other witness, the changelog, and holds the table against it as of the snapshot's offsets.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import dagster as dg
from pydantic import PrivateAttr
from pyspark.sql import DataFrame, SparkSession

from assets.instances import GROUP
from assets.spark.changelog import read_changelog
from assets.spark.session import spark_session
from assets.spark.state_source import StoreSnapshot, find_store
from assets.spark.tables import (
    Comparison,
    TableSettings,
    TableSource,
    WrongTableError,
    compare,
    preview,
    read_source,
    shaped,
    text_columns,
    value_schema,
    write_table,
)
from orchestration.applications import Application, Applications, StateTable
from orchestration.dagster_alerts import INSTANCES
from orchestration.places import Places
from orchestration.resources import PenstockResource
from orchestration.snapshots import new_snapshot_id, partitions_of, take_snapshot

CHECK, JOB = "equals_changelog", "state_tables"


class SparkResource(dg.ConfigurableResource[SparkSession]):
    """A Spark session on this machine, made at first use. `master` and `driver_memory` are Spark's own settings."""

    master: str = "local[2]"
    driver_memory: str = "1g"
    _session: SparkSession | None = PrivateAttr(default=None)

    @property
    def session(self) -> SparkSession:
        if self._session is None:
            self._session = spark_session(master=self.master, driver_memory=self.driver_memory)
        return self._session


def state_table_definitions(applications: Applications) -> dg.Definitions:
    """Assets and checks of all declared tables, a job that makes all of them, and the resource `spark`."""
    declared = [(application, table) for application in applications.applications for table in application.tables]
    names = Counter(table.name for _, table in declared)
    assets: list[dg.AssetsDefinition] = []
    checks: list[dg.AssetChecksDefinition] = []
    for application, table in declared:
        TableSettings.of(table.settings)  # a mistake fails the load of the code location, not a run tomorrow
        key = dg.AssetKey([table.name] if names[table.name] == 1 else [application.id, table.name])
        assets.append(state_table_asset(application, table, key))
        checks.append(state_table_check(application, table, key))
    if not assets:
        return dg.Definitions()
    # One process for all of them: they share one Spark session.
    job = dg.define_asset_job(
        JOB,
        selection=dg.AssetSelection.assets(*assets) | dg.AssetSelection.checks_for_assets(*assets),
        description="Make all tables of state anew, and hold them against the changelogs.",
        executor_def=dg.in_process_executor,
    )
    return dg.Definitions(assets=assets, asset_checks=checks, jobs=[job], resources={"spark": SparkResource()})


def state_table_asset(application: Application, table: StateTable, key: dg.AssetKey) -> dg.AssetsDefinition:
    """The asset of one declared table."""

    @dg.asset(
        key=key,
        deps=[INSTANCES],
        group_name=GROUP,
        kinds={"spark", "parquet"},
        description=f"The store `{table.store}` of `{application.id}` as a table, as of a snapshot that is taken for it.",
    )
    def state_table(context: dg.AssetExecutionContext, penstock: PenstockResource, spark: SparkResource) -> dg.MaterializeResult[None]:
        operations = penstock.operations
        snapshot_id = new_snapshot_id()
        folders = take_snapshot(operations, application, snapshot_id, actor=f"dagster run {context.run.run_id[:8]}")
        context.log.info(f"snapshot {snapshot_id} is in {', '.join(map(str, folders))}")
        path = ",".join(map(str, folders))
        parts = find_store(path, table.store)
        changelog = parts[0].store.changelog
        require_all_partitions(parts, None if changelog is None else partitions_of(application, changelog.topic))
        made, source = make_table(spark.session, application, table, snapshot_id, path, parts)
        link = write_table(made, source, tables_folder(operations.places))
        return dg.MaterializeResult(metadata=table_metadata(spark.session.read.parquet(str(link.resolve())), source, link))

    return state_table


def state_table_check(application: Application, table: StateTable, key: dg.AssetKey) -> dg.AssetChecksDefinition:
    """The check that a table equals its changelog at the snapshot's offsets."""

    @dg.asset_check(
        asset=key,
        name=CHECK,
        description="Every row is in the changelog, as of the snapshot's offsets, with the same value and time, and the other way round. "
        "Keys whose record compaction has taken since are counted as moved on.",
    )
    def equals_changelog(penstock: PenstockResource, spark: SparkResource) -> dg.AssetCheckResult:
        link = tables_folder(penstock.operations.places) / application.id / table.name
        source = read_source(link)
        session = spark.session
        view = read_changelog(session, application.bootstrap_servers, source.parts)
        expected = shaped(view.rows, source)
        moved_on = view.moved_on.withColumnRenamed("key", source.key_column)
        return check_result(compare(session.read.parquet(str(link.resolve())), expected, moved_on, source), source)

    return equals_changelog


def tables_folder(places: Places) -> Path:
    """Where all tables are."""
    return places.home / "tables"


def require_all_partitions(parts: Sequence[StoreSnapshot], partitions: int | None) -> None:
    """Raises WrongTableError where a partition of the store was in no snapshot, or in two. `partitions`: how many there are, if known."""
    store = parts[0].store.name
    found = Counter(part.partition for part in parts)
    twice = [partition for partition, times in found.items() if times > 1]
    if twice:
        raise WrongTableError(f"partition {twice[0]} of store {store} is in two snapshots: its task moved meanwhile. Try again")
    missing = sorted(set(range(partitions or 0)) - set(found))
    if missing:
        listed = ", ".join(map(str, missing))
        raise WrongTableError(f"partitions {listed} of store {store} are in no snapshot: no instance runs their tasks now. Try again")


def make_table(
    spark: SparkSession, application: Application, table: StateTable, snapshot_id: str, path: str, parts: list[StoreSnapshot]
) -> tuple[DataFrame, TableSource]:
    """The table's rows, and what they are made of. Raises WrongTableError where the declaration does not fit the store."""
    settings = TableSettings.of(table.settings)
    # Looked at for the schema, for the sort's samples, and for the table itself: read once.
    rows = spark.read.format("state").option("path", path).option("store", table.store).load().cache()
    schema = value_schema(spark, rows, parts[0].store.layout, settings)
    source = TableSource(
        application=application.id,
        table=table.name,
        store=table.store,
        snapshot_id=snapshot_id,
        parts=parts,
        key_column=settings.key_column,
        value_column=settings.value_column,
        value_schema=None if schema is None else schema.json(),
    )
    return shaped(rows, source), source


def table_metadata(table: DataFrame, source: TableSource, link: Path) -> dict[str, dg.MetadataValue]:
    """What a materialisation of a table shows."""
    columns = [dg.TableColumn(name, kind) for name, kind in text_columns(table)]
    return {
        "dagster/row_count": dg.MetadataValue.int(table.count()),
        "dagster/column_schema": dg.MetadataValue.table_schema(dg.TableSchema(columns=columns)),
        "preview": dg.MetadataValue.md(preview(table)),
        "path": dg.MetadataValue.path(str(link)),
        "store": dg.MetadataValue.text(source.store),
        "snapshot": dg.MetadataValue.text(source.snapshot_id),
        "tasks": _offsets_table(source),
    }


def _offsets_table(source: TableSource) -> dg.TableMetadataValue:
    columns = {"task": "string", "changelog": "string", "next_offset": "int", "stream_time": "int", "at_ms": "int"}
    records = [
        dg.TableRecord(
            {
                "task": part.task.task,
                "changelog": "" if part.store.changelog is None else f"{part.store.changelog.topic}-{part.store.changelog.partition}",
                "next_offset": -1 if part.store.changelog is None else part.store.changelog.next_offset,
                "stream_time": part.task.stream_time,
                "at_ms": part.task.at_ms,
            }
        )
        for part in source.parts
    ]
    schema = dg.TableSchema(columns=[dg.TableColumn(name, kind) for name, kind in columns.items()])
    return dg.MetadataValue.table(records=records, schema=schema)


def check_result(found: Comparison, source: TableSource) -> dg.AssetCheckResult:
    """A comparison as Dagster shows it."""
    if found.equal:
        text = f"{found.rows} rows equal the changelog"
    else:
        text = f"{found.missing} rows of the changelog are missing, {found.surplus} are in the table only, of {found.expected}"
    if found.moved_on:
        text += f"; about {found.moved_on} keys, written again since, the changelog no longer tells"
    metadata: dict[str, dg.MetadataValue] = {
        "rows": dg.MetadataValue.int(found.rows),
        "expected": dg.MetadataValue.int(found.expected),
        "missing": dg.MetadataValue.int(found.missing),
        "surplus": dg.MetadataValue.int(found.surplus),
        "moved_on": dg.MetadataValue.int(found.moved_on),
        "snapshot": dg.MetadataValue.text(source.snapshot_id),
    }
    if found.differences:
        metadata["differences"] = dg.MetadataValue.md("\n".join(f"    {line}" for line in found.differences))
    return dg.AssetCheckResult(passed=found.equal, severity=dg.AssetCheckSeverity.ERROR, description=text, metadata=metadata)
