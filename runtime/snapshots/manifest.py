"""What says of a snapshot what it holds: one file per task, and one for the application.

    <root>/<snapshot id>/<task>/manifest.json     `TaskManifest`: written last of the task's files
                               /<store>/          a RocksDB database, closed for good
    <root>/<snapshot id>/snapshot.json            `ApplicationManifest`: written when every task's part is there

A folder without the file that is written last is not read by anybody: it is half there, or still being written. A seed is a snapshot that
was computed elsewhere (`kind`).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from runtime.errors import StateDirectoryError
from runtime.ids import NextOffset, Partition, TaskId
from runtime.serdes.serde import RegistrySchema
from runtime.stores.base import StoreLayout, StoreSchemas

MANIFEST = "manifest.json"
"""A task's, in its folder."""
SNAPSHOT = "snapshot.json"
"""The application's, beside the tasks' folders."""
GLOBAL = "global"
"""The pseudo-task that holds the global stores."""

M = TypeVar("M", bound=msgspec.Struct)


class PartitionOffset(msgspec.Struct, frozen=True):
    """A position: the next offset to read of a partition."""

    topic: str
    partition: int
    next_offset: int

    @classmethod
    def of(cls, offsets: Mapping[Partition, NextOffset]) -> list[PartitionOffset]:
        """In the order of topics and partitions."""
        return [cls(partition.topic, partition.number, offset) for partition, offset in sorted(offsets.items())]


class PartitionTime(msgspec.Struct, frozen=True):
    """The partition time of an input (ms since the epoch; -1 before the first record)."""

    topic: str
    partition: int
    time_ms: int

    @classmethod
    def of(cls, times: Mapping[Partition, int]) -> list[PartitionTime]:
        """In the order of topics and partitions."""
        return [cls(partition.topic, partition.number, time_ms) for partition, time_ms in sorted(times.items())]


class SnapshotFile(msgspec.Struct, frozen=True):
    """A file of a task's snapshot: its path relative to the manifest, its size, and its SHA-256 in hex, which a copy elsewhere has."""

    path: str
    bytes: int
    sha256: str | None = None


class StoreManifest(msgspec.Struct, frozen=True, kw_only=True):
    """One store of a snapshot.

    `directory` is relative to the manifest. `key_format` and `value_format` are names of serdes (`STRING`, `JSON`, …). `key_schema` and
    `value_schema` are the JSON Schemas of bytes that are JSON, where a type was declared; the `…registry_schema`s are those of serdes of
    a Schema Registry. `changelog` is None for a store that is not logged; a global store has its `topic` in its place, whose offsets are
    the task's input offsets. `stream_time` is the store's own, the largest time that was put into one with retention (-1: none
    yet), by which its entries expire; None for other stores. The rest is as in `StoreLayout`.
    """

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
    segment_ms: int | None = None
    duplicates: bool = False
    key_schema: dict[str, object] | None = None
    value_schema: dict[str, object] | None = None
    key_registry_schema: RegistrySchema | None = None
    value_registry_schema: RegistrySchema | None = None
    is_global: bool = False
    topic: str | None = None
    stream_time: int | None = None

    @property
    def layout(self) -> StoreLayout:
        """How the store's files are to be read."""
        return StoreLayout(
            self.kind,
            self.timestamped,
            self.key_format,
            self.value_format,
            self.window_size_ms,
            self.retention_ms,
            self.segment_ms,
            self.duplicates,
        )

    @property
    def schemas(self) -> StoreSchemas:
        """What is known of the bytes of keys and values."""
        return StoreSchemas(self.key_schema, self.value_schema, self.key_registry_schema, self.value_registry_schema)


class TaskManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a task's snapshot holds, all of it as of one commit.

    `at_ms` and `stream_time` are ms since the epoch; stream time is -1 before the first record. `left_out` names the task's stores of the
    user's own kind, whose files the engine cannot copy. Version 1 had no partition times and schemas.
    """

    version: Literal[1, 2] = 2
    application: str
    snapshot: str = ""
    task: str
    instance: str = ""
    at_ms: int
    stream_time: int
    input_offsets: list[PartitionOffset]
    partition_times: list[PartitionTime] = []
    stores: list[StoreManifest]
    left_out: list[str] = []
    files: list[SnapshotFile] = []

    @property
    def bytes(self) -> int:
        """Of all files."""
        return sum(file.bytes for file in self.files)

    @property
    def summary(self) -> TaskSummary:
        """What the application's manifest says of this part."""
        return TaskSummary(
            application=self.application,
            snapshot=self.snapshot,
            task=self.task,
            instance=self.instance,
            at_ms=self.at_ms,
            inputs=self.input_offsets,
            changelogs=[store.changelog for store in self.stores if store.changelog is not None],
            stores=[store.name for store in self.stores],
            left_out=self.left_out,
            bytes=self.bytes,
        )


class TaskSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A task's part in short, as its instance tells it."""

    application: str
    snapshot: str
    task: str
    instance: str
    at_ms: int
    inputs: list[PartitionOffset]
    changelogs: list[PartitionOffset]
    stores: list[str]
    left_out: list[str]
    bytes: int


