"""Dead letters of global topics (`errors.dead.letter.queue.topic.name`).

A task's dead letter rides in the transaction that commits the offset behind the record. A global store has no offset in any transaction: it
is read before there is a producer, and what was read is not read again when a transaction aborts. So a letter is kept here until a
transaction that it was sent in is committed. Each instance reads a global topic for itself, and again when it rebuilds its store: each
time the record is skipped there is a letter, and its headers tell which record it is.
"""

from __future__ import annotations

from runtime.commit.order import Transport
from runtime.handlers import dead_letter_headers
from runtime.intake.verdict import RawMessage, raw_record
from runtime.record import Headers


class GlobalLetters:
    """Letters of one worker that are not yet written for good."""

    def __init__(self, topic: str | None) -> None:
        """`topic` None: letters are not kept."""
        self._topic = topic
        self._waiting: list[tuple[bytes | None, bytes | None, int, Headers]] = []

    def add(self, message: RawMessage, cause: BaseException) -> None:
        """A handler said CONTINUE."""
        if self._topic is not None:
            record = raw_record(message)
            self._waiting.append((message.key(), message.value(), max(record.timestamp, 0), dead_letter_headers(record, cause)))

    def send(self, transport: Transport) -> int:
        """Sends all of them in the open transaction; returns how many. `written` follows if that is committed."""
        for key, value, timestamp, headers in self._waiting:
            transport.send(str(self._topic), key, value, timestamp, headers, None)
        return len(self._waiting)

    def written(self, letters: int) -> None:
        """The first so many are committed."""
        del self._waiting[:letters]
