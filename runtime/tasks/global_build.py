"""Puts the global task of a worker together from topology, configuration and brokers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from runtime.changelog.adoption import take_up
from runtime.changelog.checkpoint import write_checkpoint
from runtime.changelog.listeners import StateRestoreListener
from runtime.changelog.topic_watch import TopicFacts
from runtime.clock import Clock
from runtime.config import StreamsConfig
from runtime.errors import ProductionError, SerializationError
from runtime.events import EventSink
from runtime.handlers import DeserializationExceptionHandler, make_handler
from runtime.ids import Partition
from runtime.intake.verdict import Decoder
from runtime.metrics import Metrics
from runtime.operators.context import TaskContext
from runtime.record import Headers
from runtime.stores.base import EngineStore, StoreContext
from runtime.stores.budget import StoreMemory
from runtime.stores.custom import build_global_store
from runtime.stores.directory import StateDirectory
from runtime.tasks.global_ import CompactionCheck, GlobalTask
from runtime.tasks.global_apply import GLOBAL_TASK, Apply, Processed, TableCopy, Verdict
from runtime.tasks.global_letters import GlobalLetters
from runtime.tasks.global_state import GlobalStore
from runtime.topics import TopicAdmin
from runtime.topology.pipeline import Pipeline, compile_pipeline
from runtime.topology.subtopologies import GlobalStoreTopology, SubTopology
from runtime.topology.topology import Topology

_HANDLER = "deserialization.exception.handler"


def build_global_task(
    topology: Topology,
    config: StreamsConfig,
    directory: StateDirectory,
    topics: TopicAdmin,
    clock: Clock,
    metrics: Metrics,
    events: EventSink,
    listeners: Iterable[StateRestoreListener] = (),
    *,
    memory: StoreMemory | None = None,
    letters: GlobalLetters | None = None,
    worker: int = 1,
) -> GlobalTask | None:
    """The global task, not started; None for a topology without global stores. `memory`: the process's, shared with the tasks' stores.
    `letters`: where skipped records are kept. `worker`: the number of the worker whose copy this is.

    Contacts nobody. Raises StreamsConfigError where the deserialization handler cannot be made.
    """
    global_stores = topology.global_stores()
    if not global_stores:
        return None
    handler = make_handler(config[_HANDLER], DeserializationExceptionHandler, config, _HANDLER)
    parts = _Parts(
        config, directory.global_directory(worker), clock, metrics, events, handler, memory or StoreMemory(), letters or GlobalLetters(None)
    )
    return GlobalTask(
        [parts.store(entry) for entry in global_stores],
        open_store=parts.open,
        look=lambda names: look_at(topics, names),
        write_checkpoint=lambda offsets: write_checkpoint(parts.directory, offsets),
        properties=config.consumer_properties("global"),
        compaction_check=CompactionCheck(config.text("global.topic.compaction.check")),
        clock=clock,
        events=events,
        metrics=metrics,
        listeners=listeners,
    )


def look_at(topics: TopicAdmin, names: Collection[str]) -> dict[str, TopicFacts]:
    """What the brokers say of these topics now; those that do not exist are left out. Raises BrokerUnavailableError, StreamsError."""
    found = topics.describe(names)
    ends = topics.end_offsets(Partition(name, number) for name, each in found.items() for number in range(each.partitions))
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
    """The collector of a global processor: global stores have no outputs (as in Kafka Streams)."""

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


class _Parts:
    """What the global stores of one worker share while they are put together."""

    def __init__(
        self,
        config: StreamsConfig,
        directory: Path,
        clock: Clock,
        metrics: Metrics,
        events: EventSink,
        handler: DeserializationExceptionHandler,
        memory: StoreMemory,
        letters: GlobalLetters,
    ) -> None:
        self.directory = directory
        self._config = config
        self._clock = clock
        self._metrics = metrics
        self._events = events
        self._handler = handler
        self._memory = memory
        self._topics: dict[str, str] = {}
        """By store."""
        self._letters = letters

    def open(self, store: EngineStore) -> None:
        store.open(self.directory, StoreContext(self._config.application_id, self.directory, memory=self._memory))
        topic = self._topics[store.name]
        way_out = (
            f"Give the store another name; or take the change back; or close this instance and delete {self.directory}: it is built anew"
        )
        take_up(self.directory, store, lambda partition: partition.topic == topic, way_out)

    def store(self, entry: GlobalStoreTopology) -> GlobalStore:
        store = build_global_store(entry.store)
        self._topics[store.name] = entry.topic
        return GlobalStore(store, entry.topic, self._apply(entry, store), entry.own_processor)

    def _apply(self, entry: GlobalStoreTopology, store: EngineStore) -> Apply:
        source, config = entry.source, self._config
        key_serde, value_serde = source.key_serde or config.default_key_serde, source.value_serde or config.default_value_serde
        assert key_serde is not None and value_serde is not None, "Topology.check has seen to it"
        extractor = source.timestamp_extractor or config["default.timestamp.extractor"]
        decoder = Decoder(entry.topic, key_serde, value_serde, extractor, source=source.name)
        verdict = Verdict(decoder, self._handler, self._metrics, self._events, self._letters.add)
        if not entry.own_processor:
            return TableCopy(store, verdict)
        return Processed(store, verdict, self._pipeline_maker(entry, store))

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
