"""What a place for a store's committed bytes must promise; `rocks.py` and `memory.py` are the two."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from runtime.ids import NextOffset, Partition


class Backend(Protocol):
    """Committed bytes. Written by one thread; read by any."""

    def get(self, key: bytes) -> bytes | None: ...

    def write(
        self,
        entries: Iterable[tuple[bytes, bytes | None]],
        offsets: Mapping[Partition, NextOffset],
        meta: Mapping[str, bytes] | None = None,
    ) -> None:
        """All of it or none of it, also through a kill -9. None as a value deletes; of two entries of one key the last holds."""

    def offsets(self) -> dict[Partition, NextOffset]: ...

    def meta(self, name: str) -> bytes | None: ...

    def approximate_size(self) -> int:
        """Number of entries, an estimate."""
        ...

    def is_empty(self) -> bool:
        """True if there is no entry."""
        ...

    def flush(self) -> None:
        """Makes what was written durable against a power loss, where the backend can."""

    def begin_checkpoint(self, path: Path) -> Callable[[], None]:
        """Begins a copy of what is committed now, as a RocksDB in the folder `path`, which must not exist. What it gives does the rest: any
        thread may call it, while the store is written to."""

    def close(self) -> None: ...

    def wipe(self) -> None:
        """Empties it: entries, offsets and metas. It stays open."""


class KeyValueSource(Protocol):
    """Reads of a backend in one piece."""

    def get(self, key: bytes) -> bytes | None: ...

    def range(self, lo: bytes | None, hi: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Entries with lo <= key < hi (None: no bound) in the order of their bytes, as they were when the iteration began."""
        ...

    def approximate_size(self) -> int: ...


class KeyValueBackend(KeyValueSource, Backend, Protocol):
    """A backend in one piece."""

    def shared(self) -> KeyValueSource:
        """Its reads, for threads that are not the store's own."""
        ...


class SegmentedSource(Protocol):
    """Reads of a backend in segments."""

    def get(self, key: bytes) -> bytes | None: ...

    def segments(self) -> list[int]:
        """Numbers (time divided by the segments' length) of the segments that exist, in order of time."""
        ...

    def ranges_in(
        self, segments: Sequence[int], lo: bytes | None, hi: bytes | None, *, reverse: bool = False
    ) -> list[Iterator[tuple[bytes, bytes]]]:
        """As `KeyValueBackend.range`, in each of these segments (nothing where one does not exist); all as of one commit."""
        ...


class SegmentedBackend(SegmentedSource, Backend, Protocol):
    """A backend whose keys hold a time (`SegmentSettings`), kept in segments of it that can be dropped whole."""

    def shared(self) -> SegmentedSource:
        """Its reads, for threads that are not the store's own."""
        ...

    def range_in(self, segment: int, lo: bytes | None, hi: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """`ranges_in` of one segment."""
        ...

    def drop_before(self, segment: int) -> int:
        """Drops the segments with smaller numbers; how many there were."""
        ...
