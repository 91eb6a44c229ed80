"""A pipeline compiled directly, with a collector that keeps outputs; for tests of details that the driver does not show."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.model.errors import SerializationError
from penstock.runtime.model.ids import TaskId
from penstock.runtime.model.metrics import Metrics
from penstock.runtime.model.record import Headers
from penstock.runtime.operators.context import GlobalStores, TaskContext
from penstock.runtime.stores import EngineStore, StoreContext, StoreMemory
from penstock.runtime.stores.custom import build_store
from penstock.runtime.topology.pipeline import Pipeline, compile_pipeline
from penstock.runtime.topology.topology import Topology
from penstock.testing import ManualClock

Sent = tuple[str, bytes | None, bytes | None, int, Headers | None, int | None]


@dataclass
class Outputs:
    """Keeps outputs; raises `fail` instead if it is set."""

    sent: list[Sent] = field(default_factory=list)
    fail: Exception | None = None
    number_of_partitions: int = 4

    def send(
        self, topic: str, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers | None, partition: int | None
    ) -> None:
        if self.fail is not None:
            raise self.fail
        self.sent.append((topic, key, value, timestamp, headers, partition))

    def partitions(self, topic: str) -> int:
        return self.number_of_partitions

    def exists(self, topic: str, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers | None) -> bool:
        return True

    def unwritable(
        self, topic: str, key: object, value: object, timestamp: int, headers: Headers | None, error: SerializationError
    ) -> None:
        raise error


class Compiled:
    """A sub-topology as the task of partition 3, with open stores; the first one, unless `part` says otherwise. `run` takes (key, value,
    timestamp[, headers]), the first at offset 100."""

    def __init__(
        self, topology: Topology, folder: Path, *, cache_bytes: int = 1 << 20, global_stores: GlobalStores | None = None, part: int = 0
    ) -> None:
        config = StreamsConfig({"application.id": "app", "bootstrap.servers": "localhost:9092"})
        self.part = topology.resolved(config).sub_topologies()[part]
        self.outputs = Outputs()
        self.stores: dict[str, EngineStore] = {}
        self.clock = ManualClock(1_000_000)
        self.metrics = Metrics()
        self.context = TaskContext(
            task_id=TaskId(self.part.id, 3),
            application_id="app",
            config=config,
            clock=self.clock,
            metrics=self.metrics,
            collector=self.outputs,
            stores=self.stores,
            global_stores=global_stores,
        )
        memory = StoreMemory(cache_bytes)
        for builder in self.part.stores:
            store = build_store(builder)
            store.open(folder, StoreContext("app", folder, self.context.task_id, None, memory, lambda: self.context.timestamp))
            self.stores[builder.name] = store
        self.pipeline = self.compile()

    def compile(self) -> Pipeline:
        """Return a new, initialised pipeline over the same stores."""
        self.pipeline = compile_pipeline(self.part, self.context)
        self.pipeline.init()
        return self.pipeline

    def run(
        self, *rows: tuple[object, object, int] | tuple[object, object, int, Headers | None], topic: str = "in", start: int = 0
    ) -> None:
        """Process the rows from `start` on."""
        headers = [row[3] for row in rows if len(row) == 4]
        self.context.topic, self.context.partition = topic, 3
        self.pipeline.process_run(
            topic,
            [row[0] for row in rows],
            [row[1] for row in rows],
            [row[2] for row in rows],
            headers or None,
            range(100, 100 + len(rows)),
            start,
            len(rows),
        )

    def dropped(self) -> int:
        """Return the number of records that operators dropped."""
        return self.context.dropped.value
