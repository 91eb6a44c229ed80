"""What a task is made of, apart from where it stands: its part of the topology, its input, and how to open its stores."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from runtime.changelog.adoption import reset_hint, take_up
from runtime.changelog.checkpoint import remove_checkpoint, write_checkpoint
from runtime.clock import Clock
from runtime.commit.collector import WorkerCollector
from runtime.errors import TaskCorruptedError
from runtime.ids import NextOffset, Partition, TaskId
from runtime.intake.verdict import Decoder
from runtime.metrics import Metrics
from runtime.offset_reset import AutoOffsetReset
from runtime.operators.context import GlobalStores, TaskContext
from runtime.operators.processor import UserProcessor
from runtime.operators.table import TableSource
from runtime.operators.table_join import StreamGlobalTableJoin
from runtime.stores.base import EngineStore, StoreContext
from runtime.stores.budget import StoreMemory
from runtime.stores.custom import build_store
from runtime.stores.locks import FolderLock
from runtime.topology.nodes import SourceNode
from runtime.topology.subtopologies import SubTopology

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """Everything a task needs from outside. `sources` is by topic; `hold_outputs`: outputs wait until a record's chain has returned."""

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
    max_task_idle_ms: int
    default_offset_reset: AutoOffsetReset
    default_timestamp_extractor: object

    @property
    def inputs(self) -> tuple[Partition, ...]:
        """The task's partition of each source topic."""
        return tuple(Partition(topic, self.task_id.partition) for topic in sorted(self.sources))

    @property
    def changelogs(self) -> dict[str, Partition]:
        """What the stores are restored from, by store: changelogs, or source topics that serve as such."""
        return self.subtopology.changelogs(self.application_id, self.task_id)

    @property
    def may_read_global_stores(self) -> bool:
        """True if a processor of the user's, who may ask for any global store, or a join with a global table is part of it."""
        readers = UserProcessor | StreamGlobalTableJoin
        return self.global_stores is not None and any(isinstance(node.supplier, readers) for node in self.subtopology.processors)

    @property
    def table_sources(self) -> dict[str, str]:
        """The source topics that are tables with a store, and the store."""
        sources = {source.name: source.topics for source in self.subtopology.sources}
        return {
            topic: node.supplier.store_name
            for node in self.subtopology.processors
            if isinstance(node.supplier, TableSource) and node.supplier.store_name is not None
            for parent in self.subtopology.parents[node.name]
            for topic in sources.get(parent, ())
        }

    def decoder(self, topic: str) -> Decoder:
        """A decoder of one source topic."""
        source = self.sources[topic]
        extractor = source.timestamp_extractor or self.default_timestamp_extractor
        assert source.key_serde is not None and source.value_serde is not None  # a resolved topology has them
        return Decoder(topic, source.key_serde, source.value_serde, extractor, source=source.name)

    def offset_reset(self, topic: str) -> AutoOffsetReset:
        """The topic's own policy, else the configured one."""
        return self.sources[topic].offset_reset or self.default_offset_reset

    def open_stores(self, record_time: Callable[[], int]) -> tuple[dict[str, EngineStore], list[EngineStore]]:
        """Takes the lock of the task's folder and opens every store; those whose files are damaged are emptied, and named in the second
        part. `record_time` gives the timestamp of the record that is being processed. Whoever closes the stores gives the lock back.

        Raises StateDirectoryError, StateDirectoryLockedError, StoreChangedError; nothing is open then.
        """
        self.lock.acquire()
        stores: dict[str, EngineStore] = {}
        wiped: list[EngineStore] = []
        try:
            for builder in self.subtopology.stores:
                store = stores[builder.name] = build_store(builder)
                if not self._open_store(store, record_time):
                    wiped.append(store)
        except Exception:
            for store in stores.values():
                store.close()
            self.lock.release()
            raise
        return stores, wiped

    def _open_store(self, store: EngineStore, record_time: Callable[[], int]) -> bool:
        """False if its files were damaged: it is empty now."""
        changelog = self.changelogs.get(store.name)
        context = StoreContext(self.application_id, self.directory, self.task_id, changelog, self.memory, record_time)
        try:
            store.open(self.directory, context)
            way_out = reset_hint(self.application_id, self.config["bootstrap.servers"], changelog.topic if changelog else None)
            take_up(self.directory, store, None if changelog is None else lambda partition: partition == changelog, way_out)
        except TaskCorruptedError as error:
            logger.warning("task %s: %s", self.task_id, error)
            error.let_go()
            store.wipe()
            return False
        return True

    def context(self, stores: Mapping[str, EngineStore], stream_time: int) -> TaskContext:
        """The context of one life of the pipeline."""
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
        )

    def restore_begins(self, stores: Mapping[str, EngineStore], changelogs: Mapping[str, Partition]) -> None:
        """Removes `.checkpoint` where a store begins from nothing: what the file says of it is no longer true, and the next start would
        announce it."""
        if any(stores[name].persistent and stores[name].committed_offset(partition) is None for name, partition in changelogs.items()):
            remove_checkpoint(self.directory)

    def checkpoint(self, stores: Mapping[str, EngineStore], changelogs: Mapping[str, Partition]) -> dict[str, dict[str, int]]:
        """Flushes the stores, then writes `.checkpoint` with the changelog offsets of the persistent ones. Returns them by store and
        partition."""
        offsets: dict[Partition, NextOffset | None] = {}
        told: dict[str, dict[str, int]] = {}
        for name, partition in changelogs.items():
            store = stores[name]
            if store.persistent:
                store.flush()
                offset = store.committed_offset(partition)
                offsets[partition] = offset
                told[name] = {str(partition): offset or 0}
        if offsets:
            write_checkpoint(self.directory, offsets)
        return told
