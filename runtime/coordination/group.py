"""The members' group `<app>-members`: who is alive, and who leads (coordination.md).

Each worker subscribes to the one-partition coordination topic with an ordinary consumer. The broker's group protocol gives what is hard to
build: heartbeats, a session that ends with the process, a generation that fences commits. Whoever is assigned the partition is leader.
The records are read by another consumer (`log.py`), because everybody reads them; this one's partition stays paused.
"""

from __future__ import annotations

import logging

from confluent_kafka import Consumer, KafkaException, TopicPartition

from runtime.commit.transactions import GroupMetadata
from runtime.config import StreamsConfig
from runtime.errors import TaskMigratedError
from runtime.kafka_logs import KAFKA_LOGGER
from runtime.topics import coordination_topic

logger = logging.getLogger(__name__)


def members_group(application_id: str) -> str:
    """The group whose members are the workers."""
    return f"{application_id}-members"


class Membership:
    """One worker's membership. Belongs to the worker's thread; callbacks run inside `poll`."""

    def __init__(self, config: StreamsConfig) -> None:
        """Connects on the first `poll`."""
        self._consumer = Consumer(
            {
                **config.consumer_properties("membership"),
                "group.id": members_group(config.application_id),
                "partition.assignment.strategy": "cooperative-sticky",
                "enable.auto.commit": False,
                "auto.offset.reset": "latest",
            },
            logger=KAFKA_LOGGER,
        )
        self._topic = coordination_topic(config.application_id)
        self._lost = False
        self.joined = False
        """True while the group counts this worker in."""
        self.leads = False
        """True while the coordination topic's partition is this worker's."""
        self.rebalances = 0
        """How often the group has told this worker of a new generation, or of its end."""

    def join(self) -> None:
        """Subscribes; membership comes with later polls. The client joins again by itself after it was dropped, and may have done so by
        now: then `joined` stands, because nothing more will come that says so."""
        self._lost = False
        self._consumer.subscribe([self._topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._on_lost)

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
        """Serves the group protocol; never blocks."""
        message = self._consumer.poll(0)
        error = None if message is None else message.error()
        if error is not None:
            logger.log(logging.INFO if error.retriable() else logging.WARNING, "members' group: %s", error.str())

    @property
    def lost(self) -> bool:
        """True once the group has dropped this worker, until the next `join`."""
        return self._lost

    @property
    def member_id(self) -> str:
        """The id that the group knows this worker by, or "" while it is not a member."""
        return self._consumer.memberid() or ""

    def metadata(self, granted_to: str) -> GroupMetadata:
        """What a transaction is guarded with. The metadata is taken first, then the id compared (rules.md, 23).

        Raises TaskMigratedError if the worker is not the member that was granted its tasks.
        """
        metadata: GroupMetadata = self._consumer.consumer_group_metadata()
        if not granted_to or self.member_id != granted_to:
            raise TaskMigratedError(f"this worker was member {granted_to or '(none)'} and is {self.member_id or '(none)'} now")
        return metadata

    def close(self) -> None:
        """Leaves the group at once.

        It has to be unsubscribed first: a client (librdkafka 2.16) that is closed with no partition assigned, as every member but the
        leader is, ends without a word, and the group waits for its session's end before it lets anybody in.
        """
        try:
            self._consumer.unsubscribe()
            self._consumer.close()
        except KafkaException as error:
            logger.warning("the members' group could not be left: %s", error)
