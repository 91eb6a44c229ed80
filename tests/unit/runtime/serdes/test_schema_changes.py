"""Evolution of Avro and Protobuf schemas: what is accepted must be readable by the libraries that read it."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from typing import Any

import fastavro
import msgspec
import pytest
from google.protobuf import descriptor_pool, duration_pb2, message_factory, text_format, timestamp_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from hypothesis import given
from hypothesis import strategies as st

from penstock import serdes
from penstock.runtime.serdes.schema_changes import avro_changes, protobuf_changes
from penstock.runtime.serdes.serde_format import SerdeFormat, format_changes, format_removals, versions_changes

N: dict[str, object] = {"name": "n", "type": "int"}


def record(*fields: dict[str, object], **more: object) -> dict[str, object]:
    return {"type": "record", "name": "R", **more, "fields": list(fields)}


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
    (enum("A", "B"), enum("A"), "B", "may be B, which it no longer has as a symbol"),
    ({"type": "map", "values": "string"}, {"type": "map", "values": "int"}, {"k": "v"}, "field [] is string and is read as int"),
    ("bytes", "string", b"x", "the value is bytes and is read as string"),
    (
        {"type": "long", "logicalType": "timestamp-millis"},
        {"type": "long", "logicalType": "timestamp-micros"},
        0,
        "is timestamp-millis long and is read as timestamp-micros long",
    ),
]


def of_two_namespaces(billing: str) -> dict[str, object]:
    """Return a record of two types that have one name, each in its namespace; the first one's field has this type."""
    addresses = {
        "b": {"type": "record", "name": "Address", "namespace": "billing", "fields": [{"name": "number", "type": billing}]},
        "s": {"type": "record", "name": "Address", "namespace": "shipping", "fields": [{"name": "number", "type": "int"}]},
        "again": "billing.Address",
    }
    fields: list[dict[str, object]] = [{"name": name, "type": kind} for name, kind in addresses.items()]
    return record(*fields, namespace="orders")


ADDRESSES = {"b": {"number": 1}, "s": {"number": 1}, "again": {"number": 1}}
CASES += [
    (of_two_namespaces("int"), of_two_namespaces("long"), ADDRESSES, ""),
    (of_two_namespaces("int"), of_two_namespaces("string"), ADDRESSES, "field again.number is int and is read as string"),
]


MORE: dict[str, object] = {"name": "m", "type": "int", "default": 0}


def of_union(*members: object, more: tuple[dict[str, object], ...] = ()) -> dict[str, object]:
    return record({"name": "n", "type": list(members)}, *more)


def address(namespace: str, field: str) -> dict[str, object]:
    return {"type": "record", "name": "A", "namespace": namespace, "fields": [{"name": field, "type": "int", "default": 0}]}


CASES += [
    (of_union("bytes", "string"), of_union("bytes", "string", more=(MORE,)), {"n": "x"}, "field n is string and would be read as bytes"),
    (of_union("string", "bytes"), of_union("string", "bytes", more=(MORE,)), {"n": b"x"}, "field n is bytes and would be read as string"),
    (of_union("null", "string"), of_union("null", "string", "bytes"), {"n": "x"}, ""),
    (of_union("null", "string"), of_union("null", "bytes", "string"), {"n": "x"}, "field n is string and would be read as bytes"),
    (of_union("null", "string"), of_union("null", "bytes"), {"n": "x"}, "field n is string and is read as bytes"),
    (of_union("null", "long"), of_union("double", "long", "null"), {"n": 2**60 + 1}, "field n is long and would be read as double"),
    (of_union("null", "long"), of_union("long", "double", "null"), {"n": 2**60 + 1}, ""),
    (of_union("null", "int"), of_union("null", "double"), {"n": 1}, ""),
    (
        of_union(address("a", "x"), address("b", "y")),
        of_union(address("a", "x"), address("b", "y"), more=(MORE,)),
        {"n": ("b.A", {"y": 7})},
        "field n is b.A and would be read as a.A",
    ),
    (
        of_union({"type": "array", "items": "string"}, "null"),
        of_union({"type": "array", "items": "bytes"}, "null"),
        {"n": ["x"]},
        "field n[] is string and is read as bytes",
    ),
    # an alias that is another field's name, or that stands beside the field's own name
    (
        record({"name": "b", "type": "int"}),
        record({"name": "a", "type": "int", "aliases": ["b"]}, {"name": "b", "type": "int", "default": 0}),
        {"b": 1},
        "field a is new and has no default",
    ),
    (
        record({"name": "b", "type": "int"}, N),
        record({"name": "n", "type": "int", "aliases": ["b"]}),
        {"b": 1, "n": 2},
        "field n would be read from b and n",
    ),
    (
        {"type": "record", "name": "x.R", "fields": [N]},
        {"type": "record", "name": "y.S", "fields": [N], "aliases": ["z.R"]},
        {"n": 1},
        "the value is x.R and is read as y.S, of which it is not an alias",
    ),
    (
        {"type": "record", "name": "x.R", "fields": [N]},
        {"type": "record", "name": "y.S", "fields": [N], "aliases": ["x.R"]},
        {"n": 1},
        "",
    ),
]


