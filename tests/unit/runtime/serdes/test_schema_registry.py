"""Serdes with schemas in a registry: Confluent's in-memory one (`mock://`), in the test driver; errors of an unavailable registry."""

from __future__ import annotations

import struct
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from datetime import time as datetime_time
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, TypedDict
from uuid import UUID, uuid4

import msgspec
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from penstock import Consumed, Materialized, Produced, StreamsBuilder, serdes
from penstock.runtime.input.deserialization import Decoder
from penstock.runtime.model.errors import SchemaRegistryUnavailableError, StreamsConfigError
from penstock.runtime.serdes.serde import Serde
from penstock.testing import TopologyTestDriver
from tests.support.raw_messages import Raw

FLIGHT = '{"type": "record", "name": "Flight", "fields": [{"name": "origin", "type": "string"}, {"name": "delay", "type": "double"}]}'
LATER = """{"type": "record", "name": "Flight", "fields": [{"name": "origin", "type": "string"}, {"name": "delay", "type": "double"},
  {"name": "gate", "type": "string", "default": "unknown"}]}"""


@dataclass
class Flight:
    origin: str
    delay: float


class FlightStruct(msgspec.Struct, frozen=True):
    origin: str
    delay: float


class FlightDict(TypedDict):
    origin: str
    delay: float


@dataclass
class Later:
    number: int
    later: bytes


def mock() -> str:
    """A registry of the test's own."""
    return f"mock://{uuid4()}"


