"""Topics as the brokers know them: looked at, checked, and made (Kafka Streams' `InternalTopicManager`).

Everything here asks the brokers and waits for the answer. An answer that does not come in time is BrokerUnavailableError, and nothing is
half done: making a topic that exists is no error, so a start that failed can be repeated.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import TypeVar

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from runtime.commit.metadata import OffsetAndMetadata
from runtime.config import StreamsConfig
from runtime.errors import BrokerUnavailableError, MissingSinkTopicError, MissingSourceTopicError, StreamsError
from runtime.events import events_topic
from runtime.ids import NextOffset, Partition, TaskId
from runtime.kafka_logs import KAFKA_LOGGER
from runtime.topology.internal_checks import InternalTopicCheck
from runtime.topology.internal_topics import plan_partitions, task_count
from runtime.topology.topology import Topology

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 30.0
"""How long one question to the brokers may take."""

LOOK_SECONDS = 3.0
"""How long a question may take that holds up a transaction: well below the shortest time-out of a session or a transaction."""

_AWAY = {
    KafkaError._TRANSPORT,
    KafkaError._DESTROY_BROKER,  # the connection it was asked on is no more
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError._RESOLVE,
}

_LOADING = {KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.NOT_COORDINATOR}
_LOADING_SECONDS = 0.2
"""How long is waited before a coordinator that reads its groups is asked again."""

BY_THE_BROKERS_CLOCK: Mapping[str, str] = {"message.timestamp.type": "LogAppendTime"}
"""For topics that have to take what a machine tells whose clock is wrong: brokers refuse what is stamped an hour ahead of theirs."""

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
GUARD_CONFIG: Mapping[str, str] = {"cleanup.policy": "delete"}

Answer = TypeVar("Answer")


def coordination_topic(application_id: str) -> str:
    """The topic on which the workers of an application agree who runs what."""
    return f"{application_id}-coordination"


def guard_topic(application_id: str) -> str:
    """The topic whose offsets are committed with each transaction, to the members' group (rules.md, 23). Nothing is written to it."""
    return f"{application_id}-members-guard"


