"""Rows by column, from entries of a store's files or records of its changelog, for tables of state.

Both sources give the same columns, so that they can be compared. Columns are Arrow's: a hundred thousand rows are split with a few
operations on their joined bytes, none of them per row. The serdes' bytes stay as they are.

    kind           key of an entry and of a record          value of an entry         value of a record
    key-value      key                                      [timestamp ·] value       value
    window         key · start · sequence number            [timestamp ·] value       value
    session        key · end · start                        value                     value
    … with headers as above                                 headers · as above        value
    versioned      key, or key · valid to · valid from      timestamp · value, or     value, or null: deleted
                                                            1 · value, or 0: deleted  (the record's time: valid from)
    buffer         key                                      `BufferValue`             `BufferValue`

Store files are closed ones, such as a snapshot's. This module knows only layouts; `rocks_files.py` opens RocksDB. Nothing is locked and the
database is opened for reading, so any number of processes may read one snapshot at a time.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from penstock.runtime.model.errors import StateDirectoryError
from penstock.runtime.serdes import keys
from penstock.runtime.serdes.columns import BYTE, INT32, INT64, leading, trailing, without_first, without_last
from penstock.runtime.serdes.keys import SESSION_SUFFIX, TIMESTAMP, WINDOW_SUFFIX
from penstock.runtime.stores.base import StoreLayout
from penstock.runtime.stores.buffer import BufferValue
from penstock.runtime.stores.headers import FAMILY, without_headers
from penstock.runtime.stores.rocks_files import Families, Opened
from penstock.runtime.stores.rocks_segments import LATEST
from penstock.runtime.stores.segmented import LAST, STREAM_TIME, TIME
from penstock.runtime.stores.window import LAST_SEQUENCE

ROW_KINDS = ("key_value", "window", "session", "versioned", "buffer")
"""Kinds of stores that have rows. The format of a user's store (`custom`) is unknown, so it has none."""
_NEVER = 2**63 - 1
"""The end of a window that has none."""
_SPAN = 2 * TIMESTAMP
"""Bytes after the record's key in the key of an older version."""
_COLUMNS = ("timestamps", "window_starts", "window_ends", "sequences", "valid_from", "valid_to")


@dataclass(frozen=True, slots=True)
class BrokenRows:
    """Entries that are too short for their store, unchanged, with the reasons."""

    keys: pa.BinaryArray
    values: pa.BinaryArray
    reasons: list[str]


@dataclass(frozen=True, slots=True)
class StoreRows:
    """Rows of a store by column, all of one length; a column that the kind of store does not have is None.

    `keys` and `values` (binary) are as the serdes wrote them; a value is null for a deletion (changelogs) and for a waiting change to null
    (buffers). Times are int64, ms since the epoch: `timestamps` of timestamped stores and buffers; `window_starts` and `window_ends` of
    windows and sessions; `valid_from` and `valid_to` of versions, null where a version is still valid. `sequences` (int32) distinguish the
    values of one key and time in the windows of joins. `broken` entries are not among the rows.
    """

    keys: pa.BinaryArray
    values: pa.BinaryArray
    timestamps: pa.Int64Array | None = None
    window_starts: pa.Int64Array | None = None
    window_ends: pa.Int64Array | None = None
    sequences: pa.Int32Array | None = None
    valid_from: pa.Int64Array | None = None
    valid_to: pa.Int64Array | None = None
    broken: BrokenRows | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def where(self, mask: pa.BooleanArray) -> StoreRows:
        """Return the rows for which the mask is true; `broken` stays."""
        if pc.all(mask, min_count=0).as_py() and not mask.null_count:
            return self
        columns = {name: column.filter(mask) for name in _COLUMNS if (column := getattr(self, name)) is not None}
        return replace(self, keys=self.keys.filter(mask), values=self.values.filter(mask), **columns)


