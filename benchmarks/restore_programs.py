"""The programs that `benchmarks.restore` measures, each in a process of its own: `python -m benchmarks.restore_programs <JSON>`.

`penstock` is the engine as a user runs it: an application whose state is lost. The others are hand-written programs for this job
alone (no offsets, no timestamps in the values, no group, no progress):

    batches      each poll becomes one write batch, without a write-ahead log
    folded       the latest value of each key in a dict; at the end, one write batch per partition
    folded-sst   the same, sorted, as one SST file per partition, which RocksDB ingests

Each prints one line of JSON, a `Restored`.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from itertools import compress
from pathlib import Path

import msgspec
from confluent_kafka import Consumer, Message
from confluent_kafka import TopicPartition as ClientPartition
from rocksdict import Options, Rdict, SstFileWriter, WriteBatch, WriteOptions

from benchmarks.data import PARTITIONS
from benchmarks.workloads import Run, build
from penstock.runtime.client.kafka_streams import KafkaStreams
from penstock.runtime.model.ids import TopicPartition
from penstock.runtime.model.states import State

POLL = 5_000
READY_SECONDS = 300


class Job(msgspec.Struct, frozen=True):
    """Job of a program. `started_ms`: start of its process, epoch ms. `keys`: the number in the changelog, each of which has
    `rounds` updates; the value of an update is its number, from 1."""

    program: str
    app: str
    servers: str
    input: str
    state: str
    started_ms: int
    keys: int
    rounds: int

    @property
    def changelog(self) -> str:
        """Changelog topic."""
        return f"{self.app}-counts-changelog"


class OfKafkaStreams(Run, frozen=True, kw_only=True):
    """The job of the count in Kafka Streams (`peers/StreamsApp.java`), in `BENCH_SPEC`; the fields are those of `Job`."""

    started_ms: int
    keys: int
    rounds: int

    @classmethod
    def of(cls, job: Job) -> OfKafkaStreams:
        return cls(
            "count",
            True,
            100,
            True,
            job.app,
            job.servers,
            job.state,
            job.input,
            f"{job.input}-output",
            started_ms=job.started_ms,
            keys=job.keys,
            rounds=job.rounds,
        )


class Restored(msgspec.Struct, frozen=True):
    """`seconds`: of the restore alone; `ready_seconds`: from the start of the process until it could continue processing; `wrong`: keys
    whose value is not the last one, plus missing and unexpected keys."""

    seconds: float
    ready_seconds: float
    wrong: int


class _Timing:
    """A `StateRestoreListener` that notes when the first restore began and the last ended."""

    def __init__(self) -> None:
        self.begun: float | None = None
        self.ended = 0.0

    def on_restore_start(self, partition: TopicPartition, store: str, start: int, end: int) -> None:
        self.begun = self.begun or time.time()

    def on_batch_restored(self, partition: TopicPartition, store: str, batch_end: int, records: int) -> None: ...

    def on_restore_end(self, partition: TopicPartition, store: str, total: int) -> None:
        self.ended = time.time()

    def on_restore_suspended(self, partition: TopicPartition, store: str, total: int) -> None: ...


def _engine(job: Job) -> Restored:
    run = Run("count", True, 100, True, job.app, job.servers, job.state, job.input, f"{job.input}-output")
    timing = _Timing()
    with KafkaStreams(build(run), run.streams_config()) as streams:
        streams.set_global_state_restore_listener(timing)
        streams.start()
        if not streams.wait_for(State.RUNNING, READY_SECONDS * 1000):
            raise RuntimeError(f"the engine is {streams.state.value}: {streams.failure}")
        ready = time.time()
        counts = dict(streams.store("counts").all())
    wrong = abs(job.keys - len(counts)) + sum(value != job.rounds for value in counts.values())
    assert timing.begun is not None
    return Restored(timing.ended - timing.begun, ready - job.started_ms / 1000, wrong)


# --- hand-written programs ----------------------------------------------------------------------------------------------------------

Entries = dict[bytes, bytes]


def _by_hand(job: Job, keep: Callable[[Job], dict[int, Rdict]]) -> Restored:
    gc.collect()
    gc.freeze()
    gc.disable()
    begun = time.time()
    databases = keep(job)
    ended = time.time()
    value, found, wrong = job.rounds.to_bytes(8, "big"), 0, 0
    for database in databases.values():
        for _, each in database.items():
            found += 1
            wrong += each != value
        database.close()
    return Restored(ended - begun, ended - job.started_ms / 1000, wrong + abs(job.keys - found))


def _database(job: Job, partition: int) -> Rdict:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(128 << 20)
    return Rdict(str(Path(job.state) / str(partition)), options)


def _without_log() -> WriteOptions:
    options = WriteOptions()
    options.disable_wal = True  # type: ignore[method-assign,assignment]  # a property, unlike in the stubs
    return options


def _read(job: Job, take: Callable[[int, list[Message]], object]) -> None:
    """Read the changelog from its start to its end, and pass it on in runs of one partition."""
    settings: Mapping[str, str | int | bool] = {
        "bootstrap.servers": job.servers,
        "group.id": job.app,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "fetch.queue.backoff.ms": 2,
        "queued.min.messages": 200_000,
        "queued.max.messages.kbytes": 65_536,
    }
    with closing(Consumer(dict(settings))) as consumer:
        places = [ClientPartition(job.changelog, number, 0) for number in range(PARTITIONS)]
        consumer.assign(places)
        left = sum(consumer.get_watermark_offsets(place, timeout=30)[1] for place in places)
        while left > 0:
            messages = consumer.consume(min(POLL, left), 1.0)
            left -= len(messages)
            numbers = list(map(Message.partition, messages))
            for number in set(numbers):
                if number is not None:
                    take(number, list(compress(messages, map(number.__eq__, numbers))))


def _batches(job: Job) -> dict[int, Rdict]:
    databases = {number: _database(job, number) for number in range(PARTITIONS)}
    options = _without_log()

    def write(number: int, messages: list[Message]) -> None:
        batch = WriteBatch(raw_mode=True)
        for key, value in zip(map(Message.key, messages), map(Message.value, messages), strict=True):
            batch.put(key, value)  # type: ignore[arg-type]  # neither is None here
        databases[number].write(batch, options)

    _read(job, write)
    for database in databases.values():
        database.flush()
    return databases


def _folded(job: Job) -> list[Entries]:
    latest: list[Entries] = [{} for _ in range(PARTITIONS)]

    def fold(number: int, messages: list[Message]) -> None:
        latest[number].update(zip(map(Message.key, messages), map(Message.value, messages), strict=True))  # type: ignore[arg-type]  # as above

    _read(job, fold)
    return latest


def _folded_batch(job: Job) -> dict[int, Rdict]:
    databases: dict[int, Rdict] = {}
    options = _without_log()
    for number, entries in enumerate(_folded(job)):
        batch = WriteBatch(raw_mode=True)
        for key, value in entries.items():
            batch.put(key, value)
        database = databases[number] = _database(job, number)
        database.write(batch, options)
        database.flush()
    return databases


def _folded_sst(job: Job) -> dict[int, Rdict]:
    databases: dict[int, Rdict] = {}
    for number, entries in enumerate(_folded(job)):
        path = Path(job.state) / f"{number}.sst"
        writer = SstFileWriter(options=Options(raw_mode=True))
        writer.open(str(path))
        for key in sorted(entries):
            writer[key] = entries[key]
        writer.finish()
        database = databases[number] = _database(job, number)
        database.ingest_external_file([str(path)])
    return databases


BY_HAND: dict[str, Callable[[Job], dict[int, Rdict]]] = {"folded-sst": _folded_sst, "folded": _folded_batch, "batches": _batches}


if __name__ == "__main__":
    job = msgspec.json.decode(sys.argv[1], type=Job)
    result = _engine(job) if job.program == "penstock" else _by_hand(job, BY_HAND[job.program])
    print(msgspec.json.encode(result).decode(), flush=True)
