"""Evolution of types: what is accepted must be readable, with the same meaning, whichever accepted version wrote it."""

from __future__ import annotations

import datetime as dt
import enum
import itertools
import uuid
from collections.abc import Callable
from decimal import Decimal
from types import GenericAlias
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import serdes
from penstock.runtime.serdes.serde import Serde
from penstock.runtime.serdes.serde_format import SerdeFormat, format_changes, format_removals, versions_changes, with_version
from penstock.runtime.serdes.type_changes import type_changes
from penstock.runtime.serdes.type_schemas import json_schema_of, type_schema
from tests.support import examples


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Colors(enum.Enum):
    RED = "red"
    BLUE = "blue"
    GREEN = "green"


class Inner(msgspec.Struct):
    a: int


class WiderInner(msgspec.Struct):
    a: float
    b: str = ""


class NarrowInner(msgspec.Struct):
    a: int
    b: str


class Node(msgspec.Struct):
    value: int
    next: Node | None = None


class WiderNode(msgspec.Struct):
    value: float
    next: WiderNode | None = None


class TextNode(msgspec.Struct):
    value: int
    next: TextNode | None = None
    text: str = ""


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True):
    name: str


class Fish(msgspec.Struct, tag="Cat"):
    lives: int


class Pair(NamedTuple):
    a: int
    b: int


class Swapped(NamedTuple):
    b: int
    a: int


class Sparse(TypedDict):
    a: int
    b: NotRequired[int]


class Full(TypedDict):
    a: int
    b: int


class Former(msgspec.Struct, tag="part"):
    a: int


class Renamed(msgspec.Struct, tag="part"):
    b: int = 0


RENAMED_INSIDE: list[tuple[Callable[[Any], object], str]] = [
    (lambda part: part | None, "field a is gone and b of a type that fits is new"),
    (lambda part: list[part | None], "field [].a is gone and b of a type that fits is new"),  # type: ignore[valid-type]  # a class at run time
    (lambda part: dict[str, tuple[int, part]], "field [][1].a is gone and b of a type that fits is new"),  # type: ignore[valid-type]  # a class at run time
    (lambda part: part | Cat | Dog, "field a is gone and b of a type that fits is new"),
]

NUMBERS = itertools.count()


def struct(fields: list[object], **options: object) -> type:
    return msgspec.defstruct(f"S{next(NUMBERS)}", fields, **options)  # type: ignore[arg-type]  # options of the table below


