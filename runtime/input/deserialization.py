"""Deserialization of raw records, a run at a time, and of the record that cannot be read (KIP-990).

Problem: calls per record cost more in Python than the decoding itself, but in a batch decoded ahead a bad record must not take effect
before its turn: earlier records, of this partition and of the task's others, come first, and the handler is asked once, when the record is
next (rules.md, 16).

Solution: `Decoder.decode` turns a run of raw messages into columns with list comprehensions over functions bound once. If one raises, the
run is decoded again record by record up to the failure; the good part becomes a batch, and the failure is kept, with everything after it
still raw. `input/queues.py`, which keeps the order, asks the handler with `ask_handler` when the failure's turn comes.

Rejected: an error object in place of the record (each consumer of the batch would have to look at each record), and a try block
around each record (35 ns each, for something that happens once a day).
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from operator import index
from typing import NamedTuple, Protocol

from penstock.runtime.input.columns import RawColumns
from penstock.runtime.model.error_details import at_line
from penstock.runtime.model.errors import DeserializationError, SchemaRegistryUnavailableError, StreamsError
from penstock.runtime.model.handlers import DeserializationExceptionHandler, DeserializationHandlerResponse, ErrorHandlerContext
from penstock.runtime.model.ids import TaskId
from penstock.runtime.model.record import Headers
from penstock.runtime.model.timestamps import ConsumerRecord, extractor_function
from penstock.runtime.model.user_errors import described, pass_ctrl_c
from penstock.runtime.serdes.primitive import BYTES
from penstock.runtime.serdes.serde import PlainSerde, Serde


class RawMessage(Protocol):
    """A record as it was read: confluent-kafka's `Message`, a row of `RawColumns`, or that of `penstock.runtime.testing`."""

    def topic(self) -> str: ...

    def partition(self) -> int: ...

    def offset(self) -> int: ...

    def key(self) -> bytes | None: ...

    def value(self) -> bytes | None: ...

    def timestamp(self) -> tuple[int, int]: ...

    def headers(self) -> Headers | None: ...


class Batch(NamedTuple):
    """A decoded run of one partition, by column. Row i of each column is one record; `offsets` rise, with gaps where records were dropped.

    `headers` is None when no record of the run has any; else a row is None or the record's list. `end` is the offset after the last
    message that went into the run, dropped ones included: what to commit when all rows are processed. `messages` are the raw ones.
    """

    keys: list[object]
    values: list[object]
    timestamps: list[int]
    offsets: Sequence[int]
    headers: list[Headers | None] | None
    end: int
    messages: Sequence[RawMessage]
    dropped: int


class Failure(NamedTuple):
    """A record that cannot be read: the raw message, and the error, whose `__cause__` is the exception of the serde or extractor."""

    message: RawMessage
    error: DeserializationError


LATEST_MS = 2**63 - 1
"""Largest timestamp of a record."""


