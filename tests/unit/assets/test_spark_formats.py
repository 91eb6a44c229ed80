"""Serdes' bytes as typed columns: the values that were written are read, and bytes that do not fit are malformed."""

from __future__ import annotations

import enum
import json
import struct
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql import types as T

from penstock import serdes
from penstock.assets.spark.types.ddl import shape_of_ddl
from penstock.assets.spark.types.formats import Decoder, row_schema
from penstock.assets.spark.types.inference import infer
from penstock.assets.spark.types.json_schema import shape_of
from penstock.assets.spark.types.serde_formats import BINARY, Format, format_of, json_format
from penstock.runtime.model.record import SessionWindow, Window, Windowed
from penstock.runtime.serdes.internal import JoinKey, JoinKeySerde
from penstock.runtime.serdes.serde import RegistrySchema, Serde
from penstock.runtime.stores.base import StoreLayout, StoreSchemas
from penstock.runtime.stores.rows import StoreRows
from tests.support import examples


def column(form: Format, values: Sequence[bytes | None]) -> list[object]:
    """The cells, all of which must fit."""
    decoded = form.decode(pa.array(values, pa.binary()))
    assert decoded.wrong == {}
    assert decoded.column.type == form.arrow
    found: list[object] = decoded.column.to_pylist(maps_as_pydicts="strict")
    return found


def of_serde(serde: Serde[Any]) -> Format:
    return format_of(serde.name, serde.schema, serde.schema_with_writers(["topic", "flights"]))


def round_trip(serde: Serde[Any], values: Sequence[object]) -> list[object]:
    write = serde.serializer("topic")
    return column(of_serde(serde), [None if value is None else write(value) for value in values])


LONGS = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@settings(max_examples=examples(25), deadline=None)
@given(st.data())
def test_values_come_out_as_they_went_in(data: st.DataObject) -> None:
    cases: list[tuple[Serde[Any], st.SearchStrategy[Any], Callable[[Any], object]]] = [
        (serdes.STRING, TEXT, lambda value: value),
        (serdes.LONG, LONGS, lambda value: value),
        (serdes.INTEGER, st.integers(-(2**31), 2**31 - 1), lambda value: value),
        (serdes.SHORT, st.integers(-(2**15), 2**15 - 1), lambda value: value),
        (serdes.DOUBLE, st.floats(allow_nan=False), lambda value: value),
        (serdes.FLOAT, st.floats(allow_nan=False, width=32), lambda value: value),
        (serdes.BOOLEAN, st.booleans(), lambda value: value),
        (serdes.UUID, st.uuids(), str),
        (serdes.BYTES, st.binary(), lambda value: value),
        (serdes.list_of(serdes.LONG), st.lists(LONGS | st.none()), lambda value: value),
        (serdes.list_of(serdes.UUID), st.lists(st.uuids()), lambda value: [str(each) for each in value]),
        (serdes.list_of(serdes.nullable(serdes.STRING)), st.lists(TEXT | st.none()), lambda value: value),
        (serdes.list_of(serdes.list_of(serdes.BOOLEAN)), st.lists(st.lists(st.booleans())), lambda value: value),
    ]
    serde, strategy, shown = data.draw(st.sampled_from(cases))
    values = data.draw(st.lists(strategy | st.none()))
    assert round_trip(serde, values) == [None if value is None else shown(value) for value in values]


def test_a_part_of_a_column_reads_as_the_whole() -> None:
    numbers = pa.array([n.to_bytes(8, "big") for n in range(10)], pa.binary())
    assert of_serde(serdes.LONG).decode(numbers[3:7]).column.to_pylist() == [3, 4, 5, 6]
    assert of_serde(serdes.LONG).decode(numbers[:0]).column.to_pylist() == []


