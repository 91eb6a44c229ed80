"""`python -m benchmarks wide`: state that is larger than its caches, compared with Kafka Streams.

All keys are equally frequent, so the next record's state is rarely in memory. The table shows how fast state is read from
RocksDB and written to it, and, by the rates of the first and the last tenth of the input, how the speed changes while it grows. Every
update is written (no record cache), exactly once, with a commit every 100 ms.

The outputs of one key in `_SAMPLED`, and the number of all outputs, are compared with the expected ones: expected values of all keys
would take more memory than the state.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.brokers import broker_for
from benchmarks.data import create_topic, profiles, wide_records
from benchmarks.data import write as write_rows
from benchmarks.measure import ROOT, Measurement, MeasurementError, measure
from benchmarks.pages import put
from benchmarks.peers.programs import PENSTOCK, PROGRAMS
from benchmarks.run_tables import COMMIT_MS
from benchmarks.truth import DOUBLE, LONG, Output, amount
from benchmarks.workloads import Run
from penstock.orchestration.drawing.console import stdout_console
from penstock.orchestration.embedded.jars import JarsError
from penstock.orchestration.embedded.kafka import BrokerError

KINDS = ("count", "window", "join")
BESIDE = "kafka-streams"
WINDOW_MS = 3_600_000
"""Long enough for the windows of most keys to be open at the same time."""
RECORDS_PER_KEY = 2
TIMEOUT_SECONDS = 3_600.0
PAGE = ROOT / "docs" / "benchmarks.md"
BEGIN, END = "<!-- wide: begin -->", "<!-- wide: end -->"
_SAMPLED = 16


@dataclass(frozen=True, slots=True)
class Rates:
    """Records per second: of all, of the first tenth and of the last."""

    all: float
    first: float
    last: float


@dataclass(frozen=True, slots=True)
class Result:
    """A run. `begun`: seconds from the start of the process until the first event was committed; a join reads its table before."""

    measurement: Measurement
    rates: Rates
    begun: float


Results = dict[tuple[int, str, str], list[Result]]
"""By number of keys, kind and program."""


class SampledTruth:
    """The last value (a count, a sum) or the number (joined records) of each key of the sample. Every record has one output."""

    def __init__(self, kind: str, total: int, keys: int) -> None:
        self.total = total
        self._counts_outputs = kind == "join"
        numbers: Counter[bytes] = Counter()
        sums: dict[bytes, float] = {}
        for key, value, at in wide_records(total, keys):
            if int(key[1:]) % _SAMPLED:
                continue
            if kind == "window":
                name = f"{key}@{at // WINDOW_MS * WINDOW_MS}".encode()
                sums[name] = sums.get(name, 0.0) + amount(value)
            else:
                numbers[key.encode()] += 1
        pack = (lambda number: number) if self._counts_outputs else LONG.pack
        self._right: dict[bytes, object] = {key: pack(number) for key, number in numbers.items()}
        self._right |= {key: DOUBLE.pack(each) for key, each in sums.items()}

    def look(self, outputs: Iterator[Output]) -> tuple[int, int]:
        """Return counts like `truth.Truth`."""
        found: dict[bytes, object] = {}
        numbers: Counter[bytes] = Counter()
        updates = 0
        for key, value in outputs:
            updates += 1
            if int(key[1:9]) % _SAMPLED == 0:
                numbers[key] += 1
                found[key] = value
        if self._counts_outputs:
            found = dict(numbers)
        wrong = sum(found.get(key) != self._right.get(key) for key in {*found, *self._right})
        return updates, wrong + abs(updates - self.total)


def main(
    keys: Annotated[list[int] | None, typer.Option(min=1000, help="Keys; repeat for several. Default: 3000000 and 10000000.")] = None,
    records: Annotated[int | None, typer.Option(min=1000, help=f"Records. Default: {RECORDS_PER_KEY} of each key.")] = None,
    kind: Annotated[list[str] | None, typer.Option(help=f"Any of {', '.join(KINDS)}; repeat for several. Default: all.")] = None,
    beside: Annotated[bool, typer.Option(help="Measure Kafka Streams too, which takes a JDK.")] = True,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each program; the table shows the median.")] = 1,
    bootstrap: Annotated[str | None, typer.Option(help="A broker to use in place of one started for this.")] = None,
    write: Annotated[bool, typer.Option("--write", help=f"Put the table into {PAGE.name}.")] = False,
) -> None:
    """Measure state that is larger than its caches. Exit status 1 if a result is wrong or a program fails."""
    kinds = kind or list(KINDS)
    if unknown := sorted(set(kinds) - set(KINDS)):
        raise typer.BadParameter(f"{', '.join(unknown)}: known are {', '.join(KINDS)}", param_hint="--kind")
    console = stdout_console()
    results: Results = {}
    try:
        commands = {name: PROGRAMS[name].command() for name in ((PENSTOCK, BESIDE) if beside else (PENSTOCK,))}
        with broker_for(bootstrap, console) as servers:
            for number in keys or (3_000_000, 10_000_000):
                _measure_all(console, servers, number, records or number * RECORDS_PER_KEY, kinds, commands, repeats, results)
    except (BrokerError, JarsError, MeasurementError) as error:
        console.print(f"[red]{error}[/red]", soft_wrap=True)
        raise typer.Exit(1) from error
    console.print(_shown(results))
    if write:
        put(PAGE, BEGIN, text(results), END)
    wrong = [f"{kind} over {number:,} keys, {program}" for (number, kind, program), runs in results.items() if _wrong(runs)]
    if wrong:
        console.print(f"[red]results are wrong: {'; '.join(wrong)}[/red]")
        raise typer.Exit(1)
    console.print("Every result of every run is right.")


def _wrong(runs: list[Result]) -> int:
    return sum(each.measurement.wrong for each in runs)


def _measure_all(
    console: Console,
    servers: str,
    keys: int,
    records: int,
    kinds: list[str],
    commands: dict[str, list[str]],
    repeats: int,
    results: Results,
) -> None:
    base = f"bench-wide-{uuid.uuid4().hex[:8]}"
    columns = (TextColumn("{task.description:<42}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        sources = [(base, wide_records(records, keys), records)]
        if "join" in kinds:
            sources.append((f"{base}-table", profiles(keys), keys))
        for topic, rows, number in sources:
            create_topic(servers, topic)
            loading = progress.add_task(f"writing {topic}", total=number)
            write_rows(servers, topic, rows, number, partial(_show, progress, loading))
        for kind in kinds:
            right = SampledTruth(kind, records, keys)
            for turn, (program, command) in product(range(repeats), commands.items()):
                bar = progress.add_task(f"{kind}, {keys:,} keys, {program}, {turn + 1} of {repeats}", total=records)
                app = f"{base}-{kind}-{program}-{turn}"
                found = _measure_one(servers, base, app, kind, command, right, partial(_show, progress, bar))
                results.setdefault((keys, kind, program), []).append(found)


def _show(progress: Progress, bar: TaskID, done: int) -> None:
    progress.update(bar, completed=done)


def _measure_one(
    servers: str, topic: str, app: str, kind: str, command: list[str], right: SampledTruth, progress: Callable[[int], object]
) -> Result:
    output, looks = f"{app}-output", list[tuple[float, int]]()
    create_topic(servers, output)

    def look(done: int) -> None:
        looks.append((time.monotonic(), done))
        progress(done)

    with tempfile.TemporaryDirectory(prefix="penstock-bench-state-") as state:
        table = f"{topic}-table" if kind == "join" else ""
        run = Run(kind, True, COMMIT_MS[True], False, app, servers, state, topic, output, table, window_ms=WINDOW_MS)
        started = time.monotonic()
        measurement = measure(command, run, right, TIMEOUT_SECONDS, look)
    return Result(measurement, rates(looks, right.total), next(at for at, done in looks if done) - started)


def rates(looks: Sequence[tuple[float, int]], total: int) -> Rates:
    """Compute rates from samples, each a time in seconds and a number of processed records; the clock starts with the first that has
    any."""
    seen = [look for look in looks if look[1]]
    return Rates(
        _rate(seen[0], seen[-1]),
        _rate(seen[0], next(look for look in seen if look[1] * 10 >= total)),
        _rate(next(look for look in seen if look[1] * 10 >= total * 9), seen[-1]),
    )


def _rate(first: tuple[float, int], last: tuple[float, int]) -> float:
    """Return records per second between two samples; 0 if they are the same, in a very short run."""
    return (last[1] - first[1]) / (last[0] - first[0]) if last[0] > first[0] else 0.0


_HEADINGS = ("krec/s", "first tenth", "last tenth", "last/first", "ratio", "CPU s/M", "RSS MiB", "begun, s")


def _rows(results: Results) -> Iterator[tuple[str, ...]]:
    for (keys, kind, program), runs in results.items():
        beside = results.get((keys, kind, BESIDE))
        rate, first, last = (statistics.median(getattr(each.rates, name) for each in runs) for name in ("all", "first", "last"))
        yield (
            f"{kind}, {keys // 1_000_000} M keys, {program}" if keys >= 1_000_000 else f"{kind}, {keys:,} keys, {program}",
            f"{rate / 1000:.0f}",
            f"{first / 1000:.0f}",
            f"{last / 1000:.0f}",
            f"{last / first:.2f}" if first else "–",
            f"{rate / statistics.median(each.rates.all for each in beside):.2f}" if beside else "–",
            f"{statistics.median(each.measurement.cpu_seconds / each.measurement.records for each in runs) * 1e6:.2f}",
            f"{max(each.measurement.rss_bytes for each in runs) / 2**20:.0f}",
            f"{statistics.median(each.begun for each in runs):.1f}",
        )


def text(results: Results) -> str:
    """Return the table for the page, in Markdown."""
    lines = [f"| | {' | '.join(_HEADINGS)} |", f"|{'---|' * (1 + len(_HEADINGS))}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in _rows(results))])


def _shown(results: Results) -> Table:
    table = Table(
        title=f"State larger than its caches; exactly once, commits every {COMMIT_MS[True]} ms, every update written",
        caption=f"krec/s: thousand records per second; ratio: to {BESIDE}; begun: seconds from the start of the process to the first event "
        "committed (a join reads its table before)",
        box=box.SIMPLE,
    )
    table.add_column("", no_wrap=True)
    for heading in _HEADINGS:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in _rows(results):
        table.add_row(*row)
    return table
