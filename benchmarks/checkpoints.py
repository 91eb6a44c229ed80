"""`python -m benchmarks checkpoints`: cost and benefit of the checkpoint interval (KIP-116).

For each interval, in turn: a count per key of records that arrive at a steady rate, for five intervals and a half (of 30 s, where the
interval is shorter), killed with SIGKILL in the middle of an interval. Measured are

    rate           records per second that were committed: lower than the rate of arrival if the interval costs too much
    commits        durations in ms of all commits, each with its checkpoint if one was due: records wait for them
    CPU s/M        processor seconds of the process per million records
    restart        seconds from the restart of the process, after its group has noticed the death, to RUNNING
    to replay      changelog records between the last checkpoint and the kill: what a power loss would lose. The kill itself
                   loses none of them: the operating system has the write-ahead log
    from nothing   seconds to RUNNING with an empty state folder: the total benefit of kept state

A run contains five checkpoints of its interval: `--interval 300` runs for 27.5 minutes per repeat. The time of one checkpoint of many
updates is measured separately.

`--runs FILE` keeps each run in a file, so the measurement may be made in pieces: `--repeats 0` prints the table of what is there.
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
from array import array
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import psutil
import typer
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient

from benchmarks.brokers import broker_for
from benchmarks.data import PARTITIONS, create_topic, feed
from benchmarks.measure import POLL_SECONDS, ROOT, MeasurementError
from benchmarks.pages import put
from benchmarks.run_tables import COMMIT_MS
from benchmarks.workloads import COMMITS_FILE, Run
from penstock import serdes
from penstock.orchestration.drawing.bars import Bars, bars
from penstock.orchestration.drawing.console import stdout_console
from penstock.runtime.changelog.checkpoint import read_checkpoint, write_checkpoint
from penstock.runtime.model.ids import NextOffset, TaskId, TopicPartition
from penstock.runtime.stores.base import EngineStore, StoreContext
from penstock.runtime.stores.budget import StoreMemory
from penstock.runtime.stores.suppliers import Stores

PAGE, PLOT = ROOT / "docs" / "checkpoints.md", ROOT / "docs" / "checkpoints.svg"
LEAST_SECONDS, INTERVALS_PER_RUN = 165.0, 5.5
NOTICED_SECONDS = 60.0
CHECKPOINTS, UPDATES = 5, 100_000
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


@dataclass(frozen=True, slots=True)
class Steady:
    """A run at a steady rate: records per second, durations of commits in ms, processor seconds per million records."""

    rate: float
    median: float
    p99: float
    cpu: float


@dataclass(frozen=True, slots=True)
class Restart:
    """A kill in the middle: seconds to RUNNING with and without the state, and changelog records after the last checkpoint."""

    seconds: float
    replay: int
    from_nothing: float


@dataclass(frozen=True, slots=True)
class Measured:
    """One run. `rate`: records per second that arrived; `load`: the machine's load average over the last 5 minutes of it."""

    interval: float
    rate: int
    seconds: float
    load: float
    steady: Steady
    restart: Restart


@dataclass(frozen=True, slots=True)
class Row:
    """The runs of one interval, in seconds; 0: every commit."""

    interval: float
    runs: tuple[Measured, ...]

    @property
    def steady(self) -> tuple[Steady, ...]:
        return tuple(each.steady for each in self.runs)

    @property
    def restarts(self) -> tuple[Restart, ...]:
        return tuple(each.restart for each in self.runs)

    @property
    def name(self) -> str:
        return f"{self.interval:g} s" if self.interval else "every commit"