@pytest.mark.parametrize(
    ("serde", "bad", "reason"),
    [
        (serdes.LONG, b"123", r"b'123' is not of the serde LONG, which has 8 bytes"),
        (serdes.STRING, b"\xff", "Invalid UTF8"),
        (serdes.BOOLEAN, b"\x02", "a byte 0 or 1"),
        (serdes.UUID, b"no", "badly formed hexadecimal UUID string"),
        (serdes.list_of(serdes.LONG), b"\x00", "are not a list"),
        (serdes.time_windowed(serdes.STRING, 5), b"123", "at least 8 bytes, not 3"),
        (serdes.json(dict[str, int]), b'{"a": "x"}', "Expected `int`, got `str`"),
        (serdes.JSON, b"1,2", "trailing characters"),
    ],
)
@pytest.mark.parametrize("place", [0, 4, 9])
def test_bytes_that_do_not_fit_are_malformed_rows(serde: Serde[Any], bad: bytes, reason: str, place: int) -> None:
    good = {
        "LONG": bytes(8), "STRING": b"a", "BOOLEAN": b"\x00", "UUID": str(uuid.UUID(int=1)).encode(), "JSON": b"1",
        "list_of(LONG)": serdes.list_of(serdes.LONG).serializer("")([]), "time_windowed(STRING)": b"a" + bytes(8), "json(dict)": b"{}",
    }[serde.name]  # fmt: skip
    values = [good] * 10
    values[place] = bad
    decoded = of_serde(serde).decode(pa.array(values, pa.binary()))
    assert list(decoded.wrong) == [place]
    assert reason in decoded.wrong[place]
    assert [cell is None for cell in decoded.column.to_pylist()] == [at == place for at in range(10)]


def test_windowed_keys_and_those_of_outer_joins_are_structs() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    ms = int(at.timestamp() * 1000)
    timed = round_trip(serdes.time_windowed(serdes.STRING, 10), [Windowed("a", Window(ms, ms + 10))])
    assert timed == [{"key": "a", "window_start": at}]
    session = round_trip(serdes.session_windowed(serdes.LONG), [Windowed(7, SessionWindow(ms, ms + 1_000))])
    assert session == [{"key": 7, "window_start": at, "window_end": at + timedelta(seconds=1)}]
    waiting = round_trip(JoinKeySerde(serdes.STRING), [JoinKey(ms, True, "a"), JoinKey(ms, False, "b")])
    assert waiting == [{"timestamp": at, "left": True, "key": "a"}, {"timestamp": at, "left": False, "key": "b"}]


# --- JSON of a declared type --------------------------------------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Leg(msgspec.Struct):
    origin: str
    miles: int | None = None


class Point(NamedTuple):
    x: float
    y: float


class Extra(TypedDict, total=False):
    note: str


class Flight(msgspec.Struct, rename="camel"):
    number: int
    delay: float
    departed_at: datetime
    day: date
    price: Decimal
    colour: Colour
    legs: list[Leg]
    counts: dict[str, int]
    mixed: int | str
    anything: Any
    photo: bytes
    where: Point
    extra: Extra
    pair: tuple[int, str]
    kind: Literal["a", "b"]
    id: uuid.UUID
    best: Leg | None = None
    seats: int = 3
    about: Annotated[str | None, msgspec.Meta(description="What is said of it")] = None


FLIGHT = Flight(
    number=1, delay=2, departed_at=datetime(2026, 1, 2, 3, 4, 5, 6, timezone(timedelta(hours=2))), day=date(2026, 1, 2),
    price=Decimal("12.50"), colour=Colour.BLUE, legs=[Leg("EWR"), Leg("JFK", 10)], counts={"a": 1}, mixed="text", anything={"a": [1]},
    photo=b"\x00\xff", where=Point(1, 2), extra={"note": "x"}, pair=(1, "a"), kind="b", id=uuid.UUID(int=5),
)  # fmt: skip


def test_json_of_a_declared_type_is_a_struct_of_typed_fields() -> None:
    serde = serdes.json(Flight)
    form = of_serde(serde)
    assert {name: form.spark[name].dataType.simpleString() for name in form.spark.names} == {  # type: ignore[index, attr-defined]
        "number": "bigint", "delay": "double", "departedAt": "timestamp", "day": "date", "price": "decimal(38,18)", "colour": "string",
        "legs": "array<struct<origin:string,miles:bigint>>", "counts": "map<string,bigint>", "mixed": "string", "anything": "string",
        "photo": "binary", "where": "array<double>", "extra": "struct<note:string>", "pair": "string", "kind": "string", "id": "string",
        "best": "struct<origin:string,miles:bigint>", "seats": "bigint", "about": "string",
    }  # fmt: skip
    assert isinstance(form.spark, T.StructType)
    assert {field.name for field in form.spark.fields if field.nullable} == {"best", "about", "mixed", "anything", "pair"}
    assert form.spark["about"].metadata == {"comment": "What is said of it"}
    (row,) = round_trip(serde, [FLIGHT])
    assert row == {
        "number": 1, "delay": 2.0, "departedAt": datetime(2026, 1, 2, 1, 4, 5, 6, UTC), "day": date(2026, 1, 2), "price": Decimal("12.5"),
        "colour": "blue", "legs": [{"origin": "EWR", "miles": None}, {"origin": "JFK", "miles": 10}], "counts": {"a": 1}, "mixed": "text",
        "anything": '{"a":[1]}', "photo": b"\x00\xff", "where": [1.0, 2.0], "extra": {"note": "x"}, "pair": '[1,"a"]', "kind": "b",
        "id": str(uuid.UUID(int=5)), "best": None, "seats": 3, "about": None,
    }  # fmt: skip


