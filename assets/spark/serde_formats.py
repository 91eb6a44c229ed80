"""What the serdes wrote, by their names, as columns of Arrow and of Spark.

A format turns a whole column of bytes at a time. Where a value does not fit, the column is halved until it stands alone: good columns cost
nothing for it, and a bad value costs a few dozen operations.

What cannot be known from a name and a schema stays binary: the user's own serdes, Protobuf, and what joins by foreign keys keep.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from io import BytesIO

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_type

from assets.spark.avro_schema import as_json_schema
from assets.spark.schema import Schema, shape_of
from assets.spark.shapes import TEXT, Shape, Text, json_reader
from runtime.serdes import lists, primitive
from runtime.serdes.columns import BYTE, INT64, leading, trailing, without_first, without_last
from runtime.serdes.keys import SESSION_SUFFIX, TIMESTAMP
from runtime.serdes.serde import RegistrySchema

UNFIT = (ValueError, OverflowError, TypeError, struct.error, msgspec.MsgspecError, RecursionError, EOFError, IndexError)
"""What reading bytes that do not fit may raise. (pa.ArrowInvalid is a ValueError.)"""
AROUND = ("list_of", "time_windowed", "session_windowed", "join_key")
"""Serdes around another one, whose schema they have, and whose bytes are not theirs alone."""
_WIRE = 5
"""Bytes before a value of a Schema Registry's serde: 0 and the schema's id."""
_OF_AVRO = (bytes, bytearray, datetime, date, Decimal)
"""Types that fastavro reads to and that are taken as they are."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """A column, null where bytes did not fit, and for each such place why."""

    column: pa.Array
    wrong: dict[int, str]


@dataclass(frozen=True, slots=True)
class Format:
    """How the bytes of one serde become a column. `read` leaves nulls null, and raises one of `UNFIT` where a value does not fit."""

    spark: T.DataType
    read: Callable[[pa.BinaryArray], pa.Array]

    @property
    def arrow(self) -> pa.DataType:
        return to_arrow_type(self.spark)

    def decode(self, data: pa.BinaryArray) -> Decoded:
        """The column. Nothing is raised for values that do not fit."""
        wrong: dict[int, str] = {}
        columns = list(self._pieces(data, 0, wrong))
        return Decoded(columns[0] if len(columns) == 1 else pa.concat_arrays(columns), wrong)

    def _pieces(self, data: pa.BinaryArray, at: int, wrong: dict[int, str]) -> Sequence[pa.Array]:
        try:
            return [self.read(data)]
        except UNFIT as error:
            if len(data) == 1:
                wrong[at] = str(error) or type(error).__name__
                return [pa.nulls(1, self.arrow)]
        half = len(data) // 2
        return [*self._pieces(data[:half], at, wrong), *self._pieces(data[half:], at + half, wrong)]


def format_of(serde: str, schema: Schema | None = None, registry: RegistrySchema | None = None) -> Format:
    """By the serde's name and what it tells of its bytes: `schema`, the JSON Schema of bytes that are JSON; `registry`, a Schema Registry's
    schema."""
    if serde in _FORMATS:
        return _FORMATS[serde]
    outer, inner = serde_parts(serde)
    match outer:
        case "nullable":
            return format_of(inner, schema, registry)
        case "list_of":
            return _list_format(inner, format_of(inner, schema, registry))
        case "time_windowed":
            return _windowed_format(format_of(inner, schema, registry), session=False)
        case "session_windowed":
            return _windowed_format(format_of(inner, schema, registry), session=True)
        case "join_key":
            return _join_key_format(format_of(inner, schema, registry))
    if registry is not None:
        return _registry_format(registry)
    if schema is not None:
        return json_format(*shape_of(schema))
    return json_format(TEXT, nullable=True) if outer in ("JSON", "json") else BINARY


def serde_parts(serde: str) -> tuple[str, str]:
    """The name of a serde, and of the one that it is around, empty where there is none: `list_of`, `LONG`."""
    found = re.fullmatch(r"(\w+)\((.*)\)", serde)
    return (found[1], found[2]) if found else (serde, "")


def json_format(shape: Shape, nullable: bool) -> Format:
    """Values in JSON. `nullable`: the JSON null is one of them."""
    return Format(shape.spark, json_reader(shape, nullable))


# --- primitive types ----------------------------------------------------------------------------------------------------------------


def _as_it_is(data: pa.BinaryArray) -> pa.Array:
    return data


def _text(data: pa.BinaryArray) -> pa.Array:
    return data.cast(pa.string())


def _require_size(data: pa.BinaryArray, size: int, what: str) -> None:
    wrong = data.filter(pc.not_equal(pc.binary_length(data), size))
    if len(wrong):
        raise ValueError(f"{wrong[0].as_py()[:16]!r} is not {what}, which has {size} bytes: was it written with another serde?")


def _number_format(name: str, kind: np.dtype[np.signedinteger] | np.dtype[np.floating], spark: T.DataType) -> Format:
    def read(data: pa.BinaryArray) -> pa.Array:
        _require_size(data, kind.itemsize, f"of the serde {name}")
        if not data.null_count:
            return leading(data, kind)
        numbers = leading(pc.fill_null(data, bytes(kind.itemsize)), kind)
        return pc.if_else(data.is_valid(), numbers, pa.scalar(None, numbers.type))

    return Format(spark, read)


def _boolean(data: pa.BinaryArray) -> pa.Array:
    _require_size(data, 1, "of the serde BOOLEAN")
    true = pc.equal(data, pa.scalar(b"\x01", pa.binary()))
    if pc.any(pc.and_not(pc.not_equal(data, pa.scalar(b"\x00", pa.binary())), true)).as_py():
        raise ValueError("a BOOLEAN is a byte 0 or 1")
    return true


def _uuid(data: pa.BinaryArray) -> pa.Array:
    text = _text(data)
    matched = pc.match_substring_regex(text, "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$")
    if not pc.all(matched, min_count=0).as_py():
        raise ValueError(f"{text.filter(pc.invert(matched))[0].as_py()!r} is no UUID")
    return text


TEXT_FORMAT = Format(T.StringType(), _text)
BINARY = Format(T.BinaryType(), _as_it_is)
NUMBERS = {
    "SHORT": _number_format("SHORT", np.dtype(">i2"), T.ShortType()),
    "INTEGER": _number_format("INTEGER", np.dtype(">i4"), T.IntegerType()),
    "LONG": _number_format("LONG", np.dtype(">i8"), T.LongType()),
    "FLOAT": _number_format("FLOAT", np.dtype(">f4"), T.FloatType()),
    "DOUBLE": _number_format("DOUBLE", np.dtype(">f8"), T.DoubleType()),
}
_FORMATS = {
    **NUMBERS,
    "STRING": TEXT_FORMAT,
    "BYTES": BINARY,
    "BOOLEAN": Format(T.BooleanType(), _boolean),
    "UUID": Format(T.StringType(), _uuid),
}


# --- serdes around others -----------------------------------------------------------------------------------------------------------


def _list_format(name: str, inner: Format) -> Format:
    """Lists: of a fixed size each entry's bytes stand without a length, so the list's own serde reads them."""
    spark = T.ArrayType(inner.spark, True)
    fixed = getattr(primitive, name) if name in NUMBERS or name == "UUID" else None
    entries = lists.list_of(fixed or primitive.BYTES).deserializer("")

    def read(data: pa.BinaryArray) -> pa.Array:
        found = [None if each is None else entries(each) for each in data.to_pylist()]
        if fixed is primitive.UUID:
            found = [None if each is None else [None if entry is None else str(entry) for entry in each] for each in found]
        flat = [entry for each in found if each is not None for entry in each]
        items = inner.read(pa.array(flat, pa.binary())) if fixed is None else pa.array(flat, inner.arrow)
        ends, offsets = 0, []
        for each in found:
            offsets.append(None if each is None else ends)
            ends += len(each or ())
        return pa.ListArray.from_arrays(pa.array([*offsets, ends], pa.int32()), items, type=to_arrow_type(spark))

    return Format(spark, read)


EARLIEST_MS, LATEST_MS = -62_135_596_800_000, 253_402_300_799_999
"""The first and the last moment that Spark, and Python, have a name for: of the years 1 and 9999."""


def milliseconds(times: pa.Int64Array) -> pa.Array:
    """Times in ms since the epoch as a column of Spark's TIMESTAMP. Raises ValueError for those that it cannot hold."""
    found = pc.min_max(times)
    if found["min"].is_valid and (found["min"].as_py() < EARLIEST_MS or found["max"].as_py() > LATEST_MS):
        raise ValueError(f"{found['min']} or {found['max']} ms since the epoch is no time of the years 1 to 9999")
    return times.cast(pa.timestamp("ms", tz="UTC")).cast(to_arrow_type(T.TimestampType()))


