"""Conversion of Avro schemas to JSON Schemas, so that both become columns by the same code (`json_schema.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

_PRIMITIVE: Mapping[str, Mapping[str, object]] = {
    "null": {"type": "null"},
    "boolean": {"type": "boolean"},
    "int": {"type": "integer"},
    "long": {"type": "integer"},
    "float": {"type": "number"},
    "double": {"type": "number"},
    "string": {"type": "string"},
    "bytes": {"type": "string", "contentEncoding": "base64"},
}
_TIMESTAMP: Mapping[str, object] = {"type": "string", "format": "date-time"}
_DECIMAL: Mapping[str, object] = {"type": "string", "format": "decimal"}
_LOGICAL: Mapping[tuple[str, str], Mapping[str, object]] = {
    ("int", "date"): {"type": "string", "format": "date"},
    ("long", "timestamp-millis"): _TIMESTAMP,
    ("long", "timestamp-micros"): _TIMESTAMP,
    ("long", "local-timestamp-millis"): _TIMESTAMP,
    ("long", "local-timestamp-micros"): _TIMESTAMP,
    ("bytes", "decimal"): _DECIMAL,
    ("fixed", "decimal"): _DECIMAL,
    ("string", "uuid"): {},  # fastavro returns a Python object, not text: it becomes text like any untyped value
    ("fixed", "uuid"): {},
    ("int", "time-millis"): {},
    ("long", "time-micros"): {},
}
"""Logical types, each on the only types on which fastavro reads it: Avro ignores it on others."""


def as_json_schema(avro: object) -> Mapping[str, object]:
    """Convert an Avro schema, as fastavro parses it, to a JSON Schema; `{}` (anything) if JSON Schema cannot express it, or for a recursive
    type. (Parsed, because there each name of a type is complete, with its namespace.)"""
    return _convert(avro, {})


def _convert(avro: object, known: dict[str, Mapping[str, object]]) -> Mapping[str, object]:
    """Convert a schema. `known`: named types read so far; one that is still being read becomes `{}`."""
    match avro:
        case str():
            return _PRIMITIVE.get(avro) or known.get(avro, {})
        case list():
            return {"anyOf": [_convert(member, known) for member in avro]}
        case dict():
            return _of_object(avro, known)
    return {}


def _of_object(avro: dict[str, object], known: dict[str, Mapping[str, object]]) -> Mapping[str, object]:
    logical = _LOGICAL.get((str(avro.get("type")), str(avro.get("logicalType"))))
    if logical is not None:
        if "name" in avro:
            known[str(avro["name"])] = logical
        return logical
    match avro.get("type"):
        case "record" | "error":
            fields = cast("Sequence[Mapping[str, object]]", avro["fields"])
            name = str(avro["name"])
            known[name] = {}
            properties = {str(field["name"]): _described(field, _convert(field["type"], known)) for field in fields}
            known[name] = {"type": "object", "properties": properties, "required": list(properties)}
            return known[name]
        case "enum":
            known[str(avro["name"])] = {"enum": avro["symbols"]}
            return known[str(avro["name"])]
        case "fixed":
            known[str(avro["name"])] = _PRIMITIVE["bytes"]
            return _PRIMITIVE["bytes"]
        case "array":
            return {"type": "array", "items": _convert(avro["items"], known)}
        case "map":
            return {"type": "object", "additionalProperties": _convert(avro["values"], known)}
    return _convert(avro.get("type"), known)


def _described(field: Mapping[str, object], schema: Mapping[str, object]) -> Mapping[str, object]:
    doc = field.get("doc")
    return {**schema, "description": doc} if isinstance(doc, str) and schema else schema
