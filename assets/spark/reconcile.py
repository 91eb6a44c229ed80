"""Two witnesses, one state: rows of a store as a snapshot has them, held against what the store's topic tells, at the same offsets.

Nothing is collected but counts and the first few keys. Rows of both sides go into one heap, each with its sign; equal rows cancel out,
whatever their number, and what is left are the differences. (Rejected: a join of the two by their keys. It has to sort both sides, where
a heap of equal rows is hashed; and the keys of two entries may read the same, as `{"a": 1}` and `{"a":1}` do.)

Three things are no differences (rules.md, 29):

  - what was written from the offsets on: the topic is read to its end, but only records below the offsets count;
  - a key that has no record below the offset any more and one from it on: it has *moved on*, because compaction took the record that the
    snapshot was made of. Nothing can be said about it; such keys are counted, and left out;
  - windows, sessions and versions that had expired at the store's stream time as of the snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F

from assets.spark.fold import alive, decoded, horizons, kept_rows, latest_below, read_records, stream_times, table_rows, typed, unexpired
from assets.spark.formats import MALFORMED, key_columns, row_schema
from assets.spark.kafka_options import connector_options
from assets.spark.log_range import LogRange, look, require_whole
from assets.spark.store_log import StoreLog
from runtime.config import StreamsConfig

MISSING, SURPLUS, DIFFERENT = "missing", "surplus", "different"
"""Sides of a difference: the topic has the row and the snapshot has not; the other way round; both have it, and it is not the same."""
_SIDE = "__side"
_EXPECTED = "expected_"
_SIDES = (("actual", ""), ("expected", _EXPECTED))
_SHOWN = 10


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What came of holding a store's rows against its topic. Counts are of rows, `moved_on` of keys; `malformed` rows are those of the
    store whose bytes do not fit its serdes. `first` names the first differences, a sentence each. `notes` as in `ChangelogTable`."""

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
    """A comparison and its rows. `differences` (lazy) has a row per difference: `side`, the key's columns, each other column twice (as the
    store has it, and as `expected_…` by the topic), `task`, `partition`; ordered by nothing. It holds what it needs in Spark's cache until
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
    """Holds `actual` (columns of `formats.row_schema`) against the topic at `offsets` (partition → next offset).

    `times`: the store's stream times as of then (ms, by partition), in place of those of the records. `where`: a condition on the columns,
    in SQL, of the rows of both sides that are compared. Raises as `read_changelog`.

    A difference in a topic that is being written to is looked at twice. The log cleaner may have worked while the topic was read: then an
    old record of a key was read before it went, and the one that counts had gone when its turn came.
    """
    found = require_whole(log, look(log, config, offsets))
    result = _held(spark, actual, log, config, found, times, where)
    if result.equal or found.stable == found.end:
        return result
    result.close()
    return _held(spark, actual, log, config, require_whole(log, look(log, config, offsets)), times, where)


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
    entries = latest_below(read_records(spark, options, found.to_now()), log, found.end).persist()  # looked at three times
    known = entries.where(~F.col("moved_on"))
    log, first = typed(log, known), horizons(log, times or stream_times(known, log))
    expected = table_rows(unexpired(kept_rows(alive(known, log, first), log), log, first), log)
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
    """A record that repeats a table's value is not stored (KIP-557), but it is the last one of its topic: of these rows only one side knows
    the time."""
    return rows.withColumn("timestamp", F.lit(None).cast("timestamp")) if "timestamp" in rows.columns else rows


def _heap(actual: DataFrame, expected: DataFrame) -> DataFrame:
    """Every row that one side has, and how often each has it."""
    sides = actual.withColumn(_SIDE, F.lit(1)).unionByName(expected.withColumn(_SIDE, F.lit(-1)))
    counts = [F.count_if(F.col(_SIDE) == 1).alias("actual"), F.count_if(F.col(_SIDE) == -1).alias("expected")]
    return sides.groupBy(*expected.columns).agg(*counts)


def _moved_keys(entries: DataFrame, log: StoreLog) -> DataFrame:
    """The columns that name a row (of versions those that name its key), of the keys that have moved on; and `_malformed`."""
    if log.layout.kind == "versioned":
        entries = entries.groupBy("partition", "key").agg(
            F.min("moved_on").alias("moved_on"), F.lit(None).cast("binary").alias("value"), F.max("timestamp").alias("timestamp")
        )
    return decoded(entries.where("moved_on"), log).select(*_names_of(log), MALFORMED)


def _names_of(log: StoreLog) -> list[str]:
    return [name for name in key_columns(log.layout) if name != "valid_from"]


def _without_moved(uneven: DataFrame, moved: DataFrame, log: StoreLog) -> DataFrame:
    """Without rows of the store whose key has moved on."""
    row, key = uneven.alias("row"), moved.alias("moved")
    same = F.col("row.actual") > F.col("row.expected")
    for name in _names_of(log):
        same &= F.col(f"row.{name}").eqNullSafe(F.col(f"moved.{name}"))
    # A key that cannot be read is known by its bytes.
    same &= F.col("row.key").isNotNull() | F.col(f"row.{MALFORMED}.key").eqNullSafe(F.col(f"moved.{MALFORMED}.key"))
    return row.join(key, same, "left_anti").select("row.*")


def _differences(uneven: DataFrame, log: StoreLog) -> DataFrame:
    """Rows that only one side has, those of one key side by side."""
    keys = key_columns(log.layout)
    schema = row_schema(log.layout, log.schemas, log.value_schema)
    others = [name for name in schema.fieldNames() if name not in keys]
    copies = F.sequence(F.lit(1), F.abs(F.col("actual") - F.col("expected")))
    ours = F.col("actual") > F.col("expected")
    named = F.struct(*keys, F.when(F.isnull("key"), F.col(MALFORMED)["key"]).alias(MALFORMED))
    rows = uneven.select(named.alias("named"), F.struct(*others).alias("content"), ours.alias("ours"), F.explode(copies).alias("copy"))
    # The entries whose keys read the same, numbered on each side: the first goes with the first. There is hardly ever a second.
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
    """A sentence about each of the first few."""
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
    told = {
        MISSING: f"the store has not what its topic has: {row['topic']}",
        SURPLUS: f"the store has what its topic has not: {row['ours']}",
        DIFFERENT: f"the store has {row['ours']}, its topic {row['topic']}",
    }
    return f"{row['side']}: {row['key']} in {where}: {told[row['side']]}"
