"""JSON Schemas, as manifests have them, as shapes of columns.

JSON Schema                                       Spark
integer, number, boolean, string                  BIGINT, DOUBLE, BOOLEAN, STRING
string: date, date-time, decimal, base64          DATE, TIMESTAMP, DECIMAL(38,18), BINARY; uuid, time, duration: STRING
enum, const                                       STRING or BIGINT
object with properties                            STRUCT
object without, and with additionalProperties     MAP<STRING, …>
array, tuple of one type                          ARRAY
… or null                                         the type, nullable
anything, other unions, a type in itself          STRING: a string as it is, everything else as its JSON
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Literal, cast

import msgspec
from pyspark.sql import types as T

from assets.spark.limits import limits_of, within
from assets.spark.shapes import (
    BINARY,
    BOOLEAN,
    DATE,
    DECIMAL,
    DOUBLE,
    DURATION,
    LONG,
    NOTHING,
    STRING,
    TEXT,
    TIME,
    TIMESTAMP,
    UUID,
    Field,
    ListOf,
    MapOf,
    Scalar,
    Shape,
    Struct,
)

Schema = Mapping[str, object]
_NOT_A_NAME = re.compile(r'[\\"\x00-\x1f]')
"""What msgspec does not take in the name of a field: an object with such names is text."""
_SIMPLE = {"integer": LONG, "number": DOUBLE, "boolean": BOOLEAN, "null": NOTHING}
_OF_STRINGS = {"date": DATE, "date-time": TIMESTAMP, "decimal": DECIMAL, "uuid": UUID, "time": TIME, "duration": DURATION}


def shape_of(schema: Schema, any_type: Shape = TEXT) -> tuple[Shape, bool]:
    """The shape of a JSON Schema, and whether it may be null. `any_type` is that of what has no type of its own."""
    return _Reader(schema, any_type).shape(schema)


class _Reader:
    def __init__(self, root: Schema, any_type: Shape) -> None:
        self._root = root
        self._any = any_type
        self._inside: list[str] = []
        """Definitions around the place that is read: one that is met again is a type in itself."""

    def shape(self, schema: object) -> tuple[Shape, bool]:
        if not isinstance(schema, Mapping) or not schema:
            return self._any, True
        if (name := schema.get("$ref")) is not None:
            return self._referred(str(name))
        for union in ("anyOf", "oneOf"):
            if union in schema:
                return self._union(cast("Sequence[Schema]", schema[union]))
        if isinstance(every := schema.get("allOf"), list) and len(every) == 1:
            return self.shape(every[0])
        if "enum" in schema or "const" in schema:
            return self._enumerated(cast("Sequence[object]", schema.get("enum", [schema.get("const")])))
        kind = schema.get("type")
        if isinstance(kind, list):
            return self._union([{**schema, "type": each} for each in kind])
        match kind:
            case "object":
                shape = self._object(schema)
                return shape, shape is self._any
            case "array":
                shape = self._array(schema)
                return shape, shape is self._any
            case "string" if schema.get("contentEncoding") == "base64":
                return BINARY, False
            case "string":
                return _OF_STRINGS.get(str(schema.get("format"))) or within(STRING, schema), False
            case str() if kind in _SIMPLE:
                return within(_SIMPLE[kind], schema), kind == "null"
        return self._any, True

    def _referred(self, name: str) -> tuple[Shape, bool]:
        found: object = self._root
        for part in name.removeprefix("#").strip("/").split("/"):
            found = found.get(part) if part and isinstance(found, Mapping) else found
        if name in self._inside or not name.startswith("#"):
            return self._any, True
        self._inside.append(name)
        try:
            return self.shape(found)
        finally:
            self._inside.pop()

    def _union(self, members: Sequence[Schema]) -> tuple[Shape, bool]:
        present = [member for member in members if member.get("type") != "null"]
        null = len(present) < len(members)
        if len(present) == 1:
            shape, nullable = self.shape(present[0])
            return shape, nullable or null
        if present and all(member.get("type") in ("integer", "number") for member in present):
            return DOUBLE, null
        return (self._any, True) if present else (NOTHING, True)

    def _enumerated(self, values: Sequence[object]) -> tuple[Shape, bool]:
        present = [value for value in values if value is not None]
        null = len(present) < len(values)
        if present and all(isinstance(value, str) for value in present):
            return Scalar(Literal[tuple(present)], T.StringType()), null
        if present and all(isinstance(value, int) and not isinstance(value, bool) for value in present):
            return Scalar(Literal[tuple(present)], T.LongType()), null
        return self._any, True

    def _object(self, schema: Schema) -> Shape:
        properties, others = schema.get("properties"), schema.get("additionalProperties")
        if isinstance(properties, Mapping) and any(map(_NOT_A_NAME.search, properties)):
            return self._any
        if isinstance(properties, Mapping) and properties:
            required = cast("Sequence[str]", schema.get("required", ()))
            columns = distinct(properties)
            fields = [
                self._field(name, column, properties[name], name in required) for name, column in zip(properties, columns, strict=True)
            ]
            return Struct(fields, closed=others is False)
        if isinstance(others, Mapping) and others:
            return MapOf(*self.shape(others))
        return self._any

    def _field(self, name: str, column: str, schema: Schema, required: bool) -> Field:
        shape, nullable = self.shape(schema)
        comment = schema.get("description")
        return Field(
            name=name,
            column=column,
            shape=shape,
            nullable=nullable,
            required=required,
            default=_read_default(shape, schema.get("default")),
            comment=comment if isinstance(comment, str) else None,
        )

    def _array(self, schema: Schema) -> Shape:
        items = schema.get("items")
        if isinstance(items, Mapping) and items:
            return ListOf(*self.shape(items), limits_of("array", schema))
        first = schema.get("prefixItems")
        if isinstance(first, list) and first and all(each == first[0] for each in first):
            return ListOf(*self.shape(first[0]), limits_of("array", schema))
        return self._any


def _read_default(shape: Shape, default: object) -> object:
    """The value of a field that is missing; None where there is none that fits."""
    try:
        return None if default is None else msgspec.json.decode(msgspec.json.encode(default), type=shape.python)
    except msgspec.ValidationError:
        return None


def distinct(names: Sequence[str] | Mapping[str, object]) -> list[str]:
    """Names of columns for names of fields: Spark tells no cases apart, so that the second of `id` and `ID` is called `ID_2`."""
    taken: set[str] = set()
    found = []
    for name in names:
        column = name or "_"
        numbers = count(2)
        while column.lower() in taken:
            column = f"{name}_{next(numbers)}"
        taken.add(column.lower())
        found.append(column)
    return found
