"""Create the topics and send sample records: `python -m examples.project.send`. May be repeated; each time sends new records."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterable, Mapping

import msgspec
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from examples.project.samples import TOPICS, samples
from penstock import StreamsConfigError
from penstock.project import WrongDeclarationError, bootstrap_servers

PARTITIONS = 4
"""Of each topic. Topics that are joined need the same number."""


def brokers() -> str:
    """PENSTOCK_BOOTSTRAP_SERVERS, else the brokers that `streams.toml` declares, by default the embedded Kafka."""
    return os.environ.get("PENSTOCK_BOOTSTRAP_SERVERS") or bootstrap_servers("penstock-project")


def create_topics(servers: str, topics: Mapping[str, dict[str, str]]) -> None:
    """Create the topics that are missing. Raises KafkaException."""
    wanted = [NewTopic(name, PARTITIONS, config=settings) for name, settings in topics.items()]
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})  # what is wrong is in the exception
    admin.list_topics(timeout=10)  # raises if no broker answers
    for future in admin.create_topics(wanted).values():
        try:
            future.result(30)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise


def send(servers: str, records: Iterable[tuple[str, str, object, int]]) -> int:
    """Send records (topic, key, value, timestamp in ms), wait until the broker has them, and return how many. Raises KafkaException."""
    # Java's partitioner, as Kafka Streams and Penstock use it: with librdkafka's own, joins and queries would miss keys.
    producer = Producer({"bootstrap.servers": servers, "partitioner": "murmur2_random", "message.timeout.ms": 30_000})
    refused: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            refused.append(error)

    sent = 0
    for topic, key, value, timestamp in records:
        producer.produce(topic, msgspec.json.encode(value), key, timestamp=timestamp, on_delivery=delivered)
        producer.poll(0)
        sent += 1
    producer.flush()
    if refused:
        raise KafkaException(refused[0])
    return sent


def send_samples(servers: str | None = None, count: int = 1000) -> int:
    """Create missing topics and send sample records, the last of them with the current time; return how many. Raises KafkaException."""
    servers = servers or brokers()
    create_topics(servers, TOPICS)
    return send(servers, samples(count, int(time.time() * 1000)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-b", "--bootstrap-servers", help="default: PENSTOCK_BOOTSTRAP_SERVERS, else those of streams.toml")
    parser.add_argument("-n", "--count", type=int, default=1000, help="number of records; default: %(default)s")
    arguments = parser.parse_args()
    try:
        servers = arguments.bootstrap_servers or brokers()
    except (WrongDeclarationError, StreamsConfigError) as error:
        parser.exit(1, f"{error}\n")
    try:
        print(f"{send_samples(servers, arguments.count)} records sent to {servers}")
    except KafkaException as error:
        parser.exit(1, f"Kafka at {servers}: {error.args[0].str()}. Start it (penstock dev), or name other brokers with -b\n")
