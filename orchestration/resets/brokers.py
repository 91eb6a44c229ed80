"""Steps of a reset on the brokers. Each is idempotent: an object that is already deleted is no error."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TypeVar

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType

from penstock.orchestration.kafka.task_commands import RefusedError
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.coordination.past import living_keys
from penstock.runtime.coordination.records import DESIRED, RESET, Reset, encode
from penstock.runtime.coordination.resets import last_reset
from penstock.runtime.coordination.topics import COORDINATION_CONFIG, coordination_topic
from penstock.runtime.kafka.failures import Meaning, meaning, with_remedy
from penstock.runtime.kafka.topic_admin import ANSWER_SECONDS, TopicAdmin
from penstock.runtime.kafka.transactions import TransactionalProducer, fence
from penstock.runtime.model.errors import BrokerUnavailableError, StreamsError, TaskMigratedError, TransactionAbortedError
from penstock.runtime.model.events import events_topic
from penstock.runtime.model.ids import NextOffset, TopicPartition

Answer = TypeVar("Answer")

_POLL_SECONDS = 0.1
_GONE = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.GROUP_ID_NOT_FOUND)
_POLICY = "cleanup.policy"
_KEPT = (DESIRED, RESET)
"""Kinds of records that a reset keeps."""


class Brokers:
    """Client for the brokers of an application during a reset. `mark` fences other resets of it; only the last one that called `mark` can
    `end`."""

    def __init__(self, config: StreamsConfig, topics: TopicAdmin) -> None:
        """Prepare a client; no broker is contacted."""
        self._config = config
        self._topics = topics
        self._topic = coordination_topic(config.application_id)
        self._writer: TransactionalProducer | None = None
        self._mark: Reset | None = None
        self._before: Reset | None = None

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    # -- begin and end ---------------------------------------------------------------------------------------------------------

    def mark(self, reset: Reset) -> None:
        """Record that the reset has begun: no instance starts from here on. Raises BrokerUnavailableError, StreamsError."""
        self._topics.create(self._topic, 1, COORDINATION_CONFIG)
        if self._writer is None:
            properties = {**self._config.producer_properties(), "linger.ms": 0}
            self._writer = TransactionalProducer(properties, f"{self._config.application_id}-reset", None, lambda: True)
            self._transacted(self._writer.init)
        self._before = last_reset(self._config, self._topics)
        self._write({reset.key: encode(reset)})
        self._mark = reset

    def take_mark_back(self) -> None:
        """Undo `mark`, before anything else was changed, and restore the record that it replaced. Raises RefusedError if another reset has
        begun since; BrokerUnavailableError, StreamsError."""
        assert self._mark is not None  # `mark` was called
        self._write({self._mark.key: None if self._before is None else encode(self._before)})
        self._mark = None

    def check(self) -> None:
        """Check that the mark is still ours; called before each step. Raises RefusedError if another reset of the application has begun
        since."""
        found = last_reset(self._config, self._topics)
        if self._mark is None or found is None or found.id != self._mark.id or found.ended:
            by = "" if found is None else f" by {found.by}"
            raise RefusedError(f"another reset of {self._config.application_id} was begun{by} meanwhile, in the place of this one")

    def end(self, reset: Reset) -> int:
        """Delete all records of the coordination topic except desired states, and record that the reset has ended, in one transaction.
        Return the number of deleted records."""
        forgotten = [key for key in living_keys(self._config) if key.decode(errors="replace").partition("/")[0] not in _KEPT]
        self._write({**dict.fromkeys(forgotten), reset.key: encode(reset)})
        self._mark = reset
        return len(forgotten)

    def _write(self, records: Mapping[bytes, bytes | None]) -> None:
        writer = self._writer
        assert writer is not None  # `mark` was called
        for key, value in records.items():
            writer.producer.send(self._topic, key, value, None, None, 0)
            writer.producer.poll()
        self._transacted(writer.commit)

    def _transacted(self, call: Callable[[], None]) -> None:
        try:
            call()
        except TaskMigratedError as error:
            if Meaning.NO_RIGHT in meaning(error.__cause__):
                raise StreamsError(f"{self._topic} cannot be written: {error}") from error
            raise RefusedError(f"another reset was begun meanwhile, or the brokers took too long: {error}") from error
        except TransactionAbortedError as error:
            raise StreamsError(f"the brokers did not take it; run the reset again: {error}") from error

    # -- steps -----------------------------------------------------------------------------------------------------------------

    def fence(self, transactional_ids: Iterable[str]) -> None:
        """Abort open transactions of these ids, and fence their producers. Raises StreamsError."""
        properties = self._config.producer_properties()
        for transactional_id in transactional_ids:
            fence(properties, transactional_id)

    def delete_topics(self, topics: Collection[str]) -> list[str]:
        """Delete topics, and wait until they are gone; return those that existed. Raises BrokerUnavailableError, StreamsError."""
        there = sorted(set(topics) & self._topics.names())
        if not there:
            return []
        admin = self._admin()
        for name, future in admin.delete_topics(there, operation_timeout=ANSWER_SECONDS).items():
            self._wait(f"delete topic {name}", future, f"Delete on topic {name}")
        self._until(lambda: not self._topics.names() & set(there), f"the end of {', '.join(there)}")
        return there

    def empty(self, topic: str, policy: str) -> None:
        """Delete all records of a topic but keep its settings. `policy`: its cleanup.policy before the reset. Raises
        BrokerUnavailableError, StreamsError."""
        found = self._topics.describe([topic]).get(topic)
        if found is None:
            return
        if _is_compacted_only(policy):
            self._set_policy(topic, "compact,delete")
        try:
            partitions = [TopicPartition(topic, number) for number in range(found.partitions)]
            self._topics.delete_records(self._topics.high_watermarks(partitions))
        finally:
            self.restore_policy(topic, policy)

    def restore_policy(self, topic: str, policy: str) -> None:
        """Restore the cleanup.policy that `empty` has changed, in this reset or in a killed one. Raises BrokerUnavailableError,
        StreamsError."""
        if _is_compacted_only(policy):
            self._set_policy(topic, policy)

    def forget_events(self) -> None:
        """Delete all records of the events topic. Raises BrokerUnavailableError, StreamsError."""
        topic = events_topic(self._config.application_id)
        if topic in self._topics.describe([topic]):
            self._topics.delete_records(self._topics.high_watermarks([TopicPartition(topic, 0)]))

    def policies(self, topics: Collection[str]) -> dict[str, str]:
        """Return the cleanup.policy of each topic. Raises BrokerUnavailableError, StreamsError."""
        return {name: found.config.get(_POLICY, "delete") for name, found in self._topics.describe(topics).items()}

    def set_offsets(self, offsets: Mapping[TopicPartition, NextOffset], groups: Iterable[str]) -> None:
        """Delete the groups with their committed offsets, and commit these offsets to the first one. Raises RefusedError if one has
        members, BrokerUnavailableError, StreamsError."""
        group, *others = groups
        self._until(lambda: self._stable(group), f"the end of the transactions on the offsets of {group}")
        admin = self._admin()
        admin.list_topics(timeout=ANSWER_SECONDS)  # fail early: a request about a group that times out may abort the process
        for name, future in admin.delete_consumer_groups([group, *others], request_timeout=ANSWER_SECONDS).items():
            self._wait(f"delete group {name}", future, f"Delete on group {name}")
        if offsets:
            self._commit(admin, group, offsets)

    def _commit(self, admin: AdminClient, group: str, offsets: Mapping[TopicPartition, NextOffset]) -> None:
        wanted = ConsumerGroupTopicPartitions(group, [ClientPartition(*partition, offset) for partition, offset in offsets.items()])
        answer = admin.alter_consumer_group_offsets([wanted], request_timeout=ANSWER_SECONDS)[group]
        done = self._wait(f"set offsets of group {group}", answer, f"Read on group {group}")
        for at in done.topic_partitions if done is not None else ():
            if at.error is not None:
                refused = with_remedy(at.error, f"Read on topic {at.topic}")
                raise StreamsError(f"set offsets of group {group}: {at.topic}-{at.partition}: {refused}")

    # -- answers ---------------------------------------------------------------------------------------------------------------

    def _admin(self) -> AdminClient:
        """Create a new client for each request: after a broker failure, an old one gets no answers about groups (librdkafka 2.16)."""
        return AdminClient({**self._config.admin_properties(), "log_level": 2})

    def _stable(self, group: str) -> bool:
        """Return False while a transaction contains offsets, until its marker is written."""
        try:
            self._topics.committed_offsets(group)
        except BrokerUnavailableError:
            raise
        except StreamsError as error:
            if Meaning.NO_RIGHT in meaning(error.__cause__):
                raise
            return False
        return True

    def _set_policy(self, topic: str, policy: str) -> None:
        entry = ConfigEntry(_POLICY, policy, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        admin = self._admin()  # its requests end when it does
        for future in admin.incremental_alter_configs([resource]).values():
            self._wait(f"alter topic {topic}", future, f"AlterConfigs on topic {topic}")

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + ANSWER_SECONDS
        while not condition():
            if time.monotonic() > until:
                raise StreamsError(f"{what} did not come within {ANSWER_SECONDS:.0f} s; run the reset again, and it continues")
            time.sleep(_POLL_SECONDS)

    def _wait(self, what: str, future: Future[Answer], needs: str) -> Answer | None:
        """Wait for an answer; None if the topic or group does not exist. `needs`: as for `with_remedy`. Raises RefusedError,
        BrokerUnavailableError, StreamsError."""
        try:
            return future.result(ANSWER_SECONDS)
        except KafkaException as error:
            inner = error.args[0]
            if inner.code() in _GONE:
                return None
            if inner.code() == KafkaError.NON_EMPTY_GROUP:
                raise RefusedError(f"{what}: it has members: stop every instance first") from error
            if inner.code() == KafkaError.TOPIC_DELETION_DISABLED:
                raise StreamsError(f"{what}: the brokers delete no topics (delete.topic.enable=false)") from error
            raise StreamsError(f"{what}: {inner.name()}: {with_remedy(inner, needs)}") from error
        except FutureTimeoutError as error:
            raise BrokerUnavailableError(f"bootstrap.servers = {self._config['bootstrap.servers']}: no answer ({what})") from error


def _is_compacted_only(policy: str) -> bool:
    """Return True for a cleanup.policy with which brokers refuse to delete records."""
    return "delete" not in policy
