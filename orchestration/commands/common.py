"""Shared code of the commands: consoles, the project, error messages, formats of times and tables."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from confluent_kafka import KafkaException
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from penstock.orchestration.commands.command_config import VARIABLE, command_config
from penstock.orchestration.declarations.applications import Application, Applications, WrongDeclarationError
from penstock.orchestration.declarations.errors import ExpectedError
from penstock.orchestration.declarations.project_paths import ProjectPaths
from penstock.orchestration.drawing.console import UNBROKEN, Wrapped, stdout_console
from penstock.orchestration.instances.launcher import Launcher
from penstock.orchestration.kafka.observer import Observer
from penstock.runtime.kafka.failures import kafka_error, with_remedy
from penstock.runtime.model.clock import from_ms
from penstock.runtime.model.errors import BrokerUnavailableError, StreamsError
from penstock.runtime.model.extras import extra
from penstock.runtime.model.ids import TaskId

if TYPE_CHECKING:
    from penstock.orchestration.instances.operations import Operations

JsonValue = Mapping[str, object] | Sequence[Mapping[str, object]]
"""Output of a command with --json."""
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Watch = Annotated[float | None, typer.Option("--watch", "-w", min=0.2, help="Repeat at this interval in seconds, until Ctrl-C.")]
Servers = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-servers",
        "-b",
        help=f"Use these brokers, without streams.toml and the database; with the login of the file that {VARIABLE} names, if it is set.",
    ),
]
Named = Annotated[str | None, typer.Option("--application", "-a", help="The application.id. Default: all that are declared.")]

_WHOLE = ("alert", "application", "table", "store", "snapshot", "task", "instance", "kind", "state", "severity", "paused at")

out = stdout_console()
err = Console(stderr=True, highlight=False, soft_wrap=True)


def fail(message: str, status: int = 1) -> NoReturn:
    err.print(message, style="red", markup=False)
    raise typer.Exit(status)


def say(line: str) -> None:
    """Print a line as it is, without markup."""
    out.print(line, markup=False)


def hint(line: str) -> None:
    """Print a line of progress, or a note, to stderr."""
    err.print(line, style="dim", markup=False)


def warn(line: str) -> None:
    err.print(Wrapped(line, "yellow"))


@contextmanager
def project(*, undeclared: bool = False) -> Iterator[Operations]:
    """Open the project selected by the environment. An expected error ends the command with its message, and status 1.

    With `undeclared`, an unreadable `streams.toml` is only a warning, and nothing counts as declared.
    """
    with explained():
        operations = _find(undeclared)
        try:
            yield operations
        finally:
            operations.control_plane.close()


def _find(undeclared: bool) -> Operations:
    with extra("dagster", "This command uses the control plane, which"):
        from penstock.orchestration.database import ControlPlane
        from penstock.orchestration.instances.operations import Operations
    try:
        return Operations.find()
    except WrongDeclarationError as error:
        if not undeclared:
            raise
        warn(str(error))
    paths = ProjectPaths.find()
    return Operations(paths, Applications(source=paths.streams_toml), ControlPlane(paths.database_url))


def catch_up(operations: Operations, *applications: Application) -> None:
    """Bring the control plane up to date. If no broker answers, print a warning and continue with what is known."""
    for application in applications or operations.applications.applications:
        try:
            with operations.feed(application) as feed:
                feed.step()
        except BrokerUnavailableError as error:
            warn(f"{error}. What follows is what was known last.")


def task_id(text: str) -> TaskId:
    try:
        return TaskId.parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


@dataclass(frozen=True, slots=True)
class Target:
    """Application to observe through Kafka, and its declared instances, if `streams.toml` declares it."""

    observer: Observer
    instances: tuple[str, ...] = ()
    launcher: Launcher | None = None
    """Launcher of this project, to look up processes on this machine."""


def targets(application: str | None, bootstrap_servers: str | None) -> list[Target]:
    """Return the applications for a command: the one on the command line, else all declared ones. Needs no database.

    With --bootstrap-servers nothing else is read, so it works on a machine with nothing but this program.
    """
    if bootstrap_servers is not None:
        if application is None:
            raise typer.BadParameter("--bootstrap-servers needs to know which application: add --application")
        return [Target(Observer(application, named(application, bootstrap_servers).connection))]
    paths = ProjectPaths.find()
    declared = Applications.of(paths)
    found = [declared.named(application)] if application is not None else declared.applications
    return [Target(Observer(each.id, each.connection), each.instances, Launcher(paths)) for each in found]


def named(application: str, bootstrap_servers: str | None) -> Application:
    """Return the application as declared; with --bootstrap-servers, one of which only the name is known."""
    if bootstrap_servers is not None:
        found = Application(application, "", (), command_config(bootstrap_servers))
        found.streams_config()  # names what is wrong
        return found
    return Applications.of(ProjectPaths.find()).named(application)


@contextmanager
def explained() -> Iterator[None]:
    """End the command with the message of an expected error, and status 1."""
    try:
        yield
    except KafkaException as error:
        fail(f"Kafka: {with_remedy(kafka_error(error))}")
    except (ExpectedError, StreamsError) as error:
        fail(str(error))


@contextmanager
def explained_interrupt(what_stays: str) -> Iterator[None]:
    """End the command on Ctrl-C, with a message on what it leaves behind, and status 130."""
    try:
        yield
    except KeyboardInterrupt:
        warn(f"stopped: {what_stays}")
        raise typer.Exit(130) from None


def show(make: Callable[[], RenderableType | JsonValue], *, as_json: bool, watch: float | None) -> None:
    """Show the result of `make`: a table, or data as JSON; with `watch` repeatedly, at this interval in seconds, until Ctrl-C.

    While it watches, it reports a broker that does not answer and waits for it; JSON is then one document per line.
    """
    if watch is None:
        _print(make(), as_json, indent=2)
        return
    try:
        while True:
            try:
                shown = make()
            except BrokerUnavailableError as error:
                warn(str(error))
            else:
                if not as_json:
                    out.clear()
                _print(shown, as_json, indent=None)
            time.sleep(watch)
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


def print_json(shown: RenderableType | JsonValue, indent: int | None = 2) -> None:
    """Print JSON; times are in ISO 8601."""
    typer.echo(json.dumps(shown, indent=indent, default=str))


def _print(shown: RenderableType | JsonValue, as_json: bool, indent: int | None) -> None:
    if as_json:
        print_json(shown, indent)
    else:
        out.print(shown)


def ago_ms(at_ms: int | None) -> str:
    """Format a time in milliseconds since the epoch like `ago`."""
    return ago(None if not at_ms else from_ms(at_ms))


def ago(at: datetime | None) -> str:
    """Format a time as its age, in the largest fitting unit."""
    if at is None:
        return ""
    seconds = max(0.0, (datetime.now(UTC) - at).total_seconds())
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def clock(at: datetime) -> str:
    """Format a past time in this machine's zone."""
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def table(*columns: str) -> Table:
    """Create a table whose columns with names, which users copy, are shortened last."""
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        shown.add_column(column, no_wrap=column in _WHOLE, overflow="fold" if column == "what" else "ellipsis")
    return shown


