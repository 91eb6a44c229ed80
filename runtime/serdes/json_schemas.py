"""The JSON Schema of a type, for those who read its bytes without it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import cast

import msgspec
from msgspec import inspect as mi

_Node = dict[str, object]


def json_schema_of(kind: type) -> Mapping[str, object] | None:
    """msgspec's, with what it leaves out: `"format": "date-time"` or `"time"` wherever a datetime or time stands (msgspec says so only of
    those that must have a zone), and that an object may lack its tag (it is needed only to tell the members of a union apart). None for a
    type of which a part is known to Python alone."""
    try:
        schema = msgspec.json.schema(kind)
    except TypeError:  # msgspec's word for a type that it cannot describe
        return None
    _mark(mi.type_info(kind), schema, cast(_Node, schema.get("$defs", {})), set())
    return schema


def _mark(info: mi.Type, node: object, definitions: _Node, seen: set[str]) -> None:
    """Marks the times in the part of the schema that describes a type, and takes tags out of what an object must have."""
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
        return
    if isinstance(info, mi.StructType) and info.tag_field is not None and isinstance(required := node.get("required"), list):
        node["required"] = [name for name in required if name != info.tag_field]
        cast(_Node, cast(_Node, node["properties"])[info.tag_field])["default"] = info.tag
    for inner, part in _parts(info, node):
        _mark(inner, part, definitions, seen)


def _parts(info: mi.Type, node: _Node) -> Iterator[tuple[mi.Type, object]]:
    """The types in a type, each with its part of the schema."""
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
    """A union's types with their parts, where it is plain which is whose: beside null there is one."""
    types = [each for each in info.types if not isinstance(each, mi.NoneType)]
    parts = [part for part in members if not (isinstance(part, dict) and part.get("type") == "null")]
    if len(types) == len(parts) == 1:
        yield types[0], parts[0]
