"""Offsets of a store's topic to read, determined before Spark begins.

Spark would find most errors too, but minutes later and in an executor's stack trace. So the brokers are queried first: does the topic
exist, does it have the expected partitions, are the offsets on it, is its start still complete? Three cases look alike but differ:

  - Records removed by *compaction* are no loss: a later record of the same key exists.
  - Records deleted by *retention* (`cleanup.policy` with `delete`, as for windows) belong to windows that have expired for the brokers.
    The notes mention it, because a store whose stream time is behind the brokers' clocks may still have them.
  - Records *deleted* from a topic that is only compacted (DeleteRecords) mean keys of which nothing is known any more. That is an
    error: a table without them would be wrong and look right.

Spark gets exact start and end offsets, and fails if some of them disappear while it reads (`failOnDataLoss`). Compaction does not
change the ends of a log, so it does not cause such a failure.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from penstock.assets.spark.changelog.store_log import StoreLog
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.kafka.topic_admin import TopicAdmin, TopicDescription
from penstock.runtime.model.errors import StreamsError, WrongPartitionsError
from penstock.runtime.model.ids import NextOffset, TopicPartition

_MARKERS_SECONDS = 10.0
"""Time to wait for the markers of a committed transaction."""


class ChangelogError(StreamsError):
    """The topic does not contain the store's full content; the message names the topic, the partition and the reason."""


@dataclass(frozen=True, slots=True)
class LogRange:
    """Range to read: per partition the first offset and the next one after the last, and the current end of the log (`stable`), which
    may be later. `notes` are sentences for readers of the table."""

    topic: str
    topic_id: str
    start: Mapping[int, int]
    end: Mapping[int, int]
    stable: Mapping[int, int]
    delete_retention_ms: int | None
    compacted_only: bool
    notes: tuple[str, ...] = ()

    def since(self, start: Mapping[int, int]) -> LogRange:
        """Return the same range with other start offsets."""
        return replace(self, start=start)

    def to_now(self) -> LogRange:
        """Return the same range, extended to the current end of the log."""
        return replace(self, end=self.stable)


def log_range(log: StoreLog, config: Mapping[str, object], upto: Mapping[int, int] | None = None) -> LogRange:
    """Return the topic's range from its start up to `upto` (partition → next offset), or to its current end.

    `config`: the application's. Raises ChangelogError, WrongPartitionsError, BrokerUnavailableError, StreamsError (missing ACLs).
    """
    settings = StreamsConfig({**config, "application.id": log.application})
    topics, servers = TopicAdmin(settings), settings["bootstrap.servers"]
    topic = topics.describe([log.topic]).get(log.topic)
    if topic is None:
        raise ChangelogError(f"topic {log.topic}, the changelog of store {log.store}, does not exist (bootstrap.servers = {servers})")
    _check_partitions(log, topic, upto)
    partitions = [TopicPartition(log.topic, number) for number in (range(topic.partitions) if upto is None else sorted(upto))]
    start = {partition.partition: int(offset) for partition, offset in topics.start_offsets(partitions).items()}
    stable = _stable(topics, partitions, upto or {})
    end = stable
    if upto is not None:
        _check_ends(log, upto, stable)
        end = dict(upto)
    elif log.of_source:
        committed = topics.committed_offsets(log.application)
        end = {number: min(offset, committed.get(TopicPartition(log.topic, number), NextOffset(0))) for number, offset in stable.items()}
    return LogRange(
        topic=log.topic,
        topic_id=topic.topic_id,
        start=start,
        end=end,
        stable=stable,
        delete_retention_ms=topic.delete_retention_ms,
        compacted_only=topic.compacted and "delete" not in topic.config.get("cleanup.policy", ""),
    )


def _stable(topics: TopicAdmin, partitions: Sequence[TopicPartition], wanted: Mapping[int, int]) -> dict[int, int]:
    """Return the last stable offsets. A writer's commit may precede its transaction markers for a moment: wait for them."""
    until = time.monotonic() + _MARKERS_SECONDS
    while True:
        found = {partition.partition: int(offset) for partition, offset in topics.end_offsets(partitions).items()}
        late = [partition for partition in partitions if found[partition.partition] < wanted.get(partition.partition, 0)]
        written = topics.high_watermarks(late)
        coming = any(written[partition] >= wanted[partition.partition] for partition in late)
        if not coming or time.monotonic() > until:
            return found
        time.sleep(0.1)


def require_whole(log: StoreLog, found: LogRange) -> LogRange:
    """Return the same range, with notes on its start. Raises ChangelogError if records that still count are missing at the start."""
    cut = {partition: start for partition, start in sorted(found.start.items()) if start > 0}
    if not cut:
        return found
    starts = ", ".join(f"{log.topic}-{partition} begins at offset {start}" for partition, start in cut.items())
    if found.compacted_only:
        raise ChangelogError(
            f"store {log.store} cannot be computed from its topic: {starts}, though it is only compacted. Another program has "
            "deleted the records before it, so keys are missing. Build the table from a snapshot"
        )
    note = f"{starts}: older records were deleted by the topic's retention (its cleanup.policy has delete)"
    return replace(found, notes=(*found.notes, note))


def _check_partitions(log: StoreLog, topic: TopicDescription, upto: Mapping[int, int] | None) -> None:
    if log.partitions is not None and log.partitions != topic.partitions:
        raise WrongPartitionsError(
            f"topic {topic.name} has {topic.partitions} partitions, and store {log.store} of {log.application} is in {log.partitions} "
            "tasks: either the topic or the state was created with another number"
        )
    beyond = [partition for partition in upto or () if partition >= topic.partitions]
    if beyond:
        raise WrongPartitionsError(
            f"topic {topic.name} has {topic.partitions} partitions: there is no partition {', '.join(map(str, sorted(beyond)))}"
        )


def _check_ends(log: StoreLog, upto: Mapping[int, int], end: Mapping[int, int]) -> None:
    for partition, offset in sorted(upto.items()):
        if offset > end[partition]:
            raise ChangelogError(
                f"{log.topic}-{partition} ends at offset {end[partition]}, before the requested {offset}: the topic was created again, "
                "or its last records were lost. Take a new snapshot"
            )
