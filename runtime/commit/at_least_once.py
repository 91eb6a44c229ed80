"""at_least_once: outputs and changelogs are written at once and for good; input offsets follow in a guarded transaction that holds
nothing else (rules.md, 15).

The guard is what a plain offset commit lacks: the group `<app>` has no members, so it would take a commit from a worker that lost its
tasks long ago. What that worker can still do, and cannot be kept from, is write to outputs and changelogs until it notices; readers
see duplicates, and its last changelog records may be older than the new owner's. That is the promise of at-least-once.

Every record has a delivery report, but one that knows nothing of the input record behind it: a report of its own for each output took as
long as all else that is done with it. So when the brokers refuse one, all goes back to the last commit, and from then on everything is
*watched*: each report knows its input record, and what is refused is judged with it (`refusals.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from runtime.commit.metadata import OffsetAndMetadata
from runtime.commit.refusals import Limits, Origin, Output, Refusals, is_about_the_topic
from runtime.commit.transactions import GroupMetadata, TransactionalProducer, drop, kafka_error, serve
from runtime.errors import BrokerUnavailableError, TaskMigratedError, TransactionAbortedError
from runtime.ids import NextOffset, Partition
from runtime.kafka_logs import KAFKA_LOGGER
from runtime.record import Headers

POLL_SECONDS = 0.01
FLUSH_SECONDS = 1.0

Report = Callable[[KafkaError | None, Message], None]
"""What the client calls when it is known whether a record was taken."""


class AtLeastOnce:
    """The transport of `processing.guarantee = at_least_once`; the methods are those of `ExactlyOnce`."""

    def __init__(
        self,
        properties: Mapping[str, object],
        transactions: TransactionalProducer,
        guard: Callable[[], GroupMetadata],
        guard_partition: Partition,
        refusals: Refusals,
        give_up: Callable[[], bool],
    ) -> None:
        self._producer = Producer(dict(properties), logger=KAFKA_LOGGER)
        self._client_produce = self._producer.produce
        self._transactions = transactions
        self._guard = guard
        self._guard_offset = {guard_partition: OffsetAndMetadata(0, "")}
        self._refusals = refusals
        self._limits = Limits(refusals, self._flush_once)
        self._give_up = give_up
        self._ends: dict[Partition, NextOffset] = {}
        self._changelogs: set[str] = set()
        self._watching = False
        self._refused: list[tuple[Output, KafkaError]] = []
        """What was not taken, before the watch."""
        self._failed: list[tuple[Output, KafkaError, Origin]] = []
        """What was not taken, under watch."""
        self._life = 0
        """Counts the aborts: what is told of records from before the last one is not listened to. The offset of a changelog record that was
        rolled back here would else become the store's, which does not hold that record."""
        self._report = self._reporter()
        self._sent = False

    def start(self) -> None:
        """Initialises the transactional id of the offsets' transactions; blocks until the broker answers."""
        self._transactions.init()

    def send(
        self, topic: str, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers | None, partition: int | None
    ) -> None:
        """Writes an output record. Raises ProductionError if the handler says FAIL, TransactionAbortedError if it is to be tried again."""
        self._sent = True
        if self._watching:
            self._send(Output(topic, key, value, timestamp, headers, partition), self._refusals.origin())
            return
        try:
            self._client_produce(topic, value, key, -1 if partition is None else partition, self._report, None, timestamp or 1, headers)  # type: ignore[arg-type]  # lists are invariant
        except (BufferError, KafkaException):
            self._produce(topic, key, value, timestamp, headers, partition, self._report)

    def _send(self, output: Output, origin: Origin) -> None:
        """In a batch that its topic takes."""
        topic, _, _, _, headers, number = output
        too_large = self._limits.make_room(output)
        if too_large is not None:
            self._refuse(output, too_large, origin)
        elif number is not None and topic in self._changelogs:
            self._produce(*output, self._logged(Partition(topic, number), partial(self._delivered, self._life, origin, headers)))
        else:
            self._produce(*output, partial(self._delivered, self._life, origin, headers))

    def _produce(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: Headers | None,
        partition: int | None,
        report: Report,
    ) -> None:
        number = -1 if partition is None else partition
        while True:
            try:
                self._client_produce(topic, value, key, number, report, None, timestamp or 1, headers)  # type: ignore[arg-type]  # lists are invariant
                return
            except BufferError:
                serve(self._producer.poll, POLL_SECONDS)
            except KafkaException as error:
                if kafka_error(error).fatal():
                    raise TaskMigratedError(f"the producer failed for good: {kafka_error(error).str()}") from error
                self._refuse(Output(topic, key, value, timestamp, headers, partition), error, self._refusals.origin())
                return

    def send_changelog(self, partition: Partition, rows: list[tuple[bytes, bytes | None, int]], headers: Headers | None = None) -> None:
        """Writes changelog records; tombstones have no headers. The offset of the last one is learnt from its delivery report."""
        topic, number = partition
        self._changelogs.add(topic)
        if self._watching:
            for key, value, timestamp in rows:
                self.send(topic, key, value, timestamp, None if value is None else headers, number)
            return
        if rows:
            self._sent = True
            produce, report = self._client_produce, self._report
            for key, value, timestamp in rows[:-1]:
                try:
                    produce(topic, value, key, number, report, None, timestamp or 1, None if value is None else headers)  # type: ignore[arg-type]  # as above
                except (BufferError, KafkaException):
                    self._produce(topic, key, value, timestamp, None if value is None else headers, number, report)
            key, value, timestamp = rows[-1]
            self._produce(topic, key, value, timestamp, None if value is None else headers, number, self._logged(partition, report))

    def _refuse(self, output: Output, error: KafkaException, origin: Origin) -> None:
        """Returns if the output is left out."""
        if self._refusals.refused(output, error, origin):
            raise TransactionAbortedError(f"an output to {output.topic} is tried again: {kafka_error(error).str()}") from error

    def _delivered(self, life: int, origin: Origin, headers: Headers | None, error: KafkaError | None, message: Message) -> None:
        if error is not None and life == self._life:
            self._failed.append((_output(message, headers), error, origin))

    def _reporter(self) -> Report:
        """What is called with the report of each record that is not watched: one function for all of them."""
        life = self._life

        def reported(error: KafkaError | None, message: Message) -> None:
            if error is not None and life == self._life:
                self._refused.append((_output(message, None), error))

        return reported

    def _logged(self, partition: Partition, report: Report) -> Report:
        """A report that also tells the next offset of a changelog."""
        life = self._life

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                report(error, message)
            elif life == self._life:
                self._ends[partition] = NextOffset((message.offset() or 0) + 1)

        return delivered

    def poll(self) -> None:
        """Serves delivery reports; once per batch, or the queue fills up."""
        serve(self._producer.poll, 0)

    def send_offsets(self, offsets: Mapping[Partition, OffsetAndMetadata]) -> None:
        """Adds input offsets to the open transaction, before its `commit`. Raises TransactionAbortedError or TaskMigratedError."""
        self._sent = True
        self._transactions.send_offsets(offsets)

    def commit(
        self, offsets: Mapping[Partition, OffsetAndMetadata], meanwhile: Sequence[Callable[[], None]] = ()
    ) -> Mapping[Partition, NextOffset]:
        """Waits until everything is written, then commits the offsets. Returns the changelogs' next offsets. `meanwhile` is done while the
        brokers still take what was sent.

        Raises TransactionAbortedError (the offsets were not committed; what was written stays) or TaskMigratedError.
        """
        for step in meanwhile:
            step()
        self._flush()
        self._transactions.send_offsets(self._guard_offset, self._guard())
        if offsets:
            self._transactions.send_offsets(offsets)
        self._transactions.commit()
        self._sent = False
        ends, self._ends = self._ends, {}
        return ends

    def _flush(self) -> None:
        """Until everything is written, or left out by the handler."""
        while True:
            self._flush_once()
            refused, self._refused = self._refused, []
            failed, self._failed = self._failed, []
            if not (refused or failed):
                return
            try:
                self._begin_watch(refused)
                self._send_alone(failed)
            except BrokerUnavailableError as unavailable:
                raise TransactionAbortedError(f"refused outputs cannot be judged yet: {unavailable}") from unavailable

    def _begin_watch(self, refused: list[tuple[Output, KafkaError]]) -> None:
        """Of what was refused it is not known where it came from: it is found out by doing all since the last commit again."""
        for output, error in refused:
            self._raise_transient(output, error)
        if refused:
            self._watching = True
            output, error = refused[0]
            raise TransactionAbortedError(f"an output to {output.topic} was refused: {error.str()}; its input record is looked for")

    def _send_alone(self, failed: list[tuple[Output, KafkaError, Origin]]) -> None:
        """A broker refuses whole batches: what was refused is sent once more, each in a batch that fits or of its own."""
        too_large = {output.topic for output, error, _ in failed if error.code() == KafkaError.MSG_SIZE_TOO_LARGE}
        known = self._limits.learn(too_large)
        for output, error, origin in failed:
            self._raise_transient(output, error)
            self._send(output, origin)
            if error.code() == KafkaError.MSG_SIZE_TOO_LARGE and output.topic not in known:
                continue
            self._flush_once()
            still, self._failed = self._failed, []
            for again in still:
                self._judge(*again)

    def _flush_once(self) -> None:
        while serve(self._producer.flush, FLUSH_SECONDS):
            if self._give_up():
                raise TaskMigratedError("gave up while the broker did not take the outputs")

    def _raise_transient(self, output: Output, error: KafkaError) -> None:
        if (error.retriable() or error.code() == KafkaError._MSG_TIMED_OUT) and not (
            is_about_the_topic(error) and self._refusals.is_missing(output.topic)
        ):
            raise TransactionAbortedError(f"an output to {output.topic} was not taken in time: {error.str()}")

    def _judge(self, output: Output, error: KafkaError, origin: Origin) -> None:
        """Returns if the output is left out."""
        self._raise_transient(output, error)
        self._refuse(output, KafkaException(error), origin)

    @property
    def pending(self) -> bool:
        """True if something was sent since the last commit or abort."""
        return self._sent

    def abort(self) -> None:
        """Offsets that were sent are rolled back; outputs stay written and will be written again."""
        self._life += 1
        self._report = self._reporter()
        self._refused.clear()
        self._failed.clear()
        self._ends.clear()
        self._transactions.abort()
        self._sent = False

    def close(self) -> None:
        drop(self._producer)
        self._transactions.close()


def _output(message: Message, headers: Headers | None) -> Output:
    """What a report is about, as it was sent. (The message has lost its headers by now.)"""
    key, value, number = message.key(), message.value(), message.partition()
    partition = None if number is None or number < 0 else number
    return Output(str(message.topic()), _raw(key), _raw(value), message.timestamp()[1], headers, partition)


def _raw(data: str | bytes | None) -> bytes | None:
    return data.encode() if isinstance(data, str) else data
