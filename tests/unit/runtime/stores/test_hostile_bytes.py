"""Malformed bytes in the columns of tables: a row fits if the program's own serde can read it, and no row affects its neighbours. Tested
for each serde, row by row, against the serde itself."""

from __future__ import annotations

import enum
import json
import struct
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, TypedDict, cast

import msgspec
import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from google.protobuf.message import Message
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from penstock import serdes
from penstock.assets.spark.types.ddl import shape_of_ddl
from penstock.assets.spark.types.formats import Decoder
from penstock.assets.spark.types.inference import infer
from penstock.assets.spark.types.json_schema import shape_of
from penstock.assets.spark.types.serde_formats import Format, format_of, json_format
from penstock.runtime.model.record import Change, SessionWindow, Window, Windowed
from penstock.runtime.serdes.internal import ChangedSerde, JoinKey, JoinKeySerde, JoinValuesSerde
from penstock.runtime.serdes.serde import Serde
from penstock.runtime.stores.base import StoreLayout, StoreSchemas
from penstock.runtime.stores.buffer import BufferValue, Origin
from penstock.runtime.stores.rows import StoreRows, changelog_rows, entry_rows
from tests.support import examples

FRAGMENTS = [
    b"", b"{", b"}", b"[", b"]", b",", b":", b"null", b"1", b"-", b"1.0", b"2.5", b"1e999", b"NaN", b"Infinity", b"-0", b"01", b'"',
    b'"a"', b'"n"', b'{"n":2', b'"total":2.0}', b'{"n":2}', b'{"n":2,"n":3}', b"{},{}", b"1,2", b"\xef\xbb\xbf", b"\xff", b"\xed\xa0\x80",
    b'"\\ud800"', b'"\\ud83d', b"\\ude00", b"9223372036854775808", b"123456789012345678901234567890", b" ", b"\n", b"\x00", b"\x01",
    b"[" * 60, b"]" * 60, b"true", b'"2020-01-01T00:00:00"', b'"2020-01-01T00:00:00Z"', b'{"type":"A","x":1}', b'{"x":1}', b"/*x*/",
]  # fmt: skip
"""Fragments of broken JSON. Two adjacent rows may form one valid value when they are joined."""


class A(msgspec.Struct, tag=True):
    x: int
    inner: dict[str, int] = {}


class B(msgspec.Struct, tag=True):
    y: Literal["a", "b"]


class Row(msgspec.Struct, array_like=True):
    x: int
    y: str = "y"


class FirstRow(msgspec.Struct, array_like=True, tag="first"):
    x: int
    more: list[int] = []


class SecondRow(msgspec.Struct, array_like=True, tag="second"):
    x: str


class Nothing(msgspec.Struct, forbid_unknown_fields=True):
    """A class without fields."""


class TaggedNothing(msgspec.Struct, forbid_unknown_fields=True, tag=True):
    """A class without fields beside its tag."""


class Rights(enum.Flag):
    READ = 1
    WRITE = 4


class Pair(NamedTuple):
    x: int
    y: str


class Colour(enum.Enum):
    RED = "red"


class Part(TypedDict, total=False):
    n: Annotated[int, msgspec.Meta(ge=0)]


class Total(msgspec.Struct, forbid_unknown_fields=True):
    n: int
    total: float = 0.0


@dataclass
class Everything:
    n: Annotated[int, msgspec.Meta(ge=-5, multiple_of=1)]
    at: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    local: Annotated[datetime, msgspec.Meta(tz=False)] | None = None
    clock: Annotated[time, msgspec.Meta(tz=False)] | None = None
    blob: Annotated[bytes, msgspec.Meta(min_length=2, max_length=4)] = b"xx"
    either: int | str = 0
    moment: datetime | int = 0
    member: A | B | None = None
    one: A | int = 1
    row: Row | None = None
    pair: Pair | None = None
    mixed: tuple[int, str] = (1, "a")
    plain: dict[str, Any] | None = None
    items: list[Any] | None = None
    bare: dict[int, Any] | None = None
    by_day: dict[date, int] | None = None
    by_id: dict[uuid.UUID, list[int]] | None = None
    by_colour: dict[Colour, int] | None = None
    by_word: dict[Literal["a"], int] | None = None
    by_code: dict[Annotated[str, msgspec.Meta(pattern="^[a-z]+$")], int] | None = None
    few: Annotated[dict[str, int], msgspec.Meta(max_length=1)] | None = None
    some: Literal["a", 1] | None = None
    part: Part | None = None
    deep: list[A | B] | None = None
    span: timedelta | None = None
    price: Decimal | None = None


