"""Exception handlers: decide about records that cannot be read, processed or written (KIP-161, KIP-1033, KIP-210, KIP-399; PAUSE: KIP-990).

A handler is a class without constructor arguments, or its dotted path in the configuration. `configure(configs)` is called once, with the
application's configuration, before any other method. Handlers are called on the worker's thread, once for each occurrence, in the order of
the task's records.

If `errors.dead.letter.queue.topic.name` is set and the handler returns CONTINUE, the raw record is written to that topic in the same
transaction, with the headers of KIP-1034 (`__streams.errors.exception`, `.message`, `.stacktrace`, `.topic`, `.partition`, `.offset`).
"""

from __future__ import annotations

import importlib
import logging
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeVar

from penstock.runtime.model.error_details import at_line
from penstock.runtime.model.errors import ProductionError, SerializationError, StreamsConfigError
from penstock.runtime.model.ids import TaskId
from penstock.runtime.model.record import Headers
from penstock.runtime.model.timestamps import ConsumerRecord
from penstock.runtime.model.user_errors import described, pass_ctrl_c, text_of, writable

logger = logging.getLogger(__name__)

MOST_STACK = 20_000
"""Largest length of message and stack trace in a dead letter, in characters, so that the record does not become too large."""


RECORD_TIME = "__streams.errors.timestamp"
"""Header of a dead letter with its record's timestamp (ms), for dead-letter topics that do not accept it as the letter's timestamp."""


@dataclass(frozen=True, slots=True)
class ErrorHandlerContext:
    """Context of an error: the input record's coordinates and raw bytes, the task, and the processor node (None: before the first)."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    headers: Headers | None
    task_id: TaskId
    processor_node_id: str | None
    source_raw_key: bytes | None
    source_raw_value: bytes | None
    processor_node_label: str | None = None
    """The node for a message: with the line that made it, if its name was generated."""


class DeserializationHandlerResponse(Enum):
    """CONTINUE skips the record; FAIL stops the client; PAUSE pauses the record's task until it is resumed, while other tasks run."""

    CONTINUE = "CONTINUE"
    FAIL = "FAIL"
    PAUSE = "PAUSE"


class ProcessingHandlerResponse(Enum):
    """As `DeserializationHandlerResponse`. PAUSE rolls back to the last commit and processes the records before this one again."""

    CONTINUE = "CONTINUE"
    FAIL = "FAIL"
    PAUSE = "PAUSE"


class ProductionExceptionHandlerResponse(Enum):
    """CONTINUE skips the output; FAIL stops the client; PAUSE rolls back to the last commit, processes the records before the output's
    input record again, and pauses the task there until it is resumed; RETRY rolls back to the last commit and tries again after a delay.
    RETRY of a record that can never be accepted (too large, invalid, not authorized) is FAIL, as in Kafka Streams (KIP-1065)."""

    CONTINUE = "CONTINUE"
    FAIL = "FAIL"
    PAUSE = "PAUSE"
    RETRY = "RETRY"


class SerializationExceptionOrigin(Enum):
    """The part of an output that a serde could not write."""

    KEY = "KEY"
    VALUE = "VALUE"


class DeserializationExceptionHandler:
    """Decides about records whose key, value or timestamp cannot be read."""

    def configure(self, configs: Mapping[str, object]) -> None:
        """Called once before the first use."""

    def handle(self, context: ErrorHandlerContext, record: ConsumerRecord, exception: Exception) -> DeserializationHandlerResponse:
        """Decide about a record with raw bytes. `exception`: raised by the serde or the timestamp extractor."""
        raise NotImplementedError


class ProcessingExceptionHandler:
    """Decides about records on which the user's code raised."""

    def configure(self, configs: Mapping[str, object]) -> None:
        """Called once before the first use."""

    def handle(self, context: ErrorHandlerContext, record: ConsumerRecord, exception: Exception) -> ProcessingHandlerResponse:
        """Decide about a decoded input record. `exception`: raised by the user's code. In a punctuator there is no record: its topic is
        empty and its offset -1, and PAUSE is FAIL."""
        raise NotImplementedError


