"""`python -m benchmarks many`: what an instance costs by the number of its tasks.

Each size is a number of sub-topologies, each with a store and a topic of its own, times a number of partitions. An instance starts with
empty topics and stays idle; then the same records, spread evenly over all partitions, are written, and it starts again and processes them,
exactly once with a commit every 100 ms. A commit writes each task's store and changelog and the markers of its partitions, so the commits
of many tasks are larger and fewer; what a commit takes is therefore divided by the tasks.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
import typer
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.brokers import broker_for
from benchmarks.data import produce
from benchmarks.many_program import Job, Measured
from benchmarks.measure import ROOT, MeasurementError
from benchmarks.pages import put
from penstock.orchestration.drawing.bars import Bars, bars
from penstock.orchestration.drawing.console import stdout_console
from penstock.orchestration.embedded.kafka import BrokerError

SIZES = ("1x4", "4x12", "4x50", "12x50")
PAGE, PLOT = ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "many.svg"
BEGIN, END = "<!-- many: begin -->", "<!-- many: end -->"
_KEYS = 1_000
_TIMEOUT_SECONDS = 1_800


@dataclass(frozen=True, slots=True)
class Result:
    """A size: numbers of sub-topologies, of partitions of each topic, and of sub-topologies with a store; with both runs."""

    parts: int
    partitions: int
    stores: int
    records: int
    idle: Measured
    busy: Measured

    @property
    def tasks(self) -> int:
        return self.parts * self.partitions


def main(
    size: Annotated[
        list[str] | None,
        typer.Option(
            help="SUB-TOPOLOGIESxPARTITIONS, or SUB-TOPOLOGIESxPARTITIONS:N where only N of them have a store; repeat for several. "
            f"Default: {', '.join(SIZES)}."
        ),
    ] = None,
    records: Annotated[int, typer.Option(min=10_000, help="Records, of all topics together.")] = 1_000_000,
    bootstrap: Annotated[str | None, typer.Option(help="A broker to use in place of one started for this.")] = None,
    write: Annotated[bool, typer.Option("--write", help=f"Put table and plot into {PAGE.name} and {PLOT.name}.")] = False,
) -> None:
    """Measure instances with many tasks. Exit status 1 if records are not counted, or a program fails."""
    console = stdout_console()
    sizes = [_size(each) for each in size or SIZES]
    results: list[Result] = []
    try:
        with broker_for(bootstrap, console) as servers:
            for parts, partitions, stores in sizes:
                with console.status(f"{parts} sub-topologies of {partitions} partitions"):
                    results.append(_measured(servers, parts, partitions, stores, records))
    except (BrokerError, MeasurementError) as error:
        console.print(f"[red]{error}[/red]", soft_wrap=True)
        raise typer.Exit(1) from error
    table = text(results)
    console.print(table, soft_wrap=True)
    if write:
        put(PAGE, BEGIN, table, END)
        PLOT.write_text(_plot(results), encoding="utf-8")
        console.print(f"written: {PAGE}, {PLOT}")


def _size(given: str) -> tuple[int, int, int]:
    found = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)(?::(\d+))?", given)
    if found is None or int(found[3] or 0) > int(found[1]):
        raise typer.BadParameter(f"{given}: expected is for example 12x50, or 12x50:6", param_hint="--size")
    return int(found[1]), int(found[2]), int(found[3] or found[1])


def _measured(servers: str, parts: int, partitions: int, stores: int, records: int) -> Result:
    """Raises MeasurementError."""
    app = f"bench-many-{uuid.uuid4().hex[:8]}"
    topics = [f"{app}-{number}" for number in range(parts)]
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 3})
    for future in admin.create_topics([NewTopic(topic, partitions, 1) for topic in topics]).values():
        future.result(60)
    per_partition = max(1, records // (parts * partitions))
    written = per_partition * parts * partitions
    with tempfile.TemporaryDirectory(prefix="penstock-bench-state-") as state:
        idle = _run(Job(app, servers, state, topics, 0, stores))
        _write(servers, topics, partitions, per_partition)
        busy = _run(Job(app, servers, state, topics, written, stores))
    return Result(parts, partitions, stores, written, idle, busy)


def _run(job: Job) -> Measured:
    command = [sys.executable, "-m", "benchmarks.many_program", msgspec.json.encode(job).decode()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False)
    if done.returncode:
        raise MeasurementError(f"the program for {job.app} failed:\n{done.stderr[-2000:]}")
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Measured)


def _write(servers: str, topics: Sequence[str], partitions: int, each: int) -> None:
    """Write so many records to each partition, in turn."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 50, "queue.buffering.max.messages": 1_000_000})
    for number in range(each):
        key, value = b"k%d" % (number % _KEYS), b"v%d" % number
        for topic in topics:
            for partition in range(partitions):
                produce(producer, topic, value, key, partition=partition)
        producer.poll(0)
    producer.flush()


def text(results: Sequence[Result]) -> str:
    """Return the table."""
    lines = [
        "| sub-topologies x partitions | tasks | start, s (CPU s) | idle: MiB | % of a processor | krec/s | CPU us per record "
        "| commits | ms each | per task, ms |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for each in results:
        idle, busy = each.idle, each.busy
        size = f"{each.parts} x {each.partitions}{'' if each.stores == each.parts else f', {each.stores} with stores'}"
        lines.append(
            f"| {size} | {each.tasks:,} | {idle.start:.1f} ({idle.start_cpu:.1f}) | {idle.memory:.0f} "
            f"| {100 * idle.idle:.1f} | {each.records / busy.seconds / 1000:.0f} | {1e6 * busy.cpu / each.records:.1f} | {busy.commits} "
            f"| {busy.commit_ms:.0f} | {busy.commit_ms / each.tasks:.2f} |"
        )
    return "\n".join(lines)


def _plot(results: Sequence[Result]) -> str:
    names = [f"{each.tasks:,}" for each in results]
    return bars(
        [
            Bars("thousand records per second, by tasks", names, [each.records / each.busy.seconds / 1000 for each in results]),
            Bars("MiB of an idle instance", names, [each.idle.memory for each in results]),
            Bars("ms of a commit, per task", names, [each.busy.commit_ms / each.tasks for each in results]),
            Bars("ms of the start, per task", names, [1000 * each.idle.start / each.tasks for each in results]),
        ]
    )
