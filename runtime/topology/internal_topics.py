"""Internal topics of an application: names, settings and numbers of partitions, and the check that an existing topic still has them.

Names and settings are those of Kafka Streams (`RepartitionTopicConfig`, `*ChangelogTopicConfig`), for its tools and for applications that
move from it. A repartition topic has as many partitions as the largest of its input topics, unless the number is configured or
co-partitioning determines it; a changelog has one per task.

A topic outlives the program that created it. Since then the input may have got more partitions, a store may have changed its kind, or
someone may have altered the topic. Continuing would look for keys in the wrong task, read windows as keys, or lose state at the next
restore. So each is an error, with the commands that repair it. A setting by which brokers may delete data later is a warning.

On a new machine the changelog's settings are the only evidence of a store's former kind: `compact` is for key-value and versioned stores,
`compact,delete` for window and session stores. (Local files show more: `runtime/changelog/adoption.py`. Rejected: a record of the layout on
the changelog, which Kafka Streams would restore as an entry.)
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.runtime.kafka.connection import Connection
from penstock.runtime.model.errors import StoreChangedError, StreamsError, WrongPartitionsError, by_reset
from penstock.runtime.model.ids import changelog_topic
from penstock.runtime.stores.base import StateStore, StoreBuilder
from penstock.runtime.stores.custom import changelog_config
from penstock.runtime.topology.nodes import InternalTopic, SubTopology

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
    above = {name: {source for writer in topic.writers for source in by_id[writer].source_topics} for name, topic in repartitions.items()}
    _follow(above, found)
    # Each of the two topics of a foreign-key join follows the other one, and is co-partitioned with one of the tables.
    for group in copartitioned:
        known = [found[topic] for topic in group if topic in found]
        if known:
            found.update({topic: max(known) for topic in group if topic not in found and _follows_itself(topic, above)})
    _follow(above, found)
    _join(repartitions, copartitioned, found)
    for topic in internal:
        if topic.kind == "changelog":
            found[topic.name] = task_count(by_id[topic.subtopology], found)
    return found


def _follow(above: Mapping[str, set[str]], found: dict[str, int]) -> None:
    """Give each repartition topic the largest number of the topics that flow into it, once all of them are known."""
    for _ in above:  # a repartition topic may follow another one; each round settles at least one
        for name, sources in above.items():
            if name not in found and sources and sources <= found.keys():
                found[name] = max(found[source] for source in sources)


def _follows_itself(topic: str, above: Mapping[str, set[str]]) -> bool:
    """Return True if records of the topic may flow back into it."""
    seen, unseen = set[str](), {topic}
    while unseen:
        unseen = {source for each in unseen for source in above.get(each, ())} - seen
        seen |= unseen
    return topic in seen


def _join(repartitions: Mapping[str, InternalTopic], copartitioned: Sequence[frozenset[str]], found: dict[str, int]) -> None:
    """Give co-partitioned topics the same number. Raises WrongPartitionsError if their numbers cannot be changed."""
    for group in copartitioned:
        fixed = {topic for topic in group if topic not in repartitions or repartitions[topic].partitions is not None}
        counts = {topic: found[topic] for topic in sorted(fixed) if topic in found}
        if len(set(counts.values())) > 1:
            listed = ", ".join(f"{topic} has {number}" for topic, number in counts.items())
            raise WrongPartitionsError(f"topics that are joined must have the same number of partitions: {listed}; repartition one of them")
        wanted = next(iter(counts.values()), max((found[topic] for topic in group if topic in found), default=1))
        found.update(dict.fromkeys(group - fixed, wanted))


def task_count(part: SubTopology, partitions: Mapping[str, int]) -> int:
    """Return the number of a sub-topology's tasks: the number of partitions of its largest input topic."""
    return max((partitions[topic] for topic in part.source_topics), default=0)


logger = logging.getLogger(__name__)

_COMPACT, _DELETE = "compact", "delete"


