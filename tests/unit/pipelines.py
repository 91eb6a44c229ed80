"""A pipeline compiled by hand, with a collector that remembers; for tests of what the driver does not show."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from runtime.config import StreamsConfig
from runtime.errors import SerializationError
from runtime.ids import TaskId
from runtime.metrics import Metrics
from runtime.operators.context import GlobalStores, TaskContext
from runtime.record import Headers
from runtime.stores import EngineStore, StoreContext, StoreMemory
from runtime.stores.custom import build_store
from runtime.testing import ManualClock
from runtime.topology.pipeline import Pipeline, compile_pipeline
from runtime.topology.topology import Topology

Sent = tuple[str, bytes | None, bytes | None, int, Headers | None, int | None]


@dataclass
class Outputs:
    """Keeps what is sent; `fail`, if set, is raised instead."""

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
    """The first sub-topology as task 0_3, its stores open. `run` takes (key, value, timestamp[, headers]), the first at offset 100."""

    def __init__(self, topology: Topology, folder: Path, *, cache_bytes: int = 1 << 20, global_stores: GlobalStores | None = None) -> None:
        config = StreamsConfig({"application.id": "app", "bootstrap.servers": "localhost:9092"})
        part = topology.resolved(config).sub_topologies()[0]
        self.outputs = Outputs()
        self.stores: dict[str, EngineStore] = {}
        self.part = part
        self.clock = ManualClock(1_000_000)
        self.metrics = Metrics()
        self.context = TaskContext(
            task_id=TaskId(part.id, 3),
            application_id="app",
            config=config,
            clock=self.clock,
            metrics=self.metrics,
            collector=self.outputs,
            stores=self.stores,
            global_stores=global_stores,
        )
        memory = StoreMemory(cache_bytes)
        for builder in part.stores:
            store = build_store(builder)
            store.open(folder, StoreContext("app", folder, self.context.task_id, None, memory, lambda: self.context.timestamp))
            self.stores[builder.name] = store
        self.pipeline = self.compile()

    def compile(self) -> Pipeline:
        """A new pipeline over the same stores, initialised."""
        self.pipeline = compile_pipeline(self.part, self.context)
        self.pipeline.init()
        return self.pipeline

    def run(
        self, *rows: tuple[object, object, int] | tuple[object, object, int, Headers | None], topic: str = "in", start: int = 0
    ) -> None:
        """Processes the rows from `start` on."""
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
        """Records that operators dropped."""
        return self.context.dropped.value
