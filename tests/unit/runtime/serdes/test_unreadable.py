"""Field and byte of data of a Schema Registry's serdes that cannot be read."""

from __future__ import annotations

import pickle
from io import BytesIO
from typing import Any, cast
from uuid import uuid4

import msgspec
import pytest
from confluent_kafka.schema_registry import Rule, RuleKind, RuleMode, RuleSet, Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.rule_registry import RuleRegistry
from confluent_kafka.schema_registry.serde import RuleExecutor, SchemaId
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
REGISTRY = f"mock://{uuid4()}"
AVRO: Serde[Any] = serdes.avro(REGISTRY, ORDER)
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


ENUM_AND_TEXT = """{{"type": "record", "name": "R", "fields": [{}
  {{"name": "kept", "type": {{"type": "enum", "name": "Kept", "symbols": ["A", "B"]}}}}, {{"name": "text", "type": "string"}}]}}"""
ALL_FIELDS = ENUM_AND_TEXT.format("""{"name": "skipped", "type": {"type": "enum", "name": "Skipped", "symbols": ["A", "B"]}},
  {"name": "old", "type": "string"},""")


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b"\x08\x02o\x08\x02t", ("$.kept", 8)),
        (b"\x00\x02\xff\x08\x02t", ("$.kept", 8)),
        (b"\x08\x02o\x00\x02\xff", ("$.text", 10)),
        (b"\x08\x02\xff\x00\x08t", ("$.text", 9)),
        (b"\x08\x02\xff\x00", ("$.text", 9)),
        (b"\x08\x02\xff", ("$.kept", 8)),
    ],
)
def test_a_field_that_the_reader_skips_is_never_named_in_place_of_the_one_that_failed(body: bytes, found: object) -> None:
    registry = f"mock://{uuid4()}"
    data = serdes.avro(registry, ALL_FIELDS).serializer("orders")({"skipped": "A", "old": "o", "kept": "A", "text": "t"})
    assert data is not None
    assert place(serdes.avro(registry, ENUM_AND_TEXT.format("")), data[:5] + body) == found


def test_avro_that_refers_to_other_schemas() -> None:
    registry = SchemaRegistryClient.new_client({"url": f"mock://{uuid4()}"})
    line = """{"type": "record", "name": "Line", "fields": [{"name": "text", "type": "string"}, {"name": "unit", "type": "Unit"}]}"""
    registry.register_schema("unit", Schema("""{"type": "enum", "name": "Unit", "symbols": ["M"]}""", "AVRO"))
    registry.register_schema("line", Schema(line, "AVRO", [SchemaReference("Unit", "unit", 1)]))
    order = """{"type": "record", "name": "Order", "fields": [{"name": "line", "type": "Line"}]}"""
    registered = registry.register_schema("orders-value", Schema(order, "AVRO", [SchemaReference("Line", "line", 1)]))
    framing = b"\0" + registered.to_bytes(4, "big")
    serde: Serde[Any] = serdes.avro(registry)
    assert serde.deserializer("orders")(framing + b"\2t\0") == {"line": {"text": "t", "unit": "M"}}
    assert place(serde, framing + b"\2\xff\0") == ("$.line.text", 6)
    assert place(serde, framing + b"\2t\2") == ("$.line.unit", 7)


@pytest.mark.parametrize("phase", ["encoding", "domain"])
def test_rules_of_the_registry(phase: str) -> None:
    """A value that a rule decodes first is not in the bytes; one that a rule refuses later can be read."""

    class Bracketed(RuleExecutor):
        def type(self) -> str:
            return "BRACKETED"

        def transform(self, ctx: object, message: BytesIO) -> bytes:
            if phase == "domain":
                raise ValueError("refused")
            return message.read()[1:-1]

    name = f"rule-{uuid4()}"
    rule = Rule(name, None, RuleKind.TRANSFORM, RuleMode.READ, "BRACKETED", None, None, None, None, None, False)
    rules = RuleSet(None, [rule] if phase == "domain" else None, [rule] if phase == "encoding" else None)
    registry = SchemaRegistryClient.new_client({"url": f"mock://{uuid4()}"})
    registered = registry.register_schema("orders-value", Schema(ORDER, "AVRO", rule_set=rules))
    executors = cast(RuleRegistry, RuleRegistry.get_global_instance())  # type: ignore[no-untyped-call]
    executors.register_rule_executor(Bracketed())
    data = b"\0" + registered.to_bytes(4, "big") + (IN_AVRO[5:] if phase == "domain" else b"\2\4a!")
    settings = {"subject.name.strategy.type": "TOPIC", "use.latest.version": True}
    for config in (None, settings):
        assert place(serdes.avro(registry, deserializer_config=config), data) == (None, None)


