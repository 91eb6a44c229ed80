"""Tables as inputs and outputs of assets: DataFrames of Spark, in Parquet or Delta.

    @dg.asset(io_manager_key="tables", metadata={"format": "delta"})          # its result is a table too; default: Parquet
    def late_airports(hourly_delay: DataFrame) -> DataFrame:
        return hourly_delay.where("mean_delay > 30").groupBy("origin").count()

An input is the current version when the step begins; of a table by days, the days of the run. An output replaces the table
atomically, below `<home>/tables/assets`; with daily partitions it needs a column `day`, and replaces the days of the run.

The Spark session belongs to the run's process and ends with it: jobs that use DataFrames should run in one process
(`dg.in_process_executor`, this project's default).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import dagster as dg
from msgspec.structs import replace
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.assets.spark.session.session import spark_session
from penstock.assets.spark.tables.files import DAY, TableFiles, table_files
from penstock.assets.spark.tables.shape import preview
from penstock.assets.tables.requests import new_version
from penstock.orchestration.declarations.applications import Applications
from penstock.orchestration.declarations.project_paths import ProjectPaths
from penstock.orchestration.declarations.state_tables import FORMATS
from penstock.orchestration.tables import TableVersion, WrongTableError

_OWN = "assets"


class TablesIOManager(dg.ConfigurableIOManager):
    """See the module's docstring. It has no settings of its own: tables are where `streams.toml` says, Spark runs where `[spark]` says."""

    def load_input(self, context: dg.InputContext) -> DataFrame:
        """Read a table as an input. Raises WrongTableError if it was not built yet."""
        declared = Applications.of(ProjectPaths.find())
        upstream = context.upstream_output
        form = _format({} if upstream is None else upstream.definition_metadata)
        frame = _files(declared, context.asset_key, form).read(_session(declared))
        if context.has_asset_partitions and DAY in frame.columns:
            keys = context.asset_partition_keys
            return _days(frame, keys)
        return frame

    def handle_output(self, context: dg.OutputContext, obj: DataFrame) -> None:
        """Write an output. Raises WrongTableError if it is not a DataFrame, lacks `day` for daily partitions, or cannot be written."""
        if not isinstance(obj, DataFrame):
            raise WrongTableError(f"{context.asset_key.to_user_string()} returned {type(obj).__name__}: a table is a DataFrame of Spark")
        declared = Applications.of(ProjectPaths.find())
        files = _files(declared, context.asset_key, _format(context.definition_metadata))
        version = TableVersion(table=context.asset_key.to_user_string(), version=new_version(), schema=obj.schema.json(), source="asset")
        if context.has_asset_partitions:
            if DAY not in obj.columns:
                raise WrongTableError(f"{version.table} has daily partitions, so its DataFrame needs a column `{DAY}` of type DATE")
            keys = sorted(context.asset_partition_keys)
            version = replace(version, by_day=True, first_day=keys[0], last_day=keys[-1])
            obj = _days(obj, keys).repartition(DAY)
        files.write(obj, version)
        made = files.read(obj.sparkSession)
        columns = [dg.TableColumn(column.name, column.dataType.simpleString()) for column in made.schema.fields]
        context.add_output_metadata(
            {
                "dagster/row_count": dg.MetadataValue.int(made.count()),
                "dagster/column_schema": dg.MetadataValue.table_schema(dg.TableSchema(columns)),
                "preview": dg.MetadataValue.md(preview(made)),
                "path": dg.MetadataValue.path(files.location),
            }
        )


def _files(declared: Applications, key: dg.AssetKey, form: str) -> TableFiles:
    """Return the files of a declared table, or of a user's own asset."""
    paths = ProjectPaths.find()
    for table in declared.tables:
        if key == dg.AssetKey([table.name]):
            return table_files(table.format, table.location(paths), table.versions(paths))
    folder = paths.tables / _OWN / Path(*key.path)
    return table_files(form, str(folder), folder.with_name(f".{folder.name}"))


def _format(metadata: Mapping[str, object]) -> str:
    """Return the format in the asset's own metadata."""
    declared_format = metadata.get("format", FORMATS[0])
    form = declared_format.value if isinstance(declared_format, dg.TextMetadataValue) else declared_format
    if form not in FORMATS:
        raise WrongTableError(f"format {form!r} is not one of {', '.join(FORMATS)}")
    return str(form)


def _session(declared: Applications) -> SparkSession:
    """Return the session of this process."""
    return spark_session(replace(declared.spark, delta=True))


def _days(frame: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Select the rows of these days."""
    return frame.where(F.col(DAY).between(F.lit(min(keys)).cast("date"), F.lit(max(keys)).cast("date")))
