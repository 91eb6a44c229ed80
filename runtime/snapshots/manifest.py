"""Manifests of a snapshot: one file per task, and one for the application.

    <root>/<snapshot id>/<task>/manifest.json     `TaskManifest`: written last of the task's files
                               /<store>/          a RocksDB database that is never written again
    <root>/<snapshot id>/snapshot.json            `ApplicationManifest`: written when every task's part is there

Readers ignore a folder without its manifest: it is incomplete, or still being written. A seed is a snapshot that was computed elsewhere
(`kind`).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from penstock.runtime.model.errors import StateDirectoryError
from penstock.runtime.model.ids import NextOffset, TaskId, TopicPartition
from penstock.runtime.serdes.serde import RegistrySchema
from penstock.runtime.stores.base import StoreLayout, StoreSchemas
from penstock.runtime.stores.store_format import StoreFormat

MANIFEST = "manifest.json"
"""File name of a task's manifest, in its folder."""
SNAPSHOT = "snapshot.json"
"""File name of the application's manifest, beside the tasks' folders."""
GLOBAL = "global"
"""The pseudo-task that holds the global stores."""

M = TypeVar("M", bound=msgspec.Struct)


class PartitionOffset(msgspec.Struct, frozen=True):
    """A position: the next offset to read of a partition."""

    topic: str
    partition: int
    next_offset: int

    @classmethod
    def of(cls, offsets: Mapping[TopicPartition, NextOffset]) -> list[PartitionOffset]:
        """Return the offsets, ordered by topic and partition."""
        return [cls(partition.topic, partition.partition, offset) for partition, offset in sorted(offsets.items())]


class PartitionTime(msgspec.Struct, frozen=True):
    """The partition time of an input (ms since the epoch; -1 before the first record)."""

    topic: str
    partition: int
    time_ms: int

    @classmethod
    def of(cls, times: Mapping[TopicPartition, int]) -> list[PartitionTime]:
        """Return the times, ordered by topic and partition."""
        return [cls(partition.topic, partition.partition, time_ms) for partition, time_ms in sorted(times.items())]


class SnapshotFile(msgspec.Struct, frozen=True):
    """A file of a task's snapshot: its path relative to the manifest, its size, and, in exported snapshots, its SHA-256 in hex."""

    path: str
    bytes: int
    sha256: str | None = None


class StoreManifest(msgspec.Struct, frozen=True, kw_only=True):
    """One store of a snapshot.

    `directory` is relative to the manifest. `key_format` and `value_format` are names of serdes (`STRING`, `JSON`, …). `key_schema` and
    `value_schema` are the JSON Schemas of bytes that are JSON, where a type was declared; the `…registry_schema`s are those of serdes of
    a Schema Registry. `changelog` is None for a store that is not logged, and for a global store, which has its `topic` instead (its
    offsets are the task's input offsets). `stream_time` is that of a store with retention: the largest timestamp put into it, by which
    entries expire (-1: none yet); None for other stores. The rest is as in `StoreLayout`.
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
    headers: bool = False
    key_schema: dict[str, object] | None = None
    value_schema: dict[str, object] | None = None
    key_registry_schema: RegistrySchema | None = None
    value_registry_schema: RegistrySchema | None = None
    is_global: bool = False
    topic: str | None = None
    stream_time: int | None = None

    @property
    def layout(self) -> StoreLayout:
        """Layout of the store's files."""
        return StoreLayout(
            self.kind,
            self.timestamped,
            self.key_format,
            self.value_format,
            self.window_size_ms,
            self.retention_ms,
            self.segment_ms,
            self.duplicates,
            self.headers,
        )

    @property
    def schemas(self) -> StoreSchemas:
        """Schemas of keys and values, as far as they are known."""
        return StoreSchemas(self.key_schema, self.value_schema, self.key_registry_schema, self.value_registry_schema)


class TaskManifest(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of a task's snapshot, all as of one commit.

    `at_ms` and `stream_time` are ms since the epoch; stream time is -1 before the first record. `left_out` names the task's custom stores,
    whose files the engine cannot copy. Version 1 had no partition times and schemas.
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
        """Size of all files."""
        return sum(file.bytes for file in self.files)

    @property
    def summary(self) -> TaskSummary:
        """Summary of this part for the application's manifest."""
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
    """Summary of a task's part, as its instance reports it."""

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
    """A complete snapshot: the place of each task's part, and the positions of all of them.

    `tasks`: task → folder or URI of its part; relative ones are relative to this manifest. `instances`: the instance that wrote each part.
    `inputs` and `changelogs`: the next offset of every input partition and of every changelog partition. `missing`: tasks without a part;
    it is empty in every manifest that is written. `kind` "seed": the state was computed elsewhere. `formats`: formats of the stores'
    entries, in every version that they may have; empty in manifests of earlier versions. `settled`: the next offset of every input, those
    of tasks without stores included, if no record was in transit between tasks; otherwise, and in earlier versions, empty.
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
    formats: dict[str, StoreFormat] = {}
    settled: list[PartitionOffset] = []

    @classmethod
    def of(
        cls,
        parts: Iterable[TaskManifest | TaskSummary],
        places: Mapping[str, str],
        *,
        topology_hash: str = "",
        kind: Literal["snapshot", "seed"] = "snapshot",
        formats: Mapping[str, StoreFormat] | None = None,
        settled: Iterable[PartitionOffset] = (),
    ) -> ApplicationManifest:
        """Return the manifest of these tasks, whose parts are at `places`: at least one, all of one snapshot of one application."""
        summaries = (part.summary if isinstance(part, TaskManifest) else part for part in parts)
        tasks = sorted(summaries, key=lambda part: task_order(part.task))
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
            formats=dict(formats or {}),
            settled=list(settled),
        )


def new_snapshot_id(at_ms: int) -> str:
    """Return a unique id that sorts by time (`at_ms`, ms since the epoch)."""
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return f"{at:%Y%m%dT%H%M%S}{at_ms % 1000:03d}-{uuid.uuid4().hex[:6]}"


def time_of_id(snapshot: str) -> int | None:
    """Return the time in an id of `new_snapshot_id`, ms since the epoch; None for another name."""
    try:
        at = datetime.strptime(snapshot[:15], "%Y%m%dT%H%M%S").replace(tzinfo=UTC)
        return int(at.timestamp()) * 1000 + int(snapshot[15:18])
    except ValueError:
        return None


def task_order(task: str) -> tuple[int, int]:
    """Return the sort key of a task's name: by sub-topology and partition, `global` first."""
    if task == GLOBAL:
        return (-1, -1)
    found = TaskId.parse(task)
    return (found.subtopology, found.partition)


def encoded(manifest: msgspec.Struct) -> bytes:
    """Encode a manifest for its file, as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2)


def decode_manifest(data: bytes, kind: type[M], where: object) -> M:
    """Decode a manifest. Raises StateDirectoryError, naming `where` it is, if it is damaged or of an unknown version."""
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
    """Read the manifest of a task's snapshot on this machine. Raises StateDirectoryError if there is none, or it cannot be read."""
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
    """Return all files below a task's folder except its manifest, ordered by path."""
    found = (path for path in directory.rglob("*") if path.is_file() and path != directory / MANIFEST)
    return sorted((SnapshotFile(path.relative_to(directory).as_posix(), path.stat().st_size) for path in found), key=lambda file: file.path)
