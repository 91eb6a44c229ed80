"""`python -m benchmarks quotas`: rate of a count whose clients have a quota, beside what the quota allows.

Brokers count the bytes of requests and answers, nearly all of which are batches of records. So the growth of what the application writes
(its output and its changelog, as files of the broker), or the part of its input's files that is committed, is held against the quota, over
the same seconds. These begin when the quota's first window is over: brokers let clients exceed it by so much at first. A consumer by hand
that only counts records is measured beside it.
"""

from __future__ import annotations

import tempfile
import time
import uuid
from itertools import product
from pathlib import Path
from typing import Annotated

import typer
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich import box
from rich.table import Table

from benchmarks.commits import committed_records
from benchmarks.gap_programs import counting
from penstock.orchestration.drawing.console import stdout_console
from penstock.orchestration.embedded.kafka import BrokerError, EmbeddedBroker
from penstock.orchestration.embedded.ports import free_port
from penstock.orchestration.embedded.tools import run_tool
from penstock.runtime.client.kafka_streams import KafkaStreams
from penstock.runtime.model.errors import StreamsError
from penstock.runtime.model.states import State

WINDOW_SECONDS = 12
"""Slightly more than the time over which brokers measure by default."""
READY_MS = 60_000
RECORDS, KEYS, VALUE_BYTES = 1_500_000, 1_000, 100
QUOTAS = {"producer_byte_rate": (400_000, 50_000), "consumer_byte_rate": (400_000, 50_000)}


def main(seconds: Annotated[int, typer.Option(min=5, help="Seconds of each measurement.")] = 30) -> None:
    """Measure the rate of a count, exactly once, whose clients have a quota, and hold it against the quota."""
    console = stdout_console()
    table = Table(title="A count, exactly once, and a consumer by hand, whose clients have a quota", box=box.SIMPLE)
    for heading in ("quota", "of", "bytes/s allowed", "bytes/s measured", "ratio", "records/s", "longest delay, s"):
        table.add_column(heading, justify="left" if heading in ("quota", "of") else "right")
    try:
        with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
            broker = EmbeddedBroker(Path(folder), free_port())
            with console.status("starting Kafka"):
                broker.start()
            try:
                for kind, rates in QUOTAS.items():
                    for rate, (name, measure) in product(rates, _MEASURED[kind].items()):
                        with console.status(f"{kind} = {rate}, {name}"):
                            measured, records, delay_s = measure(broker, Path(folder), kind, rate, seconds)
                        figures = (f"{rate:,}", f"{measured:,.0f}", f"{measured / rate:.2f}", f"{records:,.0f}", f"{delay_s:.1f}")
                        table.add_row(kind.partition("_")[0], name, *figures)
            finally:
                broker.stop()
    except (BrokerError, StreamsError) as error:
        console.print(f"[red]{error}[/red]", soft_wrap=True)
        raise typer.Exit(1) from error
    console.print(table)


def _of_a_count(broker: EmbeddedBroker, folder: Path, kind: str, rate: int, seconds: int) -> tuple[float, float, float]:
    """Return bytes and records per second, and the longest delay of a request in seconds."""
    app = f"bench-quotas-{uuid.uuid4().hex[:8]}"
    source, output = f"{app}-in", f"{app}-out"
    _prepare(broker, app, kind, rate, source, output)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-state-") as state:
        config = {
            "application.id": app,
            "client.id": app,
            "bootstrap.servers": broker.bootstrap_servers,
            "state.dir": state,
            "processing.guarantee": "exactly_once_v2",
            "auto.offset.reset": "earliest",
        }
        with KafkaStreams(counting(source, output).build(), config) as streams:
            streams.start()
            if not streams.wait_for(State.RUNNING, READY_MS):
                raise StreamsError(f"the engine is {streams.state.value}: {streams.failure}")
            time.sleep(WINDOW_SECONDS)
            began, records, sent = time.monotonic(), committed_records(streams), _size(folder, output, f"{app}-counts-changelog")
            time.sleep(seconds)
            took = time.monotonic() - began
            read, written = committed_records(streams) - records, _size(folder, output, f"{app}-counts-changelog") - sent
            if committed_records(streams) >= RECORDS:
                raise StreamsError(f"all of the input is processed before the end: {kind} = {rate} is no limit here")
            delay_ms = max(value for key, value in streams.metrics().items() if key.name == "throttle-time-max")
    part = read / RECORDS * _size(folder, source)
    return (written if kind.startswith("producer") else part) / took, read / took, delay_ms / 1000


def _of_a_consumer_by_hand(broker: EmbeddedBroker, folder: Path, kind: str, rate: int, seconds: int) -> tuple[float, float, float]:
    name = f"bench-quotas-{uuid.uuid4().hex[:8]}"
    source = f"{name}-in"
    _prepare(broker, name, kind, rate, source)
    delays_ms = [0]
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "client.id": name,
            "group.id": name,
            "auto.offset.reset": "earliest",
            "throttle_cb": lambda event: delays_ms.append(round(1000 * event.throttle_time)),
        }
    )
    try:
        consumer.assign([TopicPartition(source, 0, 0)])
        _count(consumer, WINDOW_SECONDS)
        read = _count(consumer, seconds)
    finally:
        consumer.close()
    return read / RECORDS * _size(folder, source) / seconds, read / seconds, max(delays_ms) / 1000


def _count(consumer: Consumer, seconds: float) -> int:
    count, ends = 0, time.monotonic() + seconds
    while (left := ends - time.monotonic()) > 0:
        count += len(consumer.consume(1_000, timeout=min(left, 0.1)))
    return count


_MEASURED = {
    "producer_byte_rate": {"count": _of_a_count},
    "consumer_byte_rate": {"count": _of_a_count, "consumer by hand": _of_a_consumer_by_hand},
}


def _prepare(broker: EmbeddedBroker, client: str, kind: str, rate: int, source: str, *outputs: str) -> None:
    """Create the topics, fill the input, and set the client's quota."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 3})  # the client must outlive its requests
    for created in admin.create_topics([NewTopic(topic, 1, 1) for topic in (source, *outputs)]).values():
        created.result(30)
    _produce(broker.bootstrap_servers, source)
    named = ("--bootstrap-server", broker.bootstrap_servers, "--entity-type", "clients", "--entity-name", client)
    run_tool("kafka-configs", [*named, "--alter", "--add-config", f"{kind}={rate}"])


def _size(folder: Path, *topics: str) -> int:
    return sum(file.stat().st_size for topic in topics for file in folder.glob(f"log/{topic}-[0-9]*/*.log"))


def _produce(servers: str, topic: str) -> None:
    # A broker sends whole batches. One of more bytes than its consumer's quota for a window would never be sent.
    settings = {"linger.ms": 20, "batch.size": 16_384, "queue.buffering.max.messages": 2 * RECORDS}
    producer = Producer({"bootstrap.servers": servers, **settings})
    for number in range(RECORDS):
        producer.produce(topic, bytes(VALUE_BYTES), b"u%08d" % (number % KEYS))
    producer.flush()
