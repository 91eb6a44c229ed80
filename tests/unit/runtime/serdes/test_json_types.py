"""A type whose values msgspec cannot write as JSON and read again is refused where its serde is declared, not when state is read."""

from __future__ import annotations

import enum
import fractions
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, Protocol

import msgspec
import pytest

from penstock import serdes
from penstock.runtime.model.errors import TopologyError
from penstock.runtime.model.type_variables import T
from penstock.runtime.serdes.serde_format import format_changes


class Money:
    def __init__(self, amount: int, currency: str) -> None:
        self.amount, self.currency = amount, currency


@dataclass
class Order:
    number: int
    total: list[Money | None]


class Ratio(enum.Enum):
    HALF = 0.5


class Pair(NamedTuple):
    left: int
    right: complex


class Changeable(msgspec.Struct):
    n: int


class OtherChangeable(msgspec.Struct):
    n: int


class Shaped(Protocol):
    n: int


class Box(msgspec.Struct, Generic[T]):
    content: T
    more: int = 0


class Lean(msgspec.Struct, Generic[T], omit_defaults=True):
    content: T
    more: int = 0


@dataclass
class Tree:
    children: list[Tree | None]
    by_number: dict[int, Tree]


@dataclass
class Strange:
    """Its `__init__` takes other arguments than its fields; msgspec does not call it."""

    n: int

    def __init__(self, text: str) -> None:
        self.n = int(text)


def with_unknown_name() -> type:
    @dataclass
    class Broken:
        other: Missing  # type: ignore[name-defined]  # noqa: F821  # the mistake

    return Broken


REFUSED: list[tuple[object, str, str]] = [
    (Money, "type Money", "the value is Money, which msgspec cannot read"),
    (Order, "type Order", "field total[] is Money"),
    (list[Money], "Money]", "the value at [] is Money"),
    (Box[Money], "Box[", "field content is Money"),
    (Pair, "type Pair", "field right is complex"),
    (with_unknown_name(), "Broken", "name 'Missing' is not defined"),
    (Ratio, "type Ratio", "Enums must contain either all str or all int"),
    (Changeable | OtherChangeable, "Changeable | ", "must be tagged"),
    (str | datetime, "str | datetime", "more than one str-like type"),
    (int | Money, "Money", "custom type"),
    (Annotated[int, msgspec.Meta(min_length=3)], "Annotated", "Can only set `min_length`"),
    (Literal[1.5], "Literal[1.5]", "Literal may only contain"),
    (dict[tuple[int, int], int], "dict[tuple", "keys of the value are neither texts nor numbers"),
    (dict[bool, int], "dict[bool", "neither texts nor numbers"),
    (dict[int | str, int], "dict[int | str", "a number would be read as a text"),
    (set[list[int]], "set[list", "a set of values that are not hashable"),
    (frozenset[Changeable], "frozenset[", "not hashable"),
    *((kind, "type", "which msgspec cannot read") for kind in (Path, fractions.Fraction, deque, Counter, OrderedDict[str, int], Shaped)),
    (Callable[[int], int], "Callable", "which msgspec cannot read"),
    (5, "type 5", "not supported"),
    ("int", "type 'int'", "not supported"),
]


@pytest.mark.parametrize(("kind", "name", "why"), REFUSED, ids=[str(kind) for kind, *_ in REFUSED])
@pytest.mark.parametrize(
    "declare",
    [serdes.json, lambda kind: serdes.avro("mock://types", kind=kind), lambda kind: serdes.json_schema("mock://types", kind=kind)],
)
def test_a_type_that_cannot_be_read_again_is_refused_at_its_declaration(
    kind: Any,  # noqa: ANN401  # what a user may write there
    name: str,
    why: str,
    declare: Callable[[Any], object],
) -> None:
    with pytest.raises(TopologyError) as caught:
        declare(kind)
    message = str(caught.value)
    assert message.startswith("serdes.")
    assert name in message and why in message and "define a serde of your own" in message


READ: list[tuple[Any, object]] = [
    (Tree, Tree([Tree([], {}), None], {7: Tree([], {})})),
    (Strange, Strange("3")),
    (Box[int], Box(1)),
    (Lean[dict[str, list[int]]], Lean({"a": [1]})),
    (list[Box[str] | None], [Box("a"), None]),
    (object, {"a": [1, "b"]}),
    (Iterable[int], [1, 2]),
    (dict[int, set[tuple[int, str]]], {1: {(2, "c")}}),
    (dict[Literal[1, 2], int], {1: 2}),
    (dict[float, int], {1.5: 2}),
    (Any, [1]),
]


@pytest.mark.parametrize(("kind", "value"), READ, ids=[str(kind) for kind, _ in READ])
def test_a_type_that_is_accepted_reads_what_it_wrote_and_has_a_format(kind: Any, value: object) -> None:  # noqa: ANN401  # as above
    serde = serdes.json(kind)
    found = serde.deserializer("t")(serde.serializer("t")(value) or b"")
    assert (found.n, found.__dict__) == (3, {"n": 3}) if isinstance(value, Strange) else found == value
    assert format_changes(serde.format(), serdes.json(kind).format()) == []


def test_a_generic_class_evolves_like_any_other() -> None:
    """Its name in the description is that of the class, for each of its arguments."""
    assert format_changes(serdes.json(Box[int]).format(), serdes.json(Box[float]).format()) == []
    assert format_changes(serdes.json(Box[float]).format(), serdes.json(Box[int]).format()) == ["field content is float and is read as int"]
    assert format_changes(serdes.json(Box[int]).format(), serdes.json(Lean[int]).format()) == []
    assert serdes.json(Lean[int]).format().schema != serdes.json(Box[int]).format().schema


class Measured(msgspec.Struct):
    mean: float
    note: str | None = None


class Perhaps(msgspec.Struct):
    mean: float | None
    inner: Measured | None = None


NON_FINITE: list[tuple[Any, object]] = [
    (Measured, Measured(math.nan)),
    (Perhaps, Perhaps(math.inf)),
    (Perhaps, Perhaps(1.0, Measured(-math.inf))),
    (dict[str, list[float]], {"a": [1.0, math.nan]}),
    (float, math.nan),
    (float | None, math.nan),
    (tuple[float, ...], (math.inf,)),
    (Box[float], Box(math.nan)),
    (Any, {"a": [{"b": math.nan}]}),
    (object, [math.nan]),
]


@pytest.mark.parametrize(("kind", "value"), NON_FINITE, ids=[repr(value) for _, value in NON_FINITE])
def test_what_json_has_not_is_refused_when_it_is_written_and_not_when_the_state_is_read(kind: Any, value: object) -> None:  # noqa: ANN401  # as above
    serde = serdes.JSON if kind is Any else serdes.json(kind)
    with pytest.raises(ValueError, match=r"JSON has no (nan|inf|-inf), which would be written as null"):
        serde.serializer("t")(value)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Measured, Measured(1.5)),
        (Measured, Measured(1.5, "null")),
        (Perhaps, Perhaps(None, Measured(0.0))),
        (dict[str, float], {"null": 1.0}),
        (dict[str, Any], {"a": None, "b": [1.5, "null"]}),
        (bytes | None, None),
    ],
)
def test_null_where_it_is_meant_is_written(kind: Any, value: object) -> None:  # noqa: ANN401  # as above
    serde = serdes.json(kind)
    assert serde.deserializer("t")(serde.serializer("t")(value) or b"") == value