def alive(rows: StoreRows, layout: StoreLayout, stream_time: int) -> StoreRows:
    """Return the rows that the store's own reads find at a stream time (ms; the largest time that was put, -1 before any). Windows by their
    start and sessions by their end live for the retention, a version for the retention after its validity ended."""
    if layout.retention_ms is None:
        return rows
    first = max(0, stream_time - layout.retention_ms + 1)
    match layout.kind:
        case "window":
            return rows.where(pc.greater_equal(rows.window_starts, first))
        case "session":
            return rows.where(pc.greater_equal(rows.window_ends, first))
        case "versioned" if rows.valid_to is not None:
            return rows.where(pc.fill_null(pc.greater_equal(rows.valid_to, first), True))
    return rows


def entry_rows(layout: StoreLayout, entries: Sequence[tuple[bytes, bytes]], *, latest: bool = False) -> StoreRows:
    """Return rows of entries of the store's files. `latest`: entries of a versioned store that are the latest of their keys."""
    # Not `zip(*entries)`: it makes an iterator per entry, which triggers the garbage collector (measured: ten times as long).
    rows = StoreRows(pa.array(list(map(itemgetter(0), entries)), pa.binary()), pa.array(list(map(itemgetter(1), entries)), pa.binary()))
    match layout.kind:
        case "versioned" if latest:
            rows = _with_timestamps(rows)
            nothing = pa.nulls(len(rows), pa.int64())
            return replace(rows, timestamps=None, valid_from=rows.timestamps, valid_to=nothing)
        case "versioned":
            return _older_versions(rows)
        case "buffer":
            return _waiting(rows)
    if layout.headers:
        rows = _without_headers(rows)
    return _split_keys(layout, _with_timestamps(rows) if layout.timestamped else rows)


def changelog_rows(layout: StoreLayout, keys: pa.BinaryArray, values: pa.BinaryArray, timestamps: pa.Int64Array) -> StoreRows:
    """Return rows of records of the store's changelog; `timestamps` are the records' (ms). Nothing is folded: a null value is a deletion of
    the key (window, session), or, of a versioned store, its deletion at `valid_from`. `valid_to` of versions is None: it follows from
    the next record of the key, by time."""
    rows = StoreRows(keys, values)
    match layout.kind:
        case "versioned":
            return replace(rows, valid_from=timestamps)
        case "buffer":
            return _waiting(rows)
    return _split_keys(layout, replace(rows, timestamps=timestamps) if layout.timestamped else rows)


def _split_keys(layout: StoreLayout, rows: StoreRows) -> StoreRows:
    """Split the store's keys into the record's key and further columns."""
    if layout.kind == "window":
        rows = _long_enough(rows, rows.keys, WINDOW_SUFFIX, "a key of a window store")
        starts = trailing(rows.keys, INT64, INT32.itemsize)
        size = layout.window_size_ms or 0
        return replace(
            rows,
            keys=without_last(rows.keys, WINDOW_SUFFIX),
            window_starts=starts,
            window_ends=pc.add(pc.min_element_wise(starts, _NEVER - size), size),
            sequences=trailing(rows.keys, INT32) if layout.duplicates else None,
        )
    if layout.kind == "session":
        rows = _long_enough(rows, rows.keys, SESSION_SUFFIX, "a key of a session store")
        return replace(
            rows,
            keys=without_last(rows.keys, SESSION_SUFFIX),
            window_starts=trailing(rows.keys, INT64),
            window_ends=trailing(rows.keys, INT64, TIMESTAMP),
        )
    return rows


