"""The topics that an application reads and writes: their partitions, copies, and whether records can be written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from confluent_kafka import KafkaError
from confluent_kafka.admin._topic import TopicDescription

from penstock.orchestration.doctor.finding import Finding, Outcome
from penstock.orchestration.doctor.questions import Questions, nameless
from penstock.runtime.coordination.topics import coordination_topic, guard_topic, heartbeats_topic
from penstock.runtime.kafka.connection import Connection
from penstock.runtime.kafka.failures import Meaning, meaning, with_remedy
from penstock.runtime.model.events import events_topic
from penstock.runtime.topology.topology import Topology

_COPIES = 3
"""Copies that a cluster with as many brokers should have."""


def own_topics(application: str, topology: Topology) -> list[str]:
    """Return the topics that the first start creates."""
    more = (coordination_topic(application), guard_topic(application), heartbeats_topic(application), events_topic(application))
    return [*more, *(topic.name for topic in topology.internal_topics())]


def examined(
    application: str, topology: Topology, questions: Questions, connection: Connection, *, copies: int, brokers: int
) -> Iterator[Finding]:
    """Yield findings on the topics of a topology. `copies`: `replication.factor`, -1 for the brokers' default. That topics are missing, or
    do not fit, is found by the check of the start."""
    own = own_topics(application, topology)
    outside = sorted({*topology.source_topics, *topology.sink_topics, *topology.global_topics} - set(own))
    found = {name: answer for name, answer in questions.described([*outside, *own]).items() if not isinstance(answer, KafkaError)}
    settings = questions.configs(found)
    for name in outside:
        if name in found:
            kind = "output topic" if name in topology.sink_topics else "input topic"
            yield of_topic(kind, found[name], settings.get(name), brokers, connection)
    missing = [name for name in own if name not in found]
    problems = [
        each for name in own if name in found for each in [of_topic("own topic", found[name], settings.get(name), brokers, connection)]
    ]
    yield from (each for each in problems if each.outcome is not Outcome.OK)
    if not any(each.outcome is not Outcome.OK for each in problems):
        yield Finding("own topics", Outcome.OK, f"{len(own) - len(missing)} of {len(own)} are there; a start creates the others")
    if missing:
        yield _creation(questions.create(nameless(f"{application}-"), copies=copies), copies)


def _creation(refused: KafkaError | None, copies: int) -> Finding:
    asked = "the brokers' default of copies" if copies < 0 else f"replication.factor={copies}"
    if refused is None:
        return Finding("copies", Outcome.OK, f"topics can be created with {asked}")
    if Meaning.NO_RIGHT in meaning(refused):
        return Finding("copies", Outcome.UNKNOWN, f"topics may not be created: {refused.str()}")
    remedy = "set replication.factor to a number that the brokers have, or default.replication.factor of the brokers"
    return Finding("copies", Outcome.WRONG, f"topics cannot be created with {asked}: {with_remedy(refused)}", remedy)


def of_topic(
    kind: str, topic: TopicDescription, settings: Mapping[str, str] | KafkaError | None, brokers: int, connection: Connection
) -> Finding:
    parts = topic.partitions
    copies = min((len(part.replicas) for part in parts), default=0)
    in_sync = 1 if settings is None or isinstance(settings, KafkaError) else int(settings.get("min.insync.replicas", "1"))
    text = f"{topic.name}: partitions {len(parts)}, copies {copies}, min.insync.replicas {in_sync}"

    def wrong(what: str, remedy: str) -> Finding:
        return Finding(kind, Outcome.WRONG, f"{text}: {what}", remedy)

    def warning(what: str, remedy: str) -> Finding:
        return Finding(kind, Outcome.WARNING, f"{text}: {what}", remedy)

    headless = [part.id for part in parts if part.leader is None or part.leader.id < 0]
    if headless:
        return wrong(f"{_numbers(headless)} no leader", "start the brokers that have its copies")
    # Brokers do not ask for more copies than there are (Kafka's `Partition.effectiveMinIsr`).
    short = [part.id for part in parts if len(part.isr) < min(in_sync, copies)]
    if short:
        return wrong(f"{_numbers(short)} too few copies in sync, so nothing can be written there", "start the brokers that have its copies")
    behind = [part.id for part in parts if len(part.isr) < len(part.replicas)]
    if behind:
        return warning(f"{_numbers(behind)} copies that are not in sync", "see whether every broker runs")
    if copies > 1 and in_sync >= copies:
        return warning("nothing can be written while one broker is away", _lower(topic.name, copies - 1, connection))
    if copies < min(_COPIES, brokers):
        return warning(
            f"the cluster has {brokers} brokers: what is lost with one may be lost for good", "kafka-reassign-partitions adds copies"
        )
    return Finding(kind, Outcome.OK, text)


def _numbers(partitions: Sequence[int]) -> str:
    listed = ", ".join(map(str, partitions))
    return f"partition {listed} has" if len(partitions) == 1 else f"partitions {listed} have"


def _lower(topic: str, number: int, connection: Connection) -> str:
    tool = connection.tool("kafka-configs")
    return f"{tool} --alter --entity-type topics --entity-name {topic} --add-config min.insync.replicas={number}"
