"""`make demo`: the example from end to end, on real input. `python -m examples.flight_board.demo --help` lists the options.

Kafka, Dagster; the first half of a year of flights by the program on Spark, the rest as a stream in a process of its own; a record that
cannot be read, and what becomes of it; a global table whose topic is recreated; the state as Spark tables; and the proof that the answers
are those that pandas finds in the same files. It plays in a home of its own (`.penstock/demo`), from the beginning each time, and leaves no
process behind.
"""

from __future__ import annotations

import signal
import time
from types import FrameType
from typing import Annotated

import typer
from confluent_kafka import KafkaException
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from sqlalchemy import select

from examples.flight_board import data, topology, truth
from examples.flight_board.data import FLIGHTS_IN_ALL, LoadError
from examples.flight_board.report import report
from examples.flight_board.stage import APPLICATION, Stage, StageError
from examples.flight_board.truth import Truth
from examples.flight_board.watch import Progress, StuckError, watch, watch_recovery
from penstock.assets.backfills import JOB as BACKFILL_JOB
from penstock.orchestration.alerts.incidents import GLOBAL_RECOVERY
from penstock.orchestration.commands.common import fail
from penstock.orchestration.database import ControlPlaneError
from penstock.orchestration.database.models import Alert, Event, RunBookRun, RunBookState, StepState
from penstock.orchestration.dead_letters.topic import dead_letter_topic, read_record
from penstock.orchestration.declarations.applications import Application, WrongDeclarationError
from penstock.orchestration.declarations.project_paths import ProjectPaths
from penstock.orchestration.embedded.dagster_server import DagsterError
from penstock.orchestration.embedded.jars import SPARK_KAFKA, JarsError, ensure_jars
from penstock.orchestration.embedded.java import use_java
from penstock.orchestration.embedded.kafka import BrokerError
from penstock.orchestration.instances.launcher import LaunchError
from penstock.orchestration.instances.operations import Operations
from penstock.runtime.model.errors import StreamsError
from penstock.runtime.model.events import EventKind

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_START_SECONDS = 180.0
_TABLES_SECONDS = 600.0
_BACKFILL_SECONDS = 900.0


class NotProvenError(Exception):
    """A result of the demo is wrong; the message says which."""