EVERYTHING = [
    {"n": 1}, {"n": -6}, {"at": "2020-01-01T00:00:00Z"}, {"at": "2020-01-01T00:00:00"}, {"local": "2020-01-01T00:00:00Z"},
    {"local": "2020-01-01T00:00:00"}, {"clock": "12:00:00Z"}, {"clock": "12:00:00"}, {"blob": "eHg="}, {"blob": "eA=="},
    {"blob": "eHh4eHg="}, {"blob": "!"}, {"either": "a"}, {"either": 1.5}, {"either": [1]}, {"either": None}, {"moment": "2020"},
    {"moment": "2020-01-01T00:00:00Z"}, {"moment": 5}, {"member": {"type": "A", "x": 1}}, {"member": {"x": 1}}, {"member": {"type": "C"}},
    {"member": {"type": "B", "y": "c"}}, {"member": {"type": "B", "y": "a"}}, {"member": {"type": "A", "x": 1, "inner": {"a": "b"}}},
    {"one": {"x": 1}}, {"one": {"type": "B", "x": 1}}, {"one": {}}, {"row": [1]}, {"row": []}, {"row": [1, "a", 2]}, {"row": ["a"]},
    {"pair": [1]}, {"pair": [1, "a"]}, {"pair": [1, "a", 2]}, {"mixed": [1, 2]}, {"mixed": [1, "a"]}, {"plain": [1]}, {"plain": {"a": 1}},
    {"items": {}}, {"items": [1, "a"]}, {"bare": {"1": 1}}, {"bare": {"01": 1}}, {"bare": {"1\n": 1}}, {"bare": {"a": 1}},
    {"by_day": {"2020-01-01": 1}}, {"by_day": {"x": 1}}, {"by_id": {str(uuid.UUID(int=1)): [1]}}, {"by_id": {"x": [1]}},
    {"by_colour": {"red": 1}}, {"by_colour": {"blue": 1}}, {"by_word": {"a": 1}}, {"by_word": {"b": 1}}, {"by_code": {"a": 1}},
    {"by_code": {"A": 1}}, {"few": {"a": 1}}, {"few": {"a": 1, "b": 2}}, {"some": 1}, {"some": 2}, {"some": "a"}, {"some": None},
    {"part": {"n": 1}}, {"part": {"n": -1}}, {"deep": [{"type": "A", "x": 1}]}, {"deep": [{"type": "A"}]}, {"deep": [{"x": 1}]},
    {"span": "PT1H"}, {"span": "x"}, {"price": "1.5"}, {"price": 1}, {"price": True},
]  # fmt: skip
"""Fields beside `n`, including types that Spark does not have, each with a valid and an invalid value."""

Read = Callable[[bytes], object]


def cells(form: Format, rows: Sequence[bytes]) -> tuple[list[object], dict[int, str]]:
    decoded = form.decode(pa.array(rows, pa.binary()))
    return decoded.column.to_pylist(), decoded.wrong


def readable(read: Read, row: bytes) -> bool:
    try:
        read(row)
    except Exception:  # noqa: BLE001  # any error of a serde means that it cannot read the bytes
        return False
    return True


