"""Description of a type as data (`type_schema`), and the JSON Schema of a type (`json_schema_of`), for readers that do not have the type:
Spark, other languages.

A description is everything that decides which JSON is written and which is accepted. `msgspec.json.schema` describes only what is accepted.
A comparison of two versions of a type needs more: whether a field is always written (`omit_defaults`, UNSET), the names of an array's
places (`array_like`, NamedTuple), whether a time must have a zone. So a type is described by these nodes, which are stored as JSON on the
coordination topic:

    {"is": "int" | "float" | "str" | "bool" | "null" | "any", constraints}
    {"is": "text", "as": "datetime" | "bytes" | …}                           JSON strings of another Python type
    {"is": "enum", "values": […], "names": {name: value}, "flags": text}      enums and literals; names of an enum, and of flags
                                                                             what is done with unknown bits
    {"is": "array", "items": node, "set": bool, constraints}
    {"is": "tuple", "fields": [field], "closed": bool}                       an array whose places have types
    {"is": "map", "keys": node, "values": node, constraints}
    {"is": "object", "fields": {name: field}, "closed": bool, "tag": [field, value]}
    {"is": "union", "of": [node]}
    {"is": "ref", "to": name}                                                a class, in the root's "definitions"
    {"is": "opaque", "text": …}                                              not understood: fits only an equal node

A field is a node under "type" with "required" (reading fails without it), "omitted" (writing may leave it out) and "default".
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from typing import cast

import msgspec
from msgspec import inspect as mi

from penstock.runtime.serdes.json_types import class_of

Node = dict[str, object]

_TEXTS: dict[type[mi.Type], str] = {
    mi.BytesType: "bytes",
    mi.ByteArrayType: "bytes",
    mi.MemoryViewType: "bytes",
    mi.DateTimeType: "datetime",
    mi.TimeType: "time",
    mi.DateType: "date",
    mi.TimeDeltaType: "timedelta",
    mi.UUIDType: "uuid",
    mi.DecimalType: "decimal",
}
_PLAIN: dict[type[mi.Type], str] = {
    mi.AnyType: "any",
    mi.RawType: "any",
    mi.NoneType: "null",
    mi.BoolType: "bool",
    mi.IntType: "int",
    mi.FloatType: "float",
    mi.StrType: "str",
}
_CONSTRAINTS = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern", "tz")
_EMPTY: tuple[type, ...] = (list, dict, set, frozenset, tuple)
"""Default factories whose result `omit_defaults` leaves out."""


def type_schema(kind: object) -> Node | None:
    """Return the description of a type that msgspec reads from JSON; None for a type that msgspec does not support."""
    describer = _Describer()
    try:
        root = describer.node(mi.type_info(kind))
    except TypeError:
        return None
    return {**root, "definitions": describer.definitions} if describer.definitions else root


class _Describer:
    def __init__(self) -> None:
        self.definitions: dict[str, Node] = {}
        self._names: dict[object, str] = {}

    def node(self, info: mi.Type) -> Node:
        if (plain := _PLAIN.get(type(info)) or _TEXTS.get(type(info))) is not None:
            kind: Node = {"is": plain} if type(info) in _PLAIN else {"is": "text", "as": plain}
            return {**kind, **_constraints(info)}
        match info:
            case mi.Metadata():
                return self.node(info.type)
            case mi.EnumType():
                return _enum_class(info.cls)
            case mi.LiteralType():
                return _literal(info.values)
            case mi.UnionType():
                return {"is": "union", "of": [self.node(each) for each in info.types]}
            case mi.TupleType():
                places = [{"type": self.node(each), "required": True, "omitted": False} for each in info.item_types]
                return {"is": "tuple", "fields": places, "closed": True}
            case mi.CollectionType():
                unordered = isinstance(info, mi.SetType | mi.FrozenSetType)
                return {"is": "array", "items": self.node(info.item_type), "set": unordered, **_constraints(info)}
            case mi.DictType():
                return {"is": "map", "keys": self.node(info.key_type), "values": self.node(info.value_type), **_constraints(info)}
            case mi.StructType() | mi.DataclassType() | mi.TypedDictType() | mi.NamedTupleType():
                return self._class(info)
        return {"is": "opaque", "text": repr(info)}

    def _class(self, info: mi.StructType | mi.DataclassType | mi.TypedDictType | mi.NamedTupleType) -> Node:
        # A generic class with other arguments is another type; its fields differ.
        cls = class_of(info)
        identity = (cls, repr(info.fields) if getattr(cls, "__parameters__", ()) else "")
        name = self._names.get(identity)
        if name is None:
            name = self._names[identity] = _free_name(cls.__name__, self.definitions)
            self.definitions[name] = {}  # a class may contain itself
            self.definitions[name] = self._fields(info)
        return {"is": "ref", "to": name}

    def _fields(self, info: mi.StructType | mi.DataclassType | mi.TypedDictType | mi.NamedTupleType) -> Node:
        fields = {field.encode_name: self._field(field, info) for field in info.fields}
        closed = isinstance(info, mi.NamedTupleType) or (isinstance(info, mi.StructType) and info.forbid_unknown_fields)
        if isinstance(info, mi.NamedTupleType) or (isinstance(info, mi.StructType) and info.array_like):
            tagged = isinstance(info, mi.StructType) and info.tag_field is not None
            place = {
                "type": _enum([getattr(info, "tag", None)]),
                "required": True,
                "omitted": False,
                "name": getattr(info, "tag_field", None),
            }
            tag = [place] if tagged else []
            return {"is": "tuple", "fields": [*tag, *({**field, "name": name} for name, field in fields.items())], "closed": closed}
        node: Node = {"is": "object", "fields": fields, "closed": closed}
        if isinstance(info, mi.StructType) and info.tag_field is not None:
            node["tag"] = [info.tag_field, info.tag]
        return node

    def _field(self, field: mi.Field, info: mi.Type) -> Node:
        node: Node = {"type": self.node(field.type), "required": field.required, "omitted": False}
        without_default = field.default is msgspec.NODEFAULT and field.default_factory is msgspec.NODEFAULT
        if isinstance(info, mi.TypedDictType) or (without_default and not field.required):
            node["omitted"] = not field.required  # a key that may be missing, or a field that may be UNSET
        elif isinstance(info, mi.StructType) and not field.required and not info.array_like and _omits_defaults(info):
            node["omitted"] = True
        if not without_default:
            node["default"] = _default(field)
        return node


def _omits_defaults(info: mi.StructType) -> bool:
    return bool(class_of(info).__struct_config__.omit_defaults)  # type: ignore[attr-defined]  # every struct has it


def _constraints(info: mi.Type) -> Node:
    return {name: value for name in _CONSTRAINTS if (value := getattr(info, name, None)) is not None}


def _enum(values: Iterable[object]) -> Node:
    return {"is": "enum", "values": sorted(values, key=lambda value: (isinstance(value, str), value))}


def _enum_class(cls: type[enum.Enum]) -> Node:
    node: Node = {**_enum(member.value for member in cls), "names": {name: member.value for name, member in cls.__members__.items()}}
    return {**node, "flags": str(getattr(cls, "_boundary_", enum.STRICT))} if issubclass(cls, enum.Flag) else node


def _literal(values: Iterable[object]) -> Node:
    known = [value for value in values if value is not None]
    node = _enum(known)
    return node if None not in values else {"is": "union", "of": [*([node] if known else []), {"is": "null"}]}


def _default(field: mi.Field) -> str:
    """Return the default as text, for comparison."""
    if field.default is not msgspec.NODEFAULT:
        try:
            return msgspec.json.encode(field.default).decode()
        except (TypeError, ValueError, msgspec.MsgspecError):
            return repr(field.default)
    factory = field.default_factory
    if factory in _EMPTY:
        return msgspec.json.encode(factory()).decode()
    return str(getattr(factory, "__qualname__", factory))


def _free_name(name: str, taken: Iterable[str]) -> str:
    used, number, free = set(taken), 1, name
    while free in used:
        number, free = number + 1, f"{name}~{number + 1}"
    return free


def json_schema_nodes(schema: object) -> Node:
    """Return the description of a JSON Schema, with opaque nodes for what nodes cannot express."""
    if not isinstance(schema, dict):
        return {"is": "any"} if schema is True else _opaque(schema)
    definitions: dict[str, Node] = {}
    for place in ("$defs", "definitions"):
        for name, inner in cast(Node, schema.get(place, {})).items():
            definitions[name] = _schema_node(inner)
    root = _schema_node({key: value for key, value in schema.items() if key not in ("$defs", "definitions")})
    return {**root, "definitions": definitions} if definitions else root


_NUMBERS = {"exclusiveMinimum": "gt", "minimum": "ge", "exclusiveMaximum": "lt", "maximum": "le", "multipleOf": "multiple_of"}
ZONE = "timezone"
"""Keyword beside the format of a time: true if it must have a time zone, false if it must not."""
LEAST_BYTES, MOST_BYTES = "minBytes", "maxBytes"
"""Keywords beside the encoding of bytes: limits on their number. (JSON Schema's own keywords limit the length of their base64.)"""
SET = "set"
"""Keyword beside the items of an array: true if it is read as a set, so that of equal items only the first counts."""
_LENGTHS = {"minLength": "min_length", "maxLength": "max_length", "pattern": "pattern"}
_SIZES = {"minItems": "min_length", "maxItems": "max_length", "minProperties": "min_length", "maxProperties": "max_length"}
_COMMENTS = {"title", "description", "default", "examples", "$schema", "$id", "$comment", "deprecated", "readOnly", "writeOnly", SET}
_FORMATS = {"date-time": "datetime", "contentEncoding": "bytes"}


def _schema_node(schema: object) -> Node:
    if not isinstance(schema, dict):
        return {"is": "any"} if schema is True else _opaque(schema)
    said = {key: value for key, value in schema.items() if key not in _COMMENTS}
    match said:
        case {"$ref": str() as ref, **rest} if not rest:
            return {"is": "ref", "to": ref.rpartition("/")[2]}
        case {"anyOf": list() as of, **rest} | {"oneOf": list() as of, **rest} if not rest:
            return {"is": "union", "of": [_schema_node(each) for each in of]}
        case {"enum": list() as values, **rest} if rest.keys() <= {"type"} and all(isinstance(each, str | int | None) for each in values):
            return _literal(tuple(values))
        case {"const": str() | int() as value, **rest} if rest.keys() <= {"type"}:
            return _enum([value])
        case {"type": list() as kinds, **rest}:
            return {"is": "union", "of": [_schema_node({"type": kind, **_concerning(kind, rest)}) for kind in kinds]}
        case {"type": str() as kind, **rest}:
            return _typed(kind, rest) or _opaque(said)
    return {"is": "any"} if not said else _opaque(said)


def _concerning(kind: object, rest: Node) -> Node:
    return {} if kind == "null" else rest


def _typed(kind: str, rest: Node) -> Node | None:
    """Return the node of a schema with one `type`; None if a node cannot express all of it."""
    match kind:
        case "null" | "boolean" if not rest:
            return {"is": "null" if kind == "null" else "bool"}
        case "integer" | "number" if rest.keys() <= _NUMBERS.keys():
            return {"is": "int" if kind == "integer" else "float", **_named(_NUMBERS, rest)}
        case "string" if rest.keys() <= {*_LENGTHS, "format", "contentEncoding"}:
            texts: Node = {"is": "str"}
            if (form := rest.get("format") or rest.get("contentEncoding")) is not None:
                texts = {"is": "text", "as": _FORMATS.get(str(form), str(form))}
            return {**texts, **_named(_LENGTHS, rest)}
        case "array" if rest.keys() <= {*_SIZES, "items", "uniqueItems"} and not isinstance(rest.get("items"), list):
            items = _schema_node(rest.get("items", True))
            return {"is": "array", "items": items, "set": bool(rest.get("uniqueItems")), **_named(_SIZES, rest)}
        case "object" if rest.keys() <= {"properties", "required", "additionalProperties"}:
            return _object(rest)
    return None


def _object(rest: Node) -> Node:
    more, properties = rest.get("additionalProperties", True), rest.get("properties")
    if not isinstance(properties, dict):
        return {"is": "map", "keys": {"is": "str"}, "values": _schema_node(more)} if more is not False else _opaque(rest)
    if not isinstance(more, bool):
        return _opaque(rest)
    required = cast(list[str], rest.get("required", []))
    fields = {
        name: {"type": _schema_node(inner), "required": name in required, "omitted": name not in required}
        for name, inner in properties.items()
    }
    return {"is": "object", "fields": fields, "closed": not more}


def _named(names: dict[str, str], rest: Node) -> Node:
    return {ours: rest[theirs] for theirs, ours in names.items() if theirs in rest}


def _opaque(schema: object) -> Node:
    return {"is": "opaque", "text": msgspec.json.encode(schema, order="sorted").decode()}


_Node = dict[str, object]
_MOST_FLAGS = 1024
"""Most combinations of flags that a schema lists."""
_JSON_FORMATS: Mapping[type[mi.Type], str] = {
    mi.DateTimeType: "date-time",
    mi.DateType: "date",
    mi.DecimalType: "decimal",
    mi.TimeDeltaType: "duration",
    mi.TimeType: "time",
    mi.UUIDType: "uuid",
}


def json_schema_of(kind: type) -> Mapping[str, object] | None:
    """Return msgspec's JSON Schema of a type, with what msgspec leaves out; None for a type that msgspec cannot describe.

    Added are: `"format"` for every datetime and time (msgspec adds it only to those that must have a zone), the zone, limits of bytes, the
    type of a map's keys, and which arrays are sets. A tag is made optional: it is needed only to distinguish the members of a union.
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
    if isinstance(info, mi.EnumType) and issubclass(info.cls, enum.Flag):
        _mark_flags(info.cls, node)
        return
    if isinstance(info, mi.SetType | mi.FrozenSetType):
        node[SET] = True
    if isinstance(info, mi.DictType) and (names := _names(info.key_type)) is not None:
        node["propertyNames"] = names
    if isinstance(info, mi.StructType) and info.tag_field is not None and isinstance(required := node.get("required"), list):
        node["required"] = [name for name in required if name != info.tag_field]
        cast(_Node, cast(_Node, node["properties"])[info.tag_field])["default"] = info.tag
    for inner, part in _parts(info, node):
        _mark(inner, part, definitions, seen)


def _mark_flags(cls: type[enum.Flag], node: _Node) -> None:
    """Describe flags, whose combinations are values too. (Negative numbers mean other values than they say, so they do not fit.)"""
    boundary = getattr(cls, "_boundary_", enum.STRICT)
    values = 2 ** max((int(member.value).bit_length() for member in cls), default=0)
    if boundary is enum.KEEP:
        del node["enum"]
        node.update(type="integer", minimum=0)
    elif boundary is enum.STRICT and values <= _MOST_FLAGS:
        node["enum"] = [value for value in range(values) if _is_flags(cls, value)]


def _is_flags(cls: type[enum.Flag], value: int) -> bool:
    try:
        cls(value)
    except ValueError:
        return False
    return True


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
                tagged = isinstance(info, mi.StructType) and info.tag_field is not None
                # In a struct that is written as an array, the tag is the first item and no field.
                yield from zip((field.type for field in info.fields), places[1:] if tagged else places, strict=False)
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
        case mi.UnionType():
            members = list(map(_names, info.types))
            return {"anyOf": members} if None not in members else None
    return {"type": "string", "format": _JSON_FORMATS[type(info)]} if type(info) in _JSON_FORMATS else None
