"""The JSON Schema of a Python type, for readers that do not have the type (Spark, other languages)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import cast

import msgspec
from msgspec import inspect as mi

ZONE = "timezone"
"""Keyword beside the format of a time: true if it must have a time zone, false if it must not."""
LEAST_BYTES, MOST_BYTES = "minBytes", "maxBytes"
"""Keywords beside the encoding of bytes: limits on their number. (JSON Schema's own keywords limit the length of their base64.)"""
_Node = dict[str, object]
_FORMATS: Mapping[type[mi.Type], str] = {
    mi.DateTimeType: "date-time",
    mi.DateType: "date",
    mi.DecimalType: "decimal",
    mi.TimeDeltaType: "duration",
    mi.TimeType: "time",
    mi.UUIDType: "uuid",
}


def json_schema_of(kind: type) -> Mapping[str, object] | None:
    """Return msgspec's JSON Schema of a type, with what msgspec leaves out; None for a type that msgspec cannot describe.

    Added are: `"format"` for every datetime and time (msgspec adds it only to those that must have a zone), the zone, limits of bytes, and
    the type of a map's keys. A tag is made optional: it is needed only to distinguish the members of a union.
    """
    try:
        schema = msgspec.json.schema(kind)
    except (TypeError, KeyError):  # KeyError: two classes in it have the same module and qualified name
        return None
    _mark(mi.type_info(kind), schema, cast(_Node, schema.get("$defs", {})), set())
    return schema


def _mark(info: mi.Type, node: object, definitions: _Node, seen: set[str]) -> None:
    """Add to `node`, in place, what `json_schema_of` promises about the type `info` and the types inside it."""
    if not isinstance(node, dict):
        return
    if (reference := node.get("$ref")) is not None:
        name = str(reference).rpartition("/")[2]
        if name not in seen:
            seen.add(name)
            _mark(info, definitions.get(name), definitions, seen)
        return
    if isinstance(info, mi.DateTimeType | mi.TimeType):
        node["format"] = "date-time" if isinstance(info, mi.DateTimeType) else "time"
        if info.tz is not None:
            node[ZONE] = info.tz
        return
    if isinstance(info, mi.BytesType | mi.ByteArrayType | mi.MemoryViewType):
        limits = {LEAST_BYTES: info.min_length, MOST_BYTES: info.max_length}
        node.update({name: limit for name, limit in limits.items() if limit is not None})
        return
    if isinstance(info, mi.DictType) and (names := _names(info.key_type)) is not None:
        node["propertyNames"] = names
    if isinstance(info, mi.StructType) and info.tag_field is not None and isinstance(required := node.get("required"), list):
        node["required"] = [name for name in required if name != info.tag_field]
        cast(_Node, cast(_Node, node["properties"])[info.tag_field])["default"] = info.tag
    for inner, part in _parts(info, node):
        _mark(inner, part, definitions, seen)


def _parts(info: mi.Type, node: _Node) -> Iterator[tuple[mi.Type, object]]:
    """Yield the types directly inside a type, each with its part of the schema."""
    match info:
        case mi.Metadata():
            yield info.type, node
        case mi.UnionType():
            members = node.get("anyOf", [])
            if isinstance(members, list) and len(members) == len(info.types):
                yield from _members(info, members)
        case mi.StructType() | mi.DataclassType() | mi.TypedDictType() | mi.NamedTupleType():
            properties, places = node.get("properties"), node.get("prefixItems")
            if isinstance(properties, dict):
                yield from ((field.type, properties.get(field.encode_name)) for field in info.fields)
            elif isinstance(places, list):
                yield from zip((field.type for field in info.fields), places, strict=False)
        case mi.TupleType() if isinstance(places := node.get("prefixItems"), list):
            yield from zip(info.item_types, places, strict=False)
        case mi.DictType():
            yield info.value_type, node.get("additionalProperties")
        case mi.CollectionType():
            yield info.item_type, node.get("items")


def _members(info: mi.UnionType, members: list[object]) -> Iterator[tuple[mi.Type, object]]:
    """Yield a union's types with their parts of the schema. msgspec writes the object last, and several objects as a nested union."""
    types = [each for each in info.types if not isinstance(each, mi.NoneType)]
    parts = [part for part in members if not (isinstance(part, dict) and part.get("type") == "null")]
    others = [each for each in types if not _is_object(each)]
    objects = [each for each in types if _is_object(each)]
    if len(parts) == len(types) and len(objects) < 2:
        yield from zip([*others, *objects], parts, strict=True)
    elif len(parts) == len(others) + 1:
        yield from zip(others, parts[:-1], strict=True)


def _is_object(info: mi.Type) -> bool:
    while isinstance(info, mi.Metadata):
        info = info.type
    return isinstance(info, mi.StructType) and not info.array_like


def _names(info: mi.Type) -> _Node | None:
    """Return the schema of a map's keys, for types that JSON writes as strings; None for strings, which msgspec itself describes."""
    match info:
        case mi.Metadata():
            return _names(info.type)
        case mi.IntType():
            return {"type": "string", "format": "integer"}
        case mi.FloatType():
            return {"type": "string", "format": "number"}
        case mi.BytesType():
            return {"type": "string", "contentEncoding": "base64"}
        case mi.EnumType():
            return {"enum": [member.value for member in info.cls]}
        case mi.LiteralType():
            return {"enum": list(info.values)}
    return {"type": "string", "format": _FORMATS[type(info)]} if type(info) in _FORMATS else None
