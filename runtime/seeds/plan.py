"""Plan of a seed: stores, changelogs and inputs of each task. Everything that does not fit the topology is collected here, before anything
is changed, and reported in one error.

A seed fits if every task of the topology is there with every store, each store of the same kind, layout and types, and with an offset for
every input. Inputs that are repartition topics need none: `inputs.py` determines it. A store that its own source topic restores
(`topology.optimization`) is not seeded: the topic holds it, up to the input's offset. Global stores are read from their topics.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from penstock.runtime.coordination.topics import TopicLayout
from penstock.runtime.model.ids import NextOffset, TaskId, TopicPartition, changelog_topic
from penstock.runtime.seeds.entries import SEEDED_KINDS
from penstock.runtime.snapshots.catalogue import Snapshot
from penstock.runtime.snapshots.manifest import GLOBAL, StoreManifest, TaskManifest
from penstock.runtime.snapshots.places import Place
from penstock.runtime.stores.base import EngineStore, StoreLayout
from penstock.runtime.stores.custom import build_store
from penstock.runtime.stores.layout import entry_changes, named_format
from penstock.runtime.stores.store_format import StoreFormat, store_changes
from penstock.runtime.topology.nodes import SubTopology
from penstock.runtime.topology.topology import Topology

REPARTITION = "-repartition"
"""Suffix of a repartition topic's name."""


@dataclass(frozen=True, slots=True)
class SeededStore:
    """Store of a task. `changelog` is None without logging; files are installed if it is `persistent`. `layout` is the topology's; `format`
    that of the seed's entries, if known."""

    name: str
    manifest: StoreManifest
    layout: StoreLayout
    format: StoreFormat | None
    persistent: bool
    changelog: TopicPartition | None


@dataclass(frozen=True, slots=True)
class SeededTask:
    """Task with its part of the seed. `inputs`: end of the seed by source partition; `repartitions`: inputs that the application writes
    itself. `place` is None for a task without stores, which has no part."""

    task: TaskId
    stores: tuple[SeededStore, ...]
    inputs: Mapping[TopicPartition, NextOffset]
    repartitions: tuple[TopicPartition, ...]
    times: Mapping[TopicPartition, int]
    manifest: TaskManifest | None
    place: Place | None

    @property
    def changelogs(self) -> list[TopicPartition]:
        return [store.changelog for store in self.stores if store.changelog is not None]

    @property
    def stream_time(self) -> int:
        """Stream time in ms; -1 if unknown."""
        return -1 if self.manifest is None else self.manifest.stream_time


@dataclass(frozen=True, slots=True)
class SeedPlan:
    """Tasks of the topology, in order, with their parts of the seed, and messages about everything that does not fit."""

    tasks: list[SeededTask]
    misfits: list[str]


def plan_seed(topology: Topology, layout: TopicLayout, application_id: str, seed: Snapshot) -> SeedPlan:
    """Return the plan of a seed for a resolved topology. Raises StateDirectoryError if a part cannot be read."""
    planner = _Planner(topology, layout, application_id, seed)
    tasks = [planner.task(task) for task in sorted(layout.tasks)]
    planner.report_unknown()
    return SeedPlan(tasks, planner.misfits)


def misfit_text(misfits: Sequence[str], application_id: str, seed: Snapshot) -> str:
    """Return the text of the error."""
    lines = "".join(f"\n  {text}" for text in misfits)
    return (
        f"the {seed.manifest.kind} {seed.place} does not fit application {application_id}:{lines}\n"
        "Nothing was changed. Make a new seed for this topology and these topics, or start the program that it was made for"
    )


