"""`make bench`: the engine beside a loop written by hand, on the same broker in the same run, and nanoseconds per record and step.

Figures of one machine and moment say little; ratios inside one table say more. The programs take turns, each time with a new group, a new
output topic and an empty state, and every result is compared with the truth. On two cores the broker shares them with the programs.
"""

from __future__ import annotations

import statistics
import tempfile
import uuid
from collections import Counter
from collections.abc import Sequence
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks import steps
from benchmarks.brokers import broker_for
from benchmarks.data import create_topic, load
from benchmarks.measure import Measurement, MeasurementError, measure
from benchmarks.workloads import Run
from orchestration.embedded.kafka import BrokerError

PROGRAMS = {"penstock": "benchmarks.peer", "hand-written": "benchmarks.handwritten"}
WORKLOADS = {"count-eos": True, "count-eos-nocache": False}
"""Name, and whether updates are folded by the cache."""
COMMIT_MS = 100
TIMEOUT_SECONDS = 900.0

Results = dict[tuple[str, str], list[Measurement]]


def main(
    context: typer.Context,
    records: Annotated[int, typer.Option(min=1000, help="Records in the input; 5000000 shows how speed holds up.")] = 1_000_000,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each program and workload; the table shows the median.")] = 3,
    workload: Annotated[list[str] | None, typer.Option(help=f"Any of {', '.join(WORKLOADS)}; repeat for several. Default: all.")] = None,
    bootstrap: Annotated[str | None, typer.Option(help="A broker to use in place of one started for this.")] = None,
    only_steps: Annotated[bool, typer.Option("--only-steps", help="Only nanoseconds per record and step.")] = False,
) -> None:
    """Measure the engine against a hand-written loop, in the same run. Exit status 1 if a result is wrong or a program fails.

    Without a command: records per second of a count per key, and nanoseconds per record and step. The commands measure state.
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
            console.print(steps.table(servers, console))
    except (BrokerError, MeasurementError) as error:
        console.print(f"[red]{error}[/red]", soft_wrap=True)
        raise typer.Exit(1) from error
    wrong = [f"{workload}, {program}: {each.wrong} keys" for (workload, program), runs in results.items() for each in runs if each.wrong]
    if wrong:
        console.print(f"[red]counts are wrong: {'; '.join(wrong)}[/red]")
        raise typer.Exit(1)
    if results:
        console.print("Every count of every run is right.")


def _measure_all(console: Console, servers: str, records: int, repeats: int, workloads: Sequence[str]) -> Results:
    topic = f"bench-input-{uuid.uuid4().hex[:8]}"
    create_topic(servers, topic)
    results: Results = {}
    columns = (TextColumn("{task.description:<42}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        loading = progress.add_task("loading the input", total=records)
        truth = load(servers, topic, records, lambda done: progress.update(loading, completed=done))
        for turn in range(repeats):
            for name in workloads:
                for program, module in PROGRAMS.items():
                    bar = progress.add_task(f"{name}, {program}, {turn + 1} of {repeats}", total=records)
                    app = f"{topic}-{name}-{program}-{turn}"
                    found = _measure_one(servers, topic, app, name, module, truth, progress, bar)
                    results.setdefault((name, program), []).append(found)
    return results


def _measure_one(
    servers: str, topic: str, app: str, workload: str, module: str, truth: Counter[bytes], progress: Progress, bar: TaskID
) -> Measurement:
    output = f"{app}-output"
    create_topic(servers, output)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-state-") as state:
        run = Run("count", True, COMMIT_MS, WORKLOADS[workload], app, servers, state, topic, output)
        return measure(module, run, truth, TIMEOUT_SECONDS, lambda done: progress.update(bar, completed=done))


def _table(results: Results, records: int) -> Table:
    table = Table(
        title=f"{records:,} records, exactly once, commits every {COMMIT_MS} ms",
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
