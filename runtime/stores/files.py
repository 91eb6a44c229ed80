"""Reading of closed store files, such as a snapshot's, by column, for tables of state.

This module knows only layouts; `rocks_files.py` opens RocksDB. Nothing is locked and the database is opened for reading, so any number of
processes may read one snapshot at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from penstock.runtime.model.errors import StateDirectoryError
from penstock.runtime.serdes import keys
from penstock.runtime.stores.base import StoreLayout
from penstock.runtime.stores.rocks_files import Families, Opened
from penstock.runtime.stores.rocks_segments import LATEST
from penstock.runtime.stores.rows import ROW_KINDS, StoreRows, alive, entry_rows
from penstock.runtime.stores.segmented import LAST, STREAM_TIME, TIME
from penstock.runtime.stores.window import LAST_SEQUENCE

_SUFFIXES = {
    "window": keys.pack_window_suffix(LAST, LAST_SEQUENCE),
    "session": keys.pack_session_suffix(LAST, LAST),
    "versioned": keys.pack_session_suffix(LAST, LAST),
}
"""Maximum number of bytes after a record's key, in segments."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of a read; None: no bound. All are inclusive, as in the reads of stores.

    `lo` and `hi` are bytes of keys. `first` and `last` (ms) bound the starts of windows and the ends of sessions; versions are read if they
    were valid at some moment between the two.
    """

    lo: bytes | None = None
    hi: bytes | None = None
    first: int | None = None
    last: int | None = None

    @property
    def of_time(self) -> bool:
        """True if a time is bounded."""
        return self.first is not None or self.last is not None


ALL = Bounds()
"""No bounds."""


def read_store(path: Path, layout: StoreLayout, bounds: Bounds = ALL) -> Iterator[StoreRows]:
    """Iterate over the rows of the store in the directory `path`, some ten thousand at a time, in the order of the files: segment by
    segment, by key in each. Rows that were expired at the store's stream time are left out, and segments outside the bounds are not
    opened. A versioned store has a row per version; a deletion has none, but ends the version before it.

    Raises StateDirectoryError where there is no readable store, or for a kind without rows (a user's own), and ValueError for time bounds
    on a kind without times.
    """
    if layout.kind not in ROW_KINDS:
        raise StateDirectoryError(f"the store in {path} is a {layout.kind} store: only its own code can read its files")
    if bounds.of_time and layout.retention_ms is None:
        raise ValueError(f"the store in {path} is a {layout.kind} store: it has no windows, sessions or versions to bound by time")
    families = Families(path)
    wanted = _wanted(families, layout, bounds)
    with families.opened(wanted) as opened:
        now = stream_time_of(opened)
        for family in wanted:
            latest = family == LATEST
            for entries in opened.entries(family, *_range(layout, bounds, latest)):
                yield _within(alive(entry_rows(layout, entries, latest=latest), layout, now), layout, bounds)


def stream_time_of(opened: Opened) -> int:
    """Return the store's own stream time (ms): the largest time that was put, -1 before any."""
    stored = opened.meta(STREAM_TIME)
    return -1 if stored is None else int(TIME.unpack(stored)[0])


def _wanted(families: Families, layout: StoreLayout, bounds: Bounds) -> list[str]:
    """Return the column families to read."""
    match layout.kind:
        case "key_value" if layout.timestamped:
            return [families.require("keyValueWithTimestamp")]
        case "key_value" | "buffer":
            return [families.require("default")]
        case "versioned":
            # A version is in the segment of its end, so the upper bound does not limit segments.
            return [families.require(LATEST), *_segments(families, replace(bounds, last=None))]
    return _segments(families, bounds)


def _segments(families: Families, bounds: Bounds) -> list[str]:
    """Return segments that may contain times within the bounds: each ends where the next begins, or before."""
    segments = families.segments
    ends = [*(start for start, _ in segments[1:]), LAST]
    return [
        name
        for (start, name), end in zip(segments, ends, strict=False)
        if (bounds.first is None or end > bounds.first) and (bounds.last is None or start <= bounds.last)
    ]


def _range(layout: StoreLayout, bounds: Bounds, latest: bool) -> tuple[bytes | None, bytes | None]:
    """Return lo and hi, with lo <= key of an entry < hi. Keys of other lengths may lie between, so rows are filtered again."""
    suffix = b"" if latest else _SUFFIXES.get(layout.kind, b"")
    return bounds.lo, None if bounds.hi is None else keys.upper_range(bounds.hi, suffix) + b"\0"


def _within(rows: StoreRows, layout: StoreLayout, bounds: Bounds) -> StoreRows:
    if bounds.lo is not None:
        rows = rows.where(pc.greater_equal(rows.keys, pa.scalar(bounds.lo, pa.binary())))
    if bounds.hi is not None:
        rows = rows.where(pc.less_equal(rows.keys, pa.scalar(bounds.hi, pa.binary())))
    if not bounds.of_time:
        return rows
    first, last = bounds.first if bounds.first is not None else -LAST - 1, bounds.last if bounds.last is not None else LAST
    if layout.kind == "versioned":
        began = pc.less_equal(rows.valid_from, last)
        return rows.where(pc.and_(began, pc.fill_null(pc.greater(rows.valid_to, first), True)))
    times = rows.window_starts if layout.kind == "window" else rows.window_ends
    return rows.where(pc.and_(pc.greater_equal(times, first), pc.less_equal(times, last)))
