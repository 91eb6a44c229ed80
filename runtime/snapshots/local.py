"""Snapshot of a task's stores at one commit, on the local disk.

    <state.dir>/<application.id>/snapshots/<snapshot id>/<task>/manifest.json
                                                              /<store>/            a RocksDB database that is never written again

A snapshot holds the state of the last commit: data, changelog offsets, input offsets and times of one moment, without staged updates.
RocksDB's checkpoint consists of hard links, so it takes milliseconds at any size, and its readers share no locks and no mutable files with
the running store. A snapshot is consistent per task; there is no common cut across tasks (rules.md, 29).

The folder is built under a name with a leading dot and renamed when it is complete, so that readers see a complete snapshot or none.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from penstock.runtime.model.errors import SchemaRegistryUnavailableError, StateDirectoryError, StreamsError
from penstock.runtime.model.ids import NextOffset, TaskId, TopicPartition, changelog_topic
from penstock.runtime.snapshots.manifest import (
    MANIFEST,
    PartitionOffset,
    PartitionTime,
    StoreManifest,
    TaskManifest,
    encoded,
    files_in,
)
from penstock.runtime.stores.base import EngineStore, StoreSchemas
from penstock.runtime.stores.locks import remedy, sync_directory
from penstock.runtime.stores.segmented import STREAM_TIME, TIME

log = logging.getLogger(__name__)


def snapshots_directory(application_directory: Path) -> Path:
    """Return the folder of an application's snapshots, under `<state.dir>/<application.id>`."""
    return application_directory / "snapshots"


def write_snapshot(
    snapshots: Path,
    snapshot_id: str,
    *,
    application: str,
    task: TaskId | str,
    stores: Mapping[EngineStore, TopicPartition | None],
    input_offsets: Mapping[TopicPartition, NextOffset],
    stream_time: int,
    at_ms: int,
    instance: str = "",
    partition_times: Mapping[TopicPartition, int] | None = None,
    global_topics: Mapping[str, str] | None = None,
) -> Path:
    """Write the stores, as of their last commit, to `<snapshots>/<snapshot_id>/<task>/` and return that path.

    `stores`: each with its changelog partition, None if it is not logged; custom stores are left out and listed in the manifest.
    `input_offsets` and the times are those of the same commit. `global_topics`: the topic of each global store, by the store's name. Safe
    to repeat: an existing snapshot is returned unchanged. Raises StateDirectoryError, leaving no files, if the disk cannot be written.
    """
    part = TaskManifest(
        application=application,
        snapshot=snapshot_id,
        task=str(task),
        instance=instance,
        at_ms=at_ms,
        stream_time=stream_time,
        input_offsets=PartitionOffset.of(input_offsets),
        partition_times=PartitionTime.of(partition_times or {}),
        stores=[],
        left_out=left_out(stores),
    )
    return begin_snapshot(snapshots, part, stores, global_topics or {})()


def begin_snapshot(
    snapshots: Path, part: TaskManifest, stores: Mapping[EngineStore, TopicPartition | None], global_topics: Mapping[str, str]
) -> Callable[[], Path]:
    """As `write_snapshot`, in two steps. This function pins the data, and must be called in the stores' thread. The function that it
    returns writes what is not on disk yet, the manifest last, and may be called in any thread. `part` lacks only stores and files."""
    if not part.snapshot or part.snapshot.startswith(".") or "/" in part.snapshot:
        raise StateDirectoryError(f"{part.snapshot!r} cannot be the id of a snapshot: it names a folder")
    final = snapshots / part.snapshot / part.task
    if (final / MANIFEST).exists():
        return lambda: final
    building = final.with_name(f".{part.task}.building")
    with _cleaning_up(building, part, final):
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir(parents=True)
        ours = {store: changelog for store, changelog in stores.items() if _is_ours(store)}
        rest = [store.begin_checkpoint(building / store.name) for store in ours]
        written = [_manifest_of(store, changelog, global_topics.get(store.name)) for store, changelog in ours.items()]

    def finish() -> Path:
        with _cleaning_up(building, part, final):
            for write in rest:
                write()
            known = [_with_writers(manifest, store, part.application) for manifest, store in zip(written, ours, strict=True)]
            manifest = msgspec.structs.replace(part, stores=known, files=files_in(building))
            _write_durably(building / MANIFEST, encoded(manifest))
            building.rename(final)
            sync_directory(final.parent)
        return final

    return finish


