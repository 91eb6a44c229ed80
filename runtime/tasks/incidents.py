"""Records that went wrong: whom to ask, whom to tell, and what is kept of them.

The three handlers of an application, its dead-letter topic, and the events and metrics about records that were skipped stand together here,
because each of them is about one record at a time, which is what the rest of the engine avoids.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from runtime.commit.order import Transport
from runtime.errors import ProductionError, StreamsError
from runtime.events import EventKind, EventSink, base64_or_none
from runtime.handlers import (
    DeserializationExceptionHandler,
    ErrorHandlerContext,
    ProcessingExceptionHandler,
    ProcessingHandlerResponse,
    ProductionExceptionHandler,
    ProductionExceptionHandlerResponse,
    dead_letter_headers,
    make_handler,
)
from runtime.ids import Partition, TaskId
from runtime.intake.verdict import RawMessage, raw_record
from runtime.metrics import TASK, Metrics
from runtime.record import Headers
from runtime.timestamps import ConsumerRecord

logger = logging.getLogger(__name__)

MOST_BYTES = 512 * 1024
"""Key, value and headers of a record that an event carries at most: in base64 that stays below what a broker takes by default (1 MB).
An event that is refused would end the client, and its successor at the same record."""
MOST_TEXT = 10_000
"""Characters of an error that are told."""


_BY_HAND = "command"


@dataclass(frozen=True, slots=True)
class PausePoint:
    """Why a task is paused, and before which record. `reason`: `deserialization`, `processing`, or `command` (no record then: key, value
    and error are None, and the offset is the next one to process)."""

    partition: Partition
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers | None
    error_type: str | None
    error: str | None
    reason: str

    @classmethod
    def of(cls, message: RawMessage, error: BaseException, reason: str) -> PausePoint:
        """A pause before the record that could not be read or processed."""
        cause = error.__cause__ or error
        return cls(
            partition=Partition(message.topic(), message.partition()),
            offset=message.offset(),
            timestamp_ms=message.timestamp()[1],
            key=message.key(),
            value=message.value(),
            headers=message.headers(),
            error_type=type(cause).__name__,
            error=str(cause)[:MOST_TEXT],
            reason=reason,
        )

    @classmethod
    def command(cls, partition: Partition, offset: int) -> PausePoint:
        """A pause that somebody asked for."""
        return cls(partition, offset, -1, None, None, None, None, None, _BY_HAND)

    @property
    def by_hand(self) -> bool:
        """True for a pause that somebody asked for: no record will stop the task's next owner."""
        return self.reason == _BY_HAND

    def payload(self) -> dict[str, object]:
        """The payload of TASK_PAUSED. The bytes of a record of more than `MOST_BYTES` are left out; they stand in the topic."""
        size = len(self.key or b"") + len(self.value or b"") + sum(len(name) + len(data or b"") for name, data in self.headers or ())
        whole = size <= MOST_BYTES
        return {
            "topic": self.partition.topic,
            "partition": self.partition.number,
            "offset": self.offset,
            "timestamp_ms": self.timestamp_ms,
            "key_base64": base64_or_none(self.key) if whole else None,
            "value_base64": base64_or_none(self.value) if whole else None,
            "headers": [[name, base64_or_none(data)] for name, data in self.headers or ()] if whole else [],
            "left_out_bytes": 0 if whole else size,
            "error_type": self.error_type,
            "error": self.error,
            "reason": self.reason,
        }


class CurrentRecord(Protocol):
    """What is known of the record that is being processed."""

    topic: str
    partition: int
    offset: int
    headers: Headers | None


