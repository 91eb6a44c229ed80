"""A transactional producer whose calls succeed, abort the transaction, or lose the producer.

librdkafka reports errors of transactions in a dozen codes. The engine has three reactions to them (rules.md, 10):

    fatal (`_FENCED`, `_FATAL`, or `fatal()`)      fenced, or the broker timed the transaction out, which cannot be distinguished:
                                                   TaskMigratedError: discard the producer, start a new incarnation.
    `txn_requires_abort()`                         TransactionAbortedError: abort, return to the last commit, process again.
    the call does not return                       as fatal (`CallThread`).
    `retriable()`                                  the broker is down or busy: repeat the call until it answers or the worker gives up.

All other errors require an abort too: after a commit with an unknown result there must not be another one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from queue import SimpleQueue
from typing import TypeVar

from confluent_kafka import KafkaException, Producer
from confluent_kafka import TopicPartition as ClientPartition

from penstock.runtime.kafka.clients import transactional_producer
from penstock.runtime.kafka.failures import Meaning, kafka_error, meaning, producer_failure
from penstock.runtime.kafka.producer import RecordProducer
from penstock.runtime.model.errors import StreamsConfigError, StreamsError, TaskMigratedError, TransactionAbortedError
from penstock.runtime.model.ids import TopicPartition
from penstock.runtime.model.offsets import OffsetAndMetadata

logger = logging.getLogger(__name__)

RETRY_SECONDS = 0.02
"""Pause before a call is made again, as in the Java client (`retry.backoff.ms` of CONCURRENT_TRANSACTIONS)."""
WORTH_A_LINE_SECONDS = 1.0
CALL_SECONDS = 2.0
"""Time-out of one call. A retriable time-out is followed by the same call, so this only limits how soon a stop is noticed."""
CLOSE_SECONDS = 2.0
HUNG_SECONDS = CALL_SECONDS + 5.0
"""A call that exceeds its own time-out of `CALL_SECONDS` by this much is taken to hang (`CallThread`)."""
_ADDING_SECONDS = HUNG_SECONDS + CALL_SECONDS
"""The same of two calls."""
FLUSH_SLICE_SECONDS = 0.01
"""Time after which a flush beside another call notices that this has failed: then the records may never be sent."""
CONNECT_SECONDS = 1.0
"""Longest wait for a connection before the coordinator is requested."""
CONNECTING_SECONDS = 0.005
FENCE_SECONDS = (0.1, 0.1, 0.1, 0.1, 0.1, 30.0)
"""Time-outs of the attempts at fencing, one of which makes the broker abort an open transaction. If the coordinator is not ready at once,
librdkafka retries after half a second, while a new client retries at once (0.2 s instead of 0.6 to 1)."""


class GroupMetadata:
    """Type of confluent-kafka's opaque `ConsumerGroupMetadata`, which it does not export."""


Result = TypeVar("Result")


class HungError(Exception):
    """A call into librdkafka did not return in time, and never may."""


class CallThread:
    """A thread for calls into librdkafka that may never return, made one at a time. Used by one other thread.

    In librdkafka 2.16.0, `send_offsets_to_transaction` ignores its time-out if the broker stops during the call: it had not returned after
    60 s, although the broker was back. A worker that waits for it would hang forever. So a call that does not return in time is abandoned
    with its thread and its producer, and the worker continues with new ones. A call through the thread costs some 50 µs more, three or four
    times per commit.
    """

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.hung = False
        """True after a call that did not return in time; no further call is made."""
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()

    def call(self, function: Callable[[], Result], seconds: float) -> Result:
        """Call `function` on the thread; return its result or raise its exception. Raises HungError if it does not return within `seconds`,
        and immediately for later calls."""
        return self.result(self._put(function)[0], seconds)

    def begin(self, function: Callable[[], Result], seconds: float) -> Future[Result]:
        """Begin a call, for `result`; without that, the next call waits for it. Raises HungError after a call that did not return in
        time."""
        future, begun = self._put(function)
        begun.wait(seconds)  # otherwise the GIL would let the other thread start only after up to 5 ms of computing here
        return future

    def result(self, future: Future[Result], seconds: float) -> Result:
        """Return the result of a call that was begun, as `call` does."""
        try:
            return future.result(seconds)
        except FutureTimeoutError:
            if future.done():  # the function itself raised it
                raise
            self.hung = True
            raise HungError from None

    def _put(self, function: Callable[[], Result]) -> tuple[Future[Result], threading.Event]:
        if self.hung:
            raise HungError
        future: Future[Result] = Future()
        begun = threading.Event()

        def run() -> None:
            begun.set()
            try:
                result = function()
            except BaseException as error:  # noqa: BLE001 (it is the caller's)
                future.set_exception(error)
            else:
                future.set_result(result)

        self._calls.put(run)
        return future, begun

    def close(self) -> None:
        """End the thread, unless it hangs."""
        self._calls.put(None)


