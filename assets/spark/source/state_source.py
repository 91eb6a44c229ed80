"""Spark data source for snapshots of stores: `spark.read.format("penstock.state")`.

    spark.read.format("penstock.state").option("application", "flight-board").option("store", "carriers").load()

Its options are in docs/tables.md, its columns in `formats.py`. There is one Spark partition per task, which any executor may read: it opens
the task's RocksDB, from a folder that all machines share or from a checked copy fetched from a URI, and returns Arrow batches.
The newest complete snapshot is chosen when the frame is created, and the frame keeps to it.

Rows that the engine's own reads would not return are omitted: windows, sessions and versions that had expired at the store's stream time.

There is no filter push-down, on purpose: in Spark 4 a Python source that pushes filters gives wrong rows when one DataFrame is used
twice (measured: counts of 10, 1, 1). Options have the same effect without that error.

Copies of snapshots from a URI are on the disk of an executor, fetched once for all Spark tasks that read them there.

    <first of SPARK_LOCAL_DIRS>/penstock-snapshots/<digest>/          a copy, checked against the manifest's sizes and checksums
                                                  /<digest>.lock      held during the fetch

Spark sets `SPARK_LOCAL_DIRS` for its Python processes: folders of the executor, which are removed when it ends. So a
frame that is used twice is fetched once, and no files remain. Where the variable is not set (in the processes that plan), a copy is
removed after the read.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from penstock.assets.spark.source.key_range import KeyRange, key_range
from penstock.assets.spark.source.source_options import FORMAT, SourceOptions
from penstock.assets.spark.types.formats import GLOBAL_PARTITION, MALFORMED, Decoder, base_column, is_json, key_format
from penstock.assets.spark.types.inference import infer
from penstock.runtime.model.errors import StateDirectoryError
from penstock.runtime.model.ids import TaskId
from penstock.runtime.serdes.serde import RegistrySchema
from penstock.runtime.snapshots.catalogue import Snapshot, find
from penstock.runtime.snapshots.manifest import StoreManifest, TaskManifest
from penstock.runtime.snapshots.opening import place_of
from penstock.runtime.snapshots.places import Place, place_errors
from penstock.runtime.snapshots.reading import copy_store, files_of, store_files
from penstock.runtime.stores.base import StoreSchemas
from penstock.runtime.stores.rows import Bounds, StoreRows, read_store


class StoreSnapshot(msgspec.Struct, frozen=True):
    """One task's part of a store in a snapshot; `place`: path or URI of the task's part of the snapshot."""

    place: str
    task: TaskManifest
    store: StoreManifest

    @property
    def partition(self) -> int:
        """Partition of the changelog; -1 for a global store, which holds all partitions of its topic."""
        return GLOBAL_PARTITION if self.store.is_global else TaskId.parse(self.task.task).partition

    @property
    def stream_time(self) -> int:
        """Time (ms) by which the store's entries expire: its own, or if an older manifest lacks it, the task's."""
        return self.task.stream_time if self.store.stream_time is None else self.store.stream_time


def find_store(where: str | Place, store: str, tasks: frozenset[str] = frozenset(), snapshot: str | None = None) -> list[StoreSnapshot]:
    """Return the parts of a store in a complete snapshot, ordered by task. `where` and `snapshot` are as in `catalogue.find`.

    Raises StateDirectoryError if there is no such snapshot, store or task; the message lists those that exist.
    """
    found = find(where, snapshot)
    manifests = [(task, found.task(task)) for task in found.tasks]
    parts = [
        StoreSnapshot(found.task_place(task).uri, _about(manifest, each), each)
        for task, manifest in manifests
        for each in manifest.stores
        if each.name == store
    ]
    named = f"snapshot {found.id} of {found.manifest.application}"
    if not parts:
        raise StateDirectoryError(f"{named} has no store {store!r}{_instead(found, [manifest for _, manifest in manifests], store)}")
    if unknown := tasks - {part.task.task for part in parts}:
        names = ", ".join(part.task.task for part in parts)
        raise StateDirectoryError(f"{named} has no part of store {store} of the tasks {', '.join(sorted(unknown))}; there are {names}")
    wanted = _with_all_writers([part for part in parts if not tasks or part.task.task in tasks])
    for part in wanted:
        if (part.store.layout, part.store.schemas) != (wanted[0].store.layout, wanted[0].store.schemas):
            raise StateDirectoryError(
                f"{named}: store {store} of task {part.task.task} is not of the same layout as that of task {wanted[0].task.task}: "
                "two versions of the program wrote them. Read them one by one, by the option 'tasks'"
            )
    return wanted


def _with_all_writers(parts: Sequence[StoreSnapshot]) -> list[StoreSnapshot]:
    """Give each part the writers' schemas that any of them has: a version may have been registered while the tasks wrote theirs."""
    keys = _all_writers([part.store.key_registry_schema for part in parts])
    values = _all_writers([part.store.value_registry_schema for part in parts])
    return [
        msgspec.structs.replace(
            part,
            store=msgspec.structs.replace(
                part.store,
                key_registry_schema=_replaced(part.store.key_registry_schema, keys),
                value_registry_schema=_replaced(part.store.value_registry_schema, values),
            ),
        )
        for part in parts
    ]