def test_what_the_program_could_not_read_does_not_fit() -> None:
    form = of_serde(serdes.json(Leg))
    values = [
        b'{"origin":"a"}',
        b"{}",
        b'{"origin":1}',
        b"null",
        b"",
        b"{",
        b'{"origin":"\xff"}',
        b'{"origin":"a","miles":99999999999999999999}',
    ]
    decoded = form.decode(pa.array(values, pa.binary()))
    assert list(decoded.wrong) == list(range(1, len(values)))
    assert decoded.column.to_pylist() == [{"origin": "a", "miles": None}] + [None] * 7
    missing = of_serde(serdes.json(dict[str, Leg])).decode(pa.array([b'{"a":{}}'], pa.binary()))
    assert "missing required field `origin` - at `$[...]`" in missing.wrong[0]
    many = of_serde(serdes.json(Decimal)).decode(pa.array([b'"1.5"', b'"0.%s1"' % (b"0" * 30)], pa.binary()))
    assert list(many.wrong) == [1]  # more digits than the column has: it is not rounded


class Tagged(msgspec.Struct, tag=True):
    code: Annotated[str, msgspec.Meta(pattern="^[A-Z]+$", max_length=3)] = "AAA"
    step: Annotated[int, msgspec.Meta(multiple_of=5, gt=0)] = 5
    share: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.5
    pair: tuple[int, int] = (1, 2)
    id: uuid.UUID | None = None
    at: time = time(12)
    span: timedelta = timedelta(hours=1)
    since: datetime = datetime(2020, 1, 1, tzinfo=UTC)
    price: Decimal = Decimal("1.5")
    blob: bytes = b"x"
    colour: Colour = Colour.RED
    extra: Extra = msgspec.field(default_factory=Extra)
    seen: int | msgspec.UnsetType = msgspec.UNSET


@pytest.mark.parametrize(
    "text",
    [
        "{}", '{"type":"Tagged"}', '{"type":"Other"}', '{"code":"ABCD"}', '{"code":"a"}', '{"code":"AB"}', '{"step":7}', '{"step":0}',
        '{"step":10}', '{"step":99999999999999999999}', '{"share":1}', '{"share":0}', '{"pair":[1]}', '{"pair":[3,4]}', '{"id":"me"}',
        '{"id":"00000000-0000-0000-0000-000000000005"}', '{"id":null}', '{"at":"noon"}', '{"at":"23:59:00Z"}', '{"span":"long"}',
        '{"span":"PT24H"}', '{"since":null}', '{"price":null}', '{"blob":null}', '{"colour":null}', '{"colour":"green"}',
        '{"extra":{"note":null}}', '{"seen":null}', '{"seen":1}',
    ],
)  # fmt: skip
def test_malformed_rows_are_those_that_the_program_could_not_read(text: str) -> None:
    serde = serdes.json(Tagged)
    decoded = of_serde(serde).decode(pa.array([text.encode()], pa.binary()))
    try:
        read = serde.deserializer("topic")(text.encode())
    except msgspec.ValidationError:
        assert list(decoded.wrong) == [0]
        return
    assert decoded.wrong == {}
    (row,) = decoded.column.to_pylist()
    assert row == {
        "type": "Tagged", "code": read.code, "step": read.step, "share": read.share, "pair": list(read.pair),
        "id": None if read.id is None else str(read.id), "at": read.at.isoformat().replace("+00:00", "Z"),
        "span": msgspec.to_builtins(read.span), "since": read.since, "price": read.price, "blob": read.blob, "colour": read.colour.value,
        "extra": row["extra"], "seen": None if read.seen is msgspec.UNSET else read.seen,
    }  # fmt: skip