N = ("n", int)
RENAMED_AND_CHANGED: list[tuple[object, object]] = [
    (N, ("m", float, 0.0)),
    (N, ("m", float | None, None)),
    (N, ("m", int | str, 0)),
    (N, ("m", Decimal, Decimal(0))),
    (N, ("m", Any, None)),
    (N, ("m", Annotated[int, msgspec.Meta(ge=0)], 0)),
    (("n", int | None), ("m", int, 0)),
    (("n", float), ("m", int, 0)),
    (("n", Color), ("m", str, "")),
    (("n", list[int]), ("m", list[float], [])),
    (("n", dict[str, Inner]), ("m", dict[str, WiderInner] | None, None)),
    (("n", Inner | None), ("m", WiderInner | None, None)),
    (("n", set[int]), ("m", list[int], [])),
]
ACCEPTED: list[tuple[str, object, object]] = [
    ("the same", struct([N]), struct([N])),
    ("another name of the class", struct([N]), msgspec.defstruct("Other", [("n", int)])),
    ("a field with a default", struct([N]), struct([N, ("m", str, "x")])),
    ("a field with a default factory", struct([N]), struct([N, ("m", list[int], msgspec.field(default_factory=list))])),
    ("an optional field", struct([N]), struct([N, ("m", int | None, None)])),
    ("a field that becomes optional", struct([N]), struct([("n", int | None)])),
    ("a wider number", struct([N]), struct([("n", float)])),
    ("an exact number", struct([N]), struct([("n", Decimal)])),
    ("another field is new beside one that is removed", struct([N, ("a", str)]), struct([N, ("m", list[int], [])])),
    ("a field is removed", struct([N, ("m", int)]), struct([N])),
    ("a field is no default any more, and was always written", struct([("n", int, 0)]), struct([N])),
    ("a field keeps its name by rename", struct([N]), struct([("other", int, msgspec.field(name="n"))])),
    ("a wider enum", Color, Colors),
    ("an enum becomes text", Color, str),
    ("a wider literal", Literal["a", 1], Literal["a", "b", 1, 2]),
    ("a literal becomes a union", Literal["a", 1], int | str),
    ("a wider union", int | str, int | str | None),
    ("a number beside a literal", Literal[1, 2], Literal[1, 2, 3] | float),
    ("a wider inner type", struct([("i", Inner)]), struct([("i", WiderInner)])),
    ("in a list", list[Inner], list[WiderInner]),
    ("in a dict", dict[str, Inner], dict[str, WiderInner]),
    ("a set becomes a list", set[int], list[int]),
    ("a tuple becomes a list", tuple[int, ...], list[int]),
    ("a type that holds itself", Node, WiderNode),
    ("one that holds itself gets a field", Node, TextNode),
    ("a tagged class joins a union", Cat, Cat | Dog),
    ("a tag is added to one class", Inner, msgspec.defstruct("T", [("a", int)], tag=True)),
    ("anything", struct([N]), Any),
    ("a looser constraint", Annotated[int, msgspec.Meta(ge=5)], Annotated[int, msgspec.Meta(gt=3)]),
    ("no constraint any more", Annotated[str, msgspec.Meta(max_length=5)], str),
    ("a key that may be missing", Full, Sparse),
    ("an array gets a place with a default", struct([N], array_like=True), struct([N, ("m", int, 0)], array_like=True)),
    ("the same times", struct([("t", dt.datetime), ("u", uuid.UUID)]), struct([("t", dt.datetime), ("u", uuid.UUID), (*N, 0)])),
    ("the same default is left out", struct([("n", int, 1)], omit_defaults=True), struct([("n", float, 1)], omit_defaults=True)),
]
REFUSED: list[tuple[object, object, str]] = [
    (struct([N]), struct([N, ("m", str)]), "field m is new and has no default"),
    (struct([N]), struct([("m", int)]), "field m is new and has no default"),
    (struct([N]), struct([("m", int, 0)]), "field n is gone and m of a type that fits is new: was it renamed?"),
    (struct([N]), struct([("m", int | None, None)]), "field n is gone and m of a type that fits is new: was it renamed?"),
    *(
        (struct([old]), struct([new]), "field n is gone and m of a type that fits is new: was it renamed?")
        for old, new in RENAMED_AND_CHANGED
    ),
    *((of(Former), of(Renamed), reported) for of, reported in RENAMED_INSIDE),
    (struct([("n", float)]), struct([N]), "field n is float and is read as int"),
    (struct([N]), struct([("n", str)]), "field n is int and is read as str"),
    (struct([N]), struct([("n", bool)]), "field n is int and is read as bool"),
    (struct([("n", int | None)]), struct([N]), "field n is null and is read as int"),
    (struct([N, ("m", int)]), struct([N], forbid_unknown_fields=True), "has a field m, and fields that are not known are forbidden"),
    (Colors, Color, "may be 'green', which it no longer has as a value"),
    (str, Color, "is str and is read as one of 'blue', 'red'"),
    (Literal[1, 2], Literal[1], "may be 2"),
    (int, Literal[1, 2] | float, "is int and is read as one of 1, 2"),
    (int | float, Literal[1, 2] | float, "is int and is read as one of 1, 2"),
    (Literal["a", 3], Literal["a", 1] | float, "may be 3"),
    (int | str, int, "is str and is read as int"),
    (struct([("i", Inner)]), struct([("i", NarrowInner)]), "field i.b is new and has no default"),
    (list[Inner], list[NarrowInner], "field [].b is new and has no default"),
    (dict[str, Inner], dict[str, NarrowInner], "field [].b is new and has no default"),
    (dict[str, int], dict[int, int], "a key of the value is str and is read as int"),
    (dict[str, int], struct([N]), "is a dict and is read as an object"),
    (list[int], set[int], "values that are there twice would be lost"),
    (dt.datetime, str, "is datetime and is read as str"),
    (str, dt.datetime, "is str and is read as datetime"),
    (bytes, str, "is bytes and is read as str"),
    (dt.datetime, dt.date, "is datetime and is read as date"),
    (Annotated[dt.datetime, msgspec.Meta(tz=False)], Annotated[dt.datetime, msgspec.Meta(tz=True)], "must have tz=True"),
    (int, Annotated[int, msgspec.Meta(ge=0)], "must have ge=0 now"),
    (Annotated[int, msgspec.Meta(ge=0)], Annotated[int, msgspec.Meta(gt=0)], "must have gt=0 now"),
    (str, Annotated[str, msgspec.Meta(pattern="a")], "must have pattern='a' now"),
    (Pair, Swapped, "has a at place 0, where b is read"),
    (struct([N, ("m", int)], array_like=True), struct([("m", int), N], array_like=True), "has n at place 0, where m is read"),
    (struct([N]), struct([N], array_like=True), "is an object and is read as a tuple"),
    (struct([("n", str)], array_like=True, tag="t"), struct([("n", str)], array_like=True), "has type at place 0, where n is read"),
    (struct([("n", str)], array_like=True), struct([("n", str)], array_like=True, tag="t"), "has n at place 0, where type is read"),
    (struct([], array_like=True, tag="t"), struct([("n", str)], array_like=True), "has type at place 0, where n is read"),
    (Cat, Fish, ""),
    (Cat | Dog, Cat, "has the tag 'Dog', and is read by the tag 'Cat'"),
    (Inner, Cat | Dog, "is an object and is read as"),
    (Sparse, Full, "field b may be missing in what was written"),
    (struct([("n", int, 1)], omit_defaults=True), struct([("n", int, 2)]), "field n is left out where it is 1, and would be read as 2"),
    (struct([("n", int, 1)], omit_defaults=True), struct([N]), "field n may be missing in what was written"),
    (struct([("n", int | msgspec.UnsetType, msgspec.UNSET)]), struct([N]), "field n may be missing"),
    (Node, msgspec.defstruct("B", [("value", int), ("next", Inner | None, None)]), "field next.a is new and has no default"),
]


