"""Field and byte at which data of Avro or Protobuf cannot be read. The decoders' own errors do not contain them.

After a failure the data are decoded again, and walked by their schema. In Avro the value is the one after which the decoder stopped; in
Protobuf the first that fails when it is read alone. If decoding does not fail again, the failure is not one of the bytes (for example of a
rule of the Schema Registry), and nothing is returned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from io import BytesIO
from itertools import islice
from typing import Any, NamedTuple, cast

import msgspec

_Place = tuple[str, int]
"""Path of a field (`$` is the value itself), and the index in the data."""
_MOST_VALUES = 200_000
"""Number of values after which the search stops: nulls in an Avro array take no bytes."""
_MOST_LEVELS = 100
"""Depth at which Protobuf refuses a message."""


@dataclass(frozen=True, slots=True)
class _Read:
    """A value that was read by the writer's schema. `error`: why it cannot be; `framing`: the length of a list or the choice of a union."""

    field: str
    start: int
    end: int
    error: Exception | None
    framing: bool


class AvroPlaces:
    """Fields of data of Avro with the bytes at which they begin.

    `writer` is the schema of the data, `references` the texts of the schemas that it refers to, those first that others need; `reader` the
    schema to which values are resolved.
    """

    def __init__(self, data: bytes, writer: str, references: Iterable[str] = (), reader: str | None = None) -> None:
        from fastavro.schema import parse_schema

        self._data = data
        self._named: dict[str, Any] = {}
        for text in references:
            parse_schema(msgspec.json.decode(text), self._named)
        self._writer = parse_schema(msgspec.json.decode(writer), self._named)
        self._reader = None if reader is None else parse_schema(msgspec.json.decode(reader))

    def unreadable(self, error: Exception) -> _Place | None:
        """Return field and byte of the value that cannot be read, if reading fails as `error` did; None if it is not one value."""
        from fastavro import schemaless_reader
        from fastavro.read import SchemaResolutionError

        source = BytesIO(self._data)
        try:
            schemaless_reader(source, self._writer, self._reader)
        except SchemaResolutionError:  # raised about a record too, after its last field
            return None
        except Exception as again:  # noqa: BLE001 (as below)
            return self._last_read(source.tell(), type(again)) if type(again) is type(error) else None
        return None

    def _last_read(self, stop: int, kind: type[Exception]) -> _Place | None:
        """Return the value after which the decoder stopped, at byte `stop`. Unreadable values that the reader skips do not stop it."""
        found: _Place | None = None
        for each in self._read():
            if each.end >= stop and type(each.error) is kind:
                return each.field, each.start
            if each.end > stop or (each.start >= stop and each.error is not None):
                break
            if each.end == stop and each.error is None and not each.framing:
                found = each.field, each.start  # readable by the writer's schema, but not by the reader's
        return found

    def byte_of(self, path: str) -> int | None:
        """Return the byte at which the value of a field begins; None for an unknown one, and for entries of lists and maps."""
        if "[" in path:
            return None
        return next((each.start for each in self._read() if each.field == path or each.field.startswith((f"{path}.", f"{path}["))), None)

    def _read(self) -> Iterator[_Read]:
        source = BytesIO(self._data)
        return islice(self._values(source, self._writer, "$"), _MOST_VALUES)

    def _values(self, source: BytesIO, schema: Any, field: str) -> Iterator[_Read]:  # noqa: ANN401  # a schema is a name, a list or a dict
        """Yield the values in the order of their bytes."""
        kind = schema["type"] if isinstance(schema, dict) else schema
        if isinstance(schema, list):
            yield from self._union(source, schema, field)
        elif isinstance(kind, dict | list):
            yield from self._values(source, kind, field)
        elif kind in self._named and schema != self._named[kind]:
            yield from self._values(source, self._named[kind], field)
        elif kind in ("record", "error"):
            for each in schema["fields"]:
                yield from self._values(source, each["type"], f"{field}.{each['name']}")
        elif kind == "array":
            yield from self._entries(source, [schema["items"]], field)
        elif kind == "map":
            yield from self._entries(source, ["string", schema["values"]], field)
        else:
            yield self._one(source, schema, field)[1]

    def _one(self, source: BytesIO, schema: Any, field: str, framing: bool = False) -> tuple[object, _Read]:  # noqa: ANN401  # as above
        from fastavro import schemaless_reader

        value: object = None
        failure: Exception | None = None
        start = source.tell()
        try:
            value = schemaless_reader(source, schema, None)
        except UnicodeDecodeError as error:
            start, failure = source.tell() - len(error.object) + error.start, error
        except Exception as error:  # noqa: BLE001 (the decoder's errors have no common class)
            failure = error
        return value, _Read(field, start, source.tell(), failure, framing)

    def _union(self, source: BytesIO, schemas: list[Any], field: str) -> Iterator[_Read]:
        index, read = self._one(source, "long", field, framing=True)
        if read.error is None:
            try:
                schema = schemas[cast(int, index)]
            except IndexError as error:
                read = replace(read, error=error)
        yield read
        if read.error is None:
            yield from self._values(source, schema, field)

    def _entries(self, source: BytesIO, schemas: list[Any], field: str) -> Iterator[_Read]:
        """Yield the values of an array or a map, whose blocks begin with their number of entries, negative if a size follows."""
        while True:
            count, read = self._one(source, "long", field, framing=True)
            yield read
            if not count:
                return
            if cast(int, count) < 0:
                yield self._one(source, "long", field, framing=True)[1]
            for _ in range(abs(cast(int, count))):
                for schema in schemas:
                    yield from self._values(source, schema, f"{field}[...]")


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
