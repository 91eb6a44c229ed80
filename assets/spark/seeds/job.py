"""Spark job that writes state computed from history as a seed for the start of an application.

    <root>/<seed id>/<task>/manifest.json                  as of a snapshot (`runtime/snapshots/manifest.py`)
                           /<store>.<attempt>/             a RocksDB, made of sorted SST files
                    /snapshot.json                         written last, kind "seed"

The problem: a store is not one table but a RocksDB per task, with keys and values as the serdes write them, each in the task to which
Kafka's partitioner sends its key, and as large as the history. The solution: rows become entries of the store where they are read; Spark's
shuffle collects those of a task and sorts them by the bytes of their keys, on disk if necessary; one pass over them writes SST files.
So neither the driver nor an executor ever holds more than a batch.

(Rejected: a RocksDB that executors write to with `put`, which sorts everything once more and compacts it; and producing history to the
changelog for the engine to restore, which is slow, and repeats the sort on every instance and after every loss of a disk.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import DateType, IntegerType, LongType, TimestampNTZType, TimestampType

from penstock.assets.spark.seeds.files import BUILDING, REPORTS, PartReport, PartWriter, add_empty_parts, write_parts
from penstock.assets.spark.seeds.partitioner import slots
from penstock.assets.spark.seeds.plan import SeedApplication, SeedPlan, StorePlan, plan_seed
from penstock.assets.spark.seeds.rows import ENTRIES, OF_TABLE, SHOWN, VERSIONS, BatchNotes, SeedEncoder, version_entries
from penstock.assets.spark.session.explained import SPARK_ERRORS, explained
from penstock.orchestration.declarations.errors import ExpectedError
from penstock.orchestration.declarations.spark_settings import SparkSettings
from penstock.runtime.model.clock import SystemClock
from penstock.runtime.model.ids import TaskId
from penstock.runtime.snapshots.local import known_schemas, store_manifest
from penstock.runtime.snapshots.manifest import (
    MANIFEST,
    SNAPSHOT,
    ApplicationManifest,
    PartitionOffset,
    PartitionTime,
    TaskManifest,
    encoded,
    new_snapshot_id,
)
from penstock.runtime.snapshots.opening import place_of
from penstock.runtime.snapshots.places import Place

log = logging.getLogger(__name__)

TIMES = {
    "key_value": (),
    "window": ("window_start",),
    "session": ("window_start", "window_end"),
    "versioned": ("valid_from",),
}
"""Time columns that rows of each kind of store must have, besides `timestamp` if the store keeps one."""
_BESIDE = {"window": ("window_end",), "versioned": ("valid_to",)}
_OF_TABLES = ("partition", "_malformed")
"""Ignored columns of a table made from a store. The partition is computed again: the number of tasks may have changed."""


class SeedError(ExpectedError):
    """The rows do not fit the store; the message names the rows and the reason. No seed was written."""


class SeededStore(msgspec.Struct, frozen=True, kw_only=True):
    """Result for a store. `nulls`: rows without a value, which are not entries; `expired`: rows whose time was over at their task's stream
    time, in segments that the engine would have dropped too."""

    name: str
    rows: int
    nulls: int
    expired: int


class SeedResult(msgspec.Struct, frozen=True, kw_only=True):
    """Complete seed. `place` is its folder or URI, for `penstock start --seed`. `left_empty` are the stores of the application for which no
    rows were given: they start empty."""

    seed: str
    place: str
    stores: list[SeededStore]
    left_empty: list[str]
    tasks: int
    bytes: int


def write_seed(
    frames: Mapping[str, DataFrame],
    *,
    application: str,
    factory: str,
    config: Mapping[str, object],
    root: str,
    offsets: Mapping[str, Mapping[int, int]],
    stream_time: datetime | int | None = None,
    at_ms: int | None = None,
    report: Callable[[str], None] = log.info,
) -> SeedResult:
    """Write a seed of `application` from a table per store into `<root>/<id>/`; `root` is a folder that all executors share, or a URI.

    A table has the columns of a table made from the store: `key`; for windows `window_start` (`window_end` is optional), for sessions
    both, for versioned stores `valid_from` (`valid_to` is optional); `value`, or instead a column per field of it; `timestamp` if the store
    keeps one. Times are timestamps, dates, or numbers of milliseconds. `factory` (`module:function`) and `config` are the application's
    own. `offsets` are the next offsets of every partition of its source topics: the rows contain everything before them, and the stream
    continues from there. `stream_time`: the stream time at that point, if the rows do not determine it; it decides which records are late
    for the application.

    `report` is called with the name of each step. Raises SeedError for rows that do not fit (a null or repeated key, a value that
    its serde cannot write), TopologyError for a store that is unknown or cannot be seeded, WrongPartitionsError for wrong offsets,
    StateDirectoryError if the disk cannot be written. Nothing is left behind then. Safe to repeat: each seed has a folder of its own.
    """
    if not frames:
        raise SeedError("no rows of any store were given: there is nothing to seed")
    plan = plan_seed(SeedApplication.of(application, factory, config), tuple(frames), offsets)
    inputs = {name: _input(frame, plan.stores[name]) for name, frame in frames.items()}
    moment = SystemClock().wall_ms() if at_ms is None else at_ms
    seed = new_snapshot_id(moment)
    place = place_of(root) / seed
    given_time = int(stream_time.timestamp() * 1000) if isinstance(stream_time, datetime) else stream_time or -1
    try:
        parts: dict[str, list[PartReport]] = {}
        notes: dict[str, BatchNotes] = {}
        for name, rows in inputs.items():
            report(f"writing store {name}")
            parts[name], notes[name] = _write_store(rows, plan.stores[name], place)
        _refuse(parts, notes)
        add_empty_parts(parts, plan, place)
        sweep(place, parts, plan)
        tasks = _task_manifests(plan, parts, seed, moment, given_time)
        for task in tasks:
            (place / task.task / MANIFEST).write(iter([encoded(task)]))
        formats = {name: store.settings.format() for name, store in plan.stores.items()}
        places = {task.task: task.task for task in tasks}
        whole = ApplicationManifest.of(tasks, places, topology_hash=plan.topology_hash, kind="seed", formats=formats)
        (place / SNAPSHOT).write(iter([encoded(whole)]))
    except BaseException:
        place.remove()
        raise
    stores = [
        SeededStore(name=name, rows=sum(part.rows for part in found), nulls=notes[name].nulls, expired=sum(part.expired for part in found))
        for name, found in parts.items()
        if name in notes
    ]
    return SeedResult(
        seed=seed,
        place=place.uri,
        stores=stores,
        left_empty=list(plan.left_empty),
        tasks=len(tasks),
        bytes=sum(task.bytes for task in tasks),
    )


# --- validation of rows --------------------------------------------------------------------------------------------------------------


def _input(frame: DataFrame, plan: StorePlan) -> DataFrame:
    """Select the columns to encode: key, value and times in ms. Raises SeedError for missing and for unknown columns."""
    settings, names = plan.settings, set(frame.columns)
    needed = [*TIMES[settings.kind], *(["timestamp"] if settings.timestamped else [])]
    beside = [name for name in (*_BESIDE.get(settings.kind, ()), "timestamp") if name in names and name not in needed]
    missing = [name for name in ("key", *needed) if name not in names]
    if missing:
        raise SeedError(
            f"store {plan.name}: the rows have no column {missing[0]!r}. A {settings.kind.replace('_', '-')} store needs key, "
            f"{', '.join([*needed, 'value'])}; there are {', '.join(frame.columns)}"
        )
    fields = [name for name in frame.columns if name not in {"key", "value", *needed, *beside, *_OF_TABLES}]
    if "value" in names and fields:
        raise SeedError(f"store {plan.name}: column {fields[0]!r} is neither key, time nor value, and would be lost: drop it")
    if "value" not in names and not fields:
        raise SeedError(f"store {plan.name}: the rows have no column 'value', nor columns for the fields of one")
    columns = [
        F.col("key"),
        (F.col("value") if "value" in names else F.struct(*[_quoted(name) for name in fields])).alias("value"),
        *[_milliseconds(frame, name, plan.name).alias(name) for name in [*needed, *beside]],
    ]
    if names & {*_OF_TABLES}:
        columns.append(F.lit(True).alias(OF_TABLE))
    if "_malformed" in names:
        columns.append(F.col("_malformed").isNotNull().alias("_malformed"))
    return frame.select(*columns)


def _quoted(name: str) -> Column:
    return F.col(f"`{name.replace('`', '``')}`")


def _milliseconds(frame: DataFrame, name: str, store: str) -> Column:
    found = milliseconds(frame, name)
    if found is None:
        kind = frame.schema[name].dataType.simpleString()
        raise SeedError(f"store {store}: column {name!r} is {kind}, not a timestamp, a date or milliseconds")
    return found


def milliseconds(frame: DataFrame, name: str) -> Column | None:
    """Return a column of times as milliseconds since the epoch; None if its type is not one of times."""
    match frame.schema[name].dataType:
        case TimestampType():
            return F.unix_millis(F.col(name))
        case TimestampNTZType() | DateType():
            return F.unix_millis(F.col(name).cast("timestamp"))
        case LongType() | IntegerType():
            return F.col(name).cast("long")
        case _:
            return None


# --- the job -------------------------------------------------------------------------------------------------------------------------


def _write_store(rows: DataFrame, plan: StorePlan, place: Place) -> tuple[list[PartReport], BatchNotes]:
    """Write all parts of a store, including those without rows. Return reports in the order of partitions, and notes on rows that are no
    entries."""
    places, seed = slots(plan.partitions), place.uri

    def encode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return SeedEncoder(plan, places).entries(batches)

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        attempt = str(context.taskAttemptId()) if context is not None else "0"
        for found in write_parts(plan, seed, attempt, batches):
            yield pa.RecordBatch.from_arrays([pa.array([msgspec.json.encode(found)])], schema=REPORTS)

    if plan.settings.kind == "versioned":
        entries = _with_ends(rows.mapInArrow(encode, from_arrow_schema(VERSIONS)), plan)
    else:
        entries = rows.mapInArrow(encode, from_arrow_schema(ENTRIES))
    order = [F.col("partition"), F.col("segment").desc(), F.col("entry_key")]
    written = entries.repartition(plan.partitions, "slot").sortWithinPartitions(*order).mapInArrow(write, from_arrow_schema(REPORTS))
    try:
        reports = [msgspec.json.decode(row.report, type=PartReport) for row in written.collect()]
    except SPARK_ERRORS as error:
        raise SeedError(f"store {plan.name}: {explained(error, SparkSettings())}") from error
    notes = BatchNotes()
    for found in reports:
        if found.notes is not None:
            notes.add(found.notes)
    parts = {found.partition: found for found in reports if found.partition is not None}
    for number in range(plan.partitions):
        if number not in parts:
            parts[number] = PartWriter(plan, place, number, "empty").finish()
    return [parts[number] for number in range(plan.partitions)], notes


def _with_ends(versions: DataFrame, plan: StorePlan) -> DataFrame:
    """Set the end of each version to the start of the next one of its key."""
    times = plan.settings.times
    assert times is not None  # always set for a versioned store
    segment_ms = times.segments.segment_ms
    of_key = Window.partitionBy("partition", "version_key").orderBy("since")

    def entries(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return version_entries(segment_ms, batches)

    return versions.withColumn("next_since", F.lead("since").over(of_key)).mapInArrow(entries, from_arrow_schema(ENTRIES))


def _refuse(parts: Mapping[str, list[PartReport]], notes: Mapping[str, BatchNotes]) -> None:
    """Raise SeedError if rows do not fit; the message counts them and shows some."""
    problems = []
    for name, found in parts.items():
        if notes[name].malformed:
            problems.append(f"store {name}: {notes[name].malformed:,} rows do not fit: {'; '.join(notes[name].examples)}")
        duplicates = sum(part.duplicates for part in found)
        if duplicates:
            examples = [text for part in found for text in part.examples][:SHOWN]
            problems.append(f"store {name}: {duplicates:,} rows have the key (and time) of another row: {', '.join(examples)}")
    if problems:
        raise SeedError(". ".join(problems))


def sweep(place: Place, parts: Mapping[str, list[PartReport]], plan: SeedPlan) -> None:
    """Remove files of attempts that do not count. Raises SeedError if the written files are not visible from here."""
    (place / BUILDING).remove()
    kept = {(str(plan.stores[name].task(number)), part.directory) for name, found in parts.items() for number, part in enumerate(found)}
    seen = {(task.name, folder.name): folder for task in place.children() for folder in task.children()}
    for each in sorted(kept - set(seen)):
        raise SeedError(
            f"{place}/{each[0]}/{each[1]} was written, but is not there: the root must be a folder that all executors share, or a URI"
        )
    for each, left in seen.items():
        if each not in kept:
            left.remove()


# --- manifests -----------------------------------------------------------------------------------------------------------------------


def _task_manifests(plan: SeedPlan, parts: Mapping[str, list[PartReport]], seed: str, at_ms: int, given_time: int) -> list[TaskManifest]:
    """Return a manifest per task of the application, with or without rows."""
    stores = plan.stores
    builders = {name: stores[name].builder.build() for name in parts}
    schemas = {name: known_schemas(store, [stores[name].changelog]) for name, store in builders.items()}
    found: dict[TaskId, dict[str, PartReport]] = {task: {} for task in plan.inputs}
    for name, written in parts.items():
        for number, part in enumerate(written):
            found[stores[name].task(number)][name] = part
    manifests = []
    for task, of_task in sorted(found.items()):
        time = max(given_time, *(part.observed for part in of_task.values()), -1)
        manifests.append(
            TaskManifest(
                application=plan.application.id,
                snapshot=seed,
                task=str(task),
                at_ms=at_ms,
                stream_time=time,
                input_offsets=PartitionOffset.of(plan.inputs[task]),
                partition_times=[PartitionTime(each.topic, each.partition, time) for each in sorted(plan.inputs[task])],
                stores=[
                    store_manifest(builders[name], part.directory, None, stream_time=_store_time(stores[name], part), schemas=schemas[name])
                    for name, part in sorted(of_task.items())
                ],
                files=sorted((file for part in of_task.values() for file in part.files), key=lambda file: file.path),
            )
        )
    return manifests


def _store_time(plan: StorePlan, part: PartReport) -> int | None:
    return part.time if plan.settings.times is not None else None
