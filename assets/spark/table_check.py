"""Holds a table against its changelog, at the offsets that the table stands for. No Dagster in it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from assets.spark.formats import MALFORMED, MALFORMED_TYPE, row_columns
from assets.spark.reconcile import Comparison, reconcile
from assets.spark.store_log import store_log
from assets.spark.table_files import table_files
from assets.spark.table_job import MALFORMED_TABLE
from assets.spark.table_request import TableRequest
from assets.spark.table_shape import Shape
from orchestration.table_versions import TableVersion, WrongTableError

DIFFERENCES = "__differences"


class TableCheck(Comparison, frozen=True, kw_only=True):
    """What came of it. All differences are in the table at `differences`. `version` and `snapshot` are those of the table that was looked
    at, `days` the first and the last of it that were."""

    differences: str
    version: str
    snapshot: str | None
    days: tuple[str, ...] = ()


def check(request: TableRequest, spark: SparkSession, report: Callable[[str], None]) -> TableCheck:
    """Holds the version that counts against the changelog. Of a table by days the days that were made last are held: earlier ones are as of
    other offsets. `request.version` names the version of the table of differences.

    Raises WrongTableError (there is no table yet), StateDirectoryError (a store without a changelog, or one whose records are gone),
    StreamsError (the topology, the brokers).
    """
    files = table_files(request.format, request.location, Path(request.versions))
    version = files.version(spark)
    if version is None:
        raise WrongTableError(f"there is no table {request.table} yet: materialise it first")
    log = store_log(request.application, request.factory, request.store, request.config, version.value_schema)
    columns = [name for name in row_columns(log.layout) if name != MALFORMED]
    value = None if version.value_type is None else StructType.fromJson(msgspec.json.decode(version.value_type))
    shape = Shape(version.key_column, version.value_column, version.by_day, columns, value)
    where = None if version.first_day is None or version.last_day is None else _within(version.first_day, version.last_day)
    report(f"holding {request.location} against topic {log.topic}")
    actual = _with_malformed(request, spark, shape.store(files.read(spark)))
    found = reconcile(spark, actual, log, request.config, version.offsets, version.stream_times, where=where)
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
    """The table's rows, and those that are kept apart since their bytes do not fit."""
    apart = table_files(request.format, request.location + MALFORMED_TABLE, Path(request.versions + MALFORMED_TABLE))
    good = rows.withColumn(MALFORMED, F.lit(None).cast(MALFORMED_TYPE))
    return good if apart.version(spark) is None else good.unionByName(apart.read(spark))


def _within(first: str, last: str) -> str:
    """A condition on `window_start`: the days from the first to the last."""
    end = date.fromisoformat(last) + timedelta(days=1)
    return f"window_start >= TIMESTAMP'{first} 00:00:00 UTC' AND window_start < TIMESTAMP'{end} 00:00:00 UTC'"