def hostile(good: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """Return valid values, and truncated and extended ones."""
    some = st.sampled_from(list(good))
    cut = st.tuples(some, st.integers(0, 40)).map(lambda found: found[0][: found[1]])
    more = st.tuples(some, st.binary(min_size=1, max_size=4) | st.sampled_from(FRAGMENTS)).map(b"".join)
    before = st.tuples(st.sampled_from(FRAGMENTS), some).map(b"".join)
    two = st.tuples(some, some).map(b"".join)
    changed = st.tuples(some, st.integers(0, 80), st.integers(0, 255)).map(
        lambda found: found[0][: found[1]] + bytes([found[2]]) + found[0][found[1] + 1 :]
    )
    return (
        some | cut | more | before | two | changed | st.binary(max_size=20) | st.lists(st.sampled_from(FRAGMENTS), max_size=4).map(b"".join)
    )


def hold(form: Format, read: Read, rows: Sequence[bytes], *, has_place: Callable[[bytes], bool] = lambda row: True) -> None:
    """Compare a column with the program's own reader. `has_place`: whether a Spark type can hold the value."""
    found, wrong = cells(form, rows)
    expected = [place for place, row in enumerate(rows) if not (readable(read, row) and has_place(row))]
    assert list(wrong) == expected, [rows[place] for place in set(wrong) ^ set(expected)]
    for place, row in enumerate(rows):
        alone, wrong_alone = cells(form, [row])
        assert same(alone[0], found[place]) and bool(wrong_alone) == (place in wrong)


def same(one: object, other: object) -> bool:
    return one == other or repr(one) == repr(other)  # also for NaN


def of_serde(serde: Serde[Any]) -> Format:
    return format_of(serde.name, serde.schema, serde.schema_with_writers(["topic"]))


def written(serde: Serde[Any], *values: object) -> list[bytes]:
    write = serde.serializer("topic")
    return [write(value) or b"" for value in values]


AT = Window(1_577_836_800_000, 1_577_836_800_010)
PLAIN: Mapping[str, tuple[Serde[Any], list[bytes]]] = {
    serde.name: (serde, written(serde, *values))
    for serde, values in cast("list[tuple[Serde[Any], list[object]]]", [
        (serdes.STRING, ["", "a", "ä€😀"]), (serdes.BYTES, [b"", b"\xff"]), (serdes.BOOLEAN, [True, False]), (serdes.SHORT, [1]),
        (serdes.INTEGER, [1]), (serdes.LONG, [1, -1]), (serdes.FLOAT, [1.5]), (serdes.DOUBLE, [1.5, float("inf")]),
        (serdes.UUID, [uuid.UUID(int=2**100)]), (serdes.NULL, []), (serdes.list_of(serdes.LONG), [[1, None, 2], []]),
        (serdes.list_of(serdes.UUID), [[uuid.UUID(int=1)]]), (serdes.list_of(serdes.STRING), [["a", None], []]),
        (serdes.list_of(serdes.BOOLEAN), [[True, None]]), (serdes.list_of(serdes.list_of(serdes.SHORT)), [[[1], []]]),
        (serdes.nullable(serdes.LONG), [5]), (serdes.list_of(serdes.nullable(serdes.LONG)), [[1, None]]),
        (serdes.list_of(serdes.json(dict[str, int])), [[{"a": 1}]]),
        (serdes.time_windowed(serdes.STRING, 10), [Windowed("a", AT)]), (serdes.time_windowed(serdes.LONG, 10), [Windowed(1, AT)]),
        (serdes.session_windowed(serdes.STRING), [Windowed("a", SessionWindow(*AT))]),
        (JoinKeySerde(serdes.STRING), [JoinKey(AT.start, True, "a")]),
        (serdes.time_windowed(serdes.json(Total), 10), [Windowed(Total(1), AT)]),
    ])
}  # fmt: skip


def in_range(serde: Serde[Any]) -> Callable[[bytes], bool]:
    """Spark's timestamps are in the years 1 to 9999."""

    def times(row: bytes) -> bool:
        found = serde.deserializer("topic")(row)
        moments = list(found.window) if isinstance(found, Windowed) else [found.timestamp] if isinstance(found, JoinKey) else []
        if serde.name.startswith("time_windowed"):
            moments = moments[:1]  # the end is not part of the bytes
        return all(-62_135_596_800_000 <= moment <= 253_402_300_799_999 for moment in moments)

    return times


@pytest.mark.parametrize("name", PLAIN)
@settings(max_examples=examples(25), deadline=None)
@given(data=st.data())
def test_a_value_fits_exactly_if_the_serde_reads_it(name: str, data: st.DataObject) -> None:
    serde, good = PLAIN[name]
    uuids = [b"00000000-0000-0000-0000-00000000000A", b"{00000000000000000000000000000001}", b"urn:uuid:" + str(uuid.UUID(int=1)).encode()]
    rows = data.draw(st.lists(hostile([*good, *uuids, bytes(8), bytes(16)]), min_size=1, max_size=6))
    hold(of_serde(serde), serde.deserializer("topic"), rows, has_place=in_range(serde))


def test_every_notation_of_a_uuid_is_accepted() -> None:
    rows = [b"0000000000000000000000000000000a", b"{0000000A-0000-0000-0000-000000000000}", b"0000000A-0000-0000-0000-000000000000"]
    assert cells(of_serde(serdes.UUID), rows) == ([str(uuid.UUID(row.decode())) for row in rows], {})


# --- JSON ---------------------------------------------------------------------------------------------------------------------------

GOOD_JSON = [b'{"n":1}', b'{"n":2,"total":2.0}', b"{}", b"[1]", b"1", b'"a"', b"null", b'{"a":{"b":[1,null]}}', b'{"type":"B","y":"a"}']
JSON_KINDS: list[Any] = [
    Total, dict[str, int], dict[int, int], list[int], list[A | B], A | B, A | B | None, A | int, int, str, float, bool, int | str,
    int | None, list[int | str], dict[str, Any], dict, list, tuple[int, str], Row, Pair, Part, datetime, Colour, Decimal, Any,
    Literal["a", 1], dict[str, list[dict[str, float]]], date | int, Everything, FirstRow | SecondRow, list[FirstRow | SecondRow | None],
    Nothing, TaggedNothing | A, dict[int | float, int], dict[Decimal | int, int], Literal[None],
]  # fmt: skip


def fits_64_bits(row: bytes) -> bool:
    """A BIGINT has 64 bits, a DECIMAL(38,18) its digits; all other values of these tests have a Spark type."""

    def small(value: object) -> bool:
        if isinstance(value, dict):
            return all(map(small, value.values()))
        if isinstance(value, list):
            return all(map(small, value))
        return not isinstance(value, int) or -(2**63) <= value < 2**63

    return small(msgspec.json.decode(row))


@pytest.mark.parametrize("kind", JSON_KINDS, ids=str)
@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(data=st.data())
def test_a_value_fits_a_json_type_exactly_if_the_program_reads_it(kind: type[object], data: st.DataObject) -> None:
    serde = serdes.json(kind)
    read = serde.deserializer("topic")
    rows = data.draw(st.lists(hostile(GOOD_JSON), min_size=1, max_size=6))
    found, wrong = cells(of_serde(serde), rows)
    for place, row in enumerate(rows):
        if place not in wrong:
            assert readable(read, row), row
        elif readable(read, row):
            assert kind is Decimal or not fits_64_bits(row), (row, wrong[place])
        alone, wrong_alone = cells(of_serde(serde), [row])
        assert same(alone[0], found[place]) and bool(wrong_alone) == (place in wrong)


@pytest.mark.parametrize("fields", EVERYTHING, ids=json.dumps)
@pytest.mark.parametrize("wanted", ["value", "value.n"])
def test_each_field_fits_if_the_program_reads_it(fields: dict[str, object], wanted: str) -> None:
    """Also fields of types that Spark does not have, and fields whose columns were not requested."""
    serde = serdes.json(Everything)
    row = json.dumps({"n": 1, **fields}).encode()
    layout, schemas = StoreLayout("key_value", False, "LONG", serde.name), StoreSchemas(None, serde.schema)
    decoder = Decoder.of(layout, schemas, columns=[wanted, "_malformed"])
    (cell,) = decoder.batch(0, StoreRows(pa.array([bytes(8)], pa.binary()), pa.array([row], pa.binary()))).to_pylist()
    assert (cell["_malformed"] is None) == readable(serde.deserializer("topic"), row), cell


OF_TYPES: list[tuple[Any, bytes, object]] = [
    (FirstRow | SecondRow, b'["first",1]', '["first",1]'), (FirstRow | SecondRow, b'["second",1]', None),
    (FirstRow | SecondRow, b'["third",1]', None), (FirstRow | SecondRow, b"5", None), (Nothing, b"{}", "{}"), (Nothing, b'{"x":1}', None),
    (dict[int | float, int], b'{"1":2}', [("1", 2)]), (dict[int | float, int], b'{"a":2}', None), (Literal[None], b"5", None),
    (Rights, b"0", 0), (Rights, b"5", 5), (Rights, b"2", None), (Rights, b"8", None),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "row", "cell"), OF_TYPES, ids=str)
