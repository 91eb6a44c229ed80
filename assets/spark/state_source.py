"""A Spark data source over the snapshots of stores: `spark.read.format("state")`.

    spark.read.format("state").option("path", ".../snapshots/<id>").option("store", "carriers").load()

    option   meaning
    path     folders of snapshots, joined by a comma: one per instance that runs tasks of the application
    store    the store's name
    tasks    tasks to read, joined by a comma (`0_0,0_3`); default: all that have the store

One Spark partition per task. Each reads its RocksDB from the snapshot's files and hands over Arrow batches. The columns follow from the
snapshot's manifest (`formats.row_schema`); windows that had expired at the task's stream time are left out, although their files may
still be there.

There is no filter push-down, on purpose: in Spark 4 a Python source that pushes filters gives wrong rows when one DataFrame is used
twice (measured: counts of 10, 1, 1). Options say the same and cannot go wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from assets.spark.formats import row_schema, to_arrow
from runtime.changelog.snapshot import StoreManifest, TaskManifest, read_manifest, task_snapshots
from runtime.errors import StateDirectoryError
from runtime.ids import TaskId
from runtime.stores.files import StoreRows, read_store


class StoreSnapshot(msgspec.Struct, frozen=True):
    """One task's part of a store in a snapshot; `directory` is the task's folder."""

    directory: str
    task: TaskManifest
    store: StoreManifest

    @property
    def partition(self) -> int:
        return TaskId.parse(self.task.task).partition

    @property
    def horizon(self) -> int | None:
        """The first window start (ms) that has not expired at the task's stream time; None for a store without retention."""
        if self.store.retention_ms is None:
            return None
        return self.task.stream_time - self.store.retention_ms + 1


def find_store(path: str, store: str, tasks: frozenset[str] = frozenset()) -> list[StoreSnapshot]:
    """The parts of a store in the snapshots at `path` (folders joined by a comma), in the order of their tasks.

    Raises StateDirectoryError where there is no such snapshot, store or task; it names those that there are.
    """
    found: list[StoreSnapshot] = []
    stores: set[str] = set()
    for folder in path.split(","):
        for directory in task_snapshots(Path(folder.strip())):
            manifest = read_manifest(directory)
            stores.update(each.name for each in manifest.stores)
            found += [StoreSnapshot(str(directory), manifest, each) for each in manifest.stores if each.name == store]
    if not found:
        raise StateDirectoryError(f"no task in the snapshot {path} has a store {store!r}; there are {', '.join(sorted(stores)) or 'none'}")
    found.sort(key=lambda each: TaskId.parse(each.task.task))
    if unknown := tasks - {each.task.task for each in found}:
        names = ", ".join(each.task.task for each in found)
        raise StateDirectoryError(f"tasks {', '.join(sorted(unknown))} are not in the snapshot {path}; there are {names}")
    return [each for each in found if not tasks or each.task.task in tasks]


class TaskPartition(InputPartition):
    """The part of a scan that reads one task's store."""

    def __init__(self, directory: str, store: str, partition: int, horizon: int | None) -> None:
        super().__init__(partition)
        self.directory = directory
        self.store = store
        self.partition = partition
        self.horizon = horizon


class StateReader(DataSourceReader):
    """Plans one partition per task and reads it."""

    def __init__(self, path: str, store: str, tasks: frozenset[str]) -> None:
        self._path = path
        self._store = store
        self._tasks = tasks

    def partitions(self) -> list[TaskPartition]:
        return [
            TaskPartition(str(Path(each.directory) / each.store.directory), self._store, each.partition, each.horizon)
            for each in find_store(self._path, self._store, self._tasks)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TaskPartition)
        directory = Path(partition.directory)
        manifest = read_manifest(directory.parent)
        layout = next(store for store in manifest.stores if store.name == partition.store).layout
        for rows in read_store(directory, layout):
            yield to_arrow(layout, partition.partition, alive(rows, partition.horizon))


def alive(rows: StoreRows, horizon: int | None) -> StoreRows:
    """The rows whose window has not expired; all of them where there is no horizon."""
    if horizon is None or rows.window_starts is None or min(rows.window_starts, default=horizon) >= horizon:
        return rows
    kept = [row for row, start in enumerate(rows.window_starts) if start >= horizon]
    return StoreRows(
        [rows.keys[row] for row in kept],
        [rows.values[row] for row in kept],
        None if rows.timestamps is None else [rows.timestamps[row] for row in kept],
        [rows.window_starts[row] for row in kept],
    )


class StateDataSource(DataSource):
    """See the module's docstring."""

    @classmethod
    def name(cls) -> str:
        return "state"

    def _store(self) -> tuple[str, str, frozenset[str]]:
        options: Mapping[str, str] = self.options
        missing = [name for name in ("path", "store") if not options.get(name)]
        if missing:
            raise ValueError(f"format 'state' needs the option {missing[0]!r}; its options are path, store, tasks")
        unknown = sorted(set(options) - {"path", "store", "tasks"})
        if unknown:
            raise ValueError(f"format 'state' does not know the option {unknown[0]!r}; its options are path, store, tasks")
        tasks = frozenset(task.strip() for task in options.get("tasks", "").split(",") if task.strip())
        return options["path"], options["store"], tasks

    def schema(self) -> StructType:
        return row_schema(find_store(*self._store())[0].store.layout)

    def reader(self, schema: StructType) -> StateReader:
        return StateReader(*self._store())