def _without_headers(rows: StoreRows) -> StoreRows:
    """Return the rows with values that begin after their headers."""
    rows = _long_enough(rows, rows.values, 1, "a value with headers")
    if pc.all(pc.equal(leading(rows.values, BYTE), 0), min_count=0).as_py():
        return replace(rows, values=without_first(rows.values, 1))
    found: list[bytes | None] = []
    wrong: dict[int, str] = {}
    for place, data in enumerate(rows.values.to_pylist()):
        try:
            found.append(without_headers(data))
        except ValueError as error:
            found.append(None)
            wrong[place] = str(error)
    values = pa.array(found, pa.binary())
    if not wrong:
        return replace(rows, values=values)
    kept = pa.array([place not in wrong for place in range(len(found))], pa.bool_())
    return replace(_separate_broken(rows, kept, list(wrong.values())), values=values.filter(kept))


def _with_timestamps(rows: StoreRows) -> StoreRows:
    rows = _long_enough(rows, rows.values, TIMESTAMP, "a value with a timestamp")
    return replace(rows, values=without_first(rows.values, TIMESTAMP), timestamps=leading(rows.values, INT64))


def _older_versions(rows: StoreRows) -> StoreRows:
    rows = _long_enough(rows, rows.keys, _SPAN, "a key of an older version")
    rows = _long_enough(rows, rows.values, 1, "an older version")
    marks = leading(rows.values, BYTE)
    if not pc.all(known := pc.less_equal(marks, 1), min_count=0).as_py():
        wrong = marks.filter(pc.invert(known)).to_pylist()
        rows = _separate_broken(rows, known, [f"an older version begins with 0 or 1, this one with {mark}" for mark in wrong])
        marks = leading(rows.values, BYTE)
    rows = rows.where(pc.not_equal(marks, 0))  # a deletion is no row
    return replace(
        rows,
        keys=without_last(rows.keys, _SPAN),
        values=without_first(rows.values, 1),
        valid_from=trailing(rows.keys, INT64),
        valid_to=trailing(rows.keys, INT64, TIMESTAMP),
    )


def _waiting(rows: StoreRows) -> StoreRows:
    """Return the waiting changes of a buffer: the new value, and its record's time. There are few of them, so they are decoded one by
    one."""
    found: list[BufferValue | None] = []
    wrong: dict[int, str] = {}
    for place, data in enumerate(rows.values.to_pylist()):
        try:
            found.append(None if data is None else BufferValue.from_bytes(data))
        except (struct.error, UnicodeDecodeError) as error:
            found.append(None)
            wrong[place] = f"{len(data)} bytes are not a change that waits in a buffer: {error}"
    values = pa.array([None if each is None else each.new for each in found], pa.binary())
    timestamps = pa.array([None if each is None else each.timestamp for each in found], pa.int64())
    if not wrong:
        return replace(rows, values=values, timestamps=timestamps)
    kept = pa.array([place not in wrong for place in range(len(found))], pa.bool_())
    return replace(_separate_broken(rows, kept, list(wrong.values())), values=values.filter(kept), timestamps=timestamps.filter(kept))


def _long_enough(rows: StoreRows, column: pa.BinaryArray, size: int, what: str) -> StoreRows:
    """Return the rows whose bytes in `column` are at least `size`; the others go to `broken`."""
    lengths = pc.binary_length(column)
    kept = pc.fill_null(pc.greater_equal(lengths, size), True)
    if pc.all(kept, min_count=0).as_py():
        return rows
    short = lengths.filter(pc.invert(kept)).to_pylist()
    return _separate_broken(rows, kept, [f"{what} has at least {size} bytes, this one has {length}" for length in short])


def _separate_broken(rows: StoreRows, kept: pa.BooleanArray, reasons: list[str]) -> StoreRows:
    rest = pc.invert(kept)
    keys, values = rows.keys.filter(rest), rows.values.filter(rest)
    if (before := rows.broken) is not None:
        keys, values = pa.concat_arrays([before.keys, keys]), pa.concat_arrays([before.values, values])
        reasons = [*before.reasons, *reasons]
    return replace(rows.where(kept), broken=BrokenRows(keys, values, reasons))


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
        case "key_value" if layout.headers:
            return [families.require(FAMILY)]
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
