"""exactly_once_v2: outputs, changelogs, events and input offsets of all tasks of a worker in one transaction (KIP-447).

Each transaction also commits a token offset to the members' group, with that group's metadata: a worker that the group has dropped cannot
commit, although the input offsets go to a group without members, which fences nobody (coordination.md, 6).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message

from runtime.commit.metadata import OffsetAndMetadata
from runtime.commit.refusals import Limits, Origin, Output, Refusals, is_about_the_record, is_about_the_topic
from runtime.commit.transactions import GroupMetadata, TransactionalProducer, classify, kafka_error, serve
from runtime.errors import BrokerUnavailableError, TransactionAbortedError
from runtime.ids import NextOffset, Partition
from runtime.record import Headers

POLL_SECONDS = 0.01
WATCHED_AT_ONCE = 64
"""Outputs in a batch of a transaction under watch: as many suspects there are if one is refused."""


class _Mark(NamedTuple):
    """An output as it is known again when its input record is processed again. (Not by its value, which may tell the time.)"""

    topic: str
    partition: int
    offset: int
    output: str
    key: bytes | None
    size: int

    @classmethod
    def of(cls, output: Output, origin: Origin) -> _Mark:
        return cls(origin.topic, origin.partition, origin.offset, output.topic, output.key, output.size)


class ExactlyOnce:
    """The transport of `processing.guarantee = exactly_once_v2`. Belongs to the worker's thread.

    `guard` gives the members' group metadata, or raises TaskMigratedError (rules.md, 23). `refusals` decides on records that are not
    taken; how those are found that the brokers refuse is told in `refusals.py`.
    """

    def __init__(
        self, transactions: TransactionalProducer, guard: Callable[[], GroupMetadata], guard_partition: Partition, refusals: Refusals
    ) -> None:
        self._transactions = transactions
        self._guard = guard
        self._guard_offset = {guard_partition: OffsetAndMetadata(0, "")}
        self._refusals = refusals
        self._ends: dict[Partition, NextOffset] = {}
        self._produce = transactions.producer.produce
        self._sent = False
        self._watching = False
        self._limits = Limits(refusals, transactions.flush)
        self._failed: list[tuple[Output, KafkaError, Origin]] = []
        """Outputs of the transaction under watch that were not taken; looked at after its abort."""
        self._suspects: set[_Mark] = set()
        """Outputs that were refused together with others."""
        self._left_out: dict[_Mark, KafkaException] = {}
        """Outputs that a handler has given up. These and the suspects are kept until their input records are committed."""
        self._in_batch = 0

    def start(self) -> None:
        """Initialises the transactional id; blocks until the broker answers."""
        self._transactions.init()

    def send(
        self, topic: str, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers | None, partition: int | None
    ) -> None:
        """Adds an output record to the transaction. Raises TransactionAbortedError, TaskMigratedError or ProductionError."""
        self._sent = True
        if self._watching:
            self._send_watched(Output(topic, key, value, timestamp, headers, partition))
            return
        number = -1 if partition is None else partition
        while True:
            try:
                # librdkafka reads timestamp 0 as "now", so the epoch itself is written as its first millisecond
                self._produce(topic, value, key, number, None, None, timestamp or 1, headers)  # type: ignore[arg-type]  # lists are invariant
                return
            except BufferError:
                serve(self._transactions.producer.poll, POLL_SECONDS)
            except KafkaException as error:
                self._refused(error, Output(topic, key, value, timestamp, headers, partition))
                return

    def send_changelog(self, partition: Partition, rows: list[tuple[bytes, bytes | None, int]], headers: Headers | None = None) -> None:
        """Adds changelog records; tombstones have no headers. The offset of the last one is learnt from its delivery report, so only that
        one has a callback."""
        if not rows:
            return
        self._sent = True
        topic, number = partition
        if self._watching:
            for key, value, timestamp in rows:
                self._send_watched(Output(topic, key, value, timestamp, None if value is None else headers, number), is_changelog=True)
            return
        produce = self._produce
        last = rows.pop()
        of_last = None if last[1] is None else headers
        for row in rows:
            if headers is not None:
                self.send(topic, row[0], row[1], row[2], None if row[1] is None else headers, number)
                continue
            try:
                produce(topic, row[1], row[0], number, None, None, row[2] or 1)
            except BufferError:
                self.send(topic, row[0], row[1], row[2], None, number)
            except KafkaException as error:
                self._refused(error, Output(topic, row[0], row[1], row[2], None, number))
        rows.append(last)
        while True:
            try:
                produce(topic, last[1], last[0], number, self._delivered, None, last[2] or 1, of_last)  # type: ignore[arg-type]  # as above
                return
            except BufferError:
                serve(self._transactions.producer.poll, POLL_SECONDS)
            except KafkaException as error:
                self._refused(error, Output(topic, last[0], last[1], last[2], of_last, number))
                return

    def _refused(self, error: KafkaException, output: Output) -> None:
        """The client did not take it. Returns if it is left out. Raises TransactionAbortedError where it is to be tried again."""
        inner = kafka_error(error)
        if inner.code() in (KafkaError._STATE, KafkaError._FENCED, KafkaError._FATAL) or inner.fatal() or inner.txn_requires_abort():
            raise classify(error) or TransactionAbortedError(inner.str()) from error
        if self._refusals.refused(output, error):
            raise TransactionAbortedError(f"an output to {output.topic} is tried again: {inner.str()}") from error

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        offset = message.offset()
        if error is None and offset is not None:
            self._ends[Partition(str(message.topic()), int(message.partition() or 0))] = NextOffset(offset + 1)

    # -- the watch -------------------------------------------------------------------------------------------------------------

    def _send_watched(self, output: Output, *, is_changelog: bool = False) -> None:
        origin = self._refusals.origin()
        mark = _Mark.of(output, origin)
        given_up = self._left_out.get(mark)
        if given_up is not None:
            self._refusals.left_out(output, given_up, origin)
            return
        too_large = self._limits.make_room(output)
        if too_large is not None:
            self._refused(too_large, output)
            return
        alone = mark in self._suspects
        if alone or self._in_batch >= WATCHED_AT_ONCE:
            self._transactions.flush()
            self._in_batch = 0
        self._in_batch += WATCHED_AT_ONCE if alone else 1
        report = partial(self._reported, output, origin, is_changelog)
        number = -1 if output.partition is None else output.partition
        while True:
            try:
                self._produce(output.topic, output.value, output.key, number, report, None, output.timestamp or 1, output.headers)  # type: ignore[arg-type]  # lists are invariant
                return
            except BufferError:
                serve(self._transactions.producer.poll, POLL_SECONDS)
            except KafkaException as error:
                self._refused(error, output)
                return

    def _reported(self, output: Output, origin: Origin, is_changelog: bool, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failed.append((output, error, origin))
        elif is_changelog:
            self._delivered(error, message)

    def _judge_failed(self) -> None:
        """What the watched transaction has shown. Raises ProductionError; TransactionAbortedError where the brokers cannot be asked."""
        too_large = {output.topic for output, error, _ in self._failed if error.code() == KafkaError.MSG_SIZE_TOO_LARGE}
        try:
            known = self._limits.learn(too_large)  # of the others it is known the next time which one of the batch it was
            while self._failed:
                output, error, origin = self._failed[-1]
                if output.topic in known if error.code() == KafkaError.MSG_SIZE_TOO_LARGE else self._stays(output, error):
                    self._judge(output, KafkaException(error), origin)
                self._failed.pop()
        except BrokerUnavailableError as unavailable:
            raise TransactionAbortedError(f"refused outputs cannot be judged yet: {unavailable}") from unavailable

    def _stays(self, output: Output, error: KafkaError) -> bool:
        return is_about_the_record(error) or (is_about_the_topic(error) and self._refusals.is_missing(output.topic))

    def _judge(self, output: Output, error: KafkaException, origin: Origin) -> None:
        mark = _Mark.of(output, origin)
        if mark not in self._suspects:
            self._suspects.add(mark)
        elif not self._refusals.judged(output, error, origin):
            self._left_out[mark] = error

    def _end_watch(self, offsets: Mapping[Partition, OffsetAndMetadata]) -> None:
        """What is committed will not come by again."""

        def is_done(mark: _Mark) -> bool:
            at = offsets.get(Partition(mark.topic, mark.partition))
            return mark.offset < 0 or (at is not None and at.offset > mark.offset)

        self._suspects = {mark for mark in self._suspects if not is_done(mark)}
        self._left_out = {mark: error for mark, error in self._left_out.items() if not is_done(mark)}
        self._watching = bool(self._suspects or self._left_out or self._limits)

    # -- the transaction -------------------------------------------------------------------------------------------------------

    def poll(self) -> None:
        """Serves delivery reports; once per batch, or the queue fills up."""
        serve(self._transactions.producer.poll, 0)

    def send_offsets(self, offsets: Mapping[Partition, OffsetAndMetadata]) -> None:
        """Adds input offsets to the open transaction, before its `commit`. Raises TransactionAbortedError or TaskMigratedError."""
        self._sent = True
        self._transactions.send_offsets(offsets)

    def commit(
        self, offsets: Mapping[Partition, OffsetAndMetadata], meanwhile: Sequence[Callable[[], None]] = ()
    ) -> Mapping[Partition, NextOffset]:
        """Flushes and commits, and begins anew. Returns the changelogs' next offsets. `meanwhile` is done while the broker works.

        Raises TransactionAbortedError (nothing of it is visible, `abort()` is due) or TaskMigratedError.
        """
        half = (len(meanwhile) + 1) // 2
        first, second = partial(_do, meanwhile[:half]), partial(_do, meanwhile[half:])
        # The guard goes first: it is refused if the group begins a new generation between these two, which costs a rollback.
        self._transactions.send_offsets(self._guard_offset, self._guard(), beside=first)
        if offsets:
            self._transactions.send_offsets(offsets, beside=second)  # answered while the outputs are still on their way
        else:
            second()
        self._transactions.flush()
        self._transactions.commit()
        self._sent = False
        ends, self._ends = self._ends, {}
        if self._watching:
            self._end_watch(offsets)
        return ends

    @property
    def pending(self) -> bool:
        """True if something was sent since the last commit or abort."""
        return self._sent

    def abort(self) -> None:
        """Rolls back what was sent since the last commit; what is processed next is watched. Raises TaskMigratedError, and
        ProductionError or TransactionAbortedError (call it again then) about what the watch has found."""
        self._transactions.abort()
        self.poll()
        self._ends.clear()  # after the last reports of what was aborted
        self._sent = False
        self._watching = True
        self._judge_failed()

    def close(self) -> None:
        self._transactions.close()


def _do(steps: Sequence[Callable[[], None]]) -> None:
    for step in steps:
        step()