class ProductionExceptionHandler:
    """Decides about output records that the client or the broker refused, or that a sink's serde could not write.

    A record for an internal topic (a changelog or a repartition topic) cannot be skipped alone, because the stores would no longer match
    it. There CONTINUE skips the whole input record, with all its updates of stores and outputs.
    """

    def configure(self, configs: Mapping[str, object]) -> None:
        """Called once before the first use."""

    def handle(self, context: ErrorHandlerContext, record: ConsumerRecord, exception: Exception) -> ProductionExceptionHandlerResponse:
        """Decide about an output record: topic, partition (-1: not chosen yet), offset -1, raw key and value."""
        raise NotImplementedError

    def handle_serialization_exception(
        self, context: ErrorHandlerContext, record: ConsumerRecord, exception: Exception, origin: SerializationExceptionOrigin
    ) -> ProductionExceptionHandlerResponse:
        """Decide about an output record with key and value as objects. `exception`: raised by the serde of the part that `origin` names.

        RETRY is FAIL: the serde would raise again. PAUSE works as for refused outputs. The default is FAIL (KIP-399).
        """
        return ProductionExceptionHandlerResponse.FAIL


def _log(level: int, context: ErrorHandlerContext, what: str, exception: BaseException, then: str) -> None:
    """Log what happened to a record, where and why, and what follows, with the exception's traceback."""
    place = "a punctuator" if context.offset < 0 else f"record {context.topic}-{context.partition}@{context.offset}"
    stack = "".join(traceback.format_exception(exception))
    shown = writable(stack)
    # A log file may refuse a text that UTF-8 cannot encode, and the line with it.
    error, more = (exception, "") if shown == stack else (None, f"\n{shown}")
    failed = f"{what}{at_line(exception)}: {described(exception)}; {then}{more}"
    logger.log(level, "task %s, %s %s", context.task_id, place, failed, exc_info=error, extra={"task": context.task_id})


class LogAndFailExceptionHandler(DeserializationExceptionHandler):
    """The default: stop the client without committing the record's offset."""

    def handle(self, context: ErrorHandlerContext, record: ConsumerRecord, exception: Exception) -> DeserializationHandlerResponse:
        _log(logging.ERROR, context, "cannot be read", exception, "the client stops")
        return DeserializationHandlerResponse.FAIL


class LogAndContinueExceptionHandler(DeserializationExceptionHandler):
    """Skip the record and count it in `dropped-records-total`."""

    def handle(self, context: ErrorHandlerContext, record: ConsumerRecord, exception: Exception) -> DeserializationHandlerResponse:
        _log(logging.WARNING, context, "cannot be read", exception, "it is skipped")
        return DeserializationHandlerResponse.CONTINUE


class LogAndPauseExceptionHandler(DeserializationExceptionHandler):
    """Pause the task before the record until `KafkaStreams.resume(task_id)`; for a global table this is FAIL (KIP-990)."""

    def handle(self, context: ErrorHandlerContext, record: ConsumerRecord, exception: Exception) -> DeserializationHandlerResponse:
        _log(logging.ERROR, context, "cannot be read", exception, "the task pauses")
        return DeserializationHandlerResponse.PAUSE


class LogAndFailProcessingExceptionHandler(ProcessingExceptionHandler):
    """The default: stop the client."""

    def handle(self, context: ErrorHandlerContext, record: ConsumerRecord, exception: Exception) -> ProcessingHandlerResponse:
        _log(logging.ERROR, context, f"failed in {context.processor_node_label}", exception, "the client stops")
        return ProcessingHandlerResponse.FAIL


class LogAndContinueProcessingExceptionHandler(ProcessingExceptionHandler):
    """Skip the record. Updates of stores and outputs from before the failure remain, as in Kafka Streams."""

    def handle(self, context: ErrorHandlerContext, record: ConsumerRecord, exception: Exception) -> ProcessingHandlerResponse:
        _log(logging.WARNING, context, f"failed in {context.processor_node_label}", exception, "it is skipped")
        return ProcessingHandlerResponse.CONTINUE


class LogAndPauseProcessingExceptionHandler(ProcessingExceptionHandler):
    """Pause the task before the record until `KafkaStreams.resume(task_id)`."""

    def handle(self, context: ErrorHandlerContext, record: ConsumerRecord, exception: Exception) -> ProcessingHandlerResponse:
        _log(logging.ERROR, context, f"failed in {context.processor_node_label}", exception, "the task pauses")
        return ProcessingHandlerResponse.PAUSE


