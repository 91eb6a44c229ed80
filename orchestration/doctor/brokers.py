"""The brokers: whether each answers, which Kafka it is, and its settings where this client may read them."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from itertools import takewhile

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource

from penstock.runtime.kafka.connection import Connection
from penstock.runtime.kafka.failures import Meaning, kafka_error, meaning

_SECONDS = 8.0
"""Time-out of one request."""
_API = re.compile(r"\]: (?:\w+://)?(?P<name>\S+):\s+ApiKey \S+ \((?P<key>\d+)\) Versions \d+\.\.(?P<last>\d+)")
_RELEASES: Sequence[tuple[str, int, int]] = (
    ("3.7", 1, 16),  # Fetch
    ("3.8", 24, 5),  # AddPartitionsToTxn
    ("3.9", 2, 9),  # ListOffsets
    ("4.0", 0, 12),  # Produce
    ("4.1", 0, 13),
    ("4.2", 2, 11),
    ("4.3", 35, 5),  # DescribeLogDirs
)
"""Release of Kafka, and an API with the first version of it that only this release and later ones have; oldest first."""
OLDEST = _RELEASES[0][0]


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
    client = AdminClient(connection.client({"debug": "feature"}), logger=heard.logger)
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
            found[number] = None, "" if Meaning.NO_RIGHT in meaning(error) else kafka_error(error).str()
    client.poll(0)  # serves the client's log lines
    addresses = {number: f"{node.host}:{node.port}" for number, node in nodes.items()}
    return [Broker(number, addresses[number], heard.release(addresses[number]), *found[number]) for number in found]


@dataclass(slots=True)
class ApiVersions:
    """Versions of the APIs that each broker reports when a client connects (ApiVersions). librdkafka only logs them."""

    by_broker: dict[str, dict[int, int]] = field(default_factory=dict)

    @property
    def logger(self) -> logging.Logger:
        """A logger for a client with `debug=feature`."""
        logger, handler = logging.Logger("penstock.doctor"), logging.Handler()
        logger.addFilter(self._heard)
        logger.addHandler(handler)
        return logger

    def _heard(self, record: logging.LogRecord) -> bool:
        if (found := _API.search(record.getMessage())) is not None:
            self.by_broker.setdefault(found["name"].partition("/")[0], {})[int(found["key"])] = int(found["last"])
        return False

    def release(self, address: str) -> str:
        """Return the newest release whose APIs a broker has."""
        has = self.by_broker.get(address, {})
        *_, (release, _, _) = ("", 0, 0), *takewhile(lambda each: has.get(each[1], -1) >= each[2], _RELEASES)
        return release
