"""A topic of one partition that all workers read from the start and append to: clients of the coordination topic."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from concurrent.futures import Future

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import ListOffsetsResultInfo, OffsetSpec

from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.kafka.clients import QUIET, admin_client, producer, tail_consumer
from penstock.runtime.kafka.connection import Connection
from penstock.runtime.kafka.failures import Meaning, kafka_error, meaning, text_of, unanswered, with_remedy
from penstock.runtime.kafka.log_end import LogEnd
from penstock.runtime.kafka.messages import Message
from penstock.runtime.kafka.topic_leaders import TopicLeaders
from penstock.runtime.model.errors import BrokerUnavailableError, StreamsError

logger = logging.getLogger(__name__)

MOST_AT_ONCE = 500
FLUSH_SECONDS = 5.0
ANSWER_SECONDS = 15.0
"""Time-out for requests of a log's end, and for delivery of a command's record."""
UNKNOWN_SECONDS = 1.0
"""Time for which an unknown topic is requested again before it counts as missing."""
RETRY_SECONDS = 0.1
_OFFSET_TAIL_BASE = -2000
"""librdkafka's `RD_KAFKA_OFFSET_TAIL_BASE`, which the Python client does not export."""


class Tail:
    """Reads the partition's committed records, and follows it. Used by one thread."""

    def __init__(self, consumer: Consumer, topic: str, group: str = "") -> None:
        """Does not read before `begin`. `group`: that of the consumer, for errors."""
        self._consumer = consumer
        self._rights = (f"Read on topic {topic}", *((f"Read on group {group}",) if group else ()))
        self._topic = topic
        self._end = LogEnd(consumer)
        self.at_end = False
        """True once all records up to the end at the start have been read."""
        self.position = 0
        """All committed records before this offset have been read."""

    @classmethod
    def quiet(cls, connection: Connection, topic: str) -> Tail:
        """Return a tail for commands, which does not log the client's messages."""
        group = f"{topic}-client"
        return cls(tail_consumer(connection.client(QUIET), group), topic, group)

    def begin(self, offset: int = 0) -> None:
        """Start reading at this offset."""
        TopicLeaders(self._consumer).find([self._topic])
        self._consumer.assign([TopicPartition(self._topic, 0, offset)])

    def begin_with_last(self, records: int) -> None:
        """Start reading with the last `records` of the log, or its first if it has fewer."""
        self.begin(_OFFSET_TAIL_BASE - records)

    def poll(self, timeout: float = 0.0) -> Iterator[Message]:
        """Yield new records in order; waits at most `timeout` seconds for the first. Raises StreamsError for a fatal client error."""
        messages = self._consumer.consume(MOST_AT_ONCE, 0) or (self._consumer.consume(1, timeout) if timeout else [])
        for message in messages:
            self.at_end = self.at_end or self._end.reached(message)
            error = message.error()
            if error is None:
                self.position = (message.offset() or 0) + 1
                yield message
            elif Meaning.END in meaning(error):
                self.position = max(self.position, message.offset() or 0)
            elif error.fatal() or Meaning.FORBIDDEN in meaning(error):
                raise StreamsError(f"{self._topic} cannot be read: {with_remedy(error, *self._rights)}")
            else:
                logger.info("%s: %s", self._topic, error.str())

    def end(self) -> int:
        """Return the partition's current end for a reader of committed transactions.

        A new topic may not have a leader yet, and a broker that has just started may not know it yet, so the request is repeated for a
        while after the first response. Raises StreamsError, from the client's error; BrokerUnavailableError.
        """
        refused: float | None = None
        while True:
            try:
                return self._consumer.get_watermark_offsets(TopicPartition(self._topic, 0), ANSWER_SECONDS)[1]
            except KafkaException as error:
                means, now = meaning(error), time.monotonic()
                refused = now if refused is None else refused
                unknown = UNKNOWN_SECONDS if means & (Meaning.UNKNOWN_TOPIC | Meaning.UNKNOWN_PARTITION) else 0.0
                if now - refused >= (ANSWER_SECONDS if Meaning.NO_LEADER in means else unknown):
                    raise unanswered(
                        f"the end of {self._topic} cannot be read", kafka_error(error), f"Read on topic {self._topic}"
                    ) from error
                time.sleep(RETRY_SECONDS)

    def close(self) -> None:
        self._consumer.close()


