"""Types of JSON as columns.

A type is a `Shape`: what msgspec reads bytes to, the Spark and Arrow type of the column, and how objects become the column. msgspec checks
while it reads, as the serde of the stream does: what the program could not have read is not taken for a row here. (Rejected: pyarrow's JSON
reader. It knows no maps, bytes, dates or required fields, and is half as fast on batches of this size.)
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import chain
from operator import attrgetter
from types import GenericAlias
from typing import Annotated, Any, TypeAlias, Union, cast

import msgspec
import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_type

PythonType: TypeAlias = Any
"""A type, made at run time."""


class Shape(ABC):
    """A type of JSON. `python`: what msgspec reads it to."""

    python: PythonType
    spark: T.DataType

    @property
    def arrow(self) -> pa.DataType:
        """The type of the column that `array` makes."""
        return to_arrow_type(self.spark)

    @property
    def default(self) -> object:
        """What stands for a field that is missing."""
        return None

    @abstractmethod
    def array(self, objects: Sequence[object]) -> pa.Array:
        """Objects, None among them, as a column. Raises ValueError (pa.ArrowInvalid) or OverflowError for what has no place in it."""


@dataclass(frozen=True, slots=True)
class Scalar(Shape):
    """One value; Arrow takes the objects as they are."""

    python: PythonType
    spark: T.DataType

    def array(self, objects: Sequence[object]) -> pa.Array:
        return pa.array(objects, self.arrow)


@dataclass(frozen=True, slots=True)
class Text(Shape):
    """Any JSON as text: a string as it is, null as null, everything else as it was written."""

    python: PythonType = msgspec.Raw
    spark: T.DataType = T.StringType()  # noqa: RUF009 (immutable)

    @property
    def default(self) -> object:
        return msgspec.Raw()

    def array(self, objects: Sequence[object]) -> pa.Array:
        return pa.array([_text(each) for each in objects], pa.string())


def _text(value: object) -> str | None:
    if not isinstance(value, msgspec.Raw):  # of Avro: objects, not JSON
        plain = msgspec.to_builtins(value)
        return plain if plain is None or isinstance(plain, str) else msgspec.json.encode(plain).decode()
    data = bytes(value)
    if data in (b"", b"null"):
        return None
    return msgspec.json.decode(data, type=str) if data[:1] == b'"' else data.decode()


@dataclass(frozen=True, slots=True)
class Written(Shape):
    """What has no type in Spark, or none of its own: read as the type, and written again as text."""

    python: PythonType
    spark: T.DataType = T.StringType()  # noqa: RUF009 (immutable)

    def array(self, objects: Sequence[object]) -> pa.Array:
        return pa.array(map(msgspec.to_builtins, objects), pa.string())


@dataclass(frozen=True, slots=True)
class Field:
    """A field of an object: its name there, its column's, and whether it may be null, or missing. `default`: what a missing one stands for;
    None: nothing."""

    name: str
    column: str
    shape: Shape
    nullable: bool
    required: bool
    default: object = None
    comment: str | None = None


class Struct(Shape):
    """An object with known fields."""

    def __init__(self, fields: Sequence[Field], *, closed: bool = False) -> None:
        """`closed`: an object with other fields does not fit; else they are passed over."""
        self.fields = tuple(fields)
        self._attributes = [f"f{place}" for place in range(len(self.fields))]
        declared = [(attribute, *_declared(field)) for attribute, field in zip(self._attributes, self.fields, strict=True)]
        names = {attribute: field.name for attribute, field in zip(self._attributes, self.fields, strict=True)}
        self.python = msgspec.defstruct(
            "Object", declared, rename=names, kw_only=True, gc=False, forbid_unknown_fields=closed, module=__name__
        )
        self.spark = T.StructType([_spark_field(field) for field in self.fields])

    def array(self, objects: Sequence[object]) -> pa.Array:
        missing = [each is None for each in objects] if None in objects else None
        columns = []
        for attribute, field in zip(self._attributes, self.fields, strict=True):
            read = attrgetter(attribute)
            values = list(map(read, objects)) if missing is None else [None if each is None else read(each) for each in objects]
            columns.append(field.shape.array(values))
        mask = None if missing is None else pa.array(missing, pa.bool_())
        return pa.StructArray.from_arrays(columns, fields=list(self.arrow), mask=mask)


def _declared(field: Field) -> tuple[PythonType, ...]:
    """Type and default of the attribute that holds a field."""
    python = field.shape.python
    if field.nullable and not isinstance(field.shape, Text):  # what is read as text may be null as it is
        python = Union[python, None]  # noqa: UP007 (`|` is not there for every annotation)
    if field.required:
        return (python,)
    if field.default is None:
        return python, field.shape.default
    return python, msgspec.field(default_factory=lambda: field.default)  # lists and maps among them: nobody changes them here


def _spark_field(field: Field) -> T.StructField:
    metadata = {"comment": field.comment} if field.comment else None
    may_be_null = field.nullable or not (field.required or field.default is not None)
    return T.StructField(field.column, field.shape.spark, may_be_null, metadata)


class ListOf(Shape):
    """An array."""

    def __init__(self, item: Shape, nullable: bool, limits: msgspec.Meta | None = None) -> None:
        """`limits` of its length."""
        self._item = item
        self.python = limited(GenericAlias(list, (_or_null(item, nullable),)), limits)
        self.spark = T.ArrayType(item.spark, nullable)

    def array(self, objects: Sequence[object]) -> pa.Array:
        lists = cast("Sequence[list[object] | None]", objects)
        items = self._item.array(list(chain.from_iterable(each for each in lists if each is not None)))
        return pa.ListArray.from_arrays(_offsets(lists), items, type=self.arrow)


class MapOf(Shape):
    """An object whose names are not known: a map."""

    def __init__(self, value: Shape, nullable: bool) -> None:
        self._value = value
        self.python = GenericAlias(dict, (str, _or_null(value, nullable)))
        self.spark = T.MapType(T.StringType(), value.spark, nullable)

    def array(self, objects: Sequence[object]) -> pa.Array:
        maps = cast("Sequence[dict[str, object] | None]", objects)
        present = [each for each in maps if each is not None]
        keys = pa.array(chain.from_iterable(present), pa.string())
        values = self._value.array(list(chain.from_iterable(each.values() for each in present)))
        return pa.MapArray.from_arrays(_offsets(maps), keys, values, type=self.arrow)


def _or_null(shape: Shape, nullable: bool) -> PythonType:
    return Union[shape.python, None] if nullable and not isinstance(shape, Text) else shape.python  # noqa: UP007 (as above)


def _offsets(found: Sequence[Sequence[object] | Mapping[str, object] | None]) -> pa.Array:
    """Where each list or map begins among all items; null for those that are none."""
    ends, offsets = 0, []
    for each in found:
        offsets.append(None if each is None else ends)
        ends += 0 if each is None else len(each)
    return pa.array([*offsets, ends], pa.int32())


def limited(python: PythonType, limits: msgspec.Meta | None) -> PythonType:
    """The type, of which only what is within the limits fits."""
    return python if limits is None else Annotated[python, limits]


def whole(bits: int) -> PythonType:
    """Integers of so many bits."""
    return Annotated[int, msgspec.Meta(ge=-(2 ** (bits - 1)), le=2 ** (bits - 1) - 1)]


LONG, DOUBLE, BOOLEAN = Scalar(whole(64), T.LongType()), Scalar(float, T.DoubleType()), Scalar(bool, T.BooleanType())
STRING, BINARY = Scalar(str, T.StringType()), Scalar(bytes, T.BinaryType())
DATE, TIMESTAMP = Scalar(date, T.DateType()), Scalar(datetime, T.TimestampType())
DECIMAL, TEXT = Scalar(Decimal, T.DecimalType(38, 18)), Text()
UUID, TIME, DURATION = Written(uuid.UUID), Written(time), Written(timedelta)
NOTHING = Scalar(None, T.StringType())
"""Of values that are always null."""


def json_reader(shape: Shape, nullable: bool) -> Callable[[pa.BinaryArray], pa.Array]:
    """A function that turns values in JSON into a column; it raises what `UNFIT` names where one of them does not fit. A null value stays
    null."""
    decoder = msgspec.json.Decoder(GenericAlias(list, (_or_null(shape, True),)))

    def read(data: pa.BinaryArray) -> pa.Array:
        present = data if data.null_count == 0 else data.drop_null()
        values = present.to_pylist()
        found = decoder.decode(b"".join((b"[", b",".join(values), b"]")))
        if len(found) != len(values):
            raise ValueError("it is not one JSON value")
        if not nullable and None in found:
            raise ValueError("it is null, which its type does not allow")
        if data.null_count:
            read_values = iter(found)
            found = [next(read_values) if valid else None for valid in data.is_valid().to_pylist()]
        return shape.array(found)

    return read
