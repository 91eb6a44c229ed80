"""Field and byte at which data of Avro or Protobuf cannot be read. The decoders' own errors do not contain them.

After a failure the data are walked by their schema, and each value is read alone by the same decoder. The first that fails so is the one.
If none does, the failure is not one of the bytes (for example of the reader's schema), and nothing is returned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from io import BytesIO
from typing import Any, NamedTuple, cast

import msgspec

_Place = tuple[str, int]
"""Path of a field (`$` is the value itself), and the index in the data."""
_MOST_VALUES = 200_000
"""Number of values after which the search stops: blocks of an Avro array of nulls take no bytes."""
_MOST_LEVELS = 100
"""Depth at which Protobuf refuses a message."""


class _Unreadable(Exception):
    def __init__(self, field: str, byte: int, cause: Exception) -> None:
        super().__init__()
        self.place = field, byte
        self.cause = cause


def place_in_avro(error: Exception, data: bytes, start: int, schema: str) -> _Place | None:
    """Return field and byte of the value that the writer's schema cannot read from `start`, if it fails as `error` did."""
    from fastavro.schema import parse_schema

    named: dict[str, Any] = {}
    parsed = parse_schema(msgspec.json.decode(schema), named)
    walk = _AvroWalk(data, start, named)
    try:
        walk.read(parsed, "$")
    except _Unreadable as found:
        # Fields that the reader's schema does not have are skipped, so that a value that is unreadable here may not be the one.
        return found.place if type(found.cause) is type(error) else None
    return None


class _AvroWalk:
    """Position in data of Avro."""

    def __init__(self, data: bytes, start: int, named: Mapping[str, Any]) -> None:
        self._input = BytesIO(data)
        self._input.seek(start)
        self._named = named
        self._left = _MOST_VALUES

    def read(self, schema: Any, field: str) -> None:  # noqa: ANN401  # a schema is a name, a list or a dict
        """Move behind a value. Raises _Unreadable at the value that cannot be read."""
        kind = schema["type"] if isinstance(schema, dict) else schema
        if isinstance(schema, list):
            self._union(schema, field)
        elif isinstance(kind, dict | list):
            self.read(kind, field)
        elif kind in self._named and schema != self._named[kind]:
            self.read(self._named[kind], field)
        elif kind in ("record", "error"):
            for each in schema["fields"]:
                self.read(each["type"], f"{field}.{each['name']}")
        elif kind == "array":
            for _ in self._entries(field):
                self.read(schema["items"], f"{field}[...]")
        elif kind == "map":
            for _ in self._entries(field):
                self._value("string", f"{field}[...]")
                self.read(schema["values"], f"{field}[...]")
        else:
            self._value(schema, field)

    def _value(self, schema: Any, field: str) -> object:  # noqa: ANN401  # as above
        from fastavro import schemaless_reader

        self._left -= 1
        if self._left < 0:
            raise OverflowError("too many values")
        start = self._input.tell()
        try:
            return schemaless_reader(self._input, schema, None)
        except UnicodeDecodeError as error:
            raise _Unreadable(field, self._input.tell() - len(error.object) + error.start, error) from error
        except Exception as error:
            raise _Unreadable(field, start, error) from error

    def _union(self, schemas: list[Any], field: str) -> None:
        start = self._input.tell()
        index = cast(int, self._value("long", field))
        try:
            schema = schemas[index]
        except IndexError as error:
            raise _Unreadable(field, start, error) from error
        self.read(schema, field)

    def _entries(self, field: str) -> Iterator[None]:
        """Yield for each entry of an array or a map, whose blocks begin with their number of entries, negative if a size follows."""
        while count := cast(int, self._value("long", field)):
            if count < 0:
                self._value("long", field)
            for _ in range(abs(count)):
                yield


class _Part(NamedTuple):
    """Bytes of one field of a message: tag, value and end."""

    number: int
    wire_type: int
    tag: int
    start: int
    end: int | None
    """None if the data end before the value does, or the tag is not valid."""


_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_SIZES = {_FIXED64: 8, _FIXED32: 4}
_LONGEST_VARINT = 10


def place_in_protobuf(data: bytes, start: int, descriptor: Any) -> _Place | None:  # noqa: ANN401  # protobuf's classes carry no types
    """Return field and byte of the value that the message cannot read from `start`."""
    from google.protobuf.message import DecodeError
    from google.protobuf.message_factory import GetMessageClass

    end, path, found = len(data), "$", None
    for _ in range(_MOST_LEVELS):
        read, unreadable = GetMessageClass(descriptor).FromString, None
        for part in _parts(data, start, end):
            try:
                if part.end is not None:
                    read(data[part.tag : part.end])
                    continue
            except DecodeError:
                pass
            unreadable = part
            break
        if unreadable is None:
            return found
        field = descriptor.fields_by_number.get(unreadable.number)
        if field is not None:
            path += f".{field.name}[...]" if field.is_repeated else f".{field.name}"
        if unreadable.end is None:
            return path, unreadable.start
        found = path, unreadable.start + _first_not_utf8(data[unreadable.start : unreadable.end], field)
        if field is None or field.message_type is None or unreadable.wire_type != _BYTES:
            return found
        descriptor, start, end = field.message_type, unreadable.start, unreadable.end
    return found


def _first_not_utf8(value: bytes, field: Any) -> int:  # noqa: ANN401  # as above
    if field is not None and field.type == field.TYPE_STRING:
        try:
            value.decode()
        except UnicodeDecodeError as error:
            return error.start
    return 0


def _parts(data: bytes, start: int, end: int) -> Iterator[_Part]:
    """Yield the fields of a message up to the first whose end cannot be found; none from a group, which has no length."""
    while start < end:
        tag = start
        key, start = _varint(data, tag, end)
        number, wire_type = (key or 0) >> 3, (key or 0) & 7
        if wire_type in (3, 4) and number:
            return
        after: int | None = None
        if key is None or not number:
            number, start = 0, tag
        elif wire_type == _VARINT:
            value, behind = _varint(data, start, end)
            after = None if value is None else behind
        elif wire_type == _BYTES:
            length, behind = _varint(data, start, end)
            if length is not None and behind + length <= end:
                start, after = behind, behind + length
        elif wire_type in _SIZES and start + _SIZES[wire_type] <= end:
            after = start + _SIZES[wire_type]
        elif wire_type not in _SIZES:
            start = tag
        yield _Part(number, wire_type, tag, start, after)
        if after is None:
            return
        start = after


def _varint(data: bytes, start: int, end: int) -> tuple[int | None, int]:
    """Return an unsigned number and the index after it; None and `start` if it does not end."""
    number = 0
    for place, byte in enumerate(data[start : min(end, start + _LONGEST_VARINT)]):
        number |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return number, start + place + 1
    return None, start
