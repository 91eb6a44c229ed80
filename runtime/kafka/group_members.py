"""Members of a consumer group with a live session, as listed by its coordinator.

Both requests for that have problems in librdkafka 2.16. `describe_consumer_groups` does not survive a broker failure: a client that used it
before gets no answer when the broker is back, and a request while the broker is down aborts the process by an assertion. `list_groups`
survives it, but fails while any broker of the cluster is down. So `list_groups` is used, and `describe_consumer_groups` only by a new
client that a broker has just answered.
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
                found = self._admin.list_groups(self._group, timeout=ANSWER_SECONDS)
                return frozenset(str(member.id) for group in found for member in group.members)
            except KafkaException:
                admin = admin_client(self._config)
                admin.list_topics(timeout=ANSWER_SECONDS)
                description = admin.describe_consumer_groups([self._group], request_timeout=ANSWER_SECONDS)[self._group].result()
                return frozenset(member.member_id for member in description.members)
        except KafkaException as error:
            raise unanswered(f"group {self._group} cannot be described", kafka_error(error)) from error
