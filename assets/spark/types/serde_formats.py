"""Decoders for the output of serdes, by the serde's name, to columns of Arrow and Spark.

A format decodes a whole column of bytes at once. If a value does not fit, the column is halved until the value is alone: well-formed
columns pay nothing for it, and a malformed value costs a few dozen operations.

Bytes that a name and a schema do not describe stay binary: those of the user's own serdes, of Protobuf, and of foreign-key joins.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from io import BytesIO
from typing import TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_type

from penstock.assets.spark.types.avro import as_json_schema
from penstock.assets.spark.types.json_schema import Schema, shape_of
from penstock.assets.spark.types.shapes import TEXT, Shape, Text, json_reader, or_none
from penstock.runtime.serdes import primitive
from penstock.runtime.serdes.avro_defaults import parse, resolved
from penstock.runtime.serdes.columns import BYTE, INT64, leading, trailing, without_first, without_last
from penstock.runtime.serdes.keys import SESSION_SUFFIX, TIMESTAMP
from penstock.runtime.serdes.serde import RegistrySchema

UNFIT = (ValueError, ArithmeticError, TypeError, struct.error, msgspec.MsgspecError, RecursionError, EOFError, LookupError)
"""Errors that malformed bytes may raise. (pa.ArrowInvalid is a ValueError.)"""
AROUND = ("list_of", "time_windowed", "session_windowed", "join_key")
"""Wrapping serdes: they have the schema of the inner serde, but other bytes around its output."""
_WIRE = 5
"""Length of the prefix of a Schema Registry serde: 0 and the schema's id."""
_OF_AVRO = (bytes, bytearray, datetime, date, Decimal)
"""Types returned by fastavro that need no conversion."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """A column, null where bytes did not fit, and the reason for each such row."""

    column: pa.Array
    wrong: dict[int, str]


@dataclass(frozen=True, slots=True)
class Format:
    """Conversion of one serde's bytes to a column. `read` keeps nulls, and raises one of `UNFIT` if a value does not fit."""

    spark: T.DataType
    read: Callable[[pa.BinaryArray], pa.Array]

    @property
    def arrow(self) -> pa.DataType:
        return to_arrow_type(self.spark)

    def decode(self, data: pa.BinaryArray) -> Decoded:
        """Decode a column. Values that do not fit raise nothing."""
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
    """Return the format of a serde by its name and schemas: `schema`, the JSON Schema of bytes that are JSON; `registry`, the schema from a
    Schema Registry."""
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
    """Split the name of a serde into its own and that of the inner serde, empty if it has none: `list_of`, `LONG`."""
    found = re.fullmatch(r"(\w+)\((.*)\)", serde)
    return (found[1], found[2]) if found else (serde, "")


def json_format(shape: Shape, nullable: bool) -> Format:
    """Return the format of values in JSON. `nullable`: the JSON null is a valid value."""
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
    """Decode UUIDs in the usual notation. The serde also accepts others: without dashes, in upper case."""
    text = _text(data)
    if pc.all(pc.match_substring_regex(text, r"\A[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\z"), min_count=0).as_py():
        return text
    return pa.array([None if each is None else str(_read_uuid(each)) for each in data.to_pylist()], pa.string())


def _nothing(data: pa.BinaryArray) -> pa.Array:
    for value in data.drop_null():
        _read_null(value.as_py())
    return data


_read_uuid, _read_null = primitive.UUID.deserializer(""), primitive.NULL.deserializer("")
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
    "NULL": Format(T.BinaryType(), _nothing),
}


# --- wrapping serdes ------------------------------------------------------------------------------------------------------------------


def _list_format(name: str, inner: Format) -> Format:
    """Return the format of lists: entries of a fixed size have no length prefix, so the list's own serde reads them."""
    spark = T.ArrayType(inner.spark, True)
    fixed = getattr(primitive, name) if name in NUMBERS or name == "UUID" else None
    entries = primitive.list_of(fixed or primitive.BYTES).deserializer("")

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
"""First and last time that Spark and Python can represent: in the years 1 and 9999."""


def milliseconds(times: pa.Int64Array) -> pa.Array:
    """Convert times in ms since the epoch to a column of Spark's TIMESTAMP. Raises ValueError for times out of its range."""
    found = pc.min_max(times)
    if found["min"].is_valid and (found["min"].as_py() < EARLIEST_MS or found["max"].as_py() > LATEST_MS):
        raise ValueError(f"{found['min']} or {found['max']} ms since the epoch is not a time of the years 1 to 9999")
    return times.cast(pa.timestamp("ms", tz="UTC")).cast(to_arrow_type(T.TimestampType()))


def _windowed_format(inner: Format, *, session: bool) -> Format:
    """Return the format of windowed keys: a struct of the key and the window. The end of a time window is not in the bytes."""
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
    """Return the format of keys in the store of an outer stream-stream join: the record's time, its side, its key."""
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


# --- Schema Registry ----------------------------------------------------------------------------------------------------------------


def _registry_format(registry: RegistrySchema) -> Format:
    match registry.kind:
        case "JSON":
            return _json_schema_format(registry)
        case "AVRO":
            return _avro_format(registry)
    return _protobuf_format(registry)