def main(
    interval: Annotated[list[float], typer.Option(min=0, help="Interval in seconds, 0 for each commit; repeat for several.")] = [0, 1, 30],  # noqa: B006
    rate: Annotated[int, typer.Option(min=1_000, help="Records per second that arrive.")] = 20_000,
    repeats: Annotated[int, typer.Option(min=0, help="Turns over all intervals; the table shows medians and ranges.")] = 3,
    runs: Annotated[Path | None, typer.Option(help="File to which each run is added; the table has all runs in it.")] = None,
    bootstrap: Annotated[str | None, typer.Option(help="A broker to use in place of one started for this.")] = None,
    write: Annotated[bool, typer.Option("--write", help=f"Put table and plot into {PAGE.name} and {PLOT.name}.")] = False,
) -> None:
    """Measure commits, throughput and restart over checkpoint intervals. Exit status 1 if a program fails."""
    console = stdout_console()
    measured = _kept(runs)
    try:
        if repeats:
            with broker_for(bootstrap, console) as servers:
                for turn in range(repeats):
                    for each in interval:
                        with console.status(f"{each:g} s, {turn + 1} of {repeats}, for {run_seconds(each):.0f} s"):
                            measured.append(_measured(servers, each, rate, run_seconds(each)))
                        _keep(runs, measured[-1])
    except MeasurementError as error:
        console.print(f"[red]{error}[/red]", soft_wrap=True)
        raise typer.Exit(1) from error
    rows = [
        Row(each, tuple(run for run in measured if (run.interval, run.rate, run.seconds) == (each, rate, run_seconds(each))))
        for each in interval
    ]
    if missing := [row.name for row in rows if not row.runs]:
        console.print(
            f"[red]no runs at {rate:,} records/s with checkpoints at {', '.join(missing)}; measure them first[/red]", soft_wrap=True
        )
        raise typer.Exit(1)
    text = table(rows, rate) + "\n" + _one_checkpoint() + "\n"
    console.print(text, soft_wrap=True)
    if write:
        _write(text, rows)
        console.print(f"written: {PAGE}, {PLOT}")


def _kept(runs: Path | None) -> list[Measured]:
    """Return the runs of earlier calls."""
    lines = runs.read_bytes().splitlines() if runs is not None and runs.exists() else []
    return [msgspec.json.decode(line, type=Measured) for line in lines]


def _keep(runs: Path | None, run: Measured) -> None:
    if runs is not None:
        with runs.open("ab") as file:
            file.write(msgspec.json.encode(run) + b"\n")


def run_seconds(interval: float) -> float:
    """Return the length of a run: it contains five checkpoints of the interval, and ends in the middle of another."""
    return max(LEAST_SECONDS, INTERVALS_PER_RUN * interval)


def _measured(servers: str, interval: float, rate: int, seconds: float) -> Measured:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-state-") as state:
        app = f"bench-checkpoints-{uuid.uuid4().hex[:8]}"
        for topic in (f"{app}-input", f"{app}-output"):
            create_topic(servers, topic)
        run = Run(
            "count", True, COMMIT_MS[True], True, app, servers, state, f"{app}-input", f"{app}-output", checkpoint_ms=int(interval * 1000)
        )
        process, _ = _started(run)
        watched = psutil.Process(process.pid)
        begun, cpu = time.monotonic(), sum(watched.cpu_times()[:2])
        feed(servers, run.input, rate, seconds)
        with closing(Consumer({"bootstrap.servers": servers, "group.id": run.app})) as consumer:
            inputs = [ClientPartition(run.input, number) for number in range(PARTITIONS)]
            load = os.getloadavg()[1]
            done = sum(max(0, at.offset) for at in consumer.committed(inputs, timeout=30))
            took, cpu = time.monotonic() - begun, sum(watched.cpu_times()[:2]) - cpu
            _kill(process, run)
            replay = _behind(consumer, run)
        if not done:
            raise MeasurementError(f"{run.app} committed nothing")
        commits = array("d", (Path(state) / COMMITS_FILE).read_bytes())
        steady = Steady(done / took, statistics.median(commits), statistics.quantiles(commits, n=100)[98], cpu / done * 1_000_000)
        process, restart = _started(run)
        _kill(process, run)
        shutil.rmtree(Path(state) / run.app)
        process, from_nothing = _started(run)
        _kill(process, run)
    return Measured(interval, rate, seconds, load, steady, Restart(restart, replay, from_nothing))


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
        _, end = consumer.get_watermark_offsets(ClientPartition(f"{run.app}-counts-changelog", number), timeout=30)
        behind += max(0, end - kept)
    return behind


