"""`python -m benchmarks commits`: cost of a commit of many dirty keys, and of its atomicity.

The first table needs no broker: the same records, of 100,000 keys, written to RocksDB in three alternating ways, all with the settings
of the engine's stores. The store's own commit reduces, serialises and writes records, offsets and metadata in one batch; plain writes have
no offsets, and a kill may leave any part of them.

The second table is the complete commit of the worker's loop, exactly once, on the broker: changelog records, offsets, the guard, the end of
the transaction, and the store.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, cast

import typer
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich import box
from rich.table import Table
from rocksdict import Rdict, WriteBatch

from benchmarks.brokers import broker_for
from penstock.orchestration.drawing.console import stdout_console
from penstock.orchestration.embedded.kafka import BrokerError
from penstock.runtime.client.kafka_streams import KafkaStreams
from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.options import Consumed
from penstock.runtime.model.errors import StreamsError
from penstock.runtime.model.ids import NextOffset, TaskId, TopicPartition
from penstock.runtime.model.record import Record
from penstock.runtime.model.states import State
from penstock.runtime.operators.processor import Processor, ProcessorContext
from penstock.runtime.stores import KeyValueStore, Stores
from penstock.runtime.stores.base import StoreContext
from penstock.runtime.stores.budget import StoreMemory
from penstock.runtime.stores.rocks_options import database_options, family_options, rocks_memory
from penstock.runtime.topology.topology import Topology
from penstock.serdes import LONG, STRING

ALL_KEYS = 100_000
COMMITS = 25
READY_MS = 60_000
POLL_SECONDS = 0.005
_CHANGELOG = TopicPartition("bench-counts-changelog", 0)


def main(
    keys: Annotated[int, typer.Option(min=1, max=ALL_KEYS, help="Dirty keys of a commit.")] = 10_000,
    bootstrap: Annotated[str | None, typer.Option(help="A broker to use in place of one started for this.")] = None,
) -> None:
    """Measure a commit of many dirty keys, and an atomic one against plain writes of the same records."""
    console = stdout_console()
    with console.status("writing to RocksDB"):
        console.print(_writes_table(_writes(keys), keys))
    try:
        with broker_for(bootstrap, console) as servers, console.status("committing on the broker"):
            times = _whole_commits(servers, keys)
    except (BrokerError, StreamsError) as error:
        console.print(f"[red]{error}[/red]", soft_wrap=True)
        raise typer.Exit(1) from error
    table = Table(title=f"The whole commit of {keys:,} dirty keys, exactly once", box=box.SIMPLE)
    for heading in ("ms, median", "least", "most", "commits"):
        table.add_column(heading, justify="right")
    table.add_row(f"{statistics.median(times):.0f}", f"{min(times):.0f}", f"{max(times):.0f}", str(len(times)))
    console.print(table)


# --- RocksDB ------------------------------------------------------------------------------------------------------------------------


class _Ways:
    """Three databases that receive the same records."""

    def __init__(self, folder: Path) -> None:
        memory = StoreMemory()
        task = TaskId(0, 0)
        builder = Stores.timestamped_key_value_store_builder(Stores.persistent_timestamped_key_value_store("counts"), STRING, LONG)
        self._store = builder.build()
        self._store.open(folder, StoreContext("bench", folder, task, _CHANGELOG, memory))
        native = rocks_memory(memory)
        families = {"default": database_options(native), "plain": family_options(native, filtered=True)}
        self._database = Rdict(str(folder / "plain"), database_options(native), column_families=families)
        self._plain = self._database.get_column_family("plain")
        self._handle = self._database.get_column_family_handle("plain")
        self._offset = 0

    def one_by_one(self, records: list[tuple[bytes, bytes]]) -> float:
        """Write records one at a time; return ms."""
        begun = time.perf_counter()
        put = self._plain.put
        for key, value in records:
            put(key, value)
        return (time.perf_counter() - begun) * 1000

    def one_batch(self, records: list[tuple[bytes, bytes]]) -> float:
        """Write records in one plain batch; return ms."""
        begun = time.perf_counter()
        batch = WriteBatch(raw_mode=True)
        put, handle = batch.put, self._handle
        for key, value in records:
            put(key, value, handle)
        self._database.write(batch)
        return (time.perf_counter() - begun) * 1000

    def atomic(self, records: list[tuple[bytes, bytes]]) -> float:
        """Run the store's commit, with offsets; return ms. The staging of updates, which happens during processing, is not included."""
        store = self._store
        for key, value in records:
            store.update(key, None, store.entry(key), int.from_bytes(value[8:], "big"), int.from_bytes(value[:8], "big"), None)
        self._offset += len(records)
        begun = time.perf_counter()
        written = list(store.changelog_records())
        store.commit({_CHANGELOG: NextOffset(self._offset)})
        assert len(written) == len(records)
        return (time.perf_counter() - begun) * 1000

    def close(self) -> None:
        self._store.close()
        del self._handle, self._plain  # each of them would keep the database open
        self._database.close()


