"""Dead letters of global topics (`errors.dead.letter.queue.topic.name`).

A task's dead letter is part of the transaction that commits the offset of the skipped record. A global store has no offset in any
transaction: it is read before there is a producer, and its records are not read again when a transaction aborts. So a dead letter is held
in memory until a transaction that contains it is committed. Each instance reads a global topic for itself, and again when it rebuilds its
store. Each time the record is skipped a dead letter is written; its headers identify the record.
"""

from __future__ import annotations

from penstock.runtime.commit.order import Transport
from penstock.runtime.input.deserialization import RawMessage, raw_record
from penstock.runtime.model.handlers import dead_letter_headers
from penstock.runtime.model.record import Headers


class GlobalDeadLetters:
    """Uncommitted dead letters of one worker's global topics."""

    def __init__(self, topic: str | None) -> None:
        """`topic` None: no dead letters are written."""
        self._topic = topic
        self._waiting: list[tuple[bytes | None, bytes | None, int, Headers]] = []

    def add(self, message: RawMessage, cause: BaseException) -> None:
        """Add a record that a handler skipped with CONTINUE."""
        if self._topic is not None:
            record = raw_record(message)
            self._waiting.append((message.key(), message.value(), max(record.timestamp, 0), dead_letter_headers(record, cause)))

    def send(self, transport: Transport) -> int:
        """Send all of them in the open transaction. Return their number, for `committed`."""
        for key, value, timestamp, headers in self._waiting:
            transport.send(str(self._topic), key, value, timestamp, headers, None)
        return len(self._waiting)

    def committed(self, count: int) -> None:
        """Drop the first `count`, which are committed now."""
        del self._waiting[:count]
