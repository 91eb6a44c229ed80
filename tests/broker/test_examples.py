"""The examples `fraud` and `orders` on a real broker: from their samples they make the same as in the test driver."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from examples.fraud import samples as fraud_samples
from examples.fraud import topology as fraud
from examples.orders import samples as orders_samples
from examples.orders import topology as orders
from examples.project.send import create_topics, send
from penstock import KafkaStreams, Topology, serdes
from penstock.testing import TopologyTestDriver
from tests.support import Kafka, unique, wait_until

Sample = tuple[str, str, object, int]
TOPICS = {**fraud_samples.TOPICS, **orders_samples.TOPICS}


@pytest.fixture
def kafka(broker: Kafka) -> Iterator[Kafka]:
    """The broker with the topics of both examples, empty."""
    try:
        _delete_topics(broker)
        create_topics(broker.bootstrap_servers, TOPICS)
        yield broker
    finally:
        _delete_topics(broker)


def _delete_topics(broker: Kafka) -> None:
    for name in TOPICS.keys() & broker.topics():
        broker.delete_topic(name)


def in_the_driver(topology: Topology, samples: list[Sample], output: str) -> list[tuple[bytes, bytes]]:
    with TopologyTestDriver(topology) as driver:
        inputs = {name: driver.create_input_topic(name, serdes.STRING, serdes.BYTES) for name in {sample[0] for sample in samples}}
        for topic, key, value, timestamp in samples:
            inputs[topic].pipe_input(key, msgspec.json.encode(value), timestamp)
        return driver.create_output_topic(output, serdes.BYTES, serdes.BYTES).read_key_values_to_list()


def running(kafka: Kafka, topology: Topology, state: Path) -> closing[KafkaStreams]:
    """Start an instance. It would refuse a store or an internal topic without a name of its own."""
    config = {"application.id": unique("app"), "bootstrap.servers": kafka.bootstrap_servers, "state.dir": str(state)}
    streams = KafkaStreams(topology, config | {"ensure.explicit.internal.resource.naming": "true"})
    streams.start()
    return closing(streams)


def test_the_examples_give_the_same_on_kafka_as_in_the_test_driver(kafka: Kafka, tmp_path: Path) -> None:
    """Every alert of `fraud`, in any order; of `orders` the last bill of each order, and sums per city."""
    now = int(time.time() * 1000)
    payments, sales = list(fraud_samples.samples(1_000, now)), list(orders_samples.samples(300, now))
    send(kafka.bootstrap_servers, [*payments, *sales])
    alerts = sorted(in_the_driver(fraud.build(), payments, fraud.ALERTS))
    bills = dict(in_the_driver(orders.build(), sales, orders.BILLS))
    assert len(alerts) > 5 and len(bills) > 200

    def on_kafka(topic: str) -> list[tuple[bytes | None, bytes | None]]:
        return [(record.key, record.value) for record in kafka.consume(topic)]

    with running(kafka, fraud.build(), tmp_path / "fraud"), running(kafka, orders.build(), tmp_path / "orders"):
        wait_until(lambda: sorted(on_kafka(fraud.ALERTS)) == alerts, 60, "the alerts")
        wait_until(lambda: dict(on_kafka(orders.BILLS)) == bills, 60, "the bills")
        send(kafka.bootstrap_servers, orders_samples.samples(300, now + 400_000))  # more than a minute after the last suppressed sum
        wait_until(lambda: on_kafka(orders.SALES_PER_CITY), 60, "the sales per city")
