"""Start positions of a task's input: the committed offsets, or those of `auto.offset.reset` where there are none, where a position is no
longer on the log, or where the topic was deleted and recreated.

A partition that was added after the application first read its topic begins at its first record, whatever the policy: all of its records
came after the application's start, and none of its offsets was lost. (By `latest`, records written before the partition was noticed, or
while no worker ran, would be skipped.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType

from penstock.runtime.input.queues import PartitionQueue
from penstock.runtime.kafka.input_reader import Reader
from penstock.runtime.kafka.topic_admin import TopicAdmin
from penstock.runtime.model.clock import Clock
from penstock.runtime.model.errors import BrokerUnavailableError, StreamsError, by_reset
from penstock.runtime.model.events import EventKind, EventSink
from penstock.runtime.model.ids import NextOffset, TopicPartition
from penstock.runtime.model.offsets import OffsetAndMetadata, Strategy
from penstock.runtime.stores.base import EntryStore
from penstock.runtime.tasks.active import ActiveTask
from penstock.runtime.worker.missed_deletions import SHORTEST_MS, missed_deletions
from penstock.runtime.worker.source_topics import SourceTopics
from penstock.runtime.worker.task_factory import TaskFactory

logger = logging.getLogger(__name__)

OUT_OF_RANGE = "is out of range"
RECREATED = "is of a topic that was deleted and created again"
OFFSETS_SECONDS = 10.0
Bounds = Mapping[TopicPartition, tuple[NextOffset, NextOffset]]
"""First offset and end of partitions."""
"""Timeout of requests for committed offsets or ends of partitions."""


class Positions:
    """Positions of all active tasks of one worker. Used by the worker's thread only."""

    def __init__(
        self,
        task_factory: TaskFactory,
        reader: Reader,
        topics: TopicAdmin,
        sources: SourceTopics,
        events: EventSink,
        clock: Clock,
        first_partitions: Callable[[], Mapping[str, int]],
    ) -> None:
        """`first_partitions`: the number of partitions of each input topic when the application first read it."""
        self._task_factory = task_factory
        self._reader = reader
        self._topics = topics
        self._sources = sources
        self._events = events
        self._clock = clock
        self._first_partitions = first_partitions

    def bounds(self, partitions: Collection[TopicPartition]) -> Bounds:
        """Return the first offset and the end of partitions, with two requests, while others are read: the reader asks for one after the
        other, and each answer waits until the brokers have answered the fetch before it, for half a second where no records come. Before
        the first fetch the reader asks itself, which connects it to the partitions' leaders. What is not returned is left to `starts`.
        Raises BrokerUnavailableError."""
        if not self._reader.assigned:
            return {}
        try:
            lows, highs = self._topics.start_offsets(partitions), self._topics.end_offsets(partitions)
        except BrokerUnavailableError:
            raise
        except StreamsError as error:
            logger.debug("%s", error)  # the reader says it of the one partition that it is about
            return {}
        return {partition: (low, highs[partition]) for partition, low in lows.items()}

    def starts(
        self, task: ActiveTask, committed: Mapping[TopicPartition, OffsetAndMetadata], bounds: Bounds = MappingProxyType({})
    ) -> dict[TopicPartition, NextOffset]:
        """Return the start offsets of a task that begins or resumes. `bounds`: what is known of partitions without a committed offset.
        Raises StreamsError: no broker answers, or the policy is `none`."""
        return {partition: self._start(task, partition, committed.get(partition), bounds) for partition in task.inputs}

    def _start(self, task: ActiveTask, partition: TopicPartition, committed: OffsetAndMetadata | None, bounds: Bounds) -> NextOffset:
        if partition in task.remade:
            ours = task.committed_offsets.get(partition)
            if committed is None or ours is None or committed.offset == ours.offset:  # otherwise the offset was set for the new topic
                start = self._by_policy(task, partition, RECREATED)
                policy = str(task.plan.offset_reset(partition.topic))
                self._report(task, partition, None if committed is None else committed.offset, start, RECREATED, policy)
                task.remade.discard(partition)
                return start
            task.remade.discard(partition)
        if committed is not None:
            return NextOffset(committed.offset)
        if partition in task.reset_positions:
            return task.reset_positions[partition]
        reset = task.plan.offset_reset(partition.topic)
        if reset.strategy is not Strategy.EARLIEST and self._is_added(partition):
            start = self._of(partition, bounds)[0]
            logger.info(
                "%s was added after the application began to read its topic: it is read from its first record (%d), not by %s",
                *(partition, start, reset),
                extra={"task": task.id},
            )
            return start
        return self._by_policy(task, partition, "no committed offset", bounds)

    def _is_added(self, partition: TopicPartition) -> bool:
        """Return True if the partition was added after the application first read the topic. False if the group has no offset at all any
        more: they have expired or were deleted, and the policy applies to all partitions alike. Raises StreamsError."""
        first = self._first_partitions()
        if partition.partition < first.get(partition.topic, partition.partition + 1):
            return False
        previous = [TopicPartition(topic, number) for topic, count in first.items() for number in range(count)]
        return not previous or bool(self._reader.committed(previous, OFFSETS_SECONDS))

    def _of(self, partition: TopicPartition, bounds: Bounds) -> tuple[NextOffset, NextOffset]:
        return bounds.get(partition) or self._reader.bounds(partition, OFFSETS_SECONDS)

    def _by_policy(self, task: ActiveTask, partition: TopicPartition, why: str, bounds: Bounds = MappingProxyType({})) -> NextOffset:
        """Return the offset of `auto.offset.reset`, or of the source's own policy. Raises StreamsError for `none`."""
        policy = task.plan.offset_reset(partition.topic)
        if policy.strategy is Strategy.NONE:
            raise StreamsError(
                f"{partition}: {why}, and auto.offset.reset = none: choose earliest, latest or by_duration; or build the state again from "
                f"another place: {by_reset(task.plan.application_id)} --to earliest|latest|TIME|OFFSETS"
            )
        low, high = self._of(partition, bounds)
        if policy.strategy is Strategy.BY_DURATION:
            found = self._reader.at_time(partition, self._clock.wall_ms() - policy.duration_ms, OFFSETS_SECONDS)
            return high if found is None else found
        return low if policy.strategy is Strategy.EARLIEST else high

    def add_missed_deletions(self, task: ActiveTask, starts: Mapping[TopicPartition, NextOffset]) -> None:
        """Add missed deletions of tables whose source topic was last read to its end longer ago than its deletions are retained (rules.md,
        13)."""
        now_ms = self._clock.wall_ms()
        for topic, name in task.plan.table_sources.items():
            partition = TopicPartition(topic, task.id.partition)
            at_end_ms, store, queues = task.at_end_ms(name, partition), task.stores[name], task.queues
            if at_end_ms is None or queues is None or now_ms - at_end_ms < SHORTEST_MS or not isinstance(store, EntryStore):
                continue
            retention_ms = self._task_factory.delete_retention_ms(topic)
            end = self._reader.bounds(partition, OFFSETS_SECONDS)[1]
            if retention_ms is None or now_ms - at_end_ms <= retention_ms or starts[partition] >= end:
                continue
            time_ms = max(0, queues[partition].partition_time)
            missed = missed_deletions(store, partition, starts[partition], end, time_ms, self._task_factory.log_properties())
            logger.warning(
                "task %s: table %s was last at the end of %s %d ms ago, longer than its delete.retention.ms of %d: %d rows are deleted "
                "whose keys it does not have any more",
                task.id,
                name,
                partition,
                now_ms - at_end_ms,
                retention_ms,
                len(missed),
                extra={"task": task.id},
            )
            if missed:
                queues[partition].enqueue(missed)

    def reset(self, task: ActiveTask, queue: PartitionQueue, position: int | None, why: str) -> None:
        """Replace an invalid position by that of the policy, and report it.

        A position that an operator has set is no accident, so the policy is not used: the nearest existing offset replaces it, as in
        Kafka's own tool. (With `earliest`, a shift beyond the end would process the whole topic again.)
        """
        partition = queue.partition
        self._sources.poll_now(partition.topic)
        _, shifted_to = task.moved.get(partition, (None, None))
        if position is not None and position == shifted_to and why is OUT_OF_RANGE:
            low, high = self._reader.bounds(partition, OFFSETS_SECONDS)
            start, policy = (low if position < low else high), "nearest"
        else:
            start = self._by_policy(task, partition, f"offset {position} {why}")
            policy = str(task.plan.offset_reset(partition.topic))
        task.moved.pop(partition, None)
        if partition in task.reset_positions:
            task.reset_positions[partition] = start
        self._report(task, partition, position, start, why, policy)
        if queue.buffered and start >= queue.next_offset and why is OUT_OF_RANGE:
            queue.jump(start)
        else:
            queue.clear(start)
        self._reader.assign({partition: start})

    def _report(self, task: ActiveTask, partition: TopicPartition, position: int | None, start: int, why: str, policy: str) -> None:
        logger.warning("%s: offset %s %s; continuing at %d (%s)", partition, position, why, start, policy, extra={"task": task.id})
        payload = {
            "topic": partition.topic,
            "partition": partition.partition,
            "from": position,
            "to": start,
            "policy": policy,
            "reason": why,
        }
        self._events.emit(EventKind.OFFSET_RESET, payload, task.id, f"{partition}@{position}")