class Demo:
    """One run of the demo, from the broker to the report."""

    def __init__(self, stage: Stage, flights: int, out: Console) -> None:
        self._stage = stage
        self._flights = flights
        self._out = out

    def play(self) -> None:
        """Run all steps. Raises NotProvenError, and the errors of the steps."""
        operations = self._prepare()
        application = operations.applications.named(APPLICATION)
        self._start_with_history(application, operations)
        progress = self._replay(operations, application)
        self._recover(operations, application)
        self._make_tables()
        result = self._prove(operations, application)
        report(self._out, self._stage, operations, result, progress)

    def _prepare(self) -> Operations:
        out, stage = self._out, self._stage
        out.rule("[bold]1. Kafka, Dagster, the data")
        use_java()
        ensure_jars(SPARK_KAFKA)
        with out.status("Starting Kafka …"):
            status = stage.broker.start()
        out.print(f"Kafka runs at [bold]{status.bootstrap_servers}[/bold] (process {status.pid})")
        operations = stage.declare()
        stage.dagster.spawn()
        data.load_with_bar(status.bootstrap_servers, self._flights, out)
        out.print(f"{self._flights:,} flights and one record that was cut in half are on topic [bold]{topology.FLIGHTS}[/bold]")
        with out.status("Dagster is starting …"):
            stage.dagster.wait_until_ready(_START_SECONDS)
        out.print(f"Dagster's UI: [bold]{stage.dagster.url}[/bold]")
        return operations

    def _start_with_history(self, application: Application, operations: Operations) -> None:
        """The first half of the flights by the same program on Spark; the stream continues with the seed."""
        out, dagster = self._out, self._stage.dagster
        out.rule("[bold]2. The first half of the year on Spark, and the instance with its state")
        until = data.history_ends(self._flights)
        config = {"application": application.id, "until": until.strftime("%Y-%m-%dT%H:%M:%S")}
        run = dagster.launch(BACKFILL_JOB, config=config)
        out.print(f"Flights before {until:%Y-%m-%d %H:%M} UTC, by the application's own program: {dagster.run_url(run)}")
        with out.status("Spark runs the topology over its history …"):
            dagster.wait(run, _BACKFILL_SECONDS)
        for name in application.instances:
            row, tasks = operations.rows(name)
            out.print(f"{name} is [bold]{row.state}[/bold] as process {row.pid} with {len(tasks)} tasks; its log: {row.log_path}")

    def _replay(self, operations: Operations, application: Application) -> Progress:
        out = self._out
        out.rule("[bold]3. The rest as a stream, and a record that cannot be read")
        total = self._flights + 1
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("flights"), TimeElapsedColumn())
        latest = Progress(total)
        with Bars(*columns, console=out) as bars:
            bar = bars.add_task("Replaying 2013", total=total)

            def show(progress: Progress) -> None:
                nonlocal latest
                latest = progress
                paused = f", task {' '.join(progress.paused)} is paused" if progress.paused else ""
                bars.update(bar, completed=min(progress.done, total), description=f"Replaying 2013{paused}")

            for line in watch(operations, application, total, show):
                out.print(line)
        return latest

    def _recover(self, operations: Operations, application: Application) -> None:
        out, servers = self._out, application.bootstrap_servers
        out.rule("[bold]4. A global table whose topic is deleted and created again")
        out.print(f"Deleting the topic [bold]{topology.AIRLINES}[/bold] and loading it again, under the running instance")
        for line in watch_recovery(operations, application, lambda: data.recreate_airlines(servers)):
            out.print(line)

    def _make_tables(self) -> None:
        out, dagster = self._out, self._stage.dagster
        out.rule("[bold]5. The state as tables")
        run = dagster.launch("state_tables")
        out.print(f"Materialising [bold]hourly_delay[/bold] and [bold]carriers[/bold] with Spark: {dagster.run_url(run)}")
        with out.status("Spark is reading the stores …"):
            dagster.wait(run, _TABLES_SECONDS)
        checks = dagster.checks(run)
        for check in checks:
            out.print(
                f"{check.asset}: {check.name} {'[green]passed[/green]' if check.passed else '[red]failed[/red]'}: {check.description}"
            )
        failed = [check.asset for check in checks if not check.passed]
        if failed or len(checks) < 2:
            raise NotProvenError(f"the tables do not equal their changelogs: {', '.join(failed) or 'not all of them were checked'}")

    def _prove(self, operations: Operations, application: Application) -> Truth:
        """Return the results after checking them. Raises NotProvenError."""
        out = self._out
        out.rule("[bold]6. The proof")
        with out.status("Counting again with pandas …"):
            expected = truth.compute(self._flights)
            result = truth.read_results(application.bootstrap_servers, self._stage.paths.home / "outputs")
            wrong = truth.compare(expected, result)
            tables = truth.read_tables(self._stage.paths.home / "tables" / application.id, expected)
            wrong += [f"Spark table: {line}" for line in truth.compare(expected, tables)]
            wrong += repaired_as_promised(operations, application)
        if wrong:
            raise NotProvenError("\n".join(["the results are not those of the package's files:", *wrong]))
        united = f", {expected.carriers['UA']['flights']:,} of United" if "UA" in expected.carriers else ""
        out.print(
            f"[green]Equal[/green] to what pandas finds: {self._flights:,} flights of {len(expected.carriers)} carriers{united}; "
            f"{len(expected.hours):,} hours; {sum(expected.weather.values()):,} flights with their weather. So are both Spark tables."
        )
        return result