# Values that are nearly of their type, or at the edge of what a column can hold.
SCALARS = [
    "1", "-1", "0", "-0.0", "1.5", "1e400", "9007199254740993", "9223372036854775807", "9223372036854775808", "18446744073709551616", "NaN",
    '"a"', '"red"', '""', '"\\ud800"', '"\\u0000"', "true", "null", '"1"', '"01"', '"1.5"', '"1e50"', '"NaN"', '"AA=="', '"AAA"',
    '"2026-01-01"', '"2026-01-01T00:00:00Z"', '"2026-01-01T01:00:00+01:00"', '"0001-01-01T00:00:00+05:00"', '"9999-12-31T23:59:59-05:00"',
    '"12:00:00"', '"24:00:00"', '"PT1H"', '"P1D"', '"00000000-0000-0000-0000-000000000005"',
]  # fmt: skip
NAMES = [*(text for text in SCALARS if text.startswith('"')), '"origin"', '"miles"', '"type"', '"code"', '"step"']
HOSTILE_JSON = st.recursive(
    st.sampled_from(SCALARS),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda parts: f"[{','.join(parts)}]")
        | st.lists(st.tuples(st.sampled_from(NAMES), inner), max_size=3).map(
            lambda parts: "{" + ",".join(f"{name}:{value}" for name, value in parts) + "}"
        )
    ),
    max_leaves=6,
)
SPOILED = st.tuples(HOSTILE_JSON.map(str.encode), st.integers(0, 40), st.binary(max_size=2)).map(
    lambda parts: parts[0][: parts[1]] + parts[2] + parts[0][parts[1] + len(parts[2]) :]
)
HOSTILE = HOSTILE_JSON.map(str.encode) | SPOILED | st.binary(max_size=40)
KINDS: list[Any] = [
    int, float, int | float,
    Annotated[int, msgspec.Meta(ge=0)] | float, int | Annotated[float, msgspec.Meta(lt=1)] | None, str, bool, bytes,
    Decimal, datetime, date, time, timedelta, uuid.UUID, Colour, Leg, Leg | None, Point, Extra, Tagged, list[Leg], list[int | None],
    tuple[int, str], int | str, Any, Literal["a", 1], dict[str, int], dict[int, str], dict[bytes, int], dict[datetime, int],
    dict[Decimal, float], dict[uuid.UUID, Leg], Annotated[list[int], msgspec.Meta(min_length=1)],
    set[int], frozenset[float | int], set[int | str | None], set[datetime], set[tuple[int, ...]], set[Point], list[set[str]],
    Annotated[set[int], msgspec.Meta(min_length=2, max_length=2)], set[int] | str, tuple[set[datetime], int], dict[float, int],
]  # fmt: skip
SERDES: list[Serde[Any]] = [
    *map(serdes.json, KINDS), serdes.JSON, serdes.STRING, serdes.LONG, serdes.INTEGER, serdes.SHORT, serdes.DOUBLE, serdes.FLOAT,
    serdes.BOOLEAN, serdes.UUID, serdes.BYTES, serdes.NULL, serdes.nullable(serdes.LONG), serdes.list_of(serdes.LONG),
    serdes.list_of(serdes.UUID), serdes.list_of(serdes.json(Leg)), serdes.list_of(serdes.list_of(serdes.SHORT)),
    serdes.time_windowed(serdes.STRING, 5), serdes.session_windowed(serdes.LONG), JoinKeySerde(serdes.STRING),
]  # fmt: skip


@pytest.mark.parametrize("serde", SERDES, ids=lambda serde: serde.name)
@settings(max_examples=examples(25), deadline=None)
@given(values=st.lists(HOSTILE, min_size=1, max_size=8))
@example(values=[text.encode() for text in SCALARS])
@example(values=[f"{{{name}:1}}".encode() for name in NAMES])
@example(values=[b"[1,1]", b"[1,1,2]", b"[1,2,3]", b'[["a"],["a"]]', b"[[1,1],[1,1]]", b'["a",1,"1",1.0,null,null]', b'{"1":1,"1.0":2}'])
@example(values=[b'["2026-01-01T00:00:00Z","2026-01-01T01:00:00+01:00"]', b'[["2026-01-01T00:00:00Z","2026-01-01T01:00:00+01:00"],1]'])
def test_rows_fit_if_the_program_could_have_read_them(serde: Serde[Any], values: list[bytes]) -> None:
    """Row by row: none that fits is one that the program cannot read, none is another value, and none depends on those beside it."""
    form, read = of_serde(serde), serde.deserializer("topic")
    decoded = form.decode(pa.array(values, pa.binary()))
    cells = decoded.column.to_pylist(maps_as_pydicts="strict")
    assert len(cells) == len(values)
    for place, (value, cell) in enumerate(zip(values, cells, strict=True)):
        alone = form.decode(pa.array([value], pa.binary()))
        assert (list(alone.wrong) == [0]) == (place in decoded.wrong)
        assert repr(alone.column.to_pylist(maps_as_pydicts="strict")) == repr([cell])
        if place in decoded.wrong:
            assert cell is None
            continue
        found = read(value)  # raises nothing
        if type(found) in (int, float, Decimal) and type(cell) is not str:
            assert cell == found or found != found
        elif isinstance(found, datetime):
            assert cell == (found if found.tzinfo else found.replace(tzinfo=UTC))
        elif pa.types.is_list(form.arrow) or pa.types.is_map(form.arrow):
            assert len(cell) == len(found)
        elif isinstance(cell, str) and isinstance(msgspec.to_builtins(found), dict | list):
            assert read(cell.encode()) == found
            assert items_in(cell.encode()) == items_in(msgspec.json.encode(found))


