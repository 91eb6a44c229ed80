"""Compatibility of two versions of a topology that run at the same time during a rolling upgrade.

During the upgrade, a task moves from an instance with the old version to one with the new version, and may move back if that one fails. So
a task id must mean the same in both: the same input, and stores that both versions can read. The new version may add operators, sinks,
stores and sub-topologies. It must not remove stores: it would advance the input without updating the store.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from penstock.runtime.model.ids import TaskId
from penstock.runtime.topology.shape import StoreShape, TopologyShape, accepted, misfits, topic_changes
from penstock.runtime.topology.subtopologies import SubTopology

Parts = Mapping[int, "Part"]


class Part(msgspec.Struct, frozen=True):
    """A sub-topology: its sorted source topics and patterns, its number of tasks, and whether these have state to restore."""

    reads: tuple[str, ...]
    tasks: int = 0
    stateful: bool = False


def parts_of(sub_topologies: Collection[SubTopology], tasks: Collection[TaskId], stateful: Collection[TaskId]) -> dict[int, Part]:
    """Return the sub-topologies of a resolved topology by their numbers."""
    copied = {task.subtopology for task in stateful}
    return {part.id: Part(_reads(part), sum(task.subtopology == part.id for task in tasks), part.id in copied) for part in sub_topologies}


def tasks_of(parts: Parts) -> frozenset[TaskId]:
    """Return the tasks of all sub-topologies."""
    return frozenset(TaskId(number, task) for number, part in parts.items() for task in range(part.tasks))


def stores_of(shape: TopologyShape) -> dict[int, frozenset[str]]:
    """Return the names of the stores of each sub-topology that has stores."""
    found: dict[int, set[str]] = {}
    for store in shape.stores:
        found.setdefault(store.sub_topology, set()).add(store.name)
    return {number: frozenset(names) for number, names in found.items()}


def conflicts(running: tuple[TopologyShape, Parts], coming: tuple[TopologyShape, Parts]) -> list[str]:
    """Return the reasons why a new version may not run beside the running one; empty if it may."""
    (former, old), (now, new) = running, coming
    here = {store.name: store for store in now.stores}
    common = [store.name for store in former.stores if store.name in here]
    found = misfits(former, now, [store.name for store in former.stores], {})
    if not found:
        # A task that moves back may lose what only the new version has: a field, windows of a longer retention.
        back = [*misfits(now, former, common, {}), *accepted(now, former, common)]
        found = [f"if a task goes back to an instance with the version that runs: {text}" for text in back]
    found += [
        f"store {store.name} of sub-topology {store.sub_topology} is left out: the tasks that move would leave it behind"
        for store in former.stores
        if store.name not in here and store.sub_topology in new
    ]
    found += _misread(old, new)
    found += [
        f"repartition topic {topic} is left out: what the version that runs still writes to it would not be processed"
        for topic in former.repartitions
        if topic not in now.repartitions
    ]
    for before, after in ((former, now), (now, former)):
        found += [f"repartition topic {topic}: {text}" for topic in before.repartitions for text in topic_changes(before, after, topic)]
    return list(dict.fromkeys(found))


def left_behind(last: TopologyShape, now: TopologyShape) -> list[StoreShape]:
    """Return the logged stores that the last topology did not have, although it ran their sub-topology or lacked what feeds that. If such a
    store has older state, records that were processed since are missing from it."""
    had = {store.name for store in last.stores}
    newly_fed = not set(now.repartitions) <= set(last.repartitions)
    return [
        store
        for store in now.stores
        if store.name not in had and store.changelog and not store.of_source and (store.sub_topology in last.sources or newly_fed)
    ]


def _misread(old: Parts, new: Parts) -> list[str]:
    """Return the reasons why task ids would not mean the same input."""
    found = [
        f"sub-topology {number} reads {_listed(new[number].reads)}, and read {_listed(part.reads)}"
        for number, part in sorted(old.items())
        if number in new and new[number].reads != part.reads
    ]
    readers = {topic: number for number, part in old.items() for topic in part.reads}
    for number, part in sorted(new.items()):
        moved = [topic for topic in part.reads if readers.get(topic, number) != number and number not in old]
        found += [f"topic {topic} is read by sub-topology {number}, and was read by sub-topology {readers[topic]}" for topic in moved]
    return found


def _reads(part: SubTopology) -> tuple[str, ...]:
    topics = {topic for source in part.sources if source.pattern is None for topic in source.topics}
    patterns = {f"pattern {source.pattern.pattern}" for source in part.sources if source.pattern is not None}
    return tuple(sorted(topics | patterns))


def _listed(names: Collection[str]) -> str:
    return ", ".join(names) or "nothing"