@dataclass(frozen=True, slots=True)
class InternalTopicCheck:
    """Check of an application's topics. Application and brokers are named in the commands of messages. `additional_retention_ms` is
    `windowstore.changelog.additional.retention.ms`."""

    application_id: str
    connection: Connection
    additional_retention_ms: int

    def check(self, name: str, kind: str, found: tuple[int, Mapping[str, str]], wanted: tuple[int, Mapping[str, str]]) -> None:
        """Compare the partitions and settings of a topic. `kind` is `changelog`, `repartition` or `own` (coordination, events).

        Raises WrongPartitionsError, StoreChangedError or StreamsError, with the remedy.
        """
        if found[0] != wanted[0]:
            raise WrongPartitionsError(self._wrong_partitions(name, kind, found[0], wanted[0]))
        self._check_policy(name, kind, found[1], wanted[1])
        self._warn(name, found[1], wanted[1])

    def _wrong_partitions(self, name: str, kind: str, found: int, wanted: int) -> str:
        problem = f"internal topic {name} has {found} partitions, but must have {wanted}"
        if kind == "own":
            return f"{problem}: another program created it. {self._delete(name)} while no instance runs; it is made again"
        return (
            f"{problem}, as its input has: the number of partitions of an input was changed, or another program created the topic. Keys "
            "would be looked for in the wrong task. Give the input its former number of partitions, or build the state again: "
            f"{by_reset(self.application_id)}"
        )

    def _check_policy(self, name: str, kind: str, found: Mapping[str, str], wanted: Mapping[str, str]) -> None:
        has, needs = _policy(found), _policy(wanted)
        problem = f"internal topic {name} has cleanup.policy={found.get('cleanup.policy')}, but must have {wanted['cleanup.policy']}"
        alter = self._alter(name, "cleanup.policy", f"[{wanted['cleanup.policy']}]")
        if _COMPACT in needs and _COMPACT not in has:
            raise StreamsError(f"{problem}: brokers would delete what it holds. {alter}, then start again")
        if kind == "repartition" and _COMPACT in has:
            raise StreamsError(f"{problem}: brokers would remove records that were not processed. {alter}, then start again")
        if kind != "changelog":
            return
        if _DELETE in has and _DELETE not in needs and _is_limited(found):
            raise StoreChangedError(
                f"{problem}: brokers would delete keys that are not written for a while. If its store was a window or session store, "
                f"give the store another name, or build it again: {by_reset(self.application_id)}. If only the topic was altered: {alter}"
            )
        if _DELETE in needs and _DELETE not in has:
            raise StoreChangedError(
                f"{problem}: it was made for a key-value store, whose keys would be misread as windows. Give the store another name, or "
                f"build it again: {by_reset(self.application_id)}. If only the topic was altered: {alter}"
            )

    def _warn(self, name: str, found: Mapping[str, str], wanted: Mapping[str, str]) -> None:
        kept_ms, needed_ms = _number(found, "retention.ms"), _number(wanted, "retention.ms")
        if _DELETE in _policy(found) and needed_ms is not None and kept_ms is not None and self._is_short(kept_ms, needed_ms):
            logger.warning(
                "internal topic %s keeps records for %d ms only: what is older is missing after a restore. %s",
                *(name, kept_ms, self._alter(name, "retention.ms", str(needed_ms))),
            )
        lag_ms, needed_lag_ms = _number(found, "min.compaction.lag.ms"), _number(wanted, "min.compaction.lag.ms")
        if needed_lag_ms is not None and (lag_ms or 0) < needed_lag_ms:
            logger.warning(
                "internal topic %s may be compacted after %d ms: older versions of keys are missing after a restore. %s",
                *(name, lag_ms or 0, self._alter(name, "min.compaction.lag.ms", str(needed_lag_ms))),
            )

    def _is_short(self, kept_ms: int, needed_ms: int) -> bool:
        return kept_ms >= 0 and (needed_ms < 0 or kept_ms < needed_ms - self.additional_retention_ms)

    def _alter(self, name: str, setting: str, value: str) -> str:
        return (
            f"Set it: {self.connection.tool('kafka-configs')} --alter --entity-type topics --entity-name {name} "
            f"--add-config {setting}={value}"
        )

    def _delete(self, name: str) -> str:
        return f"{self.connection.tool('kafka-topics')} --delete --topic {name}"


def _policy(config: Mapping[str, str]) -> frozenset[str]:
    return frozenset(part.strip() for part in config.get("cleanup.policy", _DELETE).split(","))


def _is_limited(config: Mapping[str, str]) -> bool:
    """Return True if brokers delete records by time or size."""
    return config.get("retention.ms", "604800000") != "-1" or config.get("retention.bytes", "-1") != "-1"


def _number(config: Mapping[str, str], name: str) -> int | None:
    return int(config[name]) if name in config else None
