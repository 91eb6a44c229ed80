"""Description of a table's version: snapshot, offsets, columns. It is written in the same step as the table, so the two never disagree."""

from __future__ import annotations

from pathlib import Path

import msgspec

from penstock.runtime.snapshots.manifest import PartitionOffset

SOURCE = "_source.json"
"""Name of the file with the description, in the folder of a version."""


class WrongTableError(Exception):
    """The table cannot be built, read or written as it is declared; the message says what would be right."""


class TableVersion(msgspec.Struct, frozen=True, kw_only=True):
    """Description of a version. `schema` is that of the table, in Spark's JSON form. `value_schema` (Spark's DDL) is the type that JSON
    values were read with, `value_type` (JSON form) that of values whose fields are columns. For a table by days, `first_day` and `last_day`
    limit the days that were built last, and `made_days` lists all that were ever built. `key_columns` identify a row. The other fields are
    as in `TableRequest` and `TableResult`."""

    table: str
    version: str
    schema: str
    application: str = ""
    store: str = ""
    source: str = ""
    snapshot: str | None = None
    key_column: str = "key"
    value_column: str = "value"
    value_schema: str | None = None
    value_type: str | None = None
    key_columns: list[str] = []
    by_day: bool = False
    first_day: str | None = None
    last_day: str | None = None
    made_days: list[str] = []
    inputs: list[PartitionOffset] = []
    changelogs: list[PartitionOffset] = []
    stream_times: dict[int, int] = {}

    @property
    def offsets(self) -> dict[int, int]:
        """Return the next offset of each partition of the changelog."""
        return {at.partition: at.next_offset for at in self.changelogs}


def decoded(data: bytes, where: object) -> TableVersion:
    """Decode a version's description. Raises WrongTableError if it is not one."""
    try:
        return msgspec.json.decode(data, type=TableVersion)
    except msgspec.DecodeError as error:
        raise WrongTableError(f"{where} was not written by this project, or by another version of it: {error}") from error


def newest_version(versions: Path) -> TableVersion | None:
    """Return the newest version in the folder of a table's versions, without Spark; None if the table was never built. Raises
    WrongTableError."""
    found = sorted(versions.glob(f"*/{SOURCE}"), key=lambda path: path.parent.name)
    return decoded(found[-1].read_bytes(), found[-1]) if found else None
