"""The test driver's tasks: the engine's own tasks and commit, with a transport that writes to a log in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from penstock.runtime.changelog.writer import ChangelogRow
from penstock.runtime.commit.collector import WorkerCollector
from penstock.runtime.commit.order import Commit
from penstock.runtime.commit.refusals import Output
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.input.deserialization import Decoder
from penstock.runtime.input.queues import PartitionQueue, TaskQueues
from penstock.runtime.model.errors import ProductionError, TransactionAbortedError
from penstock.runtime.model.events import EventSink
from penstock.runtime.model.ids import NextOffset, TaskId, TopicPartition
from penstock.runtime.model.metrics import Metrics
from penstock.runtime.model.offsets import AutoOffsetReset, OffsetAndMetadata
from penstock.runtime.model.record import Headers
from penstock.runtime.model.states import TaskState
from penstock.runtime.operators.context import TaskContext
from penstock.runtime.stores.base import EngineStore, StoreContext
from penstock.runtime.stores.budget import StoreMemory
from penstock.runtime.stores.custom import build_global_store
from penstock.runtime.stores.locks import FolderLock
from penstock.runtime.tasks.active import ActiveTask, ReplayBeforePauseError
from penstock.runtime.tasks.global_apply import GLOBAL_TASK, Applier, GlobalDecoder, ProcessorApplier, TableCopy
from penstock.runtime.tasks.global_dead_letters import GlobalDeadLetters
from penstock.runtime.tasks.incidents import Incidents
from penstock.runtime.tasks.plan import TaskPlan
from penstock.runtime.testing.clock import ManualClock
from penstock.runtime.testing.log import LogRecord, MemoryLog
from penstock.runtime.topology.nodes import GlobalStoreTopology, SourceNode, SubTopology
from penstock.runtime.topology.pipeline import compile_pipeline
from penstock.runtime.topology.topology import Topology

NO_WAIT = -1
"""`max.task.idle.ms` of a driver: a record is processed when it is piped, whatever other topics may bring."""


class MemoryTransport:
    """Transport to the log in memory, with transactions: outputs are on the log after the commit."""

    pending = True

    def __init__(self, log: MemoryLog) -> None:
        self.committed: dict[TopicPartition, OffsetAndMetadata] = {}
        """The group's committed offsets."""
        self._log = log
        self._outputs: list[Output] = []
        self._changelogs: set[TopicPartition] = set()

    def send(
        self, topic: str, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers | None, partition: int | None
    ) -> None:
        """Add an output to the transaction."""
        self._outputs.append(Output(topic, key, value, timestamp, headers, partition))

    def send_changelog(self, partition: TopicPartition, rows: list[ChangelogRow], headers: Headers | None) -> None:
        """Add changelog records; tombstones have no headers."""
        for key, value, timestamp in rows:
            self.send(partition.topic, key, value, timestamp, None if value is None else headers, partition.partition)
        self._changelogs.add(partition)

    def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], meanwhile: Sequence[Callable[[], None]] = ()
    ) -> Mapping[TopicPartition, NextOffset]:
        """Append the outputs to the log. Return the changelogs' next offsets."""
        for step in meanwhile:
            step()
        self.flush()
        self.committed.update(offsets)
        changelogs, self._changelogs = self._changelogs, set()
        return {partition: NextOffset(self._log.end(partition.topic)) for partition in changelogs}

    def flush(self) -> None:
        """Append the outputs to the log without a commit, as a program sees them that reads uncommitted records."""
        outputs, self._outputs = self._outputs, []
        for output in outputs:
            self._log.send(*output)

    def send_offsets(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None: ...

    def poll(self) -> None: ...

    def watch(self) -> None: ...

    def abort(self) -> None:
        """Drop the outputs since the last commit."""
        self._outputs.clear()
        self._changelogs.clear()

    def start(self) -> None: ...

    def close(self) -> None: ...


class MemoryCollector(WorkerCollector):
    """Collector of a driver's outputs: every topic exists."""

    def exists(self, topic: str, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers | None) -> bool:
        """Return True."""
        return True


class Surroundings:
    """Objects that all tasks of one driver share."""

    def __init__(
        self, config: StreamsConfig, topology: Topology, clock: ManualClock, metrics: Metrics, log: MemoryLog, folder: Path
    ) -> None:
        """`folder`: for state. Raises StreamsConfigError if a handler cannot be made."""
        self.config = config
        self.clock = clock
        self.metrics = metrics
        self.folder = folder
        self.memory = StoreMemory(config.integer("statestore.cache.max.bytes"))
        self.memory.set_rocks_options(config)
        self.events = EventSink(config.application_id, "topology-test", clock)
        self.incidents = Incidents(config, self.events, metrics, clock)
        self.incidents.set_topology(topology, None)
        self.log = log
        self.transport = MemoryTransport(log)
        self.collector = MemoryCollector(self.transport, lambda topic: 1, self.incidents, clock, hold=False, patience_ms=0)
        self.incidents.attach(self.transport)
        self.dead_letters = GlobalDeadLetters(self.incidents.dead_letter_topic)
        self.commit = Commit(self.transport, self.events, config.application_id)

    def decoder(self, entry: GlobalStoreTopology) -> Decoder:
        """Return a decoder of a global store's topic."""
        source = entry.source
        extractor = source.timestamp_extractor or self.config["default.timestamp.extractor"]
        assert source.key_serde is not None and source.value_serde is not None  # a resolved topology has them
        return Decoder(entry.topic, source.key_serde, source.value_serde, extractor, source=entry.source_label)

    def plan(self, part: SubTopology, sources: Mapping[str, SourceNode], global_stores: DriverGlobalStores) -> TaskPlan:
        """Return the plan of the only task of a sub-topology. `sources` is by topic."""
        task = TaskId(part.id, 0)
        directory = self.folder / str(task)
        return TaskPlan(
            task_id=task,
            application_id=self.config.application_id,
            config=self.config,
            subtopology=part,
            sources=sources,
            directory=directory,
            lock=FolderLock(directory, f"task {task}"),
            memory=self.memory,
            clock=self.clock,
            metrics=self.metrics,
            collector=self.collector,
            global_stores=global_stores,
            hold_outputs=False,
            max_task_idle_ms=NO_WAIT,
            default_offset_reset=AutoOffsetReset.of(self.config.text("auto.offset.reset")),
            default_timestamp_extractor=self.config["default.timestamp.extractor"],
            topic_id=lambda topic: None,
            emit_interval_ms=0,
        )


class DriverTask(ActiveTask):
    """The task of a sub-topology, with partition 0 of everything. It commits after each record."""

    records_per_commit = 1
    """More in tests of operators that compute several results at once."""

    def __init__(self, part: SubTopology, around: Surroundings, global_stores: DriverGlobalStores) -> None:
        self._around = around
        self._given: dict[TopicPartition, list[LogRecord]] = {}
        """Records given to the queues that are not all committed yet."""
        self._sources = {topic: source for source in part.sources for topic in source.topics}
        super().__init__(around.plan(part, self._sources, global_stores), around.incidents)

    @property
    def topics(self) -> list[str]:
        """The topics that this task reads."""
        return list(self._sources)

    def read_also(self, topic: str) -> bool:
        """Return True if a pattern of this task matches a topic; it is read from now on."""
        for source in self.plan.subtopology.sources:
            if source.pattern is not None and source.pattern.fullmatch(topic):
                self._sources[topic] = source
                self.inputs = self.plan.inputs
                if self.queues is not None and self._pipeline is not None:
                    queue = PartitionQueue(TopicPartition(topic, 0), self.plan.decoder(topic), NextOffset(0))
                    self.queues = TaskQueues([*self.queues.all, queue], NO_WAIT)
                    self._pipeline.read_also(topic, source.name)
                return True
        return False

    def start(self) -> None:
        """Open the stores, initialise the processors, and commit what they have done."""
        self.open()
        self._begin()
        self.commit()

    def _begin(self) -> None:
        self.begin(*self._positions())
        assert self._pipeline is not None
        for topic, source in self._sources.items():
            if source.pattern is not None:
                self._pipeline.read_also(topic, source.name)

    def _positions(self) -> tuple[dict[TopicPartition, OffsetAndMetadata], dict[TopicPartition, NextOffset]]:
        """Return the committed offsets of the inputs, and where each begins."""
        committed = {partition: at for partition, at in self._around.transport.committed.items() if partition in self.inputs}
        starts = {partition: NextOffset(0) for partition in self.inputs}
        return committed, starts | {partition: NextOffset(at.offset) for partition, at in committed.items()}

    def pipe(self, record: LogRecord) -> None:
        """Process one record, then commit; if the task is PAUSED, leave it on the log. Raises DeserializationError, ProcessingError and
        ProductionError where the handler returns FAIL."""
        if self.state is not TaskState.PAUSED:
            if self.uncommitted_bytes:
                self.commit()  # what a test has written is not rolled back with the record
            self._process({TopicPartition(record.topic_name, 0): [record]})

    def resume_at_committed(self) -> None:
        """Continue at the committed offsets, with what has arrived while the task was PAUSED. Raises what `pipe` raises."""
        committed, starts = self._positions()
        self.resume(committed, starts)
        self._process({partition: self._around.log.records(partition.topic, start) for partition, start in starts.items()})

    def _process(self, given: dict[TopicPartition, list[LogRecord]]) -> None:
        """Process records in the order of the task's queues, with a commit after each, until they are done or the task is PAUSED."""
        assert self.queues is not None
        self._given = given
        self._enqueue_given()
        try:
            self._process_next()
            while self.queues.buffered and self.state is TaskState.RUNNING:
                self._process_next()
        except BaseException:
            for partition, records in given.items():  # the next call is not to meet these records again
                if records:
                    self.queues[partition].clear(NextOffset(records[-1].position + 1))
            self.pause_wanted = self._stop_before = None
            self._around.transport.flush()
            raise
        finally:
            self._given = {}

    def _enqueue_given(self) -> None:
        assert self.queues is not None
        for partition, records in self._given.items():
            start = self.queues[partition].next_offset
            if coming := [record for record in records if record.position >= start]:
                self.enqueue(partition, coming)

    def _process_next(self) -> None:
        """Process one record and commit. If an output of it is refused or it is to be paused before, roll back, as a worker does."""
        search = self._around.incidents.search
        steps = search.steps
        try:
            search.count_records(self.process(self.records_per_commit, self.plan.clock.monotonic_ms()))
            self.commit()
        except TransactionAbortedError as error:
            if search.steps == steps and not isinstance(error, ReplayBeforePauseError):
                raise ProductionError(str(error)) from error
            reached = self.offsets_to_commit()
            self._around.transport.abort()
            search.rolled_back(reached)
            self.rollback()
            self._begin()
            self._enqueue_given()

    def punctuate(self, now_ms: int) -> int:
        """Run the punctuators that are due, then commit. Raises ProductionError if an output of theirs is refused: it has no record at
        which the task could pause."""
        ran = super().punctuate(now_ms)
        if ran:
            try:
                self.commit()
            except TransactionAbortedError as error:
                raise ProductionError(str(error)) from error
        return ran

    def commit(self) -> None:
        """Commit this task, whether it has processed a record or a test has written to its stores, and pause it if its handler said so."""
        self._dirty = True
        self._around.events.drain()  # nothing reads them
        self._around.commit([self])
        self._around.incidents.search.committed(self.inputs)
        if self.pause_wanted is not None:
            self.pause(self.pause_wanted)

    def close(self, *, clean: bool) -> None:
        """Close processors and stores, with the outputs of their last commit."""
        super().close(clean=clean)
        self._around.transport.flush()

    def _save(self) -> None:
        """Write nothing: the state is removed with the driver."""


class DriverGlobalStores:
    """The global stores of a driver, each fed from its topic. Tasks find them here (`GlobalStores`)."""

    def __init__(self, topology: Topology, around: Surroundings) -> None:
        self.stores: dict[str, EngineStore] = {}
        self._around = around
        self._feeds: dict[str, list[Applier]] = {}
        for entry in topology.global_stores():
            feed = self._feed(entry, around)
            feed.begin()
            self._feeds.setdefault(entry.topic, []).append(feed)

    @property
    def topics(self) -> set[str]:
        """The topics that fill global stores."""
        return set(self._feeds)

    def _feed(self, entry: GlobalStoreTopology, around: Surroundings) -> Applier:
        stores: dict[str, EngineStore] = {}
        folder = around.folder / "global"
        context = TaskContext(
            task_id=GLOBAL_TASK,
            application_id=around.config.application_id,
            config=around.config,
            clock=around.clock,
            metrics=around.metrics,
            collector=around.collector,
            stores=stores,
            state_dir=folder,
            emit_interval_ms=0,
        )
        store = build_global_store(entry.store)
        folder.mkdir(exist_ok=True)
        store.open(folder, StoreContext(around.config.application_id, folder, None, None, around.memory, lambda: context.timestamp))
        stores[store.name] = self.stores[store.name] = store
        keep = around.dead_letters.add
        decoder = GlobalDecoder(around.decoder(entry), around.incidents.deserialization, around.metrics, around.events, keep)
        if not entry.own_processor:
            return TableCopy(store, decoder)
        return ProcessorApplier(store, decoder, lambda: compile_pipeline(_alone(entry), context))

    def process(self, record: LogRecord) -> None:
        """Applies a record to the stores of its topic."""
        for feed in self._feeds[record.topic_name]:
            feed.apply(TopicPartition(record.topic_name, 0), [record], NextOffset(record.position + 1))
        self._around.dead_letters.committed(self._around.dead_letters.send(self._around.transport))
        self._around.transport.flush()

    def punctuate(self, now_ms: int) -> None:
        """Runs the punctuators of global processors that are due."""
        for feeds in self._feeds.values():
            for feed in feeds:
                feed.punctuate(now_ms)

    def store(self, name: str) -> EngineStore | None:
        """The store, or None if there is no global store of that name."""
        return self.stores.get(name)

    def register_reader(self, name: str, task: TaskId) -> None:
        """Nothing to do: a driver's global stores are never recovered."""

    def close(self) -> None:
        """Closes processors and stores."""
        try:
            for feeds in self._feeds.values():
                for feed in feeds:
                    feed.close()
        finally:
            for store in self.stores.values():
                store.close()


def _alone(entry: GlobalStoreTopology) -> SubTopology:
    """A global store's source and processor as a sub-topology of their own."""
    source, processor = entry.source.name, entry.processor.name
    return SubTopology(
        entry.id, (entry.source, entry.processor), {source: (processor,), processor: ()}, {source: (), processor: (source,)}, (entry.store,)
    )
