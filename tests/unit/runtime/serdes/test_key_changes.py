"""Keys that evolve: a change is accepted only if every existing key is written as the same bytes."""

from __future__ import annotations

import base64
import enum
import subprocess
import sys
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, ClassVar, NamedTuple

import msgspec
import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from hypothesis import given
from hypothesis import strategies as st

from penstock import serdes
from penstock.runtime.serdes.key_changes import key_changes
from penstock.runtime.serdes.serde_format import SerdeFormat
from penstock.runtime.stores.store_format import StoreFormat, store_changes
from tests.support import ROOT


@dataclass(frozen=True)
class Place:
    name: str


@dataclass(frozen=True)
class Town:
    name: str
    country: str = ""


@dataclass(frozen=True)
class Turned:
    country: str
    name: str


@dataclass(frozen=True)
class Settled:
    country: str = "FR"
    name: str = ""


class Slim(msgspec.Struct, omit_defaults=True):
    name: str
    n: int = 0


class Light(enum.Enum):
    RED = 1
    GREEN = 2


class Lights(enum.Enum):
    RED = 1
    GREEN = 2
    BLUE = 3


class Node(msgspec.Struct):
    n: int
    next: Node | None = None


class Other(msgspec.Struct):
    n: int
    next: Other | None = None


def formats(*kinds: Any) -> list[SerdeFormat]:  # noqa: ANN401  # types and unions
    return [serdes.json(kind).format() for kind in kinds]


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (Place, Place),
        (Light, Lights),
        (Node, Other),
        (int, int | None),
        (int, int | str),
        (list[Light], list[Lights]),
        (str, Any),
        (Turned, Settled),
    ],
)
def test_a_change_that_writes_every_key_as_before_is_accepted(written: object, read: object) -> None:
    old, new = formats(written, read)
    assert key_changes([old], new) == []


@pytest.mark.parametrize(
    ("written", "read", "why"),
    [
        (Place, Town, "field country is new"),
        (Town, Place, "field country is gone"),
        (Town, Settled, "the order of the fields of the key has changed"),
        (int, float, "the key was int and is float"),
        (list[int], list[Decimal], "field [] was int and is decimal"),
        (set[int], list[int], "the key was set and is array"),
        (list[Place], list[Town], "field [].country is new"),
        (dict[str, Place], dict[str, Town], "field [].country is new"),
        (tuple[int, Place], tuple[int, Town], "field [1].country is new"),
        (Place | None, Town | None, "the key has another type"),
    ],
)
def test_a_change_that_writes_a_key_as_other_bytes_is_refused(written: object, read: object, why: str) -> None:
    old, new = formats(written, read)
    [said] = key_changes([old], new)
    assert said == f"{why}, so they would be written as other bytes, by which what is stored is not found"


def test_what_is_left_out_of_a_key_stays_the_same() -> None:
    class Slim(msgspec.Struct):
        name: str
        n: int = 0

    old, new = formats(globals()["Slim"], Slim)
    assert key_changes([old], new)[0].startswith("field n is left out for other values, so they would be")


def test_any_earlier_version_and_the_rules_of_values_count_too() -> None:
    place, town = formats(Place, Town)
    assert key_changes([place, town], town) and not key_changes([town], town)
    assert key_changes([place], formats(Turned)[0])[0].startswith("field country is new and has no default")


def descriptor(*names: str) -> str:
    fields = [FieldDescriptorProto(name=name, number=number, type="TYPE_STRING") for number, name in enumerate(names, 1)]
    file = FileDescriptorProto(name="a.proto", syntax="proto3", message_type=[DescriptorProto(name="A", field=fields)])
    return base64.b64encode(file.SerializeToString()).decode()


@pytest.mark.parametrize(
    ("language", "first", "same", "other"),
    [
        ("AVRO", '{"type": "string"}', '{ "type":"string"}', '{"type": "string", "doc": "x"}'),
        ("JSON", '{"type": "string"}', '{ "type":"string"}', '{"type": "string", "description": "x"}'),
        ("PROTOBUF", descriptor("a"), descriptor("a"), descriptor("a", "b")),
    ],
)
def test_another_schema_in_a_registry_has_another_id(language: str, first: str, same: str, other: str) -> None:
    before, alike, later = (SerdeFormat(name=language, detail="A", language=language, text=text) for text in (first, same, other))
    assert not key_changes([before], alike)
    assert key_changes([before], later)[0].startswith("their schema has changed, and with it the id that they begin with")


