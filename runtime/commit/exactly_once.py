"""exactly_once_v2: outputs, changelogs, events and input offsets of all tasks of a worker in one transaction (KIP-447).

Each transaction also commits a token offset to the members' group, with that group's metadata: a worker that the group has dropped cannot
commit, although the input offsets go to a group without members, which fences nobody (coordination.md, 6).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from confluent_kafka import KafkaError, KafkaException, Message

from runtime.commit.metadata import OffsetAndMetadata
from runtime.commit.order import Refused
from runtime.commit.transactions import GroupMetadata, TransactionalProducer, classify, kafka_error, serve
from runtime.errors import TransactionAbortedError
from runtime.ids import NextOffset, Partition
from runtime.record import Headers

POLL_SECONDS = 0.01


class ExactlyOnce:
    """The transport of `processing.guarantee = exactly_once_v2`. Belongs to the worker's thread.

    `guard` gives the members' group metadata, or raises TaskMigratedError (rules.md, 23). `refused` decides on a record that the client
    does not take (too large, say): True to send it again.
    """

    def __init__(
        self, transactions: TransactionalProducer, guard: Callable[[], GroupMetadata], guard_partition: Partition, refused: Refused
    ) -> None:
        self._transactions = transactions
        self._guard = guard
        self._guard_offset = {guard_partition: OffsetAndMetadata(0, "")}
        self._refused = refused
        self._ends: dict[Partition, NextOffset] = {}
        self._produce = transactions.producer.produce
        self._sent = False

    def start(self) -> None:
        """Initialises the transactional id; blocks until the broker answers."""
        self._transactions.init()

    def send(
        self, topic: str, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers | None, partition: int | None
    ) -> None:
        """Adds an output record to the transaction. Raises TransactionAbortedError, TaskMigratedError or ProductionError."""
        self._sent = True
        number = -1 if partition is None else partition
        while True:
            try:
                # librdkafka reads timestamp 0 as "now", so the epoch itself is written as its first millisecond
                self._produce(topic, value, key, number, None, None, timestamp or 1, headers)  # type: ignore[arg-type]  # lists are invariant
                return
            except BufferError:
                serve(self._transactions.producer.poll, POLL_SECONDS)
            except KafkaException as error:
                if not self._again(error, topic, key, value, timestamp, headers, number):
                    return

    def send_changelog(self, partition: Partition, rows: list[tuple[bytes, bytes | None, int]]) -> None:
        """Adds changelog records. The offset of the last one is learnt from its delivery report, so only that one has a callback."""
        if not rows:
            return
        self._sent = True
        produce = self._produce
        topic, number = partition
        last = rows.pop()
        for row in rows:
            try:
                produce(topic, row[1], row[0], number, None, None, row[2] or 1)
            except BufferError:
                self.send(topic, row[0], row[1], row[2], None, number)
            except KafkaException as error:
                if self._again(error, topic, row[0], row[1], row[2], None, number):
                    self.send(topic, row[0], row[1], row[2], None, number)
        rows.append(last)
        while True:
            try:
                produce(topic, last[1], last[0], number, self._delivered, None, last[2] or 1)
                return
            except BufferError:
                serve(self._transactions.producer.poll, POLL_SECONDS)
            except KafkaException as error:
                if not self._again(error, topic, last[0], last[1], last[2], None, number):
                    return

    def _again(
        self,
        error: KafkaException,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: Headers | None,
        partition: int,
    ) -> bool:
        inner = kafka_error(error)
        if inner.code() in (KafkaError._STATE, KafkaError._FENCED, KafkaError._FATAL) or inner.fatal() or inner.txn_requires_abort():
            raise classify(error) or TransactionAbortedError(inner.str()) from error
        return self._refused(topic, partition, key, value, timestamp, headers, error)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        offset = message.offset()
        if error is None and offset is not None:
            self._ends[Partition(str(message.topic()), int(message.partition() or 0))] = NextOffset(offset + 1)

    def poll(self) -> None:
        """Serves delivery reports; once per batch, or the queue fills up."""
        serve(self._transactions.producer.poll, 0)

    def commit(self, offsets: Mapping[Partition, OffsetAndMetadata]) -> Mapping[Partition, NextOffset]:
        """Flushes and commits, and begins anew. Returns the changelogs' next offsets.

        Raises TransactionAbortedError (nothing of it is visible, `abort()` is due) or TaskMigratedError.
        """
        guard = self._guard()
        if offsets:
            self._transactions.send_offsets(offsets)  # answered while the outputs are still on their way
        self._transactions.send_offsets(self._guard_offset, guard)
        self._transactions.flush()
        self._transactions.commit()
        self._sent = False
        ends, self._ends = self._ends, {}
        return ends

    @property
    def pending(self) -> bool:
        """True if something was sent since the last commit or abort."""
        return self._sent

    def abort(self) -> None:
        """Rolls back what was sent since the last commit. Raises TaskMigratedError."""
        self._ends.clear()
        self._transactions.abort()
        self._sent = False

    def close(self) -> None:
        self._transactions.close()
