"""Stage: one task of a sub-topology run over its whole input, which is at hand (docs/history.md).

The engine's own task processes the records, with its queues, handlers, operators, stores and commit. So the order of records of several
partitions, the answers of handlers and the ends of windows are those of a stream that had all of its input from the start. A partition
without further records is waited for until its source is at its end, as with `max.task.idle.ms` and a complete topic.

Memory does not grow with the input: a partition has one run of records in its queue, and those since the last commit are kept in case of
a rollback. State is in a folder of the stage's own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.input.deserialization import RawMessage
from penstock.runtime.model.errors import MissingSinkTopicError, StreamsError
from penstock.runtime.model.ids import NextOffset, TopicPartition
from penstock.runtime.model.metrics import Metrics
from penstock.runtime.model.states import TaskState
from penstock.runtime.stage.environment import Environment
from penstock.runtime.stage.global_stores import LocalGlobalStores
from penstock.runtime.stage.task import OfflineTask, TaskStart
from penstock.runtime.stage.transport import OutputLog
from penstock.runtime.tasks.incidents import PausePoint
from penstock.runtime.topology.nodes import SubTopology
from penstock.runtime.topology.topology import Topology

COMMIT_RECORDS = 10_000
COMMIT_BYTES = 32 * 1024 * 1024
"""A commit follows this many records, or this many bytes in the staged updates of the stores."""
_TURN_RECORDS = 1_000
"""Wall-clock punctuators are asked after at most this many records."""
_MOST_IDLE_TURNS = 1_000

Source = Iterator[Sequence[RawMessage]]
"""Runs of consecutive records of one partition, in order."""


class StreamTimeClock:
    """Wall clock of a stage: the stream time of its task, which never goes back. Monotonic time is the machine's."""

    def __init__(self) -> None:
        self._now_ms = 0

    def wall_ms(self) -> int:
        """Return the milliseconds since the epoch."""
        return self._now_ms

    def monotonic_ms(self) -> int:
        """Return the milliseconds since an arbitrary start."""
        return time.monotonic_ns() // 1_000_000

    def advance_to(self, now_ms: int) -> None:
        """Advance to a time; an earlier one is ignored."""
        self._now_ms = max(self._now_ms, now_ms)


