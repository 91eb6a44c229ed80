"""Reader of JSON Schemas, in the form that manifests contain: the shapes of columns.

JSON Schema                                       Spark
integer, number, boolean, string                  BIGINT, DOUBLE, BOOLEAN, STRING
string: date, date-time, decimal, base64          DATE, TIMESTAMP, DECIMAL(38,18), BINARY; uuid, time, duration: STRING
enum, const                                       STRING or BIGINT
object with properties                            STRUCT
object without, and with additionalProperties     MAP<STRING, …>
array, tuple of one type, set                     ARRAY
… or null                                         the type, nullable
anything, other unions, a recursive type          STRING: a string as it is, everything else as its JSON

Constraints of a schema beside the type (range, length, pattern) are checked too: the serde of a type with `msgspec.Meta` refuses values
outside them, so such a value does not fit its column either.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, count
from types import GenericAlias
from typing import Literal, Union, cast

import msgspec
from pyspark.sql import types as T

from penstock.assets.spark.types.shapes import (
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
    WHOLE,
    Field,
    ListOf,
    MapOf,
    Moment,
    Number,
    PythonType,
    Scalar,
    SetOf,
    Shape,
    Struct,
    Text,
    Written,
    limited,
    or_none,
)
from penstock.runtime.serdes.type_schemas import LEAST_BYTES, MOST_BYTES, SET, ZONE

Schema = Mapping[str, object]
_NOT_A_NAME = re.compile(r'[\\"\x00-\x1f]')
"""Characters that msgspec does not accept in the name of a field: an object with such names becomes text."""
_SIMPLE = {"integer": LONG, "number": DOUBLE, "boolean": BOOLEAN, "null": NOTHING}
_NAMES = {"integer": int, "number": float}
"""Types of a map's keys that JSON writes as strings, by the format that `penstock.runtime.serdes.type_schemas` assigns to them."""
_OF_STRINGS: Mapping[str, Scalar | Moment | Written] = {
    "date": DATE,
    "date-time": TIMESTAMP,
    "decimal": DECIMAL,
    "uuid": UUID,
    "time": TIME,
    "duration": DURATION,
}
_NUMBER_LIMITS = {"minimum": "ge", "exclusiveMinimum": "gt", "maximum": "le", "exclusiveMaximum": "lt", "multipleOf": "multiple_of"}
_LIMITS: Mapping[str, Mapping[str, str]] = {
    "integer": _NUMBER_LIMITS,
    "number": _NUMBER_LIMITS,
    "string": {"minLength": "min_length", "maxLength": "max_length", "pattern": "pattern"},
    "array": {"minItems": "min_length", "maxItems": "max_length"},
    "object": {"minProperties": "min_length", "maxProperties": "max_length"},
}
"""Constraint keywords of JSON Schema, by type, and those of `msgspec.Meta`."""
_CONSTRAINTS = {"additionalItems", *chain.from_iterable(_LIMITS.values())}
"""Keywords that only restrict values. (`additionalProperties` also names a type; if it is false, it only restricts them.)"""
_LEAST, _LARGEST = -(2**63), 2**63 - 1


def shape_of(schema: Schema, any_type: Shape = TEXT, *, validated: bool = False) -> tuple[Shape, bool]:
    """Return the shape of a JSON Schema, and whether it may be null. `any_type` is used for values without a type of their own.

    `validated`: a validator checks each value too, so the shape only converts it. For the validator `1.0` is an integer, an integer is a
    `number` (which must be exactly a DOUBLE), and `default` is no more than a note.
    """
    return _Reader(schema, any_type, validated).shape(schema)


