"""Serdes of the primitive types; their bytes equal those of Java's serializers (`org.apache.kafka.common.serialization`)."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from struct import Struct
from typing import Any

import msgspec

from runtime.serdes.json_schemas import json_schema_of
from runtime.serdes.serde import PlainSerde, Serde
from runtime.type_variables import T


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


BYTES: PlainSerde[bytes] = PlainSerde("BYTES", _identity, _read_bytes, immutable=True)
"""bytes, as they are (Java's `ByteArraySerializer`)."""
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
JSON: PlainSerde[Any] = PlainSerde("JSON", msgspec.json.Encoder().encode, msgspec.json.Decoder().decode, immutable=False)
"""Anything that JSON can say (dict, list, str, int, float, bool), compact, UTF-8; anything else raises TypeError, bad input
msgspec.DecodeError."""


def json(kind: type[T]) -> Serde[T]:
    """JSON of one type: a msgspec struct, a dataclass, a TypedDict or any other type that msgspec knows, checked while it is read.

    Reading what does not fit raises msgspec.ValidationError, which says where. A frozen `msgspec.Struct` is trusted to be immutable.
    """
    write: Callable[[T], bytes] = msgspec.json.Encoder().encode
    read: Callable[[bytes], T] = msgspec.json.Decoder(kind).decode
    return PlainSerde(f"json({kind.__name__})", write, read, immutable=is_frozen(kind), schema=json_schema_of(kind))


def is_frozen(kind: type) -> bool:
    """True for a frozen struct whose fields are immutable too: a list in a frozen struct could still be changed in place."""
    if not (issubclass(kind, msgspec.Struct) and kind.__struct_config__.frozen):
        return False
    simple = (int, float, str, bytes, bool, type(None))
    fields = msgspec.structs.fields(kind)
    return all(isinstance(field.type, type) and (field.type in simple or is_frozen(field.type)) for field in fields)