def repaired_as_promised(operations: Operations, application: Application) -> list[str]:
    """Return the problems with the repairs; empty if the bad record paused one task once and was kept unchanged, and one other alert was on
    the global table."""
    with operations.control_plane.reading() as session:
        kinds = [EventKind.TASK_PAUSED.value, EventKind.TASK_RESUMED.value]
        events = session.scalars(select(Event).where(Event.kind.in_(kinds)).order_by(Event.sequence)).all()
        runs = session.scalars(select(RunBookRun)).all()
        alerts = session.scalars(select(Alert)).all()
    wrong: list[str] = []
    if [event.kind for event in events] != kinds:
        wrong.append(f"events of pauses are {[event.kind for event in events]}, not one pause and one resume")
    if sorted(alert.kind for alert in alerts) != [GLOBAL_RECOVERY, EventKind.TASK_PAUSED.value]:
        wrong.append(f"alerts are {[alert.title for alert in alerts]}, not one on the pause and one on the global table")
    if len(runs) != 1 or runs[0].state != RunBookState.DONE.value or any(step.state != StepState.DONE.value for step in runs[0].steps):
        return [*wrong, f"run-books ended as {[(run.state, run.reason) for run in runs]}, not once as DONE"]
    kept = read_record(application.connection, dead_letter_topic(application.id), 0, 0)
    topic, partition, offset = runs[0].topic, runs[0].partition, runs[0].offset
    assert topic is not None and partition is not None and offset is not None  # every run of skip-record has the coordinates of its record
    bad = read_record(application.connection, topic, partition, offset)
    if kept is None or bad is None or (kept.key, kept.value) != (bad.key, bad.value):
        wrong.append(f"{dead_letter_topic(application.id)} does not hold the record as it was")
    return wrong


def main(
    once: Annotated[bool, typer.Option("--once", help="Exit when it is done, with status 0 only if every step succeeded.")] = False,
    flights: Annotated[
        int, typer.Option(min=100, max=FLIGHTS_IN_ALL, help="Number of flights, from the start of the year.")
    ] = FLIGHTS_IN_ALL,
    clear: Annotated[bool, typer.Option("--clear", help="Only stop the processes of an earlier demo, and delete its data.")] = False,
) -> None:
    """Run the flight board from end to end: Kafka, Dagster, a year of flights, repairs, Spark tables, the proof.

    It keeps its files in `.penstock/demo`, and deletes those of the previous demo first. Ctrl-C stops it and everything that it started.
    """
    out = Console(highlight=False, soft_wrap=True)
    for number in _SIGNALS:  # even if the caller ignores them, as shells do for background processes
        signal.signal(number, _interrupt)
    stage = Stage(ProjectPaths.find())
    try:
        with stage:
            if not clear:
                _play(stage, flights, once, out)
        out.print("Nothing runs any more.")
    except EXPECTED as error:
        fail(str(error))
    except KafkaException as error:
        fail(f"Kafka: {error.args[0].str()}")
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    if stage.killed:
        fail(f"these had not ended by themselves, and were killed: {'; '.join(stage.killed)}")


def _play(stage: Stage, flights: int, once: bool, out: Console) -> None:
    """Run the demo, and keep it running unless it is to exit by itself."""
    started = time.monotonic()
    try:
        Demo(stage, flights, out).play()
        out.rule(f"[green]All of it held[/green], in {time.monotonic() - started:.0f} s")
        if not once:
            out.print(f"All stays up: {stage.dagster.url}. Ctrl-C ends it.")
            _stay()
    finally:
        _shield()
        out.print("Stopping the instance, Dagster and Kafka …")


EXPECTED = (
    NotProvenError,
    StageError,
    StuckError,
    LoadError,
    BrokerError,
    JarsError,
    DagsterError,
    LaunchError,
    ControlPlaneError,
    WrongDeclarationError,
    StreamsError,
)
"""Errors whose message is shown without a traceback."""


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _shield() -> None:
    """From here on, no signal interrupts the shutdown: it waits for everything that is stopping."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _stay() -> None:
    """Wait for Ctrl-C."""
    try:
        while True:
            signal.pause()
    except KeyboardInterrupt:
        return


if __name__ == "__main__":
    app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    app.command()(main)
    app()
