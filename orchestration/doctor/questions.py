"""Requests to brokers that change nothing, and whose answers show what this client may do.

Where brokers list the operations that they allow on a topic, a group or the cluster (KIP-430), that list is asked for. Other rights show in
the answer to a request that cannot have an effect: it is only validated, or names a topic that does not exist, or has a value that brokers
refuse after they have looked at the rights.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from enum import Enum
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.admin._topic import TopicDescription
from confluent_kafka.cimpl import NewTopic

from penstock.orchestration.rights import Operation
from penstock.runtime.kafka.clients import QUIET, transactional_producer
from penstock.runtime.kafka.connection import Connection
from penstock.runtime.kafka.failures import Meaning, is_transient, kafka_error, meaning

_SECONDS = 10.0
"""Time-out of one request, and of those that are repeated."""
_PAUSE_SECONDS = 0.2
_TOO_LONG_MS = 2**31 - 1
"""As `transaction.timeout.ms`: longer than any broker allows."""

Answer = TypeVar("Answer")


class Questions:
    """A client of brokers that answer. A request of which no answer comes is answered by the error."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._client = AdminClient(connection.client(QUIET))

    def topics(self) -> frozenset[str]:
        """Return the names of the topics that this client may see. Raises KafkaException."""
        return frozenset(self._client.list_topics(timeout=_SECONDS).topics)

    def described(self, topics: Collection[str]) -> dict[str, TopicDescription | KafkaError]:
        """Return the descriptions of topics, each with the operations that are allowed on it."""
        if not topics:
            return {}
        wanted = TopicCollection(sorted(topics))
        asked = self._client.describe_topics(wanted, include_authorized_operations=True, request_timeout=_SECONDS)
        return {name: _answer(future) for name, future in asked.items()}

    def configs(self, topics: Iterable[str]) -> dict[str, Mapping[str, str] | KafkaError]:
        """Return the settings of topics."""
        wanted = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in sorted(topics)]
        if not wanted:
            return {}
        found: dict[str, Mapping[str, str] | KafkaError] = {}
        for resource, future in self._client.describe_configs(wanted, request_timeout=_SECONDS).items():
            answer = _answer(future)
            found[resource.name] = answer if isinstance(answer, KafkaError) else {name: str(entry.value) for name, entry in answer.items()}
        return found

    def of_group(self, group: str) -> frozenset[str] | KafkaError:
        """Return the names of the operations that are allowed on a group, which need not exist."""
        until = time.monotonic() + _SECONDS
        while True:  # new brokers first create the topic of the groups' offsets, and distribute its partitions
            asked = self._client.describe_consumer_groups([group], include_authorized_operations=True, request_timeout=_SECONDS)
            answer = _answer(asked[group])
            if not isinstance(answer, KafkaError):
                return allowed(answer.authorized_operations)
            if not is_transient(answer) or time.monotonic() > until:
                return answer
            time.sleep(_PAUSE_SECONDS)

    def broker_settings(self) -> KafkaError | None:
        """Return why the settings of a broker may not be read. (Rejected: the list of what is allowed on the cluster, which brokers show
        only to those who may also describe it.)"""
        broker = next(iter(self._client.list_topics(timeout=_SECONDS).brokers))
        resource = ConfigResource(ConfigResource.Type.BROKER, str(broker))
        return _refusal(self._client.describe_configs([resource], request_timeout=_SECONDS)[resource])

    def create(self, topic: str, partitions: int = 1, copies: int = -1) -> KafkaError | None:
        """Return why a topic could not be created."""
        new = [NewTopic(topic, partitions, copies)]
        return _refusal(self._client.create_topics(new, validate_only=True, request_timeout=_SECONDS)[topic])

    def attempt(self, topic: str, operation: Operation) -> KafkaError | None:
        """Return the error of an operation on a topic, other than that it does not exist. Delete only one that does not exist."""
        match operation:
            case Operation.DESCRIBE:
                found: KafkaError | None = next((each for each in self.described([topic]).values() if isinstance(each, KafkaError)), None)
            case Operation.DESCRIBE_CONFIGS:
                found = next((each for each in self.configs([topic]).values() if isinstance(each, KafkaError)), None)
            case Operation.DELETE:
                found = _refusal(self._client.delete_topics([topic], request_timeout=_SECONDS)[topic])
            case Operation.ALTER_CONFIGS:
                entry = ConfigEntry("retention.ms", "-1", incremental_operation=AlterConfigOpType.SET)
                resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
                asked = self._client.incremental_alter_configs([resource], validate_only=True, request_timeout=_SECONDS)
                found = next(_refusal(future) for future in asked.values())
            case _:
                raise ValueError(operation)
        return None if Meaning.UNKNOWN_TOPIC in meaning(found) else found

    def transact(self, transactional_id: str) -> KafkaError | None:
        """Return why a producer could not have this transactional id. Brokers look at the right, then refuse the time-out, and store
        nothing."""
        properties = self._connection.client({**QUIET, "transaction.timeout.ms": _TOO_LONG_MS})
        try:
            transactional_producer(properties, transactional_id).init_transactions(_SECONDS)
        except KafkaException as error:
            found = kafka_error(error)
            return None if Meaning.TIMEOUT_TOO_LONG in meaning(found) else found
        return None


def nameless(prefix: str) -> str:
    """Return a name with this prefix that nothing has."""
    return f"{prefix}doctor-{uuid.uuid4().hex}"


def allowed(operations: Iterable[Enum] | None) -> frozenset[str]:
    """Return the names of operations, as `Operation` has them."""
    return frozenset(operation.name for operation in operations or ())


def _answer(future: Future[Answer]) -> Answer | KafkaError:
    try:
        return future.result(_SECONDS + 2)
    except KafkaException as error:
        return kafka_error(error)
    except FutureTimeoutError:
        return KafkaError(KafkaError._TIMED_OUT)


def _refusal(future: Future[Answer]) -> KafkaError | None:
    answer = _answer(future)
    return answer if isinstance(answer, KafkaError) else None
