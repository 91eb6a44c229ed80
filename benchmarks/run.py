"""`make bench`: the engine beside a loop written by hand, on the same broker in the same run, for each kind of operator, under both
guarantees, with and without the cache; and nanoseconds per record and step.

Figures of one machine and moment say little; ratios inside one table say more. The programs take turns, each time with a new group, a new
output topic and an empty state, and every result is compared with the truth. On two cores the broker shares them with the programs.
"""

from __future__ import annotations

import statistics
import tempfile
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks import steps
from benchmarks.brokers import broker_for
from benchmarks.data import KEYS, TABLE_SEED, create_topic, profiles
from benchmarks.data import records as records_of
from benchmarks.data import write as write_rows
from benchmarks.measure import ROOT, Measurement, MeasurementError, measure
from benchmarks.plot import Bars, bars
from benchmarks.truth import Truth, truth
from benchmarks.workloads import Run
from orchestration.embedded.kafka import BrokerError

PROGRAMS = {"penstock": "benchmarks.peer", "hand-written": "benchmarks.handwritten"}
COMMIT_MS = {True: 100, False: 1000}
"""By whether it is exactly once."""
PAGE, PLOT = ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "benchmarks.svg"
BEGIN, END = "<!-- operators: begin -->", "<!-- operators: end -->"


@dataclass(frozen=True, slots=True)
class Workload:
    """A kind of `workloads.py`. `cache`: updates are folded until the commit."""

    kind: str
    eos: bool
    cache: bool = True

    @property
    def name(self) -> str:
        return f"{self.kind}-{'eos' if self.eos else 'alo'}{'' if self.cache else '-nocache'}"


KINDS = ("stateless", "count", "window", "join", "stream-join")
WORKLOADS = {
    each.name: each
    for kind in KINDS
    for each in (
        Workload(kind, True),
        *([Workload(kind, True, cache=False)] if kind in ("count", "window") else []),
        Workload(kind, False),
    )
}
TIMEOUT_SECONDS = 900.0

Results = dict[tuple[str, str], list[Measurement]]


def main(
    context: typer.Context,
    records: Annotated[int, typer.Option(min=1000, help="Records in the input; 5000000 shows how speed holds up.")] = 200_000,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each program and workload; the table shows the median.")] = 1,
    workload: Annotated[list[str] | None, typer.Option(help=f"Any of {', '.join(WORKLOADS)}; repeat for several. Default: all.")] = None,
    bootstrap: Annotated[str | None, typer.Option(help="A broker to use in place of one started for this.")] = None,
    write: Annotated[bool, typer.Option("--write", help=f"Put table and plot into {PAGE.name} and {PLOT.name}.")] = False,
    only_steps: Annotated[bool, typer.Option("--only-steps", help="Only nanoseconds per record and step.")] = False,
) -> None:
    """Measure the engine against a hand-written loop, in the same run. Exit status 1 if a result is wrong or a program fails.

    Without a command: records per second by kind of operator, and nanoseconds per record and step of a count. The commands measure state.
    """
    if context.invoked_subcommand is not None:
        return
    console = Console()
    unknown = sorted(set(workload or ()) - set(WORKLOADS))
    if unknown:
        raise typer.BadParameter(f"{', '.join(unknown)}: known are {', '.join(WORKLOADS)}", param_hint="--workload")
    try:
        with broker_for(bootstrap, console) as servers:
            results = {} if only_steps else _measure_all(console, servers, records, repeats, workload or list(WORKLOADS))
            if results:
                console.print(_table(results, records))
            if results and write:
                _write(results, records, repeats)
            console.print(steps.table(servers, console))
    except (BrokerError, MeasurementError) as error:
        console.print(f"[red]{error}[/red]", soft_wrap=True)
        raise typer.Exit(1) from error
    wrong = [f"{workload}, {program}: {each.wrong} keys" for (workload, program), runs in results.items() for each in runs if each.wrong]
    if wrong:
        console.print(f"[red]results are wrong: {'; '.join(wrong)}[/red]")
        raise typer.Exit(1)
    if results:
        console.print("Every result of every run is right.")


@dataclass(frozen=True, slots=True)
class Inputs:
    """Topics of a series of runs."""

    servers: str
    events: str
    other: str
    table: str

    def beside(self, kind: str) -> str:
        """What a kind reads besides the events."""
        return {"join": self.table, "stream-join": self.other}.get(kind, "")