def of(kind: object) -> SerdeFormat:
    form = serdes.json(kind).format()  # type: ignore[arg-type]  # any type that msgspec knows
    assert msgspec.json.decode(msgspec.json.encode(form), type=SerdeFormat) == form
    return form


@pytest.mark.parametrize(("written", "read"), [pair[1:] for pair in ACCEPTED], ids=[pair[0] for pair in ACCEPTED])
def test_a_change_that_loses_nothing_is_accepted(written: object, read: object) -> None:
    assert versions_changes([of(written)], of(read)) == []


@pytest.mark.parametrize(("written", "read", "reported"), [case for case in REFUSED if case[2]], ids=lambda value: str(value)[:50])
def test_a_change_of_meaning_is_refused_naming_the_field(written: object, read: object, reported: str) -> None:
    found = versions_changes([of(written)], of(read))
    assert any(reported in text for text in found), found


def test_a_third_version_must_fit_all_earlier_ones() -> None:
    first, second, third = of(struct([N])), of(struct([N, ("m", str, "x")])), of(struct([N, ("m", str)]))
    assert versions_changes([first], second) == [] and versions_changes([second], third) == []
    assert versions_changes(with_version([first], second), third) == [
        "field m is new and has no default: values that were written without it cannot be read"
    ]
    assert with_version(with_version([first], second), first) == (second, first)


def test_a_removed_place_of_an_array_is_reported_as_a_removed_field() -> None:
    former, now = struct([N, ("m", str, "x")], array_like=True), struct([N], array_like=True)
    assert versions_changes([of(former)], of(now)) == []
    assert format_removals(of(former), of(now)) == ["[m]"]
    assert format_removals(of(struct([("i", former)])), of(struct([("i", now)]))) == ["i[m]"]


def test_a_field_may_be_removed_and_a_similar_one_added_later() -> None:
    first, second, third = of(struct([N, ("a", int)])), of(struct([N])), of(struct([N, ("b", int, 0)]))
    assert versions_changes(with_version([first], second), third) == []
    again = of(struct([N, ("a", str, "")]))
    assert versions_changes(with_version([first], second), again) == ["field a is int and is read as str"]


@pytest.mark.parametrize(
    ("written", "read", "reported"),
    [
        (serdes.LONG, serdes.DOUBLE, ["were LONG and are DOUBLE now"]),
        (serdes.json(Inner), serdes.DOUBLE, ["were json(Inner) and are DOUBLE now"]),
        (serdes.json(Inner), serdes.JSON, []),
        (serdes.JSON, serdes.json(Inner), ["the value is any and is read as an object"]),
        (serdes.nullable(serdes.LONG), serdes.LONG, []),
        (serdes.list_of(serdes.json(Inner)), serdes.list_of(serdes.json(WiderInner)), []),
        (serdes.list_of(serdes.json(WiderInner)), serdes.list_of(serdes.json(Inner)), ["field a is float and is read as int"]),
        (serdes.list_of(serdes.LONG), serdes.LONG, ["were list_of(LONG) and are LONG now"]),
        (
            serdes.time_windowed(serdes.STRING, 5),
            serdes.time_windowed(serdes.STRING, 6),
            ["were time_windowed(STRING) of 5 ms and are of 6 ms now"],
        ),
    ],
    ids=str,
)
def test_inner_serdes_are_compared_through_wrappers(written: Serde[object], read: Serde[object], reported: list[str]) -> None:
    assert format_changes(written.format(), read.format()) == reported


