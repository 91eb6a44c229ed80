"""A transactional producer whose calls end in one of three ways: done, rolled back, or no longer ours.

librdkafka reports errors of transactions in a dozen codes. The engine can do three things only (rules.md, 10; kafka-facts, G):

    fatal (`_FENCED`, `_FATAL`, or `fatal()`)      another took over, or the broker timed the transaction out: a fence and a time-out
                                                   cannot be told apart. TaskMigratedError: drop the producer, start a new incarnation.
    `txn_requires_abort()`                         TransactionAbortedError: abort, go back to the last commit, process again.
    the call does not return                       as fatal (`courier.py`).
    `retriable()`                                  the broker is away or busy: the same call again, until it answers or the worker gives up.

Anything else is treated as one that requires an abort: a commit of which it is not known that it holds must not be followed by another.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from runtime.commit.courier import Courier, HungError
from runtime.commit.metadata import OffsetAndMetadata
from runtime.errors import StreamsConfigError, TaskMigratedError, TransactionAbortedError
from runtime.ids import Partition
from runtime.kafka_logs import KAFKA_LOGGER

logger = logging.getLogger(__name__)

CALL_SECONDS = 5.0
"""One call's time limit; a retriable time-out is followed by the same call, so this bounds only how soon a stop is noticed."""
CLOSE_SECONDS = 2.0
HUNG_SECONDS = CALL_SECONDS + 3.0
"""A call that takes so much longer than its own time limit of `CALL_SECONDS` does not return at all (`courier.py`)."""

DEFAULTS: Mapping[str, object] = {
    # 100 ms, librdkafka's default, is what a commit waits for while the broker still finishes the one before.
    "retry.backoff.ms": 1,
    "retry.backoff.max.ms": 10,
    "transaction.timeout.ms": 10_000,
}


class GroupMetadata:
    """confluent-kafka's opaque `ConsumerGroupMetadata`, which it does not export."""


Result = TypeVar("Result")


def kafka_error(error: KafkaException) -> KafkaError:
    """The error inside."""
    found: KafkaError = error.args[0]
    return found


def classify(error: KafkaException) -> TaskMigratedError | TransactionAbortedError | None:
    """What an error of a transaction means; None if the same call may be made again. See the module's docstring."""
    inner = kafka_error(error)
    if inner.fatal() or inner.code() in (KafkaError._FENCED, KafkaError._FATAL):
        return TaskMigratedError(f"the producer was fenced, or its transaction timed out: {inner.str()}")
    if inner.txn_requires_abort() or not inner.retriable():
        return TransactionAbortedError(f"{inner.name()}: {inner.str()}")
    return None


def serve(call: Callable[[float], Result], seconds: float) -> Result:
    """A producer's `poll` or `flush`, which serve delivery reports, and raise a fatal error where one has come. It comes as KafkaException,
    or, if a delivery report was being served just then, as the cause of a SystemError. Raises TaskMigratedError."""
    try:
        return call(seconds)
    except (KafkaException, SystemError) as error:
        fatal = error if isinstance(error, KafkaException) else error.__cause__
        if not isinstance(fatal, KafkaException):
            raise
        raise classify(fatal) or TransactionAbortedError(kafka_error(fatal).str()) from error


def drop(producer: Producer) -> None:
    """Lets go of a producer and of what it has not sent. Never raises."""
    producer.purge()
    try:
        serve(producer.flush, 0)
    except (TaskMigratedError, TransactionAbortedError) as error:
        logger.info("%s", error)


