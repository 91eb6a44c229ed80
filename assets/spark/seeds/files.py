"""Executor's part of writing a seed: sorted entries become a store's RocksDB in the folder of the seed.

A part is one task's share of one store. It is built elsewhere and moved when it is complete, to a name that contains its attempt:
`<task>/<store>.<attempt>/`. A failed attempt, a speculative one, and one that lost against its duplicate leave a folder, or an incomplete
one, that no manifest names; the driver removes them. So attempts never collide, not even on object stores, which have no rename.

Segments arrive newest first. So all records that advance stream time past an older segment are known before that segment begins, and a
segment that the engine would have dropped is counted and not written. A segment that is still alive is written whole, as in the engine:
reads filter its expired entries.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

from penstock.assets.spark.seeds.plan import SeedPlan, StorePlan
from penstock.assets.spark.seeds.rows import LATEST, NOTES, SHOWN, BatchNotes
from penstock.runtime.snapshots.manifest import SnapshotFile
from penstock.runtime.snapshots.opening import place_of
from penstock.runtime.snapshots.places import Place, place_errors
from penstock.runtime.stores.rocks_loading import SortedStore

BUILDING = ".building"
"""Folder in a seed where parts are built."""
_PIECE = 8 * 1024 * 1024


class PartReport(msgspec.Struct, frozen=True):
    """Report on a written part, or, if `partition` is None, on rows that are not entries. `directory` and the files' paths are
    relative to the task's folder; times are ms, -1 for none."""

    partition: int | None
    directory: str = ""
    rows: int = 0
    expired: int = 0
    duplicates: int = 0
    examples: list[str] = []
    time: int = -1
    observed: int = -1
    files: list[SnapshotFile] = []
    notes: BatchNotes | None = None


REPORTS = pa.schema([("report", pa.binary())])


def write_parts(plan: StorePlan, seed: str, attempt: str, batches: Iterable[pa.RecordBatch]) -> Iterator[PartReport]:
    """Write parts from entries (`ENTRIES`, ordered by partition, descending segment, and key) into the folder or URI `seed`. Raises
    StateDirectoryError."""
    notes, part = BatchNotes(), None
    try:
        for batch in batches:
            for run in _runs(batch):
                partition, segment = run.column("partition")[0].as_py(), run.column("segment")[0].as_py()
                if segment == NOTES:
                    for note in run.column("note").to_pylist():
                        notes.add(msgspec.json.decode(note, type=BatchNotes))
                    continue
                if part is not None and part.partition != partition:
                    yield part.finish()
                    part = None
                if part is None:
                    part = PartWriter(plan, place_of(seed), partition, attempt)
                part.add(segment, run)
        if part is not None:
            yield part.finish()
            part = None
        if notes.nulls or notes.malformed:
            yield PartReport(partition=None, notes=notes)
    finally:
        if part is not None:
            part.abandon()


def add_empty_parts(parts: dict[str, list[PartReport]], plan: SeedPlan, place: Place) -> None:
    """Give each task every store of its sub-topology, including stores without rows and tasks to which no key belongs."""
    for name, store in plan.stores.items():
        found = parts.setdefault(name, [])
        tasks = sum(task.subtopology == store.sub_topology for task in plan.inputs)
        found += [PartWriter(store, place, number, "empty").finish() for number in range(len(found), tasks)]


def _runs(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split a batch where the partition or the segment changes."""
    if not batch.num_rows:
        return
    partitions, segments = np.asarray(batch.column("partition")), np.asarray(batch.column("segment"))
    cuts = np.flatnonzero((partitions[1:] != partitions[:-1]) | (segments[1:] != segments[:-1])) + 1
    starts = [0, *cuts.tolist(), batch.num_rows]
    for start, end in pairwise(starts):
        yield batch.slice(start, end - start)


class PartWriter:
    """Writer of one task's share of a store."""

    def __init__(self, plan: StorePlan, seed: Place, partition: int, attempt: str) -> None:
        self.partition = partition
        self._plan = plan
        self._settings = plan.settings
        self._segments = self._settings.times.segments if self._settings.times is not None else None
        self._task = str(plan.task(partition))
        self._name = f"{plan.name}.{attempt}"
        self._seed = seed
        self._folder = _building(seed) / f"{self._task}-{self._name}"
        self._store = SortedStore(self._folder)
        self._segment: int | None = None
        self._alive = True
        self._last: bytes | None = None
        self._rows = self._expired = self._duplicates = 0
        self._examples: list[str] = []
        self._time = self._observed = -1
        if self._settings.kind == "key_value":
            self._store.family(self._settings.family)

    def add(self, segment: int, run: pa.RecordBatch) -> None:
        """Add entries of one segment in the order of their keys. Newer segments must come first."""
        if segment != self._segment:
            self._begin(segment)
        self._time = max(self._time, int(np.asarray(run.column("time")).max()))
        self._observed = max(self._observed, int(np.asarray(run.column("observed")).max()))
        if not self._alive:
            self._expired += run.num_rows
            return
        keys, values = run.column("entry_key").to_pylist(), run.column("entry_value").to_pylist()
        entries = list(zip(keys, values, strict=True))
        repeated = [here for here, (before, key) in enumerate(zip([self._last, *keys], keys, strict=False)) if before == key]
        for here in reversed(repeated):
            self._duplicates += 1
            if len(self._examples) < SHOWN:
                self._examples.append(repr(keys[here]))
            del entries[here]
        self._store.put_all(entries)
        self._rows += len(entries)
        self._last = keys[-1]

    def _begin(self, segment: int) -> None:
        self._segment, self._last = segment, None
        if self._segments is None:
            return
        first = max(0, self._time - self._segments.retention_ms + 1) // self._segments.segment_ms
        self._alive = segment >= first
        if self._alive:
            self._store.family("latest" if segment == LATEST else f"segment.{segment * self._segments.segment_ms}")

    def finish(self) -> PartReport:
        """Complete the store and move it to its place."""
        try:
            if self._settings.kind == "versioned" and self._segment is None:
                self._store.family("latest")
            self._store.finish({}, self._plan.meta(self._time, self._observed))
            files = [_described(path, self._name, self._folder) for path in sorted(self._folder.iterdir())]
            _move(self._folder, self._seed / self._task / self._name)
        except BaseException:
            self.abandon()
            raise
        return PartReport(
            partition=self.partition,
            directory=self._name,
            rows=self._rows,
            expired=self._expired,
            duplicates=self._duplicates,
            examples=self._examples,
            time=self._time,
            observed=self._observed,
            files=files,
        )

    def abandon(self) -> None:
        """Remove everything written."""
        self._store.abandon()


def _building(seed: Place) -> Path:
    """Return the folder in which parts are built: on the seed's disk if the seed is a folder, else on this machine."""
    local = seed.local
    return local / BUILDING if local is not None else Path(tempfile.gettempdir()) / f"penstock-seed-{os.getpid()}"


def _described(path: Path, directory: str, folder: Path) -> SnapshotFile:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return SnapshotFile(f"{directory}/{path.relative_to(folder)}", path.stat().st_size, digest)


def _move(folder: Path, target: Place) -> None:
    if target.local is not None:
        with place_errors("written", target):
            target.local.parent.mkdir(parents=True, exist_ok=True)
            folder.rename(target.local)
        return
    for path in sorted(folder.iterdir()):
        with path.open("rb") as file:
            (target / path.name).write(iter(lambda: file.read(_PIECE), b""))
    shutil.rmtree(folder)
