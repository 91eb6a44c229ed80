"""The brokers: whether each answers, which Kafka it is, and its settings where this client may read them."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource

from penstock.runtime.kafka.api_versions import ApiVersions
from penstock.runtime.kafka.connection import Connection
from penstock.runtime.kafka.failures import Meaning, kafka_error, meaning, said

_SECONDS = 8.0
"""Time-out of one request."""


@dataclass(frozen=True, slots=True)
class Broker:
    """Answer of one broker. `release`: the newest release of Kafka whose APIs it has, empty if they were not seen. `settings`: None if this
    client may not read them. `error`: why it does not answer, if so."""

    id: int
    address: str
    release: str = ""
    settings: Mapping[str, str] | None = None
    error: str = ""


def survey(connection: Connection) -> list[Broker]:
    """Return the brokers of the cluster, each asked by itself. Raises KafkaException if none answers."""
    heard = ApiVersions()
    client = AdminClient(connection.client({"debug": "feature"}), logger=heard.logger())
    nodes = client.list_topics(timeout=_SECONDS).brokers
    asked = {
        number: client.describe_configs([resource], request_timeout=_SECONDS)[resource]
        for number in sorted(nodes)
        for resource in [ConfigResource(ConfigResource.Type.BROKER, str(number))]
    }
    found: dict[int, tuple[Mapping[str, str] | None, str]] = {}
    for number, future in asked.items():
        try:
            found[number] = {name: str(entry.value) for name, entry in future.result(_SECONDS + 2).items()}, ""
        except FutureTimeoutError:
            found[number] = None, f"no answer within {_SECONDS:.0f} s"
        except KafkaException as error:
            found[number] = None, "" if Meaning.NO_RIGHT in meaning(error) else said(kafka_error(error))
    client.poll(0)  # serves the client's log lines
    addresses = {number: f"{node.host}:{node.port}" for number, node in nodes.items()}
    return [Broker(number, addresses[number], heard.release(addresses[number]), *found[number]) for number in found]
