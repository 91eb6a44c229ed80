"""What the commands share: consoles, the project, errors as one clear line, times and tables as people read them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, NoReturn

import typer
from confluent_kafka import KafkaException
from rich.console import Console, RenderableType
from rich.table import Table

from orchestration.alerts import UnknownAlertError
from orchestration.applications import Application, Applications, WrongDeclarationError
from orchestration.audit import now
from orchestration.control_plane import ControlPlane, ControlPlaneError
from orchestration.control_plane.models import from_ms
from orchestration.dead_letter import DeadLetterError
from orchestration.launcher import LaunchError
from orchestration.observer import Observer
from orchestration.operations import Operations
from orchestration.places import Places
from orchestration.run_books import RunBookError
from orchestration.tasks import RefusedError
from runtime.errors import BrokerUnavailableError, StreamsError
from runtime.ids import TaskId

JsonValue = Mapping[str, object] | Sequence[Mapping[str, object]]
"""What a command prints with --json."""
Json = Annotated[bool, typer.Option("--json", help="As JSON, for programs.")]
Watch = Annotated[float | None, typer.Option("--watch", "-w", min=0.2, help="Show it again every so many seconds, until Ctrl-C.")]
Servers = Annotated[
    str | None, typer.Option("--bootstrap-servers", "-b", help="Brokers to ask; then neither streams.toml nor a database is read.")
]
Named = Annotated[str | None, typer.Option("--application", "-a", help="The application.id. Default: all that are declared.")]

_WHOLE = ("alert", "application", "table", "store", "snapshot", "task", "instance", "kind", "state", "severity", "paused at")
_FILE_WIDTH = 200
"""Columns of a table that goes to a file or another program, where a line may be long, unless COLUMNS says otherwise."""

out = Console(highlight=False, soft_wrap=True)
if not out.is_terminal and "COLUMNS" not in os.environ:
    out.width = _FILE_WIDTH
err = Console(stderr=True, highlight=False, soft_wrap=True)

_EXPECTED = (
    WrongDeclarationError,
    ControlPlaneError,
    LaunchError,
    RefusedError,
    RunBookError,
    DeadLetterError,
    UnknownAlertError,
    StreamsError,
    KafkaException,
)


def fail(message: str, status: int = 1) -> NoReturn:
    err.print(message, style="red", markup=False)
    raise typer.Exit(status)


@contextmanager
def project(*, undeclared: bool = False) -> Iterator[Operations]:
    """The project that the environment names. An error that has an explanation ends the command with it, and status 1.

    With `undeclared`, a `streams.toml` that cannot be read is a warning: nothing is declared then.
    """
    with explained():
        operations = _find(undeclared)
        try:
            yield operations
        finally:
            operations.control_plane.close()


def _find(undeclared: bool) -> Operations:
    try:
        return Operations.find()
    except WrongDeclarationError as error:
        if not undeclared:
            raise
        err.print(str(error), style="yellow", markup=False)
    places = Places.find()
    return Operations(places, Applications(source=places.streams_toml), ControlPlane(places.database_url))


def catch_up(operations: Operations, *applications: Application) -> None:
    """Brings the control plane up to date. Where no broker answers, says so and goes on with what is known."""
    for application in applications or operations.applications.applications:
        try:
            with operations.feed(application) as feed:
                feed.step()
        except BrokerUnavailableError as error:
            err.print(f"{error}. What follows is what was known last.", style="yellow", markup=False)


def task_id(text: str) -> TaskId:
    try:
        return TaskId.parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


@dataclass(frozen=True, slots=True)
class Target:
    """An application to look at through Kafka, and its declared instances, if `streams.toml` declares it."""

    observer: Observer
    instances: tuple[str, ...] = ()


def targets(application: str | None, bootstrap_servers: str | None) -> list[Target]:
    """What a command that looks is to look at: named on the command line, else declared. Needs no database.

    With --bootstrap-servers nothing else is read, so it works on a machine that has nothing but this program.
    """
    if bootstrap_servers is not None:
        if application is None:
            raise typer.BadParameter("--bootstrap-servers needs to know which application: add --application")
        return [Target(Observer(application, bootstrap_servers))]
    declared = Applications.read(Places.find().streams_toml)
    found = [declared.named(application)] if application is not None else declared.applications
    return [Target(Observer(each.id, each.bootstrap_servers), each.instances) for each in found]


def named(application: str, bootstrap_servers: str | None) -> Application:
    """The application as it is declared; with --bootstrap-servers one of which no more is known than its name."""
    if bootstrap_servers is not None:
        return Application(application, "", (), {"bootstrap.servers": bootstrap_servers})
    return Applications.read(Places.find().streams_toml).named(application)


@contextmanager
def explained() -> Iterator[None]:
    """An error that has an explanation ends the command with it, and status 1."""
    try:
        yield
    except KafkaException as error:
        fail(f"Kafka: {error.args[0].str()}")
    except _EXPECTED as error:
        fail(str(error))


@contextmanager
def told_if_stopped(what_stays: str) -> Iterator[None]:
    """Ctrl-C ends the command with a word on what it leaves behind, and exit status 130."""
    try:
        yield
    except KeyboardInterrupt:
        err.print(f"stopped: {what_stays}", style="yellow", markup=False)
        raise typer.Exit(130) from None


def show(make: Callable[[], RenderableType | JsonValue], *, as_json: bool, watch: float | None) -> None:
    """Shows what `make` gives: a table, or data as JSON; with `watch` again every so many seconds, until Ctrl-C.

    While it watches, a broker that does not answer is said and waited for; JSON is then one document per line.
    """
    if watch is None:
        _print(make(), as_json, indent=2)
        return
    try:
        while True:
            try:
                shown = make()
            except BrokerUnavailableError as error:
                err.print(str(error), style="yellow", markup=False)
            else:
                if not as_json:
                    out.clear()
                _print(shown, as_json, indent=None)
            time.sleep(watch)
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


def print_json(shown: RenderableType | JsonValue, indent: int | None = 2) -> None:
    """Times are written as ISO 8601."""
    typer.echo(json.dumps(shown, indent=indent, default=str))


def _print(shown: RenderableType | JsonValue, as_json: bool, indent: int | None) -> None:
    if as_json:
        print_json(shown, indent)
    else:
        out.print(shown)


def ago_ms(at_ms: int | None) -> str:
    """As `ago`, of milliseconds since the epoch."""
    return ago(None if not at_ms else from_ms(at_ms))


def ago(at: datetime | None) -> str:
    """How long ago, in the largest unit that says something."""
    if at is None:
        return ""
    seconds = max(0.0, (now() - at).total_seconds())
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def clock(at: datetime) -> str:
    """A time of the past in this machine's zone."""
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def table(*columns: str) -> Table:
    """Names, which people copy, are never cut or broken while there is room; what makes room is other columns."""
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        shown.add_column(column, no_wrap=column in _WHOLE, overflow="fold" if column == "what" else "ellipsis")
    return shown


def brief(detail: dict[str, object]) -> str:
    """An entry's details on one line, without the bytes of records."""
    return ", ".join(f"{key} {value}" for key, value in detail.items() if value not in (None, "") and not key.endswith("_base64"))
