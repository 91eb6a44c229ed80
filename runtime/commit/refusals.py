"""Refused outputs: how they are found, and who decides about them.

The client refuses some records at once (larger than `message.max.bytes`). Then the record, its node and the input record behind it are
known. A refusal by the *brokers* arrives later. Under exactly-once most records are sent without a delivery report, which would cost a
third of the throughput. A refused record aborts the transaction, and the commit fails without naming the record. The same again would fail
forever.

So after an abort the worker processes the same input again and *watches*: every output has a delivery report that knows its input record. A
broker refuses whole batches, good records with the bad one, so watched batches are small. All records of a refused batch are suspects, and
the next time each of them is sent in a batch of its own. The production exception handler decides about a record that is refused alone:
FAIL stops the client with an error that names it, CONTINUE leaves it out when its input is processed again. The watch ends with the commit
of all that input; other tasks may commit before.

Size and timestamp limits are an exception. Good records alone may fill a batch that is too large, and punctuators do not write their
outputs again. Once a topic has refused a record for a limit, its `max.message.bytes` and `message.timestamp.*.max.ms` are read and kept.
The worker itself then refuses a record beyond them (by its size before compression), and keeps batches to this topic below the size.

Records written at a commit come from many input records: a changelog record folds all updates of its key, a cache forwards the result of
many. When such an output is refused, the same input is processed again in smaller commits, until the failing commit holds one record
(`runtime/tasks/culprits.py`). Only then is the handler asked. An output to an internal topic of the application is not left out alone,
since the stores would not match it: CONTINUE skips its input record, and PAUSE pauses before it.

Outputs of punctuators have no input record, and a rollback does not repeat them: a punctuator runs when it is due, with the state of that
moment. So once a commit with work of punctuators was rolled back, punctuators have commits of their own, which are always watched. The
handler is asked about an output refused there as about a punctuator's.

At-least-once has one report for all its outputs, which notices a refusal but knows no input record. There, too, the worker rolls back to
the last commit and watches from then on. An output refused under that watch is sent again alone, without a rollback.

Rejected: a callback for every record always (speed); a limit in the client (the topic's is what counts, and may change).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from penstock.runtime.input.deserialization import Batch
from penstock.runtime.kafka.failures import Meaning, bad_timestamp, meaning, too_large
from penstock.runtime.model.errors import BrokerUnavailableError, SerializationError, TransactionAbortedError
from penstock.runtime.model.ids import TaskId
from penstock.runtime.model.record import Headers

RECORD_BYTES, BATCH_BYTES = 32, 128
"""Upper estimate of a record's and a batch's overhead beside keys, values and headers."""
BROKERS_LIMIT = 1_048_588
"""Default limit of a broker for one batch."""
ANY_MS = 2**63 - 1
SKEW_MS = 60_000
"""Possible difference between the brokers' clocks and this one: a timestamp beyond a limit by less is left to the brokers."""


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
        """Bytes of key, value and headers, plus `RECORD_BYTES`."""
        headers = sum(len(name) + len(data or b"") for name, data in self.headers or ())
        return len(self.key or b"") + len(self.value or b"") + headers + RECORD_BYTES


class Origin(NamedTuple):
    """The input record behind an output. Offset -1: none (a punctuator, a cache, an event); then only the task is known."""

    task: TaskId | None
    topic: str
    partition: int
    offset: int
    headers: Headers | None
    batch: Batch | None
    """The batch with the record's raw bytes."""
    punctuated: bool = False
    """True for an output of a punctuator: there is no input record to look for."""


class TopicLimits(NamedTuple):
    """Size and timestamp limits of a topic, from its configuration."""

    size: int
    before_ms: int
    after_ms: int

    @classmethod
    def of(cls, config: Mapping[str, str]) -> TopicLimits:
        size = int(config.get("max.message.bytes", BROKERS_LIMIT))
        if config.get("message.timestamp.type") == "LogAppendTime":
            return cls(size, ANY_MS, ANY_MS)
        before, after = (int(config.get(f"message.timestamp.{side}.max.ms", ANY_MS)) for side in ("before", "after"))
        return cls(size, before, after)

    def error(self, topic: str, size: int, ahead_ms: int) -> Exception | None:
        """Return why a record of this size and timestamp (ms ahead of now) will be refused; None if it may be accepted."""
        if size + BATCH_BYTES > self.size:
            return too_large(f"{size} bytes are more than max.message.bytes of topic {topic}, {self.size}")
        for side, far_ms, most_ms in (("after", ahead_ms, self.after_ms), ("before", -ahead_ms, self.before_ms)):
            if far_ms - SKEW_MS > most_ms:
                return bad_timestamp(
                    f"its time is {far_ms} ms {side} now, more than message.timestamp.{side}.max.ms of topic {topic}, {most_ms}"
                )
        return None


