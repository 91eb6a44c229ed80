"""Compatibility of two schemas of a Schema Registry: can every value written with one be read with the other?

Avro schemas are compared by Avro's rules of schema resolution as fastavro applies them: of a union that is read, it takes the first member
that fits, be it by a promotion. Protobuf messages are compared by what their bytes contain: field numbers and wire types.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

_PRIMITIVES = {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}
_PROMOTED = {
    "int": {"long", "float", "double"},
    "long": {"float", "double"},
    "float": {"double"},
}
_NAMED = {"record", "error", "enum", "fixed"}
_Named = dict[str, Mapping[str, object]]
_Seen = frozenset[tuple[str, str]]


def avro_changes(written: str, read: str) -> list[str]:
    """Return the reasons why a value of the first schema cannot be read with the second; empty if it can.

    Reading bytes as a string, or a string as bytes, is refused although Avro allows it: the value would mean something else. So is a number
    of a union that is read as a wider member before its own.
    """
    if written == read:
        return []
    try:
        mine, theirs = _Schema(msgspec.json.decode(written)), _Schema(msgspec.json.decode(read))
        return list(dict.fromkeys(_changes("", mine.root, mine, theirs.root, theirs, frozenset())))
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
        return ["its Avro schema is another one, and one of the two cannot be understood"]


def avro_removals(written: str, read: str) -> list[str]:
    """Return the fields that were written and are no longer read, also not by an alias, with the path to each."""
    return [each.at for each in _avro_losses(written, read) if not each.enum]


def avro_renames(written: str, read: str) -> list[str]:
    """Return messages about removed fields for which a new one of the same type, with a default, was added, and about removed symbols of an
    enum that are read as its default while others were added. Without an alias, their values would be lost."""
    return [each.text for each in _avro_losses(written, read) if each.text]


class _Loss(NamedTuple):
    """A field, or symbols of an enum, of which values would be lost. `text`: a message, if it was probably renamed."""

    at: str
    text: str = ""
    enum: bool = False


def _avro_losses(written: str, read: str) -> list[_Loss]:
    try:
        mine, theirs = _Schema(msgspec.json.decode(written)), _Schema(msgspec.json.decode(read))
        return list(dict.fromkeys(_losses("", mine.root, mine, theirs.root, theirs, frozenset())))
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
        return []


def _losses(at: str, written: object, all_written: _Schema, read: object, all_read: _Schema, seen: _Seen) -> Iterator[_Loss]:
    for mine in _branches(written, all_written):
        for theirs in _branches(read, all_read):
            if not isinstance(mine, dict) or not isinstance(theirs, dict) or mine["type"] != theirs["type"]:
                continue
            if mine["type"] in ("array", "map"):
                part = "items" if mine["type"] == "array" else "values"
                yield from _losses(f"{at}[]", mine[part], all_written, theirs[part], all_read, seen)
            elif mine["type"] in _NAMED and not _named_alike(mine, theirs):
                continue  # another member of the union
            elif mine["type"] == "enum":
                gone = [symbol for symbol in mine["symbols"] if symbol not in theirs["symbols"]]
                added = [symbol for symbol in theirs["symbols"] if symbol not in mine["symbols"]]
                if gone and added and "default" in theirs:
                    text = (
                        f"{_at(at)} may be {', '.join(gone)}, which is gone, and {', '.join(added)} is new: was it renamed? Its values "
                        f"would be read as {theirs['default']}"
                    )
                    yield _Loss(at, text, enum=True)
            elif _is_record(mine) and _is_record(theirs) and (pair := (str(mine["name"]), str(theirs["name"]))) not in seen:
                yield from _lost_fields(at, mine, all_written, theirs, all_read, seen | {pair})


def _lost_fields(
    at: str, written: Mapping[str, Any], all_written: _Schema, read: Mapping[str, Any], all_read: _Schema, seen: _Seen
) -> Iterator[_Loss]:
    old = {field["name"]: field for field in written["fields"]}
    sources = _sources(written, read)
    new = [field for field in read["fields"] if not sources[field["name"]]]
    for name in _gone(written, read):
        here = f"{at}.{name}" if at else name
        alike = [field["name"] for field in new if _may_be_renamed(old[name]["type"], all_written, field["type"], all_read)]
        text = (
            f"field {here} is gone and {' or '.join(alike)} of a type that fits is new: was it renamed? Its values would be lost. Give "
            f"the new field the alias {name}, or, if it was not renamed, remove the field in one version and add the other in a later one"
        )
        yield _Loss(here, text if alike else "")
    for field in read["fields"]:
        here = f"{at}.{field['name']}" if at else field["name"]
        for found in sources[field["name"]]:
            yield from _losses(here, found["type"], all_written, field["type"], all_read, seen)


def _may_be_renamed(written: object, all_written: _Schema, read: object, all_read: _Schema) -> bool:
    """Return whether some value of one type, other than null, can be read as the other, in either direction: a renamed field may have been
    widened or narrowed with it."""
    older = [each for each in _branches(written, all_written) if each != "null"]
    newer = [each for each in _branches(read, all_read) if each != "null"]
    return any(
        _fits(mine, all_written, theirs, all_read) or _fits(theirs, all_read, mine, all_written) for mine in older for theirs in newer
    )


def _fits(written: object, all_written: _Schema, read: object, all_read: _Schema) -> bool:
    return next(_changes("", written, all_written, read, all_read, frozenset()), None) is None


def _gone(written: Mapping[str, Any], read: Mapping[str, Any]) -> list[str]:
    kept = {field["name"] for sources in _sources(written, read).values() for field in sources}
    return [field["name"] for field in written["fields"] if field["name"] not in kept]


def _sources(written: Mapping[str, Any], read: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    """Return the written fields that each field of the reader takes: those of its name, and those of an alias that is no field's name."""
    found: dict[str, list[Mapping[str, Any]]] = {field["name"]: [] for field in read["fields"]}
    by_alias = {alias: field["name"] for field in read["fields"] for alias in field.get("aliases", ())}
    for field in written["fields"]:
        name = field["name"] if field["name"] in found else by_alias.get(field["name"])
        if name is not None:
            found[name].append(field)
    return found


