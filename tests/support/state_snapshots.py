"""Snapshots without a broker: stores of the engine that a test fills directly, in any number of tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock import serdes
from penstock.assets.spark.source.source_options import SourceOptions
from penstock.assets.spark.source.state_source import ReadPlan, StateReader
from penstock.runtime.model.ids import NextOffset, TaskId, TopicPartition
from penstock.runtime.snapshots.local import write_snapshot
from penstock.runtime.snapshots.manifest import SNAPSHOT, ApplicationManifest, encoded, read_manifest
from penstock.runtime.stores import StoreContext, Stores
from penstock.runtime.stores.base import EngineStore, EntryStore, StoreBuilder

APPLICATION = "app"
AT_MS = 1_700_000_000_000


class Tasks:
    """Stores of some tasks of a program. `store(task, name)` is open; `time` is that of the current record."""

    def __init__(self, folder: Path, builders: Sequence[StoreBuilder[Any]], tasks: int = 1) -> None:
        self.folder = folder
        self.time = AT_MS
        self.root = folder / "snapshots"
        self._offset = 0
        self._stores = {(task, builder.name): self._opened(task, builder) for task in range(tasks) for builder in builders}

    def _opened(self, task: int, builder: StoreBuilder[Any]) -> EngineStore:
        store: EngineStore = builder.build()
        folder = self.folder / "state" / str(TaskId(0, task))
        changelog = TopicPartition(f"{APPLICATION}-{builder.name}-changelog", task)
        store.open(folder, StoreContext(APPLICATION, folder, TaskId(0, task), changelog, record_time=lambda: self.time))
        return store

    def store(self, task: int, name: str) -> Any:  # noqa: ANN401 (a store of any kind)
        return self._stores[task, name]

    def commit(self) -> dict[tuple[int, str], list[tuple[bytes, bytes | None, int]]]:
        """Commit all stores, and return their changelog records."""
        self._offset += 1
        records = {}
        for (task, name), store in self._stores.items():
            if isinstance(store, EntryStore):
                store.flush_cache()
            records[task, name] = list(store.changelog_records())
            store.commit({TopicPartition(f"{APPLICATION}-{name}-changelog", task): NextOffset(self._offset)})
        return records

    def snapshot(self, name: str = "20260101T000000000-aaaaaa", stream_time: int = AT_MS) -> Path:
        """Commit, write a complete snapshot and return its folder."""
        self.commit()
        parts = []
        for task in sorted({task for task, _ in self._stores}):
            stores = {
                store: TopicPartition(f"{APPLICATION}-{of}-changelog", task) for (at, of), store in self._stores.items() if at == task
            }
            inputs = {TopicPartition("input", task): NextOffset(10 * self._offset)}
            write_snapshot(
                self.root,
                name,
                application=APPLICATION,
                task=TaskId(0, task),
                stores=stores,
                input_offsets=inputs,
                stream_time=stream_time,
                at_ms=AT_MS,
            )
            parts.append(read_manifest(self.root / name / str(TaskId(0, task))))
        manifest = ApplicationManifest.of(parts, {part.task: part.task for part in parts})
        (self.root / name / SNAPSHOT).write_bytes(encoded(manifest))
        return self.root / name

    def close(self) -> None:
        for store in self._stores.values():
            store.close()


MakeTasks = Callable[..., Tasks]
"""From builders of stores and the number of tasks."""


def made_in(folder: Path) -> Iterator[MakeTasks]:
    """For fixtures: create tasks, each in a folder of its own, and close their stores at the end."""
    made: list[Tasks] = []

    def make(*builders: StoreBuilder[Any], tasks: int = 1) -> Tasks:
        made.append(Tasks(folder / f"app{len(made)}", builders, tasks))
        return made[-1]

    yield make
    for each in made:
        each.close()


def rows_of(path: Path | str, store: str, **options: str) -> list[dict[str, Any]]:
    """Read rows from the data source, without Spark. Underscores in names of options stand for dashes."""
    plan = ReadPlan.of(
        SourceOptions.of({"path": str(path), "store": store, **{name.replace("_", "-"): value for name, value in options.items()}})
    )
    reader = StateReader(plan)
    batches: list[pa.RecordBatch] = [batch for partition in reader.partitions() for batch in reader.read(partition)]
    return [row for batch in batches for row in batch.to_pylist()]


def counts() -> StoreBuilder[Any]:
    """Return a key-value store of numbers."""
    return Stores.key_value_store_builder(Stores.persistent_key_value_store("counts"), serdes.STRING, serdes.LONG)