class ApplicationManifest(msgspec.Struct, frozen=True, kw_only=True):
    """A whole snapshot: where each task's part is, and where all of them stand.

    `tasks`: task → folder or URI of its part; relative ones are relative to this manifest. `instances`: who has written each. `inputs`
    and `changelogs` are one vector of next offsets: of every input partition, and of every changelog partition. `missing` are tasks that
    are not there; it is empty in every manifest that is written. `kind` "seed": the state was computed elsewhere and never ran.
    """

    version: Literal[1] = 1
    application: str
    snapshot: str
    kind: Literal["snapshot", "seed"] = "snapshot"
    at_ms: int
    topology_hash: str = ""
    tasks: dict[str, str]
    instances: dict[str, str] = {}
    missing: list[str] = []
    inputs: list[PartitionOffset]
    changelogs: list[PartitionOffset]
    stores: list[str] = []
    left_out: list[str] = []
    bytes: int = 0

    @classmethod
    def of(
        cls,
        parts: Iterable[TaskManifest | TaskSummary],
        places: Mapping[str, str],
        *,
        topology_hash: str = "",
        kind: Literal["snapshot", "seed"] = "snapshot",
    ) -> ApplicationManifest:
        """The manifest of these tasks, which lie at `places`. They belong to one snapshot of one application, at least one of them."""
        told = (part.summary if isinstance(part, TaskManifest) else part for part in parts)
        tasks = sorted(told, key=lambda part: task_order(part.task))
        inputs = {(at.topic, at.partition): at for part in tasks for at in part.inputs}
        changelogs = {(at.topic, at.partition): at for part in tasks for at in part.changelogs}
        return cls(
            application=tasks[0].application,
            snapshot=tasks[0].snapshot,
            kind=kind,
            at_ms=max(part.at_ms for part in tasks),
            topology_hash=topology_hash,
            tasks={part.task: places[part.task] for part in tasks},
            instances={part.task: part.instance for part in tasks},
            inputs=[inputs[each] for each in sorted(inputs)],
            changelogs=[changelogs[each] for each in sorted(changelogs)],
            stores=sorted({name for part in tasks for name in part.stores}),
            left_out=sorted({name for part in tasks for name in part.left_out}),
            bytes=sum(part.bytes for part in tasks),
        )


def new_snapshot_id(at_ms: int) -> str:
    """A name that sorts by time (`at_ms`, ms since the epoch) and never repeats."""
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return f"{at:%Y%m%dT%H%M%S}{at_ms % 1000:03d}-{uuid.uuid4().hex[:6]}"


def time_of_id(snapshot: str) -> int | None:
    """When a snapshot of `new_snapshot_id` was begun, ms since the epoch; None for another name."""
    try:
        at = datetime.strptime(snapshot[:15], "%Y%m%dT%H%M%S").replace(tzinfo=UTC)
        return int(at.timestamp()) * 1000 + int(snapshot[15:18])
    except ValueError:
        return None


def task_order(task: str) -> tuple[int, int]:
    """For sorting tasks' names: by sub-topology and partition, `global` first."""
    if task == GLOBAL:
        return (-1, -1)
    found = TaskId.parse(task)
    return (found.subtopology, found.partition)


def encoded(manifest: msgspec.Struct) -> bytes:
    """As it stands in its file: JSON that people can read."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2)


def decode_manifest(data: bytes, kind: type[M], where: object) -> M:
    """What `encoded` wrote. Raises StateDirectoryError, naming `where` it is and what is wrong: damaged, or of another version."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise StateDirectoryError(f"{where} cannot be read: {_wrong_version(data) or error}") from error


class _Version(msgspec.Struct):
    version: int


def _wrong_version(data: bytes) -> str | None:
    try:
        version = msgspec.json.decode(data, type=_Version).version
    except msgspec.DecodeError:
        return None
    return None if version in (1, 2) else f"it is of version {version}, which this Penstock does not know: a newer one wrote it"


def read_manifest(directory: Path) -> TaskManifest:
    """The manifest of one task's snapshot on this machine. Raises StateDirectoryError where there is none, or none that can be read."""
    path = directory / MANIFEST
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise StateDirectoryError(f"{directory} is not a snapshot of a task: it has no {MANIFEST}") from error
    except OSError as error:
        raise StateDirectoryError(f"{path} cannot be read: {error.strerror or error}") from error
    found = decode_manifest(data, TaskManifest, path)
    return found if found.version > 1 else msgspec.structs.replace(found, snapshot=directory.parent.name, files=files_in(directory))


def files_in(directory: Path) -> list[SnapshotFile]:
    """All files below a task's folder but its manifest, in the order of their paths."""
    found = (path for path in directory.rglob("*") if path.is_file() and path != directory / MANIFEST)
    return sorted((SnapshotFile(path.relative_to(directory).as_posix(), path.stat().st_size) for path in found), key=lambda file: file.path)
