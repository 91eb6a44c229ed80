"""`[[tables]]` of `streams.toml`: the tables that Spark makes of stores, one Dagster asset each.

[[tables]]
application = "flight-board"                  # whose store it is
store = "hourly-delay"
name = "hourly_delay"                         # the asset's key, unique in the file; default: the store, with _ in place of -
description = "Delay per airport and hour"
format = "parquet"                            # the default; or "delta"
source = "snapshot"                           # the default: of a snapshot of the store; or "changelog": from the brokers alone
key-column = "origin"                         # in place of `key`
value-column = "delay"                        # in place of `value`, where values are no JSON objects
value-schema = "flights BIGINT, delay DOUBLE" # fields of JSON values (Spark's DDL); default: the serde's type, else inferred
columns = { origin = "Airport of departure" } # descriptions
partitions = "daily"                          # of a windowed store: a partition for each day (UTC) of `window_start` …
first-day = 2013-01-01                        # … from this one on
last-day = 2013-12-31                         # … to this one; default: today
place = "/data/tables"                        # folder, or for Delta also a URI; default <home>/tables
refresh = { records = 100000, minutes = 15 }  # made anew by itself: see `Refresh`; default: never
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from orchestration.declarations import Table
from orchestration.places import Places

DAILY = "daily"
FORMATS, SOURCES = ("parquet", "delta"), ("snapshot", "changelog")
_STORE = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_TABLE = r"[A-Za-z_]\w*"
_TAKEN = ("instances",)
_SUFFIXES = ("__malformed", "__differences")
_REFRESH_RECORDS, _REFRESH_MINUTES, _REFRESH_DAYS = 1, 60, 2


@dataclass(frozen=True, slots=True)
class Refresh:
    """When a table is made anew by itself: its store has been checkpointed since, with at least `records` more changelog records, and the
    last time is at least `minutes` ago. Of a table by days, the last `days` are made."""

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
    """The partitions of a table by days (UTC) of `window_start`, both ends included; without an end they go on to today."""

    first: datetime.date
    last: datetime.date | None = None


@dataclass(frozen=True, slots=True)
class StateTable:
    """One declared table; the module's docstring says what each key is for."""

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
        """Raises WrongDeclarationError."""
        application = table.text("application", pattern=".+", example=next(iter(applications), "flight-board"))
        if application not in applications:
            raise table.wrong(
                ("application",), f"no application {application!r} is declared; declared are {', '.join(applications) or 'none'}"
            )
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
                f"{declared.place!r}: Parquet is replaced in one step by a link, which only a file system has: "
                'a folder, or format = "delta"',
            )
        return declared

    @property
    def is_uri(self) -> bool:
        """Whether the place is something else than a folder of a file system that is mounted here."""
        return self.place is not None and "://" in self.place

    def location(self, places: Places) -> str:
        """Where the table is: `<place>/<application>/<name>`, an absolute path or a URI."""
        if self.place is not None and self.is_uri:
            return f"{self.place.rstrip('/')}/{self.application}/{self.name}"
        folder = places.tables if self.place is None else places.root / Path(self.place).expanduser()
        return str(folder / self.application / self.name)

    def versions(self, places: Places) -> Path:
        """The folder of what belongs to its versions: beside the table, or for one that has a URI in the home."""
        location = places.tables / self.application / self.name if self.is_uri else Path(self.location(places))
        return location.with_name(f".{location.name}")


def read_tables(tables: Sequence[Table], applications: Sequence[str]) -> tuple[StateTable, ...]:
    """All tables, whose names are unique. Raises WrongDeclarationError."""
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
    """Raises WrongDeclarationError for tables that are declared below their application, whose table this is."""
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
