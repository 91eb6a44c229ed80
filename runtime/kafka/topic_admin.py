"""Administration of topics: description, offsets, creation (Kafka Streams' `InternalTopicManager`).

All requests are synchronous. A request that times out raises BrokerUnavailableError and can be repeated: creating an existing topic is no
error.

While a broker is away, requests are repeated by new clients. librdkafka 2.16 sends a request to the controller, or to the leaders of
partitions, as of its last metadata, and does not renew these while the request waits for a broker that is down or does not answer. It also
forgets its brokers at an answer that lists none, as of a broker that the controller has fenced, and connects to none ever again. A new
client asks another broker, and finds those that took over.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import TypeVar

from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
)
from confluent_kafka import (
    TopicPartition as ClientPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._group import ConsumerGroupDescription
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.admin._metadata import ClusterMetadata
from confluent_kafka.admin._records import DeletedRecords
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.admin._topic import TopicDescription as BrokersTopic
from confluent_kafka.cimpl import NewTopic

from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.kafka.clients import QUIET, admin_client, offsets_consumer
from penstock.runtime.kafka.connection import Connection
from penstock.runtime.kafka.failures import Meaning, kafka_error, meaning, with_remedy
from penstock.runtime.kafka.first_contact import refused_login
from penstock.runtime.model.errors import (
    BrokerUnavailableError,
    MissingSourceTopicError,
    StreamsError,
)
from penstock.runtime.model.ids import NextOffset, TopicPartition
from penstock.runtime.model.offsets import OffsetAndMetadata

logger = logging.getLogger(__name__)

SLICE_SECONDS = 0.2
"""Time in which a wait notices `give_up`; `ASK_SECONDS` where the client library waits by itself."""
ASK_SECONDS = 2.0
WARN_SECONDS = 3.0
"""After so long without an answer, the log says so."""
ANSWER_SECONDS = 30.0
"""Time-out of one request to the brokers, with its repetitions."""
COORDINATOR_SECONDS = 10.0
"""Time after which a new client asks for a group's coordinator: then another broker has replaced one that is frozen, if the session with
the controller is as long as by default (`broker.session.timeout.ms`, 9 s)."""
_FIRST_SECONDS = 2.0
"""Time-out of the first attempt at a request; each further one has twice as long."""

SHORT_ANSWER_SECONDS = 3.0
"""Time-out of a request during a transaction: well below the shortest time-out of a session or a transaction."""

_LOADING_SECONDS = 0.2
"""Delay before a request to a coordinator that is loading its groups is repeated."""

Answer = TypeVar("Answer")


def ensure_topic(connection: Connection, topic: str, partitions: int, config: Mapping[str, str]) -> None:
    """Create a topic unless it exists. Raises BrokerUnavailableError."""
    client = AdminClient(connection.client(QUIET))
    try:
        client.create_topics([NewTopic(topic, partitions, -1, config=dict(config))], request_timeout=ANSWER_SECONDS)[topic].result(
            ANSWER_SECONDS
        )
    except KafkaException as error:
        if Meaning.EXISTS not in meaning(error):
            why = with_remedy(kafka_error(error), f"Create on topic {topic}")
            raise BrokerUnavailableError(f"bootstrap.servers = {connection}: topic {topic} cannot be made: {why}") from error
    except FutureTimeoutError as error:
        raise BrokerUnavailableError(f"bootstrap.servers = {connection}: no answer within {ANSWER_SECONDS:.0f} s") from error


def create_commands(connection: Connection, topics: Mapping[str, int], options: str = "") -> str:
    """Return the commands that create these topics, with their partitions, for messages: one line each, to be copied."""
    start = f"{connection.tool('kafka-topics')} --create --topic"
    return "".join(f"\n  {start} {topic} --partitions {partitions}{options}" for topic, partitions in topics.items())


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """Description of a topic. `config` contains all settings, including defaults."""

    name: str
    partitions: int
    topic_id: str
    config: Mapping[str, str]

    @property
    def compacted(self) -> bool:
        return "compact" in self.config.get("cleanup.policy", "")

    @property
    def delete_retention_ms(self) -> int | None:
        """Time in ms for which a tombstone is retained; None if the topic is not compacted."""
        return int(self.config.get("delete.retention.ms", "86400000")) if self.compacted else None


@dataclass(frozen=True, slots=True)
class Shortage:
    """A partition that takes no records: it has no leader, or fewer copies in sync than `min.insync.replicas`."""

    topic: str
    partition: int
    in_sync: int
    needed: int
    missing: tuple[int, ...]
    """Brokers whose copy is not in sync."""

    def __str__(self) -> str:
        brokers = ", ".join(map(str, self.missing))
        few = f"{self.in_sync} copies in sync, min.insync.replicas is {self.needed}" if self.in_sync else "no leader"
        return f"{self.topic}-{self.partition} ({few}; brokers that are missing: {brokers})"


def _seeing(group: str) -> str:
    """Return the right that requests about a group need."""
    return f"Describe on group {group} (Read includes it)"


def _untraced(error: KafkaException) -> KafkaException:
    """Return the exception of a future without its traceback: its frames refer to the future, and to the client, whose threads would live
    until the next collection of garbage, which a worker puts off."""
    return error.with_traceback(None)


@dataclass(frozen=True, slots=True)
class _Deletion:
    """Request to delete records. Its client must not end before the answers."""

    client: AdminClient
    answers: Mapping[ClientPartition, Future[DeletedRecords]]


class TopicAdmin:
    """Client for the administration of topics. Safe to use from several threads."""

    def __init__(self, config: StreamsConfig, give_up: Callable[[], bool] = lambda: False) -> None:
        """Makes no request. `give_up` is called while a broker does not answer; True ends the wait. Raises StreamsConfigError for settings
        that the Kafka client refuses."""
        self._config = config
        self._client = admin_client(config)
        self._offsets_reader: Consumer | None = None
        self._servers = str(config["bootstrap.servers"])
        self._counts: dict[str, int] = {}
        self._racks: dict[int, str] = {}
        """Last known rack of each broker, by its id."""
        self._deleting: _Deletion | None = None
        self._attempt_s = _FIRST_SECONDS
        """Time-out of the first attempt: longer where answers have taken long."""
        self.give_up = give_up

    # -- reading ---------------------------------------------------------------------------------------------------------------

    def names(self) -> frozenset[str]:
        """Return the names of all topics. Raises BrokerUnavailableError, StreamsError."""
        return frozenset(self._cluster("list topics").topics)

    def describe(self, topics: Iterable[str]) -> dict[str, TopicDescription]:
        """Describe topics; those that do not exist are left out. The requests for a new topic and for its configuration may go to two
        brokers, of which one does not know it yet: it is asked for again. Raises BrokerUnavailableError, StreamsError."""
        begun = time.monotonic()
        while True:
            found = self._described(topics)
            configs = self._configs(found)
            late = sorted(found.keys() - configs.keys())
            if not late:
                return {
                    name: TopicDescription(name, len(each.partitions), str(each.topic_id), configs[name]) for name, each in found.items()
                }
            waited = time.monotonic() - begun
            if waited > ANSWER_SECONDS or self.give_up():
                raise self._unanswered(f"configuration of topic {late[0]}, which one broker knows and another does not", waited)
            time.sleep(_LOADING_SECONDS)

    def _described(self, topics: Iterable[str]) -> dict[str, BrokersTopic]:
        names = sorted(set(topics))
        if not names:
            return {}

        def ask(client: AdminClient, timeout: float) -> dict[str, BrokersTopic | None]:
            answers = self._ask("describe topics", lambda: client.describe_topics(TopicCollection(names), request_timeout=timeout))
            return {
                name: self._unless_missing(f"describe topic {name}", future, f"Describe on topic {name} (Read and Write include it)")
                for name, future in answers.items()
            }

        return {name: description for name, description in self._request("describe topics", ask).items() if description is not None}

    def racks(self, topics: Iterable[str]) -> dict[TopicPartition, frozenset[str]]:
        """Return the racks of each partition's replicas; empty if one is unknown, or the brokers have no `broker.rack`. The answer of
        the brokers names no rack of a broker that is away, which keeps its last one: its tasks need not move while it restarts. Raises
        BrokerUnavailableError, StreamsError."""
        found = {
            TopicPartition(name, part.id): part.replicas
            for name, description in self._described(topics).items()
            for part in description.partitions
        }
        self._racks |= {node.id: str(node.rack) for replicas in found.values() for node in replicas if node.rack}
        return {
            partition: frozenset(self._racks[node.id] for node in replicas)
            if all(node.id in self._racks for node in replicas)
            else frozenset()
            for partition, replicas in found.items()
        }

    def shortages(self, topics: Collection[str]) -> list[Shortage]:
        """Return the partitions of these topics that take no records now. Without the right to read a topic's configuration, only those
        without a leader. Raises BrokerUnavailableError, StreamsError."""
        short = [
            (name, partition)
            for name, found in self._described(topics).items()
            for partition in found.partitions
            if partition.leader is None or len(partition.isr) < len(partition.replicas)
        ]
        needed = dict.fromkeys((name for name, _ in short), 1)
        try:
            needed |= {name: int(config.get("min.insync.replicas", "1")) for name, config in self._configs([*needed]).items()}
        except BrokerUnavailableError:
            raise
        except StreamsError as error:
            logger.debug("min.insync.replicas cannot be read: %s", error)
        found = []
        for name, partition in short:
            alive = {node.id for node in partition.isr} if partition.leader is not None else set()
            missing = tuple(node.id for node in partition.replicas if node.id not in alive)
            if len(alive) < needed[name]:
                found.append(Shortage(name, partition.id, len(alive), needed[name], missing))
        return found

    def _configs(self, topics: Collection[str]) -> dict[str, dict[str, str]]:
        if not topics:
            return {}
        resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in topics]

        def ask(client: AdminClient, timeout: float) -> dict[str, dict[str, str]]:
            answers = self._ask("describe configurations", lambda: client.describe_configs(resources, request_timeout=timeout))
            configs: dict[str, dict[str, str]] = {}
            for resource, future in answers.items():
                what, right = f"describe configuration of {resource.name}", f"DescribeConfigs on topic {resource.name}"
                entries = self._unless_missing(what, future, right)
                if entries is not None:
                    configs[resource.name] = {name: entry.value for name, entry in entries.items() if entry.value is not None}
            return configs

        return self._request("describe configurations", ask)

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, NextOffset]:
        """Return the last stable offsets, which a `read_committed` consumer can reach. Raises BrokerUnavailableError, StreamsError (unknown
        partition)."""
        return self._offsets(partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]  # not annotated there

    def high_watermarks(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, NextOffset]:
        """Return the ends including open transactions. A transaction may be committed for its producer before its markers are in all
        partitions. Raises BrokerUnavailableError, StreamsError (unknown partition)."""
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # not annotated there
        return self._offsets(partitions, latest, IsolationLevel.READ_UNCOMMITTED)

    def start_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, NextOffset]:
        """Return the first available offsets. Raises as `end_offsets`."""
        return self._offsets(partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call]  # not annotated there

    def offsets_for_times(self, partitions: Iterable[TopicPartition], at_ms: int) -> dict[TopicPartition, NextOffset]:
        """Return the offset of the first record with a timestamp of at least `at_ms` (ms), the end if there is none. Raises as
        `end_offsets`."""
        wanted = list(partitions)
        first = self._offsets(wanted, OffsetSpec.for_timestamp(at_ms))
        none_yet = [partition for partition, offset in first.items() if offset < 0]
        return first | self.end_offsets(none_yet)

    def _offsets(
        self, partitions: Iterable[TopicPartition], spec: OffsetSpec, isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
    ) -> dict[TopicPartition, NextOffset]:
        wanted = {ClientPartition(partition.topic, partition.partition): spec for partition in partitions}
        if not wanted:
            return {}

        def ask(client: AdminClient, timeout: float) -> dict[TopicPartition, NextOffset]:
            answers = self._ask("list offsets", lambda: client.list_offsets(wanted, isolation_level=isolation, request_timeout=timeout))
            found = {
                TopicPartition(at.topic, at.partition): NextOffset(
                    self._wait(f"list offsets of {at.topic}-{at.partition}", future, f"Read on topic {at.topic}").offset
                )
                for at, future in answers.items()
            }
            for partition, offset in found.items():
                if offset == OFFSET_INVALID:  # librdkafka 2.16 reports no error if the leader of some of the partitions has not answered
                    silent = KafkaException(KafkaError(KafkaError._TIMED_OUT))
                    raise self._translate(f"list offsets of {partition.topic}-{partition.partition}", silent) from silent
            return found

        return self._request("list offsets", ask)

    def committed_offsets(self, group: str, *, stable: bool = True) -> dict[TopicPartition, NextOffset]:
        """Return all committed offsets of a group. Raises BrokerUnavailableError, StreamsError. If an open transaction contains offsets,
        `stable` raises as well; otherwise these offsets are ignored.

        The group is described first, which waits for its coordinator: librdkafka ends the process with a segmentation fault if the answer
        to an admin client's request for offsets is NOT_COORDINATOR (its issue 5040), as soon after a broker's start.
        """
        self.members(group)
        what, request = f"list offsets of group {group}", [ConsumerGroupTopicPartitions(group)]

        def ask() -> list[ClientPartition]:
            (future,) = self._ask(what, lambda: self._client.list_consumer_group_offsets(request, require_stable=stable)).values()
            return self._wait(what, future, _seeing(group)).topic_partitions or []

        found: dict[TopicPartition, NextOffset] = {}
        for at in self._once_loaded(ask):
            if at.error is not None:
                raise StreamsError(f"the committed offset of {at.topic}-{at.partition} in group {group} cannot be read: {at.error.str()}")
            if at.offset >= 0:
                found[TopicPartition(at.topic, at.partition)] = NextOffset(at.offset)
        return found

    def has_pending_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> bool:
        """Return True if an open transaction contains offsets of these partitions in a group, whose coordinator has answered before
        (`committed_offsets`). Without the partitions, brokers would not list the first offset of one. Raises BrokerUnavailableError,
        StreamsError."""
        asked = [ClientPartition(*partition) for partition in partitions]
        if not asked:
            return False
        what, request = f"list stable offsets of group {group}", [ConsumerGroupTopicPartitions(group, asked)]

        def ask() -> list[ClientPartition]:
            (future,) = self._ask(what, lambda: self._client.list_consumer_group_offsets(request, require_stable=True)).values()
            return self._wait(what, future, _seeing(group)).topic_partitions or []

        return any(Meaning.OFFSETS_PENDING in meaning(at.error) for at in self._once_loaded(ask))

    def last_committed(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of partitions, ignoring open transactions. Waits at most `SHORT_ANSWER_SECONDS`, because it is
        called during a transaction. Raises BrokerUnavailableError, StreamsError.

        It uses a consumer that joins no group. (Rejected: the admin client. In librdkafka 2.16 its requests to a group's coordinator are
        never answered again after a broker failure, and one that times out while the broker is down may abort the process.)
        """
        if self._offsets_reader is None:
            self._offsets_reader = offsets_consumer(self._config.admin_properties(), group)
        offsets_reader, asked = self._offsets_reader, [ClientPartition(*partition) for partition in partitions]
        what = f"list offsets of group {group}"
        found = self._ask(what, lambda: offsets_reader.committed(asked, timeout=SHORT_ANSWER_SECONDS))
        for at in found:
            if at.error is not None:
                raise self._translate(what, KafkaException(at.error))
        return {TopicPartition(at.topic, at.partition): OffsetAndMetadata(at.offset, at.metadata or "") for at in found if at.offset >= 0}

    def members(self, group: str) -> list[str]:
        """Return the clients (`client.id`) that are members of a group. Raises BrokerUnavailableError, StreamsError."""
        what, right, begun = f"describe group {group}", _seeing(group), time.monotonic()

        def ask() -> ConsumerGroupDescription:
            while True:
                client, asked = self._client, time.monotonic()
                future: Future[ConsumerGroupDescription] = self._ask(what, lambda: client.describe_consumer_groups([group]))[group]  # noqa: B023 (called at once)
                try:
                    return self._wait(what, future, right, COORDINATOR_SECONDS)
                except BrokerUnavailableError:
                    self._replace(client)
                    now = time.monotonic()
                    if now - asked < COORDINATOR_SECONDS or now - begun >= ANSWER_SECONDS or self.give_up():
                        raise

        try:
            description = self._once_loaded(ask)
        except StreamsError as error:
            if Meaning.NO_GROUP in meaning(error.__cause__):
                return []
            raise
        return sorted({str(member.client_id) for member in description.members})

    def partition_counts(self, topics: Iterable[str]) -> dict[str, int]:
        """Return the current number of partitions of each existing topic. Raises BrokerUnavailableError, StreamsError."""
        return {name: len(found.partitions) for name, found in self._described(topics).items()}

    def partition_count(self, topic: str) -> int:
        """Return the number of partitions of a topic. It is cached, because it seldom changes. Raises MissingSourceTopicError."""
        count = self._counts.get(topic)
        if count is None:
            found = self.describe([topic]).get(topic)
            if found is None:
                raise MissingSourceTopicError(f"topic {topic} does not exist")
            count = self._counts[topic] = found.partitions
        return count

    # -- changes ---------------------------------------------------------------------------------------------------------------

    def create(self, topic: str, partitions: int, config: Mapping[str, str]) -> None:
        """Create a topic; an existing one is left unchanged."""
        self.create_all({topic: (partitions, config)})

    def create_all(self, topics: Mapping[str, tuple[int, Mapping[str, str]]]) -> None:
        """Create topics, each with its number of partitions and its configuration; existing ones are left unchanged."""
        if not topics:
            return
        replicas = self._config.integer("replication.factor")
        new = [NewTopic(name, count, replicas, config=dict(config)) for name, (count, config) in topics.items()]

        def ask(client: AdminClient, timeout: float) -> None:
            for name, future in self._ask("create topics", lambda: client.create_topics(new, request_timeout=timeout)).items():
                try:
                    self._result(f"create topic {name}", future)
                    logger.info("topic %s made with %d partitions", name, topics[name][0])
                except KafkaException as error:
                    if Meaning.EXISTS not in meaning(_untraced(error)):
                        raise self._translate(f"create topic {name}", error, f"Create on topic {name}") from error

        self._request("create topics", ask)

    def delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        """Delete the records before these offsets. Raises BrokerUnavailableError, StreamsError."""
        self._request("delete records", lambda _, timeout: self._deleted(self._deletion(before, timeout)))

    def begin_deleting_records(self, before: Mapping[TopicPartition, int]) -> None:
        """As `delete_records`, without waiting for the answer: the next call raises its errors. Makes no request while the last one has no
        answer."""
        deletion = self._deleting
        if deletion is not None and not all(future.done() for future in deletion.answers.values()):
            return
        self._deleting = self._deletion(before, ANSWER_SECONDS)
        if deletion is not None:
            self._deleted(deletion)

    def _deletion(self, before: Mapping[TopicPartition, int], timeout: float) -> _Deletion:
        # A client of its own: librdkafka looks leaders up in its cache, which knows none of topics that were made through the same client.
        client = admin_client(self._config)
        wanted = [ClientPartition(partition.topic, partition.partition, offset) for partition, offset in before.items()]
        return _Deletion(client, self._ask("delete records", lambda: client.delete_records(wanted, request_timeout=timeout)))

    def _deleted(self, deletion: _Deletion) -> None:
        for at, future in deletion.answers.items():
            self._wait(f"delete records of {at.topic}-{at.partition}", future, f"Delete on topic {at.topic}")

    def alter(self, settings: Mapping[str, Mapping[str, str]]) -> None:
        """Update settings of topics that an earlier version created. If altering is not authorized, they stay unchanged and a warning is
        logged: brokers then refuse records whose timestamps are far from their own clocks."""
        resources = [
            ConfigResource(
                ResourceType.TOPIC,
                topic,
                incremental_configs=[ConfigEntry(*setting, incremental_operation=AlterConfigOpType.SET) for setting in wanted.items()],
            )
            for topic, wanted in settings.items()
            if wanted
        ]
        if not resources:
            return

        def ask(client: AdminClient, timeout: float) -> None:
            answers = self._ask("alter topics", lambda: client.incremental_alter_configs(resources, request_timeout=timeout))
            for resource, future in answers.items():
                wanted = ",".join(f"{name}={value}" for name, value in settings[resource.name].items())
                try:
                    self._wait(f"alter topic {resource.name}", future, f"AlterConfigs on topic {resource.name}")
                    logger.info("topic %s is altered: %s", resource.name, wanted)
                except BrokerUnavailableError:
                    raise
                except StreamsError as error:
                    logger.warning(
                        "topic %s may refuse records for their time, and is not altered: %s. Set it: %s --alter "
                        "--entity-type topics --entity-name %s --add-config %s",
                        *(
                            resource.name,
                            error,
                            Connection.of(self._config.admin_properties()).tool("kafka-configs"),
                            resource.name,
                            wanted,
                        ),
                    )

        self._request("alter topics", ask)

    def brokers_make(self, topic: str) -> bool:
        """Return True if brokers create a missing topic when it is written to. If their configuration cannot be read, return
        whether this client may create it: brokers create topics only for clients that may."""
        what = "describe configuration of a broker"

        def ask(client: AdminClient, timeout: float) -> dict[str, ConfigEntry]:
            broker = ConfigResource(ConfigResource.Type.BROKER, str(next(iter(self._cluster("list brokers").brokers))))
            return self._wait(what, next(iter(client.describe_configs([broker], request_timeout=timeout).values())))

        try:
            found = self._request(what, ask)
        except BrokerUnavailableError:
            raise
        except StreamsError as error:
            logger.debug("auto.create.topics.enable cannot be read: %s", error)
            return self._may_create(topic)
        return str(found["auto.create.topics.enable"].value) != "false"

    def _may_create(self, topic: str) -> bool:
        """Return True unless brokers refuse this client the creation of a topic. Nothing is created."""
        what, new = f"validate the creation of topic {topic}", [NewTopic(topic, 1, -1)]

        def ask(client: AdminClient, timeout: float) -> None:
            self._wait(what, client.create_topics(new, validate_only=True, request_timeout=timeout)[topic])

        try:
            self._request(what, ask)
        except BrokerUnavailableError:
            raise
        except StreamsError as error:
            return Meaning.NO_RIGHT not in meaning(error.__cause__)
        return True

    # -- answers ---------------------------------------------------------------------------------------------------------------

    def _ask(self, what: str, question: Callable[[], Answer]) -> Answer:
        try:
            return question()
        except KafkaException as error:
            raise self._translate(what, error) from error

    def _wait(self, what: str, future: Future[Answer], needs: str = "", seconds: float = ANSWER_SECONDS) -> Answer:
        """`needs`: the right that the request needs, as for `with_remedy`."""
        try:
            return self._result(what, future, seconds)
        except KafkaException as error:
            raise self._translate(what, error, needs) from _untraced(error)

    def _result(self, what: str, future: Future[Answer], seconds: float = ANSWER_SECONDS) -> Answer:
        """As `_wait`, but raise the broker's own errors: KafkaException, BrokerUnavailableError."""
        begun = time.monotonic()
        while True:
            try:
                return future.result(SLICE_SECONDS)
            except FutureTimeoutError as error:
                waited = time.monotonic() - begun
                if waited >= seconds or self.give_up():
                    raise self._unanswered(what, waited) from error

    def _cluster(self, what: str) -> ClusterMetadata:
        """Return metadata of brokers and topics. Raises BrokerUnavailableError, StreamsError."""

        def ask(client: AdminClient, timeout: float) -> ClusterMetadata:
            return self._ask(what, lambda: client.list_topics(timeout=min(timeout, ASK_SECONDS)))

        return self._request(what, ask)

    def _request(self, what: str, question: Callable[[AdminClient, float], Answer]) -> Answer:
        """Make a request, which may be repeated; `question` has a client and a time-out as arguments. If there is no answer, repeat it by
        a new client with twice the time-out. Repeat it also until each partition has a leader, which a new topic may lack for a moment,
        and those of a broker that stops. This ends after `ANSWER_SECONDS`, or when `give_up` returns True. Logs once if it takes long.
        Raises the exceptions of `question`.

        Other threads that wait for the former client have a reference to it: its end would be an error of their requests.
        """
        begun, timeout, warned = time.monotonic(), self._attempt_s, False
        while True:
            client, asked = self._client, time.monotonic()
            try:
                answer = question(client, timeout)
            except StreamsError as error:
                reasons, waited = meaning(error.__cause__), time.monotonic() - begun
                if not reasons & (Meaning.NO_ANSWER | Meaning.NO_LEADER):
                    if isinstance(error, BrokerUnavailableError) and not self.give_up():  # the client library lets the request wait on
                        self._replace(client)
                    raise
                if Meaning.NO_ANSWER in reasons:
                    self._replace(client)
                    timeout = min(2 * timeout, max(_FIRST_SECONDS, ANSWER_SECONDS - waited))
                if waited >= ANSWER_SECONDS or self.give_up():
                    if Meaning.NO_LEADER in reasons:
                        raise
                    raise self._unanswered(f"{what}{self._refused()}", waited) from error
                if waited >= WARN_SECONDS and not warned:
                    logger.warning("bootstrap.servers = %s: no broker has answered for %.0f s (%s)", self._servers, waited, what)
                    warned = True
                time.sleep(_LOADING_SECONDS)
            else:
                self._attempt_s = max(_FIRST_SECONDS, min(timeout, 2 * (time.monotonic() - asked)))
                return answer

    def _replace(self, client: AdminClient) -> None:
        """Replace the client by a new one, unless another thread has done so."""
        if self._client is client:
            self._client = admin_client(self._config)

    def _once_loaded(self, question: Callable[[], Answer]) -> Answer:
        """Repeat a request to a group's coordinator until it has loaded its groups, which takes a while after a broker's start and after
        the creation of `__consumer_offsets`. Raises the exceptions of `question`."""
        until = time.monotonic() + ANSWER_SECONDS
        while True:
            try:
                return question()
            except StreamsError as error:
                loading = Meaning.COORDINATOR_NOT_READY in meaning(error.__cause__)
                if not loading or time.monotonic() > until or self.give_up():
                    raise
                time.sleep(_LOADING_SECONDS)

    def _unless_missing(self, what: str, future: Future[Answer], needs: str) -> Answer | None:
        try:
            return self._wait(what, future, needs)
        except StreamsError as error:
            if Meaning.UNKNOWN_TOPIC in meaning(error.__cause__):
                return None
            raise

    def _refused(self) -> str:
        """Return the end of an error about a request that was not answered, if the brokers refuse this client's login."""
        refused = None if self.give_up() else refused_login(Connection.of(self._config.admin_properties()))
        return "" if refused is None else f"; the brokers refuse this client: {self._config.redacted(refused.str())}"

    def _unanswered(self, what: str, waited: float) -> BrokerUnavailableError:
        return BrokerUnavailableError(f"bootstrap.servers = {self._servers}: no answer within {waited:.0f} s ({what})")

    def _translate(self, what: str, error: KafkaException, needs: str = "") -> StreamsError:
        inner = kafka_error(error)
        if Meaning.NO_ANSWER in meaning(inner):
            return BrokerUnavailableError(f"bootstrap.servers = {self._servers}: no broker answered ({what}: {inner.str()})")
        if Meaning.NO_LEADER in meaning(inner):
            return BrokerUnavailableError(f"bootstrap.servers = {self._servers}: a partition has no leader now ({what}: {inner.str()})")
        return StreamsError(f"{what}: {inner.name()}: {with_remedy(inner, needs)}")