@pytest.mark.parametrize(("written", "read", "value", "reported"), CASES, ids=lambda value: json.dumps(value, default=str)[:60])
def test_avro_schemas_are_compared_by_schema_resolution(written: Any, read: Any, value: object, reported: str) -> None:  # noqa: ANN401  # as fastavro has them
    found = avro_changes(json.dumps(written), json.dumps(read))
    assert [text for text in found if reported in text] if reported else found == []
    if not reported:
        data = io.BytesIO()
        fastavro.schemaless_writer(data, written, value)
        data.seek(0)
        fastavro.schemaless_reader(data, written, read)


MEMBERS: list[object] = [
    "null",
    "boolean",
    "int",
    "long",
    "double",
    "string",
    "bytes",
    {"type": "array", "items": "int"},
    {"type": "map", "values": "string"},
    address("a", "x"),
    {"type": "enum", "name": "E", "symbols": ["A"]},
]
VALUES = [None, True, 5, 2**60 + 1, 1.5, "x", b"x", [1], {"k": "x"}, ("a.A", {"x": 1}), "A"]
"""A value of each."""
unions = st.lists(st.sampled_from(range(len(MEMBERS))), unique=True, min_size=1)


@given(unions, unions, st.data())
def test_what_is_accepted_is_read_as_it_was_written(written: list[int], read: list[int], data: st.DataObject) -> None:
    """By fastavro, from any union with any other: a number may be wider, but not if its own type is there."""
    chosen = data.draw(st.sampled_from(written))
    schemas: list[Any] = [of_union(*(MEMBERS[each] for each in union)) for union in (written, [*read])]
    schemas[1]["fields"].append(MORE)
    if avro_changes(*map(json.dumps, schemas)):
        return
    text, value = io.BytesIO(), VALUES[chosen]
    branch = MEMBERS[chosen]
    fastavro.schemaless_writer(text, record({"name": "n", "type": branch}), {"n": value[1] if isinstance(value, tuple) else value})
    encoded = bytes([2 * written.index(chosen)]) + text.getvalue()  # the index of the member, and its value
    found = fastavro.schemaless_reader(io.BytesIO(encoded), schemas[0], schemas[1])
    assert isinstance(found, dict)
    expected = value[1] if isinstance(value, tuple) else value
    assert found["n"] == expected or (isinstance(expected, int) and found["n"] == float(expected))
    assert type(found["n"]) is type(expected) or (branch in ("int", "long") and branch not in [MEMBERS[each] for each in read])


def test_a_registry_serde_is_compared_by_its_schema() -> None:
    def serde(*fields: dict[str, object]) -> serdes.Serde[object]:
        return serdes.avro("mock://schemas", json.dumps(record(*fields)))

    assert format_changes(serde(N).format(), serde(N, {"name": "m", "type": "int", "default": 0}).format()) == []
    assert format_changes(serde(N).format(), serde(N, {"name": "m", "type": "int"}).format()) == [
        "field m is new and has no default: values that were written without it cannot be read"
    ]
    assert format_changes(serde(N).format(), serdes.LONG.format()) == ["were avro and are LONG now"]


