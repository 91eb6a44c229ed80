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
_LOGICAL: Mapping[str, Mapping[str, object]] = {
    "date": {"type": "string", "format": "date"},
    "timestamp-millis": {"type": "string", "format": "date-time"},
    "timestamp-micros": {"type": "string", "format": "date-time"},
    "local-timestamp-millis": {"type": "string", "format": "date-time"},
    "local-timestamp-micros": {"type": "string", "format": "date-time"},
    "decimal": {"type": "string", "format": "decimal"},
    "uuid": {},  # fastavro returns a Python object, not text: it becomes text like any untyped value
    "time-millis": {},
    "time-micros": {},
}


def as_json_schema(avro: object) -> Mapping[str, object]:
    """Convert an Avro schema to a JSON Schema; `{}` (anything) if JSON Schema cannot express it, or for a recursive type."""
    return _convert(avro, {})


def _convert(avro: object, known: dict[str, Mapping[str, object]]) -> Mapping[str, object]:
    """Convert a schema. `known`: named types read so far; one that is still being read becomes `{}`."""
    match avro:
        case str():
            return _PRIMITIVE.get(avro) or known.get(_short(avro), {})
        case list():
            return {"anyOf": [_convert(member, known) for member in avro]}
        case dict():
            return _of_object(avro, known)
    return {}


def _of_object(avro: dict[str, object], known: dict[str, Mapping[str, object]]) -> Mapping[str, object]:
    logical = avro.get("logicalType")
    if isinstance(logical, str) and logical in _LOGICAL:
        return _LOGICAL[logical]
    match avro.get("type"):
        case "record" | "error":
            fields = cast("Sequence[Mapping[str, object]]", avro["fields"])
            name = _short(avro["name"])
            known[name] = {}
            properties = {str(field["name"]): _described(field, _convert(field["type"], known)) for field in fields}
            known[name] = {"type": "object", "properties": properties, "required": list(properties)}
            return known[name]
        case "enum":
            known[_short(avro["name"])] = {"enum": avro["symbols"]}
            return known[_short(avro["name"])]
        case "fixed":
            known[_short(avro["name"])] = _PRIMITIVE["bytes"]
            return _PRIMITIVE["bytes"]
        case "array":
            return {"type": "array", "items": _convert(avro["items"], known)}
        case "map":
            return {"type": "object", "additionalProperties": _convert(avro["values"], known)}
    return _convert(avro.get("type"), known)


def _described(field: Mapping[str, object], schema: Mapping[str, object]) -> Mapping[str, object]:
    doc = field.get("doc")
    return {**schema, "description": doc} if isinstance(doc, str) and schema else schema


def _short(name: object) -> str:
    """Return the name without its namespace."""
    return str(name).rpartition(".")[2]
