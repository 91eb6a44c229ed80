"""`penstock tables`: the tables that Spark builds from stores, as of their last build. Read from files only."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.text import Text

from penstock.orchestration.commands.common import Json, JsonValue, ago, explained, fail, show, table, warn
from penstock.orchestration.declarations.applications import Applications
from penstock.orchestration.declarations.project_paths import ProjectPaths
from penstock.orchestration.declarations.state_tables import StateTable
from penstock.orchestration.tables import TableVersion, WrongTableError, newest_version
from penstock.runtime.model.clock import from_ms
from penstock.runtime.snapshots.manifest import time_of_id

Row = dict[str, object]
_SQL = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}
"""Types whose names in Spark's schemas differ from those in its SQL."""


def tables(name: Annotated[str | None, typer.Argument(help="Show one table, with all details.")] = None, as_json: Json = False) -> None:
    """List the declared tables: their store, their last build and its offsets, and their location.

    Dagster builds the tables: materialise the asset of that name, or launch the job `state_tables`. Those with `refresh` in `streams.toml`
    are built automatically.

    `penstock tables` lists them; `penstock tables hourly_delay` shows one, with its columns and the offsets of its last build.
    """
    with explained():
        paths = ProjectPaths.find()
        declared = Applications.of(paths)
        try:
            if name is not None:
                one = declared.table(name)
                row = _row(one, paths, newest_version(one.versions(paths)))
                show(lambda: row if as_json else _described(row), as_json=as_json, watch=None)
                return
            rows = [_row(each, paths, newest_version(each.versions(paths))) for each in declared.tables]
        except WrongTableError as error:
            fail(str(error))
        if not rows and not as_json:
            warn(f"no table is declared in {declared.source}: an entry [[tables]] with application, store and key-column declares one")
            return
        show(lambda: rows if as_json else _listed(rows), as_json=as_json, watch=None)


def _row(declared: StateTable, paths: ProjectPaths, version: TableVersion | None) -> Row:
    row: Row = {
        "table": declared.name,
        "application": declared.application,
        "store": declared.store,
        "format": declared.format,
        "source": declared.source,
        "made_at": None,
        "place": declared.location(paths),
    }
    if version is None:
        return row
    columns = {column["name"]: _type(column["type"]) for column in msgspec.json.decode(version.schema)["fields"]}
    days = {"days": [version.made_days[0], version.made_days[-1]]} if version.made_days else {}
    offsets = [{"topic": at.topic, "partition": at.partition, "next_offset": at.next_offset} for at in version.changelogs]
    return row | {"made_at": _made_at(version), "snapshot": version.snapshot, "columns": columns, "offsets": offsets} | days


def _type(written: object) -> object:
    return _SQL.get(written, written) if isinstance(written, str) else written


def _made_at(version: TableVersion) -> datetime | None:
    """Return the time of the build, with which the version's name begins."""
    at_ms = time_of_id(version.version)
    return None if at_ms is None else from_ms(at_ms)


def _listed(rows: list[Row]) -> RenderableType | JsonValue:
    shown = table("table", "application", "store", "format", "source", "made", "place")
    for row in rows:
        cells = ("table", "application", "store", "format", "source")
        shown.add_row(*[str(row[cell]) for cell in cells], _ago(row), str(row["place"]))
    return shown


def _described(row: Row) -> RenderableType | JsonValue:
    lines = [f"{key:12} {value}" for key, value in row.items() if isinstance(value, str)]
    lines.insert(1, f"{'made':12} {_ago(row)}")
    days, columns, offsets = row.get("days"), row.get("columns"), row.get("offsets")
    if isinstance(days, list):
        lines.append(f"{'days':12} {days[0]} to {days[1]}")
    if isinstance(columns, dict):
        lines += ["", *(f"  {name}: {kind if isinstance(kind, str) else kind.get('type')}" for name, kind in columns.items())]
    if isinstance(offsets, list):
        lines += ["", *(f"  {at['topic']}-{at['partition']}: next offset {at['next_offset']}" for at in offsets)]
    return Group(*[Text(line) for line in lines])


def _ago(row: Row) -> str:
    made = row["made_at"]
    return ago(made) if isinstance(made, datetime) else "never"