class Decoder:
    """Decoder of one source topic of one task. Not thread-safe."""

    __slots__ = ("_extract", "_key", "_key_serde", "_needs_headers", "_record_headers", "_source", "_topic", "_value", "_value_serde")

    def __init__(
        self, topic: str, key_serde: Serde, value_serde: Serde, timestamp_extractor: object = None, *, source: str | None = None
    ) -> None:
        """`source`: the node that reads the topic, for the errors that name it."""
        self._topic = topic
        self._source = source
        self._key_serde = key_serde
        self._value_serde = value_serde
        self._record_headers: Headers | None = None
        self._key: Callable[[bytes], object] = key_serde.deserializer(topic, self._current_headers)
        self._value: Callable[[bytes], object] = value_serde.deserializer(topic, self._current_headers)
        self._needs_headers = not (isinstance(key_serde, PlainSerde) and isinstance(value_serde, PlainSerde))
        self._extract = extractor_function(timestamp_extractor)

    def _current_headers(self) -> Headers:
        return self._record_headers or []

    def decode(self, messages: Sequence[RawMessage], partition_time: int) -> tuple[Batch, Failure | None]:
        """Return the batch of all messages, or of those before the first that cannot be read, and that failure.

        `partition_time` is the largest timestamp of the partition so far, for the extractor. Raises SchemaRegistryUnavailableError.
        """
        if self._extract is None:
            try:
                batch = self._decode_at_once(messages)
            except SchemaRegistryUnavailableError:
                raise
            except BaseException:  # noqa: BLE001 (decoding record by record finds the record and keeps the error)
                batch = None
            if batch is not None:
                return batch, None
        return self._decode_carefully(messages, partition_time)

    def _decode_at_once(self, messages: Sequence[RawMessage]) -> Batch | None:
        """Decode the whole run by columns; return None if a record must be checked by itself."""
        keys: list[object]
        values: list[object]
        if isinstance(messages, RawColumns):
            headers: list[Headers | None] = messages.headers or []
            timestamps, keys, values = messages.timestamps, [*messages.keys], [*messages.values]
        else:
            headers = [message.headers() for message in messages]
            timestamps = [message.timestamp()[1] for message in messages]
            keys = [message.key() for message in messages]
            values = [message.value() for message in messages]
        plain = headers.count(None) == len(headers)
        if (self._needs_headers and not plain) or min(timestamps, default=0) < 0:
            return None
        key, value = self._key, self._value
        if self._key_serde is not BYTES:
            keys = [None if raw is None else key(raw) for raw in keys]  # type: ignore[arg-type]  # they are bytes until now
        if self._value_serde is not BYTES:
            values = [None if raw is None else value(raw) for raw in values]  # type: ignore[arg-type]
        return Batch(keys, values, timestamps, _offsets(messages), None if plain else headers, _end(messages), messages, 0)

    def _decode_carefully(self, messages: Sequence[RawMessage], partition_time: int) -> tuple[Batch, Failure | None]:
        keys: list[object] = []
        values: list[object] = []
        timestamps: list[int] = []
        kept: list[RawMessage] = []
        headers: list[Headers | None] = []
        failure: Failure | None = None
        read = 0
        for message in messages:
            try:
                key, value, timestamp = self._decode_one(message, partition_time)
            except SchemaRegistryUnavailableError:
                raise  # the record is not the cause
            except BaseException as cause:  # noqa: BLE001 (user code may raise anything; the handler decides)
                failure = Failure(message, self._error(message, cause))
                break
            read += 1
            if timestamp < 0:
                continue
            partition_time = max(partition_time, timestamp)
            keys.append(key)
            values.append(value)
            timestamps.append(timestamp)
            kept.append(message)
            headers.append(message.headers())
        taken = messages[:read]
        end = _end(taken) if taken else (messages[0].offset() if messages else 0)
        found = None if headers.count(None) == len(headers) else headers
        return Batch(keys, values, timestamps, _offsets(kept), found, end, kept, read - len(kept)), failure

    def _error(self, message: RawMessage, cause: BaseException) -> DeserializationError:
        """Return the error with the node and the part that its serde could not read; key and value are decoded again to find out which."""
        place = f"{message.topic()}-{message.partition()}@{message.offset()}"
        pass_ctrl_c(cause, place)
        detail = f"source {self._source}: " if self._source else ""
        failed: str | None = None
        of_serde: str | None = None
        parts = (("key", self._key_serde, self._key, message.key()), ("value", self._value_serde, self._value, message.value()))
        for what, serde, read, raw in parts:
            try:
                if raw is not None:
                    read(raw)
            except BaseException:  # noqa: BLE001 (it is reported as `cause`)
                detail += f"serde {serde.name} cannot read the {what} {reprlib.repr(raw)}: "
                failed, of_serde = what, serde.name
                break
        error = DeserializationError(f"{place}{at_line(cause)}: {detail}{described(cause)}", node=self._source, part=failed, serde=of_serde)
        error.__cause__ = cause
        return error

    def _decode_one(self, message: RawMessage, partition_time: int) -> tuple[object, object, int]:
        self._record_headers = message.headers()
        raw_key, raw_value = message.key(), message.value()
        key = None if raw_key is None else self._key(raw_key)
        value = None if raw_value is None else self._value(raw_value)
        timestamp = message.timestamp()[1]
        if self._extract is not None:
            record = ConsumerRecord(self._topic, message.partition(), message.offset(), timestamp, key, value, self._record_headers)
            return key, value, _milliseconds(self._extract(record, partition_time))
        if timestamp < 0:
            raise StreamsError(f"invalid timestamp {timestamp}: set default.timestamp.extractor to one that knows what to do with it")
        return key, value, timestamp