def message_class() -> type[Any]:
    """The module that `protoc` would generate for `message Flight { string origin = 1; double delay = 2; }`."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{uuid4().hex}.proto", package="p" + uuid4().hex, syntax="proto3")
    message = file.message_type.add(name="Flight")
    for number, (name, kind) in enumerate((("origin", "TYPE_STRING"), ("delay", "TYPE_DOUBLE")), 1):
        message.field.add(name=name, number=number, type=getattr(descriptor_pb2.FieldDescriptorProto, kind), label=1)
    pool = descriptor_pool.Default()
    pool.Add(file)
    found: type[Any] = message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.Flight"))
    return found


@pytest.mark.parametrize(
    ("make", "value"),
    [
        (lambda registry: serdes.avro(registry, FLIGHT), {"origin": "EWR", "delay": 2.5}),
        (lambda registry: serdes.avro(registry, FLIGHT, kind=Flight), Flight("EWR", 2.5)),
        (lambda registry: serdes.avro(registry, FLIGHT, kind=FlightStruct), FlightStruct("EWR", 2.5)),
        (lambda registry: serdes.avro(registry, FLIGHT, kind=FlightDict), FlightDict(origin="EWR", delay=2.5)),
        (lambda registry: serdes.avro(registry, '"string"'), "EWR"),
        (lambda registry: serdes.json_schema(registry, kind=Flight), Flight("EWR", 2.5)),
        (lambda registry: serdes.json_schema(registry, '{"type": "object", "title": "Any"}'), {"n": 1}),
    ],
)
def test_values_round_trip_and_begin_with_the_schema_id(make: Callable[[str], Serde], value: object) -> None:
    serde = make(mock())
    data = serde.serializer("flights")(value)
    assert data is not None and struct.unpack(">bi", data[:5])[0] == 0
    assert serde.deserializer("flights")(data) == value


def test_protobuf_messages() -> None:
    kind = message_class()
    serde = serdes.protobuf(mock(), kind)
    flight = kind(origin="EWR", delay=2.5)
    data = serde.serializer("flights")(flight)
    assert data is not None
    assert serde.deserializer("flights")(data) == flight


def test_keys_and_values_have_their_own_subjects_under_the_topics_name() -> None:
    from confluent_kafka.schema_registry import SchemaRegistryClient

    client = SchemaRegistryClient.new_client({"url": mock()})
    serdes.avro(client, '"string"', is_key=True).serializer("flights")("EWR")
    serdes.avro(client, FLIGHT).serializer("flights")({"origin": "EWR", "delay": 1.0})
    assert sorted(client.get_subjects()) == ["flights-key", "flights-value"]


def test_records_of_an_older_schema_are_read_with_the_readers_schema() -> None:
    registry = mock()
    data = serdes.avro(registry, FLIGHT).serializer("flights")({"origin": "EWR", "delay": 1.0})
    assert data is not None
    assert serdes.avro(registry, LATER).deserializer("flights")(data) == {"origin": "EWR", "delay": 1.0, "gate": "unknown"}
    assert serdes.avro(registry).deserializer("flights")(data) == {"origin": "EWR", "delay": 1.0}


def with_default(kind: object, default: object) -> str:
    fields = [{"name": "number", "type": "int"}, {"name": "later", "type": kind, "default": default}]
    return msgspec.json.encode({"type": "record", "name": "Row", "fields": fields}).decode()


ROW = '{"type": "record", "name": "Row", "fields": [{"name": "number", "type": "int"}]}'
DAY = {"type": "int", "logicalType": "date"}
PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
CENTS = {"type": "fixed", "name": "Cents", "size": 2, "logicalType": "decimal", "precision": 4, "scale": 2}
INNER = [{"name": "raw", "type": "bytes", "default": "abcd"}, {"name": "day", "type": DAY}]


@pytest.mark.parametrize(
    ("kind", "default", "value"),
    [
        ("bytes", "\xffAB\1", b"\xffAB\1"),
        ({"type": "fixed", "name": "Four", "size": 4}, "abcd", b"abcd"),
        (DAY, 20_000, date(2024, 10, 4)),
        ({"type": "long", "logicalType": "timestamp-millis"}, 1_700_000_000_123, datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC)),
        ({"type": "int", "logicalType": "time-millis"}, 1_000, datetime_time(0, 0, 1)),
        (PRICE, "\1\0", Decimal("2.56")),
        (CENTS, "\1\0", Decimal("2.56")),
        ({"type": "string", "logicalType": "uuid"}, "6d7d5a2e-1111-4222-8333-444455556666", UUID("6d7d5a2e-1111-4222-8333-444455556666")),
        ("double", 1, 1.0),
        (["bytes", "null"], "abcd", b"abcd"),
        (["null", "bytes"], None, None),
        (["null", DAY], 20_000, date(2024, 10, 4)),
        ({"type": "record", "name": "Inner", "fields": INNER}, {"day": 1}, {"raw": b"abcd", "day": date(1970, 1, 2)}),
        ({"type": "array", "items": "bytes"}, ["abcd"], [b"abcd"]),
        ({"type": "map", "values": PRICE}, {"k": "\1\0"}, {"k": Decimal("2.56")}),
        ({"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]}, "BLUE", "BLUE"),
    ],
)
def test_the_default_of_a_new_field_is_read_as_the_value_that_it_means(kind: object, default: object, value: object) -> None:
    registry = mock()
    reader = serdes.avro(registry, with_default(kind, default))
    data = serdes.avro(registry, ROW).serializer("rows")({"number": 1})
    assert data is not None
    read = reader.deserializer("rows")(data)
    assert read == {"number": 1, "later": value} and type(read["later"]) is type(value)
    assert reader.deserializer("rows")(reader.serializer("rows")(read) or b"") == read, "written, it is the same value"
    outer = f'{{"type": "array", "items": {with_default(kind, default)}}}'
    several = serdes.avro(registry, f'{{"type": "array", "items": {ROW}}}').serializer("several")([{"number": 1}] * 2)
    assert serdes.avro(registry, outer).deserializer("several")(several or b"") == [read, read]


def test_a_default_is_converted_to_the_kind_and_not_read_as_base64() -> None:
    registry = mock()
    data = serdes.avro(registry, ROW).serializer("rows")({"number": 1})
    assert serdes.avro(registry, with_default("bytes", "abcd"), kind=Later).deserializer("rows")(data or b"") == Later(1, b"abcd")


def test_records_do_not_share_the_list_of_a_default() -> None:
    registry = mock()
    data = serdes.avro(registry, ROW).serializer("rows")({"number": 1})
    read = serdes.avro(registry, with_default({"type": "array", "items": "long"}, [])).deserializer("rows")
    read(data or b"")["later"].append(5)
    assert read(data or b"") == {"number": 1, "later": []}


def test_serdes_of_one_registry_in_a_topology_with_a_store() -> None:
    registry = mock()
    flight = serdes.avro(registry, FLIGHT, kind=FlightStruct)
    builder = StreamsBuilder()
    latest = builder.table("flights", Consumed(serdes.STRING, value=flight), Materialized("latest"))
    latest.to_stream().map_values(lambda flight: flight.delay * 2).to(
        "twice", Produced(serdes.STRING, value=serdes.avro(registry, '"double"'))
    )
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("flights", serdes.STRING, flight).pipe_input("UA1", FlightStruct("EWR", 2.5))
        doubled = driver.create_output_topic("twice", serdes.STRING, serdes.avro(registry))
        assert doubled.read_key_values_to_list() == [("UA1", 5.0)]
        assert driver.get_key_value_store("latest").get("UA1") == FlightStruct("EWR", 2.5)


AWAY = {"url": "http://127.0.0.1:9", "max.retries": 0}
"""Nothing listens on the port for discarding."""


def test_an_unavailable_registry_is_no_error_of_the_record() -> None:
    with pytest.raises(SchemaRegistryUnavailableError, match="does not answer a request about topic flights"):
        serdes.avro(AWAY, FLIGHT).serializer("flights")({"origin": "EWR", "delay": 1.0})
    decoder = Decoder("flights", serdes.STRING, serdes.avro(AWAY))
    with pytest.raises(SchemaRegistryUnavailableError):
        decoder.decode([Raw(0, b"k", b"\x00\x00\x00\x00\x01rest")], -1)


@pytest.mark.parametrize(
    "registry",
    [
        "me:s3cr3t@registry",
        {"url": "registry/?token=s3cr3t"},
        {"url": "http://registry", "basic.auth.user.info": ["me:s3cr3t"]},
        {"url": ["me:s3cr3t@registry"]},
        {"url": "http://registry", "pasword": "s3cr3t"},
    ],
)
def test_settings_that_cannot_be_used_are_refused_without_their_secrets(registry: str | dict[str, object]) -> None:
    with pytest.raises(StreamsConfigError, match="the settings of the Schema Registry cannot be used: ") as caught:
        serdes.avro(registry, FLIGHT).serializer("flights")
    assert "s3cr3t" not in "".join(traceback.format_exception(caught.value))


def test_bytes_without_a_schema_are_an_error_of_the_record() -> None:
    decoder = Decoder("flights", serdes.STRING, serdes.avro(mock(), FLIGHT))
    batch, failure = decoder.decode([Raw(0, b"k", b"\x07no schema's id")], -1)
    assert failure is not None and not batch.timestamps


@pytest.mark.parametrize(("status", "away"), [(401, True), (429, True), (503, True), (404, False), (409, False)])
def test_an_http_error_that_concerns_the_client_counts_as_unavailable(monkeypatch: pytest.MonkeyPatch, status: int, away: bool) -> None:
    from confluent_kafka.schema_registry import SchemaRegistryClient, SchemaRegistryError

    client = SchemaRegistryClient.new_client({"url": mock()})

    def refuse(*_arguments: object, **_options: object) -> SimpleNamespace:
        raise SchemaRegistryError(status, status * 100, "no")

    monkeypatch.setattr(client, "register_schema_full_response", refuse)
    with pytest.raises(SchemaRegistryUnavailableError if away else SchemaRegistryError):
        serdes.avro(client, '"string"').serializer("flights")("EWR")
