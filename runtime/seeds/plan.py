"""What of a seed goes where: each task's stores, changelogs and inputs. All that does not fit the topology is found here, before anything
is touched, and told in one error.

A seed fits if every task of the topology is there with every store, each store of the same kind, layout and types, and with an offset for
every input. Inputs that are repartition topics need none: `inputs.py` tells where they begin. A store that its own source topic restores
(`topology.optimization`) is not seeded: the topic holds it, up to the input's offset. Global stores are read from their topics.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from runtime.errors import SeedRefusedError
from runtime.ids import NextOffset, Partition, TaskId, changelog_topic
from runtime.seeds.entries import SEEDED_KINDS
from runtime.seeds.schemas import schema_misfits
from runtime.snapshots.catalogue import Snapshot
from runtime.snapshots.manifest import GLOBAL, StoreManifest, TaskManifest
from runtime.snapshots.places import Place
from runtime.stores.base import EngineStore, StoreLayout
from runtime.stores.custom import build_store
from runtime.stores.layout import differences
from runtime.topics import TopicLayout
from runtime.topology.subtopologies import SubTopology
from runtime.topology.topology import Topology

REPARTITION = "-repartition"
"""Ends the name of a repartition topic."""


@dataclass(frozen=True, slots=True)
class SeededStore:
    """A store of a task. `changelog` is None where it is not logged; files go to the disk where it is `persistent`. `layout` is the
    topology's."""

    name: str
    manifest: StoreManifest
    layout: StoreLayout
    persistent: bool
    changelog: Partition | None


@dataclass(frozen=True, slots=True)
class SeededTask:
    """A task with its part of the seed. `inputs`: where the seed ends, by source partition; `repartitions`: inputs that the application
    writes itself, which are not in it. `place` is None for a task that has no part, since it has no stores."""

    task: TaskId
    stores: tuple[SeededStore, ...]
    inputs: Mapping[Partition, NextOffset]
    repartitions: tuple[Partition, ...]
    times: Mapping[Partition, int]
    manifest: TaskManifest | None
    place: Place | None

    @property
    def changelogs(self) -> list[Partition]:
        return [store.changelog for store in self.stores if store.changelog is not None]

    @property
    def stream_time(self) -> int:
        """In ms; -1 where none is known."""
        return -1 if self.manifest is None else self.manifest.stream_time


def plan_seed(topology: Topology, layout: TopicLayout, application_id: str, seed: Snapshot) -> list[SeededTask]:
    """The tasks of a resolved topology, in order, with what the seed has for them. Raises SeedRefusedError with all that does not fit,
    StateDirectoryError where a part cannot be read."""
    planner = _Planner(topology, layout, application_id, seed)
    tasks = [planner.task(task) for task in sorted(layout.tasks)]
    planner.look_for_strangers()
    if planner.misfits:
        told = "".join(f"\n  {text}" for text in planner.misfits)
        raise SeedRefusedError(
            f"the {seed.manifest.kind} {seed.place} does not fit application {application_id}:{told}\n"
            "Nothing was changed. Make the seed anew for this topology and these topics, or start the program that it was made for"
        )
    return tasks