class TransactionalProducer:
    """The transactions of one incarnation of a worker. `give_up()` is asked between the attempts while the broker does not answer.
    `consumer`: whose group offsets are committed to where none is named."""

    def __init__(
        self, properties: Mapping[str, object], transactional_id: str, consumer: Consumer | None, give_up: Callable[[], bool]
    ) -> None:
        self.producer = Producer({**DEFAULTS, **properties, "transactional.id": transactional_id}, logger=KAFKA_LOGGER)
        self._transactional_id = transactional_id
        self._consumer = consumer
        self._give_up = give_up
        self._open = False
        self._courier = Courier(f"transactions of {transactional_id}")

    def init(self) -> None:
        """Registers the id with the broker, which aborts what an earlier user of it left open. Once, before anything else. Raises
        StreamsConfigError where the brokers allow no transaction as long as the configured ones."""
        try:
            self._until_answered(lambda: self.producer.init_transactions(CALL_SECONDS))
        except TaskMigratedError as error:
            refused = error.__cause__
            if isinstance(refused, KafkaException) and kafka_error(refused).code() == KafkaError.INVALID_TRANSACTION_TIMEOUT:
                raise StreamsConfigError(
                    "transaction.timeout.ms, which is longer than commit.interval.ms, is more than the brokers allow "
                    "(max.transaction.timeout.ms): make the two shorter, or the brokers' limit longer"
                ) from refused
            raise
        self.begin()

    def begin(self) -> None:
        if not self._open:
            self._until_answered(self.producer.begin_transaction)
            self._open = True

    def send_offsets(
        self,
        offsets: Mapping[Partition, OffsetAndMetadata],
        group: GroupMetadata | None = None,
        beside: Callable[[], None] | None = None,
    ) -> None:
        """Adds offsets to the transaction: of the consumer's own group, which has no members, or of another's. `beside` is done while the
        broker answers."""
        positions = [TopicPartition(topic, number, at.offset, at.metadata) for (topic, number), at in offsets.items()]
        if group is None:
            assert self._consumer is not None
            group = self._consumer.consumer_group_metadata()
        metadata = group
        self._until_answered(lambda: self.producer.send_offsets_to_transaction(positions, metadata, CALL_SECONDS), beside)

    def flush(self) -> int:
        """Serves the delivery reports of what was sent, and returns how much of it is still on its way. Bounded: if the transaction has
        failed, only the commit will say so."""
        return serve(self.producer.flush, CALL_SECONDS)

    def commit(self) -> None:
        """Commits what was sent since `begin()`, and begins anew. What fails after the commit is not an abort of it: TaskMigratedError."""
        self._until_answered(lambda: self.producer.commit_transaction(CALL_SECONDS))
        self._open = False
        try:
            serve(self.producer.poll, 0)
            self.begin()
        except TransactionAbortedError as error:
            raise TaskMigratedError(f"the transaction is committed, but the next cannot begin: {error}") from error

    def abort(self) -> None:
        """Rolls back what was sent since `begin()`, and begins anew. Raises TaskMigratedError if the producer can do nothing any more."""
        try:
            self._until_answered(lambda: self.producer.abort_transaction(CALL_SECONDS))
        except TransactionAbortedError as error:
            raise TaskMigratedError(f"the transaction could not be aborted: {error}") from error
        self._open = False
        self.begin()

    def _until_answered(self, call: Callable[[], Result], beside: Callable[[], None] | None = None) -> Result:
        warned = False
        while True:
            try:
                once, beside = beside, None
                return self._courier.call(call, HUNG_SECONDS, once)
            except HungError:
                raise TaskMigratedError(f"the client of {self._transactional_id} does not return from a call: it is replaced") from None
            except KafkaException as error:
                meaning = classify(error)
                if meaning is not None:
                    raise meaning from error
                if self._give_up():
                    raise TaskMigratedError(f"gave up on {self._transactional_id}: {kafka_error(error).str()}") from error
                if not warned:
                    logger.warning("%s: no answer yet, still trying: %s", self._transactional_id, kafka_error(error).str())
                    warned = True

    def close(self) -> None:
        """Drops what was not sent, and rolls back what was, so that nobody has to wait for the transaction's time-out. Never raises."""
        if self._courier.hung:
            return
        if self._open:
            try:
                self._courier.call(lambda: self.producer.abort_transaction(CLOSE_SECONDS), HUNG_SECONDS)
            except HungError:
                return
            except KafkaException as error:  # fenced, or the broker is away: then the next user of the id or the time-out ends it
                logger.info("%s: not aborted at close: %s", self._transactional_id, kafka_error(error).str())
            self._open = False
        self._courier.close()
        drop(self.producer)
