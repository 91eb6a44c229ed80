"""Request for a table, and its result: JSON, so that another process can do the work (`assets.spark.tables.job`)."""

from __future__ import annotations

import msgspec

from penstock.runtime.snapshots.manifest import PartitionOffset


class TableRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request to make one table. All paths are absolute, on the machine where Spark's driver runs.

    `location`: that of the table (Parquet: a link; Delta: a folder or a URI). `versions`: a folder for files of its versions.
    `version`: the name of the one to write; names sort by time. `snapshot`: the folder or URI of the snapshot, if `source` is
    `snapshot`. `factory` and `config` are the application's, for reads from the brokers. `first_day` and `last_day` (ISO, both
    inclusive): the days to make of a table by days; None: the table has no days.
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
    """Description of a column; `type` is in Spark's notation."""

    name: str
    type: str
    description: str | None = None


class TableResult(msgspec.Struct, frozen=True, kw_only=True):
    """Current state of a table.

    `kind`: `full`, or for one made from the changelog also `merged` (records since the last run) or `unchanged`; `reason` explains it.
    `rows` and `bytes` are those of the whole table; `rows_by_partition` (partitions are tasks) and `rows_by_day` split the count.
    `malformed` rows, whose bytes do not fit their serde, are only in `malformed_location`. `kept_days`: requested days that stay unchanged,
    because the store has dropped a part of them. `inputs` and `changelogs`: next offsets, at which the table was made.
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