def test_types_that_json_schema_describes_in_part(kind: type[object], row: bytes, cell: object) -> None:
    """A cell that is None is one of a malformed row: the program refuses the value too."""
    serde = serdes.json(kind)
    found, wrong = cells(of_serde(serde), [row])
    assert found == [cell] and bool(wrong) == (cell is None)
    assert readable(serde.deserializer("topic"), row) == (cell is not None)


def test_two_broken_rows_never_make_two_good_ones() -> None:
    """Joined with a comma, they are `[{"n":2,"total":2.0}, …]`, under the wrong keys."""
    form = of_serde(serdes.json(Total))
    rows = [b'{"n":2', b'"total":2.0}', b'{"n":3},{"n":4}', b'{"n":5}', b"", b'{"n":6', b'},{"n":7}']
    found, wrong = cells(form, rows)
    assert list(wrong) == [0, 1, 2, 4, 5, 6]
    assert [None if cell is None else cast("dict[str, object]", cell)["n"] for cell in found] == [None, None, None, 5, None, None, None]
    schema = infer([pa.array([b'{"n":2', b'"total":2.0}', b'{"m":1}'], pa.binary())])
    assert schema is not None and shape_of(schema)[0].spark.simpleString() == "struct<m:bigint>"


@settings(max_examples=examples(80), deadline=None)
@given(st.lists(hostile(GOOD_JSON), min_size=1, max_size=8))
@example([b'"\xff"', b"[" * 5_000, b'{"a":1e999}', b'{"\xed\xa0\x80":1}'])
def test_json_without_a_type_fits_if_it_is_json(rows: list[bytes]) -> None:
    schema = infer([pa.array(rows, pa.binary())])
    form = format_of("JSON", schema)
    hold(form, serdes.JSON.deserializer("topic"), rows)
    hold(format_of("JSON"), serdes.JSON.deserializer("topic"), rows)


def test_keys_that_are_text_fit_their_type() -> None:
    serde = serdes.json(dict[str, int])
    layout = StoreLayout("key_value", False, serde.name, "LONG")
    keys = [b'{"a":1}', b"null", b'{"a":"b"}', b"1", b'{"a"']
    rows = StoreRows(pa.array(keys, pa.binary()), pa.array([bytes(8)] * len(keys), pa.binary()))
    batch = Decoder.of(layout, StoreSchemas(serde.schema)).batch(0, rows).to_pylist()
    assert [row["key"] for row in batch] == ['{"a":1}', None, None, None, None]


# --- a Schema Registry's ------------------------------------------------------------------------------------------------------------

