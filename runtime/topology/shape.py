"""The shape of a topology's state, and whether another topology fits it: a later one, or one that runs at the same time.

State outlives the program, so its shape is recorded. Stores are found by the name of their changelog and, on disk, by the number of their
sub-topology; records in flight are in repartition topics, which are found by their names. So operators may be added, removed or changed as
long as stores and repartition topics keep their names and sub-topologies; stores may be added, and left out. Entries and records must be
readable by the later program, with the same meaning (`store_format.py`). The recorded shape is that of the state and not of one program:
`merged` retains each format that entries may still have.

During a rolling upgrade, a task moves from an instance with the old version to one with the new version, and may move back if that one
fails. So a task id must mean the same in both: the same input, and stores that both versions can read. The new version may add operators,
sinks, stores and sub-topologies. It must not remove stores: it would advance the input without updating the store.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from penstock.runtime.model.ids import TaskId, changelog_topic
from penstock.runtime.serdes.key_changes import key_changes
from penstock.runtime.serdes.serde_format import SerdeFormat, versions_changes, with_version
from penstock.runtime.stores.store_format import (
    StoreFormat,
    accepted_changes,
    files_change,
    retention_changed,
    store_changes,
    with_versions,
)
from penstock.runtime.stores.suppliers import Builder
from penstock.runtime.topology.catalogue import known_stores
from penstock.runtime.topology.nodes import SubTopology
from penstock.runtime.topology.topology import Topology


class StoreShape(msgspec.Struct, frozen=True):
    """Shape of a store: its kind, its sub-topology, and the topic from which it is restored, if any.

    `of_source`: that topic is a source topic. `format`: format of its entries; None for a custom store, whose format is unknown, and in
    records of earlier versions. `left_out`: an earlier topology had it, the last one does not, and its changelog still exists.
    """

    name: str
    kind: str
    sub_topology: int
    changelog: str = ""
    of_source: bool = False
    format: StoreFormat | None = None
    left_out: bool = False


class TopicFormat(msgspec.Struct, frozen=True):
    """Formats that the records of a repartition topic may have; the newest is last."""

    keys: tuple[SerdeFormat, ...]
    values: tuple[SerdeFormat, ...]


class TopologyShape(msgspec.Struct, frozen=True, kw_only=True):
    """Shape of a topology: stores, source topics by the number of the sub-topology (without those of patterns), repartition topics."""

    stores: tuple[StoreShape, ...] = ()
    sources: dict[int, tuple[str, ...]] = {}
    repartitions: tuple[str, ...] = ()
    formats: dict[str, TopicFormat] = {}
    """Of repartition topics; empty in records of earlier versions."""


def shape_of(topology: Topology, application_id: str) -> TopologyShape:
    """Return the shape of a resolved topology."""
    kinds = {name: store.kind for name, store in known_stores(topology).items()}
    formats: dict[str, TopicFormat] = {}
    stores = []
    for part in topology.sub_topologies():
        for store in part.stores:
            own = changelog_topic(application_id, store.name) if store.logging_enabled else ""
            source = part.source_changelogs.get(store.name)
            form = store.settings.format() if isinstance(store, Builder) else None
            stores.append(StoreShape(store.name, kinds[store.name], part.id, source or own, source is not None, form))
    repartitions = tuple(topic.name for topic in topology.internal_topics() if topic.kind == "repartition")
    for node in (node for part in topology.sub_topologies() for node in part.sources):
        if node.key_serde is not None and node.value_serde is not None:
            known = TopicFormat((node.key_serde.format(),), (node.value_serde.format(),))
            formats.update({topic: known for topic in node.topics if topic in repartitions})
    sources = {
        part.id: tuple(sorted({topic for source in part.sources if source.pattern is None for topic in source.topics} - set(repartitions)))
        for part in topology.sub_topologies()
    }
    return TopologyShape(stores=tuple(stores), sources=sources, repartitions=repartitions, formats=formats)


def misfits(previous: TopologyShape, now: TopologyShape, kept: Collection[str], unread: Mapping[str, int]) -> list[str]:
    """Return the reasons why a topology does not fit the state of the previous one; empty if it fits.

    `kept`: the previous stores with data. `unread`: the previous repartition topics with unprocessed records, and the largest number of
    these."""
    here = {store.name: store for store in now.stores}
    left = [store for store in previous.stores if store.name in kept]
    found = [text for store in left if (text := _misfit(store, here, previous))]
    stay = [store for store in left if not store.left_out and (new := here.get(store.name)) and new.sub_topology == store.sub_topology]
    for number in sorted({store.sub_topology for store in stay}):
        for topic in previous.sources.get(number, ()):
            if topic not in now.sources.get(number, ()):
                found.append(f"source topic {topic} of sub-topology {number} is not read any more: its stores hold results of its records")
    found += [
        f"repartition topic {topic} is not there any more, and holds up to {records} records that would not be processed"
        for topic, records in sorted(unread.items())
        if topic not in now.repartitions
    ]
    found += [
        f"repartition topic {topic} holds up to {records} records that are not processed yet, and {text}"
        for topic, records in sorted(unread.items())
        for text in topic_changes(previous, now, topic)
    ]
    return found


def topic_changes(previous: TopologyShape, now: TopologyShape, topic: str) -> list[str]:
    """Return the reasons why records of a repartition topic that the previous topology wrote cannot be read now; empty if one of the two
    topologies does not have the topic."""
    old, new = previous.formats.get(topic), now.formats.get(topic)
    if old is None or new is None:
        return []
    found = [("keys", text) for text in key_changes(old.keys, new.keys[-1])]
    found += [("values", text) for text in versions_changes(old.values, new.values[-1])]
    return [f"its {part} {text}" if text.startswith("were ") else f"its {part}: {text}" for part, text in found]


def merged(previous: TopologyShape | None, now: TopologyShape, kept: Collection[str], unread: Collection[str]) -> TopologyShape:
    """Return the shape of the state after a topology that fits has run on it: the topology's own shape, with the formats of existing data,
    and the stores that it leaves out, which may be added again."""
    if previous is None:
        return now
    there = {store.name: store for store in previous.stores if store.name in kept}
    here = {store.name for store in now.stores}
    gone = [store for name, store in there.items() if name not in here and store.changelog and not store.of_source]
    stores = (
        *(_merged(there.get(store.name), store) for store in now.stores),
        *(msgspec.structs.replace(store, left_out=True) for store in gone),
    )
    formats = {
        topic: TopicFormat(with_version(before.keys, form.keys[-1]), with_version(before.values, form.values[-1]))
        if topic in unread and (before := previous.formats.get(topic)) is not None
        else form
        for topic, form in now.formats.items()
    }
    return msgspec.structs.replace(now, stores=stores, formats=formats)


def accepted(previous: TopologyShape, now: TopologyShape, kept: Collection[str]) -> list[str]:
    """Return warnings about changes that fit."""
    here = {store.name: store for store in now.stores}
    return [
        f"store {store.name}: {text}"
        for store in previous.stores
        if store.name in kept and (new := here.get(store.name)) is not None and store.format is not None and new.format is not None
        for text in accepted_changes(store.format, new.format)
    ]


def has_formats(shape: TopologyShape) -> bool:
    """Return False for a shape of an earlier version of Penstock, which has no formats."""
    return any(store.format is not None for store in shape.stores) or bool(shape.formats)


def left_out(previous: TopologyShape, now: TopologyShape, kept: Collection[str]) -> list[str]:
    """Return the stores with data that the previous topology had and this one does not have."""
    here = {store.name for store in now.stores}
    return [store.name for store in previous.stores if store.name in kept and store.name not in here and not store.left_out]


def _misfit(store: StoreShape, here: Mapping[str, StoreShape], previous: TopologyShape) -> str | None:
    now = here.get(store.name)
    if now is None and store.left_out:
        return None
    if now is None:
        known = {each.name for each in previous.stores}
        added = [each.name for each in here.values() if each.name not in known and _looks_alike(each, store)]
        renamed = f"store {store.name} of sub-topology {store.sub_topology} is not there any more: was it renamed to {' or '.join(added)}?"
        return renamed if added else None
    if now.kind != store.kind:
        return f"store {store.name} was a {_kind(store)} store and is a {_kind(now)} store now"
    if now.sub_topology != store.sub_topology:
        return (
            f"store {store.name} was in sub-topology {store.sub_topology} and is in sub-topology {now.sub_topology} now: "
            "sub-topologies added or removed before it have changed the numbers"
        )
    if store.of_source and now.changelog and not now.of_source:
        return f"store {store.name} was restored from topic {store.changelog}, and is to have a changelog now, which is empty"
    if store.of_source or now.of_source:
        return None  # its entries are the source topic's records, read again as the program says
    if bool(store.changelog) != bool(now.changelog):
        return f"store {store.name} {_logging(store, now)}"
    if store.format is None or now.format is None:
        return None
    found = store_changes(store.format, now.format)
    change = files_change(retention=retention_changed(store.format, now.format), headers=store.format.headers != now.format.headers)
    if not store.changelog and change is not None:
        found.append(f"{change}, so its files must be made again, and it has no changelog to make them from")
    return f"store {store.name}: {'; '.join(found)}" if found else None


def _logging(store: StoreShape, now: StoreShape) -> str:
    if now.changelog:
        return "had no changelog and is to have one now, which is empty"
    return f"was restored from {store.changelog} and is to have no changelog now: without its files it would start empty"


def _merged(previous: StoreShape | None, now: StoreShape) -> StoreShape:
    if previous is None or previous.format is None or now.format is None or now.of_source:
        return now
    return msgspec.structs.replace(now, format=with_versions(previous.format, now.format))


def _looks_alike(new: StoreShape, old: StoreShape) -> bool:
    return (new.kind, new.sub_topology) == (old.kind, old.sub_topology)


def _kind(store: StoreShape) -> str:
    return store.kind.replace("_", "-")


Parts = Mapping[int, "Part"]


class Part(msgspec.Struct, frozen=True):
    """A sub-topology: its sorted source topics and patterns, its number of tasks, whether these have state to restore, and whether they may
    read global stores (False in a record of an earlier version)."""

    reads: tuple[str, ...]
    tasks: int = 0
    stateful: bool = False
    reads_global: bool = False


def parts_of(sub_topologies: Collection[SubTopology], tasks: Collection[TaskId], stateful: Collection[TaskId]) -> dict[int, Part]:
    """Return the sub-topologies of a resolved topology by their numbers."""
    copied = {task.subtopology for task in stateful}
    return {
        part.id: Part(
            _reads(part),
            sum(task.subtopology == part.id for task in tasks),
            part.id in copied,
            part.global_stores != frozenset(),
        )
        for part in sub_topologies
    }


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
    (previous, old), (now, new) = running, coming
    here = {store.name: store for store in now.stores}
    common = [store.name for store in previous.stores if store.name in here]
    found = misfits(previous, now, [store.name for store in previous.stores], {})
    if not found:
        # A task that moves back may lose what only the new version has: a field, windows of a longer retention.
        back = [*misfits(now, previous, common, {}), *accepted(now, previous, common)]
        found = [f"if a task goes back to an instance with the version that runs: {text}" for text in back]
    found += [
        f"store {store.name} of sub-topology {store.sub_topology} is left out: the tasks that move would leave it behind"
        for store in previous.stores
        if store.name not in here and store.sub_topology in new
    ]
    found += _misread(old, new)
    found += [
        f"repartition topic {topic} is left out: what the version that runs still writes to it would not be processed"
        for topic in previous.repartitions
        if topic not in now.repartitions
    ]
    for before, after in ((previous, now), (now, previous)):
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
