"""Types of JSON as columns.

A `Shape` defines a type: what msgspec decodes bytes to, the Spark and Arrow type of the column, and the conversion of objects to the
column. msgspec validates each value, like the serde of the stream: a value that the program could not have read does not become a row here.
(Rejected: pyarrow's JSON reader. It has no maps, bytes, dates or required fields, and is half as fast on batches of this size. Rejected:
the values of a column joined to one JSON list. It is no faster, and `{"n":2` and `"total":2.0}` would become one object.)
"""

from __future__ import annotations

import json
import math
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import chain
from operator import attrgetter
from types import GenericAlias
from typing import Annotated, Any, TypeAlias, Union, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_type

PythonType: TypeAlias = Any
"""A type, created at run time."""
EXACT = 2**53
"""All integers from its negative up to this one are exactly representable as DOUBLE."""
_FIRST_US, _LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The years 1 to 9999 in microseconds since the epoch."""


class Shape(ABC):
    """A type of JSON. `python`: the type that msgspec decodes it to."""

    python: PythonType
    spark: T.DataType

    @property
    def exact(self) -> PythonType:
        """Like `python`, but without parts that are kept undecoded: msgspec validates all of it."""
        return self.python

    @property
    def arrow(self) -> pa.DataType:
        """Type of the column that `array` returns."""
        return to_arrow_type(self.spark)

    @property
    def default(self) -> object:
        """Value of a missing field."""
        return None

    @property
    def has_text(self) -> bool:
        """True if a part of it is a `Text`."""
        return False

    def identity(self, value: object) -> object:
        """Return an object that is equal for values that the program considers equal, to compare items of a set. It may not be hashable."""
        return value

    @abstractmethod
    def array(self, objects: Sequence[object]) -> pa.Array:
        """Convert objects, possibly None, to a column. Raises ValueError (pa.ArrowInvalid) or OverflowError for values that it cannot
        hold."""


@dataclass(frozen=True, slots=True)
class Scalar(Shape):
    """A single value; Arrow accepts the objects unchanged."""

    python: PythonType
    spark: T.DataType

    def array(self, objects: Sequence[object]) -> pa.Array:
        return pa.array(objects, self.arrow)


@dataclass(frozen=True, slots=True)
class Moment(Shape):
    """A point in time. Spark and Python can represent only those in the years 1 to 9999 of UTC, which times with other zones may exceed."""

    python: PythonType = datetime
    spark: T.DataType = T.TimestampType()  # noqa: RUF009 (immutable)

    def array(self, objects: Sequence[object]) -> pa.Array:
        found = pa.array(objects, self.arrow)
        ends = pc.min_max(found.cast(pa.int64()))
        if ends["min"].is_valid and (ends["min"].as_py() < _FIRST_US or ends["max"].as_py() > _LAST_US):
            raise ValueError("in UTC it is not a time of the years 1 to 9999")
        return found


@dataclass(frozen=True, slots=True)
class Number(Shape):
    """An integer or another number. An integer that is not exactly a DOUBLE does not fit: it is not rounded."""

    python: PythonType
    spark: T.DataType = T.DoubleType()  # noqa: RUF009 (immutable)

    def array(self, objects: Sequence[object]) -> pa.Array:
        for each in objects:
            if type(each) is int and not -EXACT <= each <= EXACT and int(float(each)) != each:
                raise ValueError(f"{each} is not exactly a DOUBLE")
        return pa.array([None if each is None else float(cast(float, each)) for each in objects], pa.float64())


@dataclass(frozen=True, slots=True)
class Whole(Shape):
    """An integer that may be written as `1.0`."""

    python: PythonType = int | float
    spark: T.DataType = T.LongType()  # noqa: RUF009 (immutable)

    def array(self, objects: Sequence[object]) -> pa.Array:
        return pa.array([int(each) if isinstance(each, float) and each.is_integer() else each for each in objects], pa.int64())


class Text(Shape):
    """A value as text: a string unchanged, null as null, everything else as its original JSON; if that has a name or an item of a set
    twice, as the JSON of the value that it is read as."""

    spark = T.StringType()

    def __init__(self, python: PythonType = msgspec.Raw, exact: PythonType = object, *, sets: bool = False) -> None:
        """`exact`: the type of the value, which Spark lacks; values of other types do not fit, including null. `python` is object for
        values that were decoded before (Avro), and are not validated here. `sets`: the type may have sets in it."""
        self.python = python
        self._exact, self._sets = exact, sets
        self._read = msgspec.json.Decoder(exact).decode

    @property
    def exact(self) -> PythonType:
        return self._exact

    @property
    def default(self) -> object:
        return msgspec.Raw()

    @property
    def has_text(self) -> bool:
        return True

    def array(self, objects: Sequence[object]) -> pa.Array:
        return pa.array([self._text(each) for each in objects], pa.string())

    def _text(self, value: object) -> str | None:
        if not isinstance(value, msgspec.Raw):  # from Avro: an object, not JSON
            plain = _without_infinities(msgspec.to_builtins(value))
            return plain if plain is None or isinstance(plain, str) else msgspec.json.encode(plain).decode()
        data = bytes(value).strip()
        if not data:  # a missing field
            return None
        found = self._read(data)
        if found is None or type(found) is str:
            return found
        if data[:1] == b'"':
            return msgspec.json.decode(data, type=str)
        if not self._repeats(data, found):
            return data.decode()
        try:
            return msgspec.json.encode(found, order="deterministic").decode()
        except TypeError as error:
            raise ValueError("a set in it has an item twice, and its items have no order") from error

    def identity(self, value: object) -> object:
        data = bytes(value).strip() if isinstance(value, msgspec.Raw) else None
        return self._read(data) if data else None

    def _repeats(self, data: bytes, found: object) -> bool:
        """Return True if the JSON of `found` has a name or an item of a set twice."""
        if not self._sets and b"{" not in data:
            return False
        if not self._sets and data.count(b":") == _names_in(found):  # a colon for each name that is left, and none for another
            return False
        twice = False

        def of_object(pairs: list[tuple[str, object]]) -> dict[str, object]:
            nonlocal twice
            read = dict(pairs)
            twice = twice or len(read) < len(pairs)
            return read

        read = json.loads(data, object_pairs_hook=of_object)
        return twice or (self._sets and _items_in(read) != _items_in(msgspec.to_builtins(found)))


def _without_infinities(value: object) -> object:
    """Return an object with NaN and infinities as text: JSON has neither, and msgspec writes null, another value."""
    match value:
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case dict():
            return {name: _without_infinities(each) for name, each in value.items()}
        case list():
            return list(map(_without_infinities, value))
    return value


def _names_in(found: object) -> int:
    """Return the number of names of all objects in a value."""
    if isinstance(found, dict):
        return len(found) + sum(map(_names_in, found.values()))
    return sum(map(_names_in, found)) if isinstance(found, list) else 0


def _items_in(read: object) -> int:
    """Return the number of items of all arrays in a value."""
    if isinstance(read, dict):
        return sum(map(_items_in, read.values()))
    return len(read) + sum(map(_items_in, read)) if isinstance(read, list | tuple | set | frozenset) else 0


@dataclass(frozen=True, slots=True)
class Written(Shape):
    """A type that Spark lacks: decoded as the type, and written again as text."""

    python: PythonType
    spark: T.DataType = T.StringType()  # noqa: RUF009 (immutable)

    def array(self, objects: Sequence[object]) -> pa.Array:
        return pa.array(map(msgspec.to_builtins, objects), pa.string())


@dataclass(frozen=True, slots=True)
class Field:
    """A field of an object: its name, its column's name, and whether it may be null or missing. `default`: the value of a missing field;
    None: it has no default."""

    name: str
    column: str
    shape: Shape
    nullable: bool
    required: bool
    default: object = None
    comment: str | None = None


class Struct(Shape):
    """An object with known fields."""

    def __init__(self, fields: Sequence[Field], *, closed: bool = False, columns: Sequence[str] | None = None) -> None:
        """`closed`: an object with other fields does not fit; otherwise they are ignored. `columns`: the fields that become columns, all by
        default; the others are validated too."""
        self.fields = tuple(fields)
        self._closed = closed
        there = {field.column: (f"f{place}", field) for place, field in enumerate(self.fields)}
        self._columns = [there[name] for name in (there if columns is None else columns)]
        kept = {field.column for _, field in self._columns}
        types = {
            attribute: (field, field.shape.python if column in kept else field.shape.exact) for column, (attribute, field) in there.items()
        }
        self.python = _object_type(types, closed)
        self.spark = T.StructType([_spark_field(field) for _, field in self._columns])

    @property
    def exact(self) -> PythonType:
        return self.tagged()

    def tagged(self, name: str | None = None, tag: str | int | None = None) -> PythonType:
        """Like `exact`, for an object that has a tag (a name and its value) beside its fields."""
        declared = {f"f{place}": (field, field.shape.exact) for place, field in enumerate(self.fields) if field.name != name}
        return _object_type(declared, self._closed, tag_field=name, tag=tag)

    @property
    def has_text(self) -> bool:
        return any(field.shape.has_text for field in self.fields)

    def identity(self, value: object) -> object:
        return None if value is None else tuple(field.shape.identity(getattr(value, attribute)) for attribute, field in self._columns)

    def with_columns(self, columns: Sequence[str]) -> Struct:
        """Return the object with some of its columns; all of its fields are validated."""
        return Struct(self.fields, closed=self._closed, columns=columns)

    def array(self, objects: Sequence[object]) -> pa.Array:
        missing = [each is None for each in objects] if None in objects else None
        columns = []
        for attribute, field in self._columns:
            read = attrgetter(attribute)
            values = list(map(read, objects)) if missing is None else [None if each is None else read(each) for each in objects]
            columns.append(field.shape.array(values))
        mask = None if missing is None else pa.array(missing, pa.bool_())
        return pa.StructArray.from_arrays(columns, fields=list(self.arrow), mask=mask)


def _object_type(
    fields: Mapping[str, tuple[Field, PythonType]], closed: bool, tag_field: str | None = None, tag: str | int | None = None
) -> PythonType:
    """Create a type of objects with some fields, each of its value's type, under the attribute that holds it."""
    declared = [(attribute, *_declared(field, python)) for attribute, (field, python) in fields.items()]
    names = {attribute: field.name for attribute, (field, _) in fields.items()}
    return msgspec.defstruct(
        "Object",
        declared,
        rename=names,
        kw_only=True,
        frozen=True,
        gc=False,
        forbid_unknown_fields=closed,
        module=__name__,
        tag_field=tag_field,
        tag=tag,
    )


