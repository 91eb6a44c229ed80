"""Evolution of Avro and Protobuf schemas: what is accepted must be readable by the libraries that read it."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import fastavro
import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

from penstock import serdes
from penstock.runtime.serdes.schema_changes import avro_changes, protobuf_changes
from penstock.runtime.serdes.serde_format import format_changes

N: dict[str, object] = {"name": "n", "type": "int"}


def record(*fields: dict[str, object], **more: object) -> dict[str, object]:
    return {"type": "record", "name": "R", "fields": list(fields), **more}


def enum(*symbols: str, **more: object) -> dict[str, object]:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **more}


CASES: list[tuple[object, object, object, str]] = [
    (record(N), record(N), {"n": 1}, ""),
    (record(N), record(N, {"name": "m", "type": "string", "default": "x"}), {"n": 1}, ""),
    (record(N), record({"name": "n", "type": "long"}), {"n": 1}, ""),
    (record(N), record({"name": "n", "type": "double"}), {"n": 1}, ""),
    (record(N), record({"name": "n", "type": ["null", "int"]}), {"n": 1}, ""),
    (record(N, {"name": "m", "type": "int"}), record(N), {"n": 1, "m": 2}, ""),
    (record(N), record({"name": "k", "type": "int", "aliases": ["n"]}), {"n": 1}, ""),
    (enum("A"), enum("A", "B"), "A", ""),
    (enum("A", "B"), enum("A", default="A"), "B", ""),
    ({"type": "array", "items": "int"}, {"type": "array", "items": "long"}, [1], ""),
    (record(N), record(N, {"name": "m", "type": "string"}), {"n": 1}, "field m is new and has no default"),
    (record({"name": "n", "type": "long"}), record(N), {"n": 2**40}, "field n is long and is read as int"),
    (record(N), record({"name": "n", "type": "string"}), {"n": 1}, "field n is int and is read as string"),
    (record({"name": "n", "type": ["null", "int"]}), record(N), {"n": None}, "field n is null and is read as int"),
    (enum("A", "B"), enum("A"), "B", "may be B, which is no symbol of it any more"),
    ({"type": "map", "values": "string"}, {"type": "map", "values": "int"}, {"k": "v"}, "field [] is string and is read as int"),
    ("bytes", "string", b"x", "the value is bytes and is read as string"),
    (
        {"type": "long", "logicalType": "timestamp-millis"},
        {"type": "long", "logicalType": "timestamp-micros"},
        0,
        "is timestamp-millis long and is read as timestamp-micros long",
    ),
]


@pytest.mark.parametrize(("written", "read", "value", "told"), CASES, ids=lambda value: json.dumps(value, default=str)[:60])
def test_avro_schemas_are_compared_by_schema_resolution(written: Any, read: Any, value: object, told: str) -> None:  # noqa: ANN401  # as fastavro has them
    found = avro_changes(json.dumps(written), json.dumps(read))
    assert [text for text in found if told in text] if told else found == []
    if not told:
        data = io.BytesIO()
        fastavro.schemaless_writer(data, written, value)
        data.seek(0)
        fastavro.schemaless_reader(data, written, read)


def test_a_registry_serde_is_compared_by_its_schema() -> None:
    def serde(*fields: dict[str, object]) -> serdes.Serde[object]:
        return serdes.avro("mock://schemas", json.dumps(record(*fields)))

    assert format_changes(serde(N).format(), serde(N, {"name": "m", "type": "int", "default": 0}).format()) == []
    assert format_changes(serde(N).format(), serde(N, {"name": "m", "type": "int"}).format()) == [
        "field m is new and has no default: values that were written without it cannot be read"
    ]
    assert format_changes(serde(N).format(), serdes.LONG.format()) == ["were avro and are LONG now"]


def message(*fields: tuple[str, int, str], required: bool = False) -> str:
    file = FileDescriptorProto(name="f.proto", package="p")
    made = file.message_type.add(name="M")
    for name, number, kind in fields:
        label = FieldDescriptorProto.LABEL_REQUIRED if required and number > 1 else FieldDescriptorProto.LABEL_OPTIONAL
        made.field.add(name=name, number=number, type=FieldDescriptorProto.Type.Value(f"TYPE_{kind}"), label=label)
    return base64.b64encode(file.SerializeToString()).decode()


@pytest.mark.parametrize(
    ("read", "told"),
    [
        (message(("n", 1, "INT32"), ("m", 2, "STRING")), []),
        (message(("n", 1, "INT64")), []),
        (message(), []),
        (message(("n", 1, "STRING")), ["field p.M.n is int32 and is read as string"]),
        (message(("n", 1, "SINT32")), ["field p.M.n is int32 and is read as sint32"]),
        (message(("k", 1, "INT32")), ["field p.M.k has number 1, which was p.M.n"]),
        (message(("n", 2, "INT32")), ["field p.M.n had number 1 and has 2 now"]),
        (
            message(("n", 1, "INT32"), ("m", 2, "STRING"), required=True),
            ["field p.M.m is new and required: values that were written without it cannot be read"],
        ),
    ],
)
def test_protobuf_is_compared_by_numbers_and_types(read: str, told: list[str]) -> None:
    assert protobuf_changes(message(("n", 1, "INT32")), read, "p.M", "p.M") == told
