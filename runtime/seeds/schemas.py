"""Do values of one JSON Schema read as those of another? As far as declared types tell: what is a number in one and a text in the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import cast

Schema = Mapping[str, object]


def schema_misfits(written: Schema | None, read: Schema | None) -> list[str]:
    """Why what was written by `written` cannot be read by `read`, in words: a field that is missing, or of another type. Nothing where one
    of them is not known."""
    if written is None or read is None:
        return []
    return list(_misfits("", written, written, read, read, 0))


def _misfits(at: str, written: Schema, all_written: Schema, read: Schema, all_read: Schema, depth: int) -> Iterator[str]:
    written, read = _resolved(written, all_written), _resolved(read, all_read)
    there, wanted = _types(written), _types(read)
    if there and wanted and not there <= wanted:
        yield f"{at or 'the value'} is {_text(there)} and is read as {_text(wanted)}"
        return
    mine, theirs = _properties(written), _properties(read)
    if not theirs or depth > 8:  # a type that holds itself
        return
    for name, field in theirs.items():
        inner = f"{at}.{name}" if at else name
        if name in mine:
            yield from _misfits(inner, mine[name], all_written, field, all_read, depth + 1)
        elif name in cast(list[str], read.get("required", ())):
            yield f"{inner} is missing"


def _resolved(schema: Schema, everything: Schema) -> Schema:
    name = schema.get("$ref")
    if not isinstance(name, str):
        return schema
    definitions = cast(Mapping[str, Schema], everything.get("$defs", {}))
    return definitions.get(name.rpartition("/")[2], {})


def _types(schema: Schema) -> frozenset[str]:
    """The JSON types that a value may have; nothing where all are open. A whole number is a number too."""
    kind, choices = schema.get("type"), schema.get("anyOf")
    if isinstance(choices, list):
        parts = [_types(choice) for choice in choices]
        return frozenset().union(*parts) if all(parts) else frozenset()
    names = [kind] if isinstance(kind, str) else kind if isinstance(kind, list) else []
    found = frozenset(map(str, names))
    return found | {"integer"} if "number" in found else found


def _properties(schema: Schema) -> Mapping[str, Schema]:
    found = schema.get("properties")
    return cast(Mapping[str, Schema], found) if isinstance(found, Mapping) else {}


def _text(types: frozenset[str]) -> str:
    return " or ".join(sorted(types))
