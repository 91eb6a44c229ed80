"""The demo's report: the flight board's results, the processing speed, the audit trail, where to look further."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import cast
from zoneinfo import ZoneInfo

from rich.console import Console
from rich.table import Table

from examples.flight_board import data
from examples.flight_board.stage import Stage
from examples.flight_board.truth import Truth
from examples.flight_board.watch import Progress, entry_line
from penstock.orchestration.database import audit
from penstock.orchestration.instances.operations import Operations

NEW_YORK = ZoneInfo("America/New_York")
WORST_HOURS = 8
BUSY_HOUR = 10
"""Minimum number of flights of an hour that is listed among the worst."""


def report(out: Console, stage: Stage, operations: Operations, result: Truth, progress: Progress) -> None:
    """Print the whole report."""
    out.rule("[bold]Flights per carrier")
    out.print(carriers(result))
    out.rule("[bold]The worst hours")
    out.print(worst_hours(result))
    out.rule("[bold]Speed")
    for line in speed(progress):
        out.print(line)
    out.rule("[bold]Audit trail")
    for line in trail(operations):
        out.print(line)
    out.rule("[bold]Where to look")
    for what, where in places(stage, operations):
        out.print(f"{what:38} {where}", markup=False)


def carriers(result: Truth) -> Table:
    """Return the flights per carrier, largest first."""
    rows = sorted(result.carriers.items(), key=lambda pair: -cast(int, pair[1]["flights"]))
    return _table(
        ("carrier", "airline", "flights", "cancelled"),
        ((str(code), str(row["name"]), f"{row['flights']:,}", f"{row['cancelled']:,}") for code, row in rows),
    )


def worst_hours(result: Truth) -> Table:
    """Return the hours with the greatest mean delay."""

    def delay(row: Mapping[str, object]) -> float:
        mean = row["mean_delay"]
        return float(mean) if isinstance(mean, int | float) and cast(int, row["flights"]) >= BUSY_HOUR else float("-inf")

    rows = sorted(result.hours.items(), key=lambda pair: -delay(pair[1]))[:WORST_HOURS]
    return _table(
        ("hour (New York)", "airport", "flights", "cancelled", "mean delay"),
        (
            (_hour(cast(tuple[str, int], key)[1]), str(row["airport"]), str(row["flights"]), str(row["cancelled"]), f"{delay(row):.0f} min")
            for key, row in rows
            if delay(row) > float("-inf")
        ),
    )


def speed(progress: Progress) -> list[str]:
    """Return the number of processed records and the time that they took."""
    records = progress.flights + 3 * (progress.flights - 1) + data.WEATHER_ROWS
    working = max(progress.working_s, 0.1)
    return [
        f"{progress.flights:,} flights in {progress.whole_s:.0f} s, of which {progress.whole_s - progress.working_s:.0f} s were waiting "
        "(start, the pause, the last commit)",
        f"[bold]{progress.flights / working:,.0f} flights/s[/bold] while there was work. Each goes through three repartition topics: "
        f"[bold]{records / working:,.0f} records/s[/bold]",
    ]


def trail(operations: Operations) -> Iterable[str]:
    """Return the audit trail, oldest first."""
    with operations.control_plane.reading() as session:
        for entry in audit.latest(session, limit=200):
            yield f"[dim]{entry.at.astimezone():%H:%M:%S}[/dim]  {entry_line(entry)}"


def places(stage: Stage, operations: Operations) -> Sequence[tuple[str, str]]:
    """Return the pages of Dagster's UI, commands and files, with what they show."""
    url, home = stage.dagster.url, stage.paths.home
    environment = " ".join(
        f"{name}={shlex.quote(os.path.relpath(value))}" for name, value in stage.environment.items() if "URL" not in name
    )
    application = operations.applications.applications[0]
    asset = f"{url}/assets/{application.id}/instances"
    return (
        ("the instance, its tasks and their lag", f"{asset}?partition={application.instances[0]}"),
        ("the tables, with previews and checks", f"{url}/assets/hourly_delay  {url}/assets/carriers"),
        ("the run-book's run", f"{url}/jobs/skip_record"),
        ("the sensors that watched", f"{url}/automation"),
        ("the same on the command line", f"{environment} .venv/bin/penstock status"),
        ("all that was kept", str(home)),
    )


def _hour(start_ms: int) -> str:
    return f"{datetime.fromtimestamp(start_ms / 1000, UTC).astimezone(NEW_YORK):%a %d %b %H:%M}"


def _table(columns: Iterable[str], rows: Iterable[tuple[str, ...]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number >= 2 else "left")
    for row in rows:
        table.add_row(*row)
    return table
