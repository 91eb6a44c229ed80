"""Fold of a store's topic in Spark: read records, reduce them to the latest of each key, decode these to rows of the store.

The fold is SQL on raw bytes: of a log with many records per key, only the last of each key reaches Python. They are decoded in batches,
by the functions that decode snapshots. An entry is identified by its key on the topic, which for windows and sessions contains their
times. An entry of a versioned store is identified by the key and the version's time: its topic has a record per version (rules.md, 9).

Retention is applied to raw keys too: their times are big-endian and never negative, so bytes compare like the numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from penstock.assets.spark.changelog.log_range import LogRange
from penstock.assets.spark.changelog.store_log import StoreLog
from penstock.assets.spark.types.formats import GLOBAL_PARTITION, Decoder, is_json
from penstock.assets.spark.types.inference import infer_of, observed
from penstock.assets.spark.types.serde_formats import LATEST_MS
from penstock.runtime.serdes.keys import SESSION_SUFFIX, TIMESTAMP, WINDOW_SUFFIX
from penstock.runtime.stores.rows import changelog_rows

STORE_KEY = "_store_key"
"""Column of an entry's key, as on the topic."""
DELETED = "_deleted"
"""Column that is true for a deletion, in the kept rows of versions."""
SINCE = "_since"
"""Column of the time (ms) from which a version is valid, in its kept rows: `valid_from` cannot hold a time beyond the year 9999."""
_RECORDS = "partition INT, key BINARY, value BINARY, timestamp BIGINT, offset BIGINT"
_MOST_PER_TASK = 2_000_000
"""Number of offsets per Spark task: several tasks read a long partition."""
_UNTIL = "_until"
_TIMES = {"window": WINDOW_SUFFIX, "session": SESSION_SUFFIX}
"""Position of a key's time, in bytes from its end: a window's start, a session's end."""


def read_records(spark: SparkSession, options: Mapping[str, str], found: LogRange) -> DataFrame:
    """Read the committed records of a range that have a key: `partition`, `key`, `value`, `timestamp` (ms), `offset`."""
    spans = {partition: (found.start[partition], end) for partition, end in sorted(found.end.items()) if found.start[partition] < end}
    if not spans:
        return spark.createDataFrame([], _RECORDS)

    def offsets(side: int) -> str:
        return json.dumps({found.topic: {str(partition): span[side] for partition, span in spans.items()}})

    records = (
        spark.read.format("kafka")
        .options(**options)
        .option("assign", json.dumps({found.topic: list(spans)}))
        .option("startingOffsets", offsets(0))
        .option("endingOffsets", offsets(1))
        .option("failOnDataLoss", "true")
        .option("maxRecordsPerPartition", _MOST_PER_TASK)
        .load()
    )
    return records.where("key IS NOT NULL").select("partition", "key", "value", F.unix_millis("timestamp").alias("timestamp"), "offset")


def entry_columns(log: StoreLog) -> list[str]:
    """Return the columns of a record that identify its entry."""
    return ["partition", "key", *(["timestamp"] if log.layout.kind == "versioned" else [])]


def latest(records: DataFrame, log: StoreLog) -> DataFrame:
    """Return the last record of each entry: `partition`, `key`, `value` (null: deleted), `timestamp`."""
    last = records.groupBy(*entry_columns(log)).agg(F.max_by(F.struct("value", "timestamp"), "offset").alias("last"))
    entries = last.select("partition", "key", "last.value", "last.timestamp")
    return _in_one_store(entries) if log.is_global else entries


def latest_below(records: DataFrame, log: StoreLog, limits: Mapping[int, int]) -> DataFrame:
    """Like `latest`, restricted to records below an offset per partition; `moved_on` is true if an entry has only later ones."""
    order = F.when(F.col("offset") < _of_partition(limits), F.col("offset"))
    # max_by ignores null orderings: a later record only shows that it exists.
    last = records.groupBy(*entry_columns(log)).agg(F.max_by(F.struct("value", "timestamp"), order).alias("last"))
    entries = last.select("partition", "key", "last.value", "last.timestamp", F.isnull("last").alias("moved_on"))
    return _in_one_store(entries) if log.is_global else entries