class Incidents:
    """The handlers of one worker, and what follows from their answers. Belongs to the worker's thread."""

    def __init__(self, configs: Mapping[str, object], events: EventSink, metrics: Metrics) -> None:
        """Raises StreamsConfigError if a handler cannot be made."""
        self.deserialization = make_handler(
            configs["deserialization.exception.handler"], DeserializationExceptionHandler, configs, "deserialization.exception.handler"
        )
        self.processing = make_handler(
            configs["processing.exception.handler"], ProcessingExceptionHandler, configs, "processing.exception.handler"
        )
        self.production = make_handler(
            configs["production.exception.handler"], ProductionExceptionHandler, configs, "production.exception.handler"
        )
        topic = configs.get("errors.dead.letter.queue.topic.name")
        self._dead_letter = str(topic) if topic else None
        self._events = events
        self._metrics = metrics
        self._transport: Transport | None = None
        self.task: TaskId | None = None
        """The task that is being processed or committed."""
        self.current: CurrentRecord | None = None

    def attach(self, transport: Transport) -> None:
        """Where dead letters go from now on."""
        self._transport = transport

    def ask_processing(self, context: ErrorHandlerContext, record: ConsumerRecord, error: BaseException) -> ProcessingHandlerResponse:
        """Raises StreamsError if the handler raises itself or answers with something else than a response."""
        cause = error.__cause__
        try:
            response = self.processing.handle(context, record, cause if isinstance(cause, Exception) else StreamsError(str(error)))
        except Exception as failed:
            raise StreamsError(f"{type(self.processing).__name__} failed on {error}: {failed}") from failed
        if not isinstance(response, ProcessingHandlerResponse):
            raise StreamsError(f"{type(self.processing).__name__}.handle returned {response!r}: expected CONTINUE, FAIL or PAUSE")
        return response

    def skipped(self, task: TaskId, message: RawMessage, error: BaseException) -> None:
        """A handler said CONTINUE: counted, told, and kept in the dead-letter topic if there is one."""
        self._metrics.counter("dropped-records-total", TASK, task_id=str(task)).add()
        record = raw_record(message)
        cause = error.__cause__ or error
        self._events.emit(
            EventKind.RECORD_SKIPPED,
            {
                "topic": record.topic,
                "partition": record.partition,
                "offset": record.offset,
                "error_type": type(cause).__name__,
                "error": str(cause)[:MOST_TEXT],
            },
            task,
            f"{record.topic}-{record.partition}@{record.offset}",
        )
        if self._dead_letter is not None and self._transport is not None:
            self._transport.send(
                self._dead_letter, message.key(), message.value(), max(record.timestamp, 0), dead_letter_headers(record, cause), None
            )

    def dropped(self, task: TaskId, records: int) -> None:
        """Records that an extractor gave a negative timestamp."""
        self._metrics.counter("dropped-records-total", TASK, task_id=str(task)).add(records)

    def refused(
        self, topic: str, partition: int, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers | None, error: Exception
    ) -> bool:
        """An output was not taken. True: send it again; False: go on without it. Raises ProductionError where the handler says FAIL."""
        current = self.current
        context = ErrorHandlerContext(
            topic=current.topic if current else "",
            partition=current.partition if current else -1,
            offset=current.offset if current else -1,
            timestamp=timestamp,
            headers=current.headers if current else None,
            task_id=self.task or TaskId(0, 0),
            processor_node_id=None,
            source_raw_key=None,
            source_raw_value=None,
        )
        record = ConsumerRecord(topic, partition, -1, timestamp, key, value, headers)
        response = self.production.handle(context, record, error)
        if response is ProductionExceptionHandlerResponse.RETRY:
            return True
        if response is ProductionExceptionHandlerResponse.CONTINUE:
            self._metrics.counter("dropped-records-total", TASK, task_id=str(self.task)).add()
            return False
        if response is not ProductionExceptionHandlerResponse.FAIL:
            raise StreamsError(f"{type(self.production).__name__}.handle returned {response!r}: expected CONTINUE, FAIL or RETRY")
        size = len(key or b"") + len(value or b"")
        raise ProductionError(f"task {self.task}: a record of {size} bytes for {topic} was refused: {error}") from error
