"""Meaning of the Kafka client's errors: the only table of their codes.

librdkafka has some two hundred codes. The engine needs to know few things: whether a broker answered, whether a retry may help, whether the
record is the cause. So each relevant code has its meanings here, and no code is named outside this folder.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Flag, auto

from confluent_kafka import KafkaError, KafkaException

from penstock.runtime.model.errors import BrokerUnavailableError, StreamsError, TaskMigratedError, TransactionAbortedError


class Meaning(Flag):
    """Meaning of an error. One error may have several."""

    OTHER = 0
    NO_ANSWER = auto()
    """No broker answered, or not in time."""
    COORDINATOR_NOT_READY = auto()
    """A group's coordinator is being located, or is loading its groups."""
    NO_LEADER = auto()
    """The partition has no leader now, or the broker is no longer its leader."""
    OFFSETS_PENDING = auto()
    """An open transaction contains offsets of the group."""
    UNKNOWN_TOPIC = auto()
    """The topic does not exist, or is not known to the brokers yet."""
    UNKNOWN_PARTITION = auto()
    """The partition does not exist, or is not known to the brokers yet."""
    UNDELIVERED = auto()
    """A record was not delivered in time: its topic may be missing, or its broker down."""
    RECORD = auto()
    """The record will be refused again if it is sent again."""
    TOO_LARGE = auto()
    """The record, or its batch, is larger than the topic allows."""
    TIMESTAMP = auto()
    """The record's timestamp is outside the topic's limits."""
    CLIENT_REFUSED = auto()
    """The brokers reject this client (authentication)."""
    FORBIDDEN = auto()
    """Reading fails permanently: no authorization, or an unsupported protocol version."""
    NO_RIGHT = auto()
    """The brokers' ACLs do not allow it to this client."""
    OUT_OF_RANGE = auto()
    """The position is not on the log (any more)."""
    END = auto()
    """No error: the partition's end was reached."""
    FENCED = auto()
    """The producer cannot be used any more: its id was fenced, its transaction timed out, or the client failed fatally."""
    NO_TRANSACTION = auto()
    """The producer's transaction has failed already."""
    EXISTS = auto()
    """The topic exists."""
    NO_GROUP = auto()
    """The group does not exist."""
    TIMEOUT_TOO_LONG = auto()
    """The configured transaction time-out exceeds the brokers' limit."""

    LIMIT = TOO_LARGE | TIMESTAMP
    """The refusal depends on the topic's configuration."""


