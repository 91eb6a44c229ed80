"""Reads of a store by other threads: interactive queries.

The owning thread may close or wipe the store at any moment, and RocksDB keeps its file lock while a thread is inside it or holds one of its
objects, so that the store could not be opened again. So another thread takes the store's lock, `gate`, for each read and each step of an
iteration, and closing the store takes it too. Processing never takes it, so no query can delay processing.
"""

from __future__ import annotations

from collections.abc import Iterator
from threading import Lock
from typing import Generic, Protocol, TypeVar

Row = tuple[bytes, bytes]


class Gated(Protocol):
    """A store with a lock for other threads."""

    @property
    def gate(self) -> Lock: ...

    def approximate_size(self) -> int: ...


S = TypeVar("S", bound=Gated)


class SharedRows(Iterator[Row]):
    """An iterator that takes the store's lock for each step."""

    __slots__ = ("_gate", "_rows")

    def __init__(self, store: Gated, rows: Iterator[Row]) -> None:
        self._gate, self._rows = store.gate, rows

    def __next__(self) -> Row:
        with self._gate:
            return next(self._rows)


class Shared(Generic[S]):
    """Reads that every kind of store has."""

    def __init__(self, store: S) -> None:
        self._store = store

    def approximate_size(self) -> int:
        with self._store.gate:
            return self._store.approximate_size()
