"""`python -m benchmarks workers`: throughput and processor time of one instance by the number of its workers.

The instance counts per key and writes every update, exactly once with a commit every 100 ms. It starts with empty topics, so that its
workers share the tasks, and is stopped; then the records are written, and it starts again. The clock runs from the moment at which all
workers run until the last record is committed, and its processor time is that of all its processes. Workers need cores: where there are
fewer, the broker's included, the rate does not grow, but the processor time per record shows what workers cost each other.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import uuid
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import psutil
import typer
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.brokers import broker_for
from benchmarks.data import records as input_records
from benchmarks.data import write as write_records
from benchmarks.gap_fleet import Instances
from benchmarks.measure import ROOT, MeasurementError, committed_records
from benchmarks.pages import put
from penstock.orchestration.drawing.console import stdout_console
from penstock.orchestration.embedded.kafka import BrokerError

WORKERS = (1, 2, 4)
PARTITIONS = 8
COMMIT_MS = 100
POLL_SECONDS = 0.05
TIMEOUT_SECONDS = 600.0
PAGE = ROOT / "docs" / "benchmarks.md"
BEGIN, END = "<!-- workers: begin -->", "<!-- workers: end -->"
_NAME = "a"
_MEBIBYTE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Result:
    """A run. `records`: those processed while the clock ran; `cpu`: seconds; `memory`: largest sum of the processes' memory, in MiB."""

    records: int
    seconds: float
    cpu: float
    memory: float


def main(
    workers: Annotated[list[int] | None, typer.Option(min=1, max=PARTITIONS, help="Repeat for several. Default: 1, 2, 4.")] = None,
    records: Annotated[int, typer.Option(min=100_000, help="Records.")] = 2_000_000,
    commit_ms: Annotated[int, typer.Option("--commit-interval", min=10, help="commit.interval.ms.")] = COMMIT_MS,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each number, in turn; the table shows the median.")] = 3,
    bootstrap: Annotated[str | None, typer.Option(help="A broker to use in place of one started for this.")] = None,
    write: Annotated[bool, typer.Option("--write", help=f"Put the table into {PAGE.name}.")] = False,
) -> None:
    """Measure an instance with several workers. Exit status 1 if a program fails."""
    console = stdout_console()
    results: dict[int, list[Result]] = {count: [] for count in workers or WORKERS}
    try:
        with broker_for(bootstrap, console) as servers:
            for turn in range(repeats):
                for count, runs in results.items():
                    with console.status(f"{count} workers, {turn + 1} of {repeats}"):
                        runs.append(_measured(servers, count, records, commit_ms))
    except (BrokerError, MeasurementError) as error:
        console.print(f"[red]{error}[/red]", soft_wrap=True)
        raise typer.Exit(1) from error
    table = text(results)
    console.print(table, soft_wrap=True)
    if write:
        put(PAGE, BEGIN, table, END)


def _measured(servers: str, workers: int, count: int, commit_ms: int) -> Result:
    """Raises MeasurementError."""
    app = f"bench-workers-{uuid.uuid4().hex[:8]}"
    source, output = f"{app}-input", f"{app}-output"
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 3})  # the client must outlive its requests
    for future in admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in (source, output)]).values():
        future.result(30)
    environment = {"GAPS_INPUT": source, "GAPS_OUTPUT": output}
    config: dict[str, object] = {"commit.interval.ms": commit_ms, "num.stream.threads": workers}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", ignore_cleanup_errors=True) as folder:
        instances = Instances(app, servers, Path(folder), "benchmarks.gap_programs:count", environment, config)
        try:
            instances.start(_NAME)
            instances.settled({_NAME: PARTITIONS})
            instances.shared_evenly(workers)
            instances.stop(_NAME)
            write_records(servers, source, input_records(count), count, lambda _written: None)
            instances.start(_NAME)
            instances.settled({_NAME: PARTITIONS})
            instances.shared_evenly(workers)
            with closing(Consumer({"bootstrap.servers": servers, "group.id": app})) as consumer:
                result = _watch(instances, consumer, [TopicPartition(source, number) for number in range(PARTITIONS)], count)
            instances.stop(_NAME)
            return result
        finally:
            instances.kill_all()


def _watch(instances: Instances, consumer: Consumer, partitions: list[TopicPartition], count: int) -> Result:
    """Measure until all records are committed. Raises MeasurementError."""
    processes, memory = _tree(instances), 0.0
    begun, used, before = time.monotonic(), _cpu_seconds(processes), committed_records(consumer, partitions)
    if before * 2 > count:
        raise MeasurementError(f"{before:,} of {count:,} records were processed before all workers ran: take more (--records)")
    while True:
        time.sleep(POLL_SECONDS)
        done, seconds, cpu = committed_records(consumer, partitions), time.monotonic() - begun, _cpu_seconds(processes) - used
        memory = max(memory, sum(process.memory_info().rss for process in processes) / _MEBIBYTE)
        if done >= count:
            return Result(count - before, seconds, cpu, memory)
        if seconds > TIMEOUT_SECONDS:
            raise MeasurementError(f"{done:,} of {count:,} records were processed in {TIMEOUT_SECONDS:.0f} s")


def _tree(instances: Instances) -> list[psutil.Process]:
    main_process = psutil.Process(instances.processes[_NAME].pid)
    return [main_process, *main_process.children(recursive=True)]


def _cpu_seconds(processes: list[psutil.Process]) -> float:
    found = 0.0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            found += sum(process.cpu_times()[:2])
    return found


def text(results: dict[int, list[Result]]) -> str:
    """Return the table."""
    lines = ["| workers | krec/s | CPU us per record | of the first row's | MiB |", "|---:|---:|---:|---:|---:|"]
    first: float | None = None
    for workers, runs in results.items():
        rate = statistics.median(run.records / run.seconds / 1000 for run in runs)
        cpu = statistics.median(1e6 * run.cpu / run.records for run in runs)
        first = first or cpu
        memory = statistics.median(run.memory for run in runs)
        lines.append(f"| {workers} | {rate:.0f} | {cpu:.1f} | {cpu / first:.2f} | {memory:.0f} |")
    return "\n".join(lines)