def named_alike(one: type, other: type) -> type[msgspec.Struct]:
    """A type with two classes of one module and qualified name, of which msgspec makes no JSON Schema."""
    first, second = (msgspec.defstruct("Part", [("a", kind)]) for kind in (one, other))
    return msgspec.defstruct("Whole", [("x", first), ("y", second)])


def test_classes_with_the_same_name_are_distinguished() -> None:
    """Without a JSON Schema for those who read the bytes, but with all that is recorded and compared."""
    written = serdes.json(named_alike(int, str))
    assert written.schema is None
    assert format_changes(written.format(), serdes.json(named_alike(float, str)).format()) == []
    assert format_changes(written.format(), serdes.json(named_alike(int, float)).format()) == ["field y.a is str and is read as float"]
    with pytest.raises(TypeError, match="two of its classes have the same name"):
        serdes.json_schema({"url": "mock://"}, kind=named_alike(int, str))
    assert written.deserializer("t")(b'{"x":{"a":1},"y":{"a":"b"}}') is not None


def test_a_custom_serde_is_compared_by_its_name_and_declared_schema() -> None:
    def own(name: str, kind: type | None = None) -> SerdeFormat:
        schema = None if kind is None else msgspec.json.schema(kind)
        return Serde[object](lambda *_: b"", lambda *_: None, name=name, schema=schema).format()

    assert format_changes(own("money-1"), own("money-1")) == []
    assert format_changes(own("money-1"), own("money-2")) == ["were money-1 and are money-2 now"]
    assert format_changes(own("money", Inner), own("money", WiderInner)) == []
    assert format_changes(own("money", Inner), own("money", NarrowInner)) == [
        "field b is new and has no default: values that were written without it cannot be read"
    ]


# --- accepted means readable ----------------------------------------------------------------------------------------------------

TEXTS = st.text(max_size=3)
LEAVES: list[tuple[object, st.SearchStrategy[object]]] = [
    (int, st.integers(-(2**53), 2**53)),
    (float, st.floats(allow_nan=False, allow_infinity=False)),
    (str, TEXTS),
    (bool, st.booleans()),
    (type(None), st.none()),
    (Decimal, st.decimals(allow_nan=False, allow_infinity=False, places=2)),
    (bytes, st.binary(max_size=3)),
    (dt.date, st.dates()),
    (dt.datetime, st.datetimes()),
    (uuid.UUID, st.uuids()),
    (Color, st.sampled_from(Color)),
    (Colors, st.sampled_from(Colors)),
    (Literal["red", 1], st.sampled_from(["red", 1])),
    (Annotated[int, msgspec.Meta(ge=0, le=9)], st.integers(0, 9)),
    (Annotated[int, msgspec.Meta(gt=-1)], st.integers(0, 99)),
]
Typed = tuple[object, st.SearchStrategy[object]]


def structs(fields: list[tuple[str, Typed, bool]], options: dict[str, object]) -> Typed:
    """A struct with these fields; those with a default have None or the field's type."""
    declared = [(name, typed[0] if not default else typed[0] | None, *([None] if default else [])) for name, typed, default in fields]  # type: ignore[operator]
    made = struct(list(declared), **options)
    values = {name: typed[1] if not default else st.one_of(st.none(), typed[1]) for name, typed, default in fields}
    return made, st.fixed_dictionaries(values).map(lambda given: made(**given))


