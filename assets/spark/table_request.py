"""What a table is to be made of, and what came of it: JSON, so that a process elsewhere may do the work (`assets.spark.table_job`)."""

from __future__ import annotations

import msgspec

from runtime.snapshots.manifest import PartitionOffset


class TableRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One table to make. All paths are absolute, and are those of the machine where Spark's driver runs.

    `location`: where the table is (Parquet: a link; Delta: a folder or a URI). `versions`: a folder for what belongs to its versions.
    `version`: the name of the one to write; names sort by time. `snapshot`: the folder or URI of the snapshot, where `source` is
    `snapshot`. `factory` and `config` are the application's, for what is read of the brokers. `first_day` and `last_day` (ISO, both
    included): of a table by days, those to make; None: the table is one piece.
    """

    application: str
    store: str
    table: str
    format: str
    source: str
    location: str
    versions: str
    version: str
    snapshot: str | None = None
    factory: str = ""
    config: dict[str, str | int | float | bool] = {}
    key_column: str = "key"
    value_column: str = "value"
    value_schema: str | None = None
    descriptions: dict[str, str] = {}
    first_day: str | None = None
    last_day: str | None = None


class ColumnText(msgspec.Struct, frozen=True):
    """A column as people read of it; `type` is as Spark writes it."""

    name: str
    type: str
    description: str | None = None


class TableResult(msgspec.Struct, frozen=True, kw_only=True):
    """A table as it stands now.

    `kind`: `full`, or for one of the changelog also `merged` (what came since the last run) or `unchanged`; `reason` says why. `rows` and
    `bytes` are the whole table's; `rows_by_partition` (partitions are tasks) and `rows_by_day` count them. `malformed` rows, whose bytes do
    not fit their serde, are in `malformed_location` and nowhere else. `kept_days`: days that were asked for and stay as they were, since
    the store has forgotten a part of them. `inputs` and `changelogs`: next offsets that the table stands for.
    """

    table: str
    location: str
    version: str
    kind: str = "full"
    reason: str = ""
    rows: int
    bytes: int
    malformed: int = 0
    malformed_location: str | None = None
    seconds: float
    columns: list[ColumnText]
    preview: str
    rows_by_partition: dict[int, int]
    rows_by_day: dict[str, int] = {}
    kept_days: list[str] = []
    snapshot: str | None = None
    stream_times: dict[int, int] = {}
    inputs: list[PartitionOffset] = []
    changelogs: list[PartitionOffset] = []
    notes: list[str] = []