class _Adding:
    """Adds offsets of one group after the other to a transaction. Called again after an error, it begins with those that were refused."""

    def __init__(self, client: Producer, left: list[tuple[Mapping[TopicPartition, OffsetAndMetadata], GroupMetadata, str]]) -> None:
        """`left`: offsets, group, and the right that they need, for errors."""
        self._client = client
        self.left = left

    def __call__(self) -> None:
        while self.left:
            offsets, group, _ = self.left[0]
            self._client.send_offsets_to_transaction(_positions(offsets), group, CALL_SECONDS)
            del self.left[0]


class TransactionalProducer:
    """Transactions of one incarnation of a worker.

    `give_up()` is called between attempts while the broker does not answer. `group`: metadata of the application's group, which has no
    members and is used for offsets if no other group is given; it never changes. `group_id`: its name, for messages. `topic`: one that
    exists (`connect`).
    """

    def __init__(
        self,
        properties: Mapping[str, object],
        transactional_id: str,
        group: GroupMetadata | None,
        give_up: Callable[[], bool],
        topic: str | None = None,
        group_id: str = "",
    ) -> None:
        self._client = transactional_producer(properties, transactional_id)
        self.producer = RecordProducer(self._client)
        self._transactional_id = transactional_id
        self._needs = f"Write on transactional-id {transactional_id}"
        self._needs_of_group = f"Read on group {group_id}" if group_id else ""
        self._topic = topic
        self._group = group
        self._give_up = give_up
        self._open = False
        self._calls = CallThread(f"transactions of {transactional_id}")
        self._adding: _Adding | None = None
        self._begun: Future[None] | None = None

    def init(self) -> None:
        """Register the id with the broker, which aborts an open transaction of its previous user. Call it once, before anything else.
        Raises StreamsConfigError if the configured transaction time-out exceeds the brokers' limit."""
        try:
            self._until_answered(self._initialised)
        except TaskMigratedError as error:
            refused = error.__cause__
            if Meaning.TIMEOUT_TOO_LONG in meaning(refused):
                raise StreamsConfigError(
                    "transaction.timeout.ms, which is longer than commit.interval.ms, is more than the brokers allow "
                    "(max.transaction.timeout.ms): make the two shorter, or the brokers' limit longer"
                ) from refused
            raise
        self.begin()

    def _initialised(self) -> None:
        connect(self._client, self._topic)
        self._client.init_transactions(CALL_SECONDS)

    def begin(self) -> None:
        if not self._open:
            self._until_answered(self._client.begin_transaction)
            self._open = True

    def send_offsets(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group: GroupMetadata | None = None,
    ) -> None:
        """Add offsets to the transaction, of the application's group, which has no members, or of another one."""
        metadata = self._group if group is None else group
        assert metadata is not None
        needs = self._needs_of_group if group is None else ""
        positions = _positions(offsets)
        self._until_answered(lambda: self._client.send_offsets_to_transaction(positions, metadata, CALL_SECONDS), lambda: needs)

    def begin_offsets(
        self,
        guard_offset: Mapping[TopicPartition, OffsetAndMetadata],
        guard: GroupMetadata,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
    ) -> None:
        """Begin to add the guard's offset, then offsets of the application's group, if there are any: `end_offsets` waits for it. Raises
        TaskMigratedError."""
        self._adding = adding = _Adding(self._client, [(guard_offset, guard, "")])
        if offsets:
            assert self._group is not None
            adding.left.append((offsets, self._group, self._needs_of_group))
        try:
            self._begun = self._calls.begin(adding, _ADDING_SECONDS)
        except HungError:
            raise self._hung() from None

    def end_offsets(self, beside: Callable[[], None]) -> None:
        """Wait until the offsets are added that `begin_offsets` has begun with. Meanwhile `beside` runs, and what is queued is sent: a
        client waits `linger.ms` before it sends records, but not during a flush."""
        adding, begun = self._adding, self._begun
        assert adding is not None and begun is not None
        self._adding = self._begun = None
        beside()
        until = time.monotonic() + _ADDING_SECONDS
        while self.producer.flush(FLUSH_SLICE_SECONDS) and not begun.done() and time.monotonic() < until:
            pass
        self._until_answered(adding, lambda: adding.left[0][2], _ADDING_SECONDS, (begun, until))

    def flush(self) -> int:
        """Serve delivery reports; return the number of undelivered records. It has a time-out, because a failed transaction is reported
        only by the commit."""
        return self.producer.flush(CALL_SECONDS)

    def commit(self) -> None:
        """Commit the transaction and begin the next one. Raises TaskMigratedError if the next one fails to begin: the commit holds then."""
        self._until_answered(lambda: self._client.commit_transaction(CALL_SECONDS))
        self._open = False
        try:
            self.producer.poll()
            self.begin()
        except TransactionAbortedError as error:
            raise TaskMigratedError(f"the transaction is committed, but the next cannot begin: {error}") from error

    def abort(self) -> None:
        """Abort the transaction and begin the next one. Raises TaskMigratedError if the producer cannot be used any more."""
        try:
            self._until_answered(lambda: self._client.abort_transaction(CALL_SECONDS))
        except TransactionAbortedError as error:
            raise TaskMigratedError(f"the transaction could not be aborted: {error}") from error
        self._open = False
        self.begin()

    def _until_answered(
        self,
        call: Callable[[], Result],
        needs: Callable[[], str] = str,
        seconds: float = HUNG_SECONDS,
        begun: tuple[Future[Result], float] | None = None,
    ) -> Result:
        """Return the call's result. `needs` returns a right that it needs beside that on the transactional id, for the error. `seconds`:
        after this time it is taken to hang. `begun`: the first call, and when it is taken to hang."""
        since, warned = time.monotonic(), False
        while True:
            try:
                if begun is not None:
                    (first, until), begun = begun, None
                    return self._calls.result(first, max(0.0, until - time.monotonic()))
                return self._calls.call(call, seconds)
            except HungError:
                raise self._hung() from None
            except KafkaException as error:
                failure = producer_failure(error, self._needs, needs())
                if failure is not None:
                    raise failure from error
                if self._give_up():
                    raise TaskMigratedError(f"gave up on {self._transactional_id}: {kafka_error(error).str()}") from error
                waited = time.monotonic() - since
                if waited >= WORTH_A_LINE_SECONDS and not warned:
                    text = "%s: no answer yet, after %.0f s; still trying: %s"
                    logger.warning(text, self._transactional_id, waited, kafka_error(error).str())
                    warned = True
                # It may be refused at once, and again, while the markers of the transaction before are written to many partitions.
                time.sleep(RETRY_SECONDS)

    def _hung(self) -> TaskMigratedError:
        return TaskMigratedError(f"the client of {self._transactional_id} does not return from a call: it is replaced")

    def close(self) -> None:
        """Discard unsent records and abort the transaction, so that consumers need not wait for its time-out. Never raises."""
        if self._calls.hung:
            return
        if self._open:
            try:
                self._calls.call(lambda: self._client.abort_transaction(CLOSE_SECONDS), HUNG_SECONDS)
            except HungError:
                return
            except KafkaException as error:  # fenced, or the broker is away: then the next user of the id or the time-out ends it
                logger.info("%s: not aborted at close: %s", self._transactional_id, kafka_error(error).str())
            self._open = False
        self._calls.close()
        self.producer.drop()


