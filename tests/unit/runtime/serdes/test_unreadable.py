"""Field and byte of data of a Schema Registry's serdes that cannot be read."""

from __future__ import annotations

import pickle
from typing import Any, cast
from uuid import uuid4

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from penstock import serdes
from penstock.runtime.model.error_details import Place, details_of
from penstock.runtime.model.errors import DeserializationError
from penstock.runtime.serdes.serde import Serde

ORDER = """{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"},
  {"name": "lines", "type": {"type": "array", "items": {"type": "record", "name": "Line", "fields": [
    {"name": "text", "type": "string"}, {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}}]}}},
  {"name": "first", "type": ["null", "Line"]}]}"""


def order_class() -> type[Any]:
    """Return what `protoc` makes of `message Order { string id = 1; repeated Line lines = 2; }`, `message Line { string text = 1; }`."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{uuid4().hex}.proto", package="p" + uuid4().hex, syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    order = file.message_type.add(name="Order")
    order.field.add(name="id", number=1, type=kinds.TYPE_STRING, label=1)
    order.field.add(name="lines", number=2, type=kinds.TYPE_MESSAGE, type_name=f".{file.package}.Line", label=3)
    file.message_type.add(name="Line").field.add(name="text", number=1, type=kinds.TYPE_STRING, label=1)
    pool = descriptor_pool.Default()
    pool.Add(file)
    return cast("type[Any]", message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.Order")))


KIND = order_class()
AVRO: Serde[Any] = serdes.avro(f"mock://{uuid4()}", ORDER)
PROTOBUF: Serde[Any] = serdes.protobuf(f"mock://{uuid4()}", KIND)
A_LINE: dict[str, object] = {"text": "t", "kind": "B"}
IN_AVRO = cast(bytes, AVRO.serializer("orders")({"id": "ab", "lines": [A_LINE], "first": A_LINE}))
IN_PROTOBUF = cast(bytes, PROTOBUF.serializer("orders")(KIND(id="ab", lines=[{"text": "t"}])))
READ_AVRO, READ_PROTOBUF = AVRO.deserializer("orders"), PROTOBUF.deserializer("orders")


def place(serde: Serde[Any], data: bytes) -> tuple[str | None, int | None]:
    with pytest.raises(Exception) as caught:
        serde.deserializer("orders")(data)
    error = DeserializationError("unreadable", part="value", serde=serde.name)
    error.__cause__ = caught.value
    details = details_of(error, None, data)
    return details.field, details.byte


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"\7" + IN_AVRO[1:], (None, 0)),
        (IN_AVRO[:5], (None, 5)),
        (IN_AVRO[:7], ("$.id", 5)),
        (IN_AVRO.replace(b"ab", b"a\xff"), ("$.id", 7)),
        (IN_AVRO.replace(b"\2\2t\2", b"\2\2\xff\2", 1), ("$.lines[...].text", 10)),
        (IN_AVRO.replace(b"\2t\2", b"\2t\x08", 1), ("$.lines[...].kind", 11)),
        (IN_AVRO[:12], ("$.lines", 12)),
        (IN_AVRO[:-4] + b"\x08", ("$.first", 13)),
        (IN_AVRO[:-1] + b"\x08", ("$.first.kind", 16)),
    ],
)
def test_avro(data: bytes, found: object) -> None:
    assert place(AVRO, data) == found


def test_avro_that_the_readers_schema_alone_refuses_has_no_place() -> None:
    registry = f"mock://{uuid4()}"
    data = serdes.avro(registry, '"string"').serializer("orders")("ab")
    assert data is not None
    assert place(serdes.avro(registry, '"int"'), data) == (None, None)


@pytest.mark.parametrize(
    ("message", "found"),
    [
        (b"\x0a\x05ab", ("$.id", 7)),
        (b"\x0a\x02a\xff", ("$.id", 9)),
        (b"\x0a\x02ab\x12\x03\x0a\x01\xff", ("$.lines[...].text", 14)),
        (b"\x0a\x02ab\x12\x03\x0a\x09t", ("$.lines[...].text", 13)),
        (b"\x0a\x02ab\x0f", ("$.id", 10)),
        (b"\x0a\x02ab\x00", ("$", 10)),
        (b"\x0a\x02ab\x80", ("$", 10)),
    ],
)
def test_protobuf(message: bytes, found: object) -> None:
    assert place(PROTOBUF, IN_PROTOBUF[:6] + message) == found


@pytest.mark.parametrize(("data", "found"), [(b"\7" + IN_PROTOBUF[1:], (None, 0)), (IN_PROTOBUF[:3], (None, 3))])
def test_the_framing(data: bytes, found: object) -> None:
    assert place(PROTOBUF, data) == found


@given(st.binary(max_size=40), st.sampled_from([IN_AVRO, IN_PROTOBUF]), st.integers(0, 30))
def test_a_place_is_in_the_data_and_the_error_stays_the_librarys(noise: bytes, whole: bytes, at: int) -> None:
    data = whole[:5] + whole[5 : 5 + at] + noise
    for serde, read in ((AVRO, READ_AVRO), (PROTOBUF, READ_PROTOBUF)):
        try:
            read(data)
        except Exception as error:  # noqa: BLE001 (each library has its own)
            assert "unreadable" not in type(error).__module__
            details = details_of(DeserializationError("unreadable", part="value", serde=serde.name), None, data)
            assert details.byte is None
            wrapped = DeserializationError("unreadable", part="value", serde=serde.name)
            wrapped.__cause__ = error
            byte = details_of(wrapped, None, data).byte
            assert byte is None or 0 <= byte <= len(data)


def test_an_error_with_a_place_can_be_pickled() -> None:
    place = pickle.loads(pickle.dumps(Place(b"ab", 1, "$.id")))
    assert (place, place.data, place.byte, place.field) == ("unreadable at `$.id` (byte 1)", b"ab", 1, "$.id")
