"""Creation of an application's internal topics, and its tasks, which follow from the partitions of its input topics
(Kafka Streams' `InternalTopicManager`, `RepartitionTopics`)."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.kafka.connection import Connection
from penstock.runtime.kafka.topic_admin import TopicAdmin, TopicDescription, create_commands
from penstock.runtime.model.errors import BrokerUnavailableError, MissingSinkTopicError, MissingSourceTopicError, StreamsError
from penstock.runtime.model.events import events_topic
from penstock.runtime.model.ids import TaskId, TopicPartition
from penstock.runtime.topology.internal_topics import ANY_TIME, InternalTopicCheck, plan_partitions, task_count
from penstock.runtime.topology.topology import Topology

logger = logging.getLogger(__name__)

BY_THE_BROKERS_CLOCK: Mapping[str, str] = {"message.timestamp.type": "LogAppendTime"}
"""For topics that must accept records of a machine whose clock is wrong: brokers refuse timestamps an hour ahead of their own clock."""

COORDINATION_CONFIG: Mapping[str, str] = {
    "cleanup.policy": "compact",
    **BY_THE_BROKERS_CLOCK,
    # Heartbeats are written over and over, and every member reads the topic from its start: segments are small and young, because
    # brokers compact closed ones only.
    "segment.bytes": "8388608",
    "segment.ms": "3600000",
    "min.cleanable.dirty.ratio": "0.1",
}
EVENTS_CONFIG: Mapping[str, str] = {
    "cleanup.policy": "delete",
    "retention.ms": "2592000000",
    **BY_THE_BROKERS_CLOCK,
}
USUAL_PARTITIONS = 6
"""Number of partitions that messages propose for a topic of the user's that is missing."""
GUARD_CONFIG: Mapping[str, str] = {"cleanup.policy": "delete"}
HEARTBEATS_CONFIG: Mapping[str, str] = {
    "cleanup.policy": "delete",
    **BY_THE_BROKERS_CLOCK,
    "retention.ms": "60000",  # they are read as they come; brokers delete closed segments only
    "segment.ms": "600000",
    "segment.bytes": "8388608",
}


def coordination_topic(application_id: str) -> str:
    """Return the name of the topic on which the workers of an application share assignments and reports."""
    return f"{application_id}-coordination"


def guard_topic(application_id: str) -> str:
    """Return the name of the topic of which each transaction commits an offset, in the members' group (rules.md, 23). It stays empty."""
    return f"{application_id}-members-guard"


def heartbeats_topic(application_id: str) -> str:
    """Return the name of the topic of the workers' heartbeats (`heartbeat_process.py`)."""
    return f"{application_id}-heartbeats"


@dataclass(frozen=True, slots=True)
class TopicLayout:
    """Partitions of every topic of a topology on these brokers, and the tasks that follow. `stateful`: tasks with a changelog."""

    partitions: Mapping[str, int]
    tasks: frozenset[TaskId]
    stateful: frozenset[TaskId]
    repartition_topics: frozenset[str]
    guard: TopicPartition


def prepare_topics(
    admin: TopicAdmin, topology: Topology, config: StreamsConfig, *, make: bool = True, had: Collection[str] = ()
) -> TopicLayout:
    """Check the input topics of a resolved topology, and create the application's internal topics; without `make` only check. `had`:
    changelogs of the recorded state; one of them that has to be created again is logged as a warning.

    Raises MissingSourceTopicError, MissingSinkTopicError, WrongPartitionsError (topics that are joined differ, or an internal topic
    does not fit its input any more), StoreChangedError (a changelog was made for another kind of store), BrokerUnavailableError. The error
    has the `further` ones, so that all are known at once.
    """
    application_id, connection = config.application_id, Connection.of(config.admin_properties())
    internal = topology.internal_topics()
    parts = topology.sub_topologies()
    own = {
        coordination_topic(application_id): (1, COORDINATION_CONFIG),
        guard_topic(application_id): (1, GUARD_CONFIG),
        heartbeats_topic(application_id): (1, HEARTBEATS_CONFIG),
        events_topic(application_id): (1, EVENTS_CONFIG),
    }
    found = admin.describe([*topology.source_topics, *(topic.name for topic in internal), *own])
    existing = {name: description.partitions for name, description in found.items() if name not in own}
    problems: list[StreamsError] = []
    missing = [topic for topic in topology.source_topics if topic not in existing]
    if missing:
        problems.append(
            MissingSourceTopicError(
                f"source topic {', '.join(missing)} does not exist on {connection}: create it, then start again. Each partition is a task, "
                "so their number bounds how many instances share the work:"
                f"{create_commands(connection, _proposed(missing, topology, existing))}"
            )
        )
    with _noting(problems):
        _check_sinks(admin, topology, config)
    planned: Mapping[str, int] = {}
    with _noting(problems):
        planned = {} if missing else plan_partitions(parts, internal, topology.copartition_groups(), existing)
    if not planned:
        _raise(problems)
    any_time = ANY_TIME if any(ANY_TIME.keys() <= each.config.keys() for each in found.values()) else {}  # not before Kafka 3.6
    own.update((topic.name, (planned[topic.name], {**any_time, **topic.config})) for topic in internal)
    kinds = {topic.name: topic.kind for topic in internal}
    additional_ms = config.integer("windowstore.changelog.additional.retention.ms")
    check = InternalTopicCheck(application_id, connection, additional_ms)
    for name, wanted in own.items():
        if name in found:
            with _noting(problems):
                check.check(name, kinds.get(name, "own"), (found[name].partitions, found[name].config), wanted)
    _raise(problems)
    altered = {name: _to_alter(found[name].config, wanted) for name, (_, wanted) in own.items() if name in found}
    if make:
        _create_missing(admin, application_id, own, found, had)
        admin.alter(altered)
    else:
        _warn_of_times(altered)
    tasks = frozenset(TaskId(part.id, number) for part in parts for number in range(task_count(part, planned)))
    logged = {part.id for part in parts if part.source_changelogs or any(store.logging_enabled for store in part.stores)}
    stateful = frozenset(task for task in tasks if task.subtopology in logged)
    repartition = frozenset(topic.name for topic in internal if topic.kind == "repartition")
    return TopicLayout(planned, tasks, stateful, repartition, TopicPartition(guard_topic(application_id), 0))


