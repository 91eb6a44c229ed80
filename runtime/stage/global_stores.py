"""Global stores beside tasks that run without a broker, filled from records that are handed over."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.runtime.input.deserialization import RawMessage
from penstock.runtime.model.ids import NextOffset, TaskId, TopicPartition
from penstock.runtime.operators.context import TaskContext
from penstock.runtime.stage.environment import Environment
from penstock.runtime.stores.base import EngineStore, StoreContext
from penstock.runtime.stores.custom import build_global_store
from penstock.runtime.tasks.global_apply import GLOBAL_TASK, Applier, GlobalDecoder, ProcessorApplier, TableCopy
from penstock.runtime.topology.nodes import GlobalStoreTopology, SubTopology
from penstock.runtime.topology.pipeline import compile_pipeline


class LocalGlobalStores:
    """Global stores, each fed from its topic. Tasks find them here (`GlobalStores`)."""

    def __init__(self, entries: Iterable[GlobalStoreTopology], around: Environment) -> None:
        self.stores: dict[str, EngineStore] = {}
        self._around = around
        self._feeds: dict[str, list[Applier]] = {}
        for entry in entries:
            feed = self._feed(entry, around)
            feed.begin()
            self._feeds.setdefault(entry.topic, []).append(feed)

    @property
    def topics(self) -> set[str]:
        """The topics that fill global stores."""
        return set(self._feeds)

    def _feed(self, entry: GlobalStoreTopology, around: Environment) -> Applier:
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
        folder.mkdir(parents=True, exist_ok=True)
        store.open(folder, StoreContext(around.config.application_id, folder, None, None, around.memory, lambda: context.timestamp))
        stores[store.name] = self.stores[store.name] = store
        keep = around.dead_letters.add
        decoder = GlobalDecoder(around.decoder(entry), around.incidents.deserialization, around.metrics, around.events, keep)
        if not entry.own_processor:
            return TableCopy(store, decoder)
        return ProcessorApplier(store, decoder, lambda: compile_pipeline(_alone(entry), context))

    def process(self, partition: TopicPartition, messages: Sequence[RawMessage]) -> None:
        """Apply consecutive records of a partition to the stores of its topic."""
        for feed in self._feeds[partition.topic]:
            feed.apply(partition, messages, NextOffset((messages[-1].offset() or 0) + 1))
        self._around.dead_letters.committed(self._around.dead_letters.send(self._around.transport))
        self._around.transport.flush()

    def punctuate(self, now_ms: int) -> None:
        """Run the punctuators of global processors that are due."""
        for feeds in self._feeds.values():
            for feed in feeds:
                feed.punctuate(now_ms)

    def store(self, name: str) -> EngineStore | None:
        """Return the store, or None if there is no global store of that name."""
        return self.stores.get(name)

    def register_reader(self, name: str, task: TaskId) -> None:
        """Do nothing: these stores are never recovered."""

    def close(self) -> None:
        """Close processors and stores."""
        try:
            for feeds in self._feeds.values():
                for feed in feeds:
                    feed.close()
        finally:
            for store in self.stores.values():
                store.close()


def _alone(entry: GlobalStoreTopology) -> SubTopology:
    """Return a global store's source and processor as a sub-topology of their own."""
    source, processor = entry.source.name, entry.processor.name
    return SubTopology(
        entry.id, (entry.source, entry.processor), {source: (processor,), processor: ()}, {source: (), processor: (source,)}, (entry.store,)
    )