class _Planner:
    def __init__(self, topology: Topology, layout: TopicLayout, application_id: str, seed: Snapshot) -> None:
        self._layout = layout
        self._application_id = application_id
        self._seed = seed
        self._parts = {part.id: part for part in topology.sub_topologies()}
        self._stores = {part.id: {store.name: store for store in map(build_store, part.stores)} for part in self._parts.values()}
        self._global = {found.store.name for found in topology.global_stores()}
        self._read_by_globals = _global_inputs(seed)
        self._global_topics = {*topology.global_topics, *self._read_by_globals}
        self._there = {TaskId.parse(task) for task in seed.tasks if task != GLOBAL}
        known = (*seed.manifest.settled, *seed.manifest.inputs)
        # The position of a global store is no task's: a stream of its topic would leave out the records before it.
        of_tasks = [at for at in known if at.topic not in self._read_by_globals]
        self._inputs = {TopicPartition(at.topic, at.partition): NextOffset(at.next_offset) for at in of_tasks}
        self.misfits: list[str] = []

    # --- one task -----------------------------------------------------------------------------------------------------------

    def task(self, task: TaskId) -> SeededTask:
        part = self._parts[task.subtopology]
        manifest = self._seed.task(str(task)) if task in self._there else None
        place = self._seed.task_place(str(task)) if task in self._there else None
        wanted = {name: store for name, store in self._stores[part.id].items() if name not in part.source_changelogs}
        if manifest is None and wanted:
            self._report(f"task {task} is missing (stores {', '.join(sorted(wanted))})")
        stores = () if manifest is None else tuple(self._stores_of(task, wanted, manifest))
        inputs, repartitions = self._inputs_of(task, part, manifest)
        times = {} if manifest is None else {TopicPartition(at.topic, at.partition): at.time_ms for at in manifest.partition_times}
        return SeededTask(task, stores, inputs, repartitions, times, manifest, place)

    def _stores_of(self, task: TaskId, wanted: Mapping[str, EngineStore], manifest: TaskManifest) -> Iterator[SeededStore]:
        found = {store.name: store for store in manifest.stores}
        for name, store in wanted.items():
            if store.layout.kind not in SEEDED_KINDS:
                self._report(
                    f"store {name} is one of your own, whose files only you can read: topologies with such a store cannot be seeded"
                )
            elif name not in found:
                self._report(f"store {name} of task {task} is missing")
            else:
                form = self._seed.manifest.formats.get(name)
                for text in store_misfits(store, found[name], form):
                    self._report(f"store {name}: {text}")
                changelog = TopicPartition(changelog_topic(self._application_id, name), task.partition) if store.logging_enabled else None
                yield SeededStore(name, found[name], store.layout, form or _known_format(store, found[name]), store.persistent, changelog)
        known = {*self._stores[task.subtopology], *self._global}
        for name in sorted(found.keys() - known):
            self._report(
                f"store {name} of task {task} is not part of the topology, whose stores there are {', '.join(sorted(known)) or 'none'}"
            )

    def _inputs_of(
        self, task: TaskId, part: SubTopology, manifest: TaskManifest | None
    ) -> tuple[dict[TopicPartition, NextOffset], tuple[TopicPartition, ...]]:
        own = self._inputs
        if manifest is not None:
            own = {TopicPartition(at.topic, at.partition): NextOffset(at.next_offset) for at in manifest.input_offsets}
        inputs: dict[TopicPartition, NextOffset] = {}
        repartitions: list[TopicPartition] = []
        for topic in part.source_topics:
            partition = TopicPartition(topic, task.partition)
            if task.partition >= self._layout.partitions[topic]:
                continue
            if topic in self._layout.repartition_topics:
                repartitions.append(partition)
            elif (offset := own.get(partition)) is not None:
                inputs[partition] = offset
            else:
                self._report(f"there is no offset of {partition}, which task {task} reads: {self._why_missing(partition)}")
        return inputs, tuple(repartitions)

    def _why_missing(self, wanted: TopicPartition) -> str:
        """Return the probable reason for a missing partition."""
        topic, numbers = wanted.topic, [partition.partition for partition in self._inputs if partition.topic == wanted.topic]
        if wanted in self._inputs:
            return "it is an input of another task of the seed"
        if topic in self._read_by_globals:
            return "in the seed it is the input of a global store, and no task has processed its records"
        if not numbers:
            return f"the seed's inputs are {', '.join(sorted({partition.topic for partition in self._inputs})) or 'none'}"
        return f"it was made for {max(numbers) + 1} partitions, and the topic has {self._layout.partitions[topic]}"

    # --- unknown tasks and inputs ------------------------------------------------------------------------------------------------

    def report_unknown(self) -> None:
        """Report tasks and inputs of the seed that the topology does not have."""
        if unknown := sorted(self._there - self._layout.tasks):
            there = ", ".join(map(str, sorted(self._layout.tasks)))
            self._report(
                f"tasks {', '.join(map(str, unknown))} are not part of the topology, which has {there}: one per partition of its input"
            )
        read = {topic for part in self._parts.values() for topic in part.source_topics} | {
            topic for part in self._parts.values() for topic in part.source_changelogs.values()
        }
        for topic in sorted({partition.topic for partition in self._inputs} - read - self._global_topics):
            if not topic.endswith(REPARTITION):  # of another application's id
                self._report(f"its input {topic} is not read by the topology, which reads {', '.join(sorted(read))}")

    def _report(self, text: str) -> None:
        if text not in self.misfits:
            self.misfits.append(text)


def _global_inputs(seed: Snapshot) -> set[str]:
    """Return the topics of the seed's global stores, which are read from their topics and not installed."""
    return {at.topic for at in seed.task(GLOBAL).input_offsets} if GLOBAL in seed.tasks else set()


def store_misfits(store: EngineStore, found: StoreManifest, form: StoreFormat | None) -> list[str]:
    """Return messages about a store's entries and files that do not fit. `form`: format of its entries, if the manifest has it."""
    problems = [text.replace(" now", " in the topology") for text in entry_changes(found.layout, form, store, found.schemas)]
    mine, theirs = store.layout, found.layout
    if mine.kind == theirs.kind:
        problems += [
            f"it has {what} {there} ms, and in the topology {here} ms: its files are cut otherwise"
            for what, here, there in (
                ("a retention of", mine.retention_ms, theirs.retention_ms),
                ("segments of", mine.segment_ms, theirs.segment_ms),
            )
            if here is not None and there is not None and here != there
        ]
        if mine.headers != theirs.headers:
            problems.append(
                f"it has {_headers(theirs)}, and in the topology {_headers(mine)}: its files have another form (dsl.store.format)"
            )
    return problems


def _headers(layout: StoreLayout) -> str:
    return "headers" if layout.headers else "no headers"


def _known_format(store: EngineStore, found: StoreManifest) -> StoreFormat | None:
    """Return the format to record for entries whose manifest, of an earlier version, has none: its named format, if it can be compared."""
    named = named_format(found.layout, found.schemas)
    return store.format if store.format is None or store_changes(named, store.format) else named