class DefaultProductionExceptionHandler(ProductionExceptionHandler):
    """The default: stop the client."""

    def handle(self, context: ErrorHandlerContext, record: ConsumerRecord, exception: Exception) -> ProductionExceptionHandlerResponse:
        _log(logging.ERROR, context, f"has an output to {record.topic} that was refused", exception, "the client stops")
        return ProductionExceptionHandlerResponse.FAIL


class Configurable(Protocol):
    def configure(self, configs: Mapping[str, object]) -> None: ...


Handler = TypeVar("Handler", bound=Configurable)


def make_handler(setting: object, base: type[Handler], configs: Mapping[str, object], key: str) -> Handler:
    """Make the configured handler: `setting` is a class, its dotted path, or an object. Raises StreamsConfigError naming `key`."""
    if isinstance(setting, str):
        module_name, _, name = setting.replace(":", ".").rpartition(".")
        try:
            setting = getattr(importlib.import_module(module_name or "penstock.runtime.model.handlers"), name)
        except (ImportError, AttributeError) as error:
            raise StreamsConfigError(f"{key} = {setting!r} cannot be imported: {error}") from error
    try:
        handler = setting() if isinstance(setting, type) else setting
        if not isinstance(handler, base):
            raise StreamsConfigError(f"{key} = {setting!r} is not a {base.__name__}")
        handler.configure(configs)
    except StreamsConfigError:
        raise
    except BaseException as error:
        pass_ctrl_c(error, key)
        raise StreamsConfigError(f"{key} = {setting!r} cannot be made: {described(error)}") from error
    return handler


class LogAndPauseProductionExceptionHandler(ProductionExceptionHandler):
    """Pause the task before the input record until `KafkaStreams.resume(task_id)`."""

    def handle(self, context: ErrorHandlerContext, record: ConsumerRecord, exception: Exception) -> ProductionExceptionHandlerResponse:
        _log(logging.ERROR, context, f"has an output to {record.topic} that was refused", exception, "the task pauses")
        return ProductionExceptionHandlerResponse.PAUSE

    def handle_serialization_exception(
        self, context: ErrorHandlerContext, record: ConsumerRecord, exception: Exception, origin: SerializationExceptionOrigin
    ) -> ProductionExceptionHandlerResponse:
        return self.handle(context, record, exception)


def ask_serialization(
    handler: ProductionExceptionHandler, context: ErrorHandlerContext, record: ConsumerRecord, error: SerializationError
) -> ProductionExceptionHandlerResponse:
    """Call the handler for an output that a serde could not write. Returns CONTINUE or PAUSE. Raises ProductionError otherwise, naming
    task, node and input record."""
    node = [f"node {context.processor_node_label}"] if context.processor_node_label else []
    source = [f"record {context.topic}-{context.partition}@{context.offset}"] if context.offset >= 0 else []
    where = ", ".join([f"task {context.task_id}", *node, *source])
    name = f"{type(handler).__name__}.handle_serialization_exception"
    cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
    origin = SerializationExceptionOrigin.KEY if error.is_key else SerializationExceptionOrigin.VALUE
    try:
        response = handler.handle_serialization_exception(context, record, cause, origin)
    except BaseException as failed:
        raise ProductionError(f"{name} failed on {where}: {error}: {described(failed)}") from failed
    if not isinstance(response, ProductionExceptionHandlerResponse):
        raise ProductionError(f"{name} returned {response!r}: expected CONTINUE, PAUSE or FAIL")
    if response in (ProductionExceptionHandlerResponse.FAIL, ProductionExceptionHandlerResponse.RETRY):
        raise ProductionError(f"{where}: {error}") from error
    logger.warning("%s: %s; the handler says %s", where, error, response.value)
    return response


def dead_letter_headers(record: ConsumerRecord, error: BaseException) -> Headers:
    """Return the headers of a dead-letter record: the record's own, then those of KIP-1034."""
    stack = "".join(traceback.format_exception(error))[-MOST_STACK:]
    return [
        *(record.headers or ()),
        ("__streams.errors.exception", type(error).__name__.encode()),
        ("__streams.errors.message", text_of(error)[:MOST_STACK].encode()),
        ("__streams.errors.stacktrace", writable(stack).encode()),
        ("__streams.errors.topic", record.topic.encode()),
        ("__streams.errors.partition", str(record.partition).encode()),
        ("__streams.errors.offset", str(record.offset).encode()),
    ]