class _Reader:
    def __init__(self, root: Schema, any_type: Shape, validated: bool) -> None:
        self._root = root
        self._validated = validated
        self._has_sets = _has_sets(root)
        self._any = any_type
        self._inside: list[str] = []
        """References that enclose the current position: one of them found again is a recursive type."""

    def shape(self, schema: object) -> tuple[Shape, bool]:
        if not isinstance(schema, Mapping) or not schema:
            return self._any, True
        if self._validated:
            schema = {word: value for word, value in schema.items() if word not in _CONSTRAINTS}
        if (name := schema.get("$ref")) is not None:
            return self._referred(str(name))
        for union in ("anyOf", "oneOf"):
            if union in schema:
                return self._union(cast("Sequence[Schema]", schema[union]), schema.get("discriminator"))
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
                return shape, isinstance(shape, Text)
            case "array":
                shape = self._array(schema)
                return shape, isinstance(shape, Text)
            case "string" if schema.get("contentEncoding") == "base64":
                return _of_length(BINARY, schema), False
            case "string":
                known = _OF_STRINGS.get(str(schema.get("format")))
                return _within(STRING, schema) if known is None else _in_zone(known, schema), False
            case "number" if self._validated:
                return Number(int | float), False
            case "integer" if self._validated:
                return WHOLE, False
            case str() if kind in _SIMPLE:
                return _within(_SIMPLE[kind], schema), kind == "null"
        return self._any, True

    def _text(self, exact: PythonType) -> Shape:
        """Return text, for values of a type that Spark lacks; unchecked text if msgspec lacks it too."""
        if self._any is not TEXT or self._validated:  # already parsed values, or checked ones
            return self._any
        try:
            return Text(exact=exact, sets=self._has_sets)
        except TypeError:
            return TEXT

    def _exact(self, schema: object) -> PythonType:
        shape, nullable = self.shape(schema)
        return or_none(shape.exact) if nullable and not isinstance(shape, Text) else shape.exact

    def _found(self, name: str) -> object:
        found: object = self._root
        for part in name.removeprefix("#").strip("/").split("/"):
            found = found.get(part) if part and isinstance(found, Mapping) else found
        return found

    def _referred(self, name: str) -> tuple[Shape, bool]:
        if name in self._inside or not name.startswith("#"):
            return self._any, True
        self._inside.append(name)
        try:
            return self.shape(self._found(name))
        finally:
            self._inside.pop()

    def _union(self, members: Sequence[Schema], discriminator: object = None) -> tuple[Shape, bool]:
        present = [member for member in members if member.get("type") != "null"]
        null = len(present) < len(members)
        if len(present) == 1:
            shape, nullable = self.shape(present[0])
            return (self._text(or_none(shape.exact)) if null and isinstance(shape, Text) else shape), nullable or null
        if present and all(member.get("type") in ("integer", "number") for member in present):
            return self._number(present), null
        if not present:
            return NOTHING, True
        of_tag = str(discriminator["propertyName"]) if isinstance(discriminator, Mapping) else None
        types = [self._member(member) if of_tag is None else self._tagged(member, of_tag) for member in present]
        exact: PythonType = cast(PythonType, Union).__getitem__(tuple(types))  # not every annotation supports `|`
        return self._text(or_none(exact) if null else exact), True

    def _number(self, members: Sequence[Schema]) -> Shape:
        """Combine numbers of two types, each with its own limits. (Only Avro has several of one type; their limits are those of the
        type.)"""
        of = {kind: [member for member in members if member["type"] == kind] for kind in ("integer", "number")}
        if not of["number"]:
            return WHOLE if self._validated else LONG
        types = {"integer": int, "number": float}
        found = [limited(types[kind], _limits_of(kind, alike[0]) if len(alike) == 1 else None) for kind, alike in of.items() if alike]
        return Number(cast(PythonType, Union).__getitem__(tuple(found)))

    def _referenced(self, member: Schema) -> Schema:
        return cast(Schema, self._found(str(member["$ref"]))) if "$ref" in member else member

    def _member(self, member: Schema) -> PythonType:
        """Return the type of a union's member. Arrays are distinguished by a tag, which is their first item."""
        if "$ref" not in member or member["$ref"] in self._inside:
            return self._exact(member)
        schema = self._referenced(member)
        first = schema.get("prefixItems")
        tags = cast("Sequence[Mapping[str, Sequence[str | int]]]", first)[0].get("enum", ()) if isinstance(first, list) and first else ()
        if schema.get("type") != "array" or len(tags) != 1:
            return self._exact(member)
        self._inside.append(str(member["$ref"]))
        try:
            return self._row(cast("Sequence[Schema]", first)[1:], schema, tags[0])
        finally:
            self._inside.pop()

    def _tagged(self, member: Schema, name: str) -> PythonType:
        """Return one of several objects that a tag of this name distinguishes."""
        schema = self._referenced(member)
        shape, _ = self.shape(member)
        tag = cast("Mapping[str, Mapping[str, Sequence[str | int]]]", schema["properties"]).get(name, {}).get("enum")
        if isinstance(shape, Struct) and tag:
            return shape.tagged(name, tag[0])
        return shape.exact

    def _enumerated(self, values: Sequence[object]) -> tuple[Shape, bool]:
        present = [value for value in values if value is not None]
        null = len(present) < len(values)
        if not present:
            return NOTHING, True
        if present and all(isinstance(value, str) for value in present):
            return Scalar(Literal[tuple(present)], T.StringType()), null
        if present and all(isinstance(value, int) and not isinstance(value, bool) for value in present):
            if self._validated:
                return WHOLE, null
            return Scalar(Literal[tuple(present)], T.LongType()), null
        if present and all(isinstance(value, int | str) and not isinstance(value, bool) for value in present):
            return self._text(Literal[tuple(values)]), True
        return self._any, True

    def _object(self, schema: Schema) -> Shape:
        properties, others = schema.get("properties"), schema.get("additionalProperties")
        if isinstance(properties, Mapping) and any(map(_NOT_A_NAME.search, properties)):
            return self._text(dict)
        if isinstance(properties, Mapping) and properties:
            required = cast("Sequence[str]", schema.get("required", ()))
            columns = distinct(properties)
            fields = [
                self._field(name, column, properties[name], name in required) for name, column in zip(properties, columns, strict=True)
            ]
            return Struct(fields, closed=others is False and not self._validated)
        if isinstance(properties, Mapping) and not isinstance(others, Mapping) and not self._validated and "required" in schema:
            return self._text(Struct((), closed=others is False).exact)  # a class without fields
        limits = _limits_of("object", schema)
        if isinstance(others, Mapping) and others:
            return MapOf(*self.shape(others), self._name(schema.get("propertyNames")), limits)
        return self._text(limited(GenericAlias(dict, (self._name(schema.get("propertyNames")), object)), limits))

    def _name(self, schema: object) -> PythonType:
        """Return the type of a map's keys."""
        if not isinstance(schema, Mapping):
            return str
        if isinstance(members := schema.get("anyOf"), list):
            return cast(PythonType, Union).__getitem__(tuple(map(self._name, members)))
        if (known := _NAMES.get(str(schema.get("format")))) is not None:
            return known
        shape, _ = self.shape({"type": "string", **schema})
        return str if isinstance(shape, Text) else shape.exact

    def _field(self, name: str, column: str, schema: Schema, required: bool) -> Field:
        shape, nullable = self.shape(schema)
        comment = schema.get("description")
        return Field(
            name=name,
            column=column,
            shape=shape,
            nullable=nullable,
            required=required,
            default=None if self._validated else _read_default(shape, schema.get("default")),
            comment=comment if isinstance(comment, str) else None,
        )

    def _array(self, schema: Schema) -> Shape:
        items, limits = schema.get("items"), _limits_of("array", schema)
        if isinstance(items, Mapping) and items:
            return (SetOf if schema.get(SET) is True else ListOf)(*self.shape(items), limits)
        first = schema.get("prefixItems")
        if not isinstance(first, list) or not first:
            return self._text(limited(set if schema.get(SET) is True else list, limits))
        if all(each == first[0] for each in first) and (items is False or schema.get("maxItems") == len(first)):
            return ListOf(*self.shape(first[0]), limits)
        return self._text(self._row(first, schema))

    def _row(self, items: Sequence[Schema], schema: Schema, tag: str | int | None = None) -> PythonType:
        """Return the type of an array whose positions have different types; items from `minItems` on may be missing. A tag is before
        them."""
        least, most = schema.get("minItems"), schema.get("maxItems")
        required = (least if isinstance(least, int) else 0) - (tag is not None)
        fields = [
            (f"f{place}", self._exact(item), *([] if place < required else [None]))  # a default
            for place, item in enumerate(items)
        ]
        return msgspec.defstruct(
            "Row", fields, array_like=True, forbid_unknown_fields=most is not None, frozen=True, gc=False, module=__name__, tag=tag
        )


