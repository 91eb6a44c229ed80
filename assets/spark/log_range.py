"""Which offsets of a store's topic are read, found out before Spark begins.

Spark would find most of what can be wrong too, but minutes later and in an executor's stack trace. So the brokers are asked first: is the
topic there, has it the partitions that it must have, are the offsets on it, does its start still tell all? Three things look alike and are
not:

  - records that *compaction* took are no loss: a later record of the same key is there;
  - records that *retention* deleted (`cleanup.policy` with `delete`, as windows have) are windows that have expired for the brokers: the
    notes say so, for a store whose stream time is behind the brokers' clocks may still have them;
  - records that were *cut off* a topic that is only compacted (DeleteRecords) are keys of which nothing is known any more. That is an
    error: a table without them would be wrong and look right.

Spark is given exact offsets on both ends and told to fail when some of them go while it reads (`failOnDataLoss`). Compaction moves no end
of a log, so nobody trips over it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from assets.spark.store_log import StoreLog
from runtime.config import StreamsConfig
from runtime.errors import StreamsError, WrongPartitionsError
from runtime.ids import NextOffset, Partition
from runtime.topics import TopicAdmin, TopicDescription

_MARKERS_SECONDS = 10.0
"""How long the markers of a committed transaction may take."""


class ChangelogError(StreamsError):
    """The topic cannot tell the store's content; the message says which topic, which partition, and why."""


@dataclass(frozen=True, slots=True)
class LogRange:
    """What is there to read: per partition the first offset and the next one after the last, and the log's end as of now (`stable`), which
    may be later. `notes` are sentences for whoever looks at the table."""

    topic: str
    topic_id: str
    start: Mapping[int, int]
    end: Mapping[int, int]
    stable: Mapping[int, int]
    delete_retention_ms: int | None
    compacted_only: bool
    notes: tuple[str, ...] = ()

    def since(self, start: Mapping[int, int]) -> LogRange:
        """The same, from other offsets on."""
        return replace(self, start=start)

    def to_now(self) -> LogRange:
        """The same, to the log's end as of now."""
        return replace(self, end=self.stable)


def look(log: StoreLog, config: Mapping[str, object], upto: Mapping[int, int] | None = None) -> LogRange:
    """The topic from its start up to `upto` (partition → next offset), or to its end as of now.

    `config`: the application's. Raises ChangelogError, WrongPartitionsError, BrokerUnavailableError, StreamsError (no rights).
    """
    settings = StreamsConfig({**config, "application.id": log.application})
    topics, servers = TopicAdmin(settings), settings["bootstrap.servers"]
    topic = topics.describe([log.topic]).get(log.topic)
    if topic is None:
        raise ChangelogError(f"topic {log.topic}, which tells of store {log.store}, does not exist (bootstrap.servers = {servers})")
    _check_partitions(log, topic, upto)
    partitions = [Partition(log.topic, number) for number in (range(topic.partitions) if upto is None else sorted(upto))]
    start = {partition.number: int(offset) for partition, offset in topics.start_offsets(partitions).items()}
    stable = _stable(topics, partitions, upto or {})
    end = stable
    if upto is not None:
        _check_ends(log, upto, stable)
        end = dict(upto)
    elif log.of_source:
        committed = topics.committed_offsets(log.application)
        end = {number: min(offset, committed.get(Partition(log.topic, number), NextOffset(0))) for number, offset in stable.items()}
    return LogRange(
        topic=log.topic,
        topic_id=topic.topic_id,
        start=start,
        end=end,
        stable=stable,
        delete_retention_ms=topic.delete_retention_ms,
        compacted_only=topic.compacted and "delete" not in topic.config.get("cleanup.policy", ""),
    )


def _stable(topics: TopicAdmin, partitions: Sequence[Partition], wanted: Mapping[int, int]) -> dict[int, int]:
    """The last stable offsets. What is committed for its writer may not be stable for a moment: its markers follow, and are waited for."""
    until = time.monotonic() + _MARKERS_SECONDS
    while True:
        found = {partition.number: int(offset) for partition, offset in topics.end_offsets(partitions).items()}
        late = [partition for partition in partitions if found[partition.number] < wanted.get(partition.number, 0)]
        written = topics.high_watermarks(late)
        coming = any(written[partition] >= wanted[partition.number] for partition in late)
        if not coming or time.monotonic() > until:
            return found
        time.sleep(0.1)


def require_whole(log: StoreLog, found: LogRange) -> LogRange:
    """The same range, with what is to be said of its start. Raises ChangelogError where a start was cut off that still told something."""
    cut = {partition: start for partition, start in sorted(found.start.items()) if start > 0}
    if not cut:
        return found
    told = ", ".join(f"{log.topic}-{partition} begins at offset {start}" for partition, start in cut.items())
    if found.compacted_only:
        raise ChangelogError(
            f"store {log.store} cannot be told from its topic: {told}, though it is only compacted. Somebody has deleted the records "
            "before it, and the keys in them are not known any more. Make the table of a snapshot"
        )
    note = f"{told}: older records were deleted by the topic's retention (its cleanup.policy has delete)"
    return replace(found, notes=(*found.notes, note))


def _check_partitions(log: StoreLog, topic: TopicDescription, upto: Mapping[int, int] | None) -> None:
    if log.partitions is not None and log.partitions != topic.partitions:
        raise WrongPartitionsError(
            f"topic {topic.name} has {topic.partitions} partitions, and store {log.store} of {log.application} is in {log.partitions} "
            "tasks: one of them was made for another number"
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
                f"{log.topic}-{partition} ends at offset {end[partition]}, before {offset}, which is asked for: the topic was made anew, "
                "or its last records were lost. Take a new snapshot"
            )
