"""Rows of a table that is restored from its own source topic (`topology.optimization`, KIP-813): as its task processed the records.

A changelog holds a store's entries. A source topic holds the records of its producers: some cannot be read and were skipped by a handler,
others got another time from an extractor. A restore must give the same rows as processing did, so each record is decoded as its source
decodes it. No handler is asked again: its decision is known, since only committed records are restored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from penstock.runtime.changelog.folding import FoldedBatch
from penstock.runtime.changelog.staleness import ChangelogRecord
from penstock.runtime.input.deserialization import Decoder, RawMessage
from penstock.runtime.kafka.messages import Message
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
