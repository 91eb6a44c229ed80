"""Stores in RocksDB. With its settings (`rocks_options.py`) the only module that knows rocksdict.

One RocksDB per store: column family `offsets` holds the next offsets and metas, the others the entries. A commit is one WriteBatch over all
families. The write-ahead log is on and unsynced (rules.md, 8): what was committed is with the operating system, so a kill -9 loses nothing;
measured, it costs nothing that can be seen beside the write itself. `flush` syncs the log, which bounds what a power loss may take.

Traps of rocksdict 0.3: `ReadOptions.set_iterate_lower_bound` sets the upper bound, so a lower bound is a seek forwards and a
comparison backwards; an iterator does not keep its `ReadOptions` alive, and without them its upper bound is freed memory; `items()`
ends at a damaged block without an error; an iterator or a family that is still referenced keeps the database open; `get` and `write`
hold the GIL; `flush` flushes one family."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from struct import Struct
from typing import TypeVar, cast
from weakref import WeakSet

from rocksdict import (
    AccessType,
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

from runtime.errors import InvalidStateStoreError, StateDirectoryError, StateDirectoryLockedError, TaskCorruptedError
from runtime.ids import NextOffset, Partition, TaskId
from runtime.stores.budget import MIB, StoreMemory
from runtime.stores.locks import lock_holder
from runtime.stores.rocks_java import take_over
from runtime.stores.rocks_options import WRITE_BUFFER, database_options, family_options, rocks_memory
from runtime.stores.settings import SegmentSettings

logger = logging.getLogger(__name__)

OFFSETS = "offsets"
SEGMENT = "segment."
LATEST = "latest"
_META = b"\x00"  # no topic's name begins with it
_OFFSET = Struct(">q")
_READ_BATCH = 16_384

T = TypeVar("T")


class RocksStore:
    """A RocksDB with offsets and metas; the base of both backends. Raises as `EngineStore.open` says."""

    def __init__(self, path: Path, families: Iterable[str], memory: StoreMemory, task: TaskId | None) -> None:
        self._path = path
        self._wanted = tuple(families)
        self._memory = rocks_memory(memory)
        self._task = task
        self._write_options = WriteOptions()
        self._open()

    def _open(self) -> None:
        self._filtered: set[str] = set()
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            names = {"default", OFFSETS, *self._wanted, *self._families_on_disk()}
            options = {name: self._options_of(name) for name in names}
            self._db = Rdict(str(self._path), database_options(self._memory), column_families=options)
        except OSError as error:
            raise StateDirectoryError(f"the store's folder {self._path} cannot be used: {error}") from error
        except Exception as error:  # rocksdict raises plain Exception
            self._give_back(set(self._filtered))
            raise _open_error(self._path, error, self._task) from error
        self._families: dict[str, Rdict] = {name: self._db.get_column_family(name) for name in names}
        self._handles: dict[str, ColumnFamily] = {name: self._db.get_column_family_handle(name) for name in names}
        self._scans: WeakSet[_Scan] = WeakSet()
        self._closed = False
        self._refuse_unreadable()

    def _refuse_unreadable(self) -> None:
        """Raises TaskCorruptedError for a store of Kafka Streams that cannot be gone on with; another one becomes ours."""
        reason = take_over(self._db, self._families, OFFSETS, self._handles[OFFSETS], self._wanted, next_offsets=self._task is None)
        if reason is not None:
            RocksStore.close(self)
            raise TaskCorruptedError(
                [self._task] if self._task else [], f"the store in {self._path} is of no use: {reason}", self._path.name
            )

    def _options_of(self, family: str) -> Options:
        if family == OFFSETS or not (family in self._wanted or family.startswith(SEGMENT)):
            return database_options(self._memory)
        filtered = self._memory.take_filter()
        if filtered:
            self._filtered.add(family)
        return family_options(self._memory, filtered=filtered)

    def _give_back(self, families: Iterable[str]) -> None:
        """Families that are closed or dropped need their filters no more."""
        given = self._filtered.intersection(families)
        self._filtered -= given
        self._memory.give_back(len(given))

    def _families_on_disk(self) -> list[str]:
        return Rdict.list_cf(str(self._path)) if (self._path / "CURRENT").exists() else []

    # --- offsets and metas --------------------------------------------------------------------------------------------------

    def offsets(self) -> dict[Partition, NextOffset]:
        found: dict[Partition, NextOffset] = {}
        for key, value in self._scan(self._families[OFFSETS], None, None, False):
            if not key.startswith(_META):
                topic, _, number = key.decode().rpartition("-")
                found[Partition(topic, int(number))] = NextOffset(_OFFSET.unpack(value)[0])
        return found

    def meta(self, name: str) -> bytes | None:
        return self._get(self._families[OFFSETS], _META + name.encode())

    def _write(self, batch: WriteBatch, offsets: Mapping[Partition, NextOffset], meta: Mapping[str, bytes] | None) -> None:
        """Adds offsets and metas, and writes the batch."""
        handle = self._handles[OFFSETS]
        for partition, offset in offsets.items():
            batch.put(str(partition).encode(), _OFFSET.pack(offset), handle)
        for name, value in (meta or {}).items():
            batch.put(_META + name.encode(), value, handle)
        try:
            self._db.write(batch, self._write_options)
        except Exception as error:  # rocksdict raises plain Exception
            raise self._io_error("written", error) from error

    # --- reads --------------------------------------------------------------------------------------------------------------

    def _get(self, family: Rdict | None, key: bytes) -> bytes | None:
        try:
            value: bytes | None = self._still_open(family).get(key)
        except Exception as error:  # rocksdict raises plain Exception
            raise self._io_error("read", error) from error
        return value

    def _still_open(self, family: Rdict | None) -> Rdict:
        if family is None or self._closed:
            raise InvalidStateStoreError(f"the store in {self._path} is closed")
        return family

    def _scan(self, family: Rdict | None, lo: bytes | None, hi: bytes | None, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        """lo <= key < hi; the view is taken now, not at the first step."""
        scan = _Scan(self, self._still_open(family), lo, hi, reverse)
        self._scans.add(scan)
        return scan

    def check(self, iterator: RdictIter) -> None:
        """Raises what made an iterator end before its time (TaskCorruptedError)."""
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
        """Syncs the write-ahead log: all that was committed survives a power loss."""
        try:
            self._db.flush_wal(True)
        except Exception as error:  # rocksdict raises plain Exception
            raise self._io_error("flushed", error) from error

    def checkpoint(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            Checkpoint(self._db).create_checkpoint(str(path))
        except Exception as error:  # rocksdict raises plain Exception
            raise StateDirectoryError(f"no checkpoint of {self._path} can be written to {path}: {error}") from error

    def close(self) -> None:
        """Closes the files, and drops every reference to a family: each of them would keep the database open."""
        if not self._closed:
            self._closed = True
            for scan in list(self._scans):
                scan.end()
            self._give_back(self._families)
            self._families.clear()
            self._handles.clear()
            try:
                self._db.close()
            finally:
                del self._db  # one that fails to close because it is damaged gives its lock back with the last reference to it

    def wipe(self) -> None:
        try:
            self.close()
        except Exception as error:  # noqa: BLE001 (rocksdict raises plain Exception; what is damaged cannot be flushed, nor need it be)
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
        return StateDirectoryError(f"the store in {self._path} cannot be {what}: {error}")


class _Scan(Iterator[tuple[bytes, bytes]]):
    """Entries with lo <= key < hi.

    The store can end it: an iterator of RocksDB that somebody still holds would keep the database open, and its lock. And it looks at the
    iterator's status at the end, because rocksdict's `items()` ends at a damaged block as if there were no more entries.
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
        self._family: Rdict | None = self._families[self._family_name]
        self._handle: ColumnFamily | None = self._handles[self._family_name]

    def close(self) -> None:
        self._family = self._handle = None
        super().close()

    def get(self, key: bytes) -> bytes | None:
        return self._get(self._family, key)

    def range(self, lo: bytes | None, hi: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        return self._scan(self._family, lo, hi, reverse)

    def write(
        self,
        entries: Iterable[tuple[bytes, bytes | None]],
        offsets: Mapping[Partition, NextOffset],
        meta: Mapping[str, bytes] | None = None,
    ) -> None:
        batch = WriteBatch(raw_mode=True)
        put, delete, handle = batch.put, batch.delete, self._handle
        for key, value in entries:
            if value is None:
                delete(key, handle)
            else:
                put(key, value, handle)
        self._write(batch, offsets, meta)

    def approximate_size(self) -> int:
        return self._size(self._family)

    def is_empty(self) -> bool:
        return not self._has_entries(self._family)


class RocksSegments(RocksStore):
    """Entries of a store of times: a family per segment, named by the segment's start (rules.md, 11).

    A family is made before the batch that first writes to it, and dropped after the batch that moves stream time past it: a crash between
    leaves an empty or an expired family, which the next commit drops.

    `_changes` is odd while a batch is being written: whoever looks at several families from another thread looks again when it has
    moved, so as to see all of them as of one commit, without a lock that the writer would have to take.
    """

    def __init__(
        self, path: Path, segments: SegmentSettings, memory: StoreMemory, task: TaskId | None = None, beside: Iterable[str] = ()
    ) -> None:
        """`beside`: families without segments."""
        self._segment_ms = segments.segment_ms
        self._time = segments.time
        self._changes = 0
        super().__init__(path, beside, memory, task)

    def _open(self) -> None:
        super()._open()
        self._segments = {
            int(name.removeprefix(SEGMENT)) // self._segment_ms: family
            for name, family in self._families.items()
            if name.startswith(SEGMENT)
        }
        self._route: dict[bytes, ColumnFamily] = {}

    def close(self) -> None:
        self._segments.clear()
        self._route.clear()
        super().close()

    def segments(self) -> list[int]:
        """Numbers of the segments that exist, in order of time."""
        if self._closed:
            raise InvalidStateStoreError(f"the store in {self._path} is closed")
        return sorted(self._segments)

    def get(self, key: bytes) -> bytes | None:
        segment = self._segments.get(int.from_bytes(key[self._time], "big", signed=True) // self._segment_ms)
        return self._get(segment, key) if segment is not None or self._closed else None

    def range_in(self, segment: int, lo: bytes | None, hi: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """As `Backend.range`, in one segment."""
        family = self._segments.get(segment)
        return self._scan(family, lo, hi, reverse) if family is not None or self._closed else iter(())

    def ranges_in(
        self, segments: Sequence[int], lo: bytes | None, hi: bytes | None, *, reverse: bool = False
    ) -> list[Iterator[tuple[bytes, bytes]]]:
        """`range_in` of several segments, all as of one commit."""
        return self._as_of_one_commit(lambda: [self.range_in(segment, lo, hi, reverse=reverse) for segment in segments])

    def _as_of_one_commit(self, look: Callable[[], T]) -> T:
        while True:
            before = self._changes
            found = look()
            if before == self._changes and not before & 1:
                return found

    def write(
        self,
        entries: Iterable[tuple[bytes, bytes | None]],
        offsets: Mapping[Partition, NextOffset],
        meta: Mapping[str, bytes] | None = None,
    ) -> None:
        batch = WriteBatch(raw_mode=True)
        self._add(batch, entries)
        self._write(batch, offsets, meta)

    def _write(self, batch: WriteBatch, offsets: Mapping[Partition, NextOffset], meta: Mapping[str, bytes] | None) -> None:
        self._changes += 1
        try:
            super()._write(batch, offsets, meta)
        finally:
            self._changes += 1

    def _add(self, batch: WriteBatch, entries: Iterable[tuple[bytes, bytes | None]]) -> None:
        put, delete, route, time = batch.put, batch.delete, self._route, self._time
        for key, value in entries:
            start = key[time]
            handle = route.get(start)
            if handle is None:
                handle = route[start] = self._handle_for(start)
            if value is None:
                delete(key, handle)
            else:
                put(key, value, handle)

    def _handle_for(self, start: bytes) -> ColumnFamily:
        segment = int.from_bytes(start, "big", signed=True) // self._segment_ms
        name = f"{SEGMENT}{segment * self._segment_ms}"
        if segment not in self._segments:
            self._families[name] = self._segments[segment] = self._db.create_column_family(name, self._options_of(name))
            self._handles[name] = self._db.get_column_family_handle(name)
        return self._handles[name]

    def drop_before(self, segment: int) -> int:
        """Drops the segments with smaller numbers, files and all; how many there were."""
        expired = [number for number in self._segments if number < segment]
        for number in expired:
            name = f"{SEGMENT}{number * self._segment_ms}"
            del self._segments[number], self._families[name], self._handles[name]
            self._db.drop_column_family(name)
            self._give_back([name])
        if expired:
            self._route.clear()
        return len(expired)

    def approximate_size(self) -> int:
        return sum(self._size(family) for family in self._segments.values())

    def is_empty(self) -> bool:
        return not any(self._has_entries(family) for family in self._segments.values())


class RocksVersions(RocksSegments):
    """Entries of a versioned store: the latest version of each key in the family `latest`, older ones in segments."""

    def __init__(self, path: Path, segments: SegmentSettings, memory: StoreMemory, task: TaskId | None = None) -> None:
        super().__init__(path, segments, memory, task, beside=[LATEST])

    def latest(self, key: bytes) -> bytes | None:
        """The latest version of a key."""
        return self._get(self._families.get(LATEST), key)

    def all_latest(self) -> Iterator[tuple[bytes, bytes]]:
        """The latest versions in the order of their keys."""
        return self._scan(self._families.get(LATEST), None, None, False)

    def write_versions(
        self,
        latest: Iterable[tuple[bytes, bytes | None]],
        older: Iterable[tuple[bytes, bytes | None]],
        offsets: Mapping[Partition, NextOffset],
        meta: Mapping[str, bytes],
    ) -> None:
        """As `write`, for both kinds of entries."""
        batch = WriteBatch(raw_mode=True)
        handle = self._handles[LATEST]
        for key, value in latest:
            if value is None:
                batch.delete(key, handle)
            else:
                batch.put(key, value, handle)
        self._add(batch, older)
        self._write(batch, offsets, meta)

    def look(self, read: Callable[[], T]) -> T:
        """What `read` finds, all of it as of one commit."""
        return self._as_of_one_commit(read)

    def approximate_size(self) -> int:
        return self._size(self._families.get(LATEST)) + super().approximate_size()

    def is_empty(self) -> bool:
        return not self._has_entries(self._families.get(LATEST)) and super().is_empty()


# --- files that no store has open ---------------------------------------------------------------------------------------------------


def read_files(path: Path) -> Iterator[tuple[str, list[tuple[bytes, bytes]]]]:
    """Entries of a store's files or of a checkpoint, as (column family, batch of entries), without `offsets`; read-only.

    Raises StateDirectoryError when there is no RocksDB, or none that can be read.
    """
    try:
        names = Rdict.list_cf(str(path))
        families = {name: Options(raw_mode=True) for name in names}
        db = Rdict(str(path), Options(raw_mode=True), column_families=families, access_type=AccessType.read_only(False))
    except Exception as error:  # rocksdict raises plain Exception
        raise StateDirectoryError(f"{path} holds no store that can be read: {error}") from error
    try:
        for name in names:
            if name != OFFSETS:
                yield from ((name, batch) for batch in _batches(db.get_column_family(name), path))
    finally:
        db.close()


def _batches(family: Rdict, path: Path) -> Iterator[list[tuple[bytes, bytes]]]:
    options = ReadOptions()
    options.set_readahead_size(2 * MIB)
    items = cast(Iterator[tuple[bytes, bytes]], family.items(read_opt=options))  # raw mode: keys and values are bytes
    last = b""
    while batch := list(islice(items, _READ_BATCH)):
        last = batch[-1][0]
        yield batch
    check = family.iter(options)  # `items()` ends at a damaged block as if there were no more entries
    check.seek(last + b"\0")
    try:
        check.status()
    except Exception as error:  # rocksdict raises plain Exception
        raise StateDirectoryError(f"the store in {path} cannot be read to its end: {error}") from error


def write_files(
    path: Path,
    families: Mapping[str, Sequence[tuple[bytes, bytes]]],
    offsets: Mapping[Partition, NextOffset],
    meta: Mapping[str, bytes],
) -> None:
    """A new RocksDB in the folder `path` that looks like a checkpoint of a persistent store."""
    store = RocksStore(path, families, StoreMemory(block_cache_bytes=MIB, write_buffer_bytes=WRITE_BUFFER), None)
    try:
        batch = WriteBatch(raw_mode=True)
        for name, entries in families.items():
            handle = store._handles[name]
            for key, value in entries:
                batch.put(key, value, handle)
        store._write(batch, offsets, meta)
        store.flush()
    finally:
        store.close()


# --- errors -------------------------------------------------------------------------------------------------------------------------


def _open_error(path: Path, error: Exception, task: TaskId | None) -> Exception:
    text = str(error)
    if "lock" in text.lower() and "LOCK" in text:
        if "Permission denied" in text:
            return StateDirectoryError(f"the store's folder {path} cannot be used: {text}")
        pid = lock_holder(path / "LOCK")
        who = f"process {pid}" if pid else "another process, or this one"
        return StateDirectoryLockedError(f"the store in {path} is open in {who}: stop it, or give this instance a state.dir of its own")
    if any(reason in text for reason in ("Permission denied", "Read-only file system", "No space left", "Too many open files")):
        return StateDirectoryError(f"the store's folder {path} cannot be used: {text}")
    return TaskCorruptedError([task] if task else [], f"the files of the store in {path} cannot be read: {text}", path.name)