def _windowed_format(inner: Format, *, session: bool) -> Format:
    """Windowed keys: a struct of the key and the window. The end of a time window is not in the bytes."""
    names = ["window_start", "window_end"] if session else ["window_start"]
    spark = T.StructType([T.StructField("key", inner.spark), *(T.StructField(name, T.TimestampType()) for name in names)])
    size = SESSION_SUFFIX if session else TIMESTAMP

    def read(data: pa.BinaryArray) -> pa.Array:
        _require_at_least(data, size, "a windowed key")
        filled = pc.fill_null(data, bytes(size))
        times = [trailing(filled, INT64), trailing(filled, INT64, TIMESTAMP)] if session else [trailing(filled, INT64)]
        columns = [inner.read(without_last(data, size)), *map(milliseconds, times)]
        return pa.StructArray.from_arrays(columns, fields=list(to_arrow_type(spark)), mask=data.is_null())

    return Format(spark, read)


def _join_key_format(inner: Format) -> Format:
    """Keys of what waits for a partner in an outer join of streams: the record's time, its side, its key."""
    fields = [T.StructField("timestamp", T.TimestampType()), T.StructField("left", T.BooleanType()), T.StructField("key", inner.spark)]
    spark = T.StructType(fields)

    def read(data: pa.BinaryArray) -> pa.Array:
        _require_at_least(data, TIMESTAMP + 1, "a key of an outer join")
        filled = pc.fill_null(data, bytes(TIMESTAMP + 1))
        left = pc.equal(leading(filled, BYTE, TIMESTAMP), 1)
        columns = [milliseconds(leading(filled, INT64)), left, inner.read(without_first(data, TIMESTAMP + 1))]
        return pa.StructArray.from_arrays(columns, fields=list(to_arrow_type(spark)), mask=data.is_null())

    return Format(spark, read)


