"""The coordination topic as a log: every member reads it from its start and appends single records."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import Future
from typing import NamedTuple

from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.coordination.records import Record, decode
from penstock.runtime.coordination.topics import coordination_topic
from penstock.runtime.kafka.messages import appended_ms
from penstock.runtime.kafka.shared_log import SharedLog
from penstock.runtime.model.errors import StreamsError

logger = logging.getLogger(__name__)


class Entry(NamedTuple):
    """A record with its offset and key. `at_ms`: its append time by the brokers' clock; None if unknown."""

    offset: int
    record: Record
    key: bytes = b""
    at_ms: int | None = None


class CoordinationLog:
    """Reader (of committed records) and writer of the topic. Used by one thread."""

    def __init__(self, config: StreamsConfig) -> None:
        topic = coordination_topic(config.application_id)
        self._log = SharedLog(config, topic, f"{config.application_id}-coordination-reader")

    @property
    def at_end(self) -> bool:
        """True once all records that existed at the start have been read."""
        return self._log.tail.at_end

    @property
    def position(self) -> int:
        """Next offset to read: all committed records before it have been read."""
        return self._log.tail.position

    def poll(self, timeout: float = 0.0) -> Iterator[Entry]:
        """Yield the records appended since the last call, in order; wait at most `timeout` seconds for the first. Records that cannot be
        decoded are logged and skipped."""
        for message in self._log.tail.poll(timeout):
            try:
                record = decode(message.key(), message.value())
            except StreamsError as unreadable:
                logger.warning("%s", unreadable)
                continue
            offset = message.offset()
            if record is not None and offset is not None:
                yield Entry(offset, record, message.key() or b"", appended_ms(message))

    def ask_end(self) -> Future[int]:
        """Request the topic's end offset, open transactions included, without waiting. The future raises StreamsError."""
        return self._log.ask_end()

    def append(self, key: bytes, value: bytes | None) -> None:
        """Produce a record, without waiting for its delivery."""
        self._log.append(key, value)

    def flush(self) -> None:
        """Wait until all records are delivered, for a few seconds at most."""
        self._log.flush()

    def drop(self) -> None:
        """Drop undelivered records: they were meant for a topic that was deleted."""
        self._log.drop()

    def close(self) -> None:
        self._log.close()
