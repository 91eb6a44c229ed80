"""An application in one process and without a broker, over records that are at hand: what a rehearsal runs (docs/rehearsals.md).

All tasks of the topology run, each the engine's own with its stores. Records are taken in the order of their timestamps, at most a run of
each partition at a time; each task processes and commits what is its own, and then what the others have written to its repartition topics,
until nothing is left. So sub-topologies feed each other as in a stream, also in a circle (foreign-key joins). Wall-clock time is the
largest stream time. `one_by_one` takes a single record of the input at a time, with all that comes of it, like the test driver: a circle
of a history run (docs/history.md).

Equal input and equal state give equal outputs and stores, in the same order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from itertools import accumulate
from pathlib import Path

from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.input.columns import RawColumns
from penstock.runtime.input.deserialization import RawMessage
from penstock.runtime.model.errors import MissingSinkTopicError, StreamsError
from penstock.runtime.model.ids import NextOffset, TaskId, TopicPartition
from penstock.runtime.model.metrics import Metrics
from penstock.runtime.model.record import Headers
from penstock.runtime.model.states import TaskState
from penstock.runtime.serdes.murmur import partition_for
from penstock.runtime.stage.environment import Environment
from penstock.runtime.stage.global_stores import LocalGlobalStores
from penstock.runtime.stage.stage import StreamTimeClock
from penstock.runtime.stage.task import OfflineTask, TaskStart
from penstock.runtime.tasks.incidents import PausePoint
from penstock.runtime.topology.internal_topics import plan_partitions, task_count
from penstock.runtime.topology.nodes import SubTopology
from penstock.runtime.topology.topology import Topology

TURN_RECORDS = 1_000
"""A task commits after at most this many records."""
_NO_WAIT = -1
"""`max.task.idle.ms`: the records of a turn are all there are up to their time."""
_MOST_IDLE_TURNS = 1_000

ColumnSource = Iterator[RawColumns]
"""Runs of consecutive records of one partition, in order."""


class LocalApplication:
    """The tasks of a resolved topology. Call `begin` with the state of each task that has some, `fill_globals`, `run` at least once,
    `write_snapshots`, and `close`."""

    def __init__(
        self,
        config: StreamsConfig,
        topology: Topology,
        folder: Path,
        *,
        partitions: Mapping[str, int],
        outputs: Callable[[str, bytes | None, bytes | None, int, Headers | None, int | None], None],
        rejected: Callable[[TaskId, PausePoint], None],
        tasks: Collection[TaskId] | None = None,
        one_by_one: bool = False,
    ) -> None:
        """`partitions`: the number of each topic that exists, at least of all source topics. `outputs` takes committed records of sinks and
        dead letters, and those of repartition topics that no task here reads: topic, key, value, timestamp, headers, and the partition
        where one was chosen. `rejected` is called for a record for which a handler returned PAUSE; the task continues after it. `tasks`:
        those that run; None means all. `one_by_one`: everything that comes of a record is processed before the next record. Raises
        WrongPartitionsError, StreamsConfigError."""
        parts, internal = topology.sub_topologies(), topology.internal_topics()
        self._partitions = {**partitions, **plan_partitions(parts, internal, topology.copartition_groups(), partitions)}
        self._folder = folder
        self._rejected = rejected
        self._clock = StreamTimeClock()
        self._metrics = Metrics()
        self._log = _Router({topic.name for topic in internal if topic.kind == "repartition"}, self._partitions, outputs)
        self._started = False
        self._one_by_one = one_by_one
        self._around = Environment(
            config,
            topology,
            self._clock,
            self._metrics,
            self._log,
            folder,
            instance="local",
            partitions=self._partitions_of,
            max_task_idle_ms=_NO_WAIT,
        )
        folder.mkdir(parents=True, exist_ok=True)
        self._globals = LocalGlobalStores(topology.global_stores(), self._around)
        wanted = [(part, number) for part in parts for number in range(task_count(part, self._partitions))]
        self.tasks = [self._task(part, number) for part, number in wanted if tasks is None or TaskId(part.id, number) in tasks]
        self._readers = {partition: task for task in self.tasks for partition in task.inputs}
        self._log.readers = self._readers.keys()
        self.writer = self.tasks[0].id if self.tasks else TaskId(0, 0)
        """Task whose output was last passed on."""

    def _task(self, part: SubTopology, number: int) -> OfflineTask:
        sources = {topic: source for source in part.sources for topic in source.topics if number < self._partitions[topic]}
        return OfflineTask(part, number, sources, self._around, self._globals)

    def _partitions_of(self, topic: str) -> int:
        count = self._partitions.get(topic)
        if count is None:
            raise MissingSinkTopicError(f"the number of partitions of output topic {topic} is unknown: it does not exist")
        return count

    @property
    def global_topics(self) -> set[str]:
        """Topics of the global stores."""
        return self._globals.topics

    def store_folder(self, task: TaskId, store: str) -> Path:
        """Return the folder of a persistent store's files, which exists before `run` where the store does not begin empty."""
        return self._folder / str(task) / "rocksdb" / store

    def begin(self, task: TaskId, start: TaskStart) -> None:
        """Set the state with which a task begins, before `run`; of a task that does not run, it is ignored."""
        for each in self.tasks:
            if each.id == task:
                each.begin_with(start)
        for partition, offset in start.offsets.items():
            self._log.begin(partition, offset)

    def fill_globals(self, partition: TopicPartition, messages: Sequence[RawMessage]) -> None:
        """Apply records of a global topic, in order, before `run`."""
        self._globals.process(partition, messages)

    def run(self, sources: Mapping[TopicPartition, ColumnSource]) -> None:
        """Process all records of the sources, and commit. They begin at the offsets of `begin`, else anywhere.

        May be called again with the records that follow. Raises StoreChangedError for files that do not fit, and DeserializationError,
        ProcessingError and ProductionError where a handler returns FAIL.
        """
        merged = _OneByOne(sources) if self._one_by_one else _Merged(sources)
        if (first_ms := merged.first_ms()) is not None:
            self._clock.advance_to(first_ms)
        if not self._started:
            self._started = True
            for task in self.tasks:
                self.writer = task.id
                task.start()
            self._settle()
        while turn := merged.turn():
            for partition, run in turn:
                self._readers[partition].give(partition, run)
            self._settle()

    def _settle(self) -> None:
        """Process everything that tasks have, and what comes of it, and run the punctuators that are due then."""
        while True:
            for task in self.tasks:
                self._process(task)
            now_ms = self._clock.wall_ms()
            if self._deliver():
                continue
            self._globals.punctuate(now_ms)
            ran = sum(self._punctuate(task, now_ms) for task in self.tasks if task.is_punctuation_due(now_ms))
            if not ran and not self._deliver():
                return

    def _punctuate(self, task: OfflineTask, now_ms: int) -> int:
        self.writer = task.id
        return task.punctuate(now_ms)

    def _process(self, task: OfflineTask) -> None:
        self.writer = task.id
        idle = 0
        while task.queues is not None and (task.queues.buffered or task.uncommitted_records):
            done = task.step(TURN_RECORDS)
            if task.state is TaskState.PAUSED and task.paused_at is not None:
                self._rejected(task.id, task.paused_at)
                task.pass_paused()
                done = 1
            self._clock.advance_to(task.stream_time)
            idle = 0 if done else idle + 1
            if idle > _MOST_IDLE_TURNS:
                raise StreamsError(f"task {task.id} does not proceed, although it has records: {task.processed_positions()}")

    def _deliver(self) -> bool:
        """Hand over what was written to repartition topics. Return False if there is nothing."""
        runs = self._log.taken()
        for partition, run in runs:
            self._readers[partition].give(partition, run)
        return bool(runs)

    @property
    def records(self) -> int:
        """Records processed by all tasks, without those that a handler has skipped."""
        return sum(task.committed_records for task in self.tasks)

    def dropped(self) -> int:
        """Return the number of records that operators dropped, for example for a null key or a closed window, and of skipped ones."""
        return int(sum(value for name, value in self._metrics.values().items() if name.name == "dropped-records-total"))

    def write_snapshots(self, folder: Path, snapshot: str, at_ms: int) -> dict[TaskId, Path]:
        """Write the stores of each task that has some as a part of a snapshot, and return its folder."""
        return {task.id: task.write_snapshot(folder, snapshot, at_ms) for task in self.tasks if task.stores}

    def write_seed(
        self,
        folder: Path,
        snapshot: str,
        at_ms: int,
        inputs: Callable[[TaskId], Mapping[TopicPartition, NextOffset]],
        *,
        all_stores: bool = False,
    ) -> dict[TaskId, Path]:
        """Write a part of a seed for each task, and return its folder. `inputs`: the next offsets of a task on the brokers' topics.
        `all_stores`: also those that a source topic restores."""
        return {task.id: task.write_seed(folder, snapshot, at_ms, inputs(task.id), all_stores=all_stores) for task in self.tasks}

    def close(self, *, clean: bool = False) -> None:
        """Close processors and stores; files stay. `clean`: the run has succeeded, so an error of a processor's `close` is raised."""
        try:
            for task in self.tasks:
                self.writer = task.id
                if task.state is not TaskState.CREATED:
                    task.close(clean=clean)
        finally:
            self._globals.close()


