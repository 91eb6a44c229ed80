"""Records of a store's topic in Spark: read, folded to what still counts, and turned into the rows of the store.

The fold is SQL on raw bytes, so that of a log with many records per key only the last ones come near Python: they are decoded by the batch,
with the functions that decode snapshots. What names an entry is its key as it stands on the topic (of windows and sessions with their times
in it), of versioned stores the key and the version's time: their topic has a record per version (rules.md, 9).

Retention is applied to raw keys too: their times are big-endian and never negative, so that bytes compare as the numbers do.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StructField, StructType

from assets.spark.formats import GLOBAL_PARTITION, Decoder, is_json
from assets.spark.inference import infer_of, observed
from assets.spark.log_range import LogRange
from assets.spark.store_log import StoreLog
from runtime.serdes.keys import SESSION_SUFFIX, TIMESTAMP, WINDOW_SUFFIX
from runtime.stores.rows import changelog_rows

STORE_KEY = "_store_key"
"""The column with an entry's key as it stands on the topic."""
DELETED = "_deleted"
"""The column that is true for a deletion, in the rows of versions that are kept."""
_RECORDS = "partition INT, key BINARY, value BINARY, timestamp BIGINT, offset BIGINT"
_MOST_PER_TASK = 2_000_000
"""Offsets that one task of Spark reads: a long partition is read by several."""
_TIMES = {"window": WINDOW_SUFFIX, "session": SESSION_SUFFIX}
"""How far from a key's end its time stands: a window's start, a session's end."""


def read_records(spark: SparkSession, options: Mapping[str, str], found: LogRange) -> DataFrame:
    """The committed records of a range that have a key: `partition`, `key`, `value`, `timestamp` (ms), `offset`."""
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
    """The columns of a record that name the entry it is of."""
    return ["partition", "key", *(["timestamp"] if log.layout.kind == "versioned" else [])]


def latest(records: DataFrame, log: StoreLog) -> DataFrame:
    """The last record of each entry: `partition`, `key`, `value` (null: deleted), `timestamp`."""
    last = records.groupBy(*entry_columns(log)).agg(F.max_by(F.struct("value", "timestamp"), "offset").alias("last"))
    entries = last.select("partition", "key", "last.value", "last.timestamp")
    return _in_one_store(entries) if log.is_global else entries


def latest_below(records: DataFrame, log: StoreLog, limits: Mapping[int, int]) -> DataFrame:
    """As `latest`, of the records below an offset of each partition; `moved_on` is true where there are only later ones."""
    order = F.when(F.col("offset") < _of_partition(limits), F.col("offset"))
    # max_by skips what has no order: a later record counts for nothing but that it is there.
    last = records.groupBy(*entry_columns(log)).agg(F.max_by(F.struct("value", "timestamp"), order).alias("last"))
    entries = last.select("partition", "key", "last.value", "last.timestamp", F.isnull("last").alias("moved_on"))
    return _in_one_store(entries) if log.is_global else entries


def _in_one_store(entries: DataFrame) -> DataFrame:
    """Entries of a global store, which holds all partitions of its topic. Should a key be in several, the latest by time counts: the order
    in which a store took them is known to nobody."""
    known = ["moved_on"] if "moved_on" in entries.columns else []
    order = F.struct(*[~F.col(name) for name in known], "timestamp", "partition")
    last = entries.groupBy("key").agg(F.max_by(F.struct("value", "timestamp", *known), order).alias("last"))
    return last.select(F.lit(GLOBAL_PARTITION).alias("partition"), "key", "last.*")


def stream_times(records: DataFrame, log: StoreLog) -> dict[int, int]:
    """The largest time that was put to the store (ms), by partition, as the store itself keeps it; nothing for a store without times."""
    if log.layout.retention_ms is None:
        return {}
    found = records.groupBy("partition").agg(F.max(_time(log)).alias("time")).collect()
    return {row["partition"]: row["time"] for row in found if row["time"] is not None}


def horizons(log: StoreLog, times: Mapping[int, int]) -> dict[int, int]:
    """The first time (ms) that has not expired, by partition."""
    retention = log.layout.retention_ms
    return {} if retention is None else {partition: max(0, time - retention + 1) for partition, time in times.items()}