def table(rows: Sequence[Row], rate: int) -> str:
    """Return the table for the page: medians, with the range of the repeats."""
    lines = [
        "| interval | records/s | commit p50 | commit p99 | CPU s/M | restart after kill -9 | replay after a power loss | from nothing |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [
            row.name,
            _range([each.rate for each in row.steady], "{:,.0f}"),
            _range([each.median for each in row.steady], "{:.0f}") + " ms",
            _range([each.p99 for each in row.steady], "{:.0f}") + " ms",
            _range([each.cpu for each in row.steady], "{:.1f}"),
            _range([each.seconds for each in row.restarts], "{:.1f}") + " s",
            _range([each.replay for each in row.restarts], "{:,.0f}") + " records",
            _range([each.from_nothing for each in row.restarts], "{:.1f}") + " s",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines.append("")
    runs = [run for row in rows for run in row.runs]
    lengths = " and ".join(f"{seconds:.0f} s" for seconds in sorted({run.seconds for run in runs}))
    repeats = " and ".join(str(number) for number in sorted({len(row.runs) for row in rows}))
    least, most = (pick(run.load for run in runs) for pick in (min, max))
    lines.append(
        f"{rate:,} records/s arrive for {lengths}; commits every {COMMIT_MS[True]} ms, exactly once; medians of {repeats} runs "
        f"(least–most). {os.cpu_count()} processors; load averages over 5 minutes from {least:.1f} to {most:.1f}, which include the run "
        "itself and its broker."
    )
    return "\n".join(lines) + "\n"


def _range(values: Sequence[float], form: str) -> str:
    middle, least, most = (form.format(value) for value in (statistics.median(values), min(values), max(values)))
    return middle if least == most else f"{middle} ({least}–{most})"


def _one_checkpoint() -> str:
    """Measure one checkpoint of as many tasks as the input has partitions, with many writes since the last one."""
    memory = StoreMemory()
    supplier = Stores.persistent_timestamped_key_value_store("counts")
    builder = Stores.timestamped_key_value_store_builder(supplier, serdes.STRING, serdes.LONG)
    times = []
    with tempfile.TemporaryDirectory(prefix="penstock-bench-state-") as state, ExitStack() as opened:
        stores: dict[TopicPartition, EngineStore] = {}
        for number in range(PARTITIONS):
            folder = Path(state) / f"0_{number}"
            partition = TopicPartition("counts-changelog", number)
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
                write_checkpoint(Path(state) / f"0_{partition.partition}", {partition: each.committed_offset(partition)})
            times.append(time.perf_counter() - begin)
    taken = statistics.median(times)
    return (
        f"One checkpoint of {PARTITIONS} tasks with {UPDATES:,} updates each since the last one takes {taken * 1000:.0f} ms "
        f"({min(times) * 1000:.0f}–{max(times) * 1000:.0f})."
    )


def _write(text: str, rows: Sequence[Row]) -> None:
    put(PAGE, BEGIN, text, END)
    names = [row.name for row in rows]

    def medians(value: Callable[[Row], list[float]]) -> list[float]:
        return [statistics.median(value(row)) for row in rows]

    panels = [
        Bars("99th percentile of commits, ms", names, medians(lambda row: [each.p99 for each in row.steady])),
        Bars("restart after kill -9, s", names, medians(lambda row: [each.seconds for each in row.restarts])),
        Bars("to replay after a power loss, thousand records", names, medians(lambda row: [each.replay / 1000 for each in row.restarts])),
    ]
    PLOT.write_text(bars(panels), encoding="utf-8")
