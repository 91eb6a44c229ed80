"""Folding of changelog records by key before they are written.

A changelog that was not compacted recently holds most keys many times. Only the latest record of each key is kept, and value and time are
read only from those that are written: a call per record costs more than the rest of the work. (The unbound methods through `map` cost
half of what `message.key()` in a loop does.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from penstock.runtime.kafka.messages import Message
from penstock.runtime.model.record import Headers
from penstock.runtime.stores.base import ChangelogRecord
from penstock.runtime.stores.headers import pack

_RECORD_BYTES = 400
"""Bytes of a record besides its value."""
_SAMPLE = 16
"""Every n-th record is measured."""


def _packed(message: Message) -> bytes | None:
    return pack(cast("Headers | None", message.headers()), message.value())


class FoldedBatch:
    """The latest record of each key since the last write; or every record, for a store in which more than a key's last one counts
    (`EngineStore.folded_by_key`; versions, and stores of the user's own: rules.md, 9)."""

    __slots__ = ("_by_key", "_every", "_largest", "_latest", "_value", "records", "since_ms")

    def __init__(self, by_key: bool = True, headers: bool = False) -> None:
        """`headers`: values are packed with their records' headers; only of stores that are folded by key."""
        self._by_key = by_key
        self._value = _packed if headers else Message.value
        self._latest: dict[bytes | None, Message] = {}
        self._every: list[Message] = []
        self._largest = 0
        self.records = 0
        self.since_ms: int | None = None
        """Time since which records, or only an offset, wait to be written."""

    def add(self, messages: Sequence[Message], now_ms: int) -> None:
        """Add a run of one partition, in order."""
        if self._by_key:
            self._latest.update(zip(map(Message.key, messages), messages, strict=True))
        else:
            self._every.extend(messages)
        sample = messages[::_SAMPLE]
        self._largest = max(self._largest, sum(map(len, sample)) // len(sample))
        self.records += len(messages)
        self.touch(now_ms)

    @property
    def memory(self) -> int:
        """Estimated bytes."""
        return (len(self._latest) + len(self._every)) * (_RECORD_BYTES + self._largest)

    def touch(self, now_ms: int) -> None:
        """Note that there is something to write, at least a later offset."""
        if self.since_ms is None:
            self.since_ms = now_ms

    def is_due(self, now_ms: int, longest_ms: int, most_keys: int) -> bool:
        """Return True if the batch is large, or older than `longest_ms`: a kill would repeat too much."""
        return self.since_ms is not None and (now_ms - self.since_ms >= longest_ms or len(self._latest) + len(self._every) >= most_keys)

    def take(self) -> list[ChangelogRecord]:
        """Return the folded records and clear the batch. Records without a key are left out."""
        if not self._by_key:
            return self._take_every()
        latest, self._latest = self._latest, {}
        latest.pop(None, None)
        messages = latest.values()
        times = [message.timestamp()[1] for message in messages]
        self._largest = self.records = 0
        self.since_ms = None
        return list(zip(latest, map(self._value, messages), times, strict=True))  # type: ignore[arg-type]  # no key is None any more

    def _take_every(self) -> list[ChangelogRecord]:
        every, self._every = self._every, []
        self._largest = self.records = 0
        self.since_ms = None
        return [(key, message.value(), message.timestamp()[1]) for message in every if (key := message.key()) is not None]