class Refusals(Protocol):
    """Decisions about refused records, as a transport asks for them."""

    def origin(self) -> Origin:
        """Return the record that is being processed."""

    @property
    def is_replayed(self) -> bool:
        """True if everything that was rolled back has been processed again and committed."""

    def refused(self, output: Output, error: Exception, origin: Origin | None = None) -> bool:
        """Decide about a refused output, and apply the decision. Return True to try it again after a pause, False to continue without it.
        Without `origin`: of the record that is being processed. Raises ProductionError to stop the client."""

    def needs_search(self, origin: Origin) -> bool:
        """Return True if the record behind a refused output is unknown, and processing the same input again in smaller commits will reveal
        it."""

    def decide(self, output: Output, error: Exception, origin: Origin) -> bool:
        """Decide as `refused` does, but without the effects; `left_out` has them when the record is processed again."""

    def left_out(self, output: Output, error: Exception, origin: Origin) -> None:
        """Count an output that is left out now, and write its input record to the dead-letter topic."""

    def unwritable(
        self, topic: str, key: object, value: object, timestamp: int, headers: Headers | None, error: SerializationError
    ) -> None:
        """Decide about an output of the current record that a serde cannot write. Returns if the output is left out, after the effects of
        that. Raises ProductionError to stop the client."""

    def where(self, output: Output, origin: Origin | None = None) -> str:
        """Describe task, node, input record and output for a message."""

    def limits(self, topic: str) -> TopicLimits:
        """Return the size and timestamp limits of a topic. Raises BrokerUnavailableError."""

    def is_missing(self, topic: str) -> bool:
        """Return True if the topic does not exist and the brokers do not create it. Raises BrokerUnavailableError."""


def is_about_the_record(error: Exception) -> bool:
    """Return True if the error says that the output can never be accepted: sending it again would fail again."""
    return Meaning.RECORD in meaning(error)


def is_about_the_time(error: Exception) -> bool:
    """Return True if an output was refused for its timestamp."""
    return Meaning.TIMESTAMP in meaning(error)


def is_about_the_topic(error: Exception) -> bool:
    """Return True if the topic may not exist."""
    return bool(meaning(error) & (Meaning.UNKNOWN_TOPIC | Meaning.UNDELIVERED))


def is_about_a_limit(error: Exception) -> bool:
    """Return True if the topic's configuration shows which records are refused for this reason."""
    return bool(meaning(error) & Meaning.LIMIT)


class Limits:
    """Limits of the topics that have refused records for size or timestamp, and the bytes in the current batch to each."""

    def __init__(self, refusals: Refusals, flush: Callable[[], object]) -> None:
        self._refusals = refusals
        self._flush = flush
        self._limits: dict[str, TopicLimits] = {}
        self._filled: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._limits)

    def learn(self, topics: Iterable[str]) -> set[str]:
        """Read the limits of topics that have refused batches. Return those whose limits were known already: there the refused record
        itself is beyond a limit. Raises BrokerUnavailableError."""
        limits = {topic: self._refusals.limits(topic) for topic in topics}
        known = {topic for topic, limit in limits.items() if self._limits.get(topic) == limit}
        self._limits |= limits
        return known

    def _limits_now(self, topic: str) -> TopicLimits:
        """Return a topic's current limits, which may have been raised since a record was refused."""
        try:
            return self._refusals.limits(topic)
        except BrokerUnavailableError as error:
            raise TransactionAbortedError(f"cannot read the configuration of topic {topic}: {error}") from error

    def make_room(self, output: Output) -> Exception | None:
        """Keep the output's batch below the topic's size limit, flushing if necessary. Return the error if the output alone is beyond a
        limit. Raises TransactionAbortedError."""
        topic = output.topic
        limits = self._limits.get(topic)
        if limits is None:
            return None
        size, ahead_ms = output.size, output.timestamp - time.time_ns() // 1_000_000
        if limits.error(topic, size, ahead_ms) is not None:
            limits = self._limits[topic] = self._limits_now(topic)
            if (error := limits.error(topic, size, ahead_ms)) is not None:
                return error
        filled = self._filled.get(topic, BATCH_BYTES) + size
        if filled > limits.size:
            self._flush()
            filled = BATCH_BYTES + size
        self._filled[topic] = filled
        return None
