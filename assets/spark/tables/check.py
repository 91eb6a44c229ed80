"""Job that compares a table with its changelog, at the offsets of the table. It does not use Dagster."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from penstock.assets.spark.changelog.reconcile import Comparison, reconcile
from penstock.assets.spark.changelog.store_log import store_log
from penstock.assets.spark.tables.files import table_files
from penstock.assets.spark.tables.job import MALFORMED_TABLE
from penstock.assets.spark.tables.request import TableRequest
from penstock.assets.spark.tables.shape import Shape
from penstock.assets.spark.types.formats import MALFORMED, MALFORMED_TYPE, row_columns
from penstock.orchestration.tables import TableVersion, WrongTableError
from penstock.runtime.config.environment import client_config

DIFFERENCES = "__differences"


class TableCheck(Comparison, frozen=True, kw_only=True):
    """Result of a check. All differences are in the table at `differences`. `version` and `snapshot` are those of the checked
    table, `days` its first and last checked day."""

    differences: str
    version: str
    snapshot: str | None
    days: tuple[str, ...] = ()


def check(request: TableRequest, spark: SparkSession, report: Callable[[str], None]) -> TableCheck:
    """Compare the current version with the changelog. Of a table by days, only the days of the last run are compared: earlier days belong
    to other offsets. `request.version` names the version of the table of differences.

    Raises WrongTableError (there is no table yet), StateDirectoryError (a store without a changelog, or one whose records are gone),
    StreamsError (the topology, the brokers).
    """
    files = table_files(request.format, request.location, Path(request.versions))
    version = files.version(spark)
    if version is None:
        raise WrongTableError(f"there is no table {request.table} yet: materialise it first")
    config = client_config(request.config, request.application)
    log = store_log(request.application, request.factory, request.store, config, version.value_schema)
    columns = [name for name in row_columns(log.layout) if name != MALFORMED]
    value = None if version.value_type is None else StructType.fromJson(msgspec.json.decode(version.value_type))
    shape = Shape(version.key_column, version.value_column, version.by_day, columns, value)
    where = None if version.first_day is None or version.last_day is None else _within(version.first_day, version.last_day)
    report(f"holding {request.location} against topic {log.topic}")
    actual = _with_malformed(request, spark, shape.store(files.read(spark)))
    found = reconcile(spark, actual, log, config, version.offsets, version.stream_times, where=where)
    try:
        place = request.location + DIFFERENCES
        differences = table_files(request.format, place, Path(request.versions + DIFFERENCES))
        schema = found.differences.schema.json()
        differences.write(found.differences, TableVersion(table=request.table + DIFFERENCES, version=request.version, schema=schema))
        return TableCheck(
            **{name: getattr(found, name) for name in Comparison.__struct_fields__},
            differences=place,
            version=version.version,
            snapshot=version.snapshot,
            days=() if where is None else (str(version.first_day), str(version.last_day)),
        )
    finally:
        found.close()


def _with_malformed(request: TableRequest, spark: SparkSession, rows: DataFrame) -> DataFrame:
    """Add the malformed rows, which are in a table of their own."""
    apart = table_files(request.format, request.location + MALFORMED_TABLE, Path(request.versions + MALFORMED_TABLE))
    good = rows.withColumn(MALFORMED, F.lit(None).cast(MALFORMED_TYPE))
    return good if apart.version(spark) is None else good.unionByName(apart.read(spark))


def _within(first: str, last: str) -> str:
    """Return a condition on `window_start`: the days from the first to the last."""
    end = date.fromisoformat(last) + timedelta(days=1)
    return f"window_start >= TIMESTAMP'{first} 00:00:00 UTC' AND window_start < TIMESTAMP'{end} 00:00:00 UTC'"
