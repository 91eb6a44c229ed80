"""Stores that are made outside of a task: bulk loading from sorted entries, and placement of finished files into a state directory.

Entries in order need no log, no write buffer and no compaction: they are written to SST files as they come, which RocksDB then ingests
whole. So a store of any size is written with the memory of one block, at the disk's speed. (Rejected: write batches, as in a restore. They
sort again, write everything twice, and leave files in level 0 to be compacted when the store is opened.)
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

from rocksdict import AccessType, IngestExternalFileOptions, Options, Rdict, SstFileWriter, WriteBatch

from penstock.runtime.model.errors import StateDirectoryError
from penstock.runtime.model.ids import NextOffset, TopicPartition
from penstock.runtime.stores.budget import MIB, StoreMemory
from penstock.runtime.stores.locks import remedy
from penstock.runtime.stores.rocks import OFFSETS, RocksStore
from penstock.runtime.stores.rocks_options import WRITE_BUFFER, family_options, rocks_memory

_META = b"\x00"
_OFFSET = Struct(">q")


@dataclass(frozen=True, slots=True)
class ClosedStore:
    """Offsets and metadata of a closed store, and its approximate number of entries."""

    entries: int
    offsets: Mapping[TopicPartition, NextOffset]
    metas: Mapping[str, bytes]


def inspect_store(path: Path) -> ClosedStore:
    """Read them from the store in the directory `path`. Raises StateDirectoryError where there is no readable store."""
    try:
        names = Rdict.list_cf(str(path))
        families = {name: Options(raw_mode=True) for name in names}
        db = Rdict(str(path), Options(raw_mode=True), column_families=families, access_type=AccessType.read_only(False))
    except Exception as error:  # rocksdict raises plain Exception
        raise StateDirectoryError(f"{path} holds no store that can be read: {error}") from error
    try:
        sizes = [db.get_column_family(name).property_int_value("rocksdb.estimate-num-keys") for name in names if name != OFFSETS]
        items: list[tuple[bytes, bytes]] = []
        if OFFSETS in names:
            items = list(db.get_column_family(OFFSETS).items())  # type: ignore[arg-type]  # raw mode: bytes
    finally:
        db.close()
    return ClosedStore(
        entries=sum(int(size or 0) for size in sizes),
        offsets={_partition(key): NextOffset(_OFFSET.unpack(value)[0]) for key, value in items if not key.startswith(_META)},
        metas={key[len(_META) :].decode(): value for key, value in items if key.startswith(_META)},
    )


def _partition(key: bytes) -> TopicPartition:
    topic, _, number = key.decode().rpartition("-")
    return TopicPartition(topic, int(number))


def place(
    path: Path, offsets: Mapping[TopicPartition, NextOffset], metas: Mapping[str, bytes], *, forget: Iterable[TopicPartition] = ()
) -> None:
    """Write offsets and metadata into the store in the directory `path`, durably; offsets of `forget` are removed. Raises
    StateDirectoryError, also where blocks turn out to be damaged."""
    try:
        names = Rdict.list_cf(str(path))
    except Exception as error:  # rocksdict raises plain Exception
        raise StateDirectoryError(f"{path} holds no store that can be read: {error}") from error
    try:
        with closing(
            RocksStore(path, names, StoreMemory(block_cache_bytes=2 * WRITE_BUFFER, write_buffer_bytes=WRITE_BUFFER), None)
        ) as store:
            batch = WriteBatch(raw_mode=True)
            for partition in forget:
                batch.delete(str(partition).encode(), store._handles[OFFSETS])
            store._write(batch, offsets, metas)
            store.flush()
    except StateDirectoryError:
        raise
    except Exception as error:  # rocksdict raises plain Exception, where blocks are damaged at the close too
        raise StateDirectoryError(f"the store in {path} cannot be written: {error}") from error


FILE_BYTES = 64 * MIB
"""Approximate size of a file; RocksDB's own for a level."""


class SortedStore:
    """Writer of a new store in the directory `path`: families one after the other, entries of each in the order of their keys.

    Call `family`, then `put_all` repeatedly, and `finish` at the end: the store exists only then. `abandon` removes what was written.
    Raises StateDirectoryError where the disk refuses, ValueError for keys that are not ascending.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._parts = path.with_name(f".{path.name}.parts")
        self._memory = StoreMemory(block_cache_bytes=2 * WRITE_BUFFER, write_buffer_bytes=WRITE_BUFFER)
        self._files: dict[str, list[Path]] = {}
        self._current = ""
        self._last: bytes | None = None
        self._writer: SstFileWriter | None = None
        try:
            self._parts.mkdir(parents=True)
        except OSError as error:
            raise self._refused(error) from error

    def family(self, name: str) -> None:
        """Begin the column family `name`, which may also stay empty."""
        self._finish_file()
        self._current, self._last = name, None
        self._files.setdefault(name, [])

    def put_all(self, entries: Iterable[tuple[bytes, bytes]]) -> None:
        """Add entries whose keys are larger than all before them in the family."""
        try:
            writer, last = self._writer, self._last
            for key, value in entries:
                if last is not None and key <= last:
                    raise ValueError(f"family {self._current}: key {key!r} does not come after {last!r}")
                if writer is None:
                    writer = self._writer = self._new_file()
                writer[key] = value
                last = key
            self._last = last
            if writer is not None and writer.file_size() >= FILE_BYTES:
                self._finish_file()
        except ValueError:
            raise
        except Exception as error:  # rocksdict raises plain Exception
            raise self._refused(error) from error

    def finish(self, offsets: Mapping[TopicPartition, NextOffset], meta: Mapping[str, bytes]) -> None:
        """Create the store, closed: all entries, with offsets and metadata."""
        try:
            self._finish_file()
            store = RocksStore(self._path, self._files, self._memory, None)
            try:
                move = IngestExternalFileOptions()
                move.set_move_files(True)
                for name, files in self._files.items():
                    if files:
                        store._families[name].ingest_external_file([str(file) for file in files], move)
                store._write(WriteBatch(raw_mode=True), offsets, meta)
                store.flush()
            finally:
                store.close()
            shutil.rmtree(self._parts)
            for beside in ("LOCK", "LOG"):
                (self._path / beside).unlink(missing_ok=True)
        except StateDirectoryError:
            raise
        except Exception as error:  # rocksdict raises plain Exception
            raise self._refused(error) from error

    def abandon(self) -> None:
        """Remove everything that was written. Safe to call at any time."""
        self._writer = None
        for folder in (self._parts, self._path):
            shutil.rmtree(folder, ignore_errors=True)

    def _new_file(self) -> SstFileWriter:
        file = self._parts / f"{sum(map(len, self._files.values())):06d}.sst"
        writer = SstFileWriter(options=family_options(rocks_memory(self._memory), filtered=False))
        writer.open(str(file))
        self._files[self._current].append(file)
        return writer

    def _finish_file(self) -> None:
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.finish()

    def _refused(self, error: Exception) -> StateDirectoryError:
        return StateDirectoryError(f"the store in {self._path} cannot be written: {error}{remedy(str(error))}")
