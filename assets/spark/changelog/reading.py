"""A store's content from its changelog topic, read by Spark's own Kafka connector.

It needs nothing but the brokers, so it scales with the cluster and needs no running instance. With the path from changelog to store to
snapshot it shares only the decoding of bytes. The table has the same columns as the snapshot's: the latest record of each key, without
deleted keys and without expired windows, sessions and versions.

*As of when?* At given offsets (those of a snapshot or of another table), or at the current end; in both cases the result contains its
vector of offsets. *Expired when?* A store measures time by the largest time put to it, which the records contain too; or the caller
passes a stream time.

Only records of committed transactions count: those of an aborted one were never in the store.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from penstock.assets.spark.changelog import fold
from penstock.assets.spark.changelog.kafka_options import connector_options
from penstock.assets.spark.changelog.log_range import log_range, require_whole
from penstock.assets.spark.changelog.store_log import StoreLog
from penstock.runtime.config.streams_config import StreamsConfig


@dataclass(frozen=True, slots=True)
class ChangelogTable:
    """Content of a store, read from its topic. `rows`: lazy, with the columns of `formats.row_schema`. `offsets`: per partition the next
    offset, up to which records were read. `stream_times` (ms) by partition, for stores with retention. `notes`: sentences for readers of
    the table.

    Keeps records in Spark's cache until `close`.
    """

    rows: DataFrame
    offsets: Mapping[int, int]
    stream_times: Mapping[int, int]
    notes: tuple[str, ...]
    _cached: DataFrame

    def close(self) -> None:
        self._cached.unpersist()


def read_changelog(
    spark: SparkSession,
    log: StoreLog,
    config: Mapping[str, object],
    upto: Mapping[int, int] | None = None,
    times: Mapping[int, int] | None = None,
) -> ChangelogTable:
    """Read a store at the offsets `upto` (partition → next offset; only those partitions), or at the current end of its topic.

    `config`: the application's, with its client settings. `times`: stream times (ms, by partition) that replace those of the records.
    Raises ChangelogError, WrongPartitionsError, BrokerUnavailableError, StreamsError, all before Spark reads anything.
    """
    found = require_whole(log, log_range(log, config, upto))
    options = connector_options(StreamsConfig({**config, "application.id": log.application}))
    entries = fold.latest(fold.read_records(spark, options, found), log)
    if not fold.read_once(log, times):
        entries = entries.persist()
    if times is None:
        times = fold.stream_times(entries, log)
    log, first = fold.typed(log, entries), fold.horizons(log, times)
    rows = fold.table_rows(fold.unexpired(fold.kept_rows(fold.alive(entries, log, first), log), log, first), log)
    return ChangelogTable(rows, found.end, times, found.notes, entries)
