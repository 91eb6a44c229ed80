"""The transport for at_least_once: outputs and changelog records are written at once and stay written; the input offsets follow in a
guarded transaction of their own (rules.md, 15).

A plain offset commit lacks the guard: the group `<app>` has no members, so it would accept a commit from a worker that lost its tasks long
ago. Nothing prevents such a worker from writing outputs and changelog records until it notices. Readers then see duplicates, and its last
changelog records may be older than the new owner's. That is what at-least-once promises.

Every record has a delivery report, but a shared one, which does not know the input record: a report for each output took as long as the
rest of the work on it. So when the brokers refuse an output, the worker rolls back to the last commit, and from then on the transport is
*watching*: each report knows its input record, and the handler decides about a refused output with its input record (`refusals.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from penstock.runtime.commit.refusals import Limits, Origin, Output, Refusals, is_about_a_limit, is_about_the_topic
from penstock.runtime.kafka.clients import producer
from penstock.runtime.kafka.failures import Meaning, is_retriable, meaning, text_of
from penstock.runtime.kafka.messages import Message
from penstock.runtime.kafka.producer import NOT_PRODUCED, NotTakenError, RecordProducer, Report, delivery_report
from penstock.runtime.kafka.transactions import GroupMetadata, TransactionalProducer
from penstock.runtime.model.errors import BrokerUnavailableError, TaskMigratedError, TransactionAbortedError
from penstock.runtime.model.ids import NextOffset, TopicPartition
from penstock.runtime.model.offsets import OffsetAndMetadata
from penstock.runtime.model.record import Headers
from penstock.runtime.stores.base import ChangelogRecord

FLUSH_SECONDS = 1.0


class AtLeastOnce:
    """The transport of `processing.guarantee = at_least_once`, with the methods of `ExactlyOnce`."""

    def __init__(
        self,
        properties: Mapping[str, object],
        transactions: TransactionalProducer,
        guard: Callable[[], GroupMetadata],
        guard_partition: TopicPartition,
        refusals: Refusals,
        give_up: Callable[[], bool],
    ) -> None:
        self._producer = RecordProducer(producer(properties))
        self._client_produce = self._producer.produce
        self._transactions = transactions
        self._guard = guard
        self._guard_offset = {guard_partition: OffsetAndMetadata(0, "")}
        self._refusals = refusals
        self._limits = Limits(refusals, self._flush_once)
        self._give_up = give_up
        self._ends: dict[TopicPartition, NextOffset] = {}
        self._changelogs: set[str] = set()
        self._watching = False
        self._refused: list[tuple[str, Exception]] = []
        """Topic and error of each refused record, before the watch."""
        self._failed: list[tuple[Output, Exception, Origin]] = []
        """Refused outputs, under watch."""
        self._life = 0
        """Number of aborts. Delivery reports of records sent before the last abort are ignored: a store does not hold a changelog record
        that was rolled back, so it must not get that record's offset."""
        self._report = delivery_report(None, self._refused_of_life())
        """The one report of all records that are not watched."""
        self._sent = False
        """True if something else than outputs was sent since the last commit or abort."""
        self.outputs = 0

    def start(self) -> None:
        """Initialise the transactional id for the offsets' transactions; blocks until the broker answers."""
        self._transactions.init()

    def send(
        self, topic: str, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers | None, partition: int | None
    ) -> None:
        """Write an output record. Raises ProductionError if the handler returns FAIL, TransactionAbortedError if the record is to be tried
        again."""
        self.outputs += 1
        if self._watching:
            self._send_watched(Output(topic, key, value, timestamp, headers, partition), self._refusals.origin())
            return
        try:
            self._client_produce(topic, value, key, -1 if partition is None else partition, self._report, None, timestamp or 1, headers)  # type: ignore[arg-type]  # lists are invariant
        except NOT_PRODUCED:
            self._produce(Output(topic, key, value, timestamp, headers, partition), self._report)

    def _send_watched(self, output: Output, origin: Origin) -> None:
        """Send an output in a batch that is not too large for its topic."""
        topic, number = output.topic, output.partition
        beyond = self._limits.make_room(output)
        if beyond is not None:
            self._refuse(output, beyond, origin)
            return
        taken = self._follow(TopicPartition(topic, number)) if number is not None and topic in self._changelogs else None
        self._produce(output, delivery_report(taken, partial(self._watched_refused, self._life, origin, output)))

    def _produce(self, output: Output, report: Report) -> None:
        """Produce a record, waiting while the client's queue is full. Returns also if the handler leaves the output out."""
        try:
            self._producer.send(*output, report)
        except NotTakenError as refused:
            self._refuse(output, refused.error, self._refusals.origin())

    def send_changelog(self, partition: TopicPartition, rows: list[ChangelogRecord], headers: Headers | None = None) -> None:
        """Write changelog records; tombstones have no headers. The delivery report of the last one gives the offset."""
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
                except NOT_PRODUCED:
                    self._produce(Output(topic, key, value, timestamp, None if value is None else headers, number), report)
            key, value, timestamp = rows[-1]
            last = Output(topic, key, value, timestamp, None if value is None else headers, number)
            self._produce(last, delivery_report(self._follow(partition), self._refused_of_life()))

    def _refuse(self, output: Output, error: Exception, origin: Origin) -> None:
        """Ask the handler. Returns if it leaves the output out."""
        if self._refusals.refused(output, error, origin):
            raise TransactionAbortedError(f"an output to {output.topic} is tried again: {text_of(error)}") from error

    def _watched_refused(self, life: int, origin: Origin, output: Output, error: Exception, _message: Message) -> None:
        """Note a refused output. `output` is used as sent, because the report of a refused record has neither timestamp nor headers."""
        if life == self._life:
            self._failed.append((output, error, origin))

    def _refused_of_life(self) -> Callable[[Exception, Message], None]:
        """Return a callback that notes refused records, before the watch, unless they were sent before an abort."""
        life = self._life

        def refused(error: Exception, message: Message) -> None:
            if life == self._life:
                self._refused.append((str(message.topic()), error))

        return refused

    def _follow(self, partition: TopicPartition) -> Callable[[Message], None]:
        """Return a callback that notes a changelog's next offset, unless the record was sent before an abort."""
        life = self._life

        def taken(message: Message) -> None:
            if life == self._life:
                self._ends[partition] = NextOffset((message.offset() or 0) + 1)

        return taken

    def poll(self) -> None:
        """Serve delivery reports; once per batch, or the queue fills up."""
        self._producer.poll()

    def watch(self) -> None:
        """Do nothing: the watch, once begun by a refusal, does not end."""

    def send_offsets(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Add input offsets to the open transaction, before its `commit`. Raises TransactionAbortedError or TaskMigratedError."""
        self._sent = True
        self._transactions.send_offsets(offsets)

    def begin_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Do nothing: offsets follow when everything is written."""

    def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], meanwhile: Sequence[Callable[[], None]] = ()
    ) -> Mapping[TopicPartition, NextOffset]:
        """Wait until everything is written, then commit the offsets. Return the changelogs' next offsets. The steps of `meanwhile` run
        while the brokers still write.

        Raises TransactionAbortedError (the offsets were not committed; outputs stay written) or TaskMigratedError.
        """
        for step in meanwhile:
            step()
        self._flush()
        self._transactions.send_offsets(self._guard_offset, self._guard())
        if offsets:
            self._transactions.send_offsets(offsets)
        self._transactions.commit()
        self._sent, self.outputs = False, 0
        ends, self._ends = self._ends, {}
        return ends

    def _flush(self) -> None:
        """Wait until every output is written, or left out by the handler."""
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
                raise TransactionAbortedError(f"refused outputs cannot be decided yet: {unavailable}") from unavailable

    def _begin_watch(self, refused: list[tuple[str, Exception]]) -> None:
        """Roll back and watch: the input record behind a refused output is unknown until everything since the last commit is processed
        again."""
        for topic, error in refused:
            self._raise_transient(topic, error)
        if refused:
            self._watching = True
            topic, error = refused[0]
            raise TransactionAbortedError(f"an output to {topic} was refused: {text_of(error)}; searching for its input record")

    def _send_alone(self, failed: list[tuple[Output, Exception, Origin]]) -> None:
        """Send refused outputs once more, each in a batch that fits or alone: a broker refuses whole batches."""
        known = self._limits.learn({output.topic for output, error, _ in failed if is_about_a_limit(error)})
        for output, error, origin in failed:
            self._raise_transient(output.topic, error)
            self._send_watched(output, origin)
            if is_about_a_limit(error) and output.topic not in known:
                continue
            self._flush_once()
            still, self._failed = self._failed, []
            for again in still:
                self._ask_handler(*again)

    def _flush_once(self) -> None:
        while self._producer.flush(FLUSH_SECONDS):
            if self._give_up():
                raise TaskMigratedError("gave up while the broker did not take the outputs")

    def _raise_transient(self, topic: str, error: Exception) -> None:
        if (is_retriable(error) or Meaning.UNDELIVERED in meaning(error)) and not (
            is_about_the_topic(error) and self._refusals.is_missing(topic)
        ):
            raise TransactionAbortedError(f"an output to {topic} was not taken in time: {text_of(error)}")

    def _ask_handler(self, output: Output, error: Exception, origin: Origin) -> None:
        """Ask the handler. Returns if it leaves the output out."""
        self._raise_transient(output.topic, error)
        self._refuse(output, error, origin)

    @property
    def pending(self) -> bool:
        """True if something was sent since the last commit or abort."""
        return self._sent or self.outputs > 0

    def abort(self) -> None:
        """Roll back the offsets that were sent. Outputs stay written, and will be written again."""
        self._life += 1
        self._report = delivery_report(None, self._refused_of_life())
        self._refused.clear()
        self._failed.clear()
        self._ends.clear()
        self._transactions.abort()
        self._sent, self.outputs = False, 0

    def close(self) -> None:
        self._producer.drop()
        self._transactions.close()