def _branches(node: object, of: _Schema) -> list[object]:
    resolved = of.resolved(node)
    return [of.resolved(each) for each in resolved] if isinstance(resolved, list) else [resolved]


def _is_record(node: object) -> bool:
    return isinstance(node, dict) and node.get("type") in ("record", "error")


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
        self.root = _qualified(root, "")
        self.named: _Named = {}
        self._collect(self.root)

    def _collect(self, node: object) -> None:
        if isinstance(node, list):
            for each in node:
                self._collect(each)
        elif isinstance(node, dict):
            if node.get("type") in _NAMED:
                self.named[str(node["name"])] = node
            for part in ("items", "values", "type"):
                if isinstance(node.get(part), dict | list):
                    self._collect(node[part])
            for field in node.get("fields", []):
                self._collect(field["type"])

    def resolved(self, node: object) -> object:
        if isinstance(node, str) and node not in _PRIMITIVES:
            return self.named[node]
        if isinstance(node, dict) and isinstance(node.get("type"), dict | list):
            return self.resolved(node["type"])
        if isinstance(node, dict) and node.get("type") in _PRIMITIVES and "logicalType" not in node:
            return node["type"]
        return node


def _qualified(node: Any, namespace: str) -> Any:  # noqa: ANN401  # a decoded schema
    """Return a part of a schema with the full names of types, where they are defined and where they are used."""
    if isinstance(node, str):
        return node if node in _PRIMITIVES or "." in node or not namespace else f"{namespace}.{node}"
    if isinstance(node, list):
        return [_qualified(each, namespace) for each in node]
    found = dict(node)
    if node.get("type") in _NAMED:
        around = node.get("namespace", namespace)
        found["name"] = node["name"] if "." in node["name"] or not around else f"{around}.{node['name']}"
        inner = found["name"].rpartition(".")[0]
        if "fields" in node:
            found["fields"] = [{**field, "type": _qualified(field["type"], inner)} for field in node["fields"]]
    elif node.get("type") in ("array", "map"):
        part = "items" if node["type"] == "array" else "values"
        found[part] = _qualified(node[part], namespace)
    else:
        found["type"] = _qualified(node["type"], namespace)
    return found


