"""The coordination topic as a log: read by everybody from its start, written by members one record at a time."""

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
    """A record with its offset and key. `at_ms`: when the brokers had it, by their clock; None where that is not known."""

    offset: int
    record: Record
    key: bytes = b""
    at_ms: int | None = None


class CoordinationLog:
    """Reads the topic as of the last committed transaction, and appends to it. Belongs to one thread."""

    def __init__(self, config: StreamsConfig) -> None:
        topic = coordination_topic(config.application_id)
        self._log = SharedLog(config, topic, f"{config.application_id}-coordination-reader")

    @property
    def at_end(self) -> bool:
        """True once everything that was there has been read."""
        return self._log.tail.at_end

    @property
    def position(self) -> int:
        """Everything before this offset has been read, or was not committed."""
        return self._log.tail.position

    def poll(self, timeout: float = 0.0) -> Iterator[Entry]:
        """What was appended since, in order; waits at most `timeout` seconds for the first. Records that cannot be read are logged and
        left out."""
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
        """Asks for the topic's end, open transactions included, without waiting. The future fails with StreamsError."""
        return self._log.ask_end()

    def append(self, key: bytes, value: bytes | None) -> None:
        """Writes a record; it is on its way when this returns."""
        self._log.append(key, value)

    def flush(self) -> None:
        """Waits until what was written has arrived, for some seconds at most."""
        self._log.flush()

    def drop(self) -> None:
        """What has not arrived so far shall not: it was meant for a topic that is no more."""
        self._log.drop()

    def close(self) -> None:
        self._log.close()
