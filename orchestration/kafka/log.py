"""Reader of a topic from some offset to its current end, without a consumer group.

To read a whole topic, assign `FROM_START`: if retention has removed that offset, reading begins at the log start offset. (Rejected:
OFFSET_BEGINNING. The client library takes half a second to look up the log start offset.)
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicCollection
from confluent_kafka.admin import AdminClient

from penstock.orchestration.embedded.ports import start_hint
from penstock.runtime.kafka.connection import Connection
from penstock.runtime.kafka.failures import Meaning, meaning, needing, with_remedy
from penstock.runtime.kafka.first_contact import refused_login
from penstock.runtime.kafka.log_end import LogEnd
from penstock.runtime.kafka.logins import FollowedConsumer, followed
from penstock.runtime.model.errors import BrokerUnavailableError

FROM_START = 0
READER_GROUP = "penstock-reader"
"""Name of the group of readers that join none: the client library requires one."""
_SECONDS = 30.0
_REFUSED = Meaning.NO_RIGHT | Meaning.CLIENT_REFUSED
WAIT_SECONDS = 0.05  # the client library waits this long even if fewer records than requested have arrived


@contextmanager
def reader(connection: Connection) -> Iterator[Consumer]:
    """Open a consumer like `new_reader`, for the length of a block."""
    consumer = new_reader(connection)
    try:
        yield consumer
    finally:
        consumer.close()


def new_reader(connection: Connection, group: str = READER_GROUP) -> Consumer:
    """Return a consumer of committed records that joins no group and reports the end of a partition. The client requires the name of a
    group; nothing is committed to it."""
    properties = connection.client(
        {
            "group.id": group,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 50,
            "fetch.queue.backoff.ms": 5,
            "log_level": 2,
        }
    )
    return followed(FollowedConsumer(properties), properties)


def unreadable(
    application_id: str, connection: Connection, error: KafkaException, *topics: str, group: str = READER_GROUP
) -> BrokerUnavailableError:
    """Return the error for topics of an application that cannot be read: no broker answers, or they do not let this client."""
    return BrokerUnavailableError(f"{application_id}: {cause(application_id, connection, error, *topics, group=group)}")


def cause(application_id: str, connection: Connection, error: KafkaException, *topics: str, group: str = READER_GROUP) -> str:
    """Return why topics of an application cannot be read, and the command that may help. `group`: that of the reader."""
    servers, inner = connection.servers, error.args[0]
    if not isinstance(inner, KafkaError):
        return f"no broker answers at {servers} ({error}){start_hint(servers)}"
    if not meaning(inner) & _REFUSED:
        inner = refused_login(connection) or inner
    if meaning(inner) & _REFUSED:
        right = f"Read on topic {topics[0] if len(topics) == 1 else f'{application_id}-*'}"
        said = with_remedy(inner, right, f"Read on group {group}")
        return f"the brokers at {servers} do not let this client read {' and '.join(topics)} ({said})"
    return f"no broker answers at {servers} ({inner.str()}){start_hint(servers)}"


def partition_counts(connection: Connection, topics: Iterable[str]) -> dict[str, int]:
    """Return the number of partitions of each of these topics that exists. Raises StreamsError for one that this client has no right
    to see, KafkaException if no broker answers."""
    names = sorted(set(topics))
    if not names:
        return {}
    admin = AdminClient(connection.client({"log_level": 2}))
    found: dict[str, int] = {}
    for name, answer in admin.describe_topics(TopicCollection(names), request_timeout=_SECONDS).items():
        try:
            with needing(f"Describe on topic {name} (Read and Write include it)"):
                found[name] = len(answer.result(_SECONDS).partitions)
        except KafkaException as error:
            if Meaning.UNKNOWN_TOPIC not in meaning(error):
                raise
    return found


def to_end(consumer: Consumer, timeout_s: float) -> Iterator[Message]:
    """Yield the records of the single assigned partition, up to its current end. Raises KafkaException, also on a timeout."""
    end, deadline = LogEnd(consumer), time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        for message in consumer.consume(500, WAIT_SECONDS):
            error = message.error()
            if error is None:
                yield message
            elif error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            if end.reached(message):
                return
    raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"the end of the topic was not reached in {timeout_s:g} s"))
