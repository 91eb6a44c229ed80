"""`python -m benchmarks latency`: time from the write of a record to the arrival of its result at a consumer of committed records.

The application counts per key and writes every update, so each record has one result, with the record's timestamp: the moment at which its
producer was called. Only the second half of each run counts. A program that has not written all results shortly after the last record did
not keep up with the rate, and its latencies would be those of its backlog: none are shown. All results are compared with the input.

Producer, consumer, broker and program share the machine. The producer waits up to 5 ms for more records.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
import uuid
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import msgspec
import psutil
import typer
from confluent_kafka import Message
from rich.console import Console

from benchmarks.brokers import broker_for
from benchmarks.data import PARTITIONS, create_topic
from benchmarks.measure import ROOT, MeasurementError, end
from benchmarks.pages import put
from benchmarks.peers.programs import PENSTOCK, PROGRAMS
from benchmarks.run_tables import COMMIT_MS
from benchmarks.updates import EachOnce, Load, Watch
from benchmarks.workloads import Run
from penstock.orchestration.drawing.console import stdout_console
from penstock.orchestration.embedded.jars import JarsError
from penstock.orchestration.embedded.kafka import BrokerError

BESIDE = "kafka-streams"
RATES = (2_000, 20_000, 100_000)
SETTINGS_RATE = 5_000
KEYS = 20_000
READY_SECONDS, LATE_SECONDS = 60.0, 3.0
SETTINGS: tuple[tuple[bool, int, int | None], ...] = (
    (True, 250, None),
    (True, 100, None),
    (True, 50, None),
    (True, 25, None),
    (True, 10, None),
    (True, 100, 0),
    (False, 1000, None),
    (False, 1000, 10),
    (False, 1000, 0),
)
"""Exactly once, `commit.interval.ms`, and `linger.ms` (None: the default)."""
PAGE = ROOT / "docs" / "benchmarks.md"
BEGIN, END = "<!-- latency: begin -->", "<!-- latency: end -->"


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds of the second half of a run, and the processor time of the program in seconds per second."""

    p50: float
    p99: float
    longest: float
    processors: float


@dataclass(frozen=True, slots=True)
class Trial:
    """A run of one program."""

    program: str
    eos: bool
    rate: int
    commit_ms: int
    linger_ms: int | None = None


NOTHING = [""] * 4
"""Cells of a program that was not measured."""
Results = dict[Trial, Latency | None]
"""None: the program did not keep up."""


