"""Records of a changelog, folded by key before they are written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from runtime.changelog.staleness import ChangelogRecord

if TYPE_CHECKING:
    from confluent_kafka import Message

_MOST_RECORDS = 400_000
_MOST_BYTES = 32 * 1024 * 1024


class FoldedBatch:
    """The records since the last write, of which the latest of each key will be written.

    Columns, folded once when they are taken: a dict update per poll costs as much as reading the records does.
    """

    __slots__ = ("_bytes", "_keys", "_timestamps", "_values", "records", "since_ms")

    def __init__(self) -> None:
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self._timestamps: list[int] = []
        self._bytes = 0
        self.records = 0
        self.since_ms: int | None = None
        """Since when there is something to write: records, or only an offset."""

    def add(self, messages: Sequence[Message], now_ms: int) -> None:
        """Adds a run of one partition, in its order."""
        values = [message.value() for message in messages]
        self._keys.extend([message.key() for message in messages])
        self._values.extend(values)
        self._timestamps.extend([message.timestamp()[1] for message in messages])
        self._bytes += sum(map(len, filter(None, values)))
        self.records += len(messages)
        self.touch(now_ms)

    def touch(self, now_ms: int) -> None:
        """There is something to write, be it only a later offset."""
        if self.since_ms is None:
            self.since_ms = now_ms

    def is_due(self, now_ms: int, longest_ms: int) -> bool:
        """True when waiting longer would cost memory, or, after `longest_ms`, too much to do again after a kill."""
        if self.since_ms is None:
            return False
        return self.records >= _MOST_RECORDS or self._bytes >= _MOST_BYTES or now_ms - self.since_ms >= longest_ms

    def take(self) -> list[ChangelogRecord]:
        """The latest record of each key; the batch is empty afterwards. Records without a key belong to no entry of a table and are
        left out. (Not sorted: that costs more than RocksDB gains by it.)"""
        last = dict(zip(self._keys, range(self.records), strict=True))
        values, timestamps = self._values, self._timestamps
        taken = [(key, values[row], timestamps[row]) for key, row in last.items() if key is not None]
        self._keys, self._values, self._timestamps = [], [], []
        self._bytes = self.records = 0
        self.since_ms = None
        return taken
