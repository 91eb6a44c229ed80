"""Outputs that are not taken: who decides about them, and how they are found.

The client refuses some records at once (too large for `message.max.bytes`); then the record, its node and the input record behind it are
known. What the *brokers* refuse is known later. Under exactly-once most records are sent without a delivery report, which would cost a
third of the speed; one that is refused breaks the transaction, and the commit fails without a word about which record it was. Doing the
same again would fail for ever.

The way taken: after an abort the worker processes the same input again, and this time *watches*: every output has a delivery report
that knows the input record behind it. A broker refuses whole batches, good records with the bad, so batches are small now, and all of
one that is refused are suspects: the next time each of them is a batch of its own. One that is refused alone is put before the production
exception handler: FAIL ends the client and names it, CONTINUE leaves it out when the input comes by once more. The watch ends with the
commit of that input.

Size is the exception, because there good records alone may make a batch that is too large. Once a topic has refused for size, its
`max.message.bytes` is asked for and kept: a record above it (as sent, before compression) is refused by the worker itself, and batches
to this topic are kept below it.

At-least-once has one report for all its outputs, which notices a refusal and knows no input record; there, too, the worker then goes back
to the last commit and watches from then on. What is refused under that watch is sent again alone, without going back.

Rejected: a callback for every record always (speed); a limit in the client (the topic's is what counts, and may change).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from confluent_kafka import KafkaError, KafkaException

from runtime.errors import SerializationError
from runtime.ids import TaskId
from runtime.intake.verdict import Batch
from runtime.record import Headers

RECORD_BYTES, BATCH_BYTES = 32, 128
"""What a record and a batch take besides keys, values and headers, at most about."""

_OF_A_RECORD = {
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_RECORD,
    KafkaError.INVALID_TIMESTAMP,
    KafkaError.POLICY_VIOLATION,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    KafkaError._UNKNOWN_PARTITION,
}
_OF_A_TOPIC = {KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._MSG_TIMED_OUT}
"""What is told of a topic that does not exist, and also of one whose broker is away."""


class Output(NamedTuple):
    """One output record; a partition of None is chosen by the key."""

    topic: str
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Headers | None
    partition: int | None

    @property
    def size(self) -> int:
        """Bytes of key, value and headers, and a little for the rest."""
        headers = sum(len(name) + len(data or b"") for name, data in self.headers or ())
        return len(self.key or b"") + len(self.value or b"") + headers + RECORD_BYTES


class Origin(NamedTuple):
    """The input record that an output came from. Offset -1: none (a punctuator, a cache, an event); then only the task says something."""

    task: TaskId | None
    topic: str
    partition: int
    offset: int
    headers: Headers | None
    batch: Batch | None
    """Where the record's raw bytes are."""


class Refusals(Protocol):
    """Whom a transport asks about records that are not taken."""

    def origin(self) -> Origin:
        """The record that is being processed now."""

    def refused(self, output: Output, error: Exception, origin: Origin | None = None) -> bool:
        """True: try it again after a pause; False: go on without it, and all that follows from that is done. Without `origin`: of the
        record that is being processed. Raises ProductionError where the client is to stop."""

    def judged(self, output: Output, error: Exception, origin: Origin) -> bool:
        """As `refused`, but nothing follows yet: `left_out` does when the record comes by again."""

    def left_out(self, output: Output, error: Exception, origin: Origin) -> None:
        """The output is left out now: counted, and its input record kept in the dead-letter topic."""

    def unwritable(
        self, topic: str, key: object, value: object, timestamp: int, headers: Headers | None, error: SerializationError
    ) -> None:
        """A serde cannot write an output of the record that is being processed: it is left out if this returns, and all that follows from
        that is done. Raises ProductionError where the client is to stop."""

    def where(self, output: Output, origin: Origin | None = None) -> str:
        """Task, node, input record and output, in words."""

    def limit(self, topic: str) -> int:
        """`max.message.bytes` of a topic. Raises BrokerUnavailableError."""

    def is_missing(self, topic: str) -> bool:
        """True if there is no such topic and the brokers make none. Raises BrokerUnavailableError."""


def is_about_the_record(error: KafkaError) -> bool:
    """True if sending the same record again would fail again."""
    return error.code() in _OF_A_RECORD


def is_permanent(error: Exception) -> bool:
    """True if an output can never be taken, as far as its error tells."""
    return isinstance(error, KafkaException) and is_about_the_record(error.args[0])


def is_about_the_topic(error: KafkaError) -> bool:
    """True if the topic may not exist."""
    return error.code() in _OF_A_TOPIC


class Limits:
    """The topics that have refused records for their size, and how much of a batch to each has been filled."""

    def __init__(self, refusals: Refusals, flush: Callable[[], object]) -> None:
        self._refusals = refusals
        self._flush = flush
        self._limits: dict[str, int] = {}
        self._filled: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._limits)

    def learn(self, topics: Iterable[str]) -> set[str]:
        """These topics have refused batches for their size. Returned are those whose limit was known: there it was not the batch's size.
        Raises BrokerUnavailableError."""
        limits = {topic: self._refusals.limit(topic) for topic in topics}
        known = {topic for topic, limit in limits.items() if self._limits.get(topic) == limit}
        self._limits |= limits
        return known

    def make_room(self, output: Output) -> KafkaException | None:
        """Sees to it that the output's batch is not too large; the error, if the output alone is."""
        limit = self._limits.get(output.topic)
        if limit is None:
            return None
        size = output.size
        if size + BATCH_BYTES > limit:
            text = f"{size} bytes are more than max.message.bytes of topic {output.topic}, {limit}"
            return KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE, text))
        filled = self._filled.get(output.topic, BATCH_BYTES) + size
        if filled > limit:
            self._flush()
            filled = BATCH_BYTES + size
        self._filled[output.topic] = filled
        return None