class _Router:
    """Log of the outputs: records of repartition topics are kept for their readers, all others are passed on."""

    keeps_changelogs = False

    def __init__(
        self,
        internal: set[str],
        partitions: Mapping[str, int],
        outputs: Callable[[str, bytes | None, bytes | None, int, Headers | None, int | None], None],
    ) -> None:
        self.readers: Collection[TopicPartition] = ()
        """Partitions that a task here reads."""
        self._internal = internal
        self._partitions = partitions
        self._outputs = outputs
        self._next: dict[TopicPartition, int] = {}
        self._waiting: dict[TopicPartition, RawColumns] = {}
        self._without_key = 0

    def begin(self, partition: TopicPartition, offset: int) -> None:
        """Give the first record of a repartition topic's partition this offset."""
        if partition.topic in self._internal:
            self._next[partition] = offset

    def send(
        self, topic: str, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers | None, partition: int | None
    ) -> None:
        if topic not in self._internal:
            self._outputs(topic, key, value, timestamp, headers, partition)
            return
        if partition is None:
            partition = self._turn(topic) if key is None else partition_for(key, self._partitions[topic])
        at = TopicPartition(topic, partition)
        if at not in self.readers:
            self._outputs(topic, key, value, timestamp, headers, partition)
            return
        rows = self._waiting.get(at)
        if rows is None:
            rows = self._waiting[at] = RawColumns(topic, partition, [], [], [], [], [])
        rows.keys.append(key)
        rows.values.append(value)
        rows.timestamps.append(timestamp)
        assert rows.headers is not None  # as it was made
        rows.headers.append(headers)

    def _turn(self, topic: str) -> int:
        self._without_key += 1
        return self._without_key % self._partitions[topic]

    def taken(self) -> list[tuple[TopicPartition, RawColumns]]:
        """Return the records of repartition topics since the last call, in order."""
        waiting, self._waiting = self._waiting, {}
        found = []
        for partition, rows in sorted(waiting.items()):
            first = self._next.get(partition, 0)
            self._next[partition] = first + len(rows)
            headers = rows.headers if rows.headers is not None and any(rows.headers) else None
            offsets = range(first, first + len(rows))
            found.append((partition, RawColumns(*partition, offsets, rows.keys, rows.values, rows.timestamps, headers)))
        return found

    def end(self, topic: str) -> int:
        raise NotImplementedError(topic)  # changelogs are not kept


