"""Job that makes a table from a store's snapshot or changelog. It does not use Dagster, so it runs wherever Spark's driver does.

    make(request, spark, report) -> TableResult

The store is read once. Rows whose bytes do not fit their serde are counted at the same time; only if there are some is the store read
again, to write them to `<table>__malformed`. Counts, preview and size are computed from the written table.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from msgspec.structs import replace
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from penstock.assets.spark.changelog import incremental
from penstock.assets.spark.changelog.store_log import StoreLog, snapshot_offsets, store_log
from penstock.assets.spark.source.state_source import StoreSnapshot, find_store
from penstock.assets.spark.tables.files import DAY, TableFiles, table_files
from penstock.assets.spark.tables.request import TableRequest, TableResult
from penstock.assets.spark.tables.shape import Shape, column_texts, ddl, preview
from penstock.assets.spark.types.formats import GLOBAL_PARTITION, MALFORMED, is_json
from penstock.orchestration.tables import TableVersion, WrongTableError
from penstock.runtime.config.environment import client_config
from penstock.runtime.snapshots.catalogue import find
from penstock.runtime.snapshots.manifest import PartitionOffset

MALFORMED_TABLE = "__malformed"
Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Content:
    """Rows of a store, and what they represent. `horizon` (ms): windows that start before it may have been dropped."""

    rows: DataFrame
    changelogs: list[PartitionOffset]
    stream_times: dict[int, int]
    inputs: list[PartitionOffset] = field(default_factory=list)
    snapshot: str | None = None
    horizon: int | None = None
    is_json: bool = False
    value_json: Mapping[str, object] | None = None
    kind: str = "full"
    reason: str = ""
    notes: Sequence[str] = ()


def make(request: TableRequest, spark: SparkSession, report: Report) -> TableResult:
    """Make the requested table. `report` is called with a sentence for each step.

    Raises WrongTableError (the declaration does not fit, or the location cannot be written), StateDirectoryError (the snapshot or the
    store), StreamsError (the topology, the brokers). The table is unchanged until the last step.
    """
    began = time.monotonic()
    files = table_files(request.format, request.location, Path(request.versions))
    result = _of_changelog(request, spark, files, report) if request.source == "changelog" else _of_snapshot(request, spark, files, report)
    return replace(result, seconds=round(time.monotonic() - began, 3))


def _of_snapshot(request: TableRequest, spark: SparkSession, files: TableFiles, report: Report) -> TableResult:
    if request.snapshot is None:
        raise WrongTableError(f"table {request.table} is made of a snapshot, and none was named")
    snapshot = find(request.snapshot)
    parts = find_store(request.snapshot, request.store)
    report(f"reading store {request.store} of {len(parts)} tasks from snapshot {snapshot.id}")
    reader = spark.read.format("penstock.state").option("path", request.snapshot).option("store", request.store)
    if request.value_schema is not None:
        reader = reader.option("value-schema", request.value_schema)
    logged = parts[0].store.changelog is not None or parts[0].store.is_global
    topic = StoreLog.of_snapshot(parts).topic if logged else ""
    content = _Content(
        rows=reader.load(),
        changelogs=_vector(topic, snapshot_offsets(parts)) if logged else [],
        stream_times=_stream_times(parts),
        inputs=snapshot.manifest.inputs,
        snapshot=snapshot.id,
        horizon=max(
            (part.stream_time - retention + 1 for part in parts if (retention := part.store.retention_ms) is not None), default=None
        ),
        is_json=is_json(parts[0].store.value_format, parts[0].store.value_schema),
        value_json=parts[0].store.value_schema,
    )
    return _write(request, spark, files, content, report)


def _of_changelog(request: TableRequest, spark: SparkSession, files: TableFiles, report: Report) -> TableResult:
    config = client_config(request.config, request.application)
    log = store_log(request.application, request.factory, request.store, config, request.value_schema)
    before = files.version(spark)
    previous = None if before is None or before.source != "changelog" else files.versions / before.version
    report(f"reading topic {log.topic}" + ("" if previous is None else ", from where the last run ended"))
    with incremental.run(spark, log, config, previous, files.versions / request.version) as run:
        content = _Content(
            rows=run.rows,
            changelogs=_vector(log.topic, run.offsets),
            stream_times=dict(run.stream_times),
            is_json=is_json(log.layout.value_serde, log.schemas.value),
            value_json=log.schemas.value,
            kind=run.kind,
            reason=run.reason,
            notes=run.notes,
        )
        if run.kind == "unchanged" and before is not None:
            run.confirm()
            report(f"nothing has changed: {run.reason}")
            return _described(request, spark, files, before, _shape(request, content), content)
        return _write(request, spark, files, content, report, run.save)


def _shape(request: TableRequest, content: _Content) -> Shape:
    return Shape.of(content.rows.drop(MALFORMED), request.key_column, request.value_column, request.first_day is not None)


def _write(
    request: TableRequest,
    spark: SparkSession,
    files: TableFiles,
    content: _Content,
    report: Report,
    save: Callable[[Path], None] | None = None,
) -> TableResult:
    shape = _shape(request, content)
    made = _days_to_make(request, content, files.version(spark)) if shape.by_day else None
    seen = Observation()
    rows = content.rows.observe(seen, F.count_if(F.col(MALFORMED).isNotNull()).alias("malformed"))
    table = shape.table(rows.where(F.col(MALFORMED).isNull()))
    order = [name for name in shape.key_columns if name != "partition"]
    if made is not None:
        # Collect each day in one partition, so that it becomes one file: otherwise each task would write one.
        table = table.where(F.col(DAY).between(F.lit(made.first), F.lit(made.last))).repartition(DAY)
        order = [DAY, *order]
    table = table.sortWithinPartitions(*order)
    column_texts(table.schema, shape, request.descriptions, content.value_json)  # reports a wrong description before the work
    version = TableVersion(
        table=request.table,
        version=request.version,
        schema=table.schema.json(),
        application=request.application,
        store=request.store,
        source=request.source,
        snapshot=content.snapshot,
        key_column=request.key_column,
        value_column=request.value_column,
        value_schema=ddl(content.rows.schema["value"].dataType) if content.is_json else None,
        value_type=None if shape.value_schema is None else shape.value_schema.json(),
        key_columns=shape.key_columns,
        by_day=shape.by_day,
        first_day=None if made is None else made.first.isoformat(),
        last_day=None if made is None else made.last.isoformat(),
        made_days=[] if made is None else made.in_all,
        inputs=content.inputs,
        changelogs=content.changelogs,
        stream_times=content.stream_times,
    )
    malformed, apart = 0, None

    def finish(folder: Path) -> None:
        nonlocal malformed, apart
        malformed = int(seen.get["malformed"])
        apart = _keep_apart(request, spark, content, malformed, report)
        if save is not None:
            save(folder)  # the rows cannot be read after this

    report(f"writing {request.format} to {request.location}")
    if not files.write(table, version, finish):
        malformed, apart = _kept_apart(request, spark)  # an earlier attempt wrote them; no rows were read now that could be counted
    result = _described(request, spark, files, version, shape, content)
    report(f"{result.rows:,} rows are in {request.location}")
    return replace(result, malformed=malformed, malformed_location=apart, kept_days=[] if made is None else made.kept)


def _keep_apart(request: TableRequest, spark: SparkSession, content: _Content, malformed: int, report: Report) -> str | None:
    """Write rows whose bytes do not fit into a separate table; return its location, or None if there are none."""
    location = request.location + MALFORMED_TABLE
    files = table_files(request.format, location, Path(request.versions + MALFORMED_TABLE))
    if not malformed:
        files.clear(spark, request.version)
        return None
    report(f"{malformed:,} rows have bytes that do not fit: they go to {location}")
    rows = content.rows.where(F.col(MALFORMED).isNotNull())
    name = request.table + MALFORMED_TABLE
    files.write(rows, TableVersion(table=name, version=request.version, schema=rows.schema.json(), snapshot=content.snapshot))
    return location


def _kept_apart(request: TableRequest, spark: SparkSession) -> tuple[int, str | None]:
    """Return the number of malformed rows that an earlier attempt has written, and their location."""
    location = request.location + MALFORMED_TABLE
    files = table_files(request.format, location, Path(request.versions + MALFORMED_TABLE))
    rows = 0 if files.version(spark) is None else files.read(spark).count()
    return rows, location if rows else None


def _described(
    request: TableRequest, spark: SparkSession, files: TableFiles, version: TableVersion, shape: Shape, content: _Content
) -> TableResult:
    """Describe the table in its current state."""
    table = files.read(spark)
    groups = ["partition", *([DAY] if shape.by_day else [])]
    by_partition: dict[int, int] = {}
    by_day: dict[str, int] = {}
    for row in table.groupBy(*groups).count().collect():
        rows = int(row["count"])
        by_partition[row.partition] = by_partition.get(row.partition, 0) + rows
        if shape.by_day:
            by_day[row[DAY].isoformat()] = by_day.get(row[DAY].isoformat(), 0) + rows
    return TableResult(
        table=request.table,
        location=request.location,
        version=version.version,
        kind=content.kind,
        reason=content.reason,
        rows=sum(by_partition.values()),
        bytes=files.bytes(spark),
        seconds=0.0,
        columns=column_texts(table.schema, shape, request.descriptions, content.value_json),
        preview=preview(table),
        rows_by_partition=_of_all_tasks(by_partition, content),
        rows_by_day=dict(sorted(by_day.items())),
        snapshot=content.snapshot,
        stream_times=content.stream_times,
        inputs=content.inputs,
        changelogs=content.changelogs,
        notes=list(content.notes),
    )


def _of_all_tasks(rows: Mapping[int, int], content: _Content) -> dict[int, int]:
    """Add tasks without rows to the counts by partition, so that skew includes them. A global store counts as one task."""
    if GLOBAL_PARTITION in rows or GLOBAL_PARTITION in content.stream_times:
        return dict(rows)
    tasks = [at.partition for at in content.changelogs] or list(content.stream_times)
    return dict(sorted((dict.fromkeys(tasks, 0) | dict(rows)).items()))


@dataclass(frozen=True, slots=True)
class _Days:
    """Days to make, requested days that stay unchanged, and all days that the table then contains."""

    first: date
    last: date
    kept: list[str]
    in_all: list[str]


def _days_to_make(request: TableRequest, content: _Content, before: TableVersion | None) -> _Days:
    """Determine the days to make. A day of which the store has dropped windows is not made again: the table has more of it than the store.

    Raises WrongTableError if such a day was never made.
    """
    assert request.first_day is not None and request.last_day is not None  # checked by the caller
    first, last = date.fromisoformat(request.first_day), date.fromisoformat(request.last_day)
    whole = first if content.horizon is None else first_whole_day(content.horizon)
    known = set(before.made_days) if before is not None and before.by_day else set()
    kept = _listed(first, min(last, whole - timedelta(days=1)))
    lost = [day for day in kept if day not in known]
    if lost or first > last or whole > last:
        gone = f"{lost[0]} to {lost[-1]}" if lost else f"{request.first_day} to {request.last_day}"
        raise WrongTableError(
            f"store {request.store} no longer holds all windows of the days {gone}: the first that it holds whole is {whole}. "
            "What the table has of earlier days stays; ask for days from that one on"
        )
    first = max(first, whole)
    return _Days(first, last, kept, sorted(known | set(_listed(first, last))))


def first_whole_day(horizon: int) -> date:
    """Return the first day (UTC) of which every window starts at `horizon` (ms) or later."""
    at = datetime.fromtimestamp(max(horizon, 0) / 1000, UTC)
    day = at.date()
    return day if at == datetime(day.year, day.month, day.day, tzinfo=UTC) else day + timedelta(days=1)


def _listed(first: date, last: date) -> list[str]:
    return [(first + timedelta(days=number)).isoformat() for number in range((last - first).days + 1)]


def _vector(topic: str, offsets: Mapping[int, int]) -> list[PartitionOffset]:
    return [PartitionOffset(topic, partition, offset) for partition, offset in sorted(offsets.items())]


def _stream_times(parts: Sequence[StoreSnapshot]) -> dict[int, int]:
    return {part.partition: part.stream_time for part in parts}
