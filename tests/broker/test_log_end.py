"""Reading a log up to its current end terminates, even if the log is written to faster than a fetch waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Producer, TopicPartition

from penstock.orchestration.kafka.log import FROM_START, reader, to_end
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.coordination.commands import CommandClient
from penstock.runtime.coordination.log import CoordinationLog
from penstock.runtime.coordination.records import Desired, encode
from penstock.runtime.coordination.topics import COORDINATION_CONFIG, coordination_topic
from penstock.runtime.kafka.topic_admin import ensure_topic
from tests.support import Kafka, unique

PAUSE_SECONDS = 0.005


@contextmanager
def never_at_rest(broker: Kafka, topic: str) -> Iterator[int]:
    """Write a record to a coordination topic every few milliseconds; yield the number of those that are there already."""
    ensure_topic(broker.connection, topic, 1, COORDINATION_CONFIG)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0})
    record = Desired(instance="a", running=True, at_ms=1, by="test")

    def write() -> None:
        while not over.is_set():
            producer.produce(topic, encode(record), record.key)
            producer.flush()
            time.sleep(PAUSE_SECONDS)  # the rate; it waits for nothing

    over = threading.Event()
    for _ in range(1_000):
        producer.produce(topic, encode(record), record.key)
    producer.flush()
    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield 1_000
    finally:
        over.set()
        writer.join()


def test_a_topic_that_is_never_at_rest_is_read_to_its_present_end(broker: Kafka) -> None:
    topic = unique("busy")
    with never_at_rest(broker, topic) as written, reader(broker.connection) as consumer:
        consumer.assign([TopicPartition(topic, 0, FROM_START)])
        assert sum(1 for _ in to_end(consumer, timeout_s=30)) >= written


def test_a_member_joins_a_fleet_whose_coordination_topic_is_never_at_rest(broker: Kafka, application_id: str) -> None:
    config = StreamsConfig({"application.id": application_id, "bootstrap.servers": broker.bootstrap_servers})
    with never_at_rest(broker, coordination_topic(application_id)) as written:
        log = CoordinationLog(config)
        try:
            read, deadline = 0, time.monotonic() + 30
            while not log.at_end and time.monotonic() < deadline:
                read += sum(1 for _ in log.poll(0.1))
        finally:
            log.close()
        assert log.at_end
        assert read >= written
        with CommandClient(application_id, broker.connection, "test") as client:
            assert client.members() == []
