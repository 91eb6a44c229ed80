"""Stores in restore: their task, their position, and the records not written yet.

A table that is restored from its own source topic (`topology.optimization`, KIP-813) has the rows that processing gave: a changelog holds a
store's entries, a source topic the records of its producers. Some cannot be read and were skipped by a handler, others got another time
from an extractor, so each record is decoded as its source decodes it. No handler decides again: only committed records are restored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from penstock.runtime.changelog.folding import FoldedBatch
from penstock.runtime.changelog.following import Following
from penstock.runtime.changelog.staleness import Changelog
from penstock.runtime.input.deserialization import Decoder, RawMessage
from penstock.runtime.kafka.messages import Message
from penstock.runtime.model.ids import NextOffset, TaskId
from penstock.runtime.stores.base import ChangelogRecord, EngineStore
from penstock.runtime.stores.headers import pack


def _without_headers(message: Message) -> bytes | None:
    """Return a packed value without headers, as tables write it (KIP-1285)."""
    return pack(None, message.value())


class SourceBatch(FoldedBatch):
    """`FoldedBatch` of the readable records, with their timestamps in the table."""

    __slots__ = ("_by_offset", "_decoder", "_times", "_until")

    def __init__(self, by_key: bool, headers: bool, decoder: Decoder) -> None:
        super().__init__(by_key)
        if headers:
            self._value = _without_headers
        self._by_offset: list[int] = []
        self._decoder = decoder
        self._times: dict[bytes, int] = {}
        self._until = -1

    def add(self, messages: Sequence[Message], now_ms: int) -> None:
        read = self._readable(messages)
        if read:
            super().add(read, now_ms)
        self.records += len(messages) - len(read)
        self.touch(now_ms)

    def _readable(self, messages: Sequence[Message]) -> list[Message]:
        found: list[Message] = []
        waiting = messages
        while waiting:
            batch, failure = self._decoder.decode(cast(Sequence[RawMessage], waiting), self._until)
            for message, timestamp in zip(cast(Sequence[Message], batch.messages), batch.timestamps, strict=True):
                key = message.key()
                self._until = max(self._until, timestamp)
                if key is not None:
                    found.append(message)
                    self._times[key] = timestamp
                    self._by_offset.append(timestamp)
            waiting = () if failure is None else waiting[len(batch.messages) + batch.dropped + 1 :]
        return found

    def take(self) -> list[ChangelogRecord]:
        rows, times, by_offset = super().take(), self._times, self._by_offset
        self._times, self._by_offset = {}, []
        if self._by_key:
            return [(key, value, times[key]) for key, value, _ in rows]
        return [(key, value, timestamp) for (key, value, _), timestamp in zip(rows, by_offset, strict=True)]


@dataclass(slots=True)
class Reading:
    """One store in restore to the end of its changelog, or, if `following`, to its moving end."""

    task: TaskId
    store: EngineStore
    log: Changelog
    position: NextOffset
    following: Following | None
    records: int = 0
    last: int = -1
    """Offset of the last record read."""
    batch: FoldedBatch = field(init=False)

    def __post_init__(self) -> None:
        by_key, headers, source = self.store.folded_by_key, self.store.keeps_headers, self.log.source
        self.batch = FoldedBatch(by_key, headers) if source is None else SourceBatch(by_key, headers, source())

    @property
    def has_all(self) -> bool:
        """True for a follower of a source topic that has everything committed, and waits for the next commit."""
        return self.log.source is not None and self.following is not None and self.position >= self.following.end

    @property
    def end(self) -> NextOffset:
        """End of the restore; for a follower, the last known end."""
        return self.log.end if self.following is None else max(self.following.end, self.position)

    def take(self, messages: Sequence[Message], now_ms: int) -> None:
        """Add a run of records."""
        self.batch.add(messages, now_ms)
        self.records += len(messages)
        self.last = offset_of(messages[-1])
        self.position = NextOffset(self.last + 1)


def offset_of(message: Message) -> int:
    """Return the offset of a record."""
    offset = message.offset()
    assert offset is not None
    return offset
