"""Vectorised parsing of Arrow columns of bytes: numbers at the start or end of each value, and the value without them."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_Numbers: TypeAlias = "np.dtype[np.integer] | np.dtype[np.floating]"
INT64, INT32, BYTE = np.dtype(">i8"), np.dtype(">i4"), np.dtype("u1")
_LONGEST = 2**31 - 1
"""More bytes than any value has. (A slice without an end overflows in Arrow 26: "Negative buffer resize".)"""


def leading(column: pa.BinaryArray, kind: _Numbers, skip: int = 0) -> pa.Array:
    """Return the number that follows the first `skip` bytes of each value. Values must not be null, and be long enough."""
    return _numbers(column, _offsets(column)[:-1] + skip, kind)


def trailing(column: pa.BinaryArray, kind: _Numbers, before: int = 0) -> pa.Array:
    """Return the number that ends `before` bytes before the end of each value. Values must not be null, and be long enough."""
    return _numbers(column, _offsets(column)[1:] - before - kind.itemsize, kind)


def without_first(column: pa.BinaryArray, size: int) -> pa.BinaryArray:
    """Return each value without its first `size` bytes; null stays null."""
    return pc.binary_slice(column, size, _LONGEST)


def without_last(column: pa.BinaryArray, size: int) -> pa.BinaryArray:
    """Return each value without its last `size` bytes; null stays null."""
    return pc.binary_slice(column, 0, -size)


def _offsets(column: pa.BinaryArray) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the start of each value in the column's data buffer, followed by the end of the last one."""
    if not len(column):
        return np.zeros(1, np.int64)
    found = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]
    return found.astype(np.int64)


def _numbers(column: pa.BinaryArray, starts: np.ndarray[tuple[int], np.dtype[np.int64]], kind: _Numbers) -> pa.Array:
    found = _data(column)[starts[:, None] + np.arange(kind.itemsize)]
    return pa.array(np.ascontiguousarray(found).view(kind).reshape(-1).astype(kind.newbyteorder("=")))


def _data(column: pa.BinaryArray) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    data = column.buffers()[2]
    return np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
