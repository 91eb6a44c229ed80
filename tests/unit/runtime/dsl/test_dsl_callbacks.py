"""The two forms of a callback are distinguished when the topology is built, and one that fits neither is refused then."""

from __future__ import annotations

import functools
import operator
from collections.abc import AsyncIterator, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Materialized, Named, SessionWindows, StreamsBuilder, TimeWindows, TopologyError, serdes
from penstock.runtime.dsl.kstream import KStream
from penstock.runtime.model.arity import checked, takes_key


class Method:
    def value(self, value: object) -> object:
        return value

    def pair(self, key: object, value: object) -> object:
        return key

    def __call__(self, key: object, value: object) -> object:
        return key


@pytest.mark.parametrize(
    ("function", "with_key"),
    [
        (lambda value: value, False),
        (lambda key, value: value, True),
        (lambda value, scale=2: value, False),
        (lambda key, value, scale=2: value, True),
        (lambda *arguments: arguments, False),
        (lambda key, value, *rest: value, True),
        (lambda value, *, unit="ms": value, False),
        (Method().value, False),
        (Method().pair, True),
        (Method(), True),
        (functools.partial(operator.add, 1), False),
        (functools.partial(lambda factor, key, value: value, 2), True),
        (int, False),
        (str.upper, False),
        (len, False),
    ],
)
def test_a_value_mapper_takes_the_key_where_it_has_two_parameters(function: Callable[..., object], with_key: bool) -> None:
    assert takes_key(function, 1, "node") is with_key


@pytest.mark.parametrize(
    ("function", "with_key"), [(lambda left, right: left, False), (lambda key, left, right: left, True), (operator.add, False)]
)
def test_a_joiner_takes_the_key_where_it_has_three_parameters(function: Callable[..., object], with_key: bool) -> None:
    assert takes_key(function, 2, "node") is with_key


@given(required=st.integers(0, 6), optional=st.integers(0, 6), given_now=st.integers(0, 6))
def test_a_function_is_taken_exactly_where_python_could_call_it(required: int, optional: int, given_now: int) -> None:
    parameters = [f"p{i}" for i in range(required)] + [f"q{i}=None" for i in range(optional)]
    function = eval(f"lambda {', '.join(parameters)}: None")
    arguments = [f"a{i}" for i in range(given_now)]
    try:
        function(*arguments)
    except TypeError:
        with pytest.raises(TopologyError, match="node n: "):
            checked(function, "n", *arguments)
    else:
        assert checked(function, "n", *arguments) is function


WINDOWS = TimeWindows.of_size_with_no_grace(10)


def one(value: object) -> object:
    return value


def three(a: object, b: object, c: object) -> object:
    return a


@pytest.mark.parametrize(
    ("operation", "node"),
    [
        (lambda s: s.filter(one), "KSTREAM-FILTER-0000000001"),
        (lambda s: s.filter(one, "late"), "late"),
        (lambda s: s.filter_not(one), "KSTREAM-FILTER-"),
        (lambda s: s.map(one), "KSTREAM-MAP-"),
        (lambda s: s.map_values(three), "KSTREAM-MAPVALUES-"),
        (lambda s: s.flat_map(three), "KSTREAM-FLATMAP-"),
        (lambda s: s.flat_map_values(three), "KSTREAM-FLATMAPVALUES-"),
        (lambda s: s.select_key(one), "KSTREAM-KEY-SELECT-"),
        (lambda s: s.peek(one), "KSTREAM-PEEK-"),
        (lambda s: s.foreach(three), "KSTREAM-FOREACH-"),
        (lambda s: s.group_by(one), "KSTREAM-KEY-SELECT-"),
        (lambda s: s.group_by_key().reduce(three), "KSTREAM-REDUCE-"),
        (lambda s: s.group_by_key().aggregate(one, three), "KSTREAM-AGGREGATE-"),
        (lambda s: s.group_by_key().aggregate(dict, one), "KSTREAM-AGGREGATE-"),
        (lambda s: s.group_by_key().windowed_by(WINDOWS).reduce(one), "KSTREAM-REDUCE-"),
        (lambda s: s.group_by_key().windowed_by(WINDOWS).aggregate(dict, one), "KSTREAM-AGGREGATE-"),
        (lambda s: s.group_by_key().count().filter(one), "KTABLE-FILTER-"),
        (lambda s: s.group_by_key().count().filter_not(three), "KTABLE-FILTER-"),
        (lambda s: s.group_by_key().count().map_values(three), "KTABLE-MAPVALUES-"),
        (lambda s: s.group_by_key().count().to_stream(one), "KSTREAM-KEY-SELECT-"),
        (lambda s: s.group_by_key().count().group_by(one), "KTABLE-SELECT-"),
        (lambda s: s.group_by_key().count().group_by(lambda k, v: (k, v)).reduce(three, three), "KTABLE-REDUCE-"),
        (lambda s: s.group_by_key().count().group_by(lambda k, v: (k, v)).aggregate(dict, three, one), "KTABLE-AGGREGATE-"),
        (lambda s: s.join(s.group_by_key().count(), one), "KSTREAM-JOIN-"),
        (lambda s: s.map_values(7), "KSTREAM-MAPVALUES-"),
    ],
)
def test_a_callback_that_does_not_fit_names_its_node(operation: Callable[[KStream], object], node: str) -> None:
    with pytest.raises(TopologyError, match=f"^node {node}"):
        operation(StreamsBuilder().stream("in"))


