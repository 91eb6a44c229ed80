"""A store's reads for threads that are not its own: interactive queries.

The store's thread may close or empty it at any moment, and RocksDB keeps its lock for as long as anybody is inside it or holds one of its
objects: the store could not be opened again. So a foreign thread goes in through the store's gate, for each read and each step of an
iteration, and whoever closes the store waits for it. Processing does not: it never takes the gate, so no query can hold it up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from runtime.stores.rocks import RocksBackend, RocksStore
    from runtime.stores.rocks_segments import RocksSegments, RocksVersions

S = TypeVar("S", bound="RocksBackend | RocksSegments")
T = TypeVar("T")
Row = tuple[bytes, bytes]


class _Rows(Iterator[Row]):
    """Steps of an iteration, each through the gate."""

    __slots__ = ("_gate", "_rows")

    def __init__(self, store: RocksStore, rows: Iterator[Row]) -> None:
        self._gate, self._rows = store.gate, rows

    def __next__(self) -> Row:
        with self._gate:
            return next(self._rows)


class Shared(Generic[S]):
    """What all kinds have."""

    def __init__(self, store: S) -> None:
        self._store = store

    def approximate_size(self) -> int:
        with self._store.gate:
            return self._store.approximate_size()


class SharedKeyValues(Shared["RocksBackend"]):
    """Reads of a key-value store."""

    def get(self, key: bytes) -> bytes | None:
        with self._store.gate:
            return self._store.get(key)

    def range(self, lo: bytes | None, hi: bytes | None, *, reverse: bool = False) -> Iterator[Row]:
        with self._store.gate:
            return _Rows(self._store, self._store.range(lo, hi, reverse=reverse))


R = TypeVar("R", bound="RocksSegments")


class SharedSegments(Shared[R]):
    """Reads of a store of times."""

    def get(self, key: bytes) -> bytes | None:
        with self._store.gate:
            return self._store.get(key)

    def segments(self) -> list[int]:
        with self._store.gate:
            return self._store.segments()

    def ranges_in(self, segments: Sequence[int], lo: bytes | None, hi: bytes | None, *, reverse: bool = False) -> list[Iterator[Row]]:
        with self._store.gate:
            return [_Rows(self._store, rows) for rows in self._store.ranges_in(segments, lo, hi, reverse=reverse)]


class SharedVersions(SharedSegments["RocksVersions"]):
    """Reads of a versioned store. `look` goes through the gate once for all that is read in it."""

    _store: RocksVersions

    def look(self, read: Callable[[], T]) -> T:
        with self._store.gate:
            return self._store.look(read)

    def all_latest(self) -> Iterator[Row]:
        with self._store.gate:
            return _Rows(self._store, self._store.all_latest())
