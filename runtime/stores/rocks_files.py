"""RocksDB files that no store has open: read, and written whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import cast

from rocksdict import AccessType, Options, Rdict, ReadOptions, WriteBatch

from runtime.errors import StateDirectoryError
from runtime.ids import NextOffset, Partition
from runtime.stores.budget import MIB, StoreMemory
from runtime.stores.rocks import OFFSETS, RocksStore
from runtime.stores.rocks_options import WRITE_BUFFER

_READ_BATCH = 16_384


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
