"""The other witness: a store's content as its topic tells it, read by Spark's own Kafka connector.

It needs nothing but the brokers, so it scales with the cluster, needs no instance that runs, and shares no code with the path from
changelog to store to snapshot but the decoding of bytes. The table is the same as the snapshot's, column for column: the latest record of
each key, without those that were deleted, and without windows, sessions and versions that have expired.

*As of when?* Up to given offsets (those of a snapshot, of another table), or up to the end as of now; either way the table knows its
vector of offsets. *Expired when?* A store counts time by the largest time that was put to it, so that is what the records say too; or
a stream time is given.

Records count that are committed, whether or not their application is: an aborted one was never in the store.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from assets.spark.fold import alive, horizons, kept_rows, latest, read_once, read_records, stream_times, table_rows, typed, unexpired
from assets.spark.kafka_options import connector_options
from assets.spark.log_range import look, require_whole
from assets.spark.store_log import StoreLog
from runtime.config import StreamsConfig


@dataclass(frozen=True, slots=True)
class ChangelogTable:
    """A store as its topic tells it. `rows`: lazy, with the columns of `formats.row_schema`. `offsets`: per partition the next offset,
    up to which records were read. `stream_times` (ms) by partition, of stores with retention. `notes`: sentences for whoever looks at the
    table.

    Holds what was read in Spark's cache until `close`.
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
    """The content of a store at the offsets `upto` (partition → next offset; those partitions only), or at its topic's end as of now.

    `config`: the application's, with its client settings. `times`: stream times (ms, by partition) in place of those of the records.
    Raises ChangelogError, WrongPartitionsError, BrokerUnavailableError, StreamsError, each before Spark reads anything.
    """
    found = require_whole(log, look(log, config, upto))
    options = connector_options(StreamsConfig({**config, "application.id": log.application}))
    entries = latest(read_records(spark, options, found), log)
    if not read_once(log, times):
        entries = entries.persist()
    if times is None:
        times = stream_times(entries, log)
    log, first = typed(log, entries), horizons(log, times)
    rows = table_rows(unexpired(kept_rows(alive(entries, log, first), log), log, first), log)
    return ChangelogTable(rows, found.end, times, found.notes, entries)
