"""Topics made to order on a real broker: with gaps, aborted tails, a start above zero, or deleted and made anew."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping

from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec, ResourceType

Rows = Iterable[tuple[str | None, str | None]]


def unique(name: str) -> str:
    """A topic or application name that no other test uses."""
    return f"{name}-{uuid.uuid4().hex[:8]}"


def eventually(holds: Callable[[], bool], what: str, timeout: float = 30.0) -> None:
    """Waits until `holds()`; the pause between two looks is what gives the broker time to act."""
    deadline = time.monotonic() + timeout
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout} s: {what}")
        time.sleep(0.02)


class Logs:
    """What tests do to topics."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._bootstrap = {"bootstrap.servers": bootstrap_servers}
        self.admin = AdminClient(self._bootstrap)

    def create(self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        wanted = NewTopic(topic, partitions, 1, config=dict(config or {"cleanup.policy": "compact"}))
        for future in self.admin.create_topics([wanted]).values():
            future.result(30)
        return topic

    def delete(self, topic: str) -> None:
        for future in self.admin.delete_topics([topic]).values():
            future.result(30)

    def create_anew(self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Deletes and creates; the broker may still be deleting when the creation is asked for."""
        self.delete(topic)

        def created() -> bool:
            try:
                self.create(topic, partitions, config)
            except KafkaException:
                return False
            return True

        eventually(created, f"{topic} created again")

    def alter(self, topic: str, **config: str) -> None:
        resource = ConfigResource(ResourceType.TOPIC, topic, {name.replace("_", "."): value for name, value in config.items()})
        for future in self.admin.alter_configs([resource]).values():
            future.result(30)

    def produce(self, topic: str, rows: Rows, partition: int = 0, timestamp: int = 1_000) -> None:
        producer = Producer(self._bootstrap)
        self._send(producer, topic, rows, partition, timestamp)
        assert producer.flush(30) == 0

    def transaction(self, topic: str, rows: Rows, partition: int = 0, *, commit: bool = True, timestamp: int = 1_000) -> None:
        """One transaction, committed or aborted; either way a control record takes the offset behind it."""
        producer = self.open_transaction(topic, rows, partition, timestamp)
        if commit:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)

    def open_transaction(self, topic: str, rows: Rows, partition: int = 0, timestamp: int = 1_000) -> Producer:
        """A transaction whose records are on the log, and which the caller ends."""
        producer = Producer({**self._bootstrap, "transactional.id": unique("test")})
        producer.init_transactions(30)
        producer.begin_transaction()
        self._send(producer, topic, rows, partition, timestamp)
        assert producer.flush(30) == 0
        return producer

    def _send(self, producer: Producer, topic: str, rows: Rows, partition: int, timestamp: int) -> None:
        for key, value in rows:
            producer.produce(topic, key=key, value=value, partition=partition, timestamp=timestamp)

    def cut(self, topic: str, before: int, partition: int = 0) -> None:
        """Moves the log's start, as retention does."""
        for future in self.admin.delete_records([TopicPartition(topic, partition, before)]).values():
            future.result(30)

    def end(self, topic: str, partition: int = 0) -> int:
        """The high watermark: what a restorer is told after the fence."""
        return self._offset(topic, partition, OffsetSpec.latest())

    def start(self, topic: str, partition: int = 0) -> int:
        return self._offset(topic, partition, OffsetSpec.earliest())

    def _offset(self, topic: str, partition: int, spec: OffsetSpec) -> int:
        (future,) = self.admin.list_offsets({TopicPartition(topic, partition): spec}).values()
        return int(future.result(30).offset)
