"""Assembly of a worker's global task from topology, configuration and brokers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from penstock.runtime.changelog.adoption import take_up
from penstock.runtime.changelog.checkpoint import write_checkpoint
from penstock.runtime.changelog.listeners import StateRestoreListener
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.input.deserialization import Decoder
from penstock.runtime.kafka.topic_admin import TopicAdmin
from penstock.runtime.kafka.topic_watch import TopicFacts, TopicWatcher
from penstock.runtime.model.clock import Clock
from penstock.runtime.model.errors import ProductionError, SerializationError
from penstock.runtime.model.events import EventSink
from penstock.runtime.model.handlers import DeserializationExceptionHandler, make_handler
from penstock.runtime.model.ids import TopicPartition
from penstock.runtime.model.metrics import Metrics
from penstock.runtime.model.record import Headers
from penstock.runtime.operators.context import TaskContext
from penstock.runtime.stores.base import EngineStore, StoreContext
from penstock.runtime.stores.budget import StoreMemory
from penstock.runtime.stores.custom import build_global_store
from penstock.runtime.stores.directory import StateDirectory
from penstock.runtime.tasks.global_apply import GLOBAL_TASK, Applier, GlobalDecoder, ProcessorApplier, TableCopy
from penstock.runtime.tasks.global_dead_letters import GlobalDeadLetters
from penstock.runtime.tasks.global_state import GlobalStore
from penstock.runtime.tasks.global_task import CompactionCheck, GlobalTask
from penstock.runtime.topology.nodes import GlobalStoreTopology, SubTopology
from penstock.runtime.topology.pipeline import Pipeline, compile_pipeline
from penstock.runtime.topology.topology import Topology

_HANDLER = "deserialization.exception.handler"


def build_global_task(
    topology: Topology,
    config: StreamsConfig,
    directory: StateDirectory,
    topics: TopicAdmin,
    watcher: TopicWatcher,
    clock: Clock,
    metrics: Metrics,
    events: EventSink,
    listeners: Iterable[StateRestoreListener] = (),
    *,
    memory: StoreMemory | None = None,
    dead_letters: GlobalDeadLetters | None = None,
    worker: int = 1,
) -> GlobalTask | None:
    """Return the global task, not started; None for a topology without global stores. `memory`: the process's budget, shared with the
    tasks' stores. `dead_letters`: skipped records. `worker`: number of the worker whose copy this is.

    Makes no request to brokers. Raises StreamsConfigError where the deserialization handler cannot be made.
    """
    global_stores = topology.global_stores()
    if not global_stores:
        return None
    handler = make_handler(config[_HANDLER], DeserializationExceptionHandler, config, _HANDLER)
    factory = _GlobalStoreFactory(
        config,
        directory.global_directory(worker),
        clock,
        metrics,
        events,
        handler,
        memory or StoreMemory(),
        dead_letters or GlobalDeadLetters(None),
    )
    return GlobalTask(
        [factory.store(entry) for entry in global_stores],
        open_store=factory.open,
        describe=lambda names: describe_topics(topics, names),
        write_checkpoint=lambda offsets: write_checkpoint(factory.directory, offsets),
        properties=config.consumer_properties("global"),
        compaction_check=CompactionCheck(config.text("global.topic.compaction.check")),
        clock=clock,
        watcher=watcher,
        events=events,
        metrics=metrics,
        listeners=listeners,
        worker=worker,
    )


def describe_topics(topics: TopicAdmin, names: Collection[str]) -> dict[str, TopicFacts]:
    """Describe topics as the brokers know them now; those that do not exist are left out. Raises BrokerUnavailableError, StreamsError."""
    found = topics.describe(names)
    ends = topics.end_offsets(TopicPartition(name, number) for name, each in found.items() for number in range(each.partitions))
    return {
        name: TopicFacts(
            topic_id=each.topic_id,
            ends={partition: end for partition, end in ends.items() if partition.topic == name},
            compacted=each.compacted,
            cleanup_policy=each.config.get("cleanup.policy", ""),
            delete_retention_ms=each.delete_retention_ms,
        )
        for name, each in found.items()
    }


class _NoOutputs:
    """Collector of a global processor, which refuses outputs: global stores have none, as in Kafka Streams."""

    def send(
        self, topic: str, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers | None, partition: int | None
    ) -> None:
        raise ProductionError(f"a global store's processor has no outputs, so nothing can be sent to {topic}")

    def partitions(self, topic: str) -> int:
        raise ProductionError(f"a global store's processor has no outputs, so the partitions of {topic} are not known")

    def exists(self, topic: str, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers | None) -> bool:
        return False

    def unwritable(
        self, topic: str, key: object, value: object, timestamp: int, headers: Headers | None, error: SerializationError
    ) -> None:
        raise ProductionError(str(error)) from error


class _GlobalStoreFactory:
    """Builder of a worker's global stores, with what they share."""

    def __init__(
        self,
        config: StreamsConfig,
        directory: Path,
        clock: Clock,
        metrics: Metrics,
        events: EventSink,
        handler: DeserializationExceptionHandler,
        memory: StoreMemory,
        dead_letters: GlobalDeadLetters,
    ) -> None:
        self.directory = directory
        self._config = config
        self._clock = clock
        self._metrics = metrics
        self._events = events
        self._handler = handler
        self._memory = memory
        self._topics: dict[str, str] = {}
        """Topic by store."""
        self._dead_letters = dead_letters

    def open(self, store: EngineStore) -> None:
        store.open(self.directory, StoreContext(self._config.application_id, self.directory, memory=self._memory))
        topic = self._topics[store.name]
        take_up(self.directory, store, lambda partition: partition.topic == topic, remedy="", of_source=True)

    def store(self, entry: GlobalStoreTopology) -> GlobalStore:
        store = build_global_store(entry.store)
        self._topics[store.name] = entry.topic
        return GlobalStore(store, entry.topic, self._applier(entry, store), entry.own_processor)

    def _applier(self, entry: GlobalStoreTopology, store: EngineStore) -> Applier:
        source, config = entry.source, self._config
        key_serde, value_serde = source.key_serde or config.default_key_serde, source.value_serde or config.default_value_serde
        assert key_serde is not None and value_serde is not None, "Topology.check has seen to it"
        extractor = source.timestamp_extractor or config["default.timestamp.extractor"]
        decoder = Decoder(entry.topic, key_serde, value_serde, extractor, source=entry.source_label)
        global_decoder = GlobalDecoder(decoder, self._handler, self._metrics, self._events, self._dead_letters.add)
        if not entry.own_processor:
            return TableCopy(store, global_decoder)
        return ProcessorApplier(store, global_decoder, self._pipeline_maker(entry, store))

    def _pipeline_maker(self, entry: GlobalStoreTopology, store: EngineStore) -> Callable[[], Pipeline]:
        source, processor = entry.source.name, entry.processor.name
        part = SubTopology(
            id=entry.id,
            nodes=(entry.source, entry.processor),
            children={source: (processor,), processor: ()},
            parents={source: (), processor: (source,)},
            stores=(entry.store,),
        )
        stores: Mapping[str, EngineStore] = {store.name: store}

        def make() -> Pipeline:
            context = TaskContext(
                task_id=GLOBAL_TASK,
                application_id=self._config.application_id,
                config=self._config,
                clock=self._clock,
                metrics=self._metrics,
                collector=_NoOutputs(),
                stores=stores,
                state_dir=self.directory,
            )
            return compile_pipeline(part, context)

        return make