def _has_sets(schema: object) -> bool:
    """Return True if a part of the schema is read as a set."""
    if isinstance(schema, Mapping):
        return schema.get(SET) is True or any(map(_has_sets, schema.values()))
    return isinstance(schema, list) and any(map(_has_sets, schema))


def _within(shape: Scalar, schema: Mapping[str, object]) -> Scalar:
    """Apply the schema's constraints on its type to the shape."""
    limits = _limits_of(str(schema["type"]), schema)
    return shape if limits is None else replace(shape, python=limited(int if shape is LONG else shape.python, limits))


def _in_zone(shape: Scalar | Moment | Written, schema: Mapping[str, object]) -> Scalar | Moment | Written:
    """Require or forbid a time zone, as `penstock.runtime.serdes.type_schemas` marks it."""
    zone = schema.get(ZONE)
    return replace(shape, python=limited(shape.python, msgspec.Meta(tz=zone))) if isinstance(zone, bool) else shape


def _of_length(shape: Scalar, schema: Mapping[str, object]) -> Scalar:
    """Apply the limits on the length of bytes, as `penstock.runtime.serdes.type_schemas` marks them."""
    least, most = schema.get(LEAST_BYTES), schema.get(MOST_BYTES)
    if not isinstance(least, int) and not isinstance(most, int):
        return shape
    limits = msgspec.Meta(min_length=cast("int | None", least), max_length=cast("int | None", most))
    return replace(shape, python=limited(shape.python, limits))


