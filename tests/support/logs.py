"""Prepared logs on a real broker: with aborted records at the end, truncated at the start, or deleted and created again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType

from tests.support import Kafka, unique, wait_until

Rows = Iterable[tuple[str | bytes | None, str | bytes | None]]


def transaction(kafka: Kafka, topic: str, rows: Rows, *, partition: int = 0, commit: bool = True) -> None:
    """Write one transaction, committed or aborted; in both cases a control record takes the next offset."""
    producer = open_transaction(kafka, topic, rows, partition=partition)
    if commit:
        producer.commit_transaction(30)
    else:
        producer.abort_transaction(30)


def open_transaction(kafka: Kafka, topic: str, rows: Rows, *, partition: int = 0) -> Producer:
    """Write a transaction's records to the log; the caller ends the transaction."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": unique("test")})
    producer.init_transactions(30)
    producer.begin_transaction()
    for key, value in rows:
        producer.produce(topic, key=key, value=value, partition=partition, timestamp=1_000)
    assert producer.flush(30) == 0
    return producer


def cut(kafka: Kafka, topic: str, before: int, partition: int = 0) -> None:
    """Move the log's start, as retention does."""
    admin = kafka.admin
    for future in admin.delete_records([TopicPartition(topic, partition, before)]).values():
        future.result(30)


def end_of(kafka: Kafka, topic: str, partition: int = 0) -> int:
    """Return the last stable offset."""
    return kafka.end_offsets(topic)[partition]


def recreate_topic(kafka: Kafka, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
    """Delete a topic and create it again; the broker may still be deleting when it receives the request to create."""
    kafka.delete_topic(topic)

    def created() -> bool:
        try:
            kafka.create_topic(topic, partitions, config, exact=True)
        except KafkaException:
            return False
        return True

    wait_until(created, what=f"topic {topic} again")


def alter(kafka: Kafka, topic: str, name: str, value: str) -> None:
    """Set one configuration of a topic. A broker answers the change before it shows it, so this waits until it does."""
    _alter(kafka, ResourceType.TOPIC, topic, ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET))

    def shown() -> bool:
        (found,) = kafka.admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
        return bool(found.result(30)[name].value == value)

    wait_until(shown, what=f"{name} = {value} of topic {topic}")


@contextmanager
def cleaned_often(kafka: Kafka) -> Iterator[None]:
    """Let the log cleaners look for work every 200 ms, instead of every five seconds or more."""
    name = "log.cleaner.backoff.ms"
    brokers = [str(number) for number in kafka.admin.list_topics(timeout=10).brokers]
    for broker in brokers:
        _alter(kafka, ResourceType.BROKER, broker, ConfigEntry(name, "200", incremental_operation=AlterConfigOpType.SET))
    try:
        yield
    finally:
        for broker in brokers:
            _alter(kafka, ResourceType.BROKER, broker, ConfigEntry(name, None, incremental_operation=AlterConfigOpType.DELETE))


def _alter(kafka: Kafka, kind: ResourceType, name: str, entry: ConfigEntry) -> None:
    for future in kafka.admin.incremental_alter_configs([ConfigResource(kind, name, incremental_configs=[entry])]).values():
        future.result(30)