_M = Meaning
_MEANINGS: Mapping[int, Meaning] = {
    KafkaError._TRANSPORT: _M.NO_ANSWER,
    KafkaError._DESTROY_BROKER: _M.NO_ANSWER,  # the request's connection was closed
    KafkaError._ALL_BROKERS_DOWN: _M.NO_ANSWER,
    KafkaError._TIMED_OUT: _M.NO_ANSWER,
    KafkaError._RESOLVE: _M.NO_ANSWER,
    KafkaError.REQUEST_TIMED_OUT: _M.NO_ANSWER,
    KafkaError._WAIT_COORD: _M.COORDINATOR_NOT_READY,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS: _M.COORDINATOR_NOT_READY,
    KafkaError.COORDINATOR_NOT_AVAILABLE: _M.COORDINATOR_NOT_READY,
    KafkaError.NOT_COORDINATOR: _M.COORDINATOR_NOT_READY,
    KafkaError.LEADER_NOT_AVAILABLE: _M.NO_LEADER,
    KafkaError.NOT_LEADER_FOR_PARTITION: _M.NO_LEADER,
    KafkaError.UNKNOWN_LEADER_EPOCH: _M.NO_LEADER,  # of a topic that was just created: the broker lags behind the client's metadata
    KafkaError.FENCED_LEADER_EPOCH: _M.NO_LEADER,
    KafkaError.UNSTABLE_OFFSET_COMMIT: _M.OFFSETS_PENDING,
    KafkaError.UNKNOWN_TOPIC_OR_PART: _M.UNKNOWN_TOPIC | _M.UNKNOWN_PARTITION,
    KafkaError._UNKNOWN_TOPIC: _M.UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION: _M.UNKNOWN_PARTITION | _M.RECORD,
    KafkaError._NOENT: _M.UNKNOWN_PARTITION,
    KafkaError._MSG_TIMED_OUT: _M.UNDELIVERED,
    KafkaError.MSG_SIZE_TOO_LARGE: _M.RECORD | _M.TOO_LARGE,
    KafkaError.INVALID_TIMESTAMP: _M.RECORD | _M.TIMESTAMP,
    KafkaError.INVALID_RECORD: _M.RECORD,
    KafkaError.POLICY_VIOLATION: _M.RECORD,
    KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT: _M.RECORD,
    KafkaError.TOPIC_AUTHORIZATION_FAILED: _M.RECORD | _M.FORBIDDEN | _M.NO_RIGHT,
    KafkaError.GROUP_AUTHORIZATION_FAILED: _M.FORBIDDEN | _M.NO_RIGHT,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: _M.FORBIDDEN | _M.NO_RIGHT,
    KafkaError._AUTHENTICATION: _M.CLIENT_REFUSED | _M.FORBIDDEN,
    KafkaError.SASL_AUTHENTICATION_FAILED: _M.CLIENT_REFUSED | _M.FORBIDDEN,
    KafkaError._SSL: _M.CLIENT_REFUSED,
    KafkaError.UNSUPPORTED_SASL_MECHANISM: _M.CLIENT_REFUSED,
    KafkaError.ILLEGAL_SASL_STATE: _M.CLIENT_REFUSED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: _M.CLIENT_REFUSED | _M.NO_RIGHT,
    KafkaError.UNSUPPORTED_VERSION: _M.FORBIDDEN,
    KafkaError._AUTO_OFFSET_RESET: _M.OUT_OF_RANGE,
    KafkaError.OFFSET_OUT_OF_RANGE: _M.OUT_OF_RANGE,
    KafkaError._PARTITION_EOF: _M.END,
    KafkaError._FENCED: _M.FENCED,
    KafkaError._FATAL: _M.FENCED,
    KafkaError._STATE: _M.NO_TRANSACTION,
    KafkaError.TOPIC_ALREADY_EXISTS: _M.EXISTS,
    KafkaError.GROUP_ID_NOT_FOUND: _M.NO_GROUP,
    KafkaError.INVALID_TRANSACTION_TIMEOUT: _M.TIMEOUT_TOO_LONG,
}
_ASK_AGAIN = _M.NO_ANSWER | _M.COORDINATOR_NOT_READY | _M.NO_LEADER | _M.OFFSETS_PENDING


def kafka_error(error: KafkaException) -> KafkaError:
    """Return the KafkaError of an exception."""
    found: KafkaError = error.args[0]
    return found


def meaning(error: KafkaError | BaseException | None) -> Meaning:
    """Return the meaning of an error; OTHER for one that is not in the table, and for other exceptions."""
    if isinstance(error, KafkaException):
        error = kafka_error(error)
    return _MEANINGS.get(error.code(), Meaning.OTHER) if isinstance(error, KafkaError) else Meaning.OTHER


def lacks_right(error: BaseException | None) -> bool:
    """Return True if the brokers refused a request because this client has no right to it: the error, or one of its causes, says so."""
    while error is not None:
        if Meaning.NO_RIGHT in meaning(error):
            return True
        error = error.__cause__
    return False


def said(error: KafkaError) -> str:
    """Return the client's text of an error. Where brokers sent none (`ConsumerGroupDescribe: `), that of the code follows."""
    text = error.str().rstrip()
    return f"{text} {KafkaError(error.code()).str()}" if text.endswith(":") or not text else text


def is_retriable(error: Exception) -> bool:
    """Return True if librdkafka marks the error as retriable."""
    return isinstance(error, KafkaException) and kafka_error(error).retriable()