def wider(inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    def lists(typed: Typed) -> Typed:
        return GenericAlias(list, (typed[0],)), st.lists(typed[1], max_size=2)

    def dicts(typed: Typed) -> Typed:
        return GenericAlias(dict, (str, typed[0])), st.dictionaries(TEXTS, typed[1], max_size=2)

    names = st.lists(st.sampled_from("abcd"), min_size=1, max_size=3, unique=True)
    options = st.fixed_dictionaries(
        {},
        optional={"array_like": st.just(True), "omit_defaults": st.just(True), "forbid_unknown_fields": st.just(True), "tag": st.just("t")},
    )

    def fields(given: list[str]) -> st.SearchStrategy[list[tuple[str, Typed, bool]]]:
        # Fields without a default come first.
        one = st.tuples(inner, st.booleans())
        return st.lists(one, min_size=len(given), max_size=len(given)).map(
            lambda found: sorted(
                ((name, typed, default) for name, (typed, default) in zip(given, found, strict=True)), key=lambda each: each[2]
            )
        )

    return st.one_of(inner.map(lists), inner.map(dicts), st.builds(structs, names.flatmap(fields), options))


TYPES = st.recursive(st.sampled_from(LEAVES), wider, max_leaves=5)


@settings(max_examples=examples(300), deadline=None)
@given(TYPES, TYPES, st.data())
def test_every_accepted_change_can_be_read(written: Typed, read: Typed, data: st.DataObject) -> None:
    old, new = serdes.json(written[0]), serdes.json(read[0])  # type: ignore[arg-type]
    if versions_changes([old.format()], new.format()):
        return
    value = data.draw(written[1])
    new.deserializer("t")(old.serializer("t")(value) or b"")


def test_random_types_are_accepted_often_enough() -> None:
    accepted: list[bool] = []

    @settings(max_examples=200, deadline=None, database=None)
    @given(TYPES, TYPES)
    def look(written: Typed, read: Typed) -> None:
        old, new = (serdes.json(typed[0]).format() for typed in (written, read))  # type: ignore[arg-type]
        accepted.append(not versions_changes([old], new))

    look()
    assert sum(accepted) > 10


def test_a_struct_written_as_an_array_is_described_after_its_tag() -> None:
    """The tag is the first item: described as the first field, the fields get the keys, the set and the zone of their neighbours."""
    fields: list[object] = [("keys", dict[int, int]), ("items", set[int]), ("cat", Cat)]
    schema: Any = json_schema_of(struct(fields, array_like=True, tag="t"))
    tag, keys, items, _ = next(node for node in schema["$defs"].values() if "prefixItems" in node)["prefixItems"]
    assert tag == {"enum": ["t"]}
    assert keys["propertyNames"] == {"type": "string", "format": "integer"}
    assert items["set"] is True
    assert schema["$defs"]["Cat"]["properties"]["type"]["default"] == "Cat"


class Light(enum.Enum):
    RED = 1
    GREEN = 2


class Inserted(enum.Enum):
    RED = 1
    AMBER = 2
    GREEN = 3


class Exchanged(enum.Enum):
    GREEN = 1
    RED = 2


class Went(enum.Enum):
    RED = 1
    GO = 2


class Aliased(enum.Enum):
    RED = 1
    GO = 2
    GREEN = 2  # noqa: PIE796 (an alias)


class Bits(enum.Flag):
    RED = 1
    GREEN = 2


class AnyBits(enum.IntFlag):
    RED = 1
    GREEN = 2


@pytest.mark.parametrize(
    ("written", "read", "why"),
    [
        (Light, Inserted, ["2 in the value was GREEN and is AMBER now"]),
        (dict[Light, int], dict[Inserted, int], ["2 in a key of the value was GREEN and is AMBER now"]),
        (Light, Exchanged, ["1 in the value was RED and is GREEN now", "2 in the value was GREEN and is RED now"]),
        (Light, Went, ["2 in the value was GREEN and is GO now"]),
        (Light, Aliased, []),
        (Aliased, Went, []),
        (Bits, Light, ["the value holds flags, which may be combined, and is read as one of 1, 2"]),
        (AnyBits, Bits, ["the value holds flags, which may be combined, and is read as other flags"]),
        (Bits, AnyBits, []),
        (Bits, int, []),
        (Light, Literal[1, 2], []),
    ],
)
def test_a_value_of_an_enum_keeps_its_name(written: object, read: object, why: list[str]) -> None:
    old, new = (type_schema(kind) for kind in (written, read))
    assert old is not None and new is not None
    said = type_changes(old, new)
    assert len(said) == len(why) and all(text.startswith(start) for text, start in zip(said, why, strict=True)), said


def test_an_enum_of_an_earlier_version_has_no_names() -> None:
    new = type_schema(Inserted)
    assert new is not None and type_changes({"is": "enum", "values": [1, 2]}, new) == []


@pytest.mark.parametrize(
    ("kind", "default", "why"),
    [(int, 0, ["field n is left out where it is nothing, and would be read as 0"]), (int | None, None, [])],
)
def test_what_may_be_unset_gets_no_default(kind: object, default: object, why: list[str]) -> None:
    old, new = type_schema(struct([("n", int | msgspec.UnsetType, msgspec.UNSET)])), type_schema(struct([("n", kind, default)]))
    assert old is not None and new is not None and type_changes(old, new) == why