def _require_at_least(data: pa.BinaryArray, size: int, what: str) -> None:
    short = data.filter(pc.less(pc.binary_length(data), size))
    if len(short):
        raise ValueError(f"{what} has at least {size} bytes, not {len(short[0].as_py())}")


# --- a Schema Registry's ------------------------------------------------------------------------------------------------------------


def _registry_format(registry: RegistrySchema) -> Format:
    if registry.kind == "JSON":
        inner = json_format(*shape_of(msgspec.json.decode(registry.text)))
        return Format(inner.spark, lambda data: inner.read(_without_id(data)))
    return _avro_format(registry.text) if registry.kind == "AVRO" else BINARY


def _without_id(data: pa.BinaryArray) -> pa.BinaryArray:
    _require_at_least(data, _WIRE, "a value with a schema's id")
    if pc.any(pc.not_equal(leading(data.drop_null(), BYTE), 0)).as_py():
        raise ValueError("a value with a schema's id begins with a byte 0")
    return without_first(data, _WIRE)


def _avro_format(text: str) -> Format:
    """Avro, read by the schema that the program writes with. A value of another version of it may not fit, and is malformed then: its own
    schema is known to the registry alone."""
    import fastavro

    avro = fastavro.parse_schema(msgspec.json.decode(text))
    shape, _ = shape_of(as_json_schema(msgspec.json.decode(text)), Text(object))

    def one(value: bytes) -> object:
        source = BytesIO(value)
        found: object = fastavro.schemaless_reader(source, avro, None)
        if source.read(1):
            raise ValueError("bytes are left behind the value: was it written with another version of the schema?")
        return msgspec.convert(found, shape.python, builtin_types=_OF_AVRO)

    def read(data: pa.BinaryArray) -> pa.Array:
        return shape.array([None if value is None else one(value) for value in _without_id(data).to_pylist()])

    return Format(shape.spark, read)