def is_transient(error: KafkaError) -> bool:
    """Return True if a retry may help."""
    return error.retriable() or bool(meaning(error) & _ASK_AGAIN)


_NEEDS = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: ("topic", ""),
    KafkaError.GROUP_AUTHORIZATION_FAILED: ("group", "Read on the group"),
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: ("transactional-id", "Write on the transactional-id"),
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: ("cluster", "DescribeConfigs on the cluster"),
}
"""Kind of resource that an error concerns, and the right that our requests need, as far as it is always the same."""
_RIGHT = re.compile(r"(\w+) on (topic|group|transactional-id|cluster) (\S+)")


def with_remedy(error: KafkaError, *needs: str) -> str:
    """Return the client's text of an error; for a missing right with the commands that find and grant it, and with the one of `needs`, as
    `Read on topic flights`, that is of the kind of resource which the error concerns. (The principal is known to the brokers alone.)"""
    if Meaning.NO_RIGHT not in meaning(error):
        return error.str()
    kind, always = _NEEDS[error.code()]
    if kind == "cluster" and "idempotence" in error.str():  # brokers give producer ids to whoever may write to any topic
        kind, always = "topic", "Write on a topic"
    needed = next((each for each in needs if f" {kind} " in each), always)
    said = f"{error.str().rstrip('.')}. It needs {needed}." if needed else f"{error.str().rstrip('.')}."
    found = _RIGHT.match(needed)
    if found is not None:
        operation, kind, name = found.groups()
        resource = "--cluster" if kind == "cluster" else f"--{kind} {shlex.quote(name)}"
        said += f" `kafka-acls … --add --allow-principal User:PRINCIPAL --operation {operation} {resource}` grants it."
    return f"{said} `penstock doctor` names each right that is missing, `penstock acls` prints the commands that grant all of them"


@contextmanager
def needing(*needs: str) -> Iterator[None]:
    """Raise StreamsError, with the text of `with_remedy`, for a KafkaException in the block that is about a missing right."""
    try:
        yield
    except KafkaException as error:
        if Meaning.NO_RIGHT in meaning(error):
            raise StreamsError(with_remedy(kafka_error(error), *needs)) from error
        raise


def unanswered(what: str, error: KafkaError, needs: str = "") -> StreamsError:
    """Return the engine's error for a failed request: BrokerUnavailableError if a retry may help. `needs`: as for `with_remedy`."""
    text = f"{what}: {with_remedy(error, needs)}"
    if Meaning.OFFSETS_PENDING in meaning(error):
        text += ". A transaction holds them; if for longer than transaction.timeout.ms: `penstock docs recovery`, 'Hanging transactions'"
    return BrokerUnavailableError(text) if is_transient(error) else StreamsError(text)


def producer_failure(error: KafkaException, *needs: str) -> TaskMigratedError | TransactionAbortedError | None:
    """Return the engine's error for an error of a producer or its transaction; None if the call may be retried (`transactions.py`).
    `needs`: as for `with_remedy`."""
    inner = kafka_error(error)
    if Meaning.NO_RIGHT in meaning(inner):
        of_topics = inner.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
        rights = ("Write on each topic that it writes",) if of_topics else needs
        return TaskMigratedError(f"the brokers refuse the producer: {with_remedy(inner, *rights)}")
    if inner.fatal() or Meaning.FENCED in meaning(inner):
        return TaskMigratedError(f"the producer was fenced, or its transaction timed out: {inner.str()}")
    if inner.txn_requires_abort() or not inner.retriable():
        return TransactionAbortedError(f"{inner.name()}: {inner.str()}")
    return None


def too_large(text: str) -> Exception:
    """Return the error that brokers give for a record of this size."""
    return KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE, text))


def bad_timestamp(text: str) -> Exception:
    """Return the error that brokers give for a record with this timestamp."""
    return KafkaException(KafkaError(KafkaError.INVALID_TIMESTAMP, text))


def text_of(error: BaseException) -> str:
    """Return the client's text of an error."""
    return kafka_error(error).str() if isinstance(error, KafkaException) else str(error)
