"""What to do with a record that cannot be read, processed or written (KIP-161, KIP-1033, KIP-210, KIP-399; PAUSE is KIP-990's).

A handler is a class without constructor arguments (or its dotted path in the configuration); `configure(configs)` is called once, with
the application's configuration, before anything else. It is called on the worker's thread, once for each occurrence, when the
record is next in its task's order.

Where `errors.dead.letter.queue.topic.name` is set, the raw record of an error that was answered with CONTINUE is written to that
topic, in the same transaction, with the headers of KIP-1034 (`__streams.errors.exception`, `.message`, `.stacktrace`, `.topic`,
`.partition`, `.offset`).
"""

from __future__ import annotations

import importlib
import logging
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from runtime.errors import ProductionError, SerializationError, StreamsConfigError
from runtime.ids import TaskId
from runtime.record import Headers
from runtime.timestamps import ConsumerRecord

logger = logging.getLogger(__name__)

MOST_STACK = 20_000
"""Characters of an error's message and stack in a dead letter: that the error is long shall not make the record too large."""


@dataclass(frozen=True, slots=True)
class ErrorHandlerContext:
    """Where an error happened: the input record's coordinates and raw bytes, the task, and the processor node (None: before the first)."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    headers: Headers | None
    task_id: TaskId
    processor_node_id: str | None
    source_raw_key: bytes | None
    source_raw_value: bytes | None


class DeserializationHandlerResponse(Enum):
    """CONTINUE skips the record; FAIL stops the client; PAUSE stops the record's task until it is resumed, and the other tasks run on."""

    CONTINUE = "CONTINUE"
    FAIL = "FAIL"
    PAUSE = "PAUSE"


class ProcessingHandlerResponse(Enum):
    """As `DeserializationHandlerResponse`. PAUSE rolls back to the last commit and processes again up to the record."""

    CONTINUE = "CONTINUE"
    FAIL = "FAIL"
    PAUSE = "PAUSE"


class ProductionExceptionHandlerResponse(Enum):
    """CONTINUE leaves the output out; FAIL stops the client; RETRY goes back to the last commit and tries again after a pause. RETRY of a
    record that can never be taken (too large, invalid, not allowed) is FAIL, as in Kafka Streams (KIP-1065)."""

    CONTINUE = "CONTINUE"
    FAIL = "FAIL"
    RETRY = "RETRY"


class SerializationExceptionOrigin(Enum):
    """What of an output a serde could not write."""

    KEY = "KEY"
    VALUE = "VALUE"


class DeserializationExceptionHandler:
    """Answers for records whose key, value or timestamp cannot be read."""

    def configure(self, configs: Mapping[str, object]) -> None:
        """Called once before the first use."""

    def handle(self, context: ErrorHandlerContext, record: ConsumerRecord, exception: Exception) -> DeserializationHandlerResponse:
        """`record` has raw bytes; `exception` is what the serde or the timestamp extractor raised."""
        raise NotImplementedError


class ProcessingExceptionHandler:
    """Answers for records on which the user's code raised."""

    def configure(self, configs: Mapping[str, object]) -> None:
        """Called once before the first use."""

    def handle(self, context: ErrorHandlerContext, record: ConsumerRecord, exception: Exception) -> ProcessingHandlerResponse:
        """`record` is the input record, decoded; `exception` is what the user's code raised. In a punctuator there is no record: its topic
        is empty and its offset -1, and PAUSE is FAIL."""
        raise NotImplementedError


class ProductionExceptionHandler:
    """Answers for output records that the client or the broker refused, or that a sink's serde could not write."""

    def configure(self, configs: Mapping[str, object]) -> None:
        """Called once before the first use."""

    def handle(self, context: ErrorHandlerContext, record: ConsumerRecord, exception: Exception) -> ProductionExceptionHandlerResponse:
        """`record` is the output record: topic, partition (-1: not chosen yet), offset -1, raw key and value."""
        raise NotImplementedError

    def handle_serialization_exception(
        self, context: ErrorHandlerContext, record: ConsumerRecord, exception: Exception, origin: SerializationExceptionOrigin
    ) -> ProductionExceptionHandlerResponse:
        """`record` is the output record with key and value as objects; `exception` is what the serde raised about the one that `origin`
        names. RETRY is FAIL: the serde would raise again. FAIL unless overridden (KIP-399)."""
        return ProductionExceptionHandlerResponse.FAIL


def _where(context: ErrorHandlerContext) -> str:
    if context.offset < 0:
        return f"task {context.task_id}, a punctuator"
    return f"task {context.task_id}, record {context.topic}-{context.partition}@{context.offset}"


class LogAndFailExceptionHandler(DeserializationExceptionHandler):
    """The default: the client stops, and the record's offset is not committed."""

    def handle(self, context: ErrorHandlerContext, record: ConsumerRecord, exception: Exception) -> DeserializationHandlerResponse:
        logger.error("%s cannot be read; the client stops: %s", _where(context), exception)
        return DeserializationHandlerResponse.FAIL


class LogAndContinueExceptionHandler(DeserializationExceptionHandler):
    """The record is skipped and counted in `dropped-records-total`."""

    def handle(self, context: ErrorHandlerContext, record: ConsumerRecord, exception: Exception) -> DeserializationHandlerResponse:
        logger.warning("%s cannot be read and is skipped: %s", _where(context), exception)
        return DeserializationHandlerResponse.CONTINUE