def _all_writers(schemas: Sequence[RegistrySchema | None]) -> dict[int, str]:
    return {number: text for schema in schemas if schema is not None for number, text in schema.writers.items()}


def _replaced(schema: RegistrySchema | None, writers: dict[int, str]) -> RegistrySchema | None:
    return None if schema is None else msgspec.structs.replace(schema, writers=writers)


def _about(task: TaskManifest, store: StoreManifest) -> TaskManifest:
    """Reduce a task's manifest to one store: with whole manifests, a plan for thousands of tasks would be too large to send."""
    return msgspec.structs.replace(task, stores=[store], files=files_of(task, store))


def _instead(found: Snapshot, manifests: Sequence[TaskManifest], store: str) -> str:
    if store in found.manifest.left_out:
        return ": it is a store of the user's own kind, whose files only the application can read"
    names = sorted({each.name for manifest in manifests for each in manifest.stores})
    return f"; there are {', '.join(names) or 'none'}"


@dataclass(frozen=True)
class ReadPlan:
    """Everything an executor needs, except the task."""

    options: SourceOptions
    parts: list[StoreSnapshot]
    schemas: StoreSchemas

    @classmethod
    def of(cls, options: SourceOptions) -> ReadPlan:
        """Find the snapshot, and infer the type of values without a declared one. Raises StateDirectoryError, and ValueError for
        options that do not fit the store."""
        parts = find_store(_place(options), options.store, options.tasks, options.snapshot)
        first = parts[0].store
        plan = cls(options, parts, first.schemas)
        columns = None if options.columns is None else list(map(base_column, options.columns))
        known = Decoder.of(first.layout, plan.schemas, options.value_schema, columns).schema.names
        plan.bounds()  # reports invalid options before anything is read
        wanted = {"key", "value"} if MALFORMED in known else {"key", "value"} & {*known}
        if first.key_schema is not None or not is_json(first.key_format, None):
            wanted.discard("key")
        if options.value_schema is not None or first.value_schema is not None or not is_json(first.value_format, None):
            wanted.discard("value")
        return plan if not wanted else replace(plan, schemas=plan._inferred(wanted))

    def decoder(self) -> Decoder:
        layout = self.parts[0].store.layout
        return Decoder.of(layout, self.schemas, self.options.value_schema, self.options.columns)

    def bounds(self) -> tuple[Bounds, KeyRange]:
        """Return the ranges of a store's files to read, and the filter on their rows."""
        options, layout = self.options, self.parts[0].store.layout
        keys = key_range(layout.key_serde, key_format(layout, self.schemas), options.from_key, options.to_key)
        bounds = Bounds(keys.lo, keys.hi, options.from_time, options.to_time)
        if bounds.of_time and layout.retention_ms is None:
            raise ValueError(
                f"the options 'from-time' and 'to-time' are for windows, sessions and versions; {options.store} is a {layout.kind} store"
            )
        return bounds, keys

    def rows(self, part: StoreSnapshot) -> Iterator[StoreRows]:
        """Return the rows of one task. Raises StateDirectoryError if its files are missing, damaged, or belong to another task."""
        place = place_of(part.place)
        if place.local is not None and not place.local.is_dir():
            raise StateDirectoryError(
                f"{place} is not on {platform.node()} (any more): only so many snapshots are kept, and executors read them from a folder "
                "that all machines share or from a URI. Export it: penstock snapshot export"
            )
        bounds, keys = self.bounds()
        with fetched(place, part.task, part.store) as folder:
            for rows in read_store(folder, part.store.layout, bounds):
                yield keys.within(rows)

    def _inferred(self, wanted: set[str]) -> StoreSchemas:
        """Return the schemas, with types of untyped JSON inferred from its bytes."""
        key = infer(rows.keys for rows in self._sampled()) if "key" in wanted else self.schemas.key
        value = infer(rows.values for rows in self._sampled()) if "value" in wanted else self.schemas.value
        return replace(self.schemas, key=key, value=value)

    def _sampled(self) -> Iterator[StoreRows]:
        for part in self.parts:
            left = self.options.sample
            for rows in self.rows(part):
                if left is not None:
                    rows = rows.where(pa.array([place < left for place in range(len(rows))], pa.bool_()))
                    left -= len(rows)
                yield rows
                if left == 0:
                    break


