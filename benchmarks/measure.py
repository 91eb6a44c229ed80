"""Runs one program as a separate process and measures it from outside.

The clock starts when the program reports its first record, and stops when its group's committed offsets reach the end of the
input. Processor time and memory are those of the process between these two moments; the output is then read and compared with the
expected results.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import IO

import msgspec
import psutil
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from benchmarks.data import PARTITIONS
from benchmarks.truth import Truth
from benchmarks.workloads import Run

POLL_SECONDS = 0.05
_TWO_INPUTS = ("stream-join", "foreign-key-join")
"""Kinds whose progress is counted in two topics."""
_INTERNAL = ("-repartition", "-topic")
"""Ends of the names of topics between sub-topologies; `-topic`: those of a foreign-key join."""
END_SECONDS = 20.0
ROOT = Path(__file__).resolve().parent.parent


class MeasurementError(Exception):
    """The program failed, or did not finish in time; the message contains the end of its output."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One run. Rates in records per second; `second_half` is the rate from the first poll after half of the input; `cpu_seconds` and
    `rss_bytes` are the process's; `wrong` counts keys with a wrong result."""

    records: int
    seconds: float
    rate: float
    second_half: float
    cpu_seconds: float
    rss_bytes: int
    updates: int
    wrong: int


def measure(command: Sequence[str], run: Run, truth: Truth, timeout: float, progress: Callable[[int], object]) -> Measurement:
    """Run a program on `run` to the end of its input. Raises MeasurementError."""
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, "BENCH_SPEC": msgspec.json.encode(run).decode(), "PYTHONPATH": str(ROOT)},
            text=True,
        )
        try:
            return _watch(process, errors, run, truth, time.monotonic() + timeout, progress)
        finally:
            end(process)


def end(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    """End a program: SIGTERM, and kill -9 after `END_SECONDS`."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def committed_records(consumer: Consumer, partitions: list[TopicPartition]) -> int:
    """Return the number of committed records. A broker that has just started may not have its groups yet: then 0."""
    try:
        return sum(max(0, at.offset) for at in consumer.committed(partitions, timeout=30))
    except KafkaException as error:
        if error.args[0].code() in (
            KafkaError.NOT_COORDINATOR,
            KafkaError.COORDINATOR_NOT_AVAILABLE,
            KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        ):
            return 0
        raise


def _internal_records(consumer: Consumer, run: Run) -> int:
    """Return the number of records between sub-topologies that are not committed yet. Exactly once, a topic ends with the mark of a
    transaction, which no commit is about."""
    internal = [topic for topic in consumer.list_topics(timeout=30).topics if topic.startswith(f"{run.app}-") and topic.endswith(_INTERNAL)]
    partitions = [TopicPartition(topic, number) for topic in internal for number in range(PARTITIONS)]
    left = 0
    for at in consumer.committed(partitions, timeout=30) if partitions else ():
        _, end = consumer.get_watermark_offsets(TopicPartition(at.topic, at.partition), timeout=30)
        left += max(0, end - max(0, at.offset) - run.eos)
    return left


def _watch(
    process: subprocess.Popen[str], errors: IO[bytes], run: Run, truth: Truth, deadline: float, progress: Callable[[int], object]
) -> Measurement:
    total = truth.total
    started: list[tuple[float, float]] = []
    watched = psutil.Process(process.pid)
    Thread(target=_await_first, args=(process, watched, started), daemon=True).start()
    half: tuple[float, int] | None = None
    rss = 0
    with closing(Consumer({"bootstrap.servers": run.bootstrap, "group.id": run.app})) as consumer:
        topics = (run.input, run.table) if run.kind in _TWO_INPUTS else (run.input,)
        partitions = [TopicPartition(topic, number) for topic in topics for number in range(PARTITIONS)]
        while True:
            time.sleep(POLL_SECONDS)
            if process.poll() is not None or time.monotonic() > deadline:
                raise MeasurementError(_what_went_wrong(process, errors))
            done = committed_records(consumer, partitions)
            now, rss = time.time(), max(rss, watched.memory_info().rss)
            progress(done)
            if half is None and done * 2 >= total:
                half = (now, done)
            if done >= total and started and _internal_records(consumer, run) == 0:
                break
    begin, cpu_before = started[0]
    cpu = sum(watched.cpu_times()[:2]) - cpu_before
    updates, wrong = truth.look(_outputs(run))
    seconds = now - begin
    second_half = (total - half[1]) / (now - half[0]) if half is not None and now > half[0] and half[1] < total else total / seconds
    return Measurement(total, seconds, total / seconds, second_half, cpu, rss, updates, wrong)


def _await_first(process: subprocess.Popen[str], watched: psutil.Process, started: list[tuple[float, float]]) -> None:
    """Wait for `BENCH FIRST <epoch ms>`; note that time, and the processor time used until then."""
    assert process.stdout is not None
    for line in process.stdout:
        words = line.split()
        if words[:2] == ["BENCH", "FIRST"]:
            started.append((int(words[2]) / 1000, sum(watched.cpu_times()[:2])))
            return


def _what_went_wrong(process: subprocess.Popen[str], errors: IO[bytes]) -> str:
    errors.seek(0)
    tail = errors.read()[-4000:].decode(errors="replace")
    status = process.poll()
    what = "did not come to the end of its input in time" if status is None else f"ended with status {status}"
    return f"{' '.join(map(str, process.args))} {what}:\n{tail}"  # type: ignore[arg-type]  # the arguments are a list


def _outputs(run: Run) -> Iterator[tuple[bytes, bytes]]:
    """Yield key and value of all committed outputs."""
    settings = {
        "bootstrap.servers": run.bootstrap,
        "group.id": f"{run.app}-check",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
        "fetch.queue.backoff.ms": 2,
    }
    with closing(Consumer(settings)) as consumer:
        consumer.assign([TopicPartition(run.output, number, 0) for number in range(PARTITIONS)])
        left = PARTITIONS
        while left:
            for message in consumer.consume(10_000, 0.2):
                error = message.error()
                if error is None:
                    yield _raw(message.key()), _raw(message.value())
                elif error.code() == KafkaError._PARTITION_EOF:
                    left -= 1
                else:
                    raise MeasurementError(f"the output cannot be read: {error.str()}")


def _raw(data: str | bytes | None) -> bytes:
    return data if isinstance(data, bytes) else b""
