"""Backfills: an application's own program over records of the past (docs/history.md), as `streams.toml` declares it, and as a request.

[applications.NAME.backfill]
seed = "s3://lake/seeds"             folder of the seeds; default: seeds/<application> in the project's home
until = "latest"                     as --until
outputs, rejected                    folders, as --outputs and --rejected
first-day = 2026-01-01               the asset has a partition for each day from this one on, which goes on with the state of the day
                                     before; default: no partitions

[applications.NAME.backfill.inputs.TOPIC]
uri = "s3://lake/flights"            a table, or "kafka" for the topic itself
format = "parquet"                   or delta
key, value, timestamp, …             the table's columns, where they have other names or are not bytes
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from penstock.orchestration.declarations.toml_table import Table

KAFKA = "kafka"
"""Location of an input that is the topic itself."""
LATEST = "latest"
COLUMNS = ("key", "value", "timestamp", "partition", "offset", "headers")
SERIALIZED = ("key", "value")
"""Columns that may be made of several columns of the table, or of typed ones, by the source's serde."""
DELTA = "delta"
FORMATS = ("parquet", DELTA)
ALL = "*"
"""In place of columns: all that are not named otherwise."""


class BackfillInput(msgspec.Struct, frozen=True):
    """Records of a topic: a path or URI of a table, or `kafka`. `columns`: by the name in `COLUMNS`, the table's own columns: one, or for
    key and value several, which make an object, or `ALL`. A column that is not named has the name itself."""

    location: str
    format: str = FORMATS[0]
    columns: dict[str, list[str]] = {}


class BackfillRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A backfill, as the command passes it to the process that runs Spark. `until`: a time, offsets, or `latest`. `rejected` None: a record
    that pauses its task ends the run. `daily`: the result is kept for the next day; `after`: end of the day before, with whose state it
    goes on if that is there."""

    application: str
    inputs: dict[str, BackfillInput]
    until: str
    seed: str
    outputs: str | None = None
    rejected: str | None = None
    dry_run: bool = False
    restart: bool = False
    as_json: bool = False
    daily: bool = False
    after: str | None = None

    @property
    def reads_delta(self) -> bool:
        """True if a table is one of Delta, for which Spark needs its jars."""
        return any(given.format == DELTA for given in self.inputs.values())


@dataclass(frozen=True, slots=True)
class BackfillPolicy:
    """Declared backfill of an application; without inputs there is none."""

    inputs: Mapping[str, BackfillInput] = field(default_factory=dict)
    until: str = LATEST
    seed: str | None = None
    outputs: str | None = None
    rejected: str | None = None
    first_day: datetime.date | None = None

    @classmethod
    def read(cls, table: Table) -> BackfillPolicy:
        declared = cls(
            inputs={each.own_name(r".+"): _input(each) for each in table.tables("inputs")},
            until=table.optional_text("until", pattern=".+", example=LATEST) or LATEST,
            seed=table.optional_text("seed", pattern=".+", example="s3://lake/seeds"),
            outputs=table.optional_text("outputs", pattern=".+", example="s3://lake/outputs"),
            rejected=table.optional_text("rejected", pattern=".+", example="s3://lake/rejected"),
            first_day=table.day("first-day"),
        )
        table.reject_unknown()
        if declared.first_day is not None and declared.until != LATEST:
            raise table.wrong(("until",), "goes without first-day: each partition ends with its day")
        return declared

    def request(self, application_id: str, root: Path, home: Path, until: str | None = None) -> BackfillRequest:
        """Return the request. Relative paths are those of the project's folder `root`; seeds are in the home by default."""
        return BackfillRequest(
            application=application_id,
            inputs={
                topic: msgspec.structs.replace(
                    given, location=given.location if given.location == KAFKA else absolute(given.location, root)
                )
                for topic, given in self.inputs.items()
            },
            until=until or self.until,
            seed=absolute(self.seed, root) if self.seed is not None else str(home / "seeds" / application_id),
            outputs=None if self.outputs is None else absolute(self.outputs, root),
            rejected=None if self.rejected is None else absolute(self.rejected, root),
        )


def _input(table: Table) -> BackfillInput:
    location = table.text("uri", pattern=".+", example="s3://lake/flights")
    given = BackfillInput(location, table.choice("format", FORMATS, FORMATS[0]), dict(_columns(table)))
    table.reject_unknown()
    if location == KAFKA and given.columns:
        raise table.wrong((next(iter(given.columns)),), "columns are those of a table: the topic itself has none")
    return given


def _columns(table: Table) -> Sequence[tuple[str, list[str]]]:
    found = []
    for name in COLUMNS:
        if not table.has(name):
            table.optional_text(name, pattern=".+", example="departed_at")
        elif name in SERIALIZED and table.is_list(name):
            found.append((name, list(table.texts(name, example="carrier"))))
        else:
            found.append((name, [table.text(name, pattern=".+", example="departed_at")]))
    return found


def absolute(where: str, root: Path) -> str:
    """Return a URI as it is, and a path from the root of the file system: executors have other working directories."""
    return where if "://" in where else str(root / Path(where).expanduser())


def parsed_columns(text: str) -> tuple[str, dict[str, list[str]]]:
    """Return topic and columns of `TOPIC:key=id,value=a+b,timestamp=at`. Raises ValueError that says what is expected."""
    topic, _, rest = text.partition(":")
    columns: dict[str, list[str]] = {}
    for part in rest.split(","):
        name, _, given = part.partition("=")
        names = given.split("+")
        if name not in COLUMNS or not all(names) or name in columns or (len(names) > 1 and name not in SERIALIZED):
            raise ValueError(
                f"{text!r}: expected TOPIC:NAME=COLUMN,…, for example flights:key=flight_id,value=*,timestamp=departed_at. Names are "
                f"{', '.join(COLUMNS)}; key and value may be several columns (a+b), or * for all others"
            )
        columns[name] = names
    if not topic:
        raise ValueError(f"{text!r}: expected the topic first, for example flights:key=flight_id")
    return topic, columns
