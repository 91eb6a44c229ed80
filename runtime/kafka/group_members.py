"""Members of a consumer group with a live session, as listed by its coordinator.

Both requests for that have problems in librdkafka 2.16. `describe_consumer_groups` looks up the coordinator: while that broker is away, the
request may time out, and then an assertion may abort the process (librdkafka issue 4605). `list_groups` asks every broker that the client
knows, and fails while one of them is away. So only `list_groups` is used, and after a failure by a new client: it knows the brokers that
the cluster lists now, and one that is away is no longer listed once its session with the controller has ended.
"""

from __future__ import annotations

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.kafka.clients import admin_client
from penstock.runtime.kafka.failures import kafka_error, unanswered

ANSWER_SECONDS = 5.0


class GroupMembers:
    """Requests the members of one group. Used by one thread."""

    def __init__(self, config: StreamsConfig, group: str) -> None:
        """Makes no request."""
        self._config = config
        self._group = group
        self._admin: AdminClient | None = None

    def ask(self) -> frozenset[str]:
        """Return the ids of the members. A broker that has just started may not have loaded its groups yet, and returns none. Raises
        StreamsError."""
        try:
            if self._admin is None:  # most workers never lead, and never ask
                self._admin = admin_client(self._config)
            try:
                return self._listed(self._admin)
            except KafkaException:
                self._admin = admin_client(self._config)
                self._admin.list_topics(timeout=ANSWER_SECONDS)
                return self._listed(self._admin)
        except KafkaException as error:
            raise unanswered(f"group {self._group} cannot be described", kafka_error(error), f"Read on group {self._group}") from error

    def _listed(self, admin: AdminClient) -> frozenset[str]:
        found = admin.list_groups(self._group, timeout=ANSWER_SECONDS)
        return frozenset(str(member.id) for group in found for member in group.members)
