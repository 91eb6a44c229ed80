"""`python -m benchmarks calls`: `map_async` and `map_batches` against `map_values` with the same calls.

A call waits for `--call-ms`, as for a service; a batch waits as long for all of its values. Each way copies records of one partition,
exactly once, on the broker. The time is that from the first call until a consumer sees the last result; the order of all results is
checked. `map_values` gets fewer records, since it takes a call's time for each.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
import uuid
from collections.abc import Callable
from typing import Annotated

import typer
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich import box
from rich.table import Table

from benchmarks.brokers import broker_for
from penstock.orchestration.drawing.console import stdout_console
from penstock.orchestration.embedded.kafka import BrokerError
from penstock.runtime.client.kafka_streams import KafkaStreams
from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.kstream import KStream
from penstock.runtime.dsl.options import Consumed, Produced
from penstock.runtime.model.errors import StreamsError
from penstock.serdes import STRING

DEADLINE_SECONDS = 120
Way = Callable[[KStream[str, str]], KStream[str, str]]


def main(
    call_ms: Annotated[int, typer.Option(min=1, help="Duration of a call.")] = 10,
    limit: Annotated[int, typer.Option(min=1, help="Calls at once, and values of a batch.")] = 100,
    records: Annotated[int, typer.Option(min=1000, help="Records for map_async and map_batches.")] = 50_000,
    bootstrap: Annotated[str | None, typer.Option(help="A broker to use in place of one started for this.")] = None,
) -> None:
    """Measure calls for many records at once against a call for each."""
    seconds = call_ms / 1000

    begun: list[float] = []

    def note_begin() -> None:
        if not begun:
            begun.append(time.monotonic())

    def one(value: str) -> str:
        note_begin()
        time.sleep(seconds)
        return value

    async def at_once(value: str) -> str:
        note_begin()
        await asyncio.sleep(seconds)
        return value

    def batch(values: list[str]) -> list[str]:
        note_begin()
        time.sleep(seconds)
        return values

    ways: dict[str, tuple[Way, int]] = {
        "map_values": (lambda stream: stream.map_values(one), max(200, records // limit)),
        f"map_async, limit={limit}": (lambda stream: stream.map_async(at_once, limit=limit), records),
        f"map_batches, size={limit}": (lambda stream: stream.map_batches(batch, size=limit), records),
    }
    console = stdout_console()
    table = Table(title=f"Records a second, {call_ms} ms for each call", box=box.SIMPLE)
    for heading in ("", "records/s", "ratio to map_values", f"of {limit} / {call_ms} ms"):
        table.add_column(heading, justify="right" if heading else "left")
    first = 0.0
    try:
        with broker_for(bootstrap, console) as servers:
            for name, (call, number) in ways.items():
                with console.status(name):
                    begun.clear()
                    rate = number / (_end(servers, call, number) - begun[0])
                first = first or rate
                table.add_row(name, f"{rate:,.0f}", f"{rate / first:.1f}", f"{rate * seconds / limit:.0%}")
    except (BrokerError, StreamsError) as error:
        console.print(f"[red]{error}[/red]", soft_wrap=True)
        raise typer.Exit(1) from error
    console.print(table)


def _end(servers: str, call: Way, records: int) -> float:
    """Run one way; return the time of its last result. Raises StreamsError for results in another order, or if they take too long."""
    app = f"bench-calls-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 3})  # the client must outlive its requests
    for created in admin.create_topics([NewTopic(app, 1, 1), NewTopic(f"{app}-out", 1, 1)]).values():
        created.result(30)
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000})
    for number in range(records):
        producer.produce(app, b"%d" % number, b"key", partition=0)
    producer.flush()
    builder = StreamsBuilder()
    source: KStream[str, str] = builder.stream(app, Consumed(STRING, value=STRING))
    call(source).to(f"{app}-out", Produced(STRING, value=STRING))
    with tempfile.TemporaryDirectory(prefix="penstock-bench-state-") as folder:
        config = {
            "application.id": app,
            "bootstrap.servers": servers,
            "state.dir": folder,
            "processing.guarantee": "exactly_once_v2",
            "auto.offset.reset": "earliest",
        }
        with KafkaStreams(builder.build(), config) as streams:
            streams.start()
            return _read(servers, f"{app}-out", records)


def _read(servers: str, topic: str, records: int) -> float:
    """Read all results; return the time of the last one."""
    settings = {"bootstrap.servers": servers, "group.id": topic, "isolation.level": "read_committed", "enable.auto.commit": False}
    consumer = Consumer(settings)
    consumer.assign([ClientPartition(topic, 0, 0)])
    seen, deadline = 0, time.monotonic() + DEADLINE_SECONDS
    try:
        while seen < records:
            if time.monotonic() > deadline:
                raise StreamsError(f"{seen} of {records} results came within {DEADLINE_SECONDS} s")
            for message in consumer.consume(10_000, 0.05):
                if message.error() is None:
                    if message.value() != b"%d" % seen:
                        raise StreamsError(f"result {seen} is {message.value()!r}: the order is wrong")
                    seen += 1
        return time.monotonic()
    finally:
        consumer.close()
