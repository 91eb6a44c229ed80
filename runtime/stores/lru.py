"""In-memory key-value store that keeps the most recently used entries (Kafka Streams' `Stores.lruMap`).

An entry is used when it is put, or read by `get`; reads by joins and aggregates do not count. The least recently used entry beyond the
maximum is deleted, from the changelog too, and nothing is forwarded downstream. After an abort or a restart the order begins from nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.runtime.model.ids import NextOffset, Partition
from penstock.runtime.model.record import Headers
from penstock.runtime.stores.base import ChangelogRecord, Entry
from penstock.runtime.stores.key_value import StagedKeyValueStore


class StagedLruStore(StagedKeyValueStore):
    """The key-value store of a supplier with `max_entries`. It is not cached."""

    def _loaded_from_backend(self) -> None:
        super()._loaded_from_backend()
        self._reset_order()

    def _reset_order(self) -> None:
        self._used = dict.fromkeys(key for key, _ in self._opened().range(None, None, reverse=False))

    def get(self, key: object) -> object:
        value = super().get(key)
        if value is not None:
            self._touch(self._reader.key_bytes(key))
        return value

    def update(self, key: bytes, key_object: object, entry: Entry, value: object, timestamp: int, headers: Headers | None) -> None:
        super().update(key, key_object, entry, value, timestamp, headers)
        if value is None:
            self._used.pop(key, None)
            return
        self._touch(key)
        most = self._settings.max_entries
        while most is not None and len(self._used) > most:
            oldest = next(iter(self._used))
            del self._used[oldest]
            super().update(oldest, None, self.entry(oldest), None, timestamp, None)

    def _touch(self, key: bytes) -> None:
        self._used.pop(key, None)
        self._used[key] = None

    def rollback(self) -> None:
        super().rollback()
        self._reset_order()

    def restore(self, records: Sequence[ChangelogRecord], offsets: Mapping[Partition, NextOffset]) -> None:
        super().restore(records, offsets)
        for key, value, _ in records:
            if value is None:
                self._used.pop(key, None)
            else:
                self._touch(key)
