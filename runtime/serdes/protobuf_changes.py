"""Compatibility of two Protobuf messages, by what their bytes contain: field numbers and wire types."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Any

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
        yield f"field {at} is {_short(was)} and is read as {_short(now)}"
    elif was == "TYPE_MESSAGE":
        yield from _message(found.type_name.lstrip("."), field.type_name.lstrip("."), old, new, seen)
    elif was == "TYPE_ENUM" and found.type_name.rpartition(".")[2] != field.type_name.rpartition(".")[2]:
        yield f"field {at} is {found.type_name.lstrip('.')} and is read as {field.type_name.lstrip('.')}"


def _type(field: Any) -> str:  # noqa: ANN401  # protobuf's classes carry no types
    return str(field.Type.Name(field.type))


def _label(field: Any) -> str:  # noqa: ANN401  # protobuf's classes carry no types
    return str(field.Label.Name(field.label))


def _short(name: str) -> str:
    return name.removeprefix("TYPE_").lower()