def _limits_of(kind: str, schema: Mapping[str, object]) -> msgspec.Meta | None:
    """Return a schema's constraints on a type; None if it has none. Those that msgspec cannot express are ignored."""
    words = _LIMITS.get(kind, {})
    given: dict[str, object] = {words[word]: value for word, value in schema.items() if word in words and _is_usable(kind, word, value)}
    if not given:
        return None
    if kind == "integer":  # limited to the range of a BIGINT in any case
        given = {**({} if "gt" in given else {"ge": _LEAST}), **({} if "lt" in given else {"le": _LARGEST}), **given}
    return cast("Callable[..., msgspec.Meta]", msgspec.Meta)(**given)  # each keyword has its own type, which a mapping cannot say


def _is_usable(kind: str, word: str, value: object) -> bool:
    if word == "pattern":
        return isinstance(value, str) and _is_pattern(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if word == "multipleOf" and value <= 0:
        return False
    return kind == "number" or (isinstance(value, int) and _LEAST <= value <= _LARGEST)


def _is_pattern(text: str) -> bool:
    try:
        re.compile(text)
    except re.error:
        return False
    return True


def _read_default(shape: Shape, default: object) -> object:
    """Return the default of a missing field; None if it has none that fits."""
    try:
        return None if default is None else msgspec.json.decode(msgspec.json.encode(default), type=shape.python)
    except msgspec.ValidationError:
        return None


def distinct(names: Sequence[str] | Mapping[str, object]) -> list[str]:
    """Return column names for field names: Spark ignores case, so the second of `id` and `ID` becomes `ID_2`."""
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
