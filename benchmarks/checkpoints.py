"""`python -m benchmarks checkpoints`: cost and benefit of the checkpoint interval (KIP-116).

For each interval, in turn: a count per key to the end of its input (throughput), and the same again, killed with SIGKILL in the middle.
Then

    restart        seconds from the restart of the process, after its group has noticed the death, to RUNNING
    to replay      changelog records between the last checkpoint and the kill: what a power loss would lose. The kill itself
                   loses none of them: the operating system has the write-ahead log
    from nothing   seconds to RUNNING with an empty state folder: the total benefit of kept state

A run is shorter than the default interval, so the default's cost is measured separately: the time of one checkpoint per five minutes.

`--write` puts the table and the plot into `docs/`.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from benchmarks.brokers import broker_for
from benchmarks.data import PARTITIONS, create_topic, load
from benchmarks.measure import POLL_SECONDS, ROOT, MeasurementError, measure
from benchmarks.run import TIMEOUT_SECONDS
from benchmarks.run_tables import COMMIT_MS
from benchmarks.truth import Truth, counts
from benchmarks.workloads import Run
from penstock import serdes
from penstock.orchestration.drawing.bars import Bars, bars
from penstock.orchestration.drawing.console import stdout_console
from penstock.runtime.changelog.checkpoint import read_checkpoint, write_checkpoint
from penstock.runtime.model.ids import NextOffset, Partition, TaskId
from penstock.runtime.stores.base import EngineStore, StoreContext
from penstock.runtime.stores.budget import StoreMemory
from penstock.runtime.stores.suppliers import Stores

INTERVALS = {"every commit": 0, "1 s": 1_000, "30 s": 30_000, "5 min": 300_000}
DEFAULT = "5 min"
PAGE, PLOT = ROOT / "docs" / "checkpoints.md", ROOT / "docs" / "checkpoints.svg"
NOTICED_SECONDS = 60.0
CHECKPOINTS, UPDATES = 5, 100_000
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


@dataclass(frozen=True, slots=True)
class Restart:
    """A kill in the middle: seconds to RUNNING with and without the state, and changelog records after the last checkpoint."""

    seconds: float
    replay: int
    from_nothing: float


@dataclass(frozen=True, slots=True)
class Row:
    """Medians over the repeats of one interval."""

    name: str
    rate: float
    restart: float
    replay: float
    from_nothing: float


def main(
    records: Annotated[int, typer.Option(min=10_000, help="Records in the input.")] = 1_000_000,
    repeats: Annotated[int, typer.Option(min=1, help="Turns over all intervals; the table shows medians.")] = 3,
    bootstrap: Annotated[str | None, typer.Option(help="A broker to use in place of one started for this.")] = None,
    write: Annotated[bool, typer.Option("--write", help=f"Put table and plot into {PAGE.name} and {PLOT.name}.")] = False,
) -> None:
    """Measure throughput and restart over checkpoint intervals. Exit status 1 if a result is wrong or a program fails."""
    console = stdout_console()
    rates: dict[str, list[float]] = {name: [] for name in INTERVALS}
    restarts: dict[str, list[Restart]] = {name: [] for name in INTERVALS}
    try:
        with broker_for(bootstrap, console) as servers:
            topic = f"bench-input-{uuid.uuid4().hex[:8]}"
            create_topic(servers, topic)
            with console.status("loading the input"):
                truth = load(servers, topic, records, lambda done: None)
            for turn in range(repeats):
                for name, interval_ms in INTERVALS.items():
                    with console.status(f"{name}, {turn + 1} of {repeats}"):
                        rates[name].append(_throughput(servers, topic, interval_ms, counts(truth)))
                        restarts[name].append(_restart(servers, topic, interval_ms, truth.total()))
    except MeasurementError as error:
        console.print(f"[red]{error}[/red]", soft_wrap=True)
        raise typer.Exit(1) from error
    rows = [_row(name, rates[name], restarts[name]) for name in INTERVALS]
    text = table(rows, records, repeats) + "\n" + _one_checkpoint() + "\n"
    console.print(text, soft_wrap=True)
    if write:
        _write(text, rows)
        console.print(f"written: {PAGE}, {PLOT}")


def _run(servers: str, topic: str, interval_ms: int, state: str) -> Run:
    app = f"{topic}-{interval_ms}-{uuid.uuid4().hex[:6]}"
    create_topic(servers, f"{app}-output")
    return Run("count", True, COMMIT_MS[True], True, app, servers, state, topic, f"{app}-output", checkpoint_ms=interval_ms)


def _throughput(servers: str, topic: str, interval_ms: int, truth: Truth) -> float:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-state-") as state:
        run = _run(servers, topic, interval_ms, state)
        found = measure([sys.executable, "-m", "benchmarks.peer"], run, truth, TIMEOUT_SECONDS, lambda done: None)
    if found.wrong:
        raise MeasurementError(f"interval {interval_ms} ms: the counts of {found.wrong} keys are wrong")
    return found.rate


def _restart(servers: str, topic: str, interval_ms: int, total: int) -> Restart:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-state-") as state:
        run = _run(servers, topic, interval_ms, state)
        process, _ = _started(run)
        with closing(Consumer({"bootstrap.servers": servers, "group.id": run.app})) as consumer:
            inputs = [TopicPartition(topic, number) for number in range(PARTITIONS)]
            deadline = time.monotonic() + TIMEOUT_SECONDS
            while sum(max(0, at.offset) for at in consumer.committed(inputs, timeout=30)) * 2 < total:
                if process.poll() is not None or time.monotonic() > deadline:
                    process.kill()
                    raise MeasurementError(f"{run.app} ended, or did not come to the middle of its input")
                time.sleep(POLL_SECONDS)
            _kill(process, run)
            replay = _behind(consumer, run)
        process, seconds = _started(run)
        _kill(process, run)
        shutil.rmtree(Path(state) / run.app)
        process, from_nothing = _started(run)
        _kill(process, run)
    return Restart(seconds, replay, from_nothing)


def _started(run: Run) -> tuple[subprocess.Popen[str], float]:
    """Start the program; return it and the seconds until it was RUNNING."""
    environment = {**os.environ, "BENCH_SPEC": msgspec.json.encode(run).decode(), "PYTHONPATH": str(ROOT)}
    begin = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.peer"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, text=True
    )
    assert process.stdout is not None
    if not process.stdout.readline().startswith("BENCH FIRST"):
        process.kill()
        raise MeasurementError(f"{run.app} did not start")
    return process, time.monotonic() - begin


def _kill(process: subprocess.Popen[str], run: Run) -> None:
    """Kill the program, and wait until its group has noticed."""
    process.kill()
    process.wait()
    group = f"{run.app}-members"
    admin = AdminClient({"bootstrap.servers": run.bootstrap, "log_level": 3})
    deadline = time.monotonic() + NOTICED_SECONDS
    while admin.describe_consumer_groups([group])[group].result(30).members:
        if time.monotonic() > deadline:
            raise MeasurementError(f"group {group} still has its member after {NOTICED_SECONDS:.0f} s")
        time.sleep(POLL_SECONDS)


def _behind(consumer: Consumer, run: Run) -> int:
    """Count changelog records between the checkpoint files and the changelogs' ends."""
    behind = 0
    for number in range(PARTITIONS):
        kept = sum(offset or 0 for offset in read_checkpoint(Path(run.state) / run.app / f"0_{number}").values())
        _, end = consumer.get_watermark_offsets(TopicPartition(f"{run.app}-counts-changelog", number), timeout=30)
        behind += max(0, end - kept)
    return behind