def _in_one_store(entries: DataFrame) -> DataFrame:
    """Reduce entries of a global store, which holds all partitions of its topic. If several partitions have a key, the latest timestamp
    counts: the order in which a store has read them is not known."""
    known = ["moved_on"] if "moved_on" in entries.columns else []
    order = F.struct(*[~F.col(name) for name in known], "timestamp", "partition")
    last = entries.groupBy("key").agg(F.max_by(F.struct("value", "timestamp", *known), order).alias("last"))
    return last.select(F.lit(GLOBAL_PARTITION).alias("partition"), "key", "last.*")


def stream_times(records: DataFrame, log: StoreLog) -> dict[int, int]:
    """Return the largest time put to the store (ms) per partition, as the store itself keeps it; empty for a store without times."""
    if log.layout.retention_ms is None:
        return {}
    found = records.groupBy("partition").agg(F.max(_time(log)).alias("time")).collect()
    return {row["partition"]: row["time"] for row in found if row["time"] is not None}


def horizons(log: StoreLog, times: Mapping[int, int]) -> dict[int, int]:
    """Return the first time (ms) that has not expired, per partition."""
    retention = log.layout.retention_ms
    return {} if retention is None else {partition: max(0, time - retention + 1) for partition, time in times.items()}


def alive(entries: DataFrame, log: StoreLog, first: Mapping[int, int]) -> DataFrame:
    """Drop expired windows and sessions. A key that is too short to hold a time is kept, and counted as malformed later."""
    behind = _TIMES.get(log.layout.kind)
    if behind is None or not first:
        return entries
    limits = _of_partition({partition: time.to_bytes(TIMESTAMP, "big") for partition, time in first.items()})
    time = F.substring("key", -behind, TIMESTAMP)
    return entries.where((F.length("key") < behind) | limits.isNull() | (time >= limits))


def decoded(entries: DataFrame, log: StoreLog) -> DataFrame:
    """Decode entries that have a value to rows of the store (`formats.row_schema`), with their raw keys in `_store_key`. For versions,
    `valid_to` is null, since the next version determines it, and the column `_since` is added."""
    own = [StructField(STORE_KEY, BinaryType()), *([StructField(SINCE, LongType())] if log.layout.kind == "versioned" else [])]
    schema = StructType([*own, *_decoder(log).schema.fields])

    def decode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        decoder = _decoder(log)
        for batch in batches:
            if batch.num_rows:
                yield from _with_keys(batch, decoder, log)

    return entries.select("partition", "key", "value", "timestamp").mapInArrow(decode, schema)


def _decoder(log: StoreLog) -> Decoder:
    return Decoder.of(log.layout, log.schemas, value_schema=log.value_schema)


def _with_keys(batch: pa.RecordBatch, decoder: Decoder, log: StoreLog) -> Iterator[pa.RecordBatch]:
    partitions, keys, values, times = (batch.column(name) for name in ("partition", "key", "value", "timestamp"))
    rows = changelog_rows(log.layout, keys, values, times)
    if rows.broken is not None and len(keys) > 1:  # broken rows are separate: find them, so that each row stays with its key
        half = len(keys) // 2
        yield from _with_keys(batch.slice(0, half), decoder, log)
        yield from _with_keys(batch.slice(half), decoder, log)
        return
    made = decoder.batch(partitions if rows.broken is None else partitions[0].as_py(), rows)
    own, names = ([keys, times], [STORE_KEY, SINCE]) if log.layout.kind == "versioned" else ([keys], [STORE_KEY])
    yield pa.RecordBatch.from_arrays([*own, *made.columns], [*names, *made.schema.names])


def untyped(log: StoreLog) -> tuple[bool, bool]:
    """Return whether the keys are JSON without a declared type, and whether the values are."""
    layout, schemas = log.layout, log.schemas
    keys = schemas.key is None and is_json(layout.key_serde, None)
    return keys, log.value_schema is None and schemas.value is None and is_json(layout.value_serde, None)


