"""State with which the tasks of a history run begin: the parts of a snapshot or a seed, fetched by the executor that runs the task."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from penstock.assets.spark.history.errors import HistoryError
from penstock.runtime.model.ids import NextOffset, TopicPartition
from penstock.runtime.seeds.entries import changelog_records
from penstock.runtime.seeds.files import fetch_store
from penstock.runtime.snapshots.catalogue import Snapshot
from penstock.runtime.snapshots.export_process import export
from penstock.runtime.snapshots.manifest import GLOBAL, MANIFEST, TaskManifest, decode_manifest
from penstock.runtime.snapshots.opening import place_of
from penstock.runtime.snapshots.places import Place
from penstock.runtime.stage.task import TaskStart
from penstock.runtime.stores.suppliers import Builder
from penstock.runtime.topology.nodes import SubTopology

Parts = Mapping[str, str]
"""URI of each task's part."""


def parts_of(snapshot: Snapshot, shared: Place | None = None) -> dict[str, str]:
    """Return the parts of a snapshot. `shared`: a place that the executors reach, to which parts on this machine's disk are copied. Raises
    StateDirectoryError."""
    found = {}
    for task in snapshot.tasks:
        if task == GLOBAL:
            continue
        place = snapshot.task_place(task)
        if shared is not None and (local := place.local) is not None:
            export(local.parent, shared, [local.name], lambda done, total: None)
            place = shared / local.name
        found[task] = place.uri
    return found


def fetched_start(uri: str, part: SubTopology, state: Path, kept: Path) -> TaskStart:
    """Fetch the stores of a task's part into the folder `state` of its stage, those that are kept in memory into `kept`, and return how the
    task begins. Stores that the sub-topology does not have are passed over. Raises HistoryError, StateDirectoryError."""
    place = place_of(uri)
    data = (place / MANIFEST).read()
    if data is None:
        raise HistoryError(f"the state with which the run begins is not at {place}: was it removed, or do the executors not reach it?")
    manifest = decode_manifest(data, TaskManifest, place / MANIFEST)
    builders = {builder.name: builder for builder in part.stores if isinstance(builder, Builder)}
    in_memory = {}
    for store in manifest.stores:
        if (builder := builders.get(store.name)) is None:
            continue
        target = (state / manifest.task / "rocksdb" if builder.settings.persistent else kept / manifest.task) / store.name
        fetch_store(place, manifest, store, target)
        if not builder.settings.persistent:
            in_memory[store.name] = changelog_records(target, builder.settings.layout(), manifest.at_ms)
    return TaskStart(
        {TopicPartition(at.topic, at.partition): NextOffset(at.next_offset) for at in manifest.input_offsets},
        {TopicPartition(at.topic, at.partition): at.time_ms for at in manifest.partition_times},
        in_memory,
    )