def _row(name: str, rates: list[float], restarts: list[Restart]) -> Row:
    return Row(
        name,
        statistics.median(rates),
        statistics.median(each.seconds for each in restarts),
        statistics.median(each.replay for each in restarts),
        statistics.median(each.from_nothing for each in restarts),
    )


def table(rows: list[Row], records: int, repeats: int) -> str:
    """Return the table for the page."""
    by_name = {row.name: row for row in rows}
    best = by_name[DEFAULT].rate
    lines = [
        "| interval | thousand records/s | of the default's | restart after kill -9 | to replay after a power loss | from nothing |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row.name} | {row.rate / 1000:.0f} | {row.rate / best:.0%} | {row.restart:.1f} s | {row.replay:,.0f} records | "
            f"{row.from_nothing:.1f} s |"
        )
    lines.append("")
    lines.append(f"{records:,} records, commits every {COMMIT_MS[True]} ms, exactly once; medians of {repeats}.")
    return "\n".join(lines) + "\n"


def _one_checkpoint() -> str:
    """Measure one checkpoint of as many tasks as the input has partitions, with many writes since the last one."""
    memory = StoreMemory()
    supplier = Stores.persistent_timestamped_key_value_store("counts")
    builder = Stores.timestamped_key_value_store_builder(supplier, serdes.STRING, serdes.LONG)
    times = []
    with tempfile.TemporaryDirectory(prefix="penstock-bench-state-") as state, ExitStack() as opened:
        stores: dict[Partition, EngineStore] = {}
        for number in range(PARTITIONS):
            folder = Path(state) / f"0_{number}"
            partition = Partition("counts-changelog", number)
            store = stores[partition] = builder.build()
            store.open(folder, StoreContext("bench", folder, TaskId(0, number), partition, memory))
            opened.callback(store.close)
        for turn in range(CHECKPOINTS):
            rows = [(b"u%08d" % number, turn.to_bytes(8, "big"), turn) for number in range(UPDATES)]
            for partition, each in stores.items():
                each.restore(rows, {partition: NextOffset(turn + 1)})
            begin = time.perf_counter()
            for partition, each in stores.items():
                each.flush()
                write_checkpoint(Path(state) / f"0_{partition.number}", {partition: each.committed_offset(partition)})
            times.append(time.perf_counter() - begin)
    taken = statistics.median(times)
    return (
        f"One checkpoint of {PARTITIONS} tasks with {UPDATES:,} updates each since the last one takes {taken * 1000:.0f} ms: "
        f"{taken / (INTERVALS[DEFAULT] / 1000):.3%} of {DEFAULT}, which is what the default costs."
    )


def _write(text: str, rows: list[Row]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{text}{END}{after}", encoding="utf-8")
    names = [row.name for row in rows]
    panels = [
        Bars("throughput, thousand records/s", names, [row.rate / 1000 for row in rows]),
        Bars("restart after kill -9, s", names, [row.restart for row in rows]),
        Bars("to replay after a power loss, thousand records", names, [row.replay / 1000 for row in rows]),
    ]
    PLOT.write_text(bars(panels), encoding="utf-8")