def _proposed(missing: Collection[str], topology: Topology, existing: Mapping[str, int]) -> dict[str, int]:
    """Return a number of partitions for each missing topic: that of an existing topic with which it is joined, else a usual one."""
    joined = {topic: group for group in topology.copartition_groups() for topic in group}
    counts = {topic: [existing[other] for other in joined.get(topic, ()) if other in existing] for topic in missing}
    return {topic: max(found, default=USUAL_PARTITIONS) for topic, found in counts.items()}


def _create_missing(
    admin: TopicAdmin,
    application_id: str,
    own: Mapping[str, tuple[int, Mapping[str, str]]],
    found: Mapping[str, TopicDescription],
    had: Collection[str],
) -> None:
    """Create the missing internal topics."""
    absent = {name: wanted for name, wanted in own.items() if name not in found}
    _warn_of_lost(application_id, [name for name in absent if name in had])
    admin.create_all(absent)


def _check_sinks(admin: TopicAdmin, topology: Topology, config: StreamsConfig) -> None:
    """Check that output topics exist. Otherwise the first record that is written would find that they do not, in a transaction that can
    only be aborted; and for the dead-letter topic, only after another error."""
    dead_letters = config["errors.dead.letter.queue.topic.name"]
    wanted = {*topology.sink_topics, *([str(dead_letters)] if dead_letters else [])}
    missing = sorted(wanted - admin.partition_counts(wanted).keys())
    if missing and not all(map(admin.brokers_make, missing)):
        connection = Connection.of(config.admin_properties())
        raise MissingSinkTopicError(
            f"output topic {', '.join(missing)} does not exist on {connection}, whose brokers do not create it for this client "
            "(auto.create.topics.enable, or its rights): create it, then start again:"
            f"{create_commands(connection, dict.fromkeys(missing, USUAL_PARTITIONS))}"
        )


def _warn_of_lost(application_id: str, changelogs: Sequence[str]) -> None:
    """Warn of changelogs that are made again although the application has state in them."""
    if changelogs:
        logger.warning(
            "changelogs of %s are lost, and are made again: %s. Their stores begin with what the disks hold, or empty: to begin with a "
            "snapshot or seed instead, stop it and start it with --seed <URI> --reset-offsets",
            application_id,
            ", ".join(sorted(changelogs)),
        )


def _warn_of_times(altered: Mapping[str, Mapping[str, str]]) -> None:
    """Warn of topics whose timestamp settings a start updates."""
    for name, settings in altered.items():
        if settings:
            listed = ",".join(f"{key}={value}" for key, value in settings.items())
            logger.warning("topic %s may refuse records for their time; a start sets %s", name, listed)


@contextmanager
def _noting(problems: list[StreamsError]) -> Iterator[None]:
    """Add an error to the problems, and continue. An answer that does not come is raised: the next would not come either."""
    try:
        yield
    except BrokerUnavailableError:
        raise
    except StreamsError as error:
        problems.append(error)


def _raise(problems: list[StreamsError]) -> None:
    """Raise the first of the problems, with the others, if there are any."""
    if problems:
        problems[0].further = tuple(problems[1:])
        raise problems[0]


def _to_alter(found: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
    """Return the timestamp settings that a topic must have and does not."""
    needed = {name: value for name, value in wanted.items() if name in ANY_TIME or BY_THE_BROKERS_CLOCK.get(name) == value}
    return {name: value for name, value in needed.items() if found.get(name) != value}
