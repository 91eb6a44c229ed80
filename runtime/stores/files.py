"""Reads the files of a store that nobody writes: a snapshot's, by column, for those who make tables of state.

Only layouts are known here; who opens RocksDB is `rocks.py`. Nothing is locked and the database is opened for reading, so any number
of processes may read one snapshot at a time.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from runtime.stores.base import StoreLayout
from runtime.stores.rocks import read_files

_WINDOW_SUFFIX = struct.Struct(">qi")
_TIMESTAMP_BYTES = 8


@dataclass(frozen=True, slots=True)
class StoreRows:
    """Rows of a store by column, all of one length.

    `keys` and `values` are as the serdes wrote them. `timestamps` (ms) is None for a store without timestamps, `window_starts` (ms
    since the epoch) for a key-value store.
    """

    keys: list[bytes]
    values: list[bytes]
    timestamps: list[int] | None
    window_starts: list[int] | None


def read_store(path: Path, layout: StoreLayout) -> Iterator[StoreRows]:
    """All rows of the store in the folder `path`, some ten thousand at a time, in the order of the files. Expired windows that were not
    dropped yet are among them. Raises StateDirectoryError where there is no store that can be read."""
    for _, entries in read_files(path):
        yield _columns(entries, layout)


def _columns(entries: list[tuple[bytes, bytes]], layout: StoreLayout) -> StoreRows:
    keys = [key for key, _ in entries]
    values = [value for _, value in entries]
    timestamps: list[int] | None = None
    window_starts: list[int] | None = None
    if layout.timestamped:
        timestamps = [int.from_bytes(value[:_TIMESTAMP_BYTES], "big", signed=True) for value in values]
        values = [value[_TIMESTAMP_BYTES:] for value in values]
    if layout.kind == "window":
        suffix = _WINDOW_SUFFIX.size
        window_starts = [_WINDOW_SUFFIX.unpack_from(key, len(key) - suffix)[0] for key in keys]
        keys = [key[:-suffix] for key in keys]
    return StoreRows(keys, values, timestamps, window_starts)
