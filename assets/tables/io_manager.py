"""Tables as inputs and outputs of assets: DataFrames of Spark, in Parquet or Delta.

    @dg.asset(io_manager_key="tables", metadata={"format": "delta"})          # its own result is a table too; default: Parquet
    def late_airports(hourly_delay: DataFrame) -> DataFrame:
        return hourly_delay.where("mean_delay > 30").groupBy("origin").count()

An input is the version that counts when the step begins; of a table by days, the days that the run is for. An output replaces the table in
one step, below `<home>/tables/assets`; with daily partitions it has a column `day`, and replaces the days of the run.

The session of Spark belongs to the run's process and ends with it: let a job that uses DataFrames run in one process
(`dg.in_process_executor`, which is this project's default).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import dagster as dg
from msgspec.structs import replace
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from assets.spark.session import spark_session
from assets.spark.table_files import DAY, TableFiles, table_files
from assets.spark.table_shape import preview
from assets.tables.requests import new_version
from orchestration.applications import Applications
from orchestration.places import Places
from orchestration.state_tables import FORMATS
from orchestration.table_versions import TableVersion, WrongTableError

_OWN = "assets"


class TablesIOManager(dg.ConfigurableIOManager):
    """See the module's docstring. It has no settings of its own: tables are where `streams.toml` says, Spark runs where `[spark]` says."""

    def load_input(self, context: dg.InputContext) -> DataFrame:
        """Raises WrongTableError where the table was not made yet."""
        declared = Applications.read(Places.find().streams_toml)
        upstream = context.upstream_output
        form = _format({} if upstream is None else upstream.definition_metadata)
        frame = _files(declared, context.asset_key, form).read(_session(declared))
        if context.has_asset_partitions and DAY in frame.columns:
            keys = context.asset_partition_keys
            return _days(frame, keys)
        return frame

    def handle_output(self, context: dg.OutputContext, obj: DataFrame) -> None:
        """Raises WrongTableError: no DataFrame, no column `day` where the asset has daily partitions, or no place to write."""
        if not isinstance(obj, DataFrame):
            raise WrongTableError(f"{context.asset_key.to_user_string()} returned {type(obj).__name__}: a table is a DataFrame of Spark")
        declared = Applications.read(Places.find().streams_toml)
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
    """A declared table's place, or that of a table of the user's."""
    places = Places.find()
    for table in declared.tables:
        if key == dg.AssetKey([table.name]):
            return table_files(table.format, table.location(places), table.versions(places))
    folder = places.tables / _OWN / Path(*key.path)
    return table_files(form, str(folder), folder.with_name(f".{folder.name}"))


def _format(metadata: Mapping[str, object]) -> str:
    """What the asset's own metadata says."""
    said = metadata.get("format", FORMATS[0])
    form = said.value if isinstance(said, dg.TextMetadataValue) else said
    if form not in FORMATS:
        raise WrongTableError(f"format {form!r} is not one of {', '.join(FORMATS)}")
    return str(form)


def _session(declared: Applications) -> SparkSession:
    """The session of this process."""
    return spark_session(replace(declared.spark, delta=True))


def _days(frame: DataFrame, keys: Sequence[str]) -> DataFrame:
    """The rows of these days."""
    return frame.where(F.col(DAY).between(F.lit(min(keys)).cast("date"), F.lit(max(keys)).cast("date")))
