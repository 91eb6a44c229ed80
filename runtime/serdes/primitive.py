"""Serdes of the primitive types, with the same bytes as Java's serializers (`org.apache.kafka.common.serialization`)."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from struct import Struct
from typing import Any, get_origin

import msgspec

from penstock.runtime.model.type_variables import T
from penstock.runtime.serdes.json_schemas import json_schema_of
from penstock.runtime.serdes.serde import PlainSerde, Serde
from penstock.runtime.serdes.serde_format import SerdeFormat
from penstock.runtime.serdes.type_schemas import type_schema


def _write_boolean(data: object) -> bytes:
    if not isinstance(data, bool):
        raise TypeError(f"serdes.BOOLEAN takes bool, not {type(data).__name__}")
    return b"\x01" if data else b"\x00"


def _read_boolean(data: bytes) -> bool:
    if data not in (b"\x00", b"\x01"):
        raise ValueError(f"serdes.BOOLEAN reads one byte, 0 or 1, not {data[:8]!r}")
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


def _read_uuid(data: bytes) -> uuid.UUID:
    return uuid.UUID(data.decode("utf-8"))


def _write_null(data: object) -> bytes | None:
    raise TypeError(f"serdes.NULL takes only None, not {type(data).__name__}")


def _read_null(data: bytes) -> None:
    raise ValueError(f"serdes.NULL reads only null, but there are {len(data)} bytes")


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
JSON: PlainSerde[Any] = _AnyJson("JSON", msgspec.json.Encoder().encode, msgspec.json.Decoder().decode, immutable=False)
"""Any JSON value (dict, list, str, int, float, bool), compact, UTF-8. Writing another type raises TypeError, reading malformed bytes
msgspec.DecodeError."""


def json(kind: type[T]) -> Serde[T]:
    """Return a serde of JSON of one type: a msgspec struct, a dataclass, a TypedDict or any other type that msgspec supports.

    Values are validated when they are read: msgspec.ValidationError says where one does not match. A frozen `msgspec.Struct` is
    trusted to be immutable.
    """
    write: Callable[[T], bytes] = msgspec.json.Encoder().encode
    read: Callable[[bytes], T] = msgspec.json.Decoder(kind).decode
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
