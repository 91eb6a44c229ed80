"""One instance with many tasks, in a process of its own: `python -m benchmarks.many_program <JSON>` (`benchmarks.many`).

Each sub-topology counts a topic of its own per key. Prints one line of JSON, a `Measured`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import cast

import msgspec
import psutil

from benchmarks.measure import MeasurementError
from penstock.runtime.client.kafka_streams import KafkaStreams
from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.options import Consumed, Grouped, Materialized
from penstock.runtime.model.metrics import TASK, THREAD
from penstock.runtime.model.states import State
from penstock.runtime.topology.topology import Topology
from penstock.serdes import BYTES, LONG

PATIENCE_SECONDS = 600.0
SETTLING_SECONDS, IDLE_SECONDS = 3.0, 6.0
_MEBIBYTE = 1024 * 1024
_POLL_SECONDS = 0.05


class Job(msgspec.Struct, frozen=True):
    """`records`: the number to process, after which it ends; 0: it stays idle for a while, and ends."""

    app: str
    servers: str
    state: str
    topics: list[str]
    records: int
    stores: int
    """The first so many sub-topologies have a store."""


class Measured(msgspec.Struct, frozen=True):
    """Seconds from `start()` to RUNNING, and their CPU seconds. Of an idle instance: its memory in MiB and the part of a processor that it
    takes. Of a busy one: seconds and CPU seconds from RUNNING until all records were processed, number and mean time (ms) of the
    commits."""

    start: float
    start_cpu: float
    memory: float = 0.0
    idle: float = 0.0
    seconds: float = 0.0
    cpu: float = 0.0
    commits: int = 0
    commit_ms: float = 0.0


def topology(topics: list[str], stores: int) -> Topology:
    """Return a count per key of each of the first topics, and a filter of each other one."""
    builder = StreamsBuilder()
    for number, topic in enumerate(topics):
        records = builder.stream(topic, Consumed(BYTES, value=BYTES))
        if number >= stores:
            records.filter(lambda key, value: value == b"")
            continue
        records.group_by_key(Grouped(BYTES, value=BYTES)).count(Materialized(_store(number), key=BYTES, value=LONG))
    return builder.build()


def _store(number: int) -> str:
    return f"counts-{number}"


def run(job: Job) -> Measured:
    """Run the instance. Raises MeasurementError if it is not done in time."""
    config = {"application.id": job.app, "bootstrap.servers": job.servers, "state.dir": job.state, "commit.interval.ms": 100}
    with KafkaStreams(topology(job.topics, job.stores), {**config, "processing.guarantee": "exactly_once_v2"}) as streams:
        begun, cpu = time.monotonic(), time.process_time()
        streams.start()
        _until(lambda: streams.state is State.RUNNING, "it is RUNNING")
        running = Measured(time.monotonic() - begun, time.process_time() - cpu)
        if not job.records:
            time.sleep(SETTLING_SECONDS)
            cpu = time.process_time()
            time.sleep(IDLE_SECONDS)
            idle = (time.process_time() - cpu) / IDLE_SECONDS
            return msgspec.structs.replace(running, memory=psutil.Process().memory_info().rss / _MEBIBYTE, idle=idle)
        begun, cpu = time.monotonic(), time.process_time()
        _until(lambda: _metric(streams, TASK, "process-total") >= job.records, f"{job.records:,} records are processed")
        seconds, cpu = time.monotonic() - begun, time.process_time() - cpu
        counted = job.records * job.stores // len(job.topics)
        _until(lambda: _counted(streams, job.stores) == counted, f"{counted:,} records are counted")  # and committed
        commits = int(_metric(streams, THREAD, "commit-total"))
        commit_ms = _metric(streams, THREAD, "commit-latency-avg")
        return msgspec.structs.replace(running, seconds=seconds, cpu=cpu, commits=commits, commit_ms=commit_ms)


def _counted(streams: KafkaStreams, stores: int) -> int:
    """Return the sum of all counts, as of the last commit."""
    found = (streams.store(_store(number)) for number in range(stores))
    return sum(cast(int, count) for store in found for _, count in store.all())


def _metric(streams: KafkaStreams, group: str, name: str) -> float:
    return sum(float(value) for metric, value in streams.metrics().items() if (metric.group, metric.name) == (group, name))


def _until(done: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not done():
        if time.monotonic() > end:
            raise MeasurementError(f"{what}: not after {PATIENCE_SECONDS:.0f} s")
        time.sleep(_POLL_SECONDS)


if __name__ == "__main__":
    print(msgspec.json.encode(run(msgspec.json.decode(sys.argv[1], type=Job))).decode(), flush=True)
