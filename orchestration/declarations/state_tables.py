"""`[[tables]]` of `streams.toml`: tables that Spark builds from stores, one Dagster asset each.

[[tables]]
application = "flight-board"                  # the application with the store
store = "hourly-delay"
name = "hourly_delay"                         # the asset's key, unique in the file; default: the name of the store, with _ in place of -
description = "Delay per airport and hour"
format = "parquet"                            # the default; or "delta"
source = "snapshot"                           # the default: of a snapshot of the store; or "changelog": from the brokers alone
key-column = "origin"                         # in place of `key`
value-column = "delay"                        # in place of `value`, where values are not JSON objects
value-schema = "flights BIGINT, delay DOUBLE" # fields of JSON values (Spark's DDL); default: the serde's type, else inferred
columns = { origin = "Airport of departure" } # descriptions
partitions = "daily"                          # of a windowed store: a partition for each day (UTC) of `window_start` …
first-day = 2013-01-01                        # … from this one on
last-day = 2013-12-31                         # … to this one; default: today
place = "/data/tables"                        # folder, or for Delta also a URI; default <home>/tables
refresh = { records = 100000, minutes = 15 }  # rebuilt automatically: see `Refresh`; default: never
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock.orchestration.declarations.project_paths import ProjectPaths
from penstock.orchestration.declarations.toml_table import Table
from penstock.orchestration.declarations.unknown_names import unknown
from penstock.runtime.model.secrets import shown

DAILY = "daily"
FORMATS, SOURCES = ("parquet", "delta"), ("snapshot", "changelog")
_STORE = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_TABLE = r"[A-Za-z_]\w*"
_TAKEN = ("instances",)
_SUFFIXES = ("__malformed", "__differences")
_REFRESH_RECORDS, _REFRESH_MINUTES, _REFRESH_DAYS = 1, 60, 2


@dataclass(frozen=True, slots=True)
class Refresh:
    """Conditions for an automatic rebuild: the store has been checkpointed since the last build, with at least `records` more changelog
    records, and the last build was at least `minutes` ago. For a table by days, the last `days` are rebuilt."""

    records: int = _REFRESH_RECORDS
    minutes: int = _REFRESH_MINUTES
    days: int = _REFRESH_DAYS

    @classmethod
    def read(cls, table: Table, daily: bool) -> Refresh:
        days = table.whole("days", default=_REFRESH_DAYS, least=1)
        if not daily and table.has("days"):
            raise table.wrong(("days",), f'is for tables by days: partitions = "{DAILY}"')
        refresh = cls(
            records=table.whole("records", default=_REFRESH_RECORDS, least=1),
            minutes=table.whole("minutes", default=_REFRESH_MINUTES, least=1),
            days=days,
        )
        table.reject_unknown()
        return refresh


@dataclass(frozen=True, slots=True)
class Days:
    """Partitions of a table by days (UTC) of `window_start`, both ends included; without `last`, up to today."""

    first: datetime.date
    last: datetime.date | None = None


@dataclass(frozen=True, slots=True)
class StateTable:
    """One declared table; the module's docstring describes the keys."""

    application: str
    store: str
    name: str
    description: str | None = None
    format: str = "parquet"
    source: str = "snapshot"
    key_column: str = "key"
    value_column: str = "value"
    value_schema: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    days: Days | None = None
    place: str | None = None
    refresh: Refresh | None = None

    @classmethod
    def read(cls, table: Table, applications: Sequence[str]) -> StateTable:
        """Read a table's declaration. Raises WrongDeclarationError."""
        application = table.text("application", pattern=".+", example=next(iter(applications), "flight-board"))
        if application not in applications:
            raise table.wrong(("application",), unknown("application", application, applications))
        store = table.text("store", pattern=_STORE, example="hourly-delay")
        declared = cls(
            application=application,
            store=store,
            name=_name(table, store),
            description=_optional(table, "description", "Delay per airport and hour"),
            format=table.choice("format", FORMATS, FORMATS[0]),
            source=table.choice("source", SOURCES, SOURCES[0]),
            key_column=_optional(table, "key-column", "origin", _TABLE) or "key",
            value_column=_optional(table, "value-column", "flights", _TABLE) or "value",
            value_schema=_optional(table, "value-schema", "flights BIGINT, delay DOUBLE"),
            columns=_descriptions(table.table("columns")),
            days=_days(table),
            place=_optional(table, "place", "/data/tables"),
            refresh=_refresh(table),
        )
        table.reject_unknown()
        if declared.key_column == declared.value_column:
            raise table.wrong(("value-column",), f"{declared.value_column!r} is the key's column already")
        if declared.days is not None and declared.source == "changelog":
            raise table.wrong(("partitions",), 'are made of snapshots: take source = "snapshot", or leave the partitions away')
        if declared.is_uri and declared.format != "delta":
            raise table.wrong(
                ("place",),
                f"{shown('place', declared.place)}: Parquet is replaced in one step by a link, which only a file system has: "
                'a folder, or format = "delta"',
            )
        return declared

    @property
    def is_uri(self) -> bool:
        """True if the place is a URI, not a folder of a mounted file system."""
        return self.place is not None and "://" in self.place

    def location(self, paths: ProjectPaths) -> str:
        """Return the table's location, `<place>/<application>/<name>`: an absolute path or a URI."""
        if self.place is not None and self.is_uri:
            return f"{self.place.rstrip('/')}/{self.application}/{self.name}"
        folder = paths.tables if self.place is None else paths.root / Path(self.place).expanduser()
        return str(folder / self.application / self.name)

    def versions(self, paths: ProjectPaths) -> Path:
        """Return the folder for the data on its versions: beside the table, or in the project's home if the table has a URI."""
        location = paths.tables / self.application / self.name if self.is_uri else Path(self.location(paths))
        return location.with_name(f".{location.name}")