def test_the_message_says_what_is_given_and_what_is_taken() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in")
    with pytest.raises(TopologyError, match=r"node f: one is given \(key, value\) and takes 1$"):
        stream.filter(one, "f")  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match=r"three is given \(value\) or \(key, value\) and takes 3$"):
        stream.map_values(three)  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match=r"one is given \(left, right\) or \(key, left, right\) and takes 1$"):
        stream.join(builder.table("t"), one)  # type: ignore[arg-type]


def test_a_global_join_checks_selector_and_joiner() -> None:
    builder = StreamsBuilder()
    stream, table = builder.stream("in"), builder.global_table("t")
    with pytest.raises(TopologyError, match=r"given \(key, value\)"):
        stream.join(table, one, lambda left, right: left)  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match=r"given \(left, right\)"):
        stream.left_join(table, lambda key, value: key, one)  # type: ignore[arg-type]


def test_a_stream_is_joined_with_a_stream_over_windows_only() -> None:
    stream = StreamsBuilder().stream("in")
    with pytest.raises(TopologyError, match="joined over JoinWindows, not over nothing"):
        stream.join(stream, lambda left, right: left)  # type: ignore[call-overload]  # what the type checker says too


def test_a_name_alone_is_that_of_an_aggregates_store_and_a_named_is_that_of_its_node() -> None:
    grouped = StreamsBuilder().stream("in").group_by_key()
    named = [
        grouped.count("departures"),
        grouped.count(Materialized("by-object")),
        grouped.count(materialized="by-keyword"),
        grouped.count("in-front", named="node-1"),
        grouped.count("node-2", "behind"),
        grouped.count(Named("node-3"), Materialized("both")),
        grouped.reduce(lambda left, right: left, "reduced"),
        grouped.aggregate(lambda: 0, lambda key, value, total: total, "summed", value=serdes.LONG),
        grouped.windowed_by(WINDOWS).count("windowed"),
        grouped.windowed_by(WINDOWS).reduce(lambda left, right: left, "reduced-windows"),
        grouped.windowed_by(SessionWindows.of_inactivity_gap_with_no_grace(10)).count("sessions"),
        grouped.cogroup(lambda key, value, total: total).aggregate(lambda: 0, "cogrouped", value=serdes.LONG),
        grouped.count().group_by(lambda key, value: (key, value)).count("of-a-table"),
    ]
    assert [table.queryable_store_name for table in named] == [
        *("departures", "by-object", "by-keyword", "in-front", "behind", "both", "reduced", "summed", "windowed", "reduced-windows"),
        *("sessions", "cogrouped", "of-a-table"),
    ]
    assert [table.node for table in named[3:6]] == ["node-1", "node-2", "node-3"]
    assert named[0].node == "KSTREAM-AGGREGATE-0000000001"
    assert [grouped.count(Named("n")).queryable_store_name, grouped.count(named="m").queryable_store_name] == [None, None]


def test_a_node_or_store_that_is_named_twice_is_refused() -> None:
    grouped = StreamsBuilder().stream("in").group_by_key()
    with pytest.raises(TopologyError, match="the node is named twice: a and b"):
        grouped.count(Named("a"), named="b")
    with pytest.raises(TopologyError, match="the store is given twice: Materialized"):
        grouped.count(Materialized("a"), "b")
    with pytest.raises(TopologyError, match=r"serdes are given twice, beside Materialized\(...\) too: "):
        grouped.aggregate(lambda: 0, lambda key, value, total: total, Materialized("a"), value=serdes.LONG)


async def _awaited(key: object, value: object) -> object:
    return value


async def _yields(value: object) -> AsyncIterator[object]:
    yield value


class _AwaitedCall:
    async def __call__(self, key: object, value: object) -> object:
        return value


@pytest.mark.parametrize(
    "add",
    [
        lambda stream: stream.foreach(_awaited),
        lambda stream: stream.map_values(_awaited),
        lambda stream: stream.flat_map_values(_yields),
        lambda stream: stream.filter(functools.partial(_awaited)),
        lambda stream: stream.filter(_AwaitedCall()),
    ],
)
def test_an_async_function_is_refused(add: Callable[[KStream], object]) -> None:
    with pytest.raises(TopologyError, match=r"node KSTREAM-.*async function, which is never awaited"):
        add(StreamsBuilder().stream("in"))
