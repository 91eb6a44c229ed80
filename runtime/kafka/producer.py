"""Producing records: the client's own method on the hot path, with the engine's errors.

`RecordProducer.produce` is the client's bound method, so a sink calls librdkafka directly. If it raises one of `NOT_PRODUCED`, the caller
passes the same record to `send`, which waits while the client's queue is full and translates all other errors.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from penstock.runtime.kafka.failures import Meaning, kafka_error, meaning, producer_failure
from penstock.runtime.model.errors import TaskMigratedError, TransactionAbortedError
from penstock.runtime.model.record import Headers

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.01
"""Wait per attempt for space in the client's queue."""
NOT_PRODUCED = (BufferError, KafkaException)
"""Exceptions of `RecordProducer.produce`."""
_NOW = 0

Result = TypeVar("Result")
Report = Callable[[KafkaError | None, Message], None]
"""Delivery report: called by the client when a record was delivered or has failed."""


class NotTakenError(Exception):
    """The client refused a record, and the producer can continue. `__cause__` is the client's error."""

    def __init__(self, cause: KafkaException) -> None:
        super().__init__(kafka_error(cause).str())
        self.error: Exception = cause


def delivery_report(taken: Callable[[Message], None] | None, refused: Callable[[Exception, Message], None] | None) -> Report:
    """Return a delivery report that calls `taken` with a delivered record, and `refused` with the client's error for a failed one. There
    are variants for each case: if only `refused` is given, the report of a delivered record costs one call."""

    def report(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            if refused is not None:
                refused(KafkaException(error), message)
        elif taken is not None:
            taken(message)

    return report


def serve(call: Callable[[float], Result], seconds: float) -> Result:
    """Call a producer's `poll` or `flush`, which serve delivery reports and raise fatal errors.

    A fatal error is a KafkaException or, if a delivery report was being served, the cause of a SystemError. Raises TaskMigratedError.
    """
    try:
        return call(seconds)
    except (KafkaException, SystemError) as error:
        fatal = error if isinstance(error, KafkaException) else error.__cause__
        if not isinstance(fatal, KafkaException):
            raise
        raise producer_failure(fatal) or TransactionAbortedError(kafka_error(fatal).str()) from error


class RecordProducer:
    """A producer. Used by one thread."""

    def __init__(self, client: Producer) -> None:
        self._client = client
        self.produce = client.produce
        """The client's own method: (topic, value, key, partition, report, None, timestamp, headers). Raises `NOT_PRODUCED`. A timestamp of
        0 means "now" to librdkafka, so the epoch itself is written as 1 ms."""

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp: int | None,
        headers: Headers | None,
        partition: int | None,
        report: Report | None = None,
    ) -> None:
        """Send one record, and wait while the client's queue is full.

        A timestamp of None is the current time; for a partition of None the key decides. Raises NotTakenError, TaskMigratedError,
        TransactionAbortedError.
        """
        number, at_ms = -1 if partition is None else partition, _NOW if timestamp is None else timestamp or 1
        while True:
            try:
                self.produce(topic, value, key, number, report, None, at_ms, headers)  # type: ignore[arg-type]  # lists are invariant
                return
            except BufferError:
                serve(self._client.poll, POLL_SECONDS)
            except KafkaException as error:
                inner = kafka_error(error)
                over = Meaning.FENCED | Meaning.NO_TRANSACTION
                if meaning(inner) & over or inner.fatal() or inner.txn_requires_abort():
                    raise producer_failure(error) or TransactionAbortedError(inner.str()) from error
                raise NotTakenError(error) from error

    def poll(self) -> None:
        """Serve delivery reports without waiting. Raises TaskMigratedError."""
        serve(self._client.poll, 0)

    def flush(self, seconds: float) -> int:
        """Serve delivery reports; return the number of undelivered records. Raises TaskMigratedError."""
        return serve(self._client.flush, seconds)

    def drop(self) -> None:
        """Discard the client and its unsent records. Never raises."""
        self._client.purge()
        try:
            self.flush(0)
        except (TaskMigratedError, TransactionAbortedError) as error:
            logger.info("%s", error)
