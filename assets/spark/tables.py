"""From a store to a table: columns with names, Parquet that is replaced in one step, and the comparison of two tables.

    <home>/tables/<application>/<table>                      a link to the version that counts
    <home>/tables/<application>/.<table>/<snapshot id>/      Parquet, and `_source.json`: what it was made of

A reader that has opened a version goes on reading it while the next one is written; the link is replaced in one step. The two newest
versions are kept.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType

from assets.spark.state_source import StoreSnapshot
from runtime.stores.base import StoreLayout

SOURCE = "_source.json"
_KEPT = 2
_SHOWN = 10
_SIGN = "__sign"


class WrongTableError(Exception):
    """The table cannot be made as it is declared; the message says what would be right."""


@dataclass(frozen=True, slots=True)
class TableSettings:
    """How a table is shaped (keys of `[applications.<id>.tables.<name>]` beside `store`).

    `value_schema`: the fields of JSON values, as Spark's DDL (`flights BIGINT, delay DOUBLE`); inferred where it is None. `key_column` and
    `value_column`: names in place of `key` and `value`.
    """

    value_schema: str | None = None
    key_column: str = "key"
    value_column: str = "value"

    @classmethod
    def of(cls, settings: Mapping[str, object]) -> TableSettings:
        """Raises WrongTableError for a key that is not known."""
        known = {"value-schema": "value_schema", "key-column": "key_column", "value-column": "value_column"}
        unknown = sorted(set(settings) - set(known))
        if unknown:
            raise WrongTableError(f"{unknown[0]!r} is not a setting of a table; there are store, {', '.join(known)}")
        return cls(**{known[name]: str(value) for name, value in settings.items()})


class TableSource(msgspec.Struct, frozen=True, kw_only=True):
    """What a version of a table was made of; `value_schema` is Spark's JSON form, None where values are no JSON objects."""

    application: str
    table: str
    store: str
    snapshot_id: str
    parts: list[StoreSnapshot]
    key_column: str
    value_column: str
    value_schema: str | None

    @property
    def layout(self) -> StoreLayout:
        return self.parts[0].store.layout

    @property
    def key_columns(self) -> list[str]:
        """The columns that name a row, in the table."""
        window = ["window_start"] if self.layout.kind == "window" else []
        return ["partition", self.key_column, *window]


def value_schema(spark: SparkSession, rows: DataFrame, layout: StoreLayout, settings: TableSettings) -> StructType | None:
    """The fields of the store's JSON values: declared, or inferred from all of them; None where the values are no JSON objects."""
    if layout.value_serde != "JSON":
        if settings.value_schema is not None:
            raise WrongTableError(f"value-schema is for values in JSON; these are {layout.value_serde}")
        return None
    if settings.value_schema is not None:
        declared = StructType.fromDDL(settings.value_schema)
        if not isinstance(declared, StructType):
            raise WrongTableError(f"value-schema {settings.value_schema!r} names no fields; for example: flights BIGINT, delay DOUBLE")
        return declared
    inferred = spark.read.json(rows.select("value").rdd.map(lambda row: row.value)).schema
    plain = not inferred.fields or inferred.fieldNames() == ["_corrupt_record"]
    return None if plain else inferred


def shaped(rows: DataFrame, source: TableSource) -> DataFrame:
    """Rows of a store (`formats.row_schema`) as the table: key, window, the value's fields or the value, timestamp, partition."""
    columns = [F.col("key").alias(source.key_column)]
    columns += [F.col(name) for name in ("window_start", "window_end") if name in rows.columns]
    taken = {source.key_column, "window_start", "window_end", "timestamp", "partition"}
    if source.value_schema is None:
        columns.append(F.col("value").alias(source.value_column))
    else:
        fields = StructType.fromJson(msgspec.json.decode(source.value_schema))
        rows = rows.withColumn("value", F.from_json("value", fields))
        columns += [F.col("value")[name].alias(f"value_{name}" if name in taken else name) for name in fields.fieldNames()]
    columns += [F.col(name) for name in ("timestamp", "partition") if name in rows.columns]
    return rows.select(*columns)