class LogAndPauseExceptionHandler(DeserializationExceptionHandler):
    """The task holds before the record until `KafkaStreams.resume(task_id)`; for a global table this is FAIL (KIP-990)."""

    def handle(self, context: ErrorHandlerContext, record: ConsumerRecord, exception: Exception) -> DeserializationHandlerResponse:
        logger.error("%s cannot be read; the task pauses: %s", _where(context), exception)
        return DeserializationHandlerResponse.PAUSE


class LogAndFailProcessingExceptionHandler(ProcessingExceptionHandler):
    """The default: the client stops."""

    def handle(self, context: ErrorHandlerContext, record: ConsumerRecord, exception: Exception) -> ProcessingHandlerResponse:
        logger.error("%s failed in %s; the client stops: %s", _where(context), context.processor_node_id, exception)
        return ProcessingHandlerResponse.FAIL


class LogAndContinueProcessingExceptionHandler(ProcessingExceptionHandler):
    """The record is skipped. What it had already done to stores and outputs before it failed stays, as in Kafka Streams."""

    def handle(self, context: ErrorHandlerContext, record: ConsumerRecord, exception: Exception) -> ProcessingHandlerResponse:
        logger.warning("%s failed in %s and is skipped: %s", _where(context), context.processor_node_id, exception)
        return ProcessingHandlerResponse.CONTINUE


class LogAndPauseProcessingExceptionHandler(ProcessingExceptionHandler):
    """The task goes back to before the record and holds there until `KafkaStreams.resume(task_id)`."""

    def handle(self, context: ErrorHandlerContext, record: ConsumerRecord, exception: Exception) -> ProcessingHandlerResponse:
        logger.error("%s failed in %s; the task pauses: %s", _where(context), context.processor_node_id, exception)
        return ProcessingHandlerResponse.PAUSE


class DefaultProductionExceptionHandler(ProductionExceptionHandler):
    """The client stops."""

    def handle(self, context: ErrorHandlerContext, record: ConsumerRecord, exception: Exception) -> ProductionExceptionHandlerResponse:
        logger.error("%s: its output to %s was refused; the client stops: %s", _where(context), record.topic, exception)
        return ProductionExceptionHandlerResponse.FAIL


Handler = TypeVar("Handler", DeserializationExceptionHandler, ProcessingExceptionHandler, ProductionExceptionHandler)


def make_handler(setting: object, base: type[Handler], configs: Mapping[str, object], key: str) -> Handler:
    """The configured handler: `setting` is a class, its dotted path, or an object. Raises StreamsConfigError naming `key`."""
    if isinstance(setting, str):
        module_name, _, name = setting.replace(":", ".").rpartition(".")
        try:
            setting = getattr(importlib.import_module(module_name or "runtime.handlers"), name)
        except (ImportError, AttributeError) as error:
            raise StreamsConfigError(f"{key} = {setting!r} cannot be imported: {error}") from error
    try:
        handler = setting() if isinstance(setting, type) else setting
        if not isinstance(handler, base):
            raise StreamsConfigError(f"{key} = {setting!r} is not a {base.__name__}")
        handler.configure(configs)
    except StreamsConfigError:
        raise
    except Exception as error:
        raise StreamsConfigError(f"{key} = {setting!r} cannot be made: {type(error).__name__}: {error}") from error
    return handler


def ask_serialization(
    handler: ProductionExceptionHandler, context: ErrorHandlerContext, record: ConsumerRecord, error: SerializationError
) -> None:
    """Puts an output that a serde could not write before the handler: returns if it said CONTINUE. Raises ProductionError otherwise, naming
    task, node and input record."""
    node = [f"node {context.processor_node_id}"] if context.processor_node_id else []
    source = [f"record {context.topic}-{context.partition}@{context.offset}"] if context.offset >= 0 else []
    where = ", ".join([f"task {context.task_id}", *node, *source])
    name = f"{type(handler).__name__}.handle_serialization_exception"
    cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
    origin = SerializationExceptionOrigin.KEY if error.is_key else SerializationExceptionOrigin.VALUE
    try:
        response = handler.handle_serialization_exception(context, record, cause, origin)
    except Exception as failed:
        raise ProductionError(f"{name} failed on {where}: {error}: {failed}") from failed
    if not isinstance(response, ProductionExceptionHandlerResponse):
        raise ProductionError(f"{name} returned {response!r}: expected CONTINUE or FAIL")
    if response is not ProductionExceptionHandlerResponse.CONTINUE:
        raise ProductionError(f"{where}: {error}") from error
    logger.warning("%s: %s; the output is left out", where, error)


def dead_letter_headers(record: ConsumerRecord, error: BaseException) -> Headers:
    """The headers of a dead-letter record: the record's own, then KIP-1034's."""
    stack = "".join(traceback.format_exception(error))[-MOST_STACK:]
    return [
        *(record.headers or ()),
        ("__streams.errors.exception", type(error).__name__.encode()),
        ("__streams.errors.message", str(error)[:MOST_STACK].encode()),
        ("__streams.errors.stacktrace", stack.encode()),
        ("__streams.errors.topic", record.topic.encode()),
        ("__streams.errors.partition", str(record.partition).encode()),
        ("__streams.errors.offset", str(record.offset).encode()),
    ]