def _changes(at: str, written: object, all_written: _Schema, read: object, all_read: _Schema, seen: _Seen) -> Iterator[str]:
    written, read = all_written.resolved(written), all_read.resolved(read)
    if isinstance(written, list):
        for each in written:
            yield from _changes(at, each, all_written, read, all_read, seen)
        return
    if isinstance(read, list):
        taken = next((each for each in read if _taken(written, all_written, each, all_read)), None)
        if taken is None:
            yield f"{_at(at)} is {_kind(written)} and is read as {' or '.join(map(_kind, read))}"
            return
        reasons = list(_changes(at, written, all_written, taken, all_read, seen))
        fits = next((each for each in read if each is not taken and _is_same(written, all_written, each, all_read)), None)
        if fits is not None and not _is_same(written, all_written, taken, all_read):
            mine, first = (_named(all_read.resolved(each)) for each in (fits, taken))
            reasons = [f"{_at(at)} is {mine} and would be read as {first}, which stands before it in the union and takes its values too"]
        yield from reasons
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
        if not _named_alike(written, read):
            yield f"{_at(at)} is {written['name']} and is read as {read['name']}, of which it is not an alias"
        elif kind == "fixed" and written["size"] != read["size"]:
            yield f"{_at(at)} has {written['size']} bytes and is read with {read['size']}"
        elif kind == "enum" and "default" not in read:
            gone = [symbol for symbol in written["symbols"] if symbol not in read["symbols"]]  # type: ignore[attr-defined, operator]  # lists
            if gone:
                yield f"{_at(at)} may be {', '.join(gone)}, which it no longer has as a symbol"
        elif kind in ("record", "error"):
            yield from _records(at, written, all_written, read, all_read, seen)


def _records(
    at: str, written: Mapping[str, object], all_written: _Schema, read: Mapping[str, object], all_read: _Schema, seen: _Seen
) -> Iterator[str]:
    pair = str(written["name"]), str(read["name"])
    if pair in seen:
        return
    sources = _sources(written, read)
    for field in read["fields"]:  # type: ignore[attr-defined]  # a list of fields
        here = f"{at}.{field['name']}" if at else field["name"]
        match sources[field["name"]]:
            case [found]:
                yield from _changes(here, found["type"], all_written, field["type"], all_read, seen | {pair})
            case [_, *_] as several:
                names = " and ".join(each["name"] for each in several)
                yield f"field {here} would be read from {names}, by its name and its aliases: only one of them can be read"
            case _ if "default" not in field:
                yield f"field {here} is new and has no default: values that were written without it cannot be read"


def _taken(written: object, all_written: _Schema, read: object, all_read: _Schema) -> bool:
    """Return True if fastavro reads a written type as this member of a union, unless an earlier one is taken
    (`fastavro._read_py.match_schemas`): it looks into arrays and maps, at names of records, and takes text for bytes and bytes for text."""
    written, read = all_written.resolved(written), all_read.resolved(read)
    if isinstance(written, list) or isinstance(read, list):
        return True
    old, new = _kind(written), _kind(read)
    if isinstance(written, dict) and isinstance(read, dict) and old == new and old in ("array", "map"):
        part = "items" if old == "array" else "values"
        return _taken(written[part], all_written, read[part], all_read)
    if isinstance(written, dict) and isinstance(read, dict) and old in _NAMED and new in _NAMED:
        return _named_alike(written, read) and not (old == new == "fixed" and written["size"] != read["size"])
    return old == new or new in _PROMOTED.get(old, ()) or {old, new} == {"bytes", "string"}


def _is_same(written: object, all_written: _Schema, read: object, all_read: _Schema) -> bool:
    """Return True if a member of a union is the written one: of its kind and logical type, and of its full name if it has a name."""
    written, read = all_written.resolved(written), all_read.resolved(read)
    if _kind(written) != _kind(read) or _logical(written) != _logical(read):
        return False
    if isinstance(written, dict) and isinstance(read, dict):
        kind = written["type"]
        if kind in ("array", "map"):
            part = "items" if kind == "array" else "values"
            return _is_same(written[part], all_written, read[part], all_read)
        return bool(written.get("name") == read.get("name"))
    return True


def _named(node: object) -> str:
    """Return a member of a union as its author calls it: by its name if it has one."""
    return str(node["name"]) if isinstance(node, dict) and "name" in node else " ".join(filter(None, (_logical(node), _kind(node))))


def _named_alike(written: Mapping[str, Any], read: Mapping[str, Any]) -> bool:
    """Return True if a reader's type has the written one's name, also by an alias. fastavro leaves namespaces out of account, but for those
    of aliases."""
    short = _short(written["name"])
    return short == _short(read["name"]) or not {written["name"], short}.isdisjoint(read.get("aliases", ()))


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