class _Planner:
    def __init__(self, topology: Topology, layout: TopicLayout, application_id: str, seed: Snapshot) -> None:
        self._layout = layout
        self._application_id = application_id
        self._seed = seed
        self._parts = {part.id: part for part in topology.sub_topologies()}
        self._stores = {part.id: {store.name: store for store in map(build_store, part.stores)} for part in self._parts.values()}
        self._global = {found.store.name for found in topology.global_stores()}
        self._there = {TaskId.parse(task) for task in seed.tasks if task != GLOBAL}
        self._inputs = {Partition(at.topic, at.partition): NextOffset(at.next_offset) for at in seed.manifest.inputs}
        self.misfits: list[str] = []

    # --- one task -----------------------------------------------------------------------------------------------------------

    def task(self, task: TaskId) -> SeededTask:
        part = self._parts[task.subtopology]
        manifest = self._seed.task(str(task)) if task in self._there else None
        place = self._seed.task_place(str(task)) if task in self._there else None
        wanted = {name: store for name, store in self._stores[part.id].items() if name not in part.source_changelogs}
        if manifest is None and wanted:
            self._tell(f"task {task} is missing (stores {', '.join(sorted(wanted))})")
        stores = () if manifest is None else tuple(self._stores_of(task, wanted, manifest))
        inputs, repartitions = self._inputs_of(task, part, manifest)
        times = {} if manifest is None else {Partition(at.topic, at.partition): at.time_ms for at in manifest.partition_times}
        return SeededTask(task, stores, inputs, repartitions, times, manifest, place)

    def _stores_of(self, task: TaskId, wanted: Mapping[str, EngineStore], manifest: TaskManifest) -> Iterator[SeededStore]:
        found = {store.name: store for store in manifest.stores}
        for name, store in wanted.items():
            if store.layout.kind not in SEEDED_KINDS:
                self._tell(f"store {name} is one of your own, whose files only you can read: topologies with such a store cannot be seeded")
            elif name not in found:
                self._tell(f"store {name} of task {task} is missing")
            else:
                for text in store_misfits(store, found[name]):
                    self._tell(f"store {name}: {text}")
                changelog = Partition(changelog_topic(self._application_id, name), task.partition) if store.logging_enabled else None
                yield SeededStore(name, found[name], store.layout, store.persistent, changelog)
        known = {*self._stores[task.subtopology], *self._global}
        for name in sorted(found.keys() - known):
            self._tell(
                f"store {name} of task {task} is not part of the topology, whose stores there are {', '.join(sorted(known)) or 'none'}"
            )

    def _inputs_of(
        self, task: TaskId, part: SubTopology, manifest: TaskManifest | None
    ) -> tuple[dict[Partition, NextOffset], tuple[Partition, ...]]:
        own = self._inputs
        if manifest is not None:
            own = {Partition(at.topic, at.partition): NextOffset(at.next_offset) for at in manifest.input_offsets}
        inputs: dict[Partition, NextOffset] = {}
        repartitions: list[Partition] = []
        for topic in part.source_topics:
            partition = Partition(topic, task.partition)
            if task.partition >= self._layout.partitions[topic]:
                continue
            if topic in self._layout.repartition_topics:
                repartitions.append(partition)
            elif (offset := own.get(partition)) is not None:
                inputs[partition] = offset
            else:
                self._tell(f"there is no offset of {partition}, which task {task} reads: {self._why_missing(partition)}")
        return inputs, tuple(repartitions)

    def _why_missing(self, wanted: Partition) -> str:
        """Why a partition may be missing."""
        topic, numbers = wanted.topic, [partition.number for partition in self._inputs if partition.topic == wanted.topic]
        if wanted in self._inputs:
            return "it is an input of another task of the seed"
        if not numbers:
            return f"the seed's inputs are {', '.join(sorted({partition.topic for partition in self._inputs})) or 'none'}"
        return f"it was made for {max(numbers) + 1} partitions, and the topic has {self._layout.partitions[topic]}"

    # --- what nobody asked for ------------------------------------------------------------------------------------------------

    def look_for_strangers(self) -> None:
        """Tasks and inputs of the seed that the topology does not have."""
        if strangers := sorted(self._there - self._layout.tasks):
            there = ", ".join(map(str, sorted(self._layout.tasks)))
            self._tell(
                f"tasks {', '.join(map(str, strangers))} are not part of the topology, which has {there}: one per partition of its input"
            )
        read = {topic for part in self._parts.values() for topic in part.source_topics} | {
            topic for part in self._parts.values() for topic in part.source_changelogs.values()
        }
        for topic in sorted({partition.topic for partition in self._inputs} - read):
            if not topic.endswith(REPARTITION):  # of another application's id
                self._tell(f"its input {topic} is not read by the topology, which reads {', '.join(sorted(read))}")

    def _tell(self, text: str) -> None:
        if text not in self.misfits:
            self.misfits.append(text)


def store_misfits(store: EngineStore, found: StoreManifest) -> Iterator[str]:
    """Why a store's files do not fit, in words."""
    told = differences(found.layout, store.layout)
    yield from (text.replace(" now", " in the topology") for text in told)
    if told:
        return
    mine, theirs = store.layout, found.layout
    for what, here, there in (
        ("windows of", mine.window_size_ms, theirs.window_size_ms),
        ("a retention of", mine.retention_ms, theirs.retention_ms),
        ("segments of", mine.segment_ms, theirs.segment_ms),
    ):
        if here is not None and there is not None and here != there:
            yield f"it has {what} {there} ms, and in the topology {here} ms"
    if mine.duplicates != theirs.duplicates and mine.kind == "window":
        yield "it is a window store of a join in one of the two, and not in the other"
    schemas = store.schemas
    for what, read, written in (("keys", schemas.key, found.key_schema), ("values", schemas.value, found.value_schema)):
        for text in schema_misfits(written, read):
            yield f"its {what} are of another type than the topology's: {text}"
