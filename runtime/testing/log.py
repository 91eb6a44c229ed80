"""An in-memory log in place of the broker: one partition per topic, and what was written stays to be read."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from penstock.runtime.model.ids import TopicPartition
from penstock.runtime.model.record import Headers

_CREATE_TIME = 1


@dataclass(frozen=True, slots=True)
class LogRecord:
    """A record on the log. Reads like confluent-kafka's `Message`, as the intake wants it."""

    topic_name: str
    position: int
    raw_key: bytes | None
    raw_value: bytes | None
    time_ms: int
    record_headers: Headers | None

    def topic(self) -> str:
        return self.topic_name

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self.position

    def key(self) -> bytes | None:
        return self.raw_key

    def value(self) -> bytes | None:
        return self.raw_value

    def timestamp(self) -> tuple[int, int]:
        return _CREATE_TIME, self.time_ms

    def headers(self) -> Headers | None:
        return self.record_headers


class MemoryLog:
    """Topics of one partition. `on_append` is called for every record that the driver's tasks write."""

    keeps_changelogs = True

    def __init__(self, on_append: Callable[[LogRecord], None]) -> None:
        self._records: dict[str, list[LogRecord]] = {}
        self._unread: dict[str, deque[LogRecord]] = {}
        self._on_append = on_append

    def send(
        self, topic: str, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers | None, partition: int | None
    ) -> None:
        """Append an output; it can be read from `unread` and is passed to all readers of the topic."""
        record = self.append(topic, key, value, timestamp, headers)
        self.unread(topic).append(record)
        self._on_append(record)

    def append(self, topic: str, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers | None) -> LogRecord:
        """Append a record to the end of a topic."""
        record = LogRecord(topic, self.end(topic), key, value, timestamp, list(headers) if headers else None)
        self._records.setdefault(topic, []).append(record)
        return record

    def end(self, topic: str) -> int:
        """Return the next offset of a topic."""
        return len(self._records.get(topic, ()))

    def records(self, topic: str, start: int) -> list[LogRecord]:
        """Return the records of a topic from an offset on."""
        return self._records.get(topic, [])[start:]

    def known_end(self, partition: TopicPartition) -> int:
        """Return the next offset of a topic's only partition."""
        return self.end(partition.topic)

    def unread(self, topic: str) -> deque[LogRecord]:
        """Return the outputs on a topic that were not read yet, oldest first."""
        return self._unread.setdefault(topic, deque())

    def written(self) -> set[str]:
        """Return the topics with outputs, read or not."""
        return set(self._unread)
