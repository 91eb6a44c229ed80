"""Key-value stores, plain and timestamped (Kafka Streams' `KeyValueStore`, `TimestampedKeyValueStore`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from runtime.serdes.serde import Serde
from runtime.stores.backend import KeyValueBackend, KeyValueSource
from runtime.stores.base import StoreContext
from runtime.stores.memory import MemoryBackend
from runtime.stores.reading import Reader
from runtime.stores.rocks import RocksBackend
from runtime.stores.staging import StagedStore


class KeyValueReads(ABC):
    """The reads, over whatever gives rows: the store with its staging, or the committed data alone."""

    _reader: Reader

    @abstractmethod
    def _rows(self, lo: bytes | None, hi: bytes | None, reverse: bool) -> Iterator[tuple[bytes, object]]:
        """(key bytes, value) with lo <= key < hi."""

    def range(self, from_key: object | None, to_key: object | None) -> Iterator[tuple[object, object]]:
        """Entries from one key to another, both inclusive, in the order of their bytes; None: no bound."""
        return self._between(from_key, to_key, False)

    def reverse_range(self, from_key: object | None, to_key: object | None) -> Iterator[tuple[object, object]]:
        """`range`, from the largest key down."""
        return self._between(from_key, to_key, True)

    def all(self) -> Iterator[tuple[object, object]]:
        """All entries in the order of their keys' bytes."""
        return self._between(None, None, False)

    def reverse_all(self) -> Iterator[tuple[object, object]]:
        """All entries, from the largest key down."""
        return self._between(None, None, True)

    def prefix_scan(self, prefix: object, prefix_serde: Serde | None = None) -> Iterator[tuple[object, object]]:
        """Entries whose key's bytes begin with those of `prefix`, written by `prefix_serde` (default: the store's own)."""
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
        return ((read_key(key), value) for key, value in rows)


class StagedKeyValueStore(StagedStore[KeyValueBackend], KeyValueReads):
    """A key-value store of the engine. A timestamped one takes and gives `ValueAndTimestamp`."""

    def _open_backend(self, directory: Path, context: StoreContext) -> KeyValueBackend:
        settings = self._settings
        if not settings.persistent:
            return MemoryBackend(settings.family)
        return RocksBackend(settings.folder(directory), settings.family, context.memory, context.task_id)

    def get(self, key: object) -> object:
        """The value, or None. Raises ValueError for a None key, InvalidStateStoreError when the store is closed."""
        entry = self.entry(self._reader.key_bytes(key))
        return self._reader.staged(entry.value, entry.timestamp)

    def put(self, key: object, value: object) -> None:
        """Sets a value; None deletes. The time of a plain value is that of the record which is being processed."""
        data = self._reader.key_bytes(key)
        value, timestamp = self._taken(value)
        self.update(data, key, self.entry(data), value, timestamp, None)

    def put_if_absent(self, key: object, value: object) -> object:
        """Sets a value where there is none; returns the one that is there, or None."""
        present = self.get(key)
        if present is None:
            self.put(key, value)
        return present

    def put_all(self, entries: Iterable[tuple[object, object]]) -> None:
        """`put` of each."""
        for key, value in entries:
            self.put(key, value)

    def delete(self, key: object) -> object:
        """Removes a key; returns the value that it had, or None."""
        present = self.get(key)
        if present is not None:
            self.put(key, None)
        return present

    def delete_range(self, from_key: object | None, to_key: object | None) -> None:
        """Removes the keys from one to another, both inclusive, in the order of their bytes; None: no bound. Each key that is there is
        deleted by itself, because that is what the changelog and what follows this store can be told."""
        lo, hi = self._bounds(from_key, to_key)
        for key, _ in self._rows(lo, hi, False):
            self.update(key, None, self.entry(key), None, self._record_time(), None)

    def approximate_num_entries(self) -> int:
        """An estimate that counts overwritten and uncommitted keys more than once."""
        return self._opened().approximate_size() + len(self._uncommitted)

    def query_view(self, *, timestamped: bool = False) -> KeyValueView:
        return KeyValueView(self._opened().shared(), replace(self._reader, give_time=timestamped and self._timestamped))

    def _rows(self, lo: bytes | None, hi: bytes | None, reverse: bool) -> Iterator[tuple[bytes, object]]:
        stored = self._opened().range(lo, hi, reverse=reverse)
        return self._reader.merged(self._staged_range(lo, hi), stored, reverse)


class KeyValueView(KeyValueReads):
    """The committed content of a key-value store, for interactive queries from any thread."""

    def __init__(self, backend: KeyValueSource, reader: Reader) -> None:
        self._backend = backend
        self._reader = reader

    def get(self, key: object) -> object:
        """The value, or None. Raises ValueError for a None key, InvalidStateStoreError when the store is closed."""
        return self._reader.stored(self._backend.get(self._reader.key_bytes(key)))

    def approximate_num_entries(self) -> int:
        """An estimate that may count overwritten keys more than once."""
        return self._backend.approximate_size()

    def _rows(self, lo: bytes | None, hi: bytes | None, reverse: bool) -> Iterator[tuple[bytes, object]]:
        return self._reader.merged((), self._backend.range(lo, hi, reverse=reverse), reverse)


def after_prefix(prefix: bytes) -> bytes | None:
    """The smallest byte string that is larger than all that begin with `prefix`; None if there is none."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None