AVRO = json.dumps(
    {
        "type": "record",
        "name": "Flight",
        "fields": [
            {"name": "number", "type": "int"},
            {"name": "delay", "type": ["null", "double"]},
            {"name": "name", "type": "string"},
            {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "tags", "type": {"type": "map", "values": {"type": "array", "items": "long"}}},
            {"name": "colour", "type": {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]}},
        ],
    }
)
SCHEMA = """{"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "not": {"const": 7}}, "s": {"type": "string"}},
  "required": ["n"], "if": {"properties": {"n": {"const": 1}}}, "then": {"required": ["s"]}, "minProperties": 1}"""


def own_message() -> type[Message]:
    file = descriptor_pb2.FileDescriptorProto(name="hostile.proto", syntax="proto3", package="hostile")
    own = file.message_type.add(name="Own")
    own.field.add(name="name", number=1, type=9, label=1)
    own.field.add(name="numbers", number=2, type=3, label=3)
    own.nested_type.add(name="Inner").field.add(name="n", number=1, type=1, label=1)
    file.message_type.add(name="Other")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found: type[Message] = message_factory.GetMessageClass(pool.FindMessageTypeByName("hostile.Own"))
    return found


@settings(max_examples=examples(50), deadline=None)
@given(st.data())
def test_avro_fits_exactly_if_the_serde_reads_it(data: st.DataObject) -> None:
    serde: Serde[Any] = serdes.avro("mock://hostile", AVRO)
    flight = {
        "number": 1, "delay": 2.5, "name": "a", "price": Decimal("1.25"), "at": datetime(2026, 1, 1, tzinfo=UTC), "tags": {"a": [1]},
        "colour": "RED",
    }  # fmt: skip
    good = written(serde, flight, {**flight, "delay": None, "tags": {}})
    rows = data.draw(st.lists(hostile(good), min_size=1, max_size=5))
    form, read = of_serde(serde), serde.deserializer("topic")
    found, wrong = cells(form, rows)
    for place, row in enumerate(rows):
        if place in wrong:
            continue
        assert readable(read, row), row
        assert same(cells(form, [row])[0][0], found[place])


def test_avro_that_the_program_converts_to_a_type_fits_that_type() -> None:
    schema = json.dumps(record("Top", n="long", s=["null", "string"], day={"type": "int", "logicalType": "date"}))
    registry = SchemaRegistryClient.new_client({"url": f"mock://{uuid.uuid4()}"})
    day = date(2026, 1, 1)
    rows = written(serdes.avro(registry, schema), *({"n": n, "s": s, "day": day} for n, s in ((5, "a"), (6, "a"), (5, None))))
    serde: Serde[Any] = serdes.avro(registry, schema, kind=Narrow)
    hold(of_serde(serde), serde.deserializer("topic"), rows)
    assert cells(of_serde(serde), rows)[0] == [{"n": 5, "s": "a", "day": day}, None, None]


def record(name: str, **fields: object) -> dict[str, object]:
    return {"type": "record", "name": name, "fields": [{"name": field, "type": kind} for field, kind in fields.items()]}


def test_an_avro_type_is_known_by_its_name_and_namespace() -> None:
    """By the short name alone, `later` would be read as the second class: its text would be missing, without a word."""
    kind = record("Top", one=record("a.X", p="int", q="string"), two=record("b.X", p="int"), later="a.X")
    serde: Serde[Any] = serdes.avro(f"mock://{uuid.uuid4()}", json.dumps(kind))
    value = {"one": {"p": 1, "q": "x"}, "two": {"p": 2}, "later": {"p": 3, "q": "y"}}
    rows = written(serde, value)
    assert cells(of_serde(serde), rows) == ([serde.deserializer("topic")(rows[0])], {}) == ([value], {})


def test_an_avro_logical_type_on_another_type_is_ignored_as_the_serde_ignores_it() -> None:
    price = {"type": "fixed", "name": "Price", "size": 4, "logicalType": "decimal", "precision": 9, "scale": 2}
    text, number = {"type": "string", "logicalType": "date"}, {"type": "int", "logicalType": "timestamp-millis"}
    serde: Serde[Any] = serdes.avro(
        f"mock://{uuid.uuid4()}", json.dumps(record("Top", text=text, number=number, price=price, other="Price"))
    )
    value = {"text": "ab", "number": 5, "price": Decimal("1.25"), "other": Decimal("2.5")}
    rows = written(serde, value)
    assert cells(of_serde(serde), rows) == ([value], {})


def test_an_error_of_the_avro_reader_is_one_of_its_row() -> None:
    """A decimal without a precision can be written and never be read: KeyError."""
    kind = record("Top", amount={"type": "bytes", "logicalType": "decimal"})
    serde: Serde[Any] = serdes.avro(f"mock://{uuid.uuid4()}", json.dumps(kind))
    rows = written(serde, {"amount": b"x"})
    assert not readable(serde.deserializer("topic"), rows[0])
    assert list(cells(of_serde(serde), rows)[1]) == [0]


