"""Key-value stores, plain and timestamped (Kafka Streams' `KeyValueStore`, `TimestampedKeyValueStore`), and one in memory of limited size
(`Stores.lruMap`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from penstock.runtime.model.ids import NextOffset, TopicPartition
from penstock.runtime.model.record import Headers
from penstock.runtime.serdes.serde import Serde
from penstock.runtime.stores.backend import KeyValueBackend, KeyValueSource
from penstock.runtime.stores.base import ChangelogRecord, Entry, StoreContext
from penstock.runtime.stores.memory import MemoryBackend
from penstock.runtime.stores.reading import NOTHING_STAGED, Reader, Staged
from penstock.runtime.stores.rocks import RocksBackend
from penstock.runtime.stores.staging import StagedStore


class KeyValueReads(ABC):
    """Reads over a source of rows: the store with its staging, or the committed data alone."""

    _reader: Reader

    @abstractmethod
    def _rows(self, lo: bytes | None, hi: bytes | None, reverse: bool) -> Iterator[tuple[bytes, object]]:
        """Iterate over (key bytes, value) with lo <= key < hi."""

    def range(self, from_key: object | None, to_key: object | None) -> Iterator[tuple[object, object]]:
        """Iterate over entries from one key to another, both inclusive, in the order of their bytes; None: no bound."""
        return self._between(from_key, to_key, False)

    def reverse_range(self, from_key: object | None, to_key: object | None) -> Iterator[tuple[object, object]]:
        """Iterate as `range`, from the largest key down."""
        return self._between(from_key, to_key, True)

    def all(self) -> Iterator[tuple[object, object]]:
        """Iterate over all entries in the order of their keys' bytes."""
        return self._between(None, None, False)

    def reverse_all(self) -> Iterator[tuple[object, object]]:
        """Iterate over all entries, from the largest key down."""
        return self._between(None, None, True)

    def prefix_scan(self, prefix: object, prefix_serde: Serde | None = None) -> Iterator[tuple[object, object]]:
        """Iterate over entries whose key's bytes begin with those of `prefix`, written by `prefix_serde` (default: the store's own)."""
        data = prefix_serde.serializer(self._reader.store)(prefix) if prefix_serde is not None else self._reader.key_bytes(prefix)
        if data is None:
            raise ValueError(f"store {self._reader.store}: a prefix must not be None")
        return self._with_keys(self._rows(data, after_prefix(data), False))

    def _between(self, from_key: object | None, to_key: object | None, reverse: bool) -> Iterator[tuple[object, object]]:
        return self._with_keys(self._rows(*self._bounds(from_key, to_key), reverse))

    def _bounds(self, from_key: object | None, to_key: object | None) -> tuple[bytes | None, bytes | None]:
        lo = self._reader.key_bytes(from_key) if from_key is not None else None
        return lo, self._reader.key_bytes(to_key) + b"\0" if to_key is not None else None

    def _with_keys(self, rows: Iterator[tuple[bytes, object]]) -> Iterator[tuple[object, object]]:
        read_key = self._reader.read_key
        for data, value in rows:
            try:
                key = read_key(data)
            except BaseException as error:
                raise self._reader.unreadable_key(data, error) from error
            yield key, value