class Stage:
    """A task of a sub-topology over its input. Call `begin` with the state of a task that has some, `fill_globals` for the global stores,
    `run` once, `write_snapshot`, and `close`.

    Everything is deterministic: equal input gives equal outputs and state, in the same order.
    """

    def __init__(
        self,
        config: StreamsConfig,
        topology: Topology,
        part: SubTopology,
        partition: int,
        folder: Path,
        *,
        partitions: Mapping[str, int],
        outputs: OutputLog,
        rejected: Callable[[PausePoint], None],
    ) -> None:
        """`topology` is resolved, and `part` is one of its sub-topologies. `partitions`: the number of each topic. `rejected` is called for
        a record for which a handler returned PAUSE: the run goes on after it, unless it raises."""
        self._partitions = partitions
        self._clock = StreamTimeClock()
        self._metrics = Metrics()
        self._rejected = rejected
        self._around = Environment(
            config,
            topology,
            self._clock,
            self._metrics,
            outputs,
            folder,
            instance="history",
            partitions=self._partitions_of,
            max_task_idle_ms=0,
        )
        folder.mkdir(parents=True, exist_ok=True)
        read = part.global_stores
        entries = [entry for entry in topology.global_stores() if read is None or entry.store.name in read]
        self._globals = LocalGlobalStores(entries, self._around)
        sources = {
            topic: source for source in part.sources for topic in source.topics if partition < partitions[topic]
        }  # merged topics may differ: the one with fewer partitions feeds the first tasks only
        self.task = OfflineTask(part, partition, sources, self._around, self._globals)

    def _partitions_of(self, topic: str) -> int:
        count = self._partitions.get(topic)
        if count is None:
            raise MissingSinkTopicError(f"the number of partitions of output topic {topic} is unknown: it did not exist when the run began")
        return count

    @property
    def global_topics(self) -> set[str]:
        """Topics of the global stores that this sub-topology may read."""
        return self._globals.topics

    def begin(self, start: TaskStart) -> None:
        """Set the state with which the task begins, before `run`. Records before its offsets are passed over."""
        self.task.begin_with(start)

    def fill_globals(self, partition: TopicPartition, messages: Sequence[RawMessage]) -> None:
        """Apply records of a global topic, in order, before `run`."""
        self._globals.process(partition, messages)

    def run(self, sources: Mapping[TopicPartition, Source]) -> None:
        """Process all records of the sources, in the engine's order, and commit.

        Raises DeserializationError, ProcessingError and ProductionError where a handler returns FAIL, and what `rejected` raises.
        """
        task, feeds = self.task, _Feeds(sources)
        if (first_ms := feeds.first_ms()) is not None:
            self._clock.advance_to(first_ms)
        task.start()
        idle = 0
        while True:
            fed = feeds.refill(task)
            due = task.uncommitted_records >= COMMIT_RECORDS or task.uncommitted_bytes >= COMMIT_BYTES
            done = task.step(_TURN_RECORDS, commits=due or task.commit_requested)
            if task.state is TaskState.PAUSED and task.paused_at is not None:
                self._rejected(task.paused_at)
                task.pass_paused()
                continue
            self._clock.advance_to(task.stream_time)
            if task.is_punctuation_due(self._clock.wall_ms()):
                task.step(0)  # records have a commit of their own, so that a refused output can be attributed
                task.punctuate(self._clock.wall_ms())
            self._globals.punctuate(self._clock.wall_ms())
            if not done and feeds.exhausted and self._is_finished():
                return
            idle = 0 if done or fed else idle + 1
            if idle > _MOST_IDLE_TURNS:
                raise StreamsError(f"task {task.id} does not proceed, although it has records: {task.processed_positions()}")

    def _is_finished(self) -> bool:
        """Commit what is left. Return False if records are left, for example because that commit was rolled back."""
        task = self.task
        if task.queues is not None and not task.queues.buffered:
            task.step(0)
        return task.state is TaskState.RUNNING and not task.uncommitted_records and task.queues is not None and not task.queues.buffered

    @property
    def records(self) -> int:
        """Records processed, without those that a handler has skipped."""
        return self.task.committed_records

    def dropped(self) -> int:
        """Return the number of records that operators dropped, for example for a null key or a closed window, and of skipped ones."""
        return int(sum(value for name, value in self._metrics.values().items() if name.name == "dropped-records-total"))

    def write_snapshot(
        self, folder: Path, snapshot: str, at_ms: int, inputs: Mapping[TopicPartition, NextOffset], *, all_stores: bool = False
    ) -> Path:
        """Write the stores and times as a part of a snapshot; return its folder. `inputs`: the next offsets on the brokers' topics. Stores
        that a source topic restores are left out, unless `all_stores`."""
        return self.task.write_seed(folder, snapshot, at_ms, inputs, all_stores=all_stores)

    def close(self, *, clean: bool = False) -> None:
        """Close processors and stores; files stay. `clean`: the run has succeeded, so an error of a processor's `close` is raised."""
        try:
            if self.task.state is not TaskState.CREATED:
                self.task.close(clean=clean)
        finally:
            self._globals.close()


class _Feeds:
    """Sources of a task's partitions, each read one run ahead."""

    def __init__(self, sources: Mapping[TopicPartition, Source]) -> None:
        self._sources = dict(sources)
        self._next = {partition: run for partition, source in self._sources.items() if (run := _next_run(source)) is not None}

    def first_ms(self) -> int | None:
        """Return the smallest timestamp of the first records."""
        return min((run[0].timestamp()[1] for run in self._next.values()), default=None)

    @property
    def exhausted(self) -> bool:
        """True if all records were handed over."""
        return not self._next

    def refill(self, task: OfflineTask) -> bool:
        """Hand over a run for each empty partition; note the end of one without further records. Return True if any was handed over."""
        assert task.queues is not None
        fed = False
        for queue in task.queues.all:
            partition = queue.partition
            if queue.buffered:
                continue
            run = self._next.pop(partition, None)
            if run is None:
                queue.at_end = True
                continue
            task.give(partition, run)
            if (following := _next_run(self._sources[partition])) is not None:
                self._next[partition] = following
            fed = True
        return fed


def _next_run(source: Source) -> Sequence[RawMessage] | None:
    """Return the next run with records; None at the end."""
    return next((run for run in source if len(run)), None)