def test_nan_and_infinities_in_the_text_of_an_avro_union_are_not_null() -> None:
    kind = record("Top", either=["null", "string", "double", {"type": "array", "items": "double"}])
    serde: Serde[Any] = serdes.avro(f"mock://{uuid.uuid4()}", json.dumps(kind))
    values = [float("nan"), float("-inf"), [1.5, float("inf")], None]
    texts = ["NaN", "-Infinity", '[1.5,"Infinity"]', None]
    rows = written(serde, *({"either": each} for each in values))
    assert cells(of_serde(serde), rows) == ([{"either": each} for each in texts], {})


NUMBERS = """{"type": "object", "properties": {"n": {"type": "number"}, "tenths": {"type": "number", "multipleOf": 0.1}, "any": {}},
  "patternProperties": {"^x": {}}, "additionalProperties": false}"""


@pytest.mark.parametrize(
    ("row", "cell"),
    [
        (b'{"n":NaN}', {"n": float("nan"), "tenths": None, "any": None}),
        (b'{"tenths":1.1}', {"n": None, "tenths": 1.1, "any": None}),
        (b'{"x1":5}', {"n": None, "tenths": None, "any": None}),
        (b'{"y1":5}', None),
        (b'\xef\xbb\xbf{"n":1}', {"n": 1.0, "tenths": None, "any": None}),
        ('{"any":[1, "ä"]}'.encode("utf-16"), {"n": None, "tenths": None, "any": '[1,"ä"]'}),
        (b'{"any":[1, 1e999]}', {"n": None, "tenths": None, "any": '[1,"Infinity"]'}),
        (b'{"any":[1, 2]}', {"n": None, "tenths": None, "any": "[1, 2]"}),
        (b'{"any":"\\ud800"}', None),  # Spark cannot hold it
        (b'{"n":9007199254740993}', None),  # nor this integer in a DOUBLE
    ],
    ids=repr,
)
def test_json_of_a_registry_is_read_as_the_serde_parses_it(row: bytes, cell: object) -> None:
    """Confluent's deserializer parses by `json`, which reads more than msgspec, and validates by jsonschema."""
    serde: Serde[Any] = serdes.json_schema("mock://parsed", NUMBERS)
    data = written(serde, {})[0][:5] + row
    found, wrong = cells(of_serde(serde), [written(serde, {})[0], data])
    assert same(found[1], cell) and list(wrong) == ([1] if cell is None else [])
    assert readable(serde.deserializer("topic"), data) == (cell is not None or b"y1" not in row)


def unknown(rows: Sequence[bytes]) -> list[bytes]:
    """Return the rows with the id of a schema that the registry does not have."""
    return [row[:1] + b"\x00\x00\x01\x00" + row[5:] for row in rows]


@settings(max_examples=examples(50), deadline=None)
@given(st.data())
def test_json_fits_a_registry_schema_exactly_if_the_serde_reads_it(data: st.DataObject) -> None:
    serde: Serde[Any] = serdes.json_schema("mock://hostile", SCHEMA)
    good = written(serde, {"n": 2}, {"n": 1, "s": "a"})
    head = good[0][:5]
    texts = [b'{"n":7}', b'{"n":1}', b'{"n":-1}', b"{}", b'{"n":2,"s":3}', b'{"n":NaN}', b'{"n":1.0,"s":"x"}', b'{"n":2e3}', b'{"n":1e30}']
    others = [head + each for each in texts]
    rows = data.draw(st.lists(hostile([*good, *others, *unknown(good)]), min_size=1, max_size=5))
    hold(of_serde(serde), serde.deserializer("topic"), rows, has_place=small_and_whole)
    found, wrong = cells(of_serde(serde), [*good, *others, *unknown(good)])
    assert list(wrong) == [2, 3, 4, 5, 6, 7, 10, 11, 12]
    assert found[8:10] == [{"n": 1, "s": "x"}, {"n": 2000, "s": None}]  # also 1.0 is an integer