def test_a_wrapper_is_compared_by_what_it_wraps_and_a_store_by_both_rules() -> None:
    place, town = (serdes.list_of(serdes.json(kind)).format() for kind in (Place, Town))
    assert key_changes([place], town)[0].startswith("field country is new")
    old, new = formats(Place, Town)
    before = StoreFormat(timestamped=True, keys=(old,), values=(old,))
    assert store_changes(before, StoreFormat(timestamped=True, keys=(old,), values=(new,))) == []
    [said] = store_changes(before, StoreFormat(timestamped=True, keys=(new,), values=(old,)))
    assert said.startswith("its keys: field country is new, so they would be written as other bytes")


# -- equal keys are equal bytes ------------------------------------------------------------------------------------------------------


@dataclass
class Plain:
    a: int
    b: int = 0
    of: list[Town] | None = None
    next: Plain | None = None


@given(st.dictionaries(st.sampled_from(["a", "b", "of", "next"]), st.just(1), min_size=1))
def test_a_dataclass_that_was_read_is_written_as_one_that_was_made(given_fields: dict[str, int]) -> None:
    serde = serdes.json(Plain)
    write, read = serde.serializer("t"), serde.deserializer("t")
    values = {"b": 5, "of": [{"name": "Paris"}], "next": {"a": 7}}
    raw = msgspec.json.encode({"a": 1, **{name: values[name] for name in given_fields if name != "a"}})
    made = Plain(
        1,
        5 if "b" in given_fields else 0,
        [Town("Paris")] if "of" in given_fields else None,
        Plain(7) if "next" in given_fields else None,
    )
    value = read(raw)
    assert value == made
    assert write(value) == write(made) == msgspec.json.encode(made)


def test_a_set_is_written_in_the_same_order_by_every_process() -> None:
    value = "{'b': frozenset('penstock'), 'a': frozenset('kafka')}"
    program = f"from penstock import serdes; print(serdes.json(dict[str, frozenset[str]]).serializer('t')({value}))"
    said = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": str(seed)}, cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
        for seed in range(3)
    }
    assert len(said) == 1 and "".join(said).startswith('b\'{"a":["a","f","k"],"b":["c",')


class Tagged(msgspec.Struct, frozen=True):
    name: str
    lights: frozenset[Light] = frozenset()


class Pair(NamedTuple):
    tags: frozenset[Tagged]
    number: int


@dataclass(frozen=True, slots=True)
class Holder:
    made: ClassVar[int] = 0
    pair: Pair | None = None
    by_number: dict[int, set[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        Holder.made += 1


UNORDERED: list[tuple[Any, str]] = [
    (set[Light], "{Light.RED, Light.GREEN}"),
    (set[int | str], "{1, 2, 'a', 'b', 'c'}"),
    (dict[int, set[str]], "{2: set('penstock'), 1: set('kafka')}"),
    (list[frozenset[Tagged]], "[frozenset(Tagged(name, frozenset(Light)) for name in 'penstock')]"),
    (Holder, "Holder(Pair(frozenset(map(Tagged, 'penstock')), 1), {1: set('kafka')})"),
]
"""Types with sets that msgspec cannot order, with a value of each."""


def test_sets_that_msgspec_cannot_order_are_written_in_order_too() -> None:
    program = f"from {__name__} import *; print([serdes.json(kind).serializer('t')(eval(value)) for kind, value in UNORDERED])"
    said = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": str(seed)}, cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
        for seed in range(3)
    }
    assert len(said) == 1
    for kind, text in UNORDERED:
        value = eval(text)  # our own
        before, made = repr(value), Holder.made
        serde = serdes.json(kind)
        written = serde.serializer("t")(value) or b""
        assert repr(value) == before and Holder.made == made, "the program's value is left as it is, and no code of its class has run"
        assert serde.deserializer("t")(written) == value
        assert msgspec.json.decode(written, type=kind) == msgspec.json.decode(msgspec.json.encode(value), type=kind)
