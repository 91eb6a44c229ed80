"""What the commands share: consoles, the project, errors as one clear line, times and tables as people read them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import NoReturn

import typer
from confluent_kafka import KafkaException
from rich.console import Console
from rich.table import Table

from orchestration.alerts import UnknownAlertError
from orchestration.applications import Application, Applications, WrongDeclarationError
from orchestration.audit import now
from orchestration.control_plane import ControlPlane, ControlPlaneError
from orchestration.dead_letter import DeadLetterError
from orchestration.launcher import LaunchError
from orchestration.operations import Operations
from orchestration.places import Places
from orchestration.run_books import RunBookError
from orchestration.tasks import RefusedError
from runtime.errors import BrokerUnavailableError, StreamsError
from runtime.ids import TaskId

out = Console(highlight=False, soft_wrap=True)
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
    try:
        operations = _find(undeclared)
        try:
            yield operations
        finally:
            operations.control_plane.close()
    except KafkaException as error:
        fail(f"Kafka: {error.args[0].str()}")
    except _EXPECTED as error:
        fail(str(error))


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
    return Table(*columns, box=None, pad_edge=False, header_style="bold")


def brief(detail: dict[str, object]) -> str:
    """An entry's details on one line, without the bytes of records."""
    return ", ".join(f"{key} {value}" for key, value in detail.items() if value not in (None, "") and not key.endswith("_base64"))