def small_and_whole(row: bytes) -> bool:
    """A BIGINT has 64 bits, and Spark's text no halves of surrogate pairs."""
    found = json.loads(row[5:])
    if isinstance(found, dict):
        try:
            json.dumps(found, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            return False
    return not isinstance(found, dict) or not isinstance(found.get("n"), int | float) or -(2**63) <= found["n"] < 2**63


class Kept(msgspec.Struct):
    n: int
    at: datetime | None = None
    counts: dict[str, Annotated[int, msgspec.Meta(ge=0)]] = {}
    either: int | str = "none"


class Narrow(msgspec.Struct):
    n: Annotated[int, msgspec.Meta(le=5)]
    s: str


ANY_OBJECT = '{"type":"object","properties":{"n":{"type":"number"},"s":{"type":["string","null"]},"later":{"type":"integer","default":5}}}'
OF_KINDS: list[tuple[str | None, type[object] | None, list[bytes], list[object]]] = [
    (None, Kept, [
        b'{"n":1}', b'{"n":1.0}', b'{"n":1,"at":"2026-01-01T00:00:00Z"}', b'{"n":1,"at":"yesterday"}', b'{"n":1,"counts":{"a":-1}}',
        b'{"n":1,"either":1.0}', b'{"n":1,"either":2}', b'{"n":123456789012345678901}',
    ], [
        {"n": 1, "at": None, "counts": [], "either": "none"}, None,
        {"n": 1, "at": datetime(2026, 1, 1, tzinfo=UTC), "counts": [], "either": "none"}, None, None, None,
        {"n": 1, "at": None, "counts": [], "either": "2"}, None,
    ]),
    (ANY_OBJECT, Narrow, [b'{"n":5,"s":"a"}', b'{"n":6,"s":"a"}', b'{"n":5}', b'{"n":5.5,"s":"a"}', b'{"n":5,"s":null}', b'{"n":5,"s":1}'],
     [{"n": 5, "s": "a"}, *[None] * 5]),
    (ANY_OBJECT, None, [b'{"n":5.5}', b'{"s":null,"later":1.0}', b'{"later":1.5}', b'{"later":1e30}'],
     [{"n": 5.5, "s": None, "later": None}, {"n": None, "s": None, "later": 1}, None, None]),
    ('{"enum":[1,"a",null]}', None, [b"1", b"1.0", b'"a"', b"null", b"true", b"2"], ["1", "1.0", "a", None, None, None]),
    ('{"enum":[1,2]}', None, [b"1", b"2.0", b"true", b"3"], [1, 2, None, None]),
    ('{"anyOf":[{"type":"integer"},{"type":"string"}]}', None, [b"1", b"1.0", b'"a"', b"1.5", b"[]", b"9223372036854775808"],
     ["1", "1.0", "a", None, None, "9223372036854775808"]),
    ('{"$ref":"https://127.0.0.1:1/other.json"}', None, [b"1"], [None]),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "kind", "texts", "wanted"), OF_KINDS, ids=lambda each: str(each)[:40])
@settings(max_examples=examples(15), deadline=None)
@given(data=st.data())
def test_json_of_a_registry_fits_its_schema_and_its_type_exactly_if_the_serde_reads_it(
    schema: str | None, kind: type[object] | None, texts: list[bytes], wanted: list[object], data: st.DataObject
) -> None:
    registry = SchemaRegistryClient.new_client({"url": f"mock://{uuid.uuid4()}"})
    number = registry.register_schema("topic-value", Schema(schema or "{}", "JSON"))
    good = [b"\x00" + number.to_bytes(4, "big") + each for each in texts]
    serde: Serde[Any] = serdes.json_schema(registry, schema, kind=kind)
    read, form = serde.deserializer("topic"), of_serde(serde)
    found, wrong = cells(form, good)
    assert found == wanted
    for place, row in enumerate(good):
        assert (place in wrong) == (not readable(read, row) or b"1e30" in row or b"123456789012345678901" in row), row
    rows = data.draw(st.lists(hostile([*good, *unknown(good)]), min_size=1, max_size=5))
    # A large number has a place in a column of text and none in one of numbers: `texts` has one for each.
    hold(form, read, [row for row in rows if not readable(read, row) or has_no_large_number(row)])


def has_no_large_number(row: bytes) -> bool:
    def small(value: object) -> bool:
        if isinstance(value, dict):
            return all(map(small, value.values()))
        if isinstance(value, str):
            return not any("\ud800" <= each <= "\udfff" for each in value)
        return all(map(small, value)) if isinstance(value, list) else not isinstance(value, int | float) or abs(value) <= 2**53

    return small(json.loads(row[5:]))


@settings(max_examples=examples(50), deadline=None)
@given(st.data())
def test_protobuf_fits_exactly_if_the_serde_reads_it(data: st.DataObject) -> None:
    kind = own_message()
    serde: Serde[Any] = serdes.protobuf("mock://hostile", kind)
    good = written(serde, kind(name="a", numbers=[1, 2]), kind())
    rows = data.draw(st.lists(hostile([*good, *unknown(good)]), min_size=1, max_size=5))
    form, read = of_serde(serde), serde.deserializer("topic")
    found, wrong = cells(form, rows)
    hold(form, read, rows)
    for place, row in enumerate(rows):
        assert found[place] == (None if place in wrong else row)