def ensure_topic(bootstrap_servers: str, topic: str, partitions: int, config: Mapping[str, str]) -> None:
    """Makes a topic unless it exists. Raises BrokerUnavailableError."""
    client = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 2})
    try:
        client.create_topics([NewTopic(topic, partitions, -1, config=dict(config))], request_timeout=ANSWER_SECONDS)[topic].result(
            ANSWER_SECONDS
        )
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise BrokerUnavailableError(
                f"bootstrap.servers = {bootstrap_servers}: topic {topic} cannot be made: {error.args[0].str()}"
            ) from error
    except FutureTimeoutError as error:
        raise BrokerUnavailableError(f"bootstrap.servers = {bootstrap_servers}: no answer within {ANSWER_SECONDS:.0f} s") from error


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic now. `config` holds all of its settings, defaults included."""

    name: str
    partitions: int
    topic_id: str
    config: Mapping[str, str]

    @property
    def compacted(self) -> bool:
        return "compact" in self.config.get("cleanup.policy", "")

    @property
    def delete_retention_ms(self) -> int | None:
        """How long a tombstone can be seen; None where the topic is not compacted."""
        return int(self.config.get("delete.retention.ms", "86400000")) if self.compacted else None


@dataclass(frozen=True, slots=True)
class TopicLayout:
    """What a topology means on these brokers: the partitions of every topic, and so the tasks; `stateful` are those with a changelog."""

    partitions: Mapping[str, int]
    tasks: frozenset[TaskId]
    stateful: frozenset[TaskId]
    repartition_topics: frozenset[str]
    guard: Partition


class TopicAdmin:
    """Questions and orders about topics. Safe to use from several threads."""

    def __init__(self, config: StreamsConfig) -> None:
        """Contacts nobody."""
        self._config = config
        self._client = AdminClient(config.admin_properties(), logger=KAFKA_LOGGER)
        self._looker: Consumer | None = None
        self._servers = str(config["bootstrap.servers"])
        self._counts: dict[str, int] = {}

    # -- questions -------------------------------------------------------------------------------------------------------------

    def names(self) -> frozenset[str]:
        """Every topic that there is. Raises BrokerUnavailableError, StreamsError."""
        return frozenset(self._ask("list topics", lambda: self._client.list_topics(timeout=ANSWER_SECONDS)).topics)

    def describe(self, topics: Iterable[str]) -> dict[str, TopicDescription]:
        """The topics that exist, of those asked for. Raises BrokerUnavailableError, StreamsError."""
        names = sorted(set(topics))
        if not names:
            return {}
        found: dict[str, tuple[int, str]] = {}
        for name, future in self._ask("describe topics", lambda: self._client.describe_topics(TopicCollection(names))).items():
            description = self._unless_missing(f"describe topic {name}", future)
            if description is not None:
                found[name] = (len(description.partitions), str(description.topic_id))
        configs = self._configs(found)
        return {name: TopicDescription(name, partitions, topic_id, configs.get(name, {})) for name, (partitions, topic_id) in found.items()}

    def racks(self, topics: Iterable[str]) -> dict[Partition, frozenset[str]]:
        """The racks in which each partition of these topics has a replica; none where the brokers have no `broker.rack`. Raises
        BrokerUnavailableError, StreamsError."""
        names, found = sorted(set(topics)), dict[Partition, frozenset[str]]()
        for name, future in self._ask("describe topics", lambda: self._client.describe_topics(TopicCollection(names))).items():
            description = self._unless_missing(f"describe topic {name}", future)
            for part in [] if description is None else description.partitions:
                found[Partition(name, part.id)] = frozenset(str(node.rack) for node in part.replicas if node.rack)
        return found

    def _configs(self, topics: Collection[str]) -> dict[str, dict[str, str]]:
        if not topics:
            return {}
        resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in topics]
        answers = self._ask("describe configurations", lambda: self._client.describe_configs(resources))
        configs: dict[str, dict[str, str]] = {}
        for resource, future in answers.items():
            entries = self._unless_missing(f"describe configuration of {resource.name}", future)
            if entries is not None:
                configs[resource.name] = {name: entry.value for name, entry in entries.items() if entry.value is not None}
        return configs

    def end_offsets(self, partitions: Iterable[Partition]) -> dict[Partition, NextOffset]:
        """The last stable offsets: what a `read_committed` reader can reach. Raises BrokerUnavailableError, StreamsError (unknown
        partition)."""
        return self._offsets(partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]  # not annotated there

    def high_watermarks(self, partitions: Iterable[Partition]) -> dict[Partition, NextOffset]:
        """The ends with all that was written, open transactions included. A transaction that is committed for its writer may not be so
        yet for a partition: its markers follow. Raises BrokerUnavailableError, StreamsError (unknown partition)."""
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # not annotated there
        return self._offsets(partitions, latest, IsolationLevel.READ_UNCOMMITTED)

    def start_offsets(self, partitions: Iterable[Partition]) -> dict[Partition, NextOffset]:
        """The first offsets that are still there. Raises as `end_offsets`."""
        return self._offsets(partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call]  # not annotated there

    def offsets_for_times(self, partitions: Iterable[Partition], at_ms: int) -> dict[Partition, NextOffset]:
        """The offset of the first record that is as young as `at_ms` (ms) or younger, the end where there is none. Raises as
        `end_offsets`."""
        wanted = list(partitions)
        first = self._offsets(wanted, OffsetSpec.for_timestamp(at_ms))
        none_yet = [partition for partition, offset in first.items() if offset < 0]
        return first | self.end_offsets(none_yet)

    def _offsets(
        self, partitions: Iterable[Partition], spec: OffsetSpec, isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
    ) -> dict[Partition, NextOffset]:
        wanted = {TopicPartition(partition.topic, partition.number): spec for partition in partitions}
        if not wanted:
            return {}
        answers = self._ask("list offsets", lambda: self._client.list_offsets(wanted, isolation_level=isolation))
        return {
            Partition(at.topic, at.partition): NextOffset(self._wait(f"list offsets of {at.topic}-{at.partition}", future).offset)
            for at, future in answers.items()
        }

    def committed_offsets(self, group: str) -> dict[Partition, NextOffset]:
        """All committed offsets of a group, stable ones only. Raises BrokerUnavailableError, StreamsError (a transaction holds one)."""
        what, request = f"list offsets of group {group}", [ConsumerGroupTopicPartitions(group)]

        def ask() -> list[TopicPartition]:
            (future,) = self._ask(what, lambda: self._client.list_consumer_group_offsets(request, require_stable=True)).values()
            return self._wait(what, future).topic_partitions or []

        found: dict[Partition, NextOffset] = {}
        for at in self._once_loaded(ask):
            if at.error is not None:
                raise StreamsError(f"the committed offset of {at.topic}-{at.partition} in group {group} cannot be read: {at.error.str()}")
            if at.offset >= 0:
                found[Partition(at.topic, at.partition)] = NextOffset(at.offset)
        return found

    def last_committed(self, group: str, partitions: Iterable[Partition]) -> dict[Partition, OffsetAndMetadata]:
        """The committed offsets of some partitions, without what open transactions would make of them. Waits for `LOOK_SECONDS` at most: it
        is asked in the middle of a transaction. Raises BrokerUnavailableError, StreamsError.

        Asked through a consumer that joins nothing. (Rejected: the admin client. In librdkafka 2.16 its questions to a group's coordinator
        are never answered again after a broker's death, and one that ran out of time while the broker was away may abort the process.)
        """
        if self._looker is None:
            joins_nothing = {"group.id": group, "isolation.level": "read_uncommitted", "enable.auto.commit": False}
            self._looker = Consumer({**self._config.admin_properties(), **joins_nothing}, logger=KAFKA_LOGGER)
        looker, asked = self._looker, [TopicPartition(*partition) for partition in partitions]
        what = f"list offsets of group {group}"
        found = self._ask(what, lambda: looker.committed(asked, timeout=LOOK_SECONDS))
        for at in found:
            if at.error is not None:
                raise self._translate(what, KafkaException(at.error))
        return {Partition(at.topic, at.partition): OffsetAndMetadata(at.offset, at.metadata or "") for at in found if at.offset >= 0}

    def members(self, group: str) -> list[str]:
        """The clients (`client.id`) that are members of a group now. Raises BrokerUnavailableError, StreamsError."""
        what = f"describe group {group}"
        try:
            description = self._once_loaded(
                lambda: self._wait(what, self._ask(what, lambda: self._client.describe_consumer_groups([group]))[group])
            )
        except StreamsError as error:
            if isinstance(error.__cause__, KafkaException) and error.__cause__.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
                return []
            raise
        return sorted({str(member.client_id) for member in description.members})

    def partition_count(self, topic: str) -> int:
        """Number of partitions; remembered, since it only grows by hand. Raises MissingSourceTopicError."""
        count = self._counts.get(topic)
        if count is None:
            found = self.describe([topic]).get(topic)
            if found is None:
                raise MissingSourceTopicError(f"topic {topic} does not exist")
            count = self._counts[topic] = found.partitions
        return count

    # -- orders ----------------------------------------------------------------------------------------------------------------

    def create(self, topic: str, partitions: int, config: Mapping[str, str]) -> None:
        """Makes a topic; one that exists is left as it is."""
        self._create({topic: (partitions, config)})

    def _create(self, topics: Mapping[str, tuple[int, Mapping[str, str]]]) -> None:
        if not topics:
            return
        replicas = self._config.integer("replication.factor")
        new = [NewTopic(name, count, replicas, config=dict(config)) for name, (count, config) in topics.items()]
        for name, future in self._ask("create topics", lambda: self._client.create_topics(new)).items():
            try:
                future.result(ANSWER_SECONDS)
                logger.info("topic %s made with %d partitions", name, topics[name][0])
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise self._translate(f"create topic {name}", error) from error

    def delete_records(self, before: Mapping[Partition, int]) -> None:
        """Deletes what lies before these offsets. Raises BrokerUnavailableError, StreamsError."""
        # A client of its own: librdkafka looks leaders up in its cache, which knows none of topics that were made through the same client.
        client = AdminClient(self._config.admin_properties(), logger=KAFKA_LOGGER)
        wanted = [TopicPartition(partition.topic, partition.number, offset) for partition, offset in before.items()]
        for at, future in self._ask("delete records", lambda: client.delete_records(wanted)).items():
            self._wait(f"delete records of {at.topic}-{at.partition}", future)

    def prepare(self, topology: Topology) -> TopicLayout:
        """Checks the topics that a resolved topology reads, and makes those that the application needs for itself.

        Raises MissingSourceTopicError, MissingSinkTopicError, WrongPartitionsError (topics that are joined differ, or an internal topic
        does not fit its input any more), StoreChangedError (a changelog was made for another kind of store), BrokerUnavailableError.
        """
        application_id = self._config.application_id
        internal = topology.internal_topics()
        parts = topology.sub_topologies()
        own = {
            coordination_topic(application_id): (1, COORDINATION_CONFIG),
            guard_topic(application_id): (1, GUARD_CONFIG),
            events_topic(application_id): (1, EVENTS_CONFIG),
        }
        found = self.describe([*topology.source_topics, *(topic.name for topic in internal), *own])
        existing = {name: description.partitions for name, description in found.items() if name not in own}
        missing = [topic for topic in topology.source_topics if topic not in existing]
        if missing:
            raise MissingSourceTopicError(
                f"source topic {', '.join(missing)} does not exist on {self._servers}: create it, then start again"
            )
        self._check_sinks(topology)
        planned = plan_partitions(parts, internal, topology.copartition_groups(), existing)
        own.update((topic.name, (planned[topic.name], topic.config)) for topic in internal)
        kinds = {topic.name: topic.kind for topic in internal}
        additional_ms = self._config.integer("windowstore.changelog.additional.retention.ms")
        check = InternalTopicCheck(application_id, self._servers, additional_ms)
        for name, wanted in own.items():
            if name in found:
                check.check(name, kinds.get(name, "own"), (found[name].partitions, found[name].config), wanted)
        absent = {name: wanted for name, wanted in own.items() if name not in found}
        if coordination_topic(application_id) in found:
            _warn_of_lost(application_id, [name for name in absent if kinds.get(name) == "changelog"])
        self._create(absent)
        self._stamp_by_brokers([name for name, (_, wanted) in own.items() if name in found and _stamps_differ(found[name].config, wanted)])
        tasks = frozenset(TaskId(part.id, number) for part in parts for number in range(task_count(part, planned)))
        logged = {part.id for part in parts if part.source_changelogs or any(store.logging_enabled for store in part.stores)}
        stateful = frozenset(task for task in tasks if task.subtopology in logged)
        repartition = frozenset(topic.name for topic in internal if topic.kind == "repartition")
        return TopicLayout(planned, tasks, stateful, repartition, Partition(guard_topic(application_id), 0))

    def _stamp_by_brokers(self, topics: Sequence[str]) -> None:
        """Topics that were made by an earlier version, which let the machine's clock stamp their records. Where altering is not allowed
        they stay as they are, which does no harm while the clocks agree."""
        stamp = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in BY_THE_BROKERS_CLOCK.items()]
        resources = [ConfigResource(ResourceType.TOPIC, topic, incremental_configs=stamp) for topic in topics]
        if not resources:
            return
        for resource, future in self._ask("alter topics", lambda: self._client.incremental_alter_configs(resources)).items():
            try:
                self._wait(f"alter topic {resource.name}", future)
            except StreamsError as error:
                logger.warning("topic %s keeps the time stamps of those who write: %s", resource.name, error)

    def _check_sinks(self, topology: Topology) -> None:
        """An output topic that is missing would be found by the first record that is written, in a transaction that can only be aborted;
        the dead-letter topic when things go wrong already."""
        dead_letters = self._config["errors.dead.letter.queue.topic.name"]
        wanted = {*topology.sink_topics, *([str(dead_letters)] if dead_letters else [])}
        missing = sorted(wanted - set(self.describe(wanted)))
        if missing and not self.brokers_make_topics():
            raise MissingSinkTopicError(
                f"output topic {', '.join(missing)} does not exist on {self._servers}, which makes no topics by itself "
                "(auto.create.topics.enable=false): create it, then start again"
            )

    def brokers_make_topics(self) -> bool:
        """Whether a topic comes into being when it is first written; True where that may not be asked."""
        metadata = self._ask("list brokers", lambda: self._client.list_topics(timeout=ANSWER_SECONDS))
        broker = ConfigResource(ConfigResource.Type.BROKER, str(next(iter(metadata.brokers))))
        try:
            found = next(iter(self._client.describe_configs([broker]).values())).result(ANSWER_SECONDS)
        except KafkaException as error:
            logger.debug("auto.create.topics.enable cannot be read: %s", error)
            return True
        return str(found["auto.create.topics.enable"].value) != "false"

    # -- answers ---------------------------------------------------------------------------------------------------------------

    def _ask(self, what: str, question: Callable[[], Answer]) -> Answer:
        try:
            return question()
        except KafkaException as error:
            raise self._translate(what, error) from error

    def _wait(self, what: str, future: Future[Answer], seconds: float = ANSWER_SECONDS) -> Answer:
        try:
            return future.result(seconds)
        except KafkaException as error:
            raise self._translate(what, error) from error
        except FutureTimeoutError as error:
            raise BrokerUnavailableError(f"bootstrap.servers = {self._servers}: no answer within {seconds:.0f} s ({what})") from error

    def _once_loaded(self, question: Callable[[], Answer]) -> Answer:
        """Asks a group's coordinator until it knows its groups: a broker that has just started, or has just made the topic of the groups,
        reads them first. Raises what asking raises."""
        until = time.monotonic() + ANSWER_SECONDS
        while True:
            try:
                return question()
            except StreamsError as error:
                cause = error.__cause__
                if not isinstance(cause, KafkaException) or cause.args[0].code() not in _LOADING or time.monotonic() > until:
                    raise
                time.sleep(_LOADING_SECONDS)

    def _unless_missing(self, what: str, future: Future[Answer]) -> Answer | None:
        try:
            return self._wait(what, future)
        except StreamsError as error:
            cause = error.__cause__
            if isinstance(cause, KafkaException) and cause.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            raise

    def _translate(self, what: str, error: KafkaException) -> StreamsError:
        inner: KafkaError = error.args[0]
        if inner.code() in _AWAY:
            return BrokerUnavailableError(f"bootstrap.servers = {self._servers}: no broker answered ({what}: {inner.str()})")
        return StreamsError(f"{what}: {inner.name()}: {inner.str()}")


def _warn_of_lost(application_id: str, changelogs: Sequence[str]) -> None:
    """Of changelogs that are made although the application has run before. Whether their stores are new, the brokers do not know."""
    if changelogs:
        logger.warning(
            "changelogs that do not exist are made now, although %s has run before: %s. A store that is new begins empty, as it should. "
            "One whose changelog was lost begins with what the disks hold, or empty: to begin with a snapshot or seed instead, stop it and "
            "start it with --seed <URI> --reset-offsets",
            application_id,
            ", ".join(sorted(changelogs)),
        )


def _stamps_differ(found: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """True for a topic that brokers shall stamp, and do not."""
    return any(wanted.get(name) == value != found.get(name) for name, value in BY_THE_BROKERS_CLOCK.items())