class _OneByOne:
    """Sources in the order of time, one record per turn: the one with the smallest of the largest timestamps so far in its partition, at
    equal ones that of the first topic by name, then of the first partition."""

    def __init__(self, sources: Mapping[TopicPartition, ColumnSource]) -> None:
        self._sources = dict(sources)
        self._heads: list[tuple[int, TopicPartition, int]] = []
        self._runs: dict[TopicPartition, RawColumns] = {}
        for partition in self._sources:
            self._next_run(partition, -1)

    def _next_run(self, partition: TopicPartition, latest: int) -> None:
        run = next((run for run in self._sources[partition] if len(run)), None)
        if run is not None:
            self._runs[partition] = run
            heappush(self._heads, (max(latest, run.timestamps[0]), partition, 0))

    def first_ms(self) -> int | None:
        """Return the smallest timestamp of the first records."""
        return self._heads[0][0] if self._heads else None

    def turn(self) -> list[tuple[TopicPartition, RawColumns]]:
        """Return the next record; empty at the end."""
        if not self._heads:
            return []
        latest, partition, row = heappop(self._heads)
        run = self._runs[partition]
        if row + 1 < len(run):
            heappush(self._heads, (max(latest, run.timestamps[row + 1]), partition, row + 1))
        else:
            self._next_run(partition, latest)
        return [(partition, run[row : row + 1])]


class _Merged:
    """Sources in the order of time: each turn contains the records of all partitions up to a time, of each at most its next run."""

    def __init__(self, sources: Mapping[TopicPartition, ColumnSource]) -> None:
        self._sources = dict(sources)
        self._heads = {partition: run for partition in sorted(self._sources) if (run := self._next_run(partition)) is not None}
        self._latest: dict[TopicPartition, int] = {}

    def _next_run(self, partition: TopicPartition) -> RawColumns | None:
        return next((run for run in self._sources[partition] if len(run)), None)

    def first_ms(self) -> int | None:
        """Return the smallest timestamp of the first records."""
        return min((run.timestamps[0] for run in self._heads.values()), default=None)

    def turn(self) -> list[tuple[TopicPartition, RawColumns]]:
        """Return the next records of each partition; empty at the end. A partition keeps its order: a late record follows the record before
        it."""
        if not self._heads:
            return []
        times = {
            partition: list(accumulate(run.timestamps, max, initial=self._latest.get(partition, -1)))[1:]
            for partition, run in self._heads.items()
        }
        until = min(of_run[-1] for of_run in times.values())
        found = []
        for partition, of_run in times.items():
            stop = bisect_right(of_run, until)
            if not stop:
                continue
            run = self._heads[partition]
            found.append((partition, run[:stop]))
            self._latest[partition] = of_run[stop - 1]
            if stop < len(run):
                self._heads[partition] = run[stop:]
            elif (following := self._next_run(partition)) is not None:
                self._heads[partition] = following
            else:
                del self._heads[partition]
        return found
