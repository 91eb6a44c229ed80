"""Membership in a consumer group without input, which determines the live members and the leader (coordination.md).

Each worker subscribes to a topic of one partition, the coordination topic, with an ordinary consumer. The broker's group protocol provides
what is hard to build: heartbeats, a session that ends with the process, a generation that fences commits. The member with the partition is
the leader. All workers read the records with another consumer (`shared_log.py`); this consumer's partition stays paused.
"""

from __future__ import annotations

import logging
from typing import cast

from confluent_kafka import Consumer, KafkaException, TopicPartition

from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.kafka.clients import group_consumer
from penstock.runtime.kafka.failures import Meaning, meaning, with_remedy
from penstock.runtime.kafka.transactions import GroupMetadata
from penstock.runtime.model.errors import StreamsError, TaskMigratedError

logger = logging.getLogger(__name__)


class Membership:
    """One worker's membership. Used by the worker's thread; callbacks run inside `poll`."""

    def __init__(self, config: StreamsConfig, group: str, topic: str) -> None:
        """The first `poll` connects to the brokers."""
        self._properties = config.consumer_properties("membership")
        self._group = group
        self._topic = topic
        self.granted_to = ""
        """The member id to which tasks are assigned; "" until the worker has announced one."""
        self.open()

    def open(self) -> None:
        """Open a new consumer, which is not a member yet: at the start, and again after `close`."""
        self._consumer = group_consumer(self._properties, self._group)
        self._lost = False
        self.joined = False
        """True while this worker is a member of the group."""
        self.leads = False
        """True while the coordination topic's partition is assigned to this worker."""
        self.rebalances = 0
        """Number of generations that the group has reported, including the end of membership."""

    def join(self) -> None:
        """Subscribe; later polls complete the membership. After the group has dropped it, the client rejoins by itself, and may have done
        so already. Then `joined` is left True, because there is no further callback."""
        self._lost = False
        self._consumer.subscribe([self._topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._on_lost)

    def begin(self) -> str:
        """Return the member id under which the worker now announces itself, to be granted tasks. If the group dropped it before that and
        has admitted it again, nothing is lost."""
        if self._lost:
            self.join()
        self.granted_to = self.member_id
        return self.granted_to

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.rebalances += 1
        self.joined = True
        if partitions:
            consumer.incremental_assign(partitions)
            consumer.pause(partitions)
            self.leads = True
            logger.info("this worker leads the application")

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.rebalances += 1
        if partitions:
            self.leads = False
            consumer.incremental_unassign(partitions)

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.rebalances += 1
        self.leads = self.joined = False
        self._lost = True
        if partitions:
            consumer.incremental_unassign(partitions)

    def poll(self) -> None:
        """Serve the group protocol; never blocks. Raises StreamsError if the brokers do not allow membership to this client."""
        message = self._consumer.poll(0)
        error = None if message is None else message.error()
        if Meaning.NO_RIGHT in meaning(error) and error is not None:
            raise StreamsError(f"no member of {self._group}: {with_remedy(error, f'Read on group {self._group}')}")
        if error is not None:
            logger.log(logging.INFO if error.retriable() else logging.WARNING, "members' group: %s", error.str())

    @property
    def lost(self) -> bool:
        """True once the group has dropped this worker, until the next `join` or `begin`."""
        return self._lost

    @property
    def member_id(self) -> str:
        """This worker's member id in the group, or "" while it is not a member."""
        return self._consumer.memberid() or ""

    def metadata(self, granted_to: str) -> GroupMetadata:
        """Return the group metadata that guards a transaction.

        The metadata is read before the id is compared, so that a rejoin in between is noticed (rules.md, 23). The id need not be asked for
        where the metadata, which are bytes, contain it. Raises TaskMigratedError if the worker is no longer the member to which its tasks
        are assigned.
        """
        metadata: GroupMetadata = self._consumer.consumer_group_metadata()
        if not granted_to or (granted_to.encode() not in cast(bytes, metadata) and self.member_id != granted_to):
            raise TaskMigratedError(f"this worker was member {granted_to or '(none)'} and is {self.member_id or '(none)'} now")
        return metadata

    def guard(self) -> GroupMetadata:
        """Return the metadata for a transaction of this worker's tasks. Raises TaskMigratedError as `metadata`."""
        return self.metadata(self.granted_to)

    def close(self) -> None:
        """Leave the group at once.

        The consumer is unsubscribed first: librdkafka 2.16 does not leave the group when a client without an assigned partition is closed,
        as all members except the leader are. The group would then wait for the end of its session before others can join.
        """
        try:
            self._consumer.unsubscribe()
            self._consumer.close()
        except KafkaException as error:
            logger.warning("the members' group could not be left: %s", error)