def _declared(field: Field, python: PythonType) -> tuple[PythonType, ...]:
    """Return type and default of the attribute that holds a field."""
    if field.nullable and not isinstance(field.shape, Text):  # the type of Text itself determines whether null fits
        python = or_none(python)
    if field.required:
        return (python,)
    if isinstance(field.shape, Text) and python is not field.shape.python:  # the exact type
        return python, field.shape.identity(field.default)
    if field.default is None:
        return python, field.shape.default
    return python, msgspec.field(default_factory=lambda: field.default)  # may be a list or a map, which is never modified here


def _spark_field(field: Field) -> T.StructField:
    metadata = {"comment": field.comment} if field.comment else None
    may_be_null = field.nullable or not (field.required or field.default is not None)
    return T.StructField(field.column, field.shape.spark, may_be_null, metadata)


class ListOf(Shape):
    """An array."""

    def __init__(self, item: Shape, nullable: bool, limits: msgspec.Meta | None = None) -> None:
        """`limits` apply to its length."""
        self._item, self._nullable, self._limits = item, nullable, limits
        self.python = limited(GenericAlias(list, (_or_null(item, nullable),)), limits)
        self.spark = T.ArrayType(item.spark, nullable)

    @property
    def exact(self) -> PythonType:
        return limited(GenericAlias(tuple, (_exact_or_null(self._item, self._nullable), ...)), self._limits)

    @property
    def has_text(self) -> bool:
        return self._item.has_text

    def identity(self, value: object) -> object:
        return None if value is None else tuple(map(self._item.identity, cast("Sequence[object]", value)))

    def array(self, objects: Sequence[object]) -> pa.Array:
        lists = cast("Sequence[list[object] | None]", objects)
        items = self._item.array(list(chain.from_iterable(each for each in lists if each is not None)))
        return pa.ListArray.from_arrays(_offsets(lists), items, type=self.arrow)


