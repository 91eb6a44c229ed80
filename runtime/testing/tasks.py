"""The test driver's tasks: the engine's own tasks and commit, with a transport that writes to a log in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from penstock.runtime.changelog.writer import ChangelogRow
from penstock.runtime.commit.collector import WorkerCollector
from penstock.runtime.commit.order import Commit
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.input.deserialization import Decoder
from penstock.runtime.input.queues import PartitionQueue, TaskQueues
from penstock.runtime.model.errors import ProductionError, TransactionAbortedError
from penstock.runtime.model.events import EventSink
from penstock.runtime.model.ids import NextOffset, Partition, TaskId
from penstock.runtime.model.metrics import Metrics
from penstock.runtime.model.offsets import AutoOffsetReset, OffsetAndMetadata
from penstock.runtime.model.record import Headers
from penstock.runtime.operators.context import TaskContext
from penstock.runtime.stores.base import EngineStore, StoreContext
from penstock.runtime.stores.budget import StoreMemory
from penstock.runtime.stores.custom import build_global_store
from penstock.runtime.stores.locks import FolderLock
from penstock.runtime.tasks.active import ActiveTask, ReplayBeforePauseError
from penstock.runtime.tasks.global_apply import GLOBAL_TASK, Applier, GlobalDecoder, ProcessorApplier, TableCopy
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
    """Transport to the log in memory. There is nothing to wait for and nothing to roll back, so most methods do nothing."""

    pending = True

    def __init__(self, log: MemoryLog) -> None:
        self._log = log
        self._ends: dict[Partition, NextOffset] = {}
        self.send = log.send

    def send_changelog(self, partition: Partition, rows: list[ChangelogRow], headers: Headers | None) -> None:
        """Append changelog records; tombstones have no headers."""
        for key, value, timestamp in rows:
            self._log.send(partition.topic, key, value, timestamp, None if value is None else headers, partition.number)
        self._ends[partition] = NextOffset(self._log.end(partition.topic))

    def commit(
        self, offsets: Mapping[Partition, OffsetAndMetadata], meanwhile: Sequence[Callable[[], None]] = ()
    ) -> Mapping[Partition, NextOffset]:
        """Do what is done while a broker works. Return the changelogs' next offsets."""
        for step in meanwhile:
            step()
        ends, self._ends = self._ends, {}
        return ends

    def send_offsets(self, offsets: Mapping[Partition, OffsetAndMetadata]) -> None: ...

    def poll(self) -> None: ...

    def watch(self) -> None: ...

    def abort(self) -> None: ...

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
        self.events = EventSink(config.application_id, "topology-test", clock)
        self.incidents = Incidents(config, self.events, metrics, clock)
        self.incidents.set_topology(topology, None)
        transport = MemoryTransport(log)
        self.collector = MemoryCollector(transport, lambda topic: 1, self.incidents, clock, hold=False, patience_ms=0)
        self.commit = Commit(transport, self.events, config.application_id)

    def decoder(self, entry: GlobalStoreTopology) -> Decoder:
        """Return a decoder of a global store's topic."""
        source = entry.source
        extractor = source.timestamp_extractor or self.config["default.timestamp.extractor"]
        assert source.key_serde is not None and source.value_serde is not None  # a resolved topology has them
        return Decoder(entry.topic, source.key_serde, source.value_serde, extractor, source=source.name)

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

    def __init__(self, part: SubTopology, around: Surroundings, global_stores: DriverGlobalStores) -> None:
        self._around = around
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
                    queue = PartitionQueue(Partition(topic, 0), self.plan.decoder(topic), NextOffset(0))
                    self.queues = TaskQueues([*self.queues.all, queue], NO_WAIT)
                    self._pipeline.read_also(topic, source.name)
                return True
        return False

    def start(self) -> None:
        """Open the stores, initialise the processors, and commit what they have done."""
        self.open()
        self.begin({}, {partition: NextOffset(0) for partition in self.inputs})
        assert self._pipeline is not None
        for topic, source in self._sources.items():
            if source.pattern is not None:
                self._pipeline.read_also(topic, source.name)
        self.commit()

    def pipe(self, record: LogRecord) -> None:
        """Process one record, then commit. Raises DeserializationError, ProcessingError and ProductionError where the handler does not
        return CONTINUE: a driver has no operator who could resume a paused task, so PAUSE is FAIL."""
        assert self.queues is not None
        partition = Partition(record.topic_name, 0)
        queue = self.queues[partition]
        self.enqueue(partition, [record])
        try:
            self.process(1, self.plan.clock.monotonic_ms())
            if self.pause_wanted is not None and queue.failure is not None:
                raise queue.failure.error
        except BaseException as error:
            queue.clear(NextOffset(record.position + 1))  # the next call is not to meet this record again
            self.pause_wanted = self._stop_before = None
            if isinstance(error, ReplayBeforePauseError) and error.__cause__ is not None:
                raise error.__cause__ from error.__cause__.__cause__
            if isinstance(error, TransactionAbortedError):
                raise ProductionError(str(error)) from error
            raise
        self.commit()

    def punctuate(self, now_ms: int) -> int:
        """Run the punctuators that are due, then commit."""
        ran = super().punctuate(now_ms)
        if ran:
            self.commit()
        return ran

    def commit(self) -> None:
        """Commit this task, whether it has processed a record or a test has written to its stores."""
        self._dirty = True
        self._around.events.drain()  # nothing reads them
        self._around.commit([self])

    def _save(self) -> None:
        """Write nothing: the state is removed with the driver."""


class DriverGlobalStores:
    """The global stores of a driver, each fed from its topic. Tasks find them here (`GlobalStores`)."""

    def __init__(self, topology: Topology, around: Surroundings) -> None:
        self.stores: dict[str, EngineStore] = {}
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
        decoder = GlobalDecoder(around.decoder(entry), around.incidents.deserialization, around.metrics, around.events)
        if not entry.own_processor:
            return TableCopy(store, decoder)
        return ProcessorApplier(store, decoder, lambda: compile_pipeline(_alone(entry), context))

    def process(self, record: LogRecord) -> None:
        """Applies a record to the stores of its topic."""
        for feed in self._feeds[record.topic_name]:
            feed.apply(Partition(record.topic_name, 0), [record], NextOffset(record.position + 1))

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
