"""The transport for exactly_once_v2: outputs, changelog records, events and input offsets of all tasks of a worker in one transaction
(KIP-447).

Each transaction also commits a token offset to the members' group, with that group's metadata. A worker that the group has dropped cannot
commit: the group of the input offsets has no members, so it fences no worker (coordination.md, 6).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from penstock.runtime.commit.refusals import Limits, Origin, Output, Refusals, is_about_a_limit, is_about_the_record, is_about_the_topic
from penstock.runtime.kafka.failures import text_of
from penstock.runtime.kafka.messages import Message
from penstock.runtime.kafka.producer import NOT_PRODUCED, NotTakenError, Report, delivery_report
from penstock.runtime.kafka.transactions import GroupMetadata, TransactionalProducer
from penstock.runtime.model.errors import BrokerUnavailableError, ProductionError, TransactionAbortedError
from penstock.runtime.model.ids import NextOffset, TopicPartition
from penstock.runtime.model.offsets import OffsetAndMetadata
from penstock.runtime.model.record import Headers
from penstock.runtime.stores.base import ChangelogRecord

WATCHED_AT_ONCE = 64
"""Outputs in a batch of a watched transaction: if one is refused, all of them are suspects."""


class _Mark(NamedTuple):
    """Identity of an output across a replay: its number among the outputs of its input record to the topic. It excludes key and value,
    which may contain the current time or random data. A punctuator may write another output the next time, so there the key is included."""

    topic: str
    partition: int
    offset: int
    output: str
    number: int
    punctuated: bool
    key: bytes | None


class ExactlyOnce:
    """The transport of `processing.guarantee = exactly_once_v2`. Used by the worker's thread only.

    `guard` returns the members' group metadata, or raises TaskMigratedError (rules.md, 23). `refusals` decides about refused records;
    `refusals.py` describes how those are found that the brokers refuse.
    """

    def __init__(
        self, transactions: TransactionalProducer, guard: Callable[[], GroupMetadata], guard_partition: TopicPartition, refusals: Refusals
    ) -> None:
        self._transactions = transactions
        self._guard = guard
        self._guard_offset = {guard_partition: OffsetAndMetadata(0, "")}
        self._refusals = refusals
        self._ends: dict[TopicPartition, NextOffset] = {}
        self._producer = transactions.producer
        self._produce = transactions.producer.produce
        self._begun = False
        """True between `begin_commit` and `commit`."""
        self._sent = False
        """True if something else than outputs was sent since the last commit or abort."""
        self.outputs = 0
        self._watching = False
        self._limits = Limits(refusals, transactions.flush)
        self._failed: list[tuple[Output, Exception, Origin, _Mark]] = []
        """Refused outputs of the watched transaction; decided after its abort."""
        self._suspects: set[_Mark] = set()
        """Outputs that were refused together with others."""
        self._left_out: dict[_Mark, Exception] = {}
        """Outputs that a handler leaves out. These and the suspects are kept until their input records are committed."""
        self._in_batch = 0
        self._numbers: Counter[tuple[str, int, int, str]] = Counter()
        """Number of outputs of the watched transaction by input record and topic."""
        self._punctuated = False
        """True if the watched transaction has outputs of punctuators."""
        self._singly = False
        """True after outputs of punctuators were refused together with others: the next ones are each sent alone."""

    def start(self) -> None:
        """Initialise the transactional id; blocks until the broker answers."""
        self._transactions.init()

    def send(
        self, topic: str, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers | None, partition: int | None
    ) -> None:
        """Add an output record to the transaction. Raises TransactionAbortedError, TaskMigratedError or ProductionError."""
        self.outputs += 1
        if self._watching:
            self._send_watched(Output(topic, key, value, timestamp, headers, partition))
            return
        try:
            # librdkafka reads timestamp 0 as "now", so timestamp 0 is written as 1
            self._produce(topic, value, key, -1 if partition is None else partition, None, None, timestamp or 1, headers)  # type: ignore[arg-type]  # lists are invariant
        except NOT_PRODUCED:
            self._send(Output(topic, key, value, timestamp, headers, partition), None)

    def _send(self, output: Output, report: Report | None) -> None:
        """Produce an output, waiting while the client's queue is full. Returns also if the output is left out. Raises as `send`."""
        try:
            self._producer.send(*output, report)
        except NotTakenError as refused:
            self._refused(output, refused.error)

    def send_changelog(self, partition: TopicPartition, rows: list[ChangelogRecord], headers: Headers | None = None) -> None:
        """Add changelog records; tombstones have no headers. Only the last one has a delivery report, which gives the offset."""
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
            try:
                produce(topic, row[1], row[0], number, None, None, row[2] or 1, None if row[1] is None else headers)  # type: ignore[arg-type]  # as above
            except NOT_PRODUCED:
                self._send(Output(topic, row[0], row[1], row[2], None if row[1] is None else headers, number), None)
        rows.append(last)
        self._send(Output(topic, *last, of_last, number), delivery_report(self._taken, None))

    def _refused(self, output: Output, error: Exception) -> None:
        """Handle an output that the client refused. Returns if it is left out. Raises TransactionAbortedError if it is to be tried
        again."""
        if self._refusals.refused(output, error):
            raise TransactionAbortedError(f"an output to {output.topic} is tried again: {text_of(error)}") from error

    def _taken(self, message: Message) -> None:
        offset = message.offset()
        if offset is not None:
            self._ends[TopicPartition(str(message.topic()), int(message.partition() or 0))] = NextOffset(offset + 1)

    # -- the watch -------------------------------------------------------------------------------------------------------------

    def _send_watched(self, output: Output, *, is_changelog: bool = False) -> None:
        origin = self._refusals.origin()
        mark = self._mark(output, origin)
        given_up = self._left_out.get(mark)
        if given_up is not None:
            self._refusals.left_out(output, given_up, origin)
            return
        beyond = self._limits.make_room(output)
        if beyond is not None:
            self._refused(output, beyond)
            if origin.offset >= 0:  # do not ask the handler again if this transaction is rolled back for another reason
                self._left_out[mark] = beyond
            return
        alone = mark in self._suspects or (origin.punctuated and self._singly)
        if alone or self._in_batch >= WATCHED_AT_ONCE:
            self._transactions.flush()
            self._in_batch = 0
        self._in_batch += WATCHED_AT_ONCE if alone else 1
        refused = partial(self._watched_refused, output, origin, mark)
        self._send(output, delivery_report(self._taken if is_changelog else None, refused))

    def _mark(self, output: Output, origin: Origin) -> _Mark:
        place = (origin.topic, origin.partition, origin.offset, output.topic)
        number = self._numbers[place] = self._numbers[place] + 1
        self._punctuated |= origin.punctuated
        return _Mark(*place, number, origin.punctuated, output.key if origin.punctuated else None)

    def _watched_refused(self, output: Output, origin: Origin, mark: _Mark, error: Exception, _message: Message) -> None:
        self._failed.append((output, error, origin, mark))

    def _decide_failed(self) -> None:
        """Decide about the refused outputs of the watched transaction. Raises ProductionError; TransactionAbortedError where the brokers do
        not answer."""
        limited = {output.topic for output, error, _, _ in self._failed if is_about_a_limit(error)}
        singly = self._singly
        try:
            known = self._limits.learn(limited)  # for the others, the next watched transaction shows which record of the batch it was
            while self._failed:
                output, error, origin, mark = self._failed[-1]
                if output.topic in known if is_about_a_limit(error) else self._stays(output, error):
                    if origin.punctuated and not singly:
                        self._singly = True
                    else:
                        self._ask_handler(output, error, origin, mark)
                self._failed.pop()
        except ProductionError:
            self._failed.clear()  # the worker stops and aborts once more: ask the handler once
            raise
        except BrokerUnavailableError as unavailable:
            raise TransactionAbortedError(f"refused outputs cannot be decided yet: {unavailable}") from unavailable

    def _stays(self, output: Output, error: Exception) -> bool:
        return is_about_the_record(error) or (is_about_the_topic(error) and self._refusals.is_missing(output.topic))

    def _ask_handler(self, output: Output, error: Exception, origin: Origin, mark: _Mark) -> None:
        if self._refusals.needs_search(origin):
            return  # it will be found, and suspected, in a smaller commit
        if mark not in self._suspects and not origin.punctuated:
            self._suspects.add(mark)
        elif not self._refusals.decide(output, error, origin):
            self._left_out[mark] = error

    def _end_watch(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Drop suspects and left-out outputs whose input records are committed."""

        def is_done(mark: _Mark) -> bool:
            if mark.punctuated:
                return self._punctuated
            at = offsets.get(TopicPartition(mark.topic, mark.partition))
            return mark.offset < 0 or (at is not None and at.offset > mark.offset)

        self._suspects = {mark for mark in self._suspects if not is_done(mark)}
        self._left_out = {mark: error for mark, error in self._left_out.items() if not is_done(mark)}
        self._watching = bool(self._suspects or self._left_out or self._limits) or not self._refusals.is_replayed
        self._singly &= not self._punctuated
        self._begin_watched()

    def _begin_watched(self) -> None:
        """Drop the outputs of the watched transaction."""
        self._numbers.clear()
        self._punctuated = False

    def watch(self) -> None:
        """Watch everything up to the next commit; nothing was sent yet."""
        self._watching = True

    # -- the transaction -------------------------------------------------------------------------------------------------------

    def poll(self) -> None:
        """Serve delivery reports; once per batch, or the queue fills up."""
        self._producer.poll()

    def send_offsets(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Add input offsets to the open transaction, before its `commit`. Raises TransactionAbortedError or TaskMigratedError."""
        self._sent = True
        self._transactions.send_offsets(offsets)

    def begin_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Begin to add the guard and these offsets to the transaction: the brokers answer while the changelogs are written."""
        # The guard goes first: it is refused if the group begins a new generation between these two, which costs a rollback.
        self._transactions.begin_offsets(self._guard_offset, self._guard(), offsets)
        self._begun = True

    def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], meanwhile: Sequence[Callable[[], None]] = ()
    ) -> Mapping[TopicPartition, NextOffset]:
        """Flush and commit, and begin the next transaction. Return the changelogs' next offsets. The steps of `meanwhile` run while the
        broker works.

        Raises TransactionAbortedError (no part is visible; call `abort()`) or TaskMigratedError.
        """
        if not self._begun:
            self.begin_commit(offsets)
        self._begun = False
        self._transactions.end_offsets(partial(_do, meanwhile))
        self._transactions.flush()
        self._transactions.commit()
        self._sent, self.outputs = False, 0
        ends, self._ends = self._ends, {}
        if self._watching:
            self._end_watch(offsets)
        return ends

    @property
    def pending(self) -> bool:
        """True if something was sent since the last commit or abort."""
        return self._sent or self.outputs > 0

    def abort(self) -> None:
        """Roll back everything sent since the last commit, and watch what is processed next. Raises TaskMigratedError, and ProductionError
        or TransactionAbortedError (call it again then) for refused outputs."""
        self._begun = False
        self._transactions.abort()
        self.poll()
        self._ends.clear()  # after the last delivery reports of the aborted records
        self._sent, self.outputs = False, 0
        self._watching = True
        self._begin_watched()
        self._decide_failed()

    def close(self) -> None:
        self._transactions.close()


def _do(steps: Sequence[Callable[[], None]]) -> None:
    for step in steps:
        step()
