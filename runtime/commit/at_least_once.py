"""at_least_once: outputs and changelogs are written at once and for good; input offsets follow in a guarded transaction that holds
nothing else (rules.md, 15).

The guard is what a plain offset commit lacks: the group `<app>` has no members, so it would take a commit from a worker that lost its
tasks long ago. What that worker can still do, and cannot be kept from, is write to outputs and changelogs until it notices; readers
see duplicates, and its last changelog records may be older than the new owner's. That is the promise of at-least-once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from runtime.commit.metadata import OffsetAndMetadata
from runtime.commit.order import Refused
from runtime.commit.transactions import GroupMetadata, TransactionalProducer, drop, kafka_error, serve
from runtime.errors import TaskMigratedError, TransactionAbortedError
from runtime.ids import NextOffset, Partition
from runtime.kafka_logs import KAFKA_LOGGER
from runtime.record import Headers

POLL_SECONDS = 0.01
FLUSH_SECONDS = 1.0


class AtLeastOnce:
    """The transport of `processing.guarantee = at_least_once`; the methods are those of `ExactlyOnce`."""

    def __init__(
        self,
        properties: Mapping[str, object],
        transactions: TransactionalProducer,
        guard: Callable[[], GroupMetadata],
        guard_partition: Partition,
        refused: Refused,
        give_up: Callable[[], bool],
    ) -> None:
        self._producer = Producer(dict(properties), logger=KAFKA_LOGGER)
        self._transactions = transactions
        self._guard = guard
        self._guard_offset = {guard_partition: OffsetAndMetadata(0, "")}
        self._refused = refused
        self._give_up = give_up
        self._ends: dict[Partition, NextOffset] = {}
        self._changelogs: set[str] = set()
        self._failed: list[tuple[KafkaError, Message]] = []
        self._sent = False

    def start(self) -> None:
        """Initialises the transactional id of the offsets' transactions; blocks until the broker answers."""
        self._transactions.init()

    def send(
        self, topic: str, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers | None, partition: int | None
    ) -> None:
        """Writes an output record. Raises ProductionError if the handler says FAIL."""
        self._sent = True
        number = -1 if partition is None else partition
        while True:
            try:
                self._producer.produce(topic, value, key, number, self._delivered, None, timestamp or 1, headers)  # type: ignore[arg-type]  # lists are invariant
                return
            except BufferError:
                serve(self._producer.poll, POLL_SECONDS)
            except KafkaException as error:
                if kafka_error(error).fatal():
                    raise TaskMigratedError(f"the producer failed for good: {kafka_error(error).str()}") from error
                if not self._refused(topic, number, key, value, timestamp, headers, error):
                    return

    def send_changelog(self, partition: Partition, rows: list[tuple[bytes, bytes | None, int]]) -> None:
        """Writes changelog records."""
        self._changelogs.add(partition.topic)
        for key, value, timestamp in rows:
            self.send(partition.topic, key, value, timestamp, None, partition.number)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        topic = str(message.topic())
        if error is not None:
            self._failed.append((error, message))
        elif topic in self._changelogs:
            self._ends[Partition(topic, int(message.partition() or 0))] = NextOffset(int(message.offset() or 0) + 1)

    def poll(self) -> None:
        """Serves delivery reports; once per batch, or the queue fills up."""
        serve(self._producer.poll, 0)

    def commit(self, offsets: Mapping[Partition, OffsetAndMetadata]) -> Mapping[Partition, NextOffset]:
        """Waits until everything is written, then commits the offsets. Returns the changelogs' next offsets.

        Raises TransactionAbortedError (the offsets were not committed; what was written stays) or TaskMigratedError.
        """
        self._flush()
        guard = self._guard()
        if offsets:
            self._transactions.send_offsets(offsets)
        self._transactions.send_offsets(self._guard_offset, guard)
        self._transactions.commit()
        self._sent = False
        ends, self._ends = self._ends, {}
        return ends

    def _flush(self) -> None:
        while True:
            while serve(self._producer.flush, FLUSH_SECONDS):
                if self._give_up():
                    raise TaskMigratedError("gave up while the broker did not take the outputs")
            failed, self._failed = self._failed, []
            if not failed:
                return
            for error, message in failed:
                self._resend(error, message)

    def _resend(self, error: KafkaError, message: Message) -> None:
        topic, number = str(message.topic()), int(message.partition() or 0)
        if error.retriable() or error.code() == KafkaError._MSG_TIMED_OUT:
            raise TransactionAbortedError(f"an output to {topic} was not taken in time: {error.str()}")
        key, value, timestamp = message.key(), message.value(), message.timestamp()[1]
        headers: Headers | None = message.headers()  # type: ignore[assignment]  # as they were given to `send`
        if self._refused(topic, number, _raw(key), _raw(value), timestamp, headers, KafkaException(error)):
            self.send(topic, _raw(key), _raw(value), timestamp, headers, number)

    @property
    def pending(self) -> bool:
        """True if something was sent since the last commit or abort."""
        return self._sent

    def abort(self) -> None:
        """Offsets that were sent are rolled back; outputs stay written and will be written again."""
        self._failed.clear()
        self._ends.clear()
        self._transactions.abort()
        self._sent = False

    def close(self) -> None:
        drop(self._producer)
        self._transactions.close()


def _raw(data: str | bytes | None) -> bytes | None:
    return data.encode() if isinstance(data, str) else data
