"""Timestamp extractors: their interface, and Kafka Streams' four extractors.

An extractor is a callable `(record, partition_time) -> int`, or an object with a method `extract` with this signature (Kafka Streams'
`TimestampExtractor`). `record` is the decoded record, `partition_time` the largest timestamp seen on its partition (-1 before the
first). The result is milliseconds since the epoch; a negative one drops the record and counts it in `dropped-records-total`.
"""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from penstock.runtime.model.errors import StreamsConfigError, StreamsError
from penstock.runtime.model.record import Headers

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ConsumerRecord:
    """A record of a topic (Kafka's `ConsumerRecord`).

    `key` and `value` are decoded objects for an extractor, and raw bytes for a deserialization handler. `timestamp` is the one on the log,
    in ms since the epoch, -1 if it has none.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: object
    value: object
    headers: Headers | None


TimestampExtractor = Callable[[ConsumerRecord, int], int]
"""See the module's docstring."""


class FailOnInvalidTimestamp:
    """Use the record's own timestamp; a negative one is an error (the default of `default.timestamp.extractor`)."""

    def extract(self, record: ConsumerRecord, partition_time: int) -> int:
        if record.timestamp < 0:
            raise StreamsError(
                f"record {record.topic}-{record.partition}@{record.offset} has the invalid timestamp {record.timestamp}: "
                "written by a producer of before Kafka 0.10? Use another default.timestamp.extractor to continue"
            )
        return record.timestamp


class LogAndSkipOnInvalidTimestamp:
    """Use the record's own timestamp; a record with a negative one is logged and dropped."""

    def extract(self, record: ConsumerRecord, partition_time: int) -> int:
        if record.timestamp < 0:
            logger.warning("record %s-%d@%d dropped: timestamp %d", record.topic, record.partition, record.offset, record.timestamp)
        return record.timestamp


class UsePartitionTimeOnInvalidTimestamp:
    """Use the record's own timestamp, or the largest one seen on its partition if it is negative."""

    def extract(self, record: ConsumerRecord, partition_time: int) -> int:
        if record.timestamp >= 0:
            return record.timestamp
        if partition_time < 0:
            raise StreamsError(
                f"record {record.topic}-{record.partition}@{record.offset} has the invalid timestamp {record.timestamp} "
                "and none came before it on its partition"
            )
        return partition_time


class WallclockTimestampExtractor:
    """Use the time at which the record is processed."""

    def extract(self, record: ConsumerRecord, partition_time: int) -> int:
        return time.time_ns() // 1_000_000


def extractor_function(extractor: object) -> TimestampExtractor | None:
    """Return the callable of an extractor, given as object, class, dotted path or function; None for the default, which needs no call per
    record. Raises StreamsConfigError for anything else."""
    if isinstance(extractor, str):
        extractor = _imported(extractor)
    if isinstance(extractor, type):
        extractor = extractor()
    if extractor is None or type(extractor) is FailOnInvalidTimestamp:
        return None
    extract = getattr(extractor, "extract", extractor)
    if not callable(extract):
        raise StreamsConfigError(
            f"{extractor!r} is not a timestamp extractor: neither callable nor with a method extract(record, partition_time)"
        )
    function: TimestampExtractor = extract
    return function


def _imported(path: str) -> object:
    module, _, name = path.replace(":", ".").rpartition(".")
    try:
        found: object = getattr(importlib.import_module(module or __name__), name)
    except (ImportError, AttributeError) as error:
        raise StreamsConfigError(f"timestamp extractor {path!r} cannot be imported: {error}") from error
    return found
