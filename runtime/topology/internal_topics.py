"""Internal topics of an application: names, settings and numbers of partitions.

Names and settings are those of Kafka Streams (`RepartitionTopicConfig`, `*ChangelogTopicConfig`), for its tools and for applications that
move from it. A repartition topic has as many partitions as the largest of its input topics, unless the number is configured or
co-partitioning determines it; a changelog has one per task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.runtime.model.errors import WrongPartitionsError
from penstock.runtime.model.ids import changelog_topic
from penstock.runtime.stores.base import StateStore, StoreBuilder
from penstock.runtime.stores.custom import changelog_config
from penstock.runtime.topology.nodes import InternalTopic
from penstock.runtime.topology.subtopologies import SubTopology

REPARTITION_CONFIG: Mapping[str, str] = {
    "cleanup.policy": "delete",
    "message.timestamp.type": "CreateTime",
    "retention.ms": "-1",
    "segment.bytes": "52428800",
}

ANY_TIME: Mapping[str, str] = {
    "message.timestamp.after.max.ms": str(2**63 - 1),
    "message.timestamp.before.max.ms": str(2**63 - 1),
}
"""For topics that must accept all event times: by default, brokers refuse records more than an hour ahead of their clock (KIP-937)."""

_LONGEST_MS = 2**63 - 1
"""The largest retention that brokers accept, for windows without an end."""


def repartition_topics(parts: Sequence[SubTopology], repartitions: Mapping[str, int | None]) -> list[InternalTopic]:
    """Return the repartition topics. `repartitions`: the configured number of partitions of each, or None."""
    readers = {topic: part.id for part in parts for topic in part.source_topics}
    return [
        InternalTopic(
            name=topic,
            kind="repartition",
            config=REPARTITION_CONFIG,
            partitions=partitions,
            subtopology=readers[topic],
            writers=tuple(part.id for part in parts if any(sink.topic == topic for sink in part.sinks)),
        )
        for topic, partitions in repartitions.items()
        if topic in readers
    ]


def changelog_topics(parts: Sequence[SubTopology], application_id: str, additional_retention_ms: int) -> list[InternalTopic]:
    """Return the changelog of each logged store. Brokers delete windows by their own clock, so changelogs have a longer retention than the
    store, by `windowstore.changelog.additional.retention.ms`."""

    def config(store: StoreBuilder[StateStore]) -> dict[str, str]:
        settings = changelog_config(store)
        if "retention.ms" in settings and "delete" in settings["cleanup.policy"]:
            settings["retention.ms"] = str(min(int(settings["retention.ms"]) + additional_retention_ms, _LONGEST_MS))
        return settings

    return [
        InternalTopic(changelog_topic(application_id, store.name), "changelog", config(store), None, part.id)
        for part in parts
        for store in part.stores
        if store.logging_enabled
    ]


def plan_partitions(
    parts: Sequence[SubTopology],
    internal: Sequence[InternalTopic],
    copartitioned: Sequence[frozenset[str]],
    existing: Mapping[str, int],
) -> dict[str, int]:
    """Return the numbers of partitions of all topics: existing ones, and each internal topic as required. `existing` contains at least the
    source topics. Raises WrongPartitionsError, naming the topics, if co-partitioned topics have different numbers."""
    repartitions = {topic.name: topic for topic in internal if topic.kind == "repartition"}
    found = {topic: number for topic, number in existing.items() if topic not in repartitions}
    found.update({name: topic.partitions for name, topic in repartitions.items() if topic.partitions is not None})
    by_id = {part.id: part for part in parts}
    for _ in range(len(repartitions) + 1):  # a repartition topic may follow another one; each round settles at least one
        for name, topic in repartitions.items():
            above = [found.get(source) for writer in topic.writers for source in by_id[writer].source_topics]
            if name not in found and above and all(number is not None for number in above):
                found[name] = max(number for number in above if number is not None)
    _join(repartitions, copartitioned, found)
    for topic in internal:
        if topic.kind == "changelog":
            found[topic.name] = task_count(by_id[topic.subtopology], found)
    return found


def _join(repartitions: Mapping[str, InternalTopic], copartitioned: Sequence[frozenset[str]], found: dict[str, int]) -> None:
    """Give co-partitioned topics the same number. Raises WrongPartitionsError if their numbers cannot be changed."""
    for group in copartitioned:
        fixed = {topic for topic in group if topic not in repartitions or repartitions[topic].partitions is not None}
        counts = {topic: found[topic] for topic in sorted(fixed) if topic in found}
        if len(set(counts.values())) > 1:
            told = ", ".join(f"{topic} has {number}" for topic, number in counts.items())
            raise WrongPartitionsError(f"topics that are joined must have the same number of partitions: {told}; repartition one of them")
        wanted = next(iter(counts.values()), max((found[topic] for topic in group if topic in found), default=1))
        found.update(dict.fromkeys(group - fixed, wanted))


def task_count(part: SubTopology, partitions: Mapping[str, int]) -> int:
    """Return the number of a sub-topology's tasks: the number of partitions of its largest input topic."""
    return max((partitions[topic] for topic in part.source_topics), default=0)