def main(
    rate: Annotated[
        list[int] | None, typer.Option(min=100, help="Records a second; repeat for several. Default: 2000, 20000, 100000.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=4, help="Seconds of each run.")] = 20,
    beside: Annotated[bool, typer.Option(help="Measure Kafka Streams too, which takes a JDK.")] = True,
    settings: Annotated[bool, typer.Option(help="Measure what commit.interval.ms and linger.ms change.")] = True,
    bootstrap: Annotated[str | None, typer.Option(help="A broker to use in place of one started for this.")] = None,
    write: Annotated[bool, typer.Option("--write", help=f"Put the tables into {PAGE.name}.")] = False,
) -> None:
    """Measure the time from a record to its result. Exit status 1 if a result is wrong or a program fails."""
    console = stdout_console()
    programs = (PENSTOCK, BESIDE) if beside else (PENSTOCK,)
    of_rates = [Trial(program, eos, each, COMMIT_MS[eos]) for eos in (True, False) for each in rate or RATES for program in programs]
    of_settings = [Trial(PENSTOCK, eos, SETTINGS_RATE, commit_ms, linger_ms) for eos, commit_ms, linger_ms in SETTINGS if settings]
    try:
        commands = {name: PROGRAMS[name].command() for name in programs}
        with broker_for(bootstrap, console) as servers:
            rates, others = (
                {trial: _measure(console, servers, trial, commands[trial.program], seconds) for trial in trials}
                for trials in (of_rates, of_settings)
            )
    except (BrokerError, JarsError, MeasurementError) as error:
        console.print(f"[red]{error}[/red]", soft_wrap=True)
        raise typer.Exit(1) from error
    shown = text(rates, others, seconds)
    console.print(shown, soft_wrap=True, markup=False)
    if write:
        put(PAGE, BEGIN, shown, END)


def _measure(console: Console, servers: str, trial: Trial, command: Sequence[str], seconds: float) -> Latency | None:
    name = f"bench-latency-{uuid.uuid4().hex[:8]}"
    source, output = f"{name}-input", f"{name}-output"
    for topic in (source, output):
        create_topic(servers, topic)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as state, tempfile.TemporaryFile() as errors:
        run = Run("count", trial.eos, trial.commit_ms, False, name, servers, state, source, output, linger_ms=trial.linger_ms)
        environment = {**os.environ, "BENCH_SPEC": msgspec.json.encode(run).decode(), "PYTHONPATH": str(ROOT)}
        what = f"{trial.program}, {_guarantee(trial)}, {trial.rate:,} records/s, commit.interval.ms = {trial.commit_ms}"
        with console.status(what), subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, env=environment) as process:
            try:
                found = _latency(servers, source, output, trial.rate, seconds, process)
            except MeasurementError as error:
                errors.seek(0)
                raise MeasurementError(f"{what}: {error}\n{errors.read()[-2000:].decode(errors='replace')}") from error
            finally:
                end(process)
    console.print(f"{what}: {'does not keep up' if found is None else f'p50 {found.p50:.0f}, p99 {found.p99:.0f} ms'}")
    return found


def _latency(servers: str, source: str, output: str, rate: int, seconds: float, process: subprocess.Popen[bytes]) -> Latency | None:
    """Return the latencies of one run, whose program was started. Raises MeasurementError."""
    check, arrivals = EachOnce(KEYS), Arrivals()

    def note(message: Message) -> None:
        check.note(message)
        arrivals.note(message)

    load = Load(servers, source, KEYS, rate)
    watched = psutil.Process(process.pid)
    with Watch(servers, output, PARTITIONS, note) as watch:
        load.preload()
        _wait_for(lambda: watch.records >= load.records, READY_SECONDS, process, "the first results")
        with load:
            time.sleep(seconds / 2)
            arrivals.since_ms = time.time() * 1000
            began, used = time.monotonic(), sum(watched.cpu_times()[:2])
            time.sleep(seconds / 2)
            processors = (sum(watched.cpu_times()[:2]) - used) / (time.monotonic() - began)
        ended = time.monotonic()
        _wait_for(lambda: watch.records >= load.records, READY_SECONDS, process, "the last results")
        kept_up = time.monotonic() - ended <= LATE_SECONDS
    if check.wrong or watch.records != load.records:
        raise MeasurementError(f"{check.wrong} results are not the next of their key, {watch.records} came of {load.records} records")
    return arrivals.latency(processors) if kept_up else None


class Arrivals:
    """Latencies of records that were written after `since_ms`."""

    def __init__(self) -> None:
        self.since_ms = float("inf")
        self.times = array("d")
        """Milliseconds from record to result."""

    def note(self, message: Message) -> None:
        """Note a result that has just arrived; its timestamp is the record's."""
        written = message.timestamp()[1]
        if written >= self.since_ms:
            self.times.append(time.time() * 1000 - written)

    def latency(self, processors: float) -> Latency:
        """Return the percentiles. Raises MeasurementError without any result."""
        times = sorted(self.times)
        if not times:
            raise MeasurementError("no result came in the second half")
        return Latency(times[len(times) // 2], times[len(times) * 99 // 100], times[-1], processors)


def _wait_for(done: Callable[[], bool], seconds: float, process: subprocess.Popen[bytes], what: str) -> None:
    until = time.monotonic() + seconds
    while not done():
        if process.poll() is not None:
            raise MeasurementError(f"the program ended with status {process.returncode}")
        if time.monotonic() > until:
            raise MeasurementError(f"{what} did not come within {seconds:.0f} s")
        time.sleep(0.05)


def _guarantee(trial: Trial) -> str:
    return "exactly once" if trial.eos else "at least once"


def text(rates: Results, settings: Results, seconds: float) -> str:
    """Return the tables for the page, in Markdown."""
    lines = [
        f"Milliseconds from record to result, of the second half of {seconds:.0f} s; processors used:",
        "",
        "| | records/s | p50 | p99 | longest | processors | Kafka Streams: p50 | p99 | longest | processors |",
        f"|{'---|' * 10}",
    ]
    for trial in (trial for trial in rates if trial.program == PENSTOCK):
        other = replace(trial, program=BESIDE)
        cells = [*_cells(rates[trial]), *(_cells(rates[other]) if other in rates else NOTHING)]
        lines.append(_line([_guarantee(trial), f"{trial.rate:,}", *cells]))
    if settings:
        lines += [
            "",
            f"With other settings, at {SETTINGS_RATE:,} records/s:",
            "",
            "| | `commit.interval.ms` | `linger.ms` | p50 | p99 | longest | processors |",
            f"|{'---|' * 7}",
        ]
    for trial in settings:
        linger = "default" if trial.linger_ms is None else str(trial.linger_ms)
        lines.append(_line([_guarantee(trial), str(trial.commit_ms), linger, *_cells(settings[trial])]))
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"|{''.join(f' {cell} |' if cell else ' |' for cell in cells)}"


def _cells(found: Latency | None) -> list[str]:
    if found is None:
        return ["does not keep up", *NOTHING[1:]]
    return [f"{found.p50:.0f}", f"{found.p99:.0f}", f"{found.longest:.0f}", f"{found.processors:.2f}"]
