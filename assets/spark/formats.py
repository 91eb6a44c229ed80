"""What stands in a store or changelog, by the name of its serde, as columns of Arrow and of Spark.

The state's files and the changelog are read by two ways that must agree, so both turn bytes into columns here. Formats that are not known
(serdes of the user's own) stay binary.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from runtime.errors import StateDirectoryError
from runtime.stores.base import StoreLayout
from runtime.stores.files import NO_ROWS, ROW_KINDS, StoreRows


@dataclass(frozen=True, slots=True)
class Format:
    """How the bytes of one serde become a column."""

    spark: DataType
    arrow: pa.DataType
    decode: Callable[[Sequence[bytes]], pa.Array]


def _text(values: Sequence[bytes]) -> pa.Array:
    return pa.array(values, pa.binary()).cast(pa.string())


def _numbers(code: str, arrow: pa.DataType) -> Callable[[Sequence[bytes]], pa.Array]:
    size = struct.calcsize(f">{code}")

    def decode(values: Sequence[bytes]) -> pa.Array:
        joined = b"".join(values)
        if len(joined) != size * len(values):
            wrong = next(value for value in values if len(value) != size)
            raise ValueError(f"{wrong!r} is not a number of {size} bytes: was the store written with another serde?")
        return pa.array(struct.unpack(f">{len(values)}{code}", joined), arrow)

    return decode


def _binary(values: Sequence[bytes]) -> pa.Array:
    return pa.array(values, pa.binary())


TEXT = Format(StringType(), pa.string(), _text)
BINARY = Format(BinaryType(), pa.binary(), _binary)
FORMATS: dict[str, Format] = {
    "STRING": TEXT,
    "JSON": TEXT,
    "UUID": TEXT,
    "SHORT": Format(ShortType(), pa.int16(), _numbers("h", pa.int16())),
    "INTEGER": Format(IntegerType(), pa.int32(), _numbers("i", pa.int32())),
    "LONG": Format(LongType(), pa.int64(), _numbers("q", pa.int64())),
    "FLOAT": Format(FloatType(), pa.float32(), _numbers("f", pa.float32())),
    "DOUBLE": Format(DoubleType(), pa.float64(), _numbers("d", pa.float64())),
}

_TIMES = pa.timestamp("us", tz="UTC")


def format_of(serde: str) -> Format:
    """By the serde's name; binary for one that is not known here."""
    return FORMATS.get(serde, BINARY)


def row_schema(layout: StoreLayout) -> StructType:
    """The columns of a store: `partition`, `key`, for windows `window_start` and `window_end`, `value`, and `timestamp` where the
    store has them. Raises StateDirectoryError for a store of a kind that has no such rows."""
    if layout.kind not in ROW_KINDS:
        raise StateDirectoryError(f"no table can be made of a {layout.kind} store: {NO_ROWS}")
    fields = [StructField("partition", IntegerType(), False), StructField("key", format_of(layout.key_serde).spark, False)]
    if layout.kind == "window":
        fields += [StructField("window_start", TimestampType(), False), StructField("window_end", TimestampType(), False)]
    fields.append(StructField("value", format_of(layout.value_serde).spark, False))
    if layout.timestamped:
        fields.append(StructField("timestamp", TimestampType(), False))
    return StructType(fields)


def key_columns(layout: StoreLayout) -> list[str]:
    """The columns that name a row."""
    return ["partition", "key", *(["window_start"] if layout.kind == "window" else [])]


def keys_to_arrow(layout: StoreLayout, partition: int, rows: StoreRows) -> pa.RecordBatch:
    """The columns that name the rows. Raises ValueError where bytes do not fit the format."""
    return pa.RecordBatch.from_pydict(_key_arrays(layout, partition, rows))


def to_arrow(layout: StoreLayout, partition: int, rows: StoreRows) -> pa.RecordBatch:
    """Rows of a store as one Arrow batch with the columns of `row_schema`. Raises ValueError where bytes do not fit the format."""
    columns = _key_arrays(layout, partition, rows)
    if rows.window_starts is not None:
        size = layout.window_size_ms or 0
        columns["window_end"] = _times([start + size for start in rows.window_starts])
    columns["value"] = format_of(layout.value_serde).decode(rows.values)
    if rows.timestamps is not None:
        columns["timestamp"] = _times(rows.timestamps)
    return pa.RecordBatch.from_pydict(columns)


def _key_arrays(layout: StoreLayout, partition: int, rows: StoreRows) -> dict[str, pa.Array]:
    columns = {
        "partition": pa.array([partition] * len(rows.keys), pa.int32()),
        "key": format_of(layout.key_serde).decode(rows.keys),
    }
    if rows.window_starts is not None:
        columns["window_start"] = _times(rows.window_starts)
    return columns


def _times(milliseconds: Sequence[int]) -> pa.Array:
    return pa.array(milliseconds, pa.timestamp("ms", tz="UTC")).cast(_TIMES)
