"""Where a task reads its input: at the committed offsets, where there are none by the policy (`auto.offset.reset`), and again so when a
position is not on the log any more, or belongs to a topic that was deleted and made anew.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from runtime.clock import Clock
from runtime.commit.metadata import OffsetAndMetadata
from runtime.errors import StreamsError
from runtime.events import EventKind, EventSink
from runtime.ids import NextOffset, Partition
from runtime.intake.queues import PartitionQueue
from runtime.intake.reader import Reader
from runtime.offset_reset import Strategy
from runtime.stores.base import EntryStore
from runtime.tasks.active import ActiveTask
from runtime.worker.missed_deletions import SHORTEST_MS, missed_deletions
from runtime.worker.plans import Planner
from runtime.worker.source_topics import SourceTopics

logger = logging.getLogger(__name__)

OUT_OF_RANGE = "is out of range"
MADE_ANEW = "is of a topic that was deleted and created again"
OFFSETS_SECONDS = 10.0
"""How long an answer about committed offsets or ends of partitions may take."""


class Positions:
    """Answers for all active tasks of one worker. Belongs to the worker's thread."""

    def __init__(self, planner: Planner, reader: Reader, sources: SourceTopics, events: EventSink, clock: Clock) -> None:
        self._planner = planner
        self._reader = reader
        self._sources = sources
        self._events = events
        self._clock = clock

    def starts(self, task: ActiveTask, committed: Mapping[Partition, OffsetAndMetadata]) -> dict[Partition, NextOffset]:
        """Where a task begins that is begun or resumed. Raises StreamsError: no broker answers, or the policy is `none`."""
        return {partition: self._start(task, partition, committed.get(partition)) for partition in task.inputs}

    def _start(self, task: ActiveTask, partition: Partition, committed: OffsetAndMetadata | None) -> NextOffset:
        if partition in task.remade:
            ours = task.committed_offsets.get(partition)
            if committed is None or ours is None or committed.offset == ours.offset:  # else somebody knew of it, and has set another
                start = self._by_policy(task, partition, MADE_ANEW)
                policy = str(task.plan.offset_reset(partition.topic))
                self._tell(task, partition, None if committed is None else committed.offset, start, MADE_ANEW, policy)
                task.remade.discard(partition)
                return start
            task.remade.discard(partition)
        if committed is not None:
            return NextOffset(committed.offset)
        if partition in task.reset_positions:
            return task.reset_positions[partition]
        return self._by_policy(task, partition, "no committed offset")

    def _by_policy(self, task: ActiveTask, partition: Partition, why: str) -> NextOffset:
        """Where `auto.offset.reset`, or the source's own policy, says to begin. Raises StreamsError for `none`."""
        policy = task.plan.offset_reset(partition.topic)
        if policy.strategy is Strategy.NONE:
            raise StreamsError(
                f"{partition}: {why}, and auto.offset.reset = none: set the offset with kafka-consumer-groups --reset-offsets, "
                "or choose earliest, latest or by_duration"
            )
        low, high = self._reader.bounds(partition, OFFSETS_SECONDS)
        if policy.strategy is Strategy.BY_DURATION:
            found = self._reader.at_time(partition, self._clock.wall_ms() - policy.duration_ms, OFFSETS_SECONDS)
            return high if found is None else found
        return low if policy.strategy is Strategy.EARLIEST else high

    def add_missed_deletions(self, task: ActiveTask, starts: Mapping[Partition, NextOffset]) -> None:
        """Of tables whose source topic was last read to its end longer ago than it remembers deletions (rules.md, 13)."""
        now_ms = self._clock.wall_ms()
        for topic, name in task.plan.table_sources.items():
            partition = Partition(topic, task.id.partition)
            at_end_ms, store, queues = task.at_end_ms(name, partition), task.stores[name], task.queues
            if at_end_ms is None or queues is None or now_ms - at_end_ms < SHORTEST_MS or not isinstance(store, EntryStore):
                continue
            retention_ms = self._planner.delete_retention_ms(topic)
            end = self._reader.bounds(partition, OFFSETS_SECONDS)[1]
            if retention_ms is None or now_ms - at_end_ms <= retention_ms or starts[partition] >= end:
                continue
            time_ms = max(0, queues[partition].partition_time)
            missed = missed_deletions(store, partition, starts[partition], end, time_ms, self._planner.log_properties())
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
                queues[partition].add(missed)

    def reset(self, task: ActiveTask, queue: PartitionQueue, position: int | None, why: str) -> None:
        """The position means nothing (any more): goes on where the policy says, and tells (kafka-facts, D).

        A position that somebody has set is no accident, so the policy is not asked: the nearest offset that there is takes its place, as
        in Kafka's own tool. (By `earliest`, a shift beyond the end would process the whole topic once more.)
        """
        partition = queue.partition
        self._sources.look_again(partition.topic)
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
        self._tell(task, partition, position, start, why, policy)
        if queue.buffered and start >= queue.next_offset and why is OUT_OF_RANGE:
            queue.jump(start)
        else:
            queue.clear(start)
        self._reader.assign({partition: start})

    def _tell(self, task: ActiveTask, partition: Partition, position: int | None, start: int, why: str, policy: str) -> None:
        logger.warning("%s: offset %s %s; going on at %d (%s)", partition, position, why, start, policy, extra={"task": task.id})
        payload = {"topic": partition.topic, "partition": partition.number, "from": position, "to": start, "policy": policy, "reason": why}
        self._events.emit(EventKind.OFFSET_RESET, payload, task.id, f"{partition}@{position}")