def _json_schema_format(registry: RegistrySchema) -> Format:
    """Return the format of JSON validated against its full schema, and converted to its type, as the serde does both."""
    # Executors need jsonschema only for stores of this format.
    from jsonschema.exceptions import ValidationError
    from jsonschema.validators import validator_for
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    schema = msgspec.json.decode(registry.text)
    validate = validator_for(schema)(schema, registry=Registry()).validate
    validated, described = registry.type is None, registry.type or schema
    inner = json_format(*shape_of(described, validated=validated))
    of_objects, _ = shape_of(described, Text(object), validated=validated)
    require_type = _type_check(registry)

    def parsed(value: bytes) -> object:
        require_recorded(registry, _schema_id(value))
        found: object = json.loads(value[_WIRE:])
        try:
            validate(found)
        except ValidationError as error:
            raise ValueError(f"{error.message} - at `{error.json_path}`") from error
        except Unresolvable as error:
            raise ValueError(f"its schema refers to another one, which is not recorded here: {error}") from error
        require_type(found)
        return found

    def read(data: pa.BinaryArray) -> pa.Array:
        values = _without_id(data)
        found = [None if value is None else parsed(value) for value in data.to_pylist()]
        if not validated:  # `json` and msgspec read some values of types differently
            return of_objects.array([None if each is None else msgspec.convert(each, of_objects.python) for each in found])
        try:
            return inner.read(values)
        except UNFIT as error:
            if len(values) != 1 or not values[0].is_valid:
                raise
            # The serde parses by `json`, which reads more than msgspec: NaN, infinities and 1e400, UTF-16, a byte order mark.
            try:
                return of_objects.array([None if found[0] is None else msgspec.convert(found[0], of_objects.python)])
            except UNFIT:
                raise error from None

    return Format(inner.spark, read)


def _protobuf_format(registry: RegistrySchema) -> Format:
    """Return the format of messages: unchanged bytes, if the program can read them."""
    from penstock.assets.spark.types.protobuf import MessageReader  # imports protobuf, needed only for this format

    messages = MessageReader(registry)

    def read(data: pa.BinaryArray) -> pa.Array:
        _without_id(data)
        for value in data.drop_null().to_pylist():
            require_recorded(registry, _schema_id(value))
            messages.read(_schema_id(value), value[_WIRE:])
        return data

    return Format(T.BinaryType(), read)


def _without_id(data: pa.BinaryArray) -> pa.BinaryArray:
    _require_at_least(data, _WIRE, "a value with a schema's id")
    if pc.any(pc.not_equal(leading(data.drop_null(), BYTE), 0)).as_py():
        raise ValueError("a value with a schema's id begins with a byte 0")
    return without_first(data, _WIRE)


def _schema_id(value: bytes) -> int:
    return int.from_bytes(value[1:_WIRE], "big")


def _avro_format(registry: RegistrySchema) -> Format:
    """Return the format of Avro. As the program does, it reads each value with the schema that its id names, resolved to the program's own.
    A value with an unknown id does not fit: its bytes may fit another schema too, and mean something else in it."""
    from fastavro import schemaless_reader  # executors need it only for stores of this format
    from fastavro.read import SchemaResolutionError

    reader, resolves = _avro_schema(registry.text)
    shape, _ = shape_of(as_json_schema(reader), Text(object))
    writers: dict[int, _AvroSchema] = {}
    require_type = _type_check(registry)

    def writer_of(number: int) -> _AvroSchema:
        if number not in writers:
            require_recorded(registry, number)
            writers[number], _ = _avro_schema(registry.writers[number])
        return writers[number]

    def one(value: bytes) -> object:
        number, source = _schema_id(value), BytesIO(value[_WIRE:])
        writer = writer_of(number)
        if len(value) == _WIRE:
            raise ValueError("nothing follows the schema's id")
        if isinstance(writer, dict) and writer["type"] == "bytes":  # Confluent's serializer writes such bytes as they are
            found: object = source.read()
        else:
            try:
                found = schemaless_reader(source, writer, reader)
            except SchemaResolutionError as error:
                raise ValueError(f"it was written with the schema of id {number}, which does not fit the program's: {error}") from error
        if source.read(1):
            raise ValueError("bytes are left behind the value")
        value_read = resolved(found) if resolves else found
        require_type(value_read)
        return msgspec.convert(value_read, shape.python, builtin_types=_OF_AVRO)

    def read(data: pa.BinaryArray) -> pa.Array:
        _without_id(data)
        return shape.array([None if value is None else one(value) for value in data.to_pylist()])

    return Format(shape.spark, read)


_AvroSchema: TypeAlias = "dict[str, object] | list[object]"


def _avro_json(text: str) -> _AvroSchema:
    """Parse the JSON of an Avro schema; that of a primitive type becomes an object, as in Confluent's serializers."""
    found = msgspec.json.decode(text)
    return found if isinstance(found, dict | list) else {"type": found}


def _avro_schema(text: str) -> tuple[_AvroSchema, bool]:
    """Return a parsed schema, and True if values that are read with it must pass `resolved`."""
    from fastavro.schema import SchemaParseException

    try:
        return parse(_avro_json(text))
    except SchemaParseException as error:
        raise ValueError(f"an Avro schema cannot be read: {error}") from error


def require_recorded(registry: RegistrySchema, schema_id: int) -> None:
    """Raise ValueError if the schema with which a value was written is not recorded: the program asks the registry for it, and refuses the
    value if the registry has none."""
    if schema_id in registry.writers:
        return
    there = f"there are {', '.join(map(str, sorted(registry.writers)))}"
    none = "none is: an earlier version of Penstock wrote this, or the Schema Registry did not answer. Take another snapshot"
    raise ValueError(f"it was written with the schema of id {schema_id}, which is not recorded here: {there if registry.writers else none}")


def _type_check(registry: RegistrySchema) -> Callable[[object], None]:
    """Return a function that raises msgspec.ValidationError for a value that is not of the type to which the program converts it."""
    if registry.type is None:
        return lambda found: None
    shape, nullable = shape_of(registry.type)
    exact = or_none(shape.exact) if nullable and not isinstance(shape, Text) else shape.exact

    def check(found: object) -> None:
        msgspec.convert(found, exact)

    return check