_IMPLICIT = 2
"""`FeatureSet.FieldPresence.IMPLICIT`, in files of an edition."""


def protobuf_changes(
    written: str,
    read: str,
    message: str | None = None,
    reads: str | None = None,
    written_imports: Sequence[str] = (),
    read_imports: Sequence[str] = (),
) -> list[str]:
    """Return the reasons why a message of the first file cannot be read with the second; empty if it can.

    All files are file descriptors in base64, as in the registry. `message`, `reads`: the messages' full names; without them all messages
    of the first file are compared. `written_imports`, `read_imports`: the files that these import; empty if unknown.
    """
    if (written, message, tuple(written_imports)) == (read, reads, tuple(read_imports)):
        return []
    old, new = _Types.of(written, *written_imports), _Types.of(read, *read_imports)
    names = [name for name in _Types.of(written).messages if not old.messages[name].options.map_entry] if message is None else [message]
    return list(dict.fromkeys(text for name in names for text in _message(name, reads or name, old, new, set())))


def protobuf_removals(written: Sequence[str], read: Sequence[str], message: str, reads: str) -> list[str]:
    """Return the fields of a message, and of the messages inside it, that were written and are no longer read, with the path to each.
    `written`, `read`: the file, then those that it imports."""
    return list(dict.fromkeys(_removed("", _Types.of(*written), _Types.of(*read), message, reads, frozenset())))


def _removed(at: str, old: _Types, new: _Types, message: str, reads: str, seen: _Seen) -> Iterator[str]:
    mine, theirs = old.messages.get(message), new.messages.get(reads)
    if mine is None or theirs is None or (message, reads) in seen:
        return
    fields = {field.number: field for field in theirs.field}
    for field in mine.field:
        here, found = f"{at}.{field.name}" if at else field.name, fields.get(field.number)
        if found is None:
            yield here
        else:
            inner = field.type_name.removeprefix("."), found.type_name.removeprefix(".")
            yield from _removed(here, old, new, *inner, seen | {(message, reads)})


class _Types(NamedTuple):
    """Messages and enums of files, by full name. `implicit`: the messages whose scalar fields do not distinguish unset from zero, unless a
    field says otherwise."""

    messages: dict[str, Any]
    enums: dict[str, Any]
    implicit: set[str]

    @classmethod
    def of(cls, *texts: str) -> _Types:
        from google.protobuf.descriptor_pb2 import FileDescriptorProto

        found = cls({}, {}, set())
        for text in texts:
            file = FileDescriptorProto.FromString(base64.b64decode(text))
            implicit = file.syntax == "proto3" or file.options.features.field_presence == _IMPLICIT
            found._collect(file.package, file, file.message_type, implicit)
        return found

    def _collect(self, prefix: str, holder: Any, messages: Any, implicit: bool) -> None:  # noqa: ANN401  # protobuf's classes carry no types
        for enum in holder.enum_type:
            self.enums[f"{prefix}.{enum.name}".lstrip(".")] = enum
        for message in messages:
            name = f"{prefix}.{message.name}".lstrip(".")
            self.messages[name] = message
            if implicit:
                self.implicit.add(name)
            self._collect(name, message, message.nested_type, implicit)

    def is_implicit(self, message: str, field: Any) -> bool:  # noqa: ANN401  # protobuf's classes carry no types
        """Return True if a value of zero is not written, so that a reader cannot distinguish it from an unset one."""
        if _label(field) != "LABEL_OPTIONAL" or _type(field) in ("TYPE_MESSAGE", "TYPE_GROUP") or field.HasField("oneof_index"):
            return False
        return (field.options.features.field_presence or (_IMPLICIT if message in self.implicit else 0)) == _IMPLICIT