class SetOf(ListOf):
    """An array that is read as a set: the first of equal items becomes one of the column. The order is that of the array."""

    def __init__(self, item: Shape, nullable: bool, limits: msgspec.Meta | None = None) -> None:
        """`limits` apply to the number of different items."""
        super().__init__(item, nullable)
        self._limits = limits

    @property
    def exact(self) -> PythonType:
        return limited(GenericAlias(frozenset, (_exact_or_null(self._item, self._nullable),)), self._limits)

    def identity(self, value: object) -> object:
        return None if value is None else frozenset(cast("Iterable[object]", super().identity(value)))

    def array(self, objects: Sequence[object]) -> pa.Array:
        return super().array([None if each is None else self._different(cast("list[object]", each)) for each in objects])

    def _different(self, items: list[object]) -> list[object]:
        found: dict[object, object] = {}
        for each in items:
            found.setdefault(None if each is None else self._item.identity(each), each)
        least, most = (None, None) if self._limits is None else (self._limits.min_length, self._limits.max_length)
        if (least is not None and len(found) < least) or (most is not None and len(found) > most):
            raise ValueError(f"a set has {len(found)} different items, and may have from {least or 0} to {most or 'any number'}")
        return list(found.values())


class MapOf(Shape):
    """An object with arbitrary names: a map."""

    def __init__(self, value: Shape, nullable: bool, name: PythonType = str, limits: msgspec.Meta | None = None) -> None:
        """`name`: the type of its keys; `limits` apply to their number."""
        self._value, self._nullable, self._name, self._limits = value, nullable, name, limits
        self.python = limited(GenericAlias(dict, (name, _or_null(value, nullable))), limits)
        self.spark = T.MapType(T.StringType(), value.spark, nullable)

    @property
    def exact(self) -> PythonType:
        return limited(GenericAlias(dict, (self._name, _exact_or_null(self._value, self._nullable))), self._limits)

    @property
    def has_text(self) -> bool:
        return self._value.has_text

    def array(self, objects: Sequence[object]) -> pa.Array:
        maps = cast("Sequence[dict[object, object] | None]", objects)
        present = [each for each in maps if each is not None]
        names = list(chain.from_iterable(present))
        keys = pa.array(names if self._name is str else [str(msgspec.to_builtins(name)) for name in names], pa.string())
        values = self._value.array(list(chain.from_iterable(each.values() for each in present)))
        return pa.MapArray.from_arrays(_offsets(maps), keys, values, type=self.arrow)


