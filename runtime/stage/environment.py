"""Environment of tasks that run without a broker: the objects that they share in place of a worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from penstock.runtime.commit.order import Commit
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.input.deserialization import Decoder
from penstock.runtime.model.clock import Clock
from penstock.runtime.model.events import EventSink
from penstock.runtime.model.ids import TaskId
from penstock.runtime.model.metrics import Metrics
from penstock.runtime.model.offsets import AutoOffsetReset
from penstock.runtime.operators.context import GlobalStores
from penstock.runtime.stage.transport import HeldTransport, OutputLog, StageCollector
from penstock.runtime.stores.budget import StoreMemory
from penstock.runtime.stores.locks import FolderLock
from penstock.runtime.tasks.global_dead_letters import GlobalDeadLetters
from penstock.runtime.tasks.incidents import Incidents
from penstock.runtime.tasks.plan import TaskPlan
from penstock.runtime.topology.nodes import GlobalStoreTopology, SourceNode, SubTopology
from penstock.runtime.topology.topology import Topology


class Environment:
    """Objects that all tasks of one test driver, or of one stage, share."""

    def __init__(
        self,
        config: StreamsConfig,
        topology: Topology,
        clock: Clock,
        metrics: Metrics,
        log: OutputLog,
        folder: Path,
        *,
        instance: str,
        partitions: Callable[[str], int],
        max_task_idle_ms: int,
    ) -> None:
        """`folder`: for state. `partitions`: the number of partitions of an output topic. Raises StreamsConfigError if a handler cannot be
        made."""
        self.config = config
        self.clock = clock
        self.metrics = metrics
        self.folder = folder
        self.memory = StoreMemory(config.integer("statestore.cache.max.bytes"))
        self.memory.set_rocks_options(config)
        self.events = EventSink(config.application_id, instance, clock)
        self.incidents = Incidents(config, self.events, metrics, clock)
        self.incidents.set_topology(topology, None)
        self.transport = HeldTransport(log)
        self.collector = StageCollector(self.transport, partitions, self.incidents, clock, hold=False, patience_ms=0)
        self.incidents.attach(self.transport)
        self.dead_letters = GlobalDeadLetters(self.incidents.dead_letter_topic)
        self.commit = Commit(self.transport, self.events, config.application_id)
        self._max_task_idle_ms = max_task_idle_ms

    def decoder(self, entry: GlobalStoreTopology) -> Decoder:
        """Return a decoder of a global store's topic."""
        source = entry.source
        extractor = source.timestamp_extractor or self.config["default.timestamp.extractor"]
        assert source.key_serde is not None and source.value_serde is not None  # a resolved topology has them
        return Decoder(entry.topic, source.key_serde, source.value_serde, extractor, source=entry.source_label)

    def plan(self, part: SubTopology, partition: int, sources: Mapping[str, SourceNode], global_stores: GlobalStores) -> TaskPlan:
        """Return the plan of a task of a sub-topology. `sources` is by topic."""
        task = TaskId(part.id, partition)
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
            changelogs_roll_back=True,
            max_task_idle_ms=self._max_task_idle_ms,
            default_offset_reset=AutoOffsetReset.of(self.config.text("auto.offset.reset")),
            default_timestamp_extractor=self.config["default.timestamp.extractor"],
            topic_id=lambda topic: None,
            emit_interval_ms=0,
        )