def _message(was: str, now: str, old: _Types, new: _Types, seen: set[tuple[str, str]]) -> Iterator[str]:
    if (was, now) in seen:
        return
    seen.add((was, now))
    if was not in old.messages:  # of an imported file that is not known
        if was != now:
            yield f"message {was} is read as {now}, and its fields are not known"
        return
    if now not in new.messages:
        yield f"message {was} is gone"
        return
    written, read = old.messages[was], new.messages[now]
    mine = {field.number: field for field in written.field}
    for field in read.field:
        found, here = mine.get(field.number), f"{now}.{field.name}"
        if found is None:
            if _label(field) == "LABEL_REQUIRED":
                yield f"field {here} is new and required: values that were written without it cannot be read"
        elif found.name != field.name:
            yield f"field {here} has number {field.number}, which was {was}.{found.name}"
        else:
            yield from _field(here, found, field, old, new, seen)
            if (was_implicit := old.is_implicit(was, found)) != new.is_implicit(now, field) and _label(found) == _label(field):
                change = "zero is not written, and would be read as unset" if was_implicit else "may be unset, and would be read as zero"
                yield f"field {here}: {change}; add a field with another name and number"
    numbers = {field.number for field in read.field}
    for field in read.field:
        moved = next((other for other in written.field if other.name == field.name and other.number != field.number), None)
        if moved is not None and moved.number not in numbers:
            yield f"field {now}.{field.name} had number {moved.number} and has {field.number} now"
    yield from _exclusive(now, written, read)


def _exclusive(at: str, written: Any, read: Any) -> Iterator[str]:  # noqa: ANN401  # protobuf's classes carry no types
    """Yield the fields that could be set together, and are in one `oneof` now: a reader keeps the last one only."""
    mine = {field.number: field for field in written.field}
    for index, oneof in enumerate(read.oneof_decl):
        previous = [mine[field.number] for field in read.field if _in_oneof(field) == index and field.number in mine]
        if len(previous) > 1 and (None in (groups := {_in_oneof(field) for field in previous}) or len(groups) > 1):
            names = ", ".join(sorted(field.name for field in previous))
            yield f"fields {names} of {at} could be set together, and are in oneof {oneof.name} now, of which one is read"


def _in_oneof(field: Any) -> int | None:  # noqa: ANN401  # protobuf's classes carry no types
    return int(field.oneof_index) if field.HasField("oneof_index") and not field.proto3_optional else None


def _field(at: str, found: Any, field: Any, old: _Types, new: _Types, seen: set[tuple[str, str]]) -> Iterator[str]:  # noqa: ANN401  # protobuf's classes carry no types
    was, now = _type(found), _type(field)
    if (_label(found) == "LABEL_REPEATED") != (_label(field) == "LABEL_REPEATED"):
        yield f"field {at} is repeated in one of the two, and not in the other"
    elif was != now and (was, now) not in _WIDER:
        yield f"field {at} is {_lower_type(was)} and is read as {_lower_type(now)}"
    elif was in ("TYPE_MESSAGE", "TYPE_GROUP"):
        yield from _message(found.type_name.lstrip("."), field.type_name.lstrip("."), old, new, seen)
    elif was == "TYPE_ENUM":
        yield from _enum(at, found.type_name.lstrip("."), field.type_name.lstrip("."), old, new)
    if _label(field) == "LABEL_REQUIRED" != _label(found):
        yield f"field {at} is required now, and may be missing in what was written"
    if _default(found) != _default(field):
        yield f"field {at} is {_default(found) or 'empty'} where it was not written, and would be read as {_default(field) or 'empty'}"


def _enum(at: str, was: str, now: str, old: _Types, new: _Types) -> Iterator[str]:
    if was.rpartition(".")[2] != now.rpartition(".")[2]:
        yield f"field {at} is {was} and is read as {now}"
        return
    written, read = old.enums.get(was), new.enums.get(now)
    if written is None or read is None:  # of an imported file that is not known
        if was != now:
            yield f"field {at} is {was} and is read as {now}, and its values are not known"
        return
    names: dict[int, set[str]] = {}
    for value in read.value:
        names.setdefault(value.number, set()).add(value.name)
    for value in written.value:
        if value.number not in names:
            yield f"field {at} may be {value.name}, number {value.number}, which it no longer has as a value"
        elif value.name not in names[value.number]:
            yield f"field {at} has {' or '.join(sorted(names[value.number]))} for number {value.number}, which was {value.name}"


def _default(field: Any) -> str:  # noqa: ANN401  # protobuf's classes carry no types
    """Return the declared default; empty if it is the type's own."""
    return "" if field.default_value in ("0", "0.0", "false") else str(field.default_value)


def _type(field: Any) -> str:  # noqa: ANN401  # protobuf's classes carry no types
    return str(field.Type.Name(field.type))


def _label(field: Any) -> str:  # noqa: ANN401  # protobuf's classes carry no types
    return str(field.Label.Name(field.label))


def _lower_type(name: str) -> str:
    return name.removeprefix("TYPE_").lower()