def _milliseconds(extracted: object) -> int:
    """Return an extractor's timestamp. Raises StreamsError for anything but an integer of 64 bits."""
    try:
        milliseconds = index(extracted)  # type: ignore[arg-type]  # that it can be one is what is found out here
    except TypeError:
        raise StreamsError(f"the timestamp extractor returned {extracted!r}: expected whole milliseconds since the epoch") from None
    if milliseconds > LATEST_MS:
        raise StreamsError(f"the timestamp extractor returned {extracted!r}: no record can be so late (at most {LATEST_MS} ms)")
    return milliseconds


def _offsets(messages: Sequence[RawMessage]) -> Sequence[int]:
    """Return the offsets of a run: a range if they are consecutive, which is the usual case and costs two calls."""
    if not messages:
        return range(0)
    if isinstance(messages, RawColumns):
        return messages.offsets
    first, last = messages[0].offset(), messages[-1].offset()
    if last - first == len(messages) - 1:
        return range(first, last + 1)
    return [message.offset() for message in messages]


def _end(messages: Sequence[RawMessage]) -> int:
    return messages[-1].offset() + 1 if messages else 0


def raw_record(message: RawMessage) -> ConsumerRecord:
    """Return the record with its raw bytes, for handlers and the dead-letter topic."""
    return ConsumerRecord(
        message.topic(), message.partition(), message.offset(), message.timestamp()[1], message.key(), message.value(), message.headers()
    )


def error_context(message: RawMessage, task: TaskId, node: str | None = None, label: str | None = None) -> ErrorHandlerContext:
    """Return the context of an error about `message`."""
    return ErrorHandlerContext(
        topic=message.topic(),
        partition=message.partition(),
        offset=message.offset(),
        timestamp=message.timestamp()[1],
        headers=message.headers(),
        task_id=task,
        processor_node_id=node,
        source_raw_key=message.key(),
        source_raw_value=message.value(),
        processor_node_label=label,
    )


def punctuation_context(task: TaskId, timestamp: int, node: str | None, label: str | None) -> tuple[ErrorHandlerContext, ConsumerRecord]:
    """Return the context of an error in a punctuator, which has no record."""
    context = ErrorHandlerContext("", -1, -1, timestamp, None, task, node, None, None, label)
    return context, ConsumerRecord("", -1, -1, timestamp, None, None, None)


def ask_handler(handler: DeserializationExceptionHandler, failure: Failure, task: TaskId) -> DeserializationHandlerResponse:
    """Ask the handler. Raises StreamsError if it raises, or returns anything but a response."""
    cause = failure.error.__cause__
    exception = cause if isinstance(cause, Exception) else failure.error
    try:
        response = handler.handle(error_context(failure.message, task), raw_record(failure.message), exception)
    except BaseException as error:
        raise StreamsError(f"{type(handler).__name__} failed on {failure.error}: {described(error)}") from error
    if not isinstance(response, DeserializationHandlerResponse):
        raise StreamsError(f"{type(handler).__name__}.handle returned {response!r}: expected CONTINUE, FAIL or PAUSE")
    return response
