"""Columns of bytes parsed as a whole give the same results as value by value."""

from __future__ import annotations

import struct

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.runtime.serdes.columns import INT32, INT64, leading, trailing, without_first, without_last

VALUES = st.lists(st.binary(min_size=12, max_size=20), max_size=6)


@settings(deadline=None)
@given(VALUES, st.integers(0, 3), st.integers(0, 12))
def test_columns_are_parsed_as_single_values(values: list[bytes], first: int, size: int) -> None:
    column = pa.array(values, pa.binary())[first:]
    values = values[first:]
    assert without_first(column, size).to_pylist() == [value[size:] for value in values]
    if size:
        assert without_last(column, size).to_pylist() == [value[:-size] for value in values]
    assert leading(column, INT64, 2).to_pylist() == [struct.unpack(">q", value[2:10])[0] for value in values]
    assert trailing(column, INT32).to_pylist() == [struct.unpack(">i", value[-4:])[0] for value in values]
    assert trailing(column, INT64, 4).to_pylist() == [struct.unpack(">q", value[-12:-4])[0] for value in values]


@settings(deadline=None)
@given(st.lists(st.binary(max_size=12) | st.none(), max_size=40))
def test_null_stays_null(values: list[bytes | None]) -> None:
    column = pa.array(values, pa.binary())
    assert without_first(column, 8).to_pylist() == [None if value is None else value[8:] for value in values]
    assert without_last(column, 8).to_pylist() == [None if value is None else value[:-8] for value in values]