def write_table(table: DataFrame, source: TableSource, tables: Path) -> Path:
    """Writes a version and makes it the one that counts; the path of the link.

    `tables` is the folder of all tables. Safe to stop at any moment: until the last step the old version stands.
    """
    link = tables / source.application / source.table
    versions = link.with_name(f".{source.table}")
    version = versions / source.snapshot_id
    order = [source.key_column, *(name for name in ("window_start",) if name in table.columns)]
    table.sort(*order).write.mode("overwrite").parquet(str(version))
    (version / SOURCE).write_bytes(msgspec.json.encode(source))
    pointer = link.with_name(f".{source.table}.{source.snapshot_id}.link")
    pointer.symlink_to(version.relative_to(link.parent))
    os.replace(pointer, link)
    for old in sorted(versions.iterdir(), key=lambda path: path.stat().st_mtime_ns, reverse=True)[_KEPT:]:
        shutil.rmtree(old, ignore_errors=True)
    return link


def read_source(link: Path) -> TableSource:
    """What the version that counts was made of. Raises WrongTableError where there is no table yet."""
    try:
        return msgspec.json.decode((link / SOURCE).read_bytes(), type=TableSource)
    except (OSError, msgspec.DecodeError) as error:
        raise WrongTableError(f"{link} holds no table that was made of a store: materialise it first ({error})") from error


@dataclass(frozen=True, slots=True)
class Comparison:
    """A table held against what its changelog says. Counts of rows; `differences` are a few of them as text, `-` missing and `+`
    surplus."""

    rows: int
    expected: int
    missing: int
    surplus: int
    moved_on: int
    differences: tuple[str, ...]

    @property
    def equal(self) -> bool:
        return self.missing == self.surplus == 0


def compare(table: DataFrame, expected: DataFrame, moved_on: DataFrame, source: TableSource) -> Comparison:
    """`expected` and `moved_on` are shaped as the table is. Keys that have moved on are left out of the table and counted."""
    expected, moved_on = expected.cache(), moved_on.cache()
    known = table.join(moved_on.select(*source.key_columns), on=source.key_columns, how="left_anti").select(*expected.columns)
    # Rows of both sides in one heap, each with its sign: equal rows cancel out, whatever the number of copies.
    heap = known.withColumn(_SIGN, F.lit(1)).unionByName(expected.withColumn(_SIGN, F.lit(-1)))
    uneven = heap.groupBy(*expected.columns).agg(F.sum(_SIGN).alias(_SIGN)).where(f"{_SIGN} <> 0").cache()
    try:
        counts = uneven.agg(F.sum(F.greatest(-F.col(_SIGN), F.lit(0))), F.sum(F.greatest(F.col(_SIGN), F.lit(0)))).first()
        missing, surplus = (0, 0) if counts is None else (counts[0] or 0, counts[1] or 0)
        differences = tuple(_shown(row) for row in uneven.take(_SHOWN)) if missing or surplus else ()
        return Comparison(table.count(), expected.count(), missing, surplus, moved_on.count(), differences)
    finally:
        for frame in (expected, moved_on, uneven):
            frame.unpersist()


def _shown(row: Row) -> str:
    values = row.asDict()
    return f"{'-' if values.pop(_SIGN) < 0 else '+'} {values}"


def text_columns(table: DataFrame) -> list[tuple[str, str]]:
    """Names and types of the columns, as Spark writes them."""
    return [(field.name, field.dataType.simpleString()) for field in table.schema.fields]


def preview(table: DataFrame, rows: int = 10) -> str:
    """The first rows as a Markdown table."""
    names = table.columns
    shown = table.limit(rows).select(*[F.col(name).cast(StringType()) for name in names]).collect()
    lines = [f"| {' | '.join(names)} |", f"| {' | '.join('---' for _ in names)} |"]
    lines += [f"| {' | '.join('' if value is None else value.replace('|', chr(92) + '|') for value in row)} |" for row in shown]
    return "\n".join(lines)
