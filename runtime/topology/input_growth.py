"""Input topics that get more partitions: which sub-topologies may read the new ones.

State is partitioned like the input. With more partitions, producers send the next record of a key to a task that does not have its state.
So a sub-topology with state, or with co-partitioned inputs, does not read new partitions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from penstock.runtime.model.errors import by_reset
from penstock.runtime.topology.nodes import InternalTopic, SubTopology
from penstock.runtime.topology.topology import Topology


def obstacles(topology: Topology, partitions: Mapping[str, int], grown: Mapping[str, int]) -> dict[str, str]:
    """Return, by topic, the reasons why new partitions cannot be read; topics without a reason are left out.

    `partitions`: of all topics, as of the creation of the tasks. `grown`: the current numbers of the input topics.
    """
    found: dict[str, str] = {}
    for topic in grown:
        readers = [part for part in topology.sub_topologies() if topic in part.source_topics]
        reason = _stores(readers) or _copartitioned(topology, topic) or _repartition(topology.internal_topics(), readers, partitions, grown)
        if reason:
            found[topic] = reason
    return found


def stateful_inputs(topology: Topology, partitions: Mapping[str, int]) -> dict[str, int]:
    """Return the numbers of partitions of input topics that must not change: those of stateful sub-topologies, and co-partitioned ones."""
    internal = {topic.name for topic in topology.internal_topics()}
    read = {topic for part in topology.sub_topologies() if part.stores or part.source_changelogs for topic in part.source_topics}
    return {topic: partitions[topic] for topic in sorted(read - internal) if topic in partitions}


def first_partitions(
    topology: Topology, partitions: Mapping[str, int], known: Mapping[str, int], patterns: Collection[str]
) -> dict[str, int]:
    """Return the number of partitions of each input topic when the application first read it: partitions beyond it were added later.

    `topology`: with its patterns matched. `partitions`: the current numbers. `known`, `patterns`: the numbers and patterns that the
    application's last run recorded, empty before the first run. A topic that matches a pattern of that run, and was not read by it, was
    created later: its number is 0. Topics that the program does not read any more keep their number.
    """
    added = {topic for topic, pattern in topology.matched_topics.items() if pattern in patterns}
    now = {topic: 0 if topic in added else partitions[topic] for topic in topology.source_topics if topic in partitions}
    return {**now, **known}


def _stores(readers: Sequence[SubTopology]) -> str:
    for part in readers:
        names = sorted({*(store.name for store in part.stores), *part.source_changelogs})
        if names:
            return (
                f"sub-topology {part.id} keeps state by partition (store {', '.join(names)}): existing keys would move to other partitions"
            )
    return ""


def _copartitioned(topology: Topology, topic: str) -> str:
    others = sorted({other for group in topology.copartition_groups() if topic in group for other in group} - {topic})
    return f"it is read together with {', '.join(others)}, which must have as many partitions" if others else ""


def _repartition(
    internal: Sequence[InternalTopic], readers: Sequence[SubTopology], partitions: Mapping[str, int], grown: Mapping[str, int]
) -> str:
    for part in readers:
        now = max(grown.get(topic, partitions.get(topic, 0)) for topic in part.source_topics)
        for topic in internal:
            if topic.kind == "repartition" and topic.partitions is None and part.id in topic.writers and now > partitions[topic.name]:
                return f"sub-topology {part.id} writes to {topic.name}, which has as many partitions as its input had"
    return ""


def remedies(topic: str, read: int, application_id: str) -> str:
    """Return advice about new partitions that cannot be read."""
    return (
        f"To keep the state: create a topic with {read} partitions, copy {topic} into it, and read that one. To build the state again with "
        f"all partitions: {by_reset(application_id)}, and start it; or use a new application.id, with a seed"
    )