def items_in(text: bytes) -> int:
    """Return the number of items of all arrays, and of names of all objects."""

    def count(value: object) -> int:
        return len(value) + sum(map(count, value)) if isinstance(value, list | tuple) else 0

    return count(json.loads(text, object_pairs_hook=list))


def test_a_set_has_no_item_twice_and_an_object_no_name() -> None:
    """Other programs may have written them; the column is what the program reads."""
    twice = b'["b","a","b"]'
    assert column(of_serde(serdes.json(set[str])), [twice]) == [["b", "a"]]
    assert column(of_serde(serdes.json(dict[str, frozenset[str]])), [b'{"x":%s}' % twice]) == [{"x": ["b", "a"]}]
    either: Any = set[str] | int
    assert column(of_serde(serdes.json(either)), [twice, b'[ "b"]', b"5"]) == ['["a","b"]', '[ "b"]', "5"]
    assert column(of_serde(serdes.json(dict[str, int])), [b'{"a":1,"a":2}']) == [{"a": 2}]
    assert column(of_serde(serdes.JSON), [b'{"a":1,"b":{"c":1, "c":2}}', b'{"a": 1}']) == ['{"a":1,"b":{"c":2}}', '{"a": 1}']


def test_a_type_in_itself_and_names_that_differ_in_case_alone() -> None:
    shape, _ = shape_of(
        {
            "$ref": "#/$defs/Node",
            "$defs": {"Node": {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/Node"}}}},
        }
    )
    assert shape.spark.simpleString() == "struct<v:bigint,next:string>"
    cased, _ = shape_of({"type": "object", "properties": {name: {"type": "integer"} for name in ("id", "ID", "Id", "id_2")}})
    assert cased.spark.simpleString() == "struct<id:bigint,ID_2:bigint,Id_3:bigint,id_2_2:bigint>"
    assert column(json_format(cased, False), [b'{"id":1,"ID":2,"Id":3,"id_2":4}']) == [{"id": 1, "ID_2": 2, "Id_3": 3, "id_2_2": 4}]


# --- DDL ----------------------------------------------------------------------------------------------------------------------------


def test_a_schema_in_ddl() -> None:
    ddl = (
        "flights BIGINT NOT NULL, `the delay` double COMMENT 'in s', "
        "small: INT, legs ARRAY<STRUCT<origin: STRING, at TIMESTAMP>>, m MAP<STRING, DECIMAL(9,2)>"
    )
    form = json_format(shape_of_ddl(ddl), True)
    assert form.spark.simpleString() == (
        "struct<flights:bigint,the delay:double,small:int,legs:array<struct<origin:string,at:timestamp>>,m:map<string,decimal(9,2)>>"
    )
    cells = column(form, [b'{"flights":1,"the delay":2,"legs":[{"origin":{"a":1}}],"m":{"x":"1.25"},"other":0}', b"{}", b"null", None])
    nothing = {"flights": None, "the delay": None, "small": None, "legs": None, "m": None}
    first = {"flights": 1, "the delay": 2.0, "small": None, "legs": [{"origin": '{"a":1}', "at": None}], "m": {"x": Decimal("1.25")}}
    assert cells == [first, nothing, None, None]
    assert list(form.decode(pa.array([b'{"small":2147483648}'], pa.binary())).wrong) == [0]
    assert shape_of_ddl("ARRAY<BIGINT>").spark == T.ArrayType(T.LongType())
    assert shape_of_ddl("STRING").spark == T.StringType()


@pytest.mark.parametrize(
    ("ddl", "message"),
    [
        ("", "it is empty"),
        ("flights", "there is no type 'FLIGHTS'"),
        ("flights BIGINTT", "there is no type 'BIGINTT'; there are TINYINT"),
        ("flights BIGINT,", "it ends where a name is expected"),
        ("a INT, A INT", "the field 'A' is there twice"),
        ("m MAP<INT, INT>", "names of a map in JSON are STRING"),
        ("a ARRAY<INT", "it ends where '>' is expected"),
        ("a INT b INT", "'b' is too much"),
    ],
)
def test_invalid_ddl_is_refused_with_an_example(ddl: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        shape_of_ddl(ddl)


# --- JSON without a type ------------------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | LONGS | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(JSON, min_size=1))
def test_whatever_was_written_fits_what_was_inferred_of_it(values: list[object]) -> None:
    data = pa.array([msgspec.json.encode(value) for value in values], pa.binary())
    schema = infer([data[: len(values) // 2], data[len(values) // 2 :]])
    assert schema is not None
    decoded = json_format(*shape_of(schema)).decode(data)
    assert decoded.wrong == {}
    assert [cell is None for cell in decoded.column.to_pylist()] == [value is None for value in values]


def inferred(*values: bytes) -> str:
    schema = infer([pa.array(values, pa.binary())])
    assert schema is not None
    return shape_of(schema)[0].spark.simpleString()


def test_types_that_are_inferred() -> None:
    assert inferred(b'{"b":1,"a":{"x":[1,2.5]}}', b'{"b":null,"c":"t"}', b"oops") == "struct<a:struct<x:array<double>>,b:bigint,c:string>"
    assert inferred(b"1", b"2") == "bigint"
    assert inferred(b"1", b'"a"') == inferred(b"99999999999999999999") == "string"
    assert inferred(b"{}") == "map<string,string>"
    assert (inferred(b"[]"), inferred(b"[{}]")) == ("array<string>", "array<map<string,string>>")
    assert infer([pa.array([b"oops", None], pa.binary())]) is None
    names = b"{" + b",".join(b'"k%d":%d' % (n, n) for n in range(1_200)) + b"}"
    assert inferred(b'{"k1":1.5}', names, b'{"z":2}') == "map<string,double>"


def test_what_was_always_empty_has_no_place_for_a_first_item() -> None:
    schema = infer([pa.array([b'{"a":[],"b":{}}', b'{"a":null}'], pa.binary())])
    assert schema is not None
    form = json_format(*shape_of(schema))
    assert form.spark.simpleString() == "struct<a:array<string>,b:map<string,string>>"
    decoded = form.decode(pa.array([b'{"a":[],"b":{}}', b'{"a":[1],"b":{}}', b'{"b":{"c":1}}'], pa.binary()))
    assert list(decoded.wrong) == [1, 2]
    assert decoded.column.to_pylist()[0] == {"a": [], "b": []}


def test_a_field_missing_from_the_sample_is_not_lost_silently() -> None:
    schema = infer([pa.array([b'{"a":1}'], pa.binary())])
    assert schema is not None
    assert (
        json_format(*shape_of(schema))
        .decode(pa.array([b'{"a":1,"b":2}'], pa.binary()))
        .wrong[0]
        .startswith("Object contains unknown field `b`")
    )


# --- a Schema Registry's ------------------------------------------------------------------------------------------------------------

AVRO = """{"type": "record", "name": "a.Flight", "fields": [
  {"name": "number", "type": "int", "doc": "The number"}, {"name": "delay", "type": ["null", "double"]},
  {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}}, {"name": "raw", "type": "bytes"},
  {"name": "colour", "type": {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]}},
  {"name": "counts", "type": {"type": "map", "values": "long"}}, {"name": "either", "type": ["string", "long"]},
  {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
  {"name": "next", "type": ["null", "a.Flight"], "default": null}]}"""


def test_avro_is_read_by_the_schema_in_the_manifest() -> None:
    serde: Serde[Any] = serdes.avro("mock://spark-formats", AVRO)
    at = datetime(2026, 1, 1, tzinfo=UTC)
    flight = {
        "number": 1,
        "delay": None,
        "at": at,
        "raw": b"\xff",
        "colour": "BLUE",
        "counts": {"a": 1},
        "either": 5,
        "price": Decimal("1.25"),
    }
    data = serde.serializer("flights")({**flight, "next": {**flight, "next": None}})
    form = of_serde(serde)
    assert form.spark.simpleString() == (
        "struct<number:bigint,delay:double,at:timestamp,raw:binary,colour:string,counts:map<string,bigint>,either:string,"
        "price:decimal(38,18),next:string>"
    )
    (cell,) = column(form, [data])
    assert isinstance(cell, dict) and cell.pop("next").startswith('{"number":1,')
    assert cell == {**flight, "either": "5"}
    wrong = form.decode(pa.array([data, b"\x01" + (data or b"")[1:], (data or b"")[:9], b"\x00"], pa.binary())).wrong
    assert list(wrong) == [1, 2, 3]


def in_order(*names: str) -> str:
    """Return an Avro schema of strings: in another order their bytes fit it too."""
    fields = ",".join(f'{{"name":"{name}","type":"string"}}' for name in names)
    return f'{{"type":"record","name":"Way","fields":[{fields}]}}'


@settings(max_examples=examples(25), deadline=None)
@given(st.permutations(["origin", "via", "to"]), st.permutations(["origin", "via", "to"]), st.tuples(TEXT, TEXT, TEXT))
def test_avro_of_another_version_is_resolved_by_the_id_in_the_bytes(one: list[str], other: list[str], texts: tuple[str, ...]) -> None:
    registry, way = f"mock://{uuid.uuid4()}", dict(zip(one, texts, strict=True))
    rows = [serdes.avro(registry, in_order(*each)).serializer("topic")(way) for each in (one, other)]
    program = serdes.avro(registry, in_order(*other))
    read = program.deserializer("topic")
    assert [read(row or b"") for row in rows] == [way, way] == column(of_serde(program), rows)


def test_avro_of_an_older_version_has_the_values_of_defaults() -> None:
    registry, old = f"mock://{uuid.uuid4()}", '{"type": "record", "name": "Row", "fields": [{"name": "n", "type": "int"}]}'
    new = """{"type": "record", "name": "Row", "fields": [{"name": "n", "type": "int"},
      {"name": "raw", "type": "bytes", "default": "abcd"}, {"name": "tags", "type": {"type": "array", "items": "bytes"}, "default": ["a"]},
      {"name": "day", "type": {"type": "int", "logicalType": "date"}, "default": 20000}]}"""
    row = serdes.avro(registry, old).serializer("topic")({"n": 1})
    program = serdes.avro(registry, new)
    wanted = {"n": 1, "raw": b"abcd", "tags": [b"a"], "day": date(2024, 10, 4)}
    assert column(of_serde(program), [row]) == [wanted] == [program.deserializer("topic")(row or b"")]


def test_avro_with_an_id_that_is_not_recorded_is_refused_by_its_name() -> None:
    registry = f"mock://{uuid.uuid4()}"
    elsewhere = serdes.avro(registry, in_order("to", "origin")).serializer("other")({"origin": "EWR", "to": "SFO"})
    serde = serdes.avro(registry, in_order("origin", "to"))
    row = serde.serializer("topic")({"origin": "EWR", "to": "SFO"})
    decoded = of_serde(serde).decode(pa.array([elsewhere, row], pa.binary()))
    assert decoded.wrong == {0: "it was written with the schema of id 1, which is not recorded here: there are 2"}
    assert decoded.column.to_pylist() == [None, {"origin": "EWR", "to": "SFO"}]
    nothing = format_of(serde.name, None, serde.registry_schema).decode(pa.array([row], pa.binary()))
    assert "the schema of id 2, which is not recorded here: none is" in nothing.wrong[0]
    unfit = serdes.avro(registry, '"long"').serializer("topic")(5)
    assert "id 3, which does not fit the program's" in of_serde(serde).decode(pa.array([unfit], pa.binary())).wrong[0]


def test_avro_bytes_have_no_length_as_the_serializer_writes_them() -> None:
    serde: Serde[Any] = serdes.avro(f"mock://{uuid.uuid4()}", '"bytes"')
    row = serde.serializer("topic")(b"\x02ab")  # for Avro: a length of 1, and a byte too many
    assert column(of_serde(serde), [row]) == [b"\x02ab"]


def test_settings_that_change_what_a_deserializer_reads_leave_bytes() -> None:
    latest: Serde[Any] = serdes.avro("mock://latest", in_order("to"), deserializer_config={"use.latest.version": True})
    assert of_serde(latest) is BINARY
    assert latest.format().text == in_order("to")


def test_json_schema_and_protobuf() -> None:
    registered = RegistrySchema(
        "JSON", '{"type":"object","properties":{"n":{"type":["integer","null"]}},"required":["n"]}', writers={0: ""}
    )
    assert column(format_of("json_schema", None, registered), [b"\x00" + bytes(4) + b'{"n":5}']) == [{"n": 5}]
    assert format_of("protobuf", None, RegistrySchema("PROTOBUF", "")).spark == T.BinaryType()
    assert format_of("a_serde_of_the_users") is BINARY
    assert column(format_of("a_serde_of_the_users", {"type": "integer"}), [b"5"]) == [5]


# --- rows ---------------------------------------------------------------------------------------------------------------------------


def test_columns_that_are_not_wanted_are_not_decoded() -> None:
    layout = StoreLayout("key_value", False, "LONG", "JSON")
    rows = StoreRows(pa.array([bytes(8), b"short"], pa.binary()), pa.array([b"1", b"{"], pa.binary()))
    partition = Decoder.of(layout, columns=["partition"]).batch(3, rows)
    assert partition.to_pydict() == {"partition": [3, 3]}
    both = Decoder.of(layout, columns=["key", "_malformed"]).batch(3, rows).to_pylist()
    assert both[0] == {"key": 0, "_malformed": None}
    assert both[1]["key"] is None and both[1]["_malformed"]["key"] == b"short" and both[1]["_malformed"]["value"] == b"{"
    assert both[1]["_malformed"]["reason"].startswith("key: b'short' is not of the serde LONG, which has 8 bytes")
    assert "; value: " in both[1]["_malformed"]["reason"]
    with pytest.raises(ValueError, match="there is no column 'valu'; there are partition, key, value, _malformed"):
        Decoder.of(layout, columns=["valu"])


def test_fields_of_values_are_read_alone() -> None:
    layout, schemas = StoreLayout("key_value", False, "LONG", "json(Leg)"), StoreSchemas(None, serdes.json(Leg).schema)
    rows = StoreRows(
        pa.array([bytes(8)] * 2, pa.binary()), pa.array([b'{"origin":5,"miles":1}', b'{"miles":"x","origin":"a"}'], pa.binary())
    )
    decoder = Decoder.of(layout, schemas, columns=["value.miles", "_malformed", "value.miles"])
    assert decoder.schema.simpleString().startswith("struct<value:struct<miles:bigint>,_malformed:")
    first, second = decoder.batch(0, rows).to_pylist()
    assert first["value"] is None and "`$.origin`" in first["_malformed"]["reason"]  # the program cannot read it
    alone = Decoder.of(layout, schemas, columns=["value.miles"]).batch(0, rows).to_pylist()
    assert alone == [{"value": {"miles": 1}}, {"value": None}]  # what is wrong with a field that is not asked for is not seen
    assert second["value"] is None and "Expected `int | null`" in second["_malformed"]["reason"]
    assert (
        Decoder.of(layout, schemas, columns=["value.miles", "value"]).schema["value"].dataType.simpleString()
        == "struct<origin:string,miles:bigint>"
    )
    assert Decoder.of(layout, schemas, "a INT, b INT", ["value.b"]).schema.simpleString() == "struct<value:struct<b:int>>"
    with pytest.raises(ValueError, match=r"no column 'value.nope'; the value is struct<origin:string,miles:bigint>"):
        Decoder.of(layout, schemas, columns=["value.nope"])
    with pytest.raises(ValueError, match=r"no fields that can be read alone: it is bigint \(LONG\)"):
        Decoder.of(StoreLayout("key_value", False, "LONG", "LONG"), columns=["value.a"])


def test_keys_with_maps_are_text_because_spark_cannot_join_by_maps() -> None:
    schemas = StoreSchemas(serdes.json(dict[str, int]).schema)
    layout = StoreLayout("key_value", False, "json(dict)", "LONG")
    assert row_schema(layout, schemas)["key"].dataType == T.StringType()
    rows = StoreRows(pa.array([b'{"a":1}'], pa.binary()), pa.array([struct.pack(">q", 5)], pa.binary()))
    assert Decoder.of(layout, schemas).batch(0, rows).to_pylist() == [{"partition": 0, "key": '{"a":1}', "value": 5, "_malformed": None}]
    for serde in (serdes.time_windowed(serdes.json(dict[str, int]), 5), serdes.list_of(serdes.json(dict[str, int]))):
        around = StoreLayout("key_value", False, serde.name, serde.name)
        columns = row_schema(around, StoreSchemas(serde.schema, serde.schema))
        assert columns["key"].dataType == T.BinaryType() and "map<string,bigint>" in columns["value"].dataType.simpleString()
        with pytest.raises(ValueError, match="value-schema is for values in JSON; these are"):
            row_schema(around, StoreSchemas(serde.schema, serde.schema), "a INT")
    with pytest.raises(ValueError, match="value-schema is for values in JSON; these are LONG"):
        row_schema(layout, schemas, "a INT")
