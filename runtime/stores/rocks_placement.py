"""Placement of store files that were made elsewhere into a state directory: reads and writes their offsets and metadata."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

from rocksdict import AccessType, Options, Rdict, WriteBatch

from penstock.runtime.model.errors import StateDirectoryError
from penstock.runtime.model.ids import NextOffset, Partition
from penstock.runtime.stores.budget import StoreMemory
from penstock.runtime.stores.rocks import OFFSETS, RocksStore
from penstock.runtime.stores.rocks_options import WRITE_BUFFER

_META = b"\x00"
_OFFSET = Struct(">q")


@dataclass(frozen=True, slots=True)
class ClosedStore:
    """Offsets and metadata of a closed store, and its approximate number of entries."""

    entries: int
    offsets: Mapping[Partition, NextOffset]
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


def _partition(key: bytes) -> Partition:
    topic, _, number = key.decode().rpartition("-")
    return Partition(topic, int(number))


def place(path: Path, offsets: Mapping[Partition, NextOffset], metas: Mapping[str, bytes], *, forget: Iterable[Partition] = ()) -> None:
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
