"""Reconciliation: compares rows of a store from a snapshot with those from the store's topic at the same offsets.

Only counts and the first few keys are collected. The rows of both sides are grouped together, each with a sign; equal rows cancel out,
whatever their number, and the differences remain. (Rejected: a join of the two sides by key. It has to sort both sides, where equal
rows only need hashing; and two different keys may decode to the same value, as `{"a": 1}` and `{"a":1}` do.)

Three things are not differences (rules.md, 29):

  - records written at or after the offsets: the topic is read to its end, but only records below the offsets count;
  - a key that has records only at or after the offset: it has *moved on*, because compaction removed the record that the snapshot
    contains. Nothing can be concluded about such keys; they are counted and left out;
  - windows, sessions and versions that had expired at the store's stream time as of the snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F

from penstock.assets.spark.changelog import fold
from penstock.assets.spark.changelog.kafka_options import connector_options
from penstock.assets.spark.changelog.log_range import LogRange, log_range, require_whole
from penstock.assets.spark.changelog.store_log import StoreLog
from penstock.assets.spark.types.formats import MALFORMED, key_columns, row_schema
from penstock.runtime.config.streams_config import StreamsConfig

MISSING, SURPLUS, DIFFERENT = "missing", "surplus", "different"
"""Sides of a difference: only the topic has the row; only the snapshot has it; both have it, with different content."""
_SIDE = "__side"
_EXPECTED = "expected_"
_SIDES = (("actual", ""), ("expected", _EXPECTED))
_SHOWN = 10


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Result of comparing a store's rows with its topic. Counts are of rows, `moved_on` of keys; `malformed` rows are those of the
    store whose bytes do not fit its serdes. `first` describes the first differences, a sentence each. `notes` as in `ChangelogTable`."""

    rows: int
    expected: int
    missing: int
    surplus: int
    different: int
    moved_on: int
    malformed: int
    first: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def equal(self) -> bool:
        return self.missing == self.surplus == self.different == 0


class Reconciliation(Comparison, frozen=True, kw_only=True):
    """A comparison and its rows. `differences` (lazy) has a row per difference: `side`, the key's columns, each other column twice (the
    store's, and the topic's as `expected_…`), `task`, `partition`; without an order. It keeps what it needs in Spark's cache until
    `close`."""

    differences: DataFrame
    cached: tuple[DataFrame, ...] = ()

    def close(self) -> None:
        for frame in self.cached:
            frame.unpersist()


def reconcile(
    spark: SparkSession,
    actual: DataFrame,
    log: StoreLog,
    config: Mapping[str, object],
    offsets: Mapping[int, int],
    times: Mapping[int, int] | None = None,
    where: str | None = None,
) -> Reconciliation:
    """Compare `actual` (columns of `formats.row_schema`) with the topic at `offsets` (partition → next offset).

    `times`: the store's stream times at that point (ms, by partition), instead of those of the records. `where`: an SQL condition on the
    columns; only rows that satisfy it are compared, on both sides. Raises like `read_changelog`.

    If differences are found in a topic that is being written to, the comparison is repeated once. The log cleaner may have run during the
    read: an old record of a key was read before its removal, and the newer one was removed before it was read.
    """
    found = require_whole(log, log_range(log, config, offsets))
    result = _held(spark, actual, log, config, found, times, where)
    if result.equal or found.stable == found.end:
        return result
    result.close()
    return _held(spark, actual, log, config, require_whole(log, log_range(log, config, offsets)), times, where)


def _held(
    spark: SparkSession,
    actual: DataFrame,
    log: StoreLog,
    config: Mapping[str, object],
    found: LogRange,
    times: Mapping[int, int] | None,
    where: str | None,
) -> Reconciliation:
    options = connector_options(StreamsConfig({**config, "application.id": log.application}))
    entries = fold.latest_below(fold.read_records(spark, options, found.to_now()), log, found.end).persist()  # used three times
    known = entries.where(~F.col("moved_on"))
    log, first = fold.typed(log, known), fold.horizons(log, times or fold.stream_times(known, log))
    expected = fold.table_rows(fold.unexpired(fold.kept_rows(fold.alive(known, log, first), log), log, first), log)
    moved = _moved_keys(entries, log)
    actual = actual.select(*expected.columns)
    if log.of_source:
        actual, expected = _without_time(actual), _without_time(expected)
    heap = _heap(actual, expected) if where is None else _heap(actual.where(where), expected.where(where))
    total = heap.agg(
        F.sum("actual").alias("rows"),
        F.sum("expected").alias("expected"),
        F.count_if(F.col("actual") != F.col("expected")).alias("uneven"),
        F.sum(F.when(F.col(MALFORMED).isNotNull(), F.col("actual"))).alias("malformed"),
    ).collect()[0]
    differences = _differences(_without_moved(heap.where("actual <> expected"), moved, log), log)
    if total["uneven"]:
        differences = differences.persist()
        sides = {row["side"]: row["count"] for row in differences.groupBy("side").count().collect()}
        shown = _first(differences, log) if sides else ()
    else:
        differences, sides, shown = spark.createDataFrame([], differences.schema), {}, ()
    return Reconciliation(
        rows=total["rows"] or 0,
        expected=total["expected"] or 0,
        missing=sides.get(MISSING, 0),
        surplus=sides.get(SURPLUS, 0),
        different=sides.get(DIFFERENT, 0),
        moved_on=moved.count(),
        malformed=total["malformed"] or 0,
        first=shown,
        notes=found.notes,
        differences=differences,
        cached=(entries, differences),
    )