def _measure_all(console: Console, servers: str, records: int, repeats: int, workloads: Sequence[str]) -> Results:
    base = f"bench-input-{uuid.uuid4().hex[:8]}"
    inputs = Inputs(servers, base, f"{base}-other", f"{base}-table")
    kinds = {WORKLOADS[name].kind for name in workloads}
    results: Results = {}
    columns = (TextColumn("{task.description:<42}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        _load(inputs, records, kinds, progress)
        truths: dict[str, Truth] = {}
        for turn in range(repeats):
            for name in workloads:
                kind = WORKLOADS[name].kind
                if kind not in truths:
                    truths[kind] = truth(kind, records)
                for program, module in PROGRAMS.items():
                    bar = progress.add_task(f"{name}, {program}, {turn + 1} of {repeats}", total=truths[kind].total)
                    app = f"{base}-{name}-{program}-{turn}"
                    found = _measure_one(inputs, app, WORKLOADS[name], module, truths[kind], progress, bar)
                    results.setdefault((name, program), []).append(found)
    return results


def _load(inputs: Inputs, count: int, kinds: Collection[str], progress: Progress) -> None:
    """Writes the topics that the kinds read."""
    sources = [(inputs.events, records_of(count), count)]
    if "stream-join" in kinds:
        sources.append((inputs.other, records_of(count, TABLE_SEED), count))
    if "join" in kinds:
        sources.append((inputs.table, profiles(), KEYS))
    loading = progress.add_task("loading the input", total=sum(rows for *_, rows in sources))
    done = 0
    for topic, rows, number in sources:
        create_topic(inputs.servers, topic)
        write_rows(inputs.servers, topic, rows, number, lambda written, done=done: progress.update(loading, completed=done + written))  # type: ignore[misc]
        done += number


def _measure_one(inputs: Inputs, app: str, workload: Workload, module: str, right: Truth, progress: Progress, bar: TaskID) -> Measurement:
    output = f"{app}-output"
    create_topic(inputs.servers, output)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-state-") as state:
        run = Run(
            workload.kind,
            workload.eos,
            COMMIT_MS[workload.eos],
            workload.cache,
            app,
            inputs.servers,
            state,
            inputs.events,
            output,
            inputs.beside(workload.kind),
        )
        return measure(module, run, right, TIMEOUT_SECONDS, lambda done: progress.update(bar, completed=done))


def _write(results: Results, records: int, repeats: int) -> None:
    """The table and the plot into docs/."""
    lines = [
        f"{records:,} records, the median of {repeats}:\n",
        "| | krec/s | by hand | ratio | CPU s/M | by hand | ratio | RSS MiB | out/rec | by hand |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    names = list(dict.fromkeys(name for name, _ in results))
    ratios = []
    for name in names:
        ours, by_hand = results[name, "penstock"], results[name, "hand-written"]
        rate, other = (statistics.median(each.rate for each in runs) for runs in (ours, by_hand))
        cpu, other_cpu = (statistics.median(each.cpu_seconds / each.records for each in runs) * 1e6 for runs in (ours, by_hand))
        ratios.append(rate / other)
        rss = max(each.rss_bytes for each in ours) / 2**20
        out, other_out = (runs[-1].updates / runs[-1].records for runs in (ours, by_hand))
        lines.append(
            f"| {name} | {rate / 1000:.0f} | {other / 1000:.0f} | **{rate / other:.2f}** "
            f"| {cpu:.2f} | {other_cpu:.2f} | {other_cpu / cpu:.2f} | {rss:.0f} | {out:.2f} | {other_out:.2f} |"
        )
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    text = "\n".join(lines)
    PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")
    by_kind = [[(name, ratio) for name, ratio in zip(names, ratios, strict=True) if WORKLOADS[name].kind == kind] for kind in KINDS]
    charts = [
        Bars(
            f"{kind}: ratio to the program by hand", [name.removeprefix(f"{kind}-") for name, _ in of_kind], [ratio for _, ratio in of_kind]
        )
        for kind, of_kind in zip(KINDS, by_kind, strict=True)
        if of_kind
    ]
    PLOT.write_text(bars(charts), encoding="utf-8")


def _table(results: Results, records: int) -> Table:
    table = Table(
        title=f"{records:,} records; commits every {COMMIT_MS[True]} ms exactly once (eos), {COMMIT_MS[False]} ms at least once",
        caption="krec/s: thousand records per second, median (least–most); ratio: to the hand-written loop; "
        "CPU s/M: processor seconds per million records; out/rec: output records per input record",
        padding=(0, 1, 0, 0),
        pad_edge=False,
        box=box.SIMPLE,
    )
    table.add_column("", no_wrap=True)
    for heading in ("krec/s", "2nd half", "ratio", "CPU s/M", "RSS MiB", "out/rec"):
        table.add_column(heading, justify="right", no_wrap=True)
    for workload in dict.fromkeys(name for name, _ in results):
        table.add_row(f"[bold]{workload}[/bold]")
        by_hand = statistics.median(each.rate for each in results[workload, "hand-written"])
        for program in PROGRAMS:
            table.add_row(f"  {program}", *_row(results[workload, program], by_hand))
        table.add_section()
    return table


def _row(runs: Sequence[Measurement], by_hand: float) -> tuple[str, ...]:
    rates = sorted(each.rate / 1000 for each in runs)
    rate = statistics.median(rates)
    records = runs[0].records
    return (
        f"{rate:.0f} ({rates[0]:.0f}–{rates[-1]:.0f})",
        f"{statistics.median(each.second_half for each in runs) / 1000:.0f}",
        f"{rate * 1000 / by_hand:.2f}",
        f"{statistics.median(each.cpu_seconds for each in runs) / records * 1e6:.2f}",
        f"{max(each.rss_bytes for each in runs) / 2**20:.0f}",
        f"{runs[-1].updates / records:.2f}",
    )