def read_once(log: StoreLog, times: Mapping[int, int] | None) -> bool:
    """Return True if entries are read for their rows alone: stream times and types are known or not needed."""
    return (times is not None or log.layout.retention_ms is None) and not any(untyped(log))


def typed(log: StoreLog, entries: DataFrame) -> StoreLog:
    """Return the store with the inferred types of undeclared JSON (`inference`)."""
    layout, schemas = log.layout, log.schemas
    keys, values = untyped(log)
    if not keys and not values:
        return log

    def look(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = [changelog_rows(layout, *(batch.column(name) for name in ("key", "value", "timestamp"))) for batch in batches]
        seen = [observed(each.keys for each in rows if keys), observed(each.values for each in rows if values)]
        yield pa.RecordBatch.from_arrays([pa.array([each], pa.binary()) for each in seen], ["key", "value"])

    present = entries.where("value IS NOT NULL").select("key", "value", "timestamp")
    found = present.mapInArrow(look, "key BINARY, value BINARY").collect()
    key = infer_of(bytes(row["key"]) for row in found) if keys else schemas.key
    value = infer_of(bytes(row["value"]) for row in found) if values else schemas.value
    return msgspec.structs.replace(log, schemas=replace(schemas, key=key, value=value))


def kept_rows(entries: DataFrame, log: StoreLog) -> DataFrame:
    """Decode entries into the rows that the next run needs. For a versioned store these include deletions (`_deleted`), which end the
    version before them."""
    live = decoded(entries.where("value IS NOT NULL"), log)
    if log.layout.kind != "versioned":
        return live
    gone = entries.where("value IS NULL").select(
        "partition", F.col("key").alias(STORE_KEY), F.col("timestamp").alias(SINCE), F.lit(True).alias(DELETED)
    )
    return live.withColumn(DELETED, F.lit(False)).unionByName(gone, allowMissingColumns=True)


def unexpired(kept: DataFrame, log: StoreLog, first: Mapping[int, int]) -> DataFrame:
    """Drop expired rows; compute `valid_to` of versions. `first`: `horizons`. The columns are those of `kept_rows`."""
    if log.layout.kind == "versioned":
        following = F.lead(SINCE).over(Window.partitionBy("partition", STORE_KEY).orderBy(SINCE))
        until = kept.withColumn(_UNTIL, following)
        kept = until.withColumn("valid_to", F.timestamp_millis(F.when(F.col(_UNTIL).isNotNull(), F.least(_UNTIL, F.lit(LATEST_MS)))))
        ends = F.coalesce(_UNTIL, F.when(F.col(DELETED), F.col(SINCE)))  # a deletion that is the latest version is valid for no time
        limit = _of_partition(first) if first else F.lit(None)
        return kept.where(ends.isNull() | limit.isNull() | (ends >= limit)).drop(_UNTIL)
    if log.layout.kind in _TIMES:
        ends = F.col("window_start" if log.layout.kind == "window" else "window_end")
    else:
        return kept
    limits = F.timestamp_millis(_of_partition(first)) if first else F.lit(None)
    return kept.where(ends.isNull() | limits.isNull() | (ends >= limits))


def table_rows(kept: DataFrame, log: StoreLog) -> DataFrame:
    """Convert the result of `unexpired` to rows of the store, with the columns of `formats.row_schema`."""
    rows = kept.where(~F.col(DELETED)) if log.layout.kind == "versioned" else kept
    return rows.select(*_decoder(log).schema.fieldNames())


def _of_partition(values: Mapping[int, int | bytes]) -> Column:
    """Look up the value of a record's partition; null if there is none."""
    entries = []
    for partition, value in sorted(values.items()):
        # A map needs values of one type; a small number and a large one have two.
        entries += [F.lit(partition), F.lit(value) if isinstance(value, bytes) else F.lit(value).cast("long")]
    return F.create_map(*entries)[F.col("partition")]


def _time(log: StoreLog) -> Column:
    behind = _TIMES.get(log.layout.kind)
    if behind is None:
        return F.col("timestamp")
    digits = F.conv(F.hex(F.substring("key", -behind, TIMESTAMP)), 16, 10)
    return F.when(F.length("key") >= behind, digits.try_cast("long"))
