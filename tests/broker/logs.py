"""Logs made to order on the real broker: with aborted tails, cut at the start, or deleted and made anew."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType

from tests.support import Kafka, unique, wait_until

Rows = Iterable[tuple[str | bytes | None, str | bytes | None]]


def transaction(kafka: Kafka, topic: str, rows: Rows, *, partition: int = 0, commit: bool = True) -> None:
    """One transaction, committed or aborted; either way a control record takes the offset behind it."""
    producer = open_transaction(kafka, topic, rows, partition=partition)
    if commit:
        producer.commit_transaction(30)
    else:
        producer.abort_transaction(30)


def open_transaction(kafka: Kafka, topic: str, rows: Rows, *, partition: int = 0) -> Producer:
    """A transaction whose records are on the log, and which the caller ends."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": unique("test")})
    producer.init_transactions(30)
    producer.begin_transaction()
    for key, value in rows:
        producer.produce(topic, key=key, value=value, partition=partition, timestamp=1_000)
    assert producer.flush(30) == 0
    return producer


def cut(kafka: Kafka, topic: str, before: int, partition: int = 0) -> None:
    """Moves the log's start, as retention does."""
    admin = kafka.admin
    for future in admin.delete_records([TopicPartition(topic, partition, before)]).values():
        future.result(30)


def end_of(kafka: Kafka, topic: str, partition: int = 0) -> int:
    """The last stable offset."""
    return kafka.end_offsets(topic)[partition]


def create_anew(kafka: Kafka, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
    """Deletes a topic and creates it again; the broker may still be deleting when the creation is asked for."""
    kafka.delete_topic(topic)

    def created() -> bool:
        try:
            kafka.create_topic(topic, partitions, config, exact=True)
        except KafkaException:
            return False
        return True

    wait_until(created, what=f"topic {topic} anew")


def alter(kafka: Kafka, topic: str, name: str, value: str) -> None:
    """Sets one configuration of a topic."""
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    admin = kafka.admin
    for future in admin.incremental_alter_configs([ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])]).values():
        future.result(30)