RENAMED = (
    "field {} is gone and count of a type that fits is new: was it renamed? Its values would be lost. Give the new field the alias n, or, "
    "if it was not renamed, remove the field in one version and add the other in a later one"
)


def test_a_field_or_symbol_that_was_probably_renamed_is_refused_and_a_removed_field_is_reported() -> None:
    """By schema resolution the new name gets its default, and the value is lost without an error."""

    def changed(written: dict[str, object], read: dict[str, object]) -> list[str]:
        old, new = (serdes.avro("mock://schemas", json.dumps(each)).format() for each in (written, read))
        return versions_changes([old], new)

    renamed = {"name": "count", "type": "int", "default": 0}
    assert changed(record(N), record(renamed)) == [RENAMED.format("n")]
    assert changed(record(N), record({**renamed, "aliases": ["n"]})) == []
    inner: list[dict[str, object]] = [{"name": "in", "type": record(N)}, {"name": "in", "type": ["null", record(renamed)]}]
    assert changed(*(record(field, name="Outer") for field in inner)) == [RENAMED.format("in.n")]
    assert changed(enum("A", "B"), enum("A", "C", default="A")) == [
        "the value may be B, which is gone, and C is new: was it renamed? Its values would be read as A"
    ]
    assert changed(enum("A", "B"), enum("A", default="A")) == []
    maybe: dict[str, object] = {"name": "count", "type": ["null", "int"], "default": None}
    assert changed(record(N), record(maybe)) == [RENAMED.format("n")]
    for kind in ("long", "double", ["null", "double"]):  # renamed and widened at the same time
        default = None if isinstance(kind, list) else 0
        wider: dict[str, object] = {"name": "count", "type": kind, "default": default}
        assert changed(record(N), record(wider)) == [RENAMED.format("n")]
    narrow: dict[str, object] = {"name": "n", "type": ["null", "double"], "default": None}
    assert changed(record(narrow), record(renamed)) == [RENAMED.format("n")]
    assert changed(record(N), record({"name": "note", "type": "string", "default": ""})) == []
    both, one = (serdes.avro("mock://schemas", json.dumps(record(*fields))).format() for fields in ((N, renamed), (N,)))
    assert (format_removals(both, one), format_removals(one, both)) == (["count"], [])


def test_records_of_a_union_are_compared_with_their_namesakes_only() -> None:
    m: dict[str, object] = {"name": "m", "type": "int", "default": 0}

    def outer(*members: dict[str, object], more: tuple[dict[str, object], ...] = ()) -> SerdeFormat:
        schema = record({"name": "in", "type": ["null", *members]}, *more, name="Outer")
        return serdes.avro("mock://schemas", json.dumps(schema)).format()

    one, other = record(N, name="One"), record(m, name="Other")
    first, wider, removed = outer(one, other), outer(one, other, more=(m,)), outer(record(name="One"), other)
    assert (versions_changes([first], first), versions_changes([first], wider), versions_changes([first], removed)) == ([], [], [])
    assert (format_removals(first, wider), format_removals(first, removed)) == ([], ["in.n"])
    [renamed] = versions_changes([first], outer(record(m, name="One"), other))
    assert renamed.startswith("field in.n is gone and m of a type that fits is new")


def message(*fields: tuple[str, int, str], required: bool = False) -> str:
    file = FileDescriptorProto(name="f.proto", package="p")
    made = file.message_type.add(name="M")
    for name, number, kind in fields:
        label = FieldDescriptorProto.LABEL_REQUIRED if required and number > 1 else FieldDescriptorProto.LABEL_OPTIONAL
        made.field.add(name=name, number=number, type=FieldDescriptorProto.Type.Value(f"TYPE_{kind}"), label=label)
    return base64.b64encode(file.SerializeToString()).decode()


