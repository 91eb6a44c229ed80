"""Rows of a table that is restored from its own source topic (`topology.optimization`, KIP-813): what its task has made of the records.

A changelog holds what a store held. A source topic holds what others wrote: records that cannot be read, which a handler passed over, and
times that an extractor makes something else of. None of these may come into the store in another way than when the record was
processed. So each record is read as its source reads it. No handler is asked again: what it decided is known, since only what is
committed is restored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from confluent_kafka import Message

from runtime.changelog.folding import FoldedBatch
from runtime.changelog.staleness import ChangelogRecord
from runtime.intake.verdict import Decoder, RawMessage


class SourceBatch(FoldedBatch):
    """As `FoldedBatch`, of the records that can be read, with the times that they have for their table."""

    __slots__ = ("_by_offset", "_decoder", "_times", "_until")

    def __init__(self, by_key: bool, decoder: Decoder) -> None:
        super().__init__(by_key)
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