def alive(entries: DataFrame, log: StoreLog, first: Mapping[int, int]) -> DataFrame:
    """Without windows and sessions that have expired. A key that is too short to hold a time stays: it is counted as malformed later."""
    behind = _TIMES.get(log.layout.kind)
    if behind is None or not first:
        return entries
    limits = _of_partition({partition: time.to_bytes(TIMESTAMP, "big") for partition, time in first.items()})
    time = F.substring("key", -behind, TIMESTAMP)
    return entries.where((F.length("key") < behind) | limits.isNull() | (time >= limits))


def decoded(entries: DataFrame, log: StoreLog) -> DataFrame:
    """Entries with a value, as rows of the store (`formats.row_schema`), with their raw keys in `_store_key`. Of versions `valid_to` is
    null: the next version says it."""
    schema = StructType([StructField(STORE_KEY, BinaryType()), *_decoder(log).schema.fields])

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
    if rows.broken is not None and len(keys) > 1:  # what is broken stands apart: it is looked for, so that each row stays beside its key
        half = len(keys) // 2
        yield from _with_keys(batch.slice(0, half), decoder, log)
        yield from _with_keys(batch.slice(half), decoder, log)
        return
    made = decoder.batch(partitions if rows.broken is None else partitions[0].as_py(), rows)
    yield pa.RecordBatch.from_arrays([keys, *made.columns], [STORE_KEY, *made.schema.names])


def untyped(log: StoreLog) -> tuple[bool, bool]:
    """Whether the keys are JSON of a type that nobody has declared, and whether the values are."""
    layout, schemas = log.layout, log.schemas
    keys = schemas.key is None and is_json(layout.key_serde, None)
    return keys, log.value_schema is None and schemas.value is None and is_json(layout.value_serde, None)


def read_once(log: StoreLog, times: Mapping[int, int] | None) -> bool:
    """True if entries are looked at for their rows alone: stream times are known or not needed, and so are types."""
    return (times is not None or log.layout.retention_ms is None) and not any(untyped(log))


def typed(log: StoreLog, entries: DataFrame) -> StoreLog:
    """The store with the types of JSON that nobody has declared, as all of the entries tell them (`inference.py`)."""
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
    """Entries as they are kept for the next run: decoded, and of a versioned store the deletions too (`_deleted`), for these say until when
    the versions before them held."""
    live = decoded(entries.where("value IS NOT NULL"), log)
    if log.layout.kind != "versioned":
        return live
    gone = entries.where("value IS NULL").select(
        "partition", F.col("key").alias(STORE_KEY), F.timestamp_millis("timestamp").alias("valid_from"), F.lit(True).alias(DELETED)
    )
    return live.withColumn(DELETED, F.lit(False)).unionByName(gone, allowMissingColumns=True)


def unexpired(kept: DataFrame, log: StoreLog, first: Mapping[int, int]) -> DataFrame:
    """Without what has expired; of versions with `valid_to`. `first`: `horizons`. The columns stay those of `kept_rows`."""
    if log.layout.kind == "versioned":
        of_key = Window.partitionBy("partition", STORE_KEY).orderBy("valid_from")
        kept = kept.withColumn("valid_to", F.lead("valid_from").over(of_key))
        ends = F.coalesce(
            "valid_to", F.when(F.col(DELETED), F.col("valid_from"))
        )  # a deletion that is the latest holds no longer than itself
    elif log.layout.kind in _TIMES:
        ends = F.col("window_start" if log.layout.kind == "window" else "window_end")
    else:
        return kept
    limits = F.timestamp_millis(_of_partition(first)) if first else F.lit(None)
    return kept.where(ends.isNull() | limits.isNull() | (ends >= limits))


def table_rows(kept: DataFrame, log: StoreLog) -> DataFrame:
    """The rows of the store, with the columns of `formats.row_schema`, of what `unexpired` has left."""
    rows = kept.where(~F.col(DELETED)) if log.layout.kind == "versioned" else kept
    return rows.select(*_decoder(log).schema.fieldNames())


def _of_partition(values: Mapping[int, int | bytes]) -> Column:
    """The value of a record's partition; null where there is none."""
    entries = []
    for partition, value in sorted(values.items()):
        # A small number and a large one are of two types, and a map wants one.
        entries += [F.lit(partition), F.lit(value) if isinstance(value, bytes) else F.lit(value).cast("long")]
    return F.create_map(*entries)[F.col("partition")]


def _time(log: StoreLog) -> Column:
    behind = _TIMES.get(log.layout.kind)
    if behind is None:
        return F.col("timestamp")
    digits = F.conv(F.hex(F.substring("key", -behind, TIMESTAMP)), 16, 10)
    return F.when(F.length("key") >= behind, digits.try_cast("long"))