def _positions(offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> list[ClientPartition]:
    return [ClientPartition(topic, number, at.offset, at.metadata) for (topic, number), at in offsets.items()]


def connect(client: Producer, topic: str | None) -> None:
    """Wait until a new client has a connection beyond the first contact by `bootstrap.servers`. Otherwise librdkafka's first request for
    the coordinator may fail, and the next one follows after half a second. Requests the metadata of a topic that exists: those of all
    topics are megabytes in a large cluster. Never raises: the initialisation reports what is wrong."""
    until = time.monotonic() + CONNECT_SECONDS
    with suppress(KafkaException):
        while topic is not None and (left := until - time.monotonic()) > 0:
            if client.list_topics(topic, left).orig_broker_id >= 0:
                return
            time.sleep(CONNECTING_SECONDS)


def fence(properties: Mapping[str, object], transactional_id: str, topic: str | None = None) -> None:
    """Fence a transactional id: abort its open transaction and keep its user from writing. `topic`: as for `connect`. Raises
    StreamsError."""
    for patience in FENCE_SECONDS:
        client = transactional_producer(properties, transactional_id)
        connect(client, topic)
        try:
            client.init_transactions(patience)
        except KafkaException as error:
            inner, failed = kafka_error(error), error
            if not inner.retriable():
                break
        else:
            return
    raise StreamsError(f"{transactional_id} cannot be initialised: {inner.str()}") from failed
