"""Reads the files of a store that nobody writes: a snapshot's, by column, for those who make tables of state.

Only layouts are known here; who opens RocksDB is `rocks.py`. Nothing is locked and the database is opened for reading, so any number
of processes may read one snapshot at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from runtime.errors import StateDirectoryError
from runtime.serdes.keys import TIMESTAMP, split_timestamp, split_window_store_key
from runtime.stores.base import StoreLayout
from runtime.stores.rocks_files import read_files

ROW_KINDS = ("key_value", "window")
"""Kinds of stores that have `StoreRows`."""
NO_ROWS = "rows can be read of key-value and window stores"


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
    dropped yet are among them. Raises StateDirectoryError where there is no store that can be read, or one whose kind has no rows like
    these (session, versioned)."""
    if layout.kind not in ROW_KINDS:
        raise StateDirectoryError(f"the store in {path} is a {layout.kind} store: {NO_ROWS}")
    for _, entries in read_files(path):
        yield _columns(entries, layout)


def _columns(entries: list[tuple[bytes, bytes]], layout: StoreLayout) -> StoreRows:
    keys = [key for key, _ in entries]
    values = [value for _, value in entries]
    timestamps: list[int] | None = None
    window_starts: list[int] | None = None
    if layout.timestamped:
        timestamps = [split_timestamp(value)[0] for value in values]
        values = [value[TIMESTAMP:] for value in values]
    if layout.kind == "window":
        keys, window_starts = split_window_keys(keys)
    return StoreRows(keys, values, timestamps, window_starts)


def split_window_keys(keys: Iterable[bytes]) -> tuple[list[bytes], list[int]]:
    """Record keys and window starts (ms) of window store keys."""
    pairs = [split_window_store_key(key) for key in keys]
    return [key for key, _ in pairs], [start for _, start in pairs]
