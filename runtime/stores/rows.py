"""Rows by column, from entries of a store's files or records of its changelog, for tables of state.

Both sources give the same columns, so that they can be compared. Columns are Arrow's: a hundred thousand rows are split with a few
operations on their joined bytes, none of them per row. The serdes' bytes stay as they are.

    kind           key of an entry and of a record          value of an entry         value of a record
    key-value      key                                      [timestamp ·] value       value
    window         key · start · sequence number            [timestamp ·] value       value
    session        key · end · start                        value                     value
    versioned      key, or key · valid to · valid from      timestamp · value, or     value, or null: deleted
                                                            1 · value, or 0: deleted  (the record's time: valid from)
    buffer         key                                      `BufferValue`             `BufferValue`
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

import pyarrow as pa
import pyarrow.compute as pc

from penstock.runtime.serdes.columns import BYTE, INT32, INT64, leading, trailing, without_first, without_last
from penstock.runtime.serdes.keys import SESSION_SUFFIX, TIMESTAMP, WINDOW_SUFFIX
from penstock.runtime.stores.base import StoreLayout
from penstock.runtime.stores.buffer_format import BufferValue

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
            wrong[place] = f"{len(data)} bytes are no change that waits in a buffer: {error}"
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
