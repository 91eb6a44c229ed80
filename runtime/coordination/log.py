"""The coordination topic as a log: read by everybody from its start, written by members one record at a time."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import Future
from typing import NamedTuple

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import ListOffsetsResultInfo, OffsetSpec

from runtime.config import StreamsConfig
from runtime.coordination.records import Record, decode
from runtime.errors import StreamsError
from runtime.kafka_logs import KAFKA_LOGGER
from runtime.log_end import LogEnd
from runtime.topics import coordination_topic

logger = logging.getLogger(__name__)

MOST_AT_ONCE = 500
FLUSH_SECONDS = 5.0


class Entry(NamedTuple):
    """A record with its offset and key. `at_ms`: when the brokers had it, by their clock; None where that is not known."""

    offset: int
    record: Record
    key: bytes = b""
    at_ms: int | None = None


class CoordinationLog:
    """Reads the topic as of the last committed transaction, and appends to it. Belongs to one thread."""

    def __init__(self, config: StreamsConfig) -> None:
        self._topic = coordination_topic(config.application_id)
        self._consumer = Consumer(
            {
                "bootstrap.servers": config.text("bootstrap.servers"),
                **{
                    name: value
                    for name, value in config.consumer_properties("restore").items()
                    if not name.startswith(("fetch.", "queued."))
                },
                "group.id": f"{config.application_id}-coordination-reader",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 100,
            },
            logger=KAFKA_LOGGER,
        )
        self._consumer.assign([TopicPartition(self._topic, 0, 0)])
        self._admin_properties = config.admin_properties()
        self._producer = Producer({**config.admin_properties(), "enable.idempotence": True, "linger.ms": 0}, logger=KAFKA_LOGGER)
        self._end = LogEnd(self._consumer)
        self.at_end = False
        """True once everything that was there has been read."""
        self.position = 0
        """Everything before this offset has been read, or was not committed."""

    def poll(self, timeout: float = 0.0) -> Iterator[Entry]:
        """What was appended since, in order; waits at most `timeout` seconds for the first. Records that cannot be read are logged and
        left out."""
        messages = self._consumer.consume(MOST_AT_ONCE, 0) or (self._consumer.consume(1, timeout) if timeout else [])
        for message in messages:
            self.at_end = self.at_end or self._end.reached(message)
            error = message.error()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    self.position = max(self.position, message.offset() or 0)
                elif error.fatal():
                    raise StreamsError(f"the coordination topic cannot be read: {error.str()}")
                else:
                    logger.info("coordination topic: %s", error.str())
                continue
            self.position = (message.offset() or 0) + 1
            try:
                record = decode(message.key(), message.value())
            except StreamsError as unreadable:
                logger.warning("%s", unreadable)
                continue
            offset = message.offset()
            if record is not None and offset is not None:
                kind, at_ms = message.timestamp()
                yield Entry(offset, record, message.key() or b"", at_ms if kind == TIMESTAMP_LOG_APPEND_TIME else None)

    def ask_end(self) -> Future[int]:
        """Asks for the topic's end, open transactions included, without waiting. The future fails with KafkaException.

        By a client of its own each time: one that asked before the broker was killed knows an old leader epoch, and is refused for ever.
        """
        self._admin = AdminClient(self._admin_properties, logger=KAFKA_LOGGER)
        place = TopicPartition(self._topic, 0)
        answer = self._admin.list_offsets({place: OffsetSpec.latest()})[place]  # type: ignore[no-untyped-call]  # not annotated there
        end: Future[int] = Future()
        answer.add_done_callback(lambda done: _hand_on(done, end))
        return end

    def append(self, key: bytes, value: bytes | None) -> None:
        """Writes a record; it is on its way when this returns."""
        try:
            self._producer.produce(self._topic, value, key, 0)
        except BufferError as error:
            raise StreamsError("the coordination topic takes no more records: is the broker away?") from error
        except KafkaException as error:
            logger.warning("the coordination topic cannot be written: %s", error.args[0].str())  # it was deleted: `TopicLife` sees that
        self._producer.poll(0)

    def flush(self) -> None:
        """Waits until what was written has arrived, for `FLUSH_SECONDS` at most."""
        self._producer.flush(FLUSH_SECONDS)

    def drop(self) -> None:
        """What has not arrived so far shall not: it was meant for a topic that is no more."""
        self._producer.purge()

    def close(self) -> None:
        self._producer.flush(FLUSH_SECONDS)
        self._consumer.close()


def _hand_on(answer: Future[ListOffsetsResultInfo], end: Future[int]) -> None:
    error = answer.exception()
    if error is None:
        end.set_result(answer.result().offset)
    else:
        end.set_exception(error)