def _place(options: SourceOptions) -> str | Place:
    if options.path is not None:
        place = place_of(options.path)
        return place if options.application is None else place / options.application
    # Only a process with the control plane's folder can omit the location of snapshots: executors have none.
    from penstock.orchestration.declarations.project_paths import ProjectPaths

    assert options.application is not None
    return place_of(ProjectPaths.find().snapshots(options.application))


class TaskPartition(InputPartition):
    """Part of a scan that reads one task's store; `place` is an index into the parts of the plan."""

    def __init__(self, place: int) -> None:
        super().__init__(place)
        self.place = place


class StateReader(DataSourceReader):
    """Plans one partition per task and reads it."""

    def __init__(self, plan: ReadPlan) -> None:
        self._plan = plan

    def partitions(self) -> list[TaskPartition]:
        return [TaskPartition(place) for place in range(len(self._plan.parts))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TaskPartition)
        part = self._plan.parts[partition.place]
        decoder = self._plan.decoder()

        def refuse(key: bytes | None, reason: str) -> None:
            raise StateDirectoryError(
                f"store {part.store.name} of task {part.task.task}: the row with the key {key!r} does not fit ({reason}). "
                "Mode PERMISSIVE keeps such rows apart"
            )

        strict = refuse if self._plan.options.mode == "FAILFAST" else None
        for rows in self._plan.rows(part):
            yield decoder.batch(part.partition, rows, strict)


class StateDataSource(DataSource):
    """See the module's docstring."""

    _planned: ReadPlan | None = None
    """Cached: Spark requests the schema first, and then pickles this object for the reader."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def _plan(self) -> ReadPlan:
        if self._planned is None:
            self._planned = ReadPlan.of(SourceOptions.of(self.options))
        return self._planned

    def schema(self) -> StructType:
        return self._plan().decoder().schema

    def reader(self, schema: StructType) -> StateReader:
        """Create the reader. `schema`: this source's own, or the user's: columns in any order, with their actual types."""
        plan = self._plan()
        known = {field.name: field.dataType for field in plan.decoder().schema.fields}
        for field in schema.fields:
            if field.name in known and field.dataType.simpleString() != known[field.name].simpleString():
                raise ValueError(
                    f"the column {field.name!r} of store {plan.options.store} is {known[field.name].simpleString()}, not "
                    f"{field.dataType.simpleString()}; the option 'value-schema' declares the type of values in JSON"
                )
        asked = plan.options.columns or schema.names
        columns = [each for name in schema.names for each in ([each for each in asked if base_column(each) == name] or [name])]
        return StateReader(replace(plan, options=replace(plan.options, columns=tuple(columns))))


LOCAL_DIRS = "SPARK_LOCAL_DIRS"
_FOLDER = "penstock-snapshots"


@contextmanager
def fetched(place: Place, task: TaskManifest, store: StoreManifest) -> Iterator[Path]:
    """Return the folder of a store's files, for reading; `place` is that of the task's part. Raises StateDirectoryError, naming the file,
    if one is missing or damaged, or cannot be written here."""
    kept = os.environ.get(LOCAL_DIRS, "").split(",")[0]
    if place.local is not None or not kept:
        with store_files(place, task, store) as folder:
            yield folder
        return
    yield _fetched_copy(place, task, store, Path(kept) / _FOLDER) / store.directory


def _fetched_copy(place: Place, task: TaskManifest, store: StoreManifest, cache: Path) -> Path:
    """Return the copy; fetch it if necessary. If several processes want it, one fetches, and the others wait for it."""
    files = msgspec.json.encode(files_of(task, store))
    copy = cache / hashlib.sha256(f"{place.uri}\0{store.name}\0".encode() + files).hexdigest()[:32]
    if copy.is_dir():
        return copy
    with place_errors("written", cache):
        cache.mkdir(parents=True, exist_ok=True)
        lock = copy.with_suffix(".lock").open("w")
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if copy.is_dir():
            return copy
        building = copy.with_suffix(".building")
        shutil.rmtree(building, ignore_errors=True)  # left by a process that was killed
        try:
            copy_store(place, task, store, building)
        except StateDirectoryError:
            shutil.rmtree(building, ignore_errors=True)
            raise
        building.rename(copy)
    return copy
