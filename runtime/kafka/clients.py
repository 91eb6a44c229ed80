"""Construction of the engine's Kafka clients: consumers, producers and admin clients.

Each use has its own function, which overrides the settings that the engine relies on; `StreamsConfig` provides the user's settings and the
engine's defaults. No consumer commits or stores offsets automatically: offsets are committed in transactions, or not at all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.kafka.client_logs import KAFKA_LOGGER
from penstock.runtime.kafka.logins import FollowedConsumer, FollowedProducer, current, followed
from penstock.runtime.model.errors import StreamsConfigError

ClientProperties = Mapping[str, str | int | float | bool | Callable[..., object] | None]
"""librdkafka properties, as returned by `StreamsConfig.consumer_properties`."""

_NO_COMMITS = {"enable.auto.commit": False, "enable.auto.offset.store": False}
_LOG = {**_NO_COMMITS, "enable.partition.eof": True, "isolation.level": "read_committed"}
"""Properties for reading a log up to its end, without open transactions."""
_FAST = {
    "fetch.queue.backoff.ms": 5,
    "queued.min.messages": 200_000,
    "queued.max.messages.kbytes": 32_768,
    "fetch.wait.max.ms": 100,
}
_TRANSACTIONS = {
    # With librdkafka's default of 100 ms, a commit waits that long while the broker still completes the previous one.
    "retry.backoff.ms": 1,
    "retry.backoff.max.ms": 10,
    "transaction.timeout.ms": 10_000,
}
_ALL_BROKERS = {"enable.sparse.connections": False}
"""Property of admin clients: keep a connection to each broker. Otherwise librdkafka 2.16 connects when a request needs it. While a request
of an admin client waits for a broker that is down, it does so without a pause, which takes a processor."""
QUIET = {"log_level": 2}
"""Properties of clients of commands: librdkafka's own messages are not logged; errors are raised."""


def _consumer(properties: Mapping[str, object]) -> Consumer:
    now = current(properties)
    return followed(FollowedConsumer(now, logger=KAFKA_LOGGER), now)


def input_consumer(config: StreamsConfig, more: ClientProperties = MappingProxyType({})) -> Consumer:
    """Return the consumer of a worker's input partitions, with the application's group, which it never joins. `more`: further properties.

    Offsets that are out of range are errors (`auto.offset.reset=error`): the engine applies the reset policy itself and reports it.
    """
    fixed = {**_NO_COMMITS, "enable.partition.eof": True, "auto.offset.reset": "error", "group.id": config.application_id}
    return _consumer({**config.consumer_properties("main"), **more, **fixed})


def log_consumer(properties: ClientProperties, name: str) -> Consumer:
    """Return a consumer for many records of a log, outside any group. `name`: its `client.id` if `properties` have none."""
    # librdkafka requires a `group.id` even if no group is used. The group is never joined, and has no commits.
    return _consumer({**_FAST, "group.id": name, "client.id": name, **properties, **_LOG, "auto.offset.reset": "error"})


def tail_consumer(properties: Mapping[str, object], group: str) -> Consumer:
    """Return a consumer for few records with low latency, outside any group."""
    settings: dict[str, object] = {
        **{name: value for name, value in properties.items() if not name.startswith(("fetch.", "queued."))},
        **_LOG,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": 100,
    }
    return _consumer(settings)


def group_consumer(properties: ClientProperties, group: str) -> Consumer:
    """Return a consumer that is a member of a group, and reads nothing."""
    fixed = {"group.id": group, "partition.assignment.strategy": "cooperative-sticky", "auto.offset.reset": "latest"}
    return _consumer({**properties, "enable.auto.commit": False, **fixed})


def offsets_consumer(properties: ClientProperties, group: str) -> Consumer:
    """Return a consumer that reads and commits a group's offsets, and never joins the group."""
    fixed = {"group.id": group, "isolation.level": "read_uncommitted", "enable.auto.commit": False}
    return _consumer({**properties, **fixed})


def producer(properties: Mapping[str, object]) -> Producer:
    """Return a producer without transactions."""
    now = current(properties)
    return followed(FollowedProducer(now, logger=KAFKA_LOGGER), now)


def transactional_producer(properties: Mapping[str, object], transactional_id: str) -> Producer:
    """Return a producer with a transactional id, which is not initialised yet."""
    return producer({**_TRANSACTIONS, **properties, "transactional.id": transactional_id})


def admin_client(
    config: StreamsConfig, more: ClientProperties = MappingProxyType({}), logger: logging.Logger = KAFKA_LOGGER
) -> AdminClient:
    """Return an admin client with further properties. Raises StreamsConfigError for settings that the Kafka client refuses."""
    try:
        properties = current({**_ALL_BROKERS, **config.admin_properties(), **more})
        return followed(AdminClient(properties, logger=logger), properties)  # type: ignore[arg-type]  # callbacks are not annotated there
    except KafkaException as error:
        raise StreamsConfigError(f"the Kafka client refuses its settings: {config.redacted(error.args[0].str())}") from None