def after_a_mark(data: bytes, context: object, schema_id: SchemaId) -> BytesIO:
    return schema_id.from_bytes(BytesIO(data[4:])) if data[:4] == b"mark" else BytesIO(data[1:])


def reversed_bytes(data: bytes, context: object, schema_id: SchemaId) -> BytesIO:
    return schema_id.from_bytes(BytesIO(data[::-1]))


def test_an_own_deserializer_of_schema_ids() -> None:
    unreadable = IN_AVRO.replace(b"ab", b"a\xff")
    for registry, kind in ((REGISTRY, None), (REGISTRY, str)):
        serde: Serde[Any] = serdes.avro(registry, ORDER, kind=kind, deserializer_config={"schema.id.deserializer": after_a_mark})
        assert place(serde, b"mark" + unreadable) == ("$.id", 11)
        assert place(serde, b"nothing of ours") == (None, None)
    backwards: Serde[Any] = serdes.avro(REGISTRY, ORDER, deserializer_config={"schema.id.deserializer": reversed_bytes})
    assert place(backwards, unreadable[::-1]) == ("$.id", None)


class Line(msgspec.Struct):
    text: int
    kind: str


class Order(msgspec.Struct):
    id: str
    lines: list[Line]
    first: Line | None


def test_a_value_of_avro_that_is_not_of_the_kind() -> None:
    assert place(serdes.avro(REGISTRY, ORDER, kind=Order), IN_AVRO) == ("$.lines[0].text", None)
    first = cast(bytes, AVRO.serializer("orders")({"id": "ab", "lines": [], "first": A_LINE}))
    assert place(serdes.avro(REGISTRY, ORDER, kind=Order), first) == ("$.first.text", 10)


IN_JSON_SCHEMA = """{"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}, "inner": {"$ref": "#/$defs/Inner"},
  "list": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "integer"}}}}, "properties": {"type": "integer"},
  "one": {"anyOf": [{"type": "object", "properties": {"n": {"type": "integer"}}}, {"type": "null"}]}},
  "patternProperties": {"^p": {"properties": {"id": {"type": "integer"}}}}, "additionalProperties": false,
  "dependentSchemas": {"inner": {"properties": {"list": {"maxItems": 1}}}},
  "$defs": {"Inner": {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"}}}}"""


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b'{"id": 1}', ("$.id", 12)),
        (b'{"id": "\xc3\xa9", "inner": {"a": "x"}}', ("$.inner.a", 33)),
        (b'{"id": "i", "inner": {"SECRET": 1}}', ("$.inner[...]", 37)),
        (b'{"id": "i", "list": [{}, {"n": 1}, {"n": "x"}]}', ("$.list[...].n", 46)),
        (b'{"id": "i", "properties": "x"}', ("$.properties", 31)),
        (b'{"id": "i", "one": {"n": "x"}}', ("$.one", 24)),
        (b'{"id": "i", "p-SECRET": {"id": "x"}}', ("$[...].id", 36)),
        (b'{"id": "i", "inner": {}, "list": [{}, {}]}', ("$.list", 38)),
        (b' {"inner": {}}', ("$.id", 6)),
        (b'{"id": "i", "SECRET": 1}', ("$", 5)),
        (b'{"id": "i", "id": 1}', ("$.id", None)),
        (b'{"id": }', (None, 12)),
        (b'{"id": "\xff"}', (None, 13)),
        (b"", (None, 5)),
        (b"[]", ("$", 5)),
    ],
)
def test_json_schema(body: bytes, found: object) -> None:
    registry = f"mock://{uuid4()}"
    serde: Serde[Any] = serdes.json_schema(registry, IN_JSON_SCHEMA)
    framing = cast(bytes, serde.serializer("orders")({"id": "i"}))[:5]
    assert place(serde, framing + body) == found


def test_json_that_is_not_of_the_kind() -> None:
    registry = f"mock://{uuid4()}"
    serde = serdes.json_schema(registry, '{"type": "object"}', kind=Line)
    framing = cast(bytes, serdes.json_schema(registry, '{"type": "object"}').serializer("orders")({}))[:5]
    assert place(serde, framing + b'{"text": "x", "kind": "k"}') == ("$.text", 14)
    assert place(serde, framing + b'{"text": 1}') == ("$.kind", 5)
    order = serdes.json_schema(registry, '{"type": "object"}', kind=Order)
    assert place(order, framing + b'{"id": "i", "lines": [{"text": 1, "kind": "k"}, {"text": "x"}]}') == ("$.lines[1].text", 62)


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