def test_protobuf_with_imports_is_read_with_the_imported_files() -> None:
    base = descriptor_pb2.FileDescriptorProto(name="users/base.proto", package="users", syntax="proto3")
    base.message_type.add(name="Base").field.add(name="n", number=1, type=3, label=1)
    file = descriptor_pb2.FileDescriptorProto(name="users/own.proto", package="users", syntax="proto3")
    file.dependency.extend(["google/protobuf/timestamp.proto", "users/base.proto"])
    own = file.message_type.add(name="Own")
    own.field.add(name="at", number=1, type=11, label=1, type_name=".google.protobuf.Timestamp")
    own.field.add(name="base", number=2, type=11, label=1, type_name=".users.Base")
    pool = descriptor_pool.DescriptorPool()
    for each in (timestamp_pb2.DESCRIPTOR.serialized_pb, base.SerializeToString(), file.SerializeToString()):
        pool.AddSerializedFile(each)
    kind: type[Any] = message_factory.GetMessageClass(pool.FindMessageTypeByName("users.Own"))
    serde: Serde[Any] = serdes.protobuf(f"mock://{uuid.uuid4()}", kind)
    (good,) = written(serde, kind(at={"seconds": 5}, base={"n": 3}))
    rows = [good, good[:-1], good[:5] + b"\x02\x02" + good[6:], good[:5], good[:5] + b"\x80\x00" + good[6:]]
    form = of_serde(serde)
    hold(form, serde.deserializer("topic"), [*rows, *unknown([good])])
    assert list(cells(form, [*rows, *unknown([good])])[1]) == [1, 2, 3, 5]
    schema = serde.schema_with_writers(["topic"])
    assert schema is not None
    (why,) = cells(format_of("protobuf", None, msgspec.structs.replace(schema, imports={})), [good])[1].values()
    assert why.startswith("a file that users/own.proto imports is not recorded")


# --- entries of stores --------------------------------------------------------------------------------------------------------------


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(st.tuples(st.binary(max_size=24), st.binary(max_size=12)), max_size=8), st.sampled_from(["window", "session", "versioned"]))
def test_entries_that_are_too_short_are_separated_and_shift_no_other(
    entries: list[tuple[bytes, bytes]], kind: Literal["window", "session", "versioned"]
) -> None:
    layout = StoreLayout(kind, kind != "session", "BYTES", "BYTES", window_size_ms=10, retention_ms=100)
    rows = entry_rows(layout, entries)
    least_key = {"window": 12, "session": 16, "versioned": 16}[kind]
    least_value = {"window": 8, "session": 0, "versioned": 1}[kind]
    whole = [each for each in entries if len(each[0]) >= least_key and len(each[1]) >= least_value]
    if kind == "versioned":  # 0: a deletion, which is no row
        broken = len(entries) - len(whole) + sum(value[0] > 1 for _, value in whole)
        whole = [each for each in whole if each[1][0] == 1]
    else:
        broken = len(entries) - len(whole)
    assert rows.keys.to_pylist() == [key[:-least_key] for key, _ in whole]
    assert rows.values.to_pylist() == [value[least_value:] for _, value in whole]
    assert (0 if rows.broken is None else len(rows.broken.reasons)) == broken
    starts = rows.valid_from if kind == "versioned" else rows.window_starts
    at = -12 if kind == "window" else -8
    assert starts is not None
    assert starts.to_pylist() == [struct.unpack(">q", key[at : at + 8 or None])[0] for key, _ in whole]


@settings(max_examples=examples(50), deadline=None)
@given(st.data())
def test_a_buffered_change_is_complete_or_separated(data: st.DataObject) -> None:
    good = BufferValue(b"p", b"o", b"new", 5, Origin("topic", 1, 2, [("h", b"v")]), 7).to_bytes()
    rows = data.draw(st.lists(hostile([good]), min_size=1, max_size=5))
    layout = StoreLayout("buffer", False, "BYTES", "BYTES")
    found = changelog_rows(layout, pa.array(rows, pa.binary()), pa.array(rows, pa.binary()), pa.array([0] * len(rows), pa.int64()))
    whole = [row for row in rows if readable(BufferValue.from_bytes, row)]
    assert found.keys.to_pylist() == whole
    assert found.values.to_pylist() == [BufferValue.from_bytes(row).new for row in whole]
    for row in whole:
        assert len(BufferValue.from_bytes(row).to_bytes()) == len(row), row


@settings(max_examples=examples(50), deadline=None)
@given(st.data())
def test_serdes_of_joins_and_changes_read_no_further_than_the_bytes(data: st.DataObject) -> None:
    cases: list[tuple[Serde[Any], object]] = [
        (JoinValuesSerde(serdes.BYTES, serdes.BYTES), ((True, b"ab"), (False, b""))),
        (ChangedSerde(serdes.BYTES), Change(b"new", b"old")),
    ]
    for serde, value in cases:
        (good,) = written(serde, value)
        read, write = serde.deserializer("topic"), serde.serializer("topic")
        row = data.draw(hostile([good]))
        if readable(read, row) and row[-1:] in (b"\x00", b"\x01", b"\x02"):
            assert len(write(read(row)) or b"") <= len(row)


def test_a_format_of_values_in_ddl_reads_row_by_row() -> None:
    form = json_format(shape_of_ddl("n BIGINT, total DOUBLE"), True)
    assert list(cells(form, [b'{"n":2', b'"total":2.0}', b"{},{}", b"{}"])[1]) == [0, 1, 2]