@dataclass(frozen=True, slots=True)
class CompactRows:
    """Rows by column, without the columns in which every cell is empty or 0. They are a table if that fits; else each row is a line of its
    first cells and a line of its others, so that no cell is cut or broken. `heads`: columns of the first line, whose cells need no
    name."""

    rows: Sequence[Mapping[str, str | Text]]
    heads: Sequence[str] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        names = [name for name in (self.rows[0] if self.rows else ()) if any(str(row[name]) not in ("", "0") for row in self.rows)]
        widths = [max(len(name), *(cell_len(str(row[name])) for row in self.rows)) for name in names]
        if sum(widths) + 2 * max(0, len(names) - 1) <= options.max_width:
            shown = table(*names)
            for row in self.rows:
                shown.add_row(*(Text.assemble(row[name]) for name in names))  # a str would be read as markup
            yield shown
            return
        for row in self.rows:
            known = [name for name in names if str(row[name]) not in ("", "0")]
            heads = [name for name in known if name in self.heads]
            style = next((str(cell.style) for name in heads if isinstance(cell := row[name], Text) and cell.style), "bold")
            yield Wrapped("  ".join(str(row[name]) for name in heads), style)
            rest = [name for name in known if name not in heads]
            yield Wrapped(", ".join(str(row[name]) if name == "what" else f"{name}{UNBROKEN}{row[name]}" for name in rest), indent=2)
