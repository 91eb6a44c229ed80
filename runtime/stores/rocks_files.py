"""RocksDB files that no store has open: reading, and writing as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import cast

from rocksdict import AccessType, Options, Rdict, ReadOptions, WriteBatch

from penstock.runtime.model.errors import StateDirectoryError
from penstock.runtime.model.ids import NextOffset, TopicPartition
from penstock.runtime.stores.budget import MIB, StoreMemory
from penstock.runtime.stores.locks import remedy
from penstock.runtime.stores.rocks import META, OFFSETS, SEGMENT, RocksStore
from penstock.runtime.stores.rocks_options import WRITE_BUFFER

_RUN, _MOST_ENTRIES, _MOST_BYTES = 256, 16_384, 32 * MIB
"""Entries that are read before their size is known, and the approximate limits of a batch."""
_WRITTEN = 1_000
"""Entries written at a time: RocksDB blocks all other threads of the process meanwhile."""


class Families:
    """A store's files or a checkpoint, by column family. Nothing is locked and nothing is open yet.

    Raises StateDirectoryError when there is no readable RocksDB; so do its methods.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._all = frozenset(Rdict.list_cf(str(path)))
        except Exception as error:  # rocksdict raises plain Exception
            raise _unreadable(path, error) from error

    @property
    def names(self) -> list[str]:
        """Return the families of entries: all but `offsets`."""
        return sorted(self._all - {OFFSETS})

    @property
    def segments(self) -> list[tuple[int, str]]:
        """Return starts (ms) and names of the segments, in order of time."""
        return sorted((int(name.removeprefix(SEGMENT)), name) for name in self._all if name.startswith(SEGMENT))

    def require(self, family: str) -> str:
        """Return the family's name. Raises StateDirectoryError where it does not exist: the store is of another kind than declared."""
        if family not in self._all:
            raise StateDirectoryError(f"the store in {self.path} has no column family {family!r}; there are {', '.join(self.names)}")
        return family

    @contextmanager
    def opened(self, families: Iterable[str]) -> Iterator[Opened]:
        """Open these families, and no files of others, for reading."""
        wanted = {"default", *families, *self._all.intersection({OFFSETS})}
        options = {name: Options(raw_mode=True) for name in wanted}
        try:
            database = Rdict(str(self.path), Options(raw_mode=True), column_families=options, access_type=AccessType.read_only(False))
        except Exception as error:  # rocksdict raises plain Exception
            raise _unreadable(self.path, error) from error
        try:
            yield Opened(self.path, database, OFFSETS in wanted)
        finally:
            database.close()


class Opened:
    """Column families that are open for reading."""

    def __init__(self, path: Path, database: Rdict, has_offsets: bool) -> None:
        self._path = path
        self._database = database
        self._has_offsets = has_offsets

    def meta(self, name: str) -> bytes | None:
        """Return the engine's metadata of this name."""
        if not self._has_offsets:
            return None
        found: bytes | None = self._database.get_column_family(OFFSETS).get(META + name.encode())
        return found

    def entries(self, family: str, lo: bytes | None = None, hi: bytes | None = None) -> Iterator[list[tuple[bytes, bytes]]]:
        """Iterate over entries of a family with lo <= key < hi, some ten thousand at a time."""
        return _batches(self._database.get_column_family(family), self._path, lo, hi)


def read_files(path: Path) -> Iterator[tuple[str, list[tuple[bytes, bytes]]]]:
    """Iterate over entries of a store's files or of a checkpoint, as (column family, batch of entries), without `offsets`; read-only.

    Raises StateDirectoryError when there is no readable RocksDB.
    """
    families = Families(path)
    with families.opened(families.names) as opened:
        for name in families.names:
            yield from ((name, batch) for batch in opened.entries(name))


def _unreadable(path: Path, error: Exception) -> StateDirectoryError:
    return StateDirectoryError(f"{path} holds no store that can be read: {error}{remedy(str(error))}")


def _batches(family: Rdict, path: Path, lo: bytes | None, hi: bytes | None) -> Iterator[list[tuple[bytes, bytes]]]:
    options = ReadOptions()
    options.set_readahead_size(2 * MIB)
    if hi is not None:
        options.set_iterate_upper_bound(hi)
    # raw mode: keys and values are bytes
    items = cast(Iterator[tuple[bytes, bytes]], family.items(from_key=lo, read_opt=options))
    last = b"" if lo is None else lo
    while batch := _some(items):
        last = batch[-1][0] + b"\0"
        yield batch
    check = family.iter(options)  # `items()` ends at a damaged block as if there were no more entries
    check.seek(last)
    try:
        check.status()
    except Exception as error:  # rocksdict raises plain Exception
        raise StateDirectoryError(f"the store in {path} cannot be read to its end: {error}") from error


def _some(items: Iterator[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the next batch of entries, with fewer entries where they are large."""
    batch: list[tuple[bytes, bytes]] = []
    size = 0
    while len(batch) < _MOST_ENTRIES and size < _MOST_BYTES and (run := list(islice(items, _RUN))):
        batch += run
        size += sum(map(len, map(itemgetter(1), run)))
    return batch


def write_files(
    path: Path,
    families: Mapping[str, Iterable[tuple[bytes, bytes]]],
    offsets: Mapping[TopicPartition, NextOffset],
    meta: Mapping[str, bytes],
) -> None:
    """Create a new RocksDB in the directory `path` that looks like a checkpoint of a persistent store; entries in any order."""
    store = RocksStore(path, families, StoreMemory(block_cache_bytes=2 * WRITE_BUFFER, write_buffer_bytes=WRITE_BUFFER), None)
    try:
        for name, entries in families.items():
            handle, rest = store._handles[name], iter(entries)
            while run := list(islice(rest, _WRITTEN)):
                batch = WriteBatch(raw_mode=True)
                for key, value in run:
                    batch.put(key, value, handle)
                store._write(batch, {}, {})
        store._write(WriteBatch(raw_mode=True), offsets, meta)
        store.flush()
    finally:
        store.close()
