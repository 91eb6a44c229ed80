"""The test driver's tasks: the real pipeline and stores of a sub-topology, fed one record at a time and committed after each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from runtime.config import StreamsConfig
from runtime.errors import ProcessingError, SerializationError
from runtime.events import EventSink
from runtime.handlers import (
    DeserializationExceptionHandler,
    DeserializationHandlerResponse,
    ErrorHandlerContext,
    ProcessingExceptionHandler,
    ProcessingHandlerResponse,
    ProductionExceptionHandler,
    ask_serialization,
    make_handler,
)
from runtime.ids import NextOffset, Partition, TaskId, changelog_topic
from runtime.intake.verdict import Batch, Decoder, error_context, judge, punctuation_context, raw_record
from runtime.metrics import Metrics
from runtime.operators.context import TaskContext
from runtime.record import Headers
from runtime.serdes.serde import Serde
from runtime.stores.base import EngineStore, StateStore, StoreBuilder, StoreContext
from runtime.stores.budget import StoreMemory
from runtime.stores.custom import build_global_store, build_store
from runtime.tasks.global_apply import GLOBAL_TASK, Apply, Processed, TableCopy, Verdict
from runtime.testing.clock import ManualClock
from runtime.testing.log import LogRecord, MemoryLog
from runtime.timestamps import ConsumerRecord
from runtime.topology.nodes import SinkNode, SourceNode
from runtime.topology.pipeline import Pipeline, compile_pipeline
from runtime.topology.subtopologies import GlobalStoreTopology, SubTopology
from runtime.topology.topology import Topology


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all tasks of one driver share."""

    config: StreamsConfig
    clock: ManualClock
    metrics: Metrics
    log: MemoryLog
    folder: Path
    memory: StoreMemory

    def decoder(self, source: SourceNode, topic: str) -> Decoder:
        """A decoder of one topic of a source of a resolved topology."""
        extractor = source.timestamp_extractor or self.config["default.timestamp.extractor"]
        return Decoder(topic, cast(Serde, source.key_serde), cast(Serde, source.value_serde), extractor, source=source.name)

    def deserialization_handler(self) -> DeserializationExceptionHandler:
        """The configured one."""
        key = "deserialization.exception.handler"
        return make_handler(self.config[key], DeserializationExceptionHandler, self.config, key)

    def processing_handler(self) -> ProcessingExceptionHandler:
        """The configured one."""
        key = "processing.exception.handler"
        return make_handler(self.config[key], ProcessingExceptionHandler, self.config, key)

    def production_handler(self) -> ProductionExceptionHandler:
        """The configured one."""
        key = "production.exception.handler"
        return make_handler(self.config[key], ProductionExceptionHandler, self.config, key)

    def open(
        self, builder: StoreBuilder[StateStore], folder: str, task: TaskId | None, changelog: bool, record_time: Callable[[], int]
    ) -> EngineStore:
        """Makes and opens a store under the driver's own folder."""
        store = build_store(builder) if task is not None else build_global_store(builder)
        topic = changelog_topic(self.config.application_id, store.name)
        directory = self.folder / folder
        directory.mkdir(exist_ok=True)
        partition = Partition(topic, 0) if changelog and store.logging_enabled else None
        store.open(directory, StoreContext(self.config.application_id, directory, task, partition, self.memory, record_time))
        return store

    def context(
        self,
        task: TaskId,
        folder: str,
        stores: dict[str, EngineStore],
        global_stores: DriverGlobalStores | None,
        sinks: Sequence[SinkNode] = (),
    ) -> TaskContext:
        """A task's context."""
        outputs = DriverOutputs(self.log, self.production_handler(), sinks)
        outputs.context = TaskContext(
            task_id=task,
            application_id=self.config.application_id,
            config=self.config,
            clock=self.clock,
            metrics=self.metrics,
            collector=outputs,
            stores=stores,
            global_stores=global_stores,
            state_dir=self.folder / folder,
            emit_interval_ms=0,
        )
        return outputs.context


class DriverOutputs:
    """The collector of one task: outputs go to the log; one that a serde cannot write is put before the production handler."""

    def __init__(self, log: MemoryLog, handler: ProductionExceptionHandler, sinks: Sequence[SinkNode]) -> None:
        self.send = log.send
        self.context: TaskContext
        """Of the task; it holds this collector, so it comes later."""
        self._handler = handler
        self._sinks = sinks

    def partitions(self, topic: str) -> int:
        """Always 1."""
        return 1

    def exists(self, topic: str, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers | None) -> bool:
        """Every topic does."""
        return True

    def unwritable(
        self, topic: str, key: object, value: object, timestamp: int, headers: Headers | None, error: SerializationError
    ) -> None:
        """Counted as dropped where the handler says CONTINUE. Raises ProductionError otherwise."""
        task = self.context
        node = next((sink.name for sink in self._sinks if sink.topic == topic or not isinstance(sink.topic, str)), None)
        context = ErrorHandlerContext(task.topic, 0, task.offset, timestamp, headers, task.task_id, node, None, None)
        ask_serialization(self._handler, context, ConsumerRecord(topic, -1, -1, timestamp, key, value, headers), error)
        task.dropped.add()