def or_none(python: PythonType) -> PythonType:
    """Return the type, or null."""
    return Union[python, None]  # noqa: UP007 (not every annotation supports `|`)


def _or_null(shape: Shape, nullable: bool) -> PythonType:
    return or_none(shape.python) if nullable and not isinstance(shape, Text) else shape.python


def _exact_or_null(shape: Shape, nullable: bool) -> PythonType:
    return or_none(shape.exact) if nullable and not isinstance(shape, Text) else shape.exact


def _offsets(found: Sequence[Sequence[object] | Mapping[object, object] | None]) -> pa.Array:
    """Return the offset of each list or map among all items; null for a row without one."""
    ends, offsets = 0, []
    for each in found:
        offsets.append(None if each is None else ends)
        ends += 0 if each is None else len(each)
    return pa.array([*offsets, ends], pa.int32())


def limited(python: PythonType, limits: msgspec.Meta | None) -> PythonType:
    """Restrict the type to values within the limits."""
    return python if limits is None else Annotated[python, limits]


def whole(bits: int) -> PythonType:
    """Return the type of integers of this many bits."""
    return Annotated[int, msgspec.Meta(ge=-(2 ** (bits - 1)), le=2 ** (bits - 1) - 1)]


LONG, DOUBLE, BOOLEAN = Scalar(whole(64), T.LongType()), Scalar(float, T.DoubleType()), Scalar(bool, T.BooleanType())
STRING, BINARY = Scalar(str, T.StringType()), Scalar(bytes, T.BinaryType())
DATE, TIMESTAMP = Scalar(date, T.DateType()), Moment()
DECIMAL, TEXT = Scalar(Decimal, T.DecimalType(38, 18)), Text()
UUID, TIME, DURATION = Written(uuid.UUID), Written(time), Written(timedelta)
WHOLE = Whole()
NOTHING = Scalar(None, T.StringType())
"""Type of columns that are always null."""


def json_reader(shape: Shape, nullable: bool) -> Callable[[pa.BinaryArray], pa.Array]:
    """Return a function that converts values in JSON to a column; it raises one of `UNFIT` if a value does not fit. A null value stays
    null."""
    decode = msgspec.json.Decoder(_or_null(shape, nullable)).decode

    def read(data: pa.BinaryArray) -> pa.Array:
        values = data.to_pylist()
        found = [None if value is None else decode(value) for value in values] if data.null_count else list(map(decode, values))
        return shape.array(found)

    return read
