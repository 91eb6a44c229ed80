"""Defaults of Avro fields as values.

A schema writes a default as JSON: bytes as a string of the characters 0 to 255, a date as a number of days. For a field that was not
written, fastavro returns this JSON unchanged, and the same list or dict for every record. So a parsed schema gets defaults that fastavro
takes for JSON and that carry their value (`parse`), and the value replaces them in what was read (`resolved`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, cast

_Named = dict[str, Any]


class _Text(str):
    value: object


class _Number(int):
    value: object


class _Items(list[object]):
    value: object


class _Entries(dict[str, object]):
    value: object


_CARRIERS: Mapping[type, type[_Text | _Number | _Items | _Entries]] = {str: _Text, int: _Number, list: _Items, dict: _Entries}
_JSON: Mapping[str, type | tuple[type, ...]] = {
    "null": type(None),
    "boolean": bool,
    **dict.fromkeys(("int", "long"), int),
    **dict.fromkeys(("float", "double"), (int, float)),
    **dict.fromkeys(("string", "bytes", "fixed", "enum"), str),
    "array": list,
    **dict.fromkeys(("map", "record", "error"), dict),
}
"""Types of a default in JSON, by the type of its field."""


def parse(schema: object) -> tuple[Any, bool]:
    """Parse a schema with fastavro, for its readers. Return it, and True if values that are read with it must pass `resolved`.

    Raises fastavro's SchemaParseException.
    """
    from fastavro.schema import parse_schema

    parsed = parse_schema(cast(Any, schema))
    fields: list[dict[str, Any]] = []
    named: _Named = {}
    _collect(parsed, named, fields.append)
    defaults = [(field, _value(field["default"], field["type"], named)) for field in fields if "default" in field]
    carries = False
    for field, value in defaults:
        default = field["default"]
        if type(value) is float:
            field["default"] = value
        elif type(value) is not type(default) or isinstance(value, list | dict):
            carrier = _CARRIERS[type(default)](default)
            carrier.value, field["default"], carries = value, carrier, True
    return parsed, carries


def resolved(read: object) -> object:
    """Return a value that was read, with the values of defaults in it. Changes its lists and dicts in place."""
    if isinstance(read, _Text | _Number | _Items | _Entries):
        return copy.deepcopy(read.value)
    if isinstance(read, dict):
        for name, part in read.items():
            read[name] = resolved(part)
    elif isinstance(read, list):
        read[:] = map(resolved, read)
    return read


def _collect(node: object, named: _Named, visit: Callable[[dict[str, Any]], None]) -> None:
    """Collect the named types of a schema, and visit each field."""
    if isinstance(node, list):
        for each in node:
            _collect(each, named, visit)
    elif isinstance(node, dict):
        if "name" in node:
            if node["name"] in named:
                return
            named[node["name"]] = node
        for part in ("items", "values", "type"):
            _collect(node.get(part), named, visit)
        for field in node.get("fields", ()):
            visit(field)
            _collect(field["type"], named, visit)


def _value(default: object, schema: object, named: _Named) -> object:
    """Return the value of a default; of a union, as the first member that it fits. What fits none is returned unchanged."""
    node = _definition(schema, named)
    if isinstance(node, list):
        fitting = next((each for each in node if _fits(default, each, named)), None)
        return default if fitting is None else _value(default, fitting, named)
    if not _fits(default, node, named):
        return default
    match node["type"]:
        case "record" | "error":
            own = {field["name"]: field["default"] for field in node["fields"] if "default" in field}
            given = {**own, **cast(dict[str, object], default)}
            types = {field["name"]: field["type"] for field in node["fields"]}
            return {name: _value(given[name], of, named) for name, of in types.items() if name in given}
        case "array":
            return [_value(each, node["items"], named) for each in cast(list[object], default)]
        case "map":
            return {key: _value(each, node["values"], named) for key, each in cast(dict[str, object], default).items()}
        case "float" | "double":
            return float(cast(float, default))
        case "bytes" | "fixed":
            return _logical(cast(str, default).encode("iso-8859-1"), node)
    return _logical(default, node)


def _definition(schema: object, named: _Named) -> Any:  # noqa: ANN401  # a decoded schema
    """Return a union as a list, and any other type as a dict with its own name of a type under `type`."""
    if isinstance(schema, str):
        return named.get(schema, {"type": schema})
    if isinstance(schema, dict) and (isinstance(schema["type"], dict | list) or schema["type"] in named):
        return _definition(schema["type"], named)
    return schema


def _fits(default: object, schema: object, named: _Named) -> bool:
    """Return True if the default, as JSON, is one of a type. (True is no number.)"""
    node = _definition(schema, named)
    if isinstance(node, list):
        return any(_fits(default, each, named) for each in node)
    kind = str(node["type"])
    if kind == "enum" and default not in node["symbols"]:
        return False
    return isinstance(default, _JSON[kind]) and (kind == "boolean" or not isinstance(default, bool))


def _logical(data: object, node: dict[str, Any]) -> object:
    """Return the value of a logical type, as fastavro reads it."""
    from fastavro.read import LOGICAL_READERS

    read = LOGICAL_READERS.get(f"{node['type']}-{node.get('logicalType')}")
    return data if read is None else read(data, node, None)