class DriverTask:
    """A sub-topology with its stores. Partition 0 of everything."""

    def __init__(self, part: SubTopology, around: Surroundings, global_stores: DriverGlobalStores) -> None:
        self.id = TaskId(part.id, 0)
        self.stores: dict[str, EngineStore] = {}
        self._around = around
        self._part = part
        self._context = around.context(self.id, str(self.id), self.stores, global_stores, part.sinks)
        for builder in part.stores:
            self.stores[builder.name] = around.open(builder, str(self.id), self.id, True, lambda: self._context.timestamp)
        self._decoders = {topic: around.decoder(source, topic) for source in part.sources for topic in source.topics}
        self._times = dict.fromkeys(self._decoders, -1)
        self._deserialization = around.deserialization_handler()
        self._processing = around.processing_handler()
        self._offsets: dict[Partition, NextOffset] = {}
        self._pipeline: Pipeline = compile_pipeline(part, self._context, self._goes_on)

    @property
    def topics(self) -> list[str]:
        """The topics that this task reads."""
        return list(self._decoders)

    def read_also(self, topic: str) -> bool:
        """Whether a pattern of this task matches a topic; if so, it is read from now on."""
        for source in self._part.sources:
            if source.pattern is not None and source.pattern.fullmatch(topic):
                self._decoders[topic] = self._around.decoder(source, topic)
                self._times[topic] = -1
                self._pipeline.read_also(topic, source.name)
                return True
        return False

    def start(self) -> None:
        """Initialises the processors."""
        self._pipeline.init()
        self.commit()

    def process(self, record: LogRecord) -> None:
        """One record, then a commit. Raises DeserializationError and ProcessingError where the handler does not say CONTINUE: a driver has
        nobody who could resume a paused task, so PAUSE is FAIL."""
        topic = record.topic_name
        batch, failure = self._decoders[topic].decode([record], self._times[topic])
        self._context.dropped.add(batch.dropped)
        if failure is not None:
            if judge(self._deserialization, failure, self.id) is not DeserializationHandlerResponse.CONTINUE:
                raise failure.error
            self._context.dropped.add()
        elif batch.keys:
            self._times[topic] = max(self._times[topic], batch.timestamps[0])
            self._process(record, batch)
        self._offsets[Partition(topic, 0)] = NextOffset(record.position + 1)
        self.commit()

    def _process(self, record: LogRecord, batch: Batch) -> None:
        topic = record.topic_name
        self._context.topic, self._context.partition = topic, 0
        try:
            self._pipeline.process_run(topic, batch.keys, batch.values, batch.timestamps, batch.headers, batch.offsets, 0, 1)
        except ProcessingError as error:
            if error.index is None or not isinstance(error.__cause__, Exception):
                raise
            response = self._processing.handle(error_context(record, self.id, error.node), raw_record(record), error.__cause__)
            if response is not ProcessingHandlerResponse.CONTINUE:
                raise
            self._context.dropped.add()

    def punctuate(self, now_ms: int) -> None:
        """Runs the punctuators that are due, then commits."""
        if self._pipeline.punctuate(now_ms):
            self.commit()

    def _goes_on(self, error: ProcessingError) -> bool:
        if not isinstance(error.__cause__, Exception):
            return False
        context, record = punctuation_context(self.id, self._context.timestamp, error.node)
        if self._processing.handle(context, record, error.__cause__) is not ProcessingHandlerResponse.CONTINUE:
            return False
        self._context.dropped.add()
        return True

    def commit(self) -> None:
        """Caches, changelogs, stores: the order of a real commit."""
        self._pipeline.flush_caches()
        for store in self.stores.values():
            changelog = changelog_topic(self._context.application_id, store.name)
            for key, value, timestamp in store.changelog_records():
                if store.logging_enabled:
                    headers = None if value is None else store.changelog_headers
                    self._around.log.send(changelog, key, value, timestamp, headers, 0)
            store.commit(self._offsets)
        self._context.commit_requested = False

    def close(self) -> None:
        """Closes the processors, then the stores."""
        try:
            self._pipeline.close()
        finally:
            for store in self.stores.values():
                store.close()


class DriverGlobalStores:
    """The global stores of a driver, each fed from its topic. Tasks find them here (`GlobalStores`)."""

    def __init__(self, topology: Topology, around: Surroundings) -> None:
        self.stores: dict[str, EngineStore] = {}
        self._feeds: dict[str, list[Apply]] = {}
        for entry in topology.global_stores():
            feed = self._feed(entry, around)
            feed.begin()
            self._feeds.setdefault(entry.topic, []).append(feed)

    @property
    def topics(self) -> set[str]:
        """The topics that fill global stores."""
        return set(self._feeds)

    def _feed(self, entry: GlobalStoreTopology, around: Surroundings) -> Apply:
        stores: dict[str, EngineStore] = {}
        context = around.context(GLOBAL_TASK, "global", stores, None)
        store = around.open(entry.store, "global", None, False, lambda: context.timestamp)
        stores[store.name] = self.stores[store.name] = store
        events = EventSink(around.config.application_id, "topology-test", around.clock)
        verdict = Verdict(around.decoder(entry.source, entry.topic), around.deserialization_handler(), around.metrics, events)
        if not entry.own_processor:
            return TableCopy(store, verdict)
        return Processed(store, verdict, lambda: compile_pipeline(_alone(entry), context))

    def process(self, record: LogRecord) -> None:
        """Applies a record to the stores of its topic."""
        for feed in self._feeds[record.topic_name]:
            feed.run(Partition(record.topic_name, 0), [record], NextOffset(record.position + 1))

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