class StagedKeyValueStore(StagedStore[KeyValueBackend], KeyValueReads):
    """The engine's key-value store. Values of a timestamped one are `ValueAndTimestamp`."""

    def _open_backend(self, directory: Path, context: StoreContext) -> KeyValueBackend:
        settings = self._settings
        if not settings.persistent:
            return MemoryBackend(settings.family)
        return RocksBackend(settings.folder(directory), settings.family, context.memory, context.task_id)

    def get(self, key: object) -> object:
        """Return the value, or None. Raises ValueError for a None key, InvalidStateStoreError when the store is closed."""
        data = self._reader.key_bytes(key)
        entry = self.entry(data)
        return self._reader.staged(entry.value, entry.timestamp, data)

    def put(self, key: object, value: object) -> None:
        """Set a value; None deletes. The timestamp of a plain value is that of the current record."""
        data = self._reader.key_bytes(key)
        value, timestamp = self._taken(value)
        self.update(data, key, self.entry(data), value, timestamp, None)

    def put_if_absent(self, key: object, value: object) -> object:
        """Set a value if there is none. Return the existing one, or None."""
        present = self.get(key)
        if present is None:
            self.put(key, value)
        return present

    def put_all(self, entries: Iterable[tuple[object, object]]) -> None:
        """Put each entry."""
        for key, value in entries:
            self.put(key, value)

    def delete(self, key: object) -> object:
        """Remove a key. Return its value, or None."""
        present = self.get(key)
        if present is not None:
            self.put(key, None)
        return present

    def delete_range(self, from_key: object | None, to_key: object | None) -> None:
        """Remove the keys from one to another, both inclusive, in the order of their bytes; None: no bound. Each existing key is deleted by
        itself, because the changelog and downstream have no deletion of a range."""
        lo, hi = self._bounds(from_key, to_key)
        for key, _ in self._rows(lo, hi, False):
            self.update(key, None, self.entry(key), None, self._record_time(), None)

    def approximate_num_entries(self) -> int:
        """Return an estimate that counts overwritten and uncommitted keys more than once."""
        return self._opened().approximate_size() + len(self._uncommitted)

    def query_view(self, *, timestamped: bool = False, headers: bool = False, uncommitted: bool = False) -> KeyValueView:
        return KeyValueView(self._opened().shared(), self._reader.giving(timestamped, headers), self._staged(uncommitted))

    def _rows(self, lo: bytes | None, hi: bytes | None, reverse: bool) -> Iterator[tuple[bytes, object]]:
        stored = self._opened().range(lo, hi, reverse=reverse)
        return self._reader.merged(self._staged_range(lo, hi), stored, reverse)


class KeyValueView(KeyValueReads):
    """The content of a key-value store for interactive queries (`EngineStore.query_view`)."""

    def __init__(self, backend: KeyValueSource, reader: Reader, staged: Staged = NOTHING_STAGED) -> None:
        self._backend = backend
        self._reader = reader
        self._staged = staged

    def get(self, key: object) -> object:
        """Return the value, or None. Raises ValueError for a None key, InvalidStateStoreError when the store is closed."""
        data = self._reader.key_bytes(key)
        row = self._staged.find(data)
        return self._reader.stored(self._backend.get(data), data) if row is None else self._reader.staged(row[1], row[2], data)

    def approximate_num_entries(self) -> int:
        """Return an estimate that may count overwritten and uncommitted keys more than once."""
        return self._backend.approximate_size() + self._staged.count()

    def committed_offsets(self) -> dict[TopicPartition, NextOffset]:
        """Return the next offsets of changelog and inputs up to which the committed content goes."""
        return self._backend.offsets()

    def _rows(self, lo: bytes | None, hi: bytes | None, reverse: bool) -> Iterator[tuple[bytes, object]]:
        return self._reader.merged(self._staged.range(lo, hi), self._backend.range(lo, hi, reverse=reverse), reverse)


def after_prefix(prefix: bytes) -> bytes | None:
    """Return the smallest byte string that is larger than all that begin with `prefix`; None if there is none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None


class StagedLruStore(StagedKeyValueStore):
    """The key-value store of a supplier with `max_entries`. It is not cached.

    An entry is used when it is put, or read by `get`; reads by joins and aggregates do not count. The least recently used entry beyond the
    maximum is deleted, from the changelog too, and nothing is forwarded downstream. After an abort or a restart the order begins from
    nothing.
    """

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

    def restore(self, records: Sequence[ChangelogRecord], offsets: Mapping[TopicPartition, NextOffset]) -> None:
        super().restore(records, offsets)
        for key, value, _ in records:
            if value is None:
                self._used.pop(key, None)
            else:
                self._touch(key)
