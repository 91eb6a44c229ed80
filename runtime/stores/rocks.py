"""Stores in RocksDB. Only modules whose names begin with `rocks` use rocksdict.

One RocksDB per store: column family `offsets` holds the next offsets and metadata, the others the entries. A commit is one WriteBatch over
all families. The write-ahead log is on and unsynced: committed data is with the operating system, so a kill -9 loses nothing, at no
measurable cost beside the write itself (rules.md, 8). `flush` syncs the log, which bounds the loss at a power failure.

Traps of rocksdict 0.3: `ReadOptions.set_iterate_lower_bound` sets the upper bound, so a lower bound is a seek forwards and a comparison
backwards; an iterator does not keep its `ReadOptions` alive, and without them its upper bound is freed memory; `items()` ends at a damaged
block without an error; a referenced iterator or family keeps the database open; `get` of one key and `write` hold the GIL, `get` of a list
does not; `flush` flushes one family.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from struct import Struct
from threading import Lock
from typing import Protocol, cast
from weakref import WeakSet

from rocksdict import (
    Checkpoint,
    ColumnFamily,
    DbClosedError,
    Options,
    Rdict,
    RdictIter,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from penstock.runtime.model.errors import InvalidStateStoreError, StateDirectoryError, StateDirectoryLockedError, TaskCorruptedError
from penstock.runtime.model.ids import NextOffset, TaskId, TopicPartition
from penstock.runtime.stores.backend import Entries, Gated, KeyValueSource, Meta, Offsets, Row, Shared, SharedRows
from penstock.runtime.stores.budget import StoreMemory
from penstock.runtime.stores.locks import STOP_IT, lock_holder, remedy
from penstock.runtime.stores.rocks_java import take_over
from penstock.runtime.stores.rocks_options import FILTERED, IN_CACHE, WRITE_BUFFER, database_options, family_options, rocks_memory

logger = logging.getLogger(__name__)

OFFSETS = "offsets"
SEGMENT = "segment."
EXPIRY_INDEX = "expiry.index"
"""Name of the metadata of a store whose segments are an index by timestamp (`expiring.py`): the time to live for which it was made."""
META = b"\x00"  # no topic's name begins with it
_OFFSET = Struct(">q")
_TABLES = "rocksdb.estimate-table-readers-mem"
_BYTES_PER_COUNT = WRITE_BUFFER // 2
"""After so many written bytes, the filters and indexes outside of the cache are counted, about twice per new file; and the store gets
filters over its write buffers."""


def get_list(family: Rdict, keys: Sequence[bytes]) -> list[bytes | None]:
    """Return the values of keys, None for absent ones, without the GIL."""
    return cast("list[bytes | None]", family.get(cast("list[str | int | float | bytes | bool]", keys)))


class RocksStore:
    """A RocksDB with offsets and metadata; the base of both backends. Raises as `EngineStore.open`."""

    def __init__(self, path: Path, families: Iterable[str], memory: StoreMemory, task: TaskId | None) -> None:
        self._path = path
        self._wanted = tuple(families)
        self._memory = rocks_memory(memory)
        self._chosen = None if memory.rocks_options is None else memory.rocks_options(path.name)
        self._task = task
        self._write_options = WriteOptions()
        self.gate = Lock()
        """Held by a thread other than the store's own while it is inside RocksDB (`backend.py`)."""
        self._open()

    def _open(self) -> None:
        self._filtered: set[str] = set()
        self._uncounted = 0
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            self._tables_outside = self._memory.has_room_for_tables(_bytes_of_files(self._path))
            names = {"default", OFFSETS, *self._wanted, *self._families_on_disk()}
            options = {name: self._options_of(name) for name in names}
            self._db = Rdict(str(self._path), database_options(self._memory, self._chosen), column_families=options)
        except OSError as error:
            raise StateDirectoryError(f"the store's folder {self._path} cannot be used: {error}{remedy(str(error))}") from error
        except Exception as error:  # rocksdict raises plain Exception
            raise _open_error(self._path, error, self._task) from error
        self._families: dict[str, Rdict] = {name: self._db.get_column_family(name) for name in names}
        self._handles: dict[str, ColumnFamily] = {name: self._db.get_column_family_handle(name) for name in names}
        self._scans: WeakSet[_Scan] = WeakSet()
        self._closed = False
        self._refuse_unreadable()
        self._count_tables()

    def _refuse_unreadable(self) -> None:
        """Raise TaskCorruptedError for a store of Kafka Streams that cannot be taken over; convert others."""
        reason = take_over(self._db, self._families, OFFSETS, self._handles[OFFSETS], self._wanted, next_offsets=self._task is None)
        if reason is not None:
            RocksStore._close(self)
            raise TaskCorruptedError(
                [self._task] if self._task else [], f"the store in {self._path} cannot be used: {reason}", self._path.name
            )

    def _options_of(self, family: str) -> Options:
        if family == OFFSETS or not (family in self._wanted or family.startswith(SEGMENT)):
            return database_options(self._memory)
        return family_options(self._memory, self._chosen, filtered=False, outside=self._tables_outside)

    def _count_tables(self) -> None:
        """Count the filters and indexes of open files that are outside of the block cache. When those of all stores take up their part of
        the budget, those of this store's new files go into the cache; compactions replace the others."""
        size = sum(int(each.property_int_value(_TABLES) or 0) for each in self._families.values())
        if self._memory.count_tables(id(self), size) or not self._tables_outside:
            return
        self._tables_outside = False
        try:
            for name, family in self._families.items():
                if name in self._wanted or name.startswith(SEGMENT):
                    family.set_options(IN_CACHE)
        except Exception as error:  # rocksdict raises plain Exception
            raise self._io_error("written", error) from error

    def _reserve_filters(self) -> None:
        """Give the families to which a store writes a filter over their next write buffers, while there are any. Called when the store has
        written much: with hundreds of idle stores, the first ones would hold all of them."""
        if self._chosen is not None and "set_memtable_prefix_bloom_ratio" in self._chosen.of_families:
            return
        segments = [name for name in self._families if name.startswith(SEGMENT)]
        newest = max(segments, key=lambda name: int(name.removeprefix(SEGMENT)), default=None)
        for name in (*self._wanted, *([] if newest is None else [newest])):
            if name in self._filtered or not self._memory.reserve_filter():
                continue
            self._filtered.add(name)
            try:
                self._families[name].set_options(FILTERED)
            except Exception as error:  # rocksdict raises plain Exception
                raise self._io_error("written", error) from error

    def _release_filters(self, families: Iterable[str]) -> None:
        """Release the filters of families that were closed or dropped."""
        given = self._filtered.intersection(families)
        self._filtered -= given
        self._memory.release_filters(len(given))

    def _families_on_disk(self) -> list[str]:
        return Rdict.list_cf(str(self._path)) if (self._path / "CURRENT").exists() else []

    def _drop_segments(self) -> None:
        for name in [name for name in self._families if name.startswith(SEGMENT)]:
            del self._families[name], self._handles[name]
            self._db.drop_column_family(name)
            self._release_filters([name])

    # --- offsets and metas --------------------------------------------------------------------------------------------------

    def offsets(self) -> dict[TopicPartition, NextOffset]:
        found: dict[TopicPartition, NextOffset] = {}
        for key, value in self._scan(self._families.get(OFFSETS), None, None, False):
            if not key.startswith(META):
                topic, _, number = key.decode().rpartition("-")
                found[TopicPartition(topic, int(number))] = NextOffset(_OFFSET.unpack(value)[0])
        return found

    def meta(self, name: str) -> bytes | None:
        return self._get(self._families[OFFSETS], META + name.encode())

    def _write(self, batch: WriteBatch, offsets: Offsets, meta: Meta | None) -> None:
        """Add offsets and metadata, and write the batch."""
        handle = self._handles[OFFSETS]
        for partition, offset in offsets.items():
            batch.put(str(partition).encode(), _OFFSET.pack(offset), handle)
        for name, value in (meta or {}).items():
            batch.put(META + name.encode(), value, handle)
        size = batch.size_in_bytes()
        try:
            self._db.write(batch, self._write_options)
        except Exception as error:  # rocksdict raises plain Exception
            raise self._io_error("written", error) from error
        self._uncounted += size
        if self._uncounted >= _BYTES_PER_COUNT:
            self._uncounted = 0
            self._count_tables()
            self._reserve_filters()

    # --- reads --------------------------------------------------------------------------------------------------------------

    def _get(self, family: Rdict | None, key: bytes) -> bytes | None:
        try:
            value: bytes | None = self._still_open(family).get(key)
        except Exception as error:  # rocksdict raises plain Exception
            raise self._io_error("read", error) from error
        return value

    def begin_get_all(self, keys: Sequence[bytes]) -> Future[list[bytes | None]]:
        return self._memory.reader.submit(self._get_all, keys)

    def _get_all(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Read values as `_get`, on a thread other than the store's own. The store is not closed meanwhile, and no reference to a family is
        left behind: it would keep the database open."""
        try:
            return self._read_all(keys)
        except Exception as error:  # rocksdict raises plain Exception
            raise self._io_error("read", error) from error

    def _read_all(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of keys."""
        raise NotImplementedError

    def _still_open(self, family: Rdict | None) -> Rdict:
        if family is None or self._closed:
            raise InvalidStateStoreError(f"the store in {self._path} is closed")
        return family

    def _scan(self, family: Rdict | None, lo: bytes | None, hi: bytes | None, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over lo <= key < hi, as of now, not of the first step."""
        scan = _Scan(self, self._still_open(family), lo, hi, reverse)
        self._scans.add(scan)
        return scan

    def check(self, iterator: RdictIter) -> None:
        """Raise the error that ended an iterator early (TaskCorruptedError)."""
        try:
            iterator.status()
        except Exception as error:  # rocksdict raises plain Exception
            raise self._io_error("read", error) from error

    def _has_entries(self, family: Rdict | None) -> bool:
        iterator = self._still_open(family).iter()
        iterator.seek_to_first()
        if iterator.valid():
            return True
        self.check(iterator)
        return False

    def _size(self, family: Rdict | None) -> int:
        return int(self._still_open(family).property_int_value("rocksdb.estimate-num-keys") or 0)

    # --- life ---------------------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Sync the write-ahead log: everything that was committed survives a power loss."""
        try:
            self._db.flush_wal(True)
        except Exception as error:  # rocksdict raises plain Exception
            raise self._io_error("flushed", error) from error

    def begin_checkpoint(self, path: Path) -> Callable[[], None]:
        """Create the checkpoint by hard links; nothing is left to complete."""
        self.checkpoint(path)
        return lambda: None

    def checkpoint(self, path: Path) -> None:
        """Write a copy of the committed data."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            Checkpoint(self._db).create_checkpoint(str(path))
        except Exception as error:  # rocksdict raises plain Exception
            raise StateDirectoryError(f"no checkpoint of {self._path} can be written to {path}: {error}") from error

    def close(self) -> None:
        """Close the files; waits for reads of other threads that are under way, which take microseconds each."""
        with self.gate:
            self._close()

    def _close(self) -> None:
        """Drop every reference to a family: each of them would keep the database open."""
        if not self._closed:
            self._closed = True
            for scan in list(self._scans):
                scan.end()
            self._release_filters(self._families)
            self._memory.count_tables(id(self), 0)
            self._families.clear()
            self._handles.clear()
            try:
                self._db.close()
            finally:
                del self._db  # a damaged one that fails to close releases its lock with the last reference to it

    def wipe(self) -> None:
        try:
            self.close()
        except Exception as error:  # noqa: BLE001 (rocksdict raises plain Exception; damaged data cannot be flushed, nor need it be)
            logger.info("the store in %s was closed with an error before it is wiped: %s", self._path, error)
        shutil.rmtree(self._path)
        self._open()

    def _io_error(self, what: str, error: Exception) -> Exception:
        if self._closed or isinstance(error, DbClosedError | InvalidStateStoreError):
            return InvalidStateStoreError(f"the store in {self._path} is closed")
        if "Corruption" in str(error):
            return TaskCorruptedError(
                [self._task] if self._task else [], f"the store in {self._path} cannot be {what}: {error}", self._path.name
            )
        return StateDirectoryError(f"the store in {self._path} cannot be {what}: {error}{remedy(str(error))}")


class _Scan(Iterator[tuple[bytes, bytes]]):
    """Iterator over entries with lo <= key < hi.

    The store can end it, because a referenced RocksDB iterator would keep the database open, and its lock. And it checks the iterator's
    status at the end, because rocksdict's `items()` ends at a damaged block as if there were no more entries.
    """

    __slots__ = ("__weakref__", "_iterator", "_lo", "_options", "_reverse", "_store")

    def __init__(self, store: RocksStore, family: Rdict, lo: bytes | None, hi: bytes | None, reverse: bool) -> None:
        self._store = store
        self._options = ReadOptions()  # they own the memory of the upper bound: kept as long as the iterator
        if hi is not None:
            self._options.set_iterate_upper_bound(hi)
        iterator = family.iter(self._options)
        if reverse:
            iterator.seek_to_last()
        elif lo is not None:
            iterator.seek(lo)
        else:
            iterator.seek_to_first()
        self._iterator: RdictIter | None = iterator
        self._lo = lo if reverse else None
        self._reverse = reverse

    def __next__(self) -> tuple[bytes, bytes]:
        iterator = self._iterator
        if iterator is None:
            raise InvalidStateStoreError("the store was closed during an iteration")
        if not iterator.valid():
            self._store.check(iterator)
            raise StopIteration
        key: bytes = iterator.key()
        if self._lo is not None and key < self._lo:
            raise StopIteration
        value: bytes = iterator.value()
        if self._reverse:
            iterator.prev()
        else:
            iterator.next()
        return key, value

    def end(self) -> None:
        self._iterator = None


class RocksBackend(RocksStore):
    """Entries of a key-value store, in one family."""

    def __init__(self, path: Path, family: str, memory: StoreMemory, task: TaskId | None = None) -> None:
        self._family_name = family
        super().__init__(path, [family], memory, task)

    def _open(self) -> None:
        super()._open()
        if self.meta(EXPIRY_INDEX) is not None:
            self._drop_segments()  # the index of a time to live that it no longer has
        self._family: Rdict | None = self._families[self._family_name]
        self._handle: ColumnFamily | None = self._handles[self._family_name]

    def _close(self) -> None:
        self._family = self._handle = None
        super()._close()

    def get(self, key: bytes) -> bytes | None:
        return self._get(self._family, key)

    def _read_all(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return get_list(self._still_open(self._family), keys)

    def range(self, lo: bytes | None, hi: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        return self._scan(self._family, lo, hi, reverse)

    def write(self, entries: Entries, offsets: Offsets, meta: Meta | None = None) -> None:
        self._write(self._batch(entries), offsets, meta)

    def begin_write(self, entries: Entries) -> Callable[[Offsets, Meta], None]:
        return partial(self._write, self._batch(entries))

    def _batch(self, entries: Entries) -> WriteBatch:
        batch = WriteBatch(raw_mode=True)
        put, delete, handle = batch.put, batch.delete, self._handle
        for key, value in entries:
            if value is None:
                delete(key, handle)
            else:
                put(key, value, handle)
        return batch

    def shared(self) -> SharedKeyValues:
        """Return its reads for other threads."""
        return SharedKeyValues(self)

    def approximate_size(self) -> int:
        return self._size(self._family)

    def is_empty(self) -> bool:
        return not self._has_entries(self._family)


def _bytes_of_files(path: Path) -> int:
    """Return the size of a store's data files."""
    size = 0
    for file in path.glob("*.sst"):
        with suppress(FileNotFoundError):  # another process has the store open and replaces files; opening it reports that
            size += file.stat().st_size
    return size


# --- errors -------------------------------------------------------------------------------------------------------------------------


def _open_error(path: Path, error: Exception, task: TaskId | None) -> Exception:
    text = str(error)
    if "lock" in text.lower() and "LOCK" in text:
        if "Permission denied" in text:
            return StateDirectoryError(f"the store's folder {path} cannot be used: {text}{remedy(text)}")
        pid = lock_holder(path / "LOCK")
        holder = f"process {pid}" if pid else "another process, or this one"
        return StateDirectoryLockedError(f"the store in {path} is open in {holder}: {STOP_IT}")
    if remedy(text):  # the system refuses; the files may be intact
        return StateDirectoryError(f"the store's folder {path} cannot be used: {text}{remedy(text)}")
    return TaskCorruptedError([task] if task else [], f"the files of the store in {path} cannot be read: {text}", path.name)


class GatedKeyValues(KeyValueSource, Gated, Protocol):
    """An unsegmented store with a lock for other threads."""


class SharedKeyValues(Shared[GatedKeyValues]):
    """Reads of a key-value store by other threads."""

    def get(self, key: bytes) -> bytes | None:
        with self._store.gate:
            return self._store.get(key)

    def range(self, lo: bytes | None, hi: bytes | None, *, reverse: bool = False) -> Iterator[Row]:
        with self._store.gate:
            return SharedRows(self._store, self._store.range(lo, hi, reverse=reverse))