def read_tables(tables: Sequence[Table], applications: Sequence[str]) -> tuple[StateTable, ...]:
    """Read all tables, whose names must be unique. Raises WrongDeclarationError."""
    found: dict[str, StateTable] = {}
    for table in tables:
        declared = StateTable.read(table, applications)
        if declared.name in found:
            other = found[declared.name]
            raise table.wrong(
                ("name",),
                f"a table {declared.name!r} is declared already (store {other.store!r} of {other.application!r}): "
                f'give this one a name of its own, for example name = "{declared.name}_2"',
            )
        found[declared.name] = declared
    return tuple(found.values())


def reject_old_form(table: Table, application: str) -> None:
    """Raise WrongDeclarationError for tables that are declared below this application, as in earlier versions."""
    if table.has("tables"):
        message = f'tables are declared by [[tables]] on the top level, with application = "{application}" and the same keys'
        raise table.wrong(("tables",), message)


def _name(table: Table, store: str) -> str:
    default = re.sub(r"\W", "_", store)
    name = _optional(table, "name", "hourly_delay", _TABLE) or (default if re.fullmatch(_TABLE, default) else f"_{default}")
    if name in _TAKEN or name.endswith(_SUFFIXES):
        raise table.wrong(("name",), f'{name!r} is taken by something else: take for example name = "{default}_table"')
    return name


def _optional(table: Table, key: str, example: str, pattern: str = r"(?s).*\S.*") -> str | None:
    return table.optional_text(key, pattern=pattern, example=example)


def _descriptions(table: Table) -> Mapping[str, str]:
    found = table.scalars()
    for name, text in found.items():
        if not isinstance(text, str):
            raise table.wrong((name,), f'expected a description, for example {name} = "Airport of departure", found {text!r}')
    return {name: str(text) for name, text in found.items()}


def _refresh(table: Table) -> Refresh | None:
    content = table.table("refresh")
    return Refresh.read(content, table.has("partitions")) if table.has("refresh") else None


def _days(table: Table) -> Days | None:
    table.choice("partitions", (DAILY,), DAILY)
    first, last = table.day("first-day"), table.day("last-day")
    if not table.has("partitions"):
        for key, day in (("first-day", first), ("last-day", last)):
            if day is not None:
                raise table.wrong((key,), f'is for tables by days: partitions = "{DAILY}"')
        return None
    if first is None:
        raise table.wrong(("first-day",), "is missing: the first day of the table, for example first-day = 2013-01-01")
    if last is not None and last < first:
        raise table.wrong(("last-day",), f"{last} is before first-day, {first}")
    return Days(first, last)
