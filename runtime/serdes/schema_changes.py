"""Compatibility of two schemas of a Schema Registry: can every value written with one be read with the other?

Avro schemas are compared by Avro's rules of schema resolution, Protobuf messages by what their bytes contain: field numbers and wire types.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

_PRIMITIVES = {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}
_PROMOTED = {
    "int": {"long", "float", "double"},
    "long": {"float", "double"},
    "float": {"double"},
}
_Named = dict[str, Mapping[str, object]]
_Seen = frozenset[tuple[str, str]]


def avro_changes(written: str, read: str) -> list[str]:
    """Return the reasons why a value of the first schema cannot be read with the second; empty if it can.

    Reading bytes as a string, or a string as bytes, is refused although Avro allows it: the value would mean something else.
    """
    if written == read:
        return []
    try:
        mine, theirs = _Schema(msgspec.json.decode(written)), _Schema(msgspec.json.decode(read))
        return list(dict.fromkeys(_changes("", mine.root, mine, theirs.root, theirs, frozenset())))
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
        return ["its Avro schema is another one, and one of the two cannot be understood"]


def avro_defaults(read: str | None) -> set[str]:
    """Return the fields of the outermost record that have a default, which a reader uses where the field was not written."""
    try:
        root = msgspec.json.decode(read or "null")
    except msgspec.DecodeError:
        return set()
    fields = root.get("fields", []) if isinstance(root, dict) else []
    return {str(field["name"]) for field in fields if isinstance(field, dict) and "default" in field}


class _Schema:
    def __init__(self, root: object) -> None:
        self.root = root
        self.named: _Named = {}
        self._collect(root)

    def _collect(self, node: object) -> None:
        if isinstance(node, list):
            for each in node:
                self._collect(each)
        elif isinstance(node, dict):
            if "name" in node and node.get("type") in ("record", "enum", "fixed", "error"):
                self.named[_short(node["name"])] = node
            for part in ("items", "values", "type"):
                if isinstance(node.get(part), dict | list):
                    self._collect(node[part])
            for field in node.get("fields", []):
                self._collect(field["type"])

    def resolved(self, node: object) -> object:
        if isinstance(node, str) and node not in _PRIMITIVES:
            return self.named[_short(node)]
        if isinstance(node, dict) and isinstance(node.get("type"), dict | list):
            return self.resolved(node["type"])
        if isinstance(node, dict) and node.get("type") in _PRIMITIVES and "logicalType" not in node:
            return node["type"]
        return node


def _changes(at: str, written: object, all_written: _Schema, read: object, all_read: _Schema, seen: _Seen) -> Iterator[str]:
    written, read = all_written.resolved(written), all_read.resolved(read)
    if isinstance(written, list):
        for each in written:
            yield from _changes(at, each, all_written, read, all_read, seen)
        return
    if isinstance(read, list):
        reasons = [list(_changes(at, written, all_written, each, all_read, seen)) for each in read]
        if all(reasons):
            alike = [texts for each, texts in zip(read, reasons, strict=True) if _kind(all_read.resolved(each)) == _kind(written)]
            yield from alike[0] if alike else [f"{_at(at)} is {_kind(written)} and is read as {' or '.join(map(_kind, read))}"]
        return
    old, new = _kind(written), _kind(read)
    logical = _logical(written), _logical(read)
    if logical[0] != logical[1]:
        yield f"{_at(at)} is {' '.join(filter(None, (logical[0], old)))} and is read as {' '.join(filter(None, (logical[1], new)))}"
    elif old != new:
        if new not in _PROMOTED.get(old, ()):
            yield f"{_at(at)} is {old} and is read as {new}"
    elif isinstance(written, dict) and isinstance(read, dict):
        yield from _same_kind(at, written, all_written, read, all_read, seen)


def _same_kind(
    at: str, written: Mapping[str, object], all_written: _Schema, read: Mapping[str, object], all_read: _Schema, seen: _Seen
) -> Iterator[str]:
    kind = written["type"]
    if kind in ("array", "map"):
        part = "items" if kind == "array" else "values"
        yield from _changes(f"{at}[]", written[part], all_written, read[part], all_read, seen)
    elif kind in ("record", "error", "enum", "fixed"):
        names = {_short(read["name"]), *map(_short, read.get("aliases", []))}  # type: ignore[call-overload]  # a list of names
        if _short(written["name"]) not in names:
            yield f"{_at(at)} is {written['name']} and is read as {read['name']}, of which it is no alias"
        elif kind == "fixed" and written["size"] != read["size"]:
            yield f"{_at(at)} has {written['size']} bytes and is read with {read['size']}"
        elif kind == "enum" and "default" not in read:
            gone = [symbol for symbol in written["symbols"] if symbol not in read["symbols"]]  # type: ignore[attr-defined, operator]  # lists
            if gone:
                yield f"{_at(at)} may be {', '.join(gone)}, which is no symbol of it any more"
        elif kind in ("record", "error"):
            yield from _records(at, written, all_written, read, all_read, seen)


def _records(
    at: str, written: Mapping[str, object], all_written: _Schema, read: Mapping[str, object], all_read: _Schema, seen: _Seen
) -> Iterator[str]:
    pair = str(written["name"]), str(read["name"])
    if pair in seen:
        return
    old = {field["name"]: field for field in written["fields"]}  # type: ignore[attr-defined]  # a list of fields
    for field in read["fields"]:  # type: ignore[attr-defined]  # a list of fields
        here = f"{at}.{field['name']}" if at else field["name"]
        found = next((old[name] for name in (field["name"], *field.get("aliases", ())) if name in old), None)
        if found is not None:
            yield from _changes(here, found["type"], all_written, field["type"], all_read, seen | {pair})
        elif "default" not in field:
            yield f"field {here} is new and has no default: values that were written without it cannot be read"


def _kind(node: object) -> str:
    if isinstance(node, list):
        return " or ".join(map(_kind, node))
    return str(node["type"]) if isinstance(node, dict) else str(node)


def _logical(node: object) -> str:
    """Return the logical type with its precision and scale, such as `decimal-9-2`; empty if there is none."""
    if not isinstance(node, dict) or "logicalType" not in node:
        return ""
    return "-".join(str(node[name]) for name in ("logicalType", "precision", "scale") if name in node)


def _short(name: object) -> str:
    return str(name).rpartition(".")[2]


def _at(at: str) -> str:
    return f"field {at}" if at else "the value"


_WIDER = {("TYPE_INT32", "TYPE_INT64"), ("TYPE_UINT32", "TYPE_UINT64"), ("TYPE_UINT32", "TYPE_INT64"), ("TYPE_SINT32", "TYPE_SINT64")}
"""Pairs of types with the same wire format, where the second holds every value of the first."""


def protobuf_changes(written: str, read: str, message: str | None = None, reads: str | None = None) -> list[str]:
    """Return the reasons why a message of the first file cannot be read with the second; empty if it can.

    Both are file descriptors in base64, as in the registry. `message`, `reads`: the messages' full names; without them all messages of the
    first file are compared.
    """
    if written == read and message == reads:
        return []
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    files: list[Mapping[str, Any]] = []
    for text in (written, read):
        file = FileDescriptorProto.FromString(base64.b64decode(text))
        files.append(dict(_messages(file.package, file)))
    old, new = files
    names = [name for name in old if not old[name].options.map_entry] if message is None else [message]
    return list(dict.fromkeys(text for name in names for text in _message(name, reads or name, old, new, set())))


def _messages(prefix: str, holder: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401  # protobuf's classes carry no types
    for found in holder.message_type if hasattr(holder, "message_type") else holder.nested_type:
        name = f"{prefix}.{found.name}" if prefix else found.name
        yield name, found
        yield from _messages(name, found)


def _message(was: str, now: str, old: Mapping[str, Any], new: Mapping[str, Any], seen: set[tuple[str, str]]) -> Iterator[str]:
    if (was, now) in seen or was not in old:
        return
    seen.add((was, now))
    if now not in new:
        yield f"message {was} is gone"
        return
    mine = {field.number: field for field in old[was].field}
    for field in new[now].field:
        found, here = mine.get(field.number), f"{now}.{field.name}"
        if found is None:
            if _label(field) == "LABEL_REQUIRED":
                yield f"field {here} is new and required: values that were written without it cannot be read"
        elif found.name != field.name:
            yield f"field {here} has number {field.number}, which was {was}.{found.name}"
        else:
            yield from _field(here, found, field, old, new, seen)
    numbers = {field.number for field in new[now].field}
    for field in new[now].field:
        moved = next((other for other in old[was].field if other.name == field.name and other.number != field.number), None)
        if moved is not None and moved.number not in numbers:
            yield f"field {now}.{field.name} had number {moved.number} and has {field.number} now"


def _field(at: str, found: Any, field: Any, old: Mapping[str, Any], new: Mapping[str, Any], seen: set[tuple[str, str]]) -> Iterator[str]:  # noqa: ANN401  # protobuf's classes carry no types
    was, now = _type(found), _type(field)
    if (_label(found) == "LABEL_REPEATED") != (_label(field) == "LABEL_REPEATED"):
        yield f"field {at} is repeated in one of the two, and not in the other"
    elif was != now and (was, now) not in _WIDER:
        yield f"field {at} is {_type_name(was)} and is read as {_type_name(now)}"
    elif was == "TYPE_MESSAGE":
        yield from _message(found.type_name.lstrip("."), field.type_name.lstrip("."), old, new, seen)
    elif was == "TYPE_ENUM" and found.type_name.rpartition(".")[2] != field.type_name.rpartition(".")[2]:
        yield f"field {at} is {found.type_name.lstrip('.')} and is read as {field.type_name.lstrip('.')}"


def _type(field: Any) -> str:  # noqa: ANN401  # protobuf's classes carry no types
    return str(field.Type.Name(field.type))


def _label(field: Any) -> str:  # noqa: ANN401  # protobuf's classes carry no types
    return str(field.Label.Name(field.label))


def _type_name(name: str) -> str:
    return name.removeprefix("TYPE_").lower()