@pytest.mark.parametrize(
    ("read", "reported"),
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
def test_protobuf_is_compared_by_numbers_and_types(read: str, reported: list[str]) -> None:
    assert protobuf_changes(message(("n", 1, "INT32")), read, "p.M", "p.M") == reported


def proto(text: str, *imports: Any, syntax: str = "proto3") -> Any:  # noqa: ANN401  # protobuf's classes carry no types
    """Return the class of message M of a file descriptor in text format, in a pool of its own."""
    pool = descriptor_pool.DescriptorPool()
    for file in (timestamp_pb2, duration_pb2):
        pool.AddSerializedFile(file.DESCRIPTOR.serialized_pb)
    for imported in imports:
        pool.AddSerializedFile(imported.DESCRIPTOR.file.serialized_pb)
    file = text_format.Parse(text, FileDescriptorProto(name="f.proto", package="p", syntax=syntax))
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("p.M"))


def field(name: str, number: int, kind: str, more: str = "", label: str = "OPTIONAL") -> str:
    return f'field {{ name: "{name}" number: {number} type: TYPE_{kind} label: LABEL_{label} {more} }}'


def with_status(*values: str) -> Any:  # noqa: ANN401  # protobuf's classes carry no types
    numbered = "".join(f'value {{ name: "{value}" number: {number} }}' for number, value in enumerate(values))
    status = field("status", 1, "ENUM", 'type_name: ".p.Status"')
    return proto(f'message_type {{ name: "M" {status} }} enum_type {{ name: "Status" {numbered} }}')


def with_inner(*fields: str) -> Any:  # noqa: ANN401  # protobuf's classes carry no types
    inner, itself = field("in", 1, "MESSAGE", 'type_name: ".p.In"'), field("of", 9, "MESSAGE", 'type_name: ".p.In"')
    return proto(f'message_type {{ name: "M" {inner} }} message_type {{ name: "In" {" ".join(fields)} {itself} }}')


def test_a_field_that_is_removed_inside_a_message_is_reported() -> None:
    a, b = field("a", 1, "INT32"), field("b", 2, "INT32")
    both, one = (serdes.protobuf("mock://schemas", kind).format() for kind in (with_inner(a, b), with_inner(a)))
    assert format_changes(both, one) == []
    assert (format_removals(both, one), format_removals(one, both)) == (["in.b"], [])


def with_time(name: str) -> Any:  # noqa: ANN401  # protobuf's classes carry no types
    took = field("took", 1, "MESSAGE", f'type_name: ".google.protobuf.{name}"')
    return proto(f'dependency: "google/protobuf/{name.lower()}.proto" message_type {{ name: "M" {took} }}')


def with_default(value: str) -> Any:  # noqa: ANN401  # protobuf's classes carry no types
    return proto(f'message_type {{ name: "M" {field("n", 1, "INT32", value)} }}', syntax="proto2")


def with_label(label: str) -> Any:  # noqa: ANN401  # protobuf's classes carry no types
    return proto(f'message_type {{ name: "M" {field("n", 1, "INT32", label=label)} }}', syntax="proto2")


def with_two(more: str = "", oneof: str = "") -> Any:  # noqa: ANN401  # protobuf's classes carry no types
    return proto(f'message_type {{ name: "M" {field("a", 1, "INT32", more)} {field("b", 2, "INT32", more)} {oneof} }}')


OPTIONAL = "proto3_optional: true oneof_index: 0", 'oneof_decl { name: "_n" }'
ONE_OF = "oneof_index: 0", 'oneof_decl { name: "one" }'


def with_presence(more: Sequence[str]) -> Any:  # noqa: ANN401  # protobuf's classes carry no types
    of_field, of_message = more or ("", "")
    return proto(f'message_type {{ name: "M" {field("n", 1, "INT32", of_field)} {of_message} }}')


def with_features(of_file: str = "EXPLICIT", of_field: str = "") -> Any:  # noqa: ANN401  # protobuf's classes carry no types
    """Return a message of an edition, whose presence is a feature."""
    more = f"options {{ features {{ field_presence: {of_field} }} }}" if of_field else ""
    options = f"edition: EDITION_2023 options {{ features {{ field_presence: {of_file} }} }}"
    return proto(f'{options} message_type {{ name: "M" {field("n", 1, "INT32", more)} }}', syntax="editions")


