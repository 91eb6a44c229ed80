"""Contract of a backend, the place for a store's committed bytes, implemented in `rocks.py` and `memory.py`; and reads by other threads.

Interactive queries read a store from other threads. The owning thread may close or wipe the store at any moment, and RocksDB keeps its file
lock while a thread is inside it or holds one of its objects, so that the store could not be opened again. So another thread takes the
store's lock, `gate`, for each read and each step of an iteration, and closing the store takes it too. Processing never takes it, so no
query can delay processing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from operator import itemgetter
from pathlib import Path
from threading import Lock
from typing import Generic, Protocol, TypeVar

from penstock.runtime.model.ids import NextOffset, TopicPartition

Entries = Iterable[tuple[bytes, bytes | None]]
"""Keys and values to write; None deletes. Of two entries with one key the last counts. They are written fastest in the order of their
keys."""
BY_KEY = itemgetter(0)
"""Sort key of entries and records. RocksDB finds the place of each key in its memtable from that of the key before (measured over 100,000
keys, 16,000 a batch: 0.6 us per entry instead of 1.6; the sorting takes 0.3). Records of a key keep their order."""
_KEY_AND_VALUE = itemgetter(0, 1)
Offsets = Mapping[TopicPartition, NextOffset]
Meta = Mapping[str, bytes]


def in_key_order(records: Iterable[tuple[bytes, bytes | None, int]]) -> Entries:
    """Return changelog records as entries, in the order of their keys; each is made when it is written."""
    return map(_KEY_AND_VALUE, sorted(records, key=BY_KEY))


class Backend(Protocol):
    """Committed bytes. Written by one thread; read by any."""

    def get(self, key: bytes) -> bytes | None: ...

    def begin_get_all(self, keys: Sequence[bytes]) -> Future[list[bytes | None]] | None:
        """Start to read keys on another thread, absent ones as None; the result raises what `get` raises. Only `get` and `write` may be
        called meanwhile. None where `get` is as fast."""
        ...

    def write(self, entries: Entries, offsets: Offsets, meta: Meta | None = None) -> None:
        """Write everything or nothing, even through a kill -9."""

    def begin_write(self, entries: Entries) -> Callable[[Offsets, Meta], None]:
        """Prepare a write as far as it needs no offsets, without a visible effect other than new, empty segments. The returned function
        completes it, before anything else is written; or the write is dropped with it."""
        ...

    def offsets(self) -> dict[TopicPartition, NextOffset]: ...

    def meta(self, name: str) -> bytes | None: ...

    def approximate_size(self) -> int:
        """Return the estimated number of entries."""
        ...

    def is_empty(self) -> bool:
        """Return True if there is no entry."""
        ...

    def flush(self) -> None:
        """Make what was written durable against a power loss, where the backend can."""

    def begin_checkpoint(self, path: Path) -> Callable[[], None]:
        """Start a copy of the data committed now, as a RocksDB in the new directory `path`. The returned function completes it: any thread
        may call it, while the store is written to."""

    def close(self) -> None: ...

    def wipe(self) -> None:
        """Remove all entries, offsets and metadata. The backend stays open."""


class KeyValueSource(Protocol):
    """Reads of an unsegmented backend."""

    def get(self, key: bytes) -> bytes | None: ...

    def range(self, lo: bytes | None, hi: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over entries with lo <= key < hi (None: no bound) in the order of their bytes, as of the start of the iteration."""
        ...

    def approximate_size(self) -> int: ...

    def offsets(self) -> dict[TopicPartition, NextOffset]: ...


class KeyValueBackend(KeyValueSource, Backend, Protocol):
    """An unsegmented backend."""

    def shared(self) -> KeyValueSource:
        """Return its reads for threads other than the store's own."""
        ...


class SegmentedSource(Protocol):
    """Reads of a segmented backend."""

    def get(self, key: bytes) -> bytes | None: ...

    def offsets(self) -> dict[TopicPartition, NextOffset]: ...

    def segments(self) -> list[int]:
        """Return the numbers (time divided by segment length) of existing segments, in order of time."""
        ...

    def ranges_in(
        self, segments: Sequence[int], lo: bytes | None, hi: bytes | None, *, reverse: bool = False
    ) -> list[Iterator[tuple[bytes, bytes]]]:
        """Iterate as `KeyValueBackend.range` in each of these segments (nothing in a missing one), all as of one commit."""
        ...


class SegmentedBackend(SegmentedSource, Backend, Protocol):
    """A backend whose keys contain a time (`SegmentSettings`), in segments that can be dropped as a whole."""

    def shared(self) -> SegmentedSource:
        """Return its reads for threads other than the store's own."""
        ...

    def range_in(self, segment: int, lo: bytes | None, hi: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Iterate as `ranges_in`, in one segment."""
        ...

    def drop_before(self, segment: int) -> int:
        """Drop the segments with smaller numbers. Return how many there were."""
        ...


Row = tuple[bytes, bytes]


class Gated(Protocol):
    """A store with a lock for other threads."""

    @property
    def gate(self) -> Lock: ...

    def approximate_size(self) -> int: ...

    def offsets(self) -> dict[TopicPartition, NextOffset]: ...


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

    def offsets(self) -> dict[TopicPartition, NextOffset]:
        with self._store.gate:
            return self._store.offsets()
