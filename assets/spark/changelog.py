"""The other witness: a store's content as its changelog tells it, read by Spark's own Kafka connector.

It needs nothing but the brokers, so it scales with the cluster, and it shares no code with the path from changelog to store to
snapshot. What it says about a store at offset S (the next offset, in the snapshot's manifest) is the latest record of each key below
S. The changelog goes on and is compacted, so three things have to be told apart (rules.md, 29):

  - a key whose latest record below S is a value: it is in the store, with that value;
  - a key whose latest record below S is a tombstone: it is not in the store;
  - a key with no record below S but with one from S on has *moved on*: compaction took the record that the snapshot was made of.
    Nothing can be said
    about it; it is counted and left out of the comparison, on both sides.

Windows that had expired at the snapshot's stream time are left out: the broker and the store drop them each at its own time.
Only committed records are read: an aborted one was never in the store.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from assets.spark.formats import key_columns, keys_to_arrow, row_schema, to_arrow
from assets.spark.state_source import StoreSnapshot, alive
from runtime.errors import StateDirectoryError
from runtime.ids import Partition
from runtime.stores.base import StoreLayout
from runtime.stores.files import StoreRows, split_window_keys

_EARLIEST, _LATEST = -2, -1
"""Spark's numbers for the start and the end of a log."""


@dataclass(frozen=True, slots=True)
class ChangelogView:
    """`rows`: what the store must hold, with the columns of `formats.row_schema`. `moved_on`: `partition` and raw `key` of the keys
    about which the changelog no longer tells."""

    rows: DataFrame
    moved_on: DataFrame


def read_changelog(spark: SparkSession, bootstrap_servers: str, snapshots: Sequence[StoreSnapshot]) -> ChangelogView:
    """The content of a store at its snapshots' offsets, by the changelog. `snapshots`: the store's parts, one per task.

    Raises StateDirectoryError for a store without a changelog.
    """
    upto = _upto(snapshots)
    limits = {partition.number: offset for partition, offset in upto.items()}
    # Both views come from it: without the cache the changelog would be read twice.
    latest = _latest(_records(spark, bootstrap_servers, upto), limits).cache()
    layout = snapshots[0].store.layout
    horizons = {each.partition: each.horizon for each in snapshots}
    schema = row_schema(layout)
    key_schema = StructType([schema[name] for name in key_columns(layout)])

    def decode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for partition, rows in _rows(batch, layout, horizons):
                yield to_arrow(layout, partition, rows)

    def decode_keys(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for partition, rows in _rows(batch, layout, horizons):
                yield keys_to_arrow(layout, partition, rows)

    milliseconds = (F.unix_micros("before.timestamp") / 1000).cast("long")
    columns = [F.col("partition"), F.col("key"), F.col("before.value"), milliseconds.alias("timestamp")]
    known = latest.where("before.value IS NOT NULL").select(*columns)
    moved_on = latest.where("before IS NULL").select(*columns)
    return ChangelogView(known.mapInArrow(decode, schema), moved_on.mapInArrow(decode_keys, key_schema))


def _upto(snapshots: Sequence[StoreSnapshot]) -> dict[Partition, int]:
    """The next offset of each partition of the changelog, as of the snapshots."""
    upto: dict[Partition, int] = {}
    for each in snapshots:
        changelog = each.store.changelog
        if changelog is None:
            raise StateDirectoryError(f"store {each.store.name} of task {each.task.task} has no changelog: nothing can be held against it")
        upto[Partition(changelog.topic, changelog.partition)] = changelog.next_offset
    return upto


def _records(spark: SparkSession, bootstrap_servers: str, partitions: Iterable[Partition]) -> DataFrame:
    """All committed records that have a key, from the log's start to its end."""
    assigned: dict[str, list[int]] = {}
    for partition in sorted(partitions):
        assigned.setdefault(partition.topic, []).append(partition.number)

    def everywhere(offset: int) -> str:
        return json.dumps({topic: {str(number): offset for number in numbers} for topic, numbers in assigned.items()})

    return (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("kafka.isolation.level", "read_committed")
        .option("assign", json.dumps(assigned))
        .option("startingOffsets", everywhere(_EARLIEST))
        .option("endingOffsets", everywhere(_LATEST))
        .load()
        .where("key IS NOT NULL")
    )


def _latest(records: DataFrame, upto: Mapping[int, int]) -> DataFrame:
    """Per partition and key: `before`, the latest record below the snapshot's offset (null: there is none)."""
    limits = F.create_map(*[F.lit(number) for pair in sorted(upto.items()) for number in pair])
    below = F.col("offset") < limits[F.col("partition")]
    record = F.struct("value", "timestamp")
    return (
        records.withColumn("below", below)
        .groupBy("partition", "key")
        # max_by skips rows whose order is null: records from S on count for nothing but the key's existence.
        .agg(F.max_by(record, F.when(F.col("below"), F.col("offset"))).alias("before"))
    )


def _rows(batch: pa.RecordBatch, layout: StoreLayout, horizons: Mapping[int, int | None]) -> Iterator[tuple[int, StoreRows]]:
    """Changelog rows as rows of the store, by partition of the topic, without those that have expired."""
    for partition in sorted(set(batch.column("partition").to_pylist())):
        part = batch.filter(pa.compute.equal(batch.column("partition"), partition))
        keys = part.column("key").to_pylist()
        starts: list[int] | None = None
        if layout.kind == "window":
            keys, starts = split_window_keys(keys)
        timestamps = part.column("timestamp").to_pylist() if layout.timestamped else None
        yield partition, alive(StoreRows(keys, part.column("value").to_pylist(), timestamps, starts), horizons[partition])