def _writes(keys: int) -> dict[str, list[float]]:
    choice = random.Random(5)
    names = [b"u%08d" % number for number in range(ALL_KEYS)]
    with tempfile.TemporaryDirectory(prefix="penstock-bench-state-") as folder:
        ways = _Ways(Path(folder))
        programs: dict[str, Callable[[list[tuple[bytes, bytes]]], float]] = {
            "plain writes, one by one": ways.one_by_one,
            "plain writes, one batch": ways.one_batch,
            "atomic commit": ways.atomic,
        }
        found: dict[str, list[float]] = {name: [] for name in programs}
        for turn in range(COMMITS):
            records = [(name, turn.to_bytes(8, "big") * 2) for name in choice.sample(names, keys)]
            for name, write in programs.items():
                found[name].append(write(records))
        ways.close()
    return found


def _writes_table(found: dict[str, list[float]], keys: int) -> Table:
    table = Table(
        title=f"{keys:,} records to RocksDB", caption="ms, median (least-most); ratio: to plain writes one by one", box=box.SIMPLE
    )
    table.add_column("")
    for heading in ("ms", "ratio"):
        table.add_column(heading, justify="right", no_wrap=True)
    plain = statistics.median(found["plain writes, one by one"])
    for name, times in found.items():
        middle = statistics.median(times)
        table.add_row(name, f"{middle:.1f} ({min(times):.1f}-{max(times):.1f})", f"{middle / plain:.2f}")
    return table


# --- on the broker ------------------------------------------------------------------------------------------------------------------


class _PutAll(Processor):
    """Puts each record, and requests a commit after every round of all keys."""

    def __init__(self, keys: int) -> None:
        self._keys = keys
        self._left = keys

    def init(self, context: ProcessorContext) -> None:
        self._context = context
        self._store = cast(KeyValueStore, context.get_state_store("latest"))

    def process(self, record: Record) -> None:
        self._store.put(record.key, record.value)
        self._left -= 1
        if self._left == 0:
            self._left = self._keys
            self._context.commit()


def _topology(topic: str, keys: int) -> Topology:
    builder = StreamsBuilder()
    supplier = Stores.persistent_key_value_store("latest")
    builder.add_state_store(Stores.key_value_store_builder(supplier, STRING, LONG))
    builder.stream(topic, Consumed(STRING, value=LONG)).process(lambda: _PutAll(keys), "latest")
    return builder.build()


def _whole_commits(servers: str, keys: int) -> list[float]:
    """Return the milliseconds of commits with `keys` dirty keys each."""
    app = f"bench-commits-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 3})  # the client must outlive its requests
    admin.create_topics([NewTopic(app, 1, 1)])[app].result(30)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-state-") as folder:
        config = {
            "application.id": app,
            "bootstrap.servers": servers,
            "state.dir": folder,
            "processing.guarantee": "exactly_once_v2",
            "commit.interval.ms": 5_000,  # so that only the processor's requests cause commits
            "auto.offset.reset": "earliest",
        }
        with KafkaStreams(_topology(app, keys), config) as streams:
            streams.start()
            if not streams.wait_for(State.RUNNING, READY_MS):
                raise StreamsError(f"the engine is {streams.state.value}: {streams.failure}")
            return _watch(streams, servers, app, keys)


def _watch(streams: KafkaStreams, servers: str, topic: str, keys: int) -> list[float]:
    """Produce the engine's input, and poll often enough to see each commit separately."""
    times: list[float] = []
    count, spent = _commits(streams)
    _produce(servers, topic, keys)
    deadline = time.monotonic() + READY_MS / 1000
    while committed_records(streams) < keys * COMMITS:
        if time.monotonic() > deadline:
            raise StreamsError("the records were not committed in time")
        time.sleep(POLL_SECONDS)
        now, until_now = _commits(streams)
        if now > count:
            times += [(until_now - spent) / (now - count)] * (now - count)
            count, spent = now, until_now
    return times


def _commits(streams: KafkaStreams) -> tuple[int, float]:
    """Return the number of commits, and their total ms."""
    found = {key.name: value for key, value in streams.metrics().items() if key.name.startswith("commit-")}
    return round(found["commit-total"]), found["commit-latency-avg"] * found["commit-total"]


def committed_records(streams: KafkaStreams) -> int:
    """Return the sum of the committed offsets of a client's tasks."""
    tasks = [task for thread in streams.metadata_for_local_threads() for task in thread.active_tasks]
    return sum(offset for task in tasks for offset in task.committed_offsets.values())


def _produce(servers: str, topic: str, keys: int) -> None:
    """Produce every key once per commit, one round of all keys after the other."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000})
    for turn in range(COMMITS):
        for number in range(keys):
            producer.produce(topic, turn.to_bytes(8, "big"), b"u%08d" % number)
        producer.flush()