@contextmanager
def _cleaning_up(building: Path, part: TaskManifest, final: Path) -> Iterator[None]:
    """Remove the unfinished folder and raise StateDirectoryError if the disk cannot be written."""
    try:
        yield
    except (OSError, StreamsError) as error:
        shutil.rmtree(building, ignore_errors=True)
        hint = remedy(str(error)) if isinstance(error, OSError) else ""
        raise StateDirectoryError(f"snapshot {part.snapshot} of task {part.task} cannot be written to {final}: {error}{hint}") from error


def left_out(stores: Iterable[EngineStore]) -> list[str]:
    """Return the names of the custom stores, which snapshots leave out."""
    return sorted(store.name for store in stores if not _is_ours(store))


def _is_ours(store: EngineStore) -> bool:
    return store.layout.kind != "custom"


def _manifest_of(store: EngineStore, changelog: TopicPartition | None, topic: str | None) -> StoreManifest:
    position = None if changelog is None else PartitionOffset(changelog.topic, changelog.partition, store.committed_offset(changelog) or 0)
    stream_time = store.get_meta(STREAM_TIME)
    return store_manifest(store, store.name, position, topic, None if stream_time is None else TIME.unpack(stream_time)[0])


def _with_writers(manifest: StoreManifest, store: EngineStore, application: str) -> StoreManifest:
    """Add the schemas that a Schema Registry has for the store's data. It is asked after the data is pinned, so it knows all of them."""
    if manifest.key_registry_schema is None and manifest.value_registry_schema is None:
        return manifest
    source = manifest.topic if manifest.changelog is None else manifest.changelog.topic
    own = changelog_topic(application, manifest.name)
    schemas = known_schemas(store, [own] if source in (own, None) else [source, own])
    return msgspec.structs.replace(manifest, key_registry_schema=schemas.key_registry, value_registry_schema=schemas.value_registry)


def known_schemas(store: EngineStore, topics: Sequence[str]) -> StoreSchemas:
    """Return the store's schemas, with those that a Schema Registry has for data of these topics. If it does not answer, a warning is
    logged, and readers of the files will not know with which schemas values were written."""
    try:
        return store.schemas_with_writers(topics)
    except SchemaRegistryUnavailableError as error:
        log.warning("Store %s: its values with schemas of a registry will not be readable outside the program: %s", store.name, error)
        return store.schemas


def store_manifest(
    store: EngineStore,
    directory: str,
    changelog: PartitionOffset | None,
    topic: str | None = None,
    stream_time: int | None = None,
    schemas: StoreSchemas | None = None,
) -> StoreManifest:
    """Return the manifest of a store, open or closed, whose files are in `directory` of its task's part.

    `topic`: of a global store. `stream_time`: the store's own. `schemas`: default: those of the store.
    """
    layout, schemas = store.layout, schemas or store.schemas
    return StoreManifest(
        name=store.name,
        kind=layout.kind,
        timestamped=layout.timestamped,
        persistent=store.persistent,
        directory=directory,
        key_format=layout.key_serde,
        value_format=layout.value_serde,
        changelog=changelog,
        window_size_ms=layout.window_size_ms,
        retention_ms=layout.retention_ms,
        segment_ms=layout.segment_ms,
        duplicates=layout.duplicates,
        headers=layout.headers,
        key_schema=None if schemas.key is None else dict(schemas.key),
        value_schema=None if schemas.value is None else dict(schemas.value),
        key_registry_schema=schemas.key_registry,
        value_registry_schema=schemas.value_registry,
        is_global=topic is not None,
        topic=topic,
        stream_time=-1 if stream_time is None and layout.retention_ms is not None else stream_time,
    )


def _write_durably(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
