"""Offsets that make a snapshot a cut through the whole application: those of a moment without records in transit between tasks.

A snapshot is consistent per task. Tasks connected by a repartition topic are consistent with each other if the reader has read everything
that the writers have written. That can be checked only while the topic exists, so the result is stored with the snapshot: a reset deletes
the topics.

The committed offsets are read first. If every part has the committed offsets, and the repartition topics contain nothing beyond them, then
the parts and these offsets belong together: any later record would be beyond the offset of a repartition topic. Records of an open
transaction count, because its offsets may become visible before its records.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.kafka.observer import Observer
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.coordination.unread_records import with_records
from penstock.runtime.kafka.topic_admin import TopicAdmin
from penstock.runtime.model.ids import NextOffset, Partition
from penstock.runtime.snapshots.manifest import GLOBAL, PartitionOffset, TaskSummary


def settled_offsets(application: Application, parts: Iterable[TaskSummary]) -> list[PartitionOffset]:
    """Return the next offset of every input partition, including tasks without stores, if no record has been in transit between tasks since
    the first of these parts was written; otherwise nothing. Raises BrokerUnavailableError, StreamsError."""
    config = StreamsConfig({**application.config, "application.id": application.id})
    topics = TopicAdmin(config)
    committed = topics.committed_offsets(application.id, stable=False)
    read = {topic for version in _newest_reads(application) for topic in version} | {partition.topic for partition in committed}
    counts = topics.partition_counts(read)
    partitions = [Partition(topic, number) for topic, count in counts.items() for number in range(count)]
    starts, ends = topics.start_offsets(partitions), topics.high_watermarks(partitions)
    empty = {each: starts[each] for each in partitions if starts[each] == ends[each]}  # nothing to commit: their tasks start there
    offsets = {**empty, **{each: committed[each] for each in partitions if each in committed}}
    between = [each for each in partitions if _is_repartition(each.topic, application.id)]
    if between and not (_as_committed(parts, offsets) and _all_read(config, topics, between, offsets)):
        return []
    return PartitionOffset.of(offsets)


def _newest_reads(application: Application) -> list[tuple[str, ...]]:
    """Return the topics that each sub-topology of the topology started last reads. A pattern is no topic; topics that it matches have
    committed offsets as soon as they have been read."""
    versions = [*Observer(application.id, application.bootstrap_servers).look().versions.values()]
    return [part.reads for part in versions[-1].parts.values()] if versions else []


def _is_repartition(topic: str, application_id: str) -> bool:
    return topic.startswith(f"{application_id}-") and topic.endswith("-repartition")


def _as_committed(parts: Iterable[TaskSummary], offsets: Mapping[Partition, NextOffset]) -> bool:
    """Return True if no task has committed since its part was written."""
    inputs = [(Partition(at.topic, at.partition), at.next_offset) for part in parts if part.task != GLOBAL for at in part.inputs]
    return all(offsets.get(partition, offset) == offset for partition, offset in inputs)


def _all_read(config: StreamsConfig, topics: TopicAdmin, between: Collection[Partition], offsets: Mapping[Partition, NextOffset]) -> bool:
    """Return True if these partitions contain no record beyond their offsets, committed or not."""
    stable, ends = topics.end_offsets(between), topics.high_watermarks(between)
    if stable != ends or not offsets.keys() >= set(between):
        return False
    left = {partition: offsets[partition] for partition in between if offsets[partition] < ends[partition]}
    return not (left and with_records(config, left, topics.give_up))
