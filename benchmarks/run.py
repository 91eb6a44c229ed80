"""`make bench`: compares the engine with a hand-written loop, and on request with other engines, on the same broker in the same run, for
each kind of operator, under both guarantees, with and without the cache; and measures nanoseconds per record and step.

Absolute figures of one machine mean little; ratios inside one table mean more. The programs take turns, each time with a new group, a new
output topic and an empty state, and every result is compared with the expected one. On two cores the broker and the programs share them.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from benchmarks import run_tables, steps
from benchmarks.brokers import broker_for
from benchmarks.data import KEYS, TABLE_SEED, create_topic, profiles
from benchmarks.data import records as records_of
from benchmarks.data import write as write_rows
from benchmarks.measure import Measurement, MeasurementError, measure
from benchmarks.peers.programs import ALWAYS, PROGRAMS, Program
from benchmarks.run_tables import COMMIT_MS, PAGE, PLOT, WORKLOADS, Results, Workload
from benchmarks.truth import Truth, truth
from benchmarks.workloads import Run
from penstock.orchestration.drawing.console import stdout_console
from penstock.orchestration.embedded.jars import JarsError
from penstock.orchestration.embedded.kafka import BrokerError

TIMEOUT_SECONDS = 900.0
_BESIDE = [name for name in PROGRAMS if name not in ALWAYS]


def main(
    context: typer.Context,
    records: Annotated[int, typer.Option(min=1000, help="Records in the input; 5000000 shows how speed holds up.")] = 200_000,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each program and workload; the table shows the median.")] = 1,
    workload: Annotated[list[str] | None, typer.Option(help=f"Any of {', '.join(WORKLOADS)}; repeat for several. Default: all.")] = None,
    beside: Annotated[
        list[str] | None, typer.Option(help=f"Measure {' or '.join(_BESIDE)} too; repeat for both. Installs them for this user.")
    ] = None,
    bootstrap: Annotated[str | None, typer.Option(help="A broker to use in place of one started for this.")] = None,
    write: Annotated[bool, typer.Option("--write", help=f"Put table and plot into {PAGE.name} and {PLOT.name}.")] = False,
    only_steps: Annotated[bool, typer.Option("--only-steps", help="Only nanoseconds per record and step.")] = False,
) -> None:
    """Measure the engine against a hand-written loop, in the same run. Exit status 1 if a result is wrong or a program fails.

    Without a command: records per second by kind of operator, and nanoseconds per record and step of a count. The commands measure state.
    """
    if context.invoked_subcommand is not None:
        return
    console = stdout_console()
    _require_known("--workload", workload, list(WORKLOADS))
    _require_known("--beside", beside, _BESIDE)
    programs = [PROGRAMS[name] for name in (*ALWAYS, *(beside or ()))]
    try:
        commands = {program: program.command() for program in programs}
        with broker_for(bootstrap, console) as servers:
            results = {} if only_steps else _measure_all(console, servers, records, repeats, workload or list(WORKLOADS), commands)
            if results:
                console.print(run_tables.shown(results, records))
            if results and write:
                run_tables.write(results, records, repeats)
            console.print(steps.table(servers, console))
    except (BrokerError, JarsError, MeasurementError) as error:
        console.print(f"[red]{error}[/red]", soft_wrap=True)
        raise typer.Exit(1) from error
    wrong = [f"{workload}, {program}: {each.wrong} keys" for (workload, program), runs in results.items() for each in runs if each.wrong]
    if wrong:
        console.print(f"[red]results are wrong: {'; '.join(wrong)}[/red]")
        raise typer.Exit(1)
    if results:
        console.print("Every result of every run is right.")


def _require_known(option: str, given: Sequence[str] | None, known: Sequence[str]) -> None:
    unknown = sorted(set(given or ()) - set(known))
    if unknown:
        raise typer.BadParameter(f"{', '.join(unknown)}: known are {', '.join(known)}", param_hint=option)


@dataclass(frozen=True, slots=True)
class Inputs:
    """Topics of a series of runs, and the number of records in their streams."""

    servers: str
    records: int
    events: str
    other: str
    table: str

    def beside(self, kind: str) -> str:
        """Return the topic that a kind reads besides the events."""
        return {"join": self.table, "foreign-key-join": self.table, "stream-join": self.other}.get(kind, "")


def _measure_all(
    console: Console, servers: str, records: int, repeats: int, workloads: Sequence[str], commands: Mapping[Program, list[str]]
) -> Results:
    kinds = {WORKLOADS[name].kind for name in workloads}
    results: Results = {}
    columns = (TextColumn("{task.description:<42}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        inputs: dict[int, Inputs] = {}
        truths: dict[tuple[str, int], Truth] = {}
        for turn, name, program in product(range(repeats), workloads, commands):
            kind = WORKLOADS[name].kind
            if kind in program.lacks:
                continue
            count = min(records, program.most_records or records)
            if count not in inputs:
                inputs[count] = _load(servers, count, kinds, progress)
            if (kind, count) not in truths:
                truths[kind, count] = truth(kind, count)
            right = truths[kind, count]
            bar = progress.add_task(f"{name}, {program.name}, {turn + 1} of {repeats}", total=right.total)
            app = f"{inputs[count].events}-{name}-{program.name}-{turn}"
            found = _measure_one(inputs[count], app, WORKLOADS[name], commands[program], right, progress, bar)
            results.setdefault((name, program.name), []).append(found)
    return results


def _load(servers: str, count: int, kinds: Collection[str], progress: Progress) -> Inputs:
    """Write the topics that the kinds read."""
    base = f"bench-input-{uuid.uuid4().hex[:8]}"
    inputs = Inputs(servers, count, base, f"{base}-other", f"{base}-table")
    sources = [(inputs.events, records_of(count), count)]
    beside = {inputs.beside(kind) for kind in kinds}
    if inputs.other in beside:
        sources.append((inputs.other, records_of(count, TABLE_SEED), count))
    if inputs.table in beside:
        sources.append((inputs.table, profiles(), KEYS))
    loading = progress.add_task("loading the input", total=sum(rows for *_, rows in sources))
    done = 0
    for topic, rows, number in sources:
        create_topic(inputs.servers, topic)
        write_rows(inputs.servers, topic, rows, number, lambda written, done=done: progress.update(loading, completed=done + written))  # type: ignore[misc]
        done += number
    return inputs


def _measure_one(
    inputs: Inputs, app: str, workload: Workload, command: Sequence[str], right: Truth, progress: Progress, bar: TaskID
) -> Measurement:
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
        return measure(command, run, right, TIMEOUT_SECONDS, lambda done: progress.update(bar, completed=done))