class SharedLog:
    """Reads the topic, and appends single records to it. Used by one thread."""

    def __init__(self, config: StreamsConfig, topic: str, name: str) -> None:
        """`name`: the group id, which the client library requires; the group is never joined."""
        self._config = config
        self._topic = topic
        self.tail = Tail(tail_consumer(config.consumer_properties("restore"), name), topic, name)
        self.tail.begin()
        self._producer = producer({**config.admin_properties(), "enable.idempotence": True, "linger.ms": 0})
        self._admin: AdminClient | None = None
        self._refused: KafkaError | None = None

    def ask_end(self) -> Future[int]:
        """Request the topic's end, including open transactions, without waiting. The future fails with StreamsError.

        Each request uses a new client: after a broker was killed, an old client has an old leader epoch and is rejected forever.
        """
        self._admin = admin_client(self._config)  # the reference is needed: a client that is garbage-collected does not answer
        place = TopicPartition(self._topic, 0)
        answer = self._admin.list_offsets({place: OffsetSpec.latest()})[place]  # type: ignore[no-untyped-call]  # not annotated there
        end: Future[int] = Future()
        answer.add_done_callback(lambda done: _pass_on(done, end))
        return end

    def append(self, key: bytes, value: bytes | None) -> None:
        """Write a record asynchronously. Raises StreamsError if that is not allowed, or too many are waiting."""
        try:
            self._producer.produce(self._topic, value, key, 0, self._reported)
        except BufferError as error:
            raise StreamsError(f"{self._topic} takes no more records: is the broker away?") from error
        except KafkaException as error:
            logger.warning("%s cannot be written: %s", self._topic, text_of(error))  # it was deleted: `TopicLife` sees that
            self._reported(kafka_error(error))
        self._producer.poll(0)
        if self._refused is not None:
            raise StreamsError(f"{self._topic} cannot be written: {with_remedy(self._refused, f'Write on topic {self._topic}')}")

    def _reported(self, error: KafkaError | None, _: object = None) -> None:
        """Take a delivery report."""
        if Meaning.NO_RIGHT in meaning(error):
            self._refused = error

    def flush(self) -> None:
        """Wait until written records are delivered, at most `FLUSH_SECONDS`."""
        self._producer.flush(FLUSH_SECONDS)

    def drop(self) -> None:
        """Discard undelivered records, which were for a topic that was deleted."""
        self._producer.purge()

    def close(self) -> None:
        self._producer.flush(FLUSH_SECONDS)
        self.tail.close()


def _pass_on(answer: Future[ListOffsetsResultInfo], end: Future[int]) -> None:
    error = answer.exception()
    if error is None:
        end.set_result(answer.result().offset)
    else:
        end.set_exception(StreamsError(f"the end of the log cannot be asked for: {text_of(error)}"))


class RecordWriter:
    """Synchronous writer of single records, for commands and for what is written outside of a worker."""

    def __init__(self, connection: Connection, topic: str) -> None:
        """Makes no request."""
        self._connection = connection
        self._topic = topic
        self._producer = producer(connection.client({"enable.idempotence": True, "linger.ms": 0, **QUIET}))

    def write(self, key: bytes, value: bytes | None) -> None:
        """Write a record and wait for its delivery. Raises BrokerUnavailableError."""
        failed: list[KafkaError] = []
        try:
            self._producer.produce(self._topic, value, key, 0, lambda error, _message: failed.append(error) if error is not None else None)
        except KafkaException as error:  # the client has failed before
            failed.append(kafka_error(error))
        if self._producer.flush(ANSWER_SECONDS) or failed:
            reason = with_remedy(failed[0], f"Write on topic {self._topic}") if failed else f"no answer within {ANSWER_SECONDS:.0f} s"
            raise BrokerUnavailableError(f"bootstrap.servers = {self._connection}: {self._topic} cannot be written: {reason}")

    def close(self) -> None:
        self._producer.flush(ANSWER_SECONDS)
