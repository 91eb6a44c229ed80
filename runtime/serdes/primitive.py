"""Serdes of the primitive types, of optional values and of lists, with the same bytes as Java's serializers
(`org.apache.kafka.common.serialization`; lists: Kafka Streams' `Serdes.ListSerde`).

The bytes of a list, all integers int32, big-endian:

    0 · number of nulls · their indexes · number of entries · the entries' bytes        entries of a fixed size (SHORT … DOUBLE, UUID)
    1 · number of entries · for each its size (-1: null) and its bytes                  all others
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from itertools import takewhile
from struct import Struct
from typing import Any, get_origin

import msgspec

from penstock.runtime.model.error_details import note_place_in, with_place
from penstock.runtime.model.type_variables import T
from penstock.runtime.serdes.json_types import check_json_type, json_writer
from penstock.runtime.serdes.serde import CurrentHeaders, PlainSerde, Serde, WrappingSerde
from penstock.runtime.serdes.serde_format import SerdeFormat
from penstock.runtime.serdes.type_schemas import json_schema_of, type_schema


def _write_boolean(data: object) -> bytes:
    if not isinstance(data, bool):
        raise TypeError(f"serdes.BOOLEAN takes bool, not {type(data).__name__}")
    return b"\x01" if data else b"\x00"


def _read_boolean(data: bytes) -> bool:
    if data not in (b"\x00", b"\x01"):
        first = 1 if data[:1] in (b"\x00", b"\x01") else 0
        raise with_place(ValueError(f"serdes.BOOLEAN reads one byte, 0 or 1, not {data[:8]!r}"), data, first)
    return data == b"\x01"


def _number(name: str, layout: str) -> PlainSerde:
    struct = Struct(layout)
    unpack = struct.unpack

    def read(data: bytes) -> object:
        return unpack(data)[0]

    return PlainSerde(name, struct.pack, read, immutable=True, size=struct.size)


def _identity(data: object) -> bytes:
    if not isinstance(data, bytes):
        raise TypeError(f"serdes.BYTES takes bytes, not {type(data).__name__}")
    return data


def _read_bytes(data: bytes) -> bytes:
    return data


def _write_uuid(data: object) -> bytes:
    if not isinstance(data, uuid.UUID):
        raise TypeError(f"serdes.UUID takes uuid.UUID, not {type(data).__name__}")
    return str(data).encode("ascii")


_HYPHENS = (8, 13, 18, 23)
_HEX = b"0123456789abcdefABCDEF"


def _read_uuid(data: bytes) -> uuid.UUID:
    try:
        return uuid.UUID(data.decode("utf-8"))
    except ValueError as error:
        fits = takewhile(lambda pair: pair[1] in (b"-" if pair[0] in _HYPHENS else _HEX), enumerate(data[:36]))
        with_place(error, data, sum(1 for _ in fits))
        raise


def _write_null(data: object) -> bytes | None:
    raise TypeError(f"serdes.NULL takes only None, not {type(data).__name__}")


def _read_null(data: bytes) -> None:
    raise with_place(ValueError(f"serdes.NULL reads only null, but there are {len(data)} bytes"), data, 0)


class _AnyJson(PlainSerde[Any]):
    """JSON without a type."""

    __slots__ = ()

    def format(self) -> SerdeFormat:
        return SerdeFormat(name=self.name, language="type", schema={"is": "any"})


BYTES: PlainSerde[bytes] = PlainSerde("BYTES", _identity, _read_bytes, immutable=True)
"""bytes, unchanged (Java's `ByteArraySerializer`)."""
STRING: PlainSerde[str] = PlainSerde("STRING", str.encode, bytes.decode, immutable=True)
"""str as UTF-8."""
BOOLEAN: PlainSerde[bool] = PlainSerde("BOOLEAN", _write_boolean, _read_boolean, immutable=True, size=1)
"""bool, 1 byte."""
SHORT: PlainSerde[int] = _number("SHORT", ">h")
"""int, 2 bytes, big-endian; out of range raises struct.error."""
INTEGER: PlainSerde[int] = _number("INTEGER", ">i")
"""int, 4 bytes, big-endian; out of range raises struct.error."""
LONG: PlainSerde[int] = _number("LONG", ">q")
"""int, 8 bytes, big-endian; out of range raises struct.error."""
FLOAT: PlainSerde[float] = _number("FLOAT", ">f")
"""float, IEEE 754 single precision, big-endian."""
DOUBLE: PlainSerde[float] = _number("DOUBLE", ">d")
"""float, IEEE 754 double precision, big-endian."""
UUID: PlainSerde[uuid.UUID] = PlainSerde("UUID", _write_uuid, _read_uuid, immutable=True, size=36)
"""uuid.UUID as its 36 characters (Java's `UUIDSerializer`)."""
NULL: PlainSerde[None] = PlainSerde("NULL", _write_null, _read_null, immutable=True)
"""None and nothing else (Java's `VoidSerializer`)."""
JSON: PlainSerde[Any] = _AnyJson("JSON", json_writer(Any, msgspec.json.Decoder().decode), msgspec.json.Decoder().decode, immutable=False)
"""Any JSON value (dict, list, str, int, float, bool), compact, UTF-8. Writing another type raises TypeError, NaN or an infinity
ValueError, reading malformed bytes msgspec.DecodeError."""


def json(kind: type[T]) -> Serde[T]:
    """Return a serde of JSON of one type: a msgspec struct, a dataclass, a TypedDict or any other type that msgspec supports.

    Values are validated when they are read: msgspec.ValidationError says where one does not match. A frozen `msgspec.Struct` is
    trusted to be immutable. Writing NaN or an infinity raises ValueError. Raises TopologyError for a type whose values msgspec cannot
    write and read again.
    """
    check_json_type(kind, "serdes.json")
    read: Callable[[bytes], T] = msgspec.json.Decoder(kind).decode
    write: Callable[[T], bytes] = json_writer(kind, read)
    return _JsonSerde(kind, write, read)


class _JsonSerde(PlainSerde[T]):
    """JSON of one type."""

    __slots__ = ("_kind",)

    def __init__(self, kind: type[T], write: Callable[[T], bytes], read: Callable[[bytes], T]) -> None:
        name = getattr(kind, "__name__", None) or repr(kind)  # a union has none
        super().__init__(f"json({name})", write, read, immutable=is_frozen(kind), schema=json_schema_of(kind))
        self._kind = kind

    def format(self) -> SerdeFormat:
        schema = type_schema(self._kind)
        return SerdeFormat(name=self.name) if schema is None else SerdeFormat(name=self.name, language="type", schema=schema)


def is_frozen(kind: type) -> bool:
    """Return True for a frozen struct whose fields are immutable too: a list in a frozen struct can still be changed in place."""
    found = get_origin(kind) or kind  # the struct `Box` of `Box[int]`
    if not (isinstance(found, type) and issubclass(found, msgspec.Struct) and found.__struct_config__.frozen):
        return False
    simple = (int, float, str, bytes, bool, type(None))
    fields = msgspec.structs.fields(kind)
    return all(isinstance(field.type, type) and (field.type in simple or is_frozen(field.type)) for field in fields)


_FIXED = {serde: serde.size for serde in (SHORT, INTEGER, LONG, FLOAT, DOUBLE, UUID)}
"""Serdes that Java's `ListSerializer` treats as fixed in size. (BOOLEAN is not among them.)"""
_INT = Struct(">i")
_NULL = _INT.pack(-1)


def nullable(inner: Serde[T]) -> Serde[T | None]:
    """Return a serde for values of the inner serde or None: None becomes null and back, without a call to the inner serde.

    Topics and stores do not need it, because the engine never calls a serde with None. It types optional values (`KTable[str, Flight |
    None]`) and is for programs that call serdes themselves.
    """
    return _Nullable(inner)


def list_of(inner: Serde[T]) -> Serde[list[T]]:
    """Return a serde of lists of the inner serde's values, which may contain None. Reading raises ValueError for malformed bytes."""
    return _ListSerde(inner)


class _Nullable(WrappingSerde["T | None"]):
    __slots__ = ("_inner",)

    def __init__(self, inner: Serde[T]) -> None:
        super().__init__("nullable", inner, immutable=inner.immutable, schema=inner.schema, registry_schema=inner.registry_schema)
        self._inner = inner

    def format(self) -> SerdeFormat:
        return self._inner.format()  # the same bytes

    def serializer(self, topic: str, headers: CurrentHeaders | None = None) -> Callable[[T | None], bytes | None]:
        write = self._inner.serializer(topic, headers)
        return lambda data: None if data is None else write(data)

    def deserializer(self, topic: str, headers: CurrentHeaders | None = None) -> Callable[[bytes | None], T | None]:
        read = self._inner.deserializer(topic, headers)
        return lambda data: None if data is None else read(data)


class _ListSerde(WrappingSerde[list[T]]):
    __slots__ = ("_inner", "_size")

    def __init__(self, inner: Serde[T]) -> None:
        super().__init__("list_of", inner, schema=inner.schema)
        self._inner = inner
        self._size = next((size for serde, size in _FIXED.items() if serde is inner), None)

    def serializer(self, topic: str, headers: CurrentHeaders | None = None) -> Callable[[list[T]], bytes]:
        write, size = self._inner.serializer(topic, headers), self._size

        def written(data: list[T]) -> bytes:
            if not isinstance(data, list | tuple):
                raise TypeError(f"{self!r} takes a list, not {type(data).__name__}")
            entries = [None if entry is None else write(entry) for entry in data]
            return _sized(entries) if size is None else _unsized(entries)

        return written

    def deserializer(self, topic: str, headers: CurrentHeaders | None = None) -> Callable[[bytes], list[T]]:
        read = self._inner.deserializer(topic, headers)

        def entries(data: bytes) -> list[T | None]:
            parts = _Input(data, self).entries(self._size)
            found: list[T | None] = []
            try:
                for part in parts:
                    found.append(None if part is None else read(part))
            except Exception as error:
                rest = parts[len(found) :]
                length = _INT.size if data[0] else 0
                start = len(data) - sum(length + len(part or b"") for part in rest) + length
                note_place_in(data, start, rest[0] or b"", error, "[...]")
                raise
            return found

        return entries  # type: ignore[return-value]  # a list may hold None whatever T is, as in Java


def _sized(entries: list[bytes | None]) -> bytes:
    parts = [b"\x01", _INT.pack(len(entries))]
    for entry in entries:
        parts += (_NULL,) if entry is None else (_INT.pack(len(entry)), entry)
    return b"".join(parts)


def _unsized(entries: list[bytes | None]) -> bytes:
    nulls = [_INT.pack(index) for index, entry in enumerate(entries) if entry is None]
    found = [entry for entry in entries if entry is not None]
    return b"".join((b"\x00", _INT.pack(len(nulls)), *nulls, _INT.pack(len(entries)), *found))


class _Input:
    """Reader of the bytes of a list."""

    __slots__ = ("_at", "_data", "_serde")

    def __init__(self, data: bytes, serde: object) -> None:
        self._data = data
        self._serde = serde
        self._at = 0

    def _error(self, text: str, byte: int) -> ValueError:
        return with_place(ValueError(f"{self._serde!r}: {text}"), self._data, byte)

    def _take(self, size: int) -> bytes:
        start, self._at = self._at, self._at + size
        if size < 0 or self._at > len(self._data):
            raise self._error(f"{len(self._data)} bytes are not a list: {size} more are expected at byte {start}", start)
        return self._data[start : self._at]

    def _number(self) -> int:
        return int(_INT.unpack(self._take(4))[0])

    def _count(self) -> int:
        """Read a count. Raises ValueError if it exceeds the number of bytes, before anything of that size is allocated."""
        count = self._number()
        if not 0 <= count <= len(self._data):
            raise self._error(f"{len(self._data)} bytes are not a list: they cannot hold {count} entries", self._at - _INT.size)
        return count

    def entries(self, size: int | None) -> list[bytes | None]:
        flag = self._take(1)
        if flag not in (b"\x00", b"\x01"):
            raise self._error(f"a list begins with 0 or 1, not {flag[0]}", 0)
        if flag == b"\x00" and size is None:
            raise self._error("a list of fixed-size entries, and the entries of this serde have no fixed size", 0)
        found = self._with_sizes() if flag == b"\x01" else self._without_sizes(size or 0)
        if self._at != len(self._data):
            raise self._error(f"{len(self._data) - self._at} bytes are left behind the list", self._at)
        return found

    def _with_sizes(self) -> list[bytes | None]:
        return [None if (size := self._number()) == -1 else self._take(size) for _ in range(self._count())]

    def _without_sizes(self, size: int) -> list[bytes | None]:
        nulls = {self._number() for _ in range(self._count())}
        return [None if index in nulls else self._take(size) for index in range(self._count())]
