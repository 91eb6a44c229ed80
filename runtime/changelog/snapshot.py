"""A task's stores as they were at one commit, left on disk for others to read.

    <state.dir>/<application.id>/snapshots/<snapshot id>/<task>/manifest.json
                                                              /<store>/            a RocksDB database, closed for good

A snapshot is taken by the worker between a commit and the next record: nothing is staged then, so data, changelog offsets and input
offsets belong together. RocksDB's checkpoint is made of hard links, so it takes milliseconds whatever the size, and whoever reads it
touches no file that the running store writes to and holds none of its locks. Snapshots are consistent per task; between tasks there is
no common cut (rules.md, 29).

The folder is built under a name with a leading dot and renamed when it is complete: a reader sees a whole snapshot or none.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from runtime.errors import StateDirectoryError
from runtime.ids import NextOffset, Partition, TaskId
from runtime.stores.base import EngineStore, StoreLayout
from runtime.stores.locks import way_out

log = logging.getLogger(__name__)

MANIFEST = "manifest.json"
KEPT = 3
"""Snapshots of an application that stay on disk: readers may still be busy with an older one."""


class PartitionOffset(msgspec.Struct, frozen=True):
    """A position: the next offset to read of a partition."""

    topic: str
    partition: int
    next_offset: int


class StoreManifest(msgspec.Struct, frozen=True, kw_only=True):
    """One store of a snapshot. `directory` is relative to the manifest. `key_format` and `value_format` are names of serdes (`STRING`,
    `JSON`, …); `kind` is as in `StoreLayout`; `changelog` is None for a store that is not logged. Sizes and retention are ms, None
    for key-value stores."""

    name: str
    kind: str
    timestamped: bool
    persistent: bool
    directory: str
    key_format: str
    value_format: str
    changelog: PartitionOffset | None
    window_size_ms: int | None = None
    retention_ms: int | None = None

    @property
    def layout(self) -> StoreLayout:
        """How the store's files are to be read."""
        return StoreLayout(self.kind, self.timestamped, self.key_format, self.value_format, self.window_size_ms, self.retention_ms)


class TaskManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a task's snapshot holds. `stream_time` and `at_ms` are ms since the epoch; stream time is -1 before the first record."""

    version: Literal[1] = 1
    application: str
    task: str
    at_ms: int
    stream_time: int
    input_offsets: list[PartitionOffset]
    stores: list[StoreManifest]


def snapshots_directory(application_directory: Path) -> Path:
    """Where the snapshots of an application lie, under `<state.dir>/<application.id>`."""
    return application_directory / "snapshots"


def write_snapshot(
    snapshots: Path,
    snapshot_id: str,
    *,
    application: str,
    task: TaskId,
    stores: Mapping[EngineStore, Partition | None],
    input_offsets: Mapping[Partition, NextOffset],
    stream_time: int,
    at_ms: int,
) -> Path:
    """Writes `<snapshots>/<snapshot_id>/<task>/` and returns it. Call it between a commit and the next record.

    `stores`: each with the partition of its changelog, None where it is not logged; those of the user's own are left out. Safe to do twice:
    a snapshot that is there already is returned as it is. The oldest snapshots beyond the newest three are removed. Raises
    StateDirectoryError where the disk refuses.
    """
    if not snapshot_id or snapshot_id.startswith(".") or "/" in snapshot_id:
        raise StateDirectoryError(f"{snapshot_id!r} cannot be the id of a snapshot: it names a folder")
    final = snapshots / snapshot_id / str(task)
    if (final / MANIFEST).exists():
        return final
    building = final.with_name(f".{task}.building")
    try:
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir(parents=True)
        manifest = TaskManifest(
            application=application,
            task=str(task),
            at_ms=at_ms,
            stream_time=stream_time,
            input_offsets=[PartitionOffset(each.topic, each.number, offset) for each, offset in sorted(input_offsets.items())],
            stores=[_write_store(building, store, changelog) for store, changelog in stores.items() if store.layout.kind != "custom"],
        )
        _write_durably(building / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=2))
        building.rename(final)
        _sync_directory(final.parent)
    except OSError as error:
        raise StateDirectoryError(
            f"snapshot {snapshot_id} of task {task} cannot be written to {final}: {error}{way_out(str(error))}"
        ) from error
    prune(snapshots)
    return final


def _write_store(building: Path, store: EngineStore, changelog: Partition | None) -> StoreManifest:
    store.checkpoint(building / store.name)
    layout = store.layout
    position = None if changelog is None else PartitionOffset(changelog.topic, changelog.number, store.committed_offset(changelog) or 0)
    return StoreManifest(
        name=store.name,
        kind=layout.kind,
        timestamped=layout.timestamped,
        persistent=store.persistent,
        directory=store.name,
        key_format=layout.key_serde,
        value_format=layout.value_serde,
        changelog=position,
        window_size_ms=layout.window_size_ms,
        retention_ms=layout.retention_ms,
    )


def _write_durably(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def prune(snapshots: Path, keep: int = KEPT) -> None:
    """Removes all but the newest `keep` snapshots. A folder that cannot be removed now is tried again with the next snapshot."""
    found = sorted((path for path in snapshots.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for path in found[keep:]:
        try:
            shutil.rmtree(path)
        except OSError as error:
            log.warning("old snapshot %s cannot be removed: %s", path, error)


def read_manifest(directory: Path) -> TaskManifest:
    """The manifest of one task's snapshot. Raises StateDirectoryError where there is none or it is of another version."""
    path = directory / MANIFEST
    try:
        return msgspec.json.decode(path.read_bytes(), type=TaskManifest)
    except FileNotFoundError as error:
        raise StateDirectoryError(f"{directory} is not a snapshot: it has no {MANIFEST}") from error
    except (OSError, msgspec.DecodeError) as error:
        raise StateDirectoryError(f"{path} cannot be read: {error}") from error


def task_snapshots(snapshot: Path) -> list[Path]:
    """The complete task folders of one snapshot (`<snapshots>/<snapshot id>`), in the order of their tasks."""
    if not snapshot.is_dir():
        raise StateDirectoryError(f"there is no snapshot at {snapshot}")
    complete = (path for path in snapshot.iterdir() if not path.name.startswith(".") and (path / MANIFEST).exists())
    return sorted(complete, key=lambda path: TaskId.parse(path.name))
