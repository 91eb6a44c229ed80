"""Nanoseconds per input record and step, for a count per key: how the processing time of a record is divided.

Measures the engine's components one after the other on one thread, over the same records in runs as a poll returns them, with a commit
every `COMMIT_RECORDS`. Outputs are discarded, so that only the engine's share is measured; the cost of the Kafka client is measured
separately, on the broker.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from confluent_kafka import Consumer, Message, Producer
from confluent_kafka import TopicPartition as ClientPartition
from rich.console import Console
from rich.table import Table

from benchmarks.data import create_topic, records
from benchmarks.workloads import Run, build
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.input.deserialization import Decoder, RawMessage
from penstock.runtime.model.clock import SystemClock
from penstock.runtime.model.errors import SerializationError
from penstock.runtime.model.ids import NextOffset, TaskId, TopicPartition
from penstock.runtime.model.metrics import Metrics
from penstock.runtime.model.record import Headers
from penstock.runtime.operators.context import TaskContext
from penstock.runtime.stores.base import EngineStore, StoreContext
from penstock.runtime.stores.budget import StoreMemory
from penstock.runtime.stores.custom import build_store
from penstock.runtime.topology.pipeline import compile_pipeline
from penstock.serdes import BYTES, STRING

RECORDS = 400_000
RUN = 2_000
COMMIT_RECORDS = 20_000
INPUT = TopicPartition("input", 0)


@dataclass(slots=True)
class Times:
    """Nanoseconds by step."""

    spent: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        begin = time.perf_counter_ns()
        yield
        self.spent[name] = self.spent.get(name, 0) + time.perf_counter_ns() - begin


class Nowhere:
    """Discards outputs and counts them."""

    def __init__(self) -> None:
        self.taken = 0

    def send(
        self, topic: str, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers | None, partition: int | None
    ) -> None:
        self.taken += 1

    def partitions(self, topic: str) -> int:
        return 1

    def exists(self, topic: str, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers | None) -> bool:
        return True

    def unwritable(
        self, topic: str, key: object, value: object, timestamp: int, headers: Headers | None, error: SerializationError
    ) -> None:
        raise error


def _messages(count: int) -> list[Message]:
    """Return the input as messages of the Kafka client."""
    return [
        Message(topic=INPUT.topic, partition=0, offset=offset, key=key.encode(), value=value.encode(), timestamp=(1, at))
        for offset, (key, value, at) in enumerate(records(count))
    ]


def engine(cache: bool, messages: list[Message]) -> tuple[Times, int]:
    """Run the count; return the times and the number of outputs."""
    run = Run("count", True, 100, cache, "steps", "localhost:9092", "", INPUT.topic, "output")
    config = StreamsConfig({**run.streams_config(), "state.dir": tempfile.gettempdir()})
    part = build(run).resolved(config).sub_topologies()[0]
    nowhere, times = Nowhere(), Times()
    with tempfile.TemporaryDirectory(prefix="penstock-steps-") as folder:
        stores: dict[str, EngineStore] = {}
        memory = StoreMemory(config.integer("statestore.cache.max.bytes"))
        task = TaskId(0, 0)
        for builder in part.stores:
            store = stores[builder.name] = build_store(builder)
            changelog = TopicPartition(f"steps-{builder.name}-changelog", 0)
            store.open(Path(folder), StoreContext("steps", Path(folder), task, changelog, memory, lambda: 0))
        context = TaskContext(
            task_id=task,
            application_id="steps",
            config=config,
            clock=SystemClock(),
            metrics=Metrics(),
            collector=nowhere,
            stores=stores,
        )
        pipeline = compile_pipeline(part, context)
        pipeline.init()
        decoder = Decoder(INPUT.topic, STRING, BYTES)
        context.topic, context.partition = INPUT
        for begin in range(0, len(messages), RUN):
            with times.step("decode"):
                batch, _ = decoder.decode(cast(Sequence[RawMessage], messages[begin : begin + RUN]), -1)
            with times.step("process"):
                pipeline.process_run(
                    INPUT.topic, batch.keys, batch.values, batch.timestamps, batch.headers, batch.offsets, 0, len(batch.keys)
                )
            if (begin + RUN) % COMMIT_RECORDS == 0:
                with times.step("flush caches"):
                    pipeline.flush_caches()
                for store in stores.values():
                    with times.step("fold the changelog"):
                        list(store.changelog_records())
                    with times.step("commit the store"):
                        store.commit({INPUT: NextOffset(batch.end)})
        pipeline.close()
        for store in stores.values():
            store.close()
    return times, nowhere.taken


def client(servers: str) -> Times:
    """Measure the Kafka client: `produce` and delivery of the input, then `consume` of it."""
    topic = f"bench-steps-{time.time_ns()}"
    create_topic(servers, topic)
    rows = [(key.encode(), value.encode(), at) for key, value, at in records(RECORDS)]
    times = Times()
    producer = Producer(
        {"bootstrap.servers": servers, "linger.ms": 5, "queue.buffering.max.messages": 1_000_000, "enable.idempotence": True}
    )
    with times.step("produce"):
        for key, value, at in rows:
            producer.produce(topic, value, key, 0, timestamp=at)
        producer.flush()
    with closing(
        Consumer({"bootstrap.servers": servers, "group.id": topic, "fetch.queue.backoff.ms": 5, "enable.auto.commit": False})
    ) as consumer:
        consumer.assign([ClientPartition(topic, 0, 0)])
        left = RECORDS - len(consumer.consume(1, 30))
        with times.step("consume"):
            while left:
                left -= len(consumer.consume(min(5_000, left), 0.1))
    return times


def table(servers: str, console: Console) -> Table:
    """Measure all steps."""
    with console.status("measuring the steps"):
        messages = _messages(RECORDS)
        gc.collect()
        gc.freeze()
        gc.disable()
        try:
            kafka = client(servers)
            folded, folded_outputs = engine(True, messages)
            each, outputs = engine(False, messages)
        finally:
            gc.enable()
            gc.unfreeze()
    shown = Table(title=f"nanoseconds per input record, {RECORDS:,} records, a commit every {COMMIT_RECORDS:,}")
    for heading in ("step", "cache", "no cache"):
        shown.add_column(heading, justify="left" if heading == "step" else "right")
    for name in folded.spent:
        shown.add_row(name, f"{folded.spent[name] / RECORDS:.0f}", f"{each.spent[name] / RECORDS:.0f}")
    shown.add_row("the engine", f"{sum(folded.spent.values()) / RECORDS:.0f}", f"{sum(each.spent.values()) / RECORDS:.0f}", style="bold")
    shown.add_section()
    for name, spent in kafka.spent.items():
        shown.add_row(f"client: {name} one record", f"{spent / RECORDS:.0f}", "")
    shown.add_row("outputs per record", f"{folded_outputs / RECORDS:.2f}", f"{outputs / RECORDS:.2f}")
    return shown
