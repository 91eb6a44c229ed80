"""Compatibility of two Avro schemas, by Avro's rules of schema resolution: can every value written with one be read with the other?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

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