def _without_time(rows: DataFrame) -> DataFrame:
    """Set timestamps to null, where store and topic may differ: with `emit_on_change` a record that repeats a table's value is not stored,
    but it is the last one on its topic."""
    return rows.withColumn("timestamp", F.lit(None).cast("timestamp")) if "timestamp" in rows.columns else rows


def _heap(actual: DataFrame, expected: DataFrame) -> DataFrame:
    """Return every row that either side has, with the number of times each side has it."""
    sides = actual.withColumn(_SIDE, F.lit(1)).unionByName(expected.withColumn(_SIDE, F.lit(-1)))
    counts = [F.count_if(F.col(_SIDE) == 1).alias("actual"), F.count_if(F.col(_SIDE) == -1).alias("expected")]
    return sides.groupBy(*expected.columns).agg(*counts)


def _moved_keys(entries: DataFrame, log: StoreLog) -> DataFrame:
    """Return the columns that identify a row (for versions, those that identify its key) of keys that have moved on; and `_malformed`."""
    if log.layout.kind == "versioned":
        entries = entries.groupBy("partition", "key").agg(
            F.min("moved_on").alias("moved_on"), F.lit(None).cast("binary").alias("value"), F.max("timestamp").alias("timestamp")
        )
    return fold.decoded(entries.where("moved_on"), log).select(*_names_of(log), MALFORMED)


def _names_of(log: StoreLog) -> list[str]:
    return [name for name in key_columns(log.layout) if name != "valid_from"]


def _without_moved(uneven: DataFrame, moved: DataFrame, log: StoreLog) -> DataFrame:
    """Drop rows of the store whose key has moved on."""
    row, key = uneven.alias("row"), moved.alias("moved")
    same = F.col("row.actual") > F.col("row.expected")
    for name in _names_of(log):
        same &= F.col(f"row.{name}").eqNullSafe(F.col(f"moved.{name}"))
    # A malformed key is identified by its bytes.
    same &= F.col("row.key").isNotNull() | F.col(f"row.{MALFORMED}.key").eqNullSafe(F.col(f"moved.{MALFORMED}.key"))
    return row.join(key, same, "left_anti").select("row.*")


def _differences(uneven: DataFrame, log: StoreLog) -> DataFrame:
    """Return the rows that only one side has, those of one key side by side."""
    keys = key_columns(log.layout)
    schema = row_schema(log.layout, log.schemas, log.value_schema)
    others = [name for name in schema.fieldNames() if name not in keys]
    copies = F.sequence(F.lit(1), F.abs(F.col("actual") - F.col("expected")))
    ours = F.col("actual") > F.col("expected")
    named = F.struct(*keys, F.when(F.isnull("key"), F.col(MALFORMED)["key"]).alias(MALFORMED))
    rows = uneven.select(named.alias("named"), F.struct(*others).alias("content"), ours.alias("ours"), F.explode(copies).alias("copy"))
    # Entries whose keys decode to the same value are numbered on each side and paired by number. More than one is very rare.
    number = F.row_number().over(Window.partitionBy("named", "ours").orderBy("copy"))
    pairs = (
        rows.withColumn("number", number)
        .groupBy("named", "number")
        .agg(
            F.first(F.when(F.col("ours"), F.col("content")), ignorenulls=True).alias("actual"),
            F.first(F.when(~F.col("ours"), F.col("content")), ignorenulls=True).alias("expected"),
        )
    )
    side = F.when(F.isnull("actual"), MISSING).when(F.isnull("expected"), SURPLUS).otherwise(DIFFERENT)
    both = [F.col(f"{which}.{name}").alias(f"{prefix}{name.lstrip('_')}") for name in others for which, prefix in _SIDES]
    return pairs.select(side.alias("side"), *[F.col(f"named.{name}").alias(name) for name in keys], *both, _task(log).alias("task"))


def _task(log: StoreLog) -> Column:
    return F.lit("global") if log.is_global else F.concat(F.lit(f"{log.subtopology}_"), F.col("named.partition"))


def _first(differences: DataFrame, log: StoreLog) -> tuple[str, ...]:
    """Return a sentence about each of the first few differences."""
    keys = [name for name in key_columns(log.layout) if name != "partition"]
    others = [name for name in differences.columns if name not in (*keys, "side", "task", "partition")]
    ours = [name for name in others if not name.startswith(_EXPECTED)]

    def text(names: Sequence[str], prefix: str = "") -> Column:
        return F.to_json(F.struct(*[F.col(f"{prefix}{name}").alias(name) for name in names]))

    shown = differences.select(
        "side", "partition", "task", text(keys).alias("key"), text(ours).alias("ours"), text(ours, _EXPECTED).alias("topic")
    )
    return tuple(_sentence(row) for row in shown.orderBy("partition", "key").limit(_SHOWN).collect())


def _sentence(row: Row) -> str:
    where = f"task {row['task']}"
    texts = {
        MISSING: f"the store has not what its topic has: {row['topic']}",
        SURPLUS: f"the store has what its topic has not: {row['ours']}",
        DIFFERENT: f"the store has {row['ours']}, its topic {row['topic']}",
    }
    return f"{row['side']}: {row['key']} in {where}: {texts[row['side']]}"
