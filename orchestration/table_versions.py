"""What a version of a table is made of. It is written in the same step as the table, so the two never disagree."""

from __future__ import annotations

from pathlib import Path

import msgspec

from runtime.snapshots.manifest import PartitionOffset

SOURCE = "_source.json"
"""The description of a version, in its folder."""


class WrongTableError(Exception):
    """The table cannot be made, read or written as it is declared; the message says what would be right."""


class TableVersion(msgspec.Struct, frozen=True, kw_only=True):
    """`schema` is that of the table, in Spark's JSON form. `value_schema` (Spark's DDL) is the type that JSON values were read with,
    `value_type` (JSON form) that of values whose fields are columns. `first_day` and `last_day`: those that were made last, of a table by
    days; `made_days`: all that ever were. `key_columns` name a row. The rest is as in `TableRequest` and `TableResult`."""

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
        """The next offset of each partition of the changelog."""
        return {at.partition: at.next_offset for at in self.changelogs}


def decoded(data: bytes, where: object) -> TableVersion:
    """What a version's description says. Raises WrongTableError where it is none."""
    try:
        return msgspec.json.decode(data, type=TableVersion)
    except msgspec.DecodeError as error:
        raise WrongTableError(f"{where} was not written by this project, or by another version of it: {error}") from error


def newest_version(versions: Path) -> TableVersion | None:
    """The newest one in the folder of a table's versions, found without Spark; None where the table was never made. Raises
    WrongTableError."""
    found = sorted(versions.glob(f"*/{SOURCE}"), key=lambda path: path.parent.name)
    return decoded(found[-1].read_bytes(), found[-1]) if found else None
