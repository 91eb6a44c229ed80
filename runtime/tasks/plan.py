"""Plan of a task: its part of the topology, its input, and how to open its stores. It does not change while the task runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from penstock.runtime.changelog.adoption import store_remedies, take_up
from penstock.runtime.changelog.checkpoint import measure_checkpoint, remove_checkpoint, write_checkpoint
from penstock.runtime.commit.collector import WorkerCollector
from penstock.runtime.input.deserialization import Decoder
from penstock.runtime.model.clock import Clock
from penstock.runtime.model.errors import TaskCorruptedError
from penstock.runtime.model.ids import NextOffset, TaskId, TopicPartition
from penstock.runtime.model.metrics import Metrics
from penstock.runtime.model.offsets import AutoOffsetReset
from penstock.runtime.operators.context import EMIT_INTERVAL_MS, GlobalStores, TaskContext
from penstock.runtime.operators.table import TableSource
from penstock.runtime.stores.base import EngineStore, StoreContext
from penstock.runtime.stores.budget import StoreMemory
from penstock.runtime.stores.custom import build_store
from penstock.runtime.stores.locks import FolderLock
from penstock.runtime.topology.nodes import SourceNode, SubTopology

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """Everything that a task needs. `sources` is by topic; `hold_outputs`: outputs wait until a record's chain has returned.
    `changelogs_roll_back`: readers do not see the changelog records of a commit that was rolled back."""

    task_id: TaskId
    application_id: str
    config: Mapping[str, object]
    subtopology: SubTopology
    sources: Mapping[str, SourceNode]
    directory: Path
    lock: FolderLock
    memory: StoreMemory
    clock: Clock
    metrics: Metrics
    collector: WorkerCollector
    global_stores: GlobalStores | None
    hold_outputs: bool
    changelogs_roll_back: bool
    max_task_idle_ms: int
    default_offset_reset: AutoOffsetReset
    default_timestamp_extractor: object
    topic_id: Callable[[str], str | None]
    """Asks the brokers for a topic's id, None if the topic does not exist. Raises BrokerUnavailableError, StreamsError."""
    emit_interval_ms: int = EMIT_INTERVAL_MS
    """Least wall-clock time between two checks for results that are due."""

    @property
    def inputs(self) -> tuple[TopicPartition, ...]:
        """The task's partition of each source topic."""
        return tuple(TopicPartition(topic, self.task_id.partition) for topic in sorted(self.sources))

    @property
    def changelogs(self) -> dict[str, TopicPartition]:
        """Partitions from which the stores are restored, by store: changelogs, or source topics that serve as such."""
        return self.subtopology.changelogs(self.application_id, self.task_id)

    @property
    def table_sources(self) -> dict[str, str]:
        """Source topics that are tables with a store, and the store's name."""
        sources = {source.name: source.topics for source in self.subtopology.sources}
        return {
            topic: node.supplier.store_name
            for node in self.subtopology.processors
            if isinstance(node.supplier, TableSource) and node.supplier.store_name is not None
            for parent in self.subtopology.parents[node.name]
            for topic in sources.get(parent, ())
        }

    def decoder(self, topic: str) -> Decoder:
        """Return a decoder of one source topic."""
        source = self.sources[topic]
        extractor = source.timestamp_extractor or self.default_timestamp_extractor
        assert source.key_serde is not None and source.value_serde is not None  # a resolved topology has them
        return Decoder(topic, source.key_serde, source.value_serde, extractor, source=self.subtopology.label(source.name))

    def offset_reset(self, topic: str) -> AutoOffsetReset:
        """Return the topic's own policy, else the configured one."""
        return self.sources[topic].offset_reset or self.default_offset_reset

    def open_stores(self, record_time: Callable[[], int]) -> tuple[dict[str, EngineStore], list[EngineStore]]:
        """Acquire the lock of the task's directory and open every store. Return the stores, and those that are empty now because their
        files were damaged. `record_time` returns the timestamp of the current record. The caller releases the lock after it has closed the
        stores.

        Raises StateDirectoryError, StateDirectoryLockedError, StoreChangedError, and what `topic_id` raises; nothing is open then.
        """
        self.lock.acquire()
        stores: dict[str, EngineStore] = {}
        wiped: list[EngineStore] = []
        try:
            for builder in self.subtopology.stores:
                store = stores[builder.name] = build_store(builder)
                if not self._open_store(store, record_time):
                    wiped.append(store)
        except BaseException:
            for store in stores.values():
                store.close()
            self.lock.release()
            raise
        return stores, wiped

    def _open_store(self, store: EngineStore, record_time: Callable[[], int]) -> bool:
        """Open a store. Return False if its files were damaged and it is empty now."""
        changelog = self.changelogs.get(store.name)
        context = StoreContext(self.application_id, self.directory, self.task_id, changelog, self.memory, record_time)
        try:
            store.open(self.directory, context)
            remedy = store_remedies(self.application_id, store.name, changelog, self.directory)
            of_source = store.name in self.subtopology.source_changelogs
            belongs = None if changelog is None else lambda partition: partition == changelog
            topic_id = (lambda: None) if changelog is None else partial(self.topic_id, changelog.topic)
            take_up(self.directory, store, belongs, remedy, of_source=of_source, topic_id=topic_id)
        except TaskCorruptedError as error:
            logger.warning("task %s: %s", self.task_id, error)
            error.clear_traceback()
            store.wipe()
            return False
        return True

    def context(self, stores: Mapping[str, EngineStore], stream_time: int) -> TaskContext:
        """Return a context for one life of the pipeline."""
        return TaskContext(
            task_id=self.task_id,
            application_id=self.application_id,
            config=self.config,
            clock=self.clock,
            metrics=self.metrics,
            collector=self.collector,
            stores=stores,
            global_stores=self.global_stores,
            state_dir=self.directory,
            stream_time=stream_time,
            emit_interval_ms=self.emit_interval_ms,
        )

    def prepare_restore(self, stores: Mapping[str, EngineStore], changelogs: Mapping[str, TopicPartition]) -> None:
        """Remove `.checkpoint` before a store is restored from nothing: the file is no longer true, and the next start would publish it."""
        if any(stores[name].persistent and stores[name].committed_offset(partition) is None for name, partition in changelogs.items()):
            remove_checkpoint(self.directory)

    def checkpoint(self, stores: Mapping[str, EngineStore], changelogs: Mapping[str, TopicPartition]) -> dict[str, dict[str, int]]:
        """Flush the stores, then write `.checkpoint` with the changelog offsets of the persistent ones. Return the offsets by store and
        partition."""
        began_ms = self.clock.monotonic_ms()
        offsets: dict[TopicPartition, NextOffset | None] = {}
        by_store: dict[str, dict[str, int]] = {}
        for name, partition in changelogs.items():
            store = stores[name]
            if store.persistent:
                store.flush()
                offset = store.committed_offset(partition)
                offsets[partition] = offset
                by_store[name] = {str(partition): offset or 0}
        if offsets:
            write_checkpoint(self.directory, offsets)
            measure_checkpoint(self.metrics, self.clock, str(self.task_id), began_ms)
        return by_store