def with_money(name: str) -> Any:  # noqa: ANN401  # protobuf's classes carry no types
    """Return a message with a field of an imported message, whose field has this name."""
    pool = descriptor_pool.DescriptorPool()
    imported = FileDescriptorProto(name="money.proto", package="m", syntax="proto3")
    pool.Add(text_format.Parse(f'message_type {{ name: "Money" {field(name, 1, "INT64")} }}', imported))
    price = field("price", 1, "MESSAGE", 'type_name: ".m.Money"')
    return proto(
        f'dependency: "money.proto" message_type {{ name: "M" {price} }}',
        message_factory.GetMessageClass(pool.FindMessageTypeByName("m.Money")),
    )


@pytest.mark.parametrize(
    ("written", "read", "reported"),
    [
        (with_status("OK", "BAD"), with_status("OK", "BAD", "LATE"), ""),
        (with_status("OK", "GOOD", "BAD"), with_status("OK", "BAD", "GOOD"), "field p.M.status has BAD for number 1, which was GOOD"),
        (with_status("OK", "BAD"), with_status("OK"), "field p.M.status may be BAD, number 1, which it no longer has as a value"),
        (
            with_time("Timestamp"),
            with_time("Duration"),
            "message google.protobuf.Timestamp is read as google.protobuf.Duration, and its fields are not known",
        ),
        (with_default(""), with_default('default_value: "0"'), ""),
        (with_default('default_value: "5"'), with_default('default_value: "7"'), "field p.M.n is 5 where it was not written"),
        (with_label("OPTIONAL"), with_label("REQUIRED"), "field p.M.n is required now, and may be missing in what was written"),
        (with_label("REQUIRED"), with_label("OPTIONAL"), ""),
        (with_two(), with_two("oneof_index: 0", 'oneof_decl { name: "one" }'), "fields a, b of p.M could be set together"),
        (with_two("oneof_index: 0", 'oneof_decl { name: "one" }'), with_two("oneof_index: 0", 'oneof_decl { name: "other" }'), ""),
        (with_presence(""), with_presence(OPTIONAL), "field p.M.n: zero is not written, and would be read as unset"),
        (with_presence(""), with_presence(ONE_OF), "field p.M.n: zero is not written, and would be read as unset"),
        (with_presence(OPTIONAL), with_presence(""), "field p.M.n: may be unset, and would be read as zero"),
        (with_presence(OPTIONAL), with_presence(ONE_OF), ""),
        (with_label("OPTIONAL"), with_presence(""), "field p.M.n: may be unset, and would be read as zero"),
        (with_label("OPTIONAL"), with_presence(OPTIONAL), ""),
        (with_label("REQUIRED"), with_presence(""), ""),
        (with_label("OPTIONAL"), with_features(), ""),
        (with_presence(""), with_features(), "field p.M.n: zero is not written, and would be read as unset"),
        (with_presence(""), with_features("IMPLICIT"), ""),
        (with_presence(""), with_features("IMPLICIT", "EXPLICIT"), "field p.M.n: zero is not written, and would be read as unset"),
        (with_money("cents"), with_money("euros"), "field m.Money.euros has number 1, which was m.Money.cents"),
    ],
)
def test_a_message_that_would_mean_another_thing_is_refused(written: Any, read: Any, reported: str) -> None:  # noqa: ANN401  # protobuf's classes carry no types
    old, new = (serdes.protobuf("mock://schemas", each).format() for each in (written, read))
    found = format_changes(old, new)
    assert [text for text in found if reported in text] if reported else found == []
    assert format_changes(old, old) == []


def test_a_message_whose_imports_are_not_recorded_is_compared_without_them() -> None:
    """As in records of earlier versions."""
    recorded = serdes.protobuf("mock://schemas", with_money("cents")).format()
    recorded = msgspec.structs.replace(recorded, parts=())
    assert format_changes(recorded, serdes.protobuf("mock://schemas", with_money("cents")).format()) == []
