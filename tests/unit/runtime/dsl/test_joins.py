"""Joins that cannot be, what they make for themselves, and who can read their results."""

from __future__ import annotations

import inspect
import pydoc
import re
import typing
from collections.abc import Callable
from datetime import timedelta

import pytest

from penstock import (
    Consumed,
    Grouped,
    Joined,
    JoinWindows,
    KeyValueStore,
    KStream,
    KTable,
    Materialized,
    StreamJoined,
    StreamsBuilder,
    StreamsConfig,
    TableJoined,
    Topology,
    TopologyError,
    WrongPartitionsError,
    serdes,
)
from penstock.runtime.stores import Stores
from penstock.runtime.topology.internal_topics import plan_partitions
from penstock.testing import TopologyTestDriver

S = serdes.STRING
FIVE = JoinWindows.of_time_difference_with_no_grace(5)
CONFIG = StreamsConfig({"application.id": "app", "bootstrap.servers": "localhost:9092"})


def plus(left: object, right: object) -> str:
    return f"{left}+{right}"


def streams(builder: StreamsBuilder) -> tuple[KStream, KStream]:
    return builder.stream("in", Consumed(S, value=S)), builder.stream("other", Consumed(S, value=S))


def tables(builder: StreamsBuilder) -> tuple[KTable, KTable]:
    return builder.table("in", Consumed(S, value=S)), builder.table("other", Consumed(S, value=S))


def partitions(topology: Topology, **existing: int) -> dict[str, int]:
    made = topology.resolved(CONFIG)
    return plan_partitions(made.sub_topologies(), made.internal_topics(), made.copartition_groups(), existing)


# -- windows ---------------------------------------------------------------------------------------------------------------------------


def test_a_window_may_lie_on_one_side_but_not_be_negative() -> None:
    after = JoinWindows.of_time_difference_and_grace(timedelta(seconds=9), 2).before(timedelta(seconds=-2))
    assert (after.before_ms, after.after_ms, after.grace_period_ms, after.size_ms) == (-2_000, 9_000, 2, 7_000)
    assert FIVE.after(-3).after_ms == -3
    with pytest.raises(TopologyError, match="must not be negative: -2 ms before, 1 ms after"):
        FIVE.after(1).before(-2)
    with pytest.raises(ValueError, match="the grace period must not be negative"):
        JoinWindows.of_time_difference_and_grace(5, -1)


def test_streams_are_joined_over_join_windows() -> None:
    left, right = streams(StreamsBuilder())
    with pytest.raises(TopologyError, match="over JoinWindows, not over int"):
        left.join(right, plus, 5)  # type: ignore[call-overload]
    with pytest.raises(TopologyError, match="with a KStream, a KTable or a GlobalKTable, not with str"):
        left.join("other", plus, FIVE)  # type: ignore[call-overload]
    with pytest.raises(TopologyError, match="with a KStream, not with KTable"):
        left.outer_join(StreamsBuilder().table("t"), plus, FIVE)  # type: ignore[call-overload]


def test_a_joiner_that_takes_neither_form_is_refused() -> None:
    def one(value: str) -> str:
        return value

    left, right = streams(StreamsBuilder())
    with pytest.raises(TopologyError, match="KSTREAM-MERGE-0000000006"):
        left.join(right, one, FIVE)  # type: ignore[arg-type]


@pytest.mark.parametrize(("retention", "size", "duplicates"), [(10, 10, False), (11, 10, True), (12, 12, True)])
def test_a_store_that_does_not_fit_the_windows_is_refused(retention: int, size: int, duplicates: bool) -> None:
    left, right = streams(StreamsBuilder())
    store = Stores.in_memory_window_store("mine", retention, size, duplicates)
    with pytest.raises(
        TopologyError, match="store mine: the join needs a window size of 10 ms, a retention of 10 ms and duplicates retained"
    ):
        left.join(right, plus, FIVE, StreamJoined(this_store=store))


def test_the_stores_of_a_join_have_two_names() -> None:
    store = Stores.in_memory_window_store("mine", 10, 10, True)
    with pytest.raises(TopologyError, match="both stores are called mine"):
        StreamJoined(this_store=store, other_store=store)


# -- tables ----------------------------------------------------------------------------------------------------------------------------


def test_a_grace_period_needs_a_versioned_table_with_a_history_as_long() -> None:
    builder = StreamsBuilder()
    plain, stream = builder.table("plain", Consumed(S, value=S)), builder.stream("in", Consumed(S, value=S))
    rows = builder.table("rows", Consumed(S, value=S), Materialized(Stores.persistent_versioned_key_value_store("rows", 10)))
    with pytest.raises(TopologyError, match="needs a versioned table"):
        stream.join(plain, plus, Joined(grace_period=5))
    with pytest.raises(TopologyError, match="needs a versioned table"):
        stream.join(rows.filter(lambda k, v: True, Materialized("kept")), plus, Joined(grace_period=5))
    with pytest.raises(TopologyError, match="history retention of 10 ms is shorter than the grace period, 11 ms"):
        stream.join(rows.map_values(str.upper), plus, Joined(grace_period=11))
    stream.join(rows.map_values(str.upper), plus, Joined(grace_period=10))


def test_a_global_table_cannot_be_versioned() -> None:
    with pytest.raises(TopologyError, match="global table rows: its store cannot be versioned"):
        StreamsBuilder().global_table("rows", None, Materialized(Stores.persistent_versioned_key_value_store("rows", 10)))


def test_a_table_is_joined_with_tables_only() -> None:
    builder = StreamsBuilder()
    left, _ = tables(builder)
    stream = builder.stream("s")
    with pytest.raises(TopologyError, match="with a KTable, not with KStream"):
        left.join(stream, plus)  # type: ignore[call-overload]
    with pytest.raises(TopologyError, match="with a KTable, not with KStream"):
        left.left_join(stream, lambda value: value, plus)  # type: ignore[call-overload]


def test_results_are_kept_under_the_name_that_was_given() -> None:
    builder = StreamsBuilder()
    left, right = tables(builder)
    by_key = left.join(right, plus, Materialized("by-key", value=S))
    foreign = left.join(right, lambda value: value, joiner=plus, materialized=Materialized("foreign", value=S))
    assert (by_key.queryable_store_name, foreign.queryable_store_name) == ("by-key", "foreign")
    assert left.outer_join(right, plus).queryable_store_name is None
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("in", S, S).pipe_input("a", "a", 1)
        driver.create_input_topic("other", S, S).pipe_input("a", "x", 2)
        for name in ("by-key", "foreign"):
            store: KeyValueStore = driver.get_key_value_store(name)
            assert store.get("a") == "a+x"


# -- topics ----------------------------------------------------------------------------------------------------------------------------


def test_joined_topics_with_unequal_partitions_are_named() -> None:
    of_streams, of_tables = StreamsBuilder(), StreamsBuilder()
    left, right = streams(of_streams)
    left.join(right, plus, FIVE)
    row, other = tables(of_tables)
    row.outer_join(other, plus)
    for builder in (of_streams, of_tables):
        made = builder.build()
        assert made.copartition_groups() == (frozenset({"in", "other"}),)
        found = made.resolved(CONFIG)
        with pytest.raises(WrongPartitionsError, match="in has 2, other has 3; repartition one of them"):
            plan_partitions(found.sub_topologies(), (), found.copartition_groups(), {"in": 2, "other": 3})


def test_a_stream_that_is_repartitioned_follows_the_one_that_is_not() -> None:
    builder = StreamsBuilder()
    left, right = streams(builder)
    how = StreamJoined(S, value=S, other_value=S, name="by", store_name="stores")
    left.select_key(lambda k, v: v).join(right, plus, FIVE, how)
    found = partitions(builder.build(), **{"in": 2, "other": 3})
    assert found["app-by-left-repartition"] == found["app-stores-this-join-store-changelog"] == 3


def test_a_foreign_key_joins_tables_of_unequal_partitions() -> None:
    builder = StreamsBuilder()
    left, right = tables(builder)
    left.join(right, lambda value: value, plus, TableJoined(name="fk"))
    found = partitions(builder.build(), **{"in": 2, "other": 3})
    assert (found["app-fk-subscription-registration-topic"], found["app-fk-subscription-response-topic"]) == (3, 2)


def test_what_follows_a_foreign_key_join_has_as_many_partitions_as_its_left_table() -> None:
    """The join's two topics follow each other; the left table is read from a topic, or follows a repartition topic itself."""
    for repartitioned in (False, True):
        builder = StreamsBuilder()
        left, right = tables(builder)
        if repartitioned:
            left = left.to_stream().select_key(lambda k, v: v).to_table("left", Materialized("left", key=S, value=S))
        joined = left.join(right, lambda value: value, plus, TableJoined(name="fk"), Materialized("joined", key=S, value=S))
        joined.group_by(lambda k, v: (v, v), Grouped(S, value=S, name="after")).count("counts")
        found = partitions(builder.build(), **{"in": 2, "other": 3})
        assert (found["app-fk-subscription-registration-topic"], found["app-fk-subscription-response-topic"]) == (3, 2)
        assert found["app-after-repartition"] == found["app-counts-changelog"] == 2


def test_records_of_a_join_are_deleted_by_time_and_never_compacted() -> None:
    builder = StreamsBuilder()
    left, right = streams(builder)
    left.left_join(right, plus, FIVE, StreamJoined(S, value=S, other_value=S, store_name="s"))
    settings = {topic.name: topic.config["cleanup.policy"] for topic in builder.build().resolved(CONFIG).internal_topics()}
    assert settings == {
        "app-s-this-join-store-changelog": "delete",
        "app-s-outer-other-join-store-changelog": "delete",
        "app-s-left-shared-join-store-changelog": "compact",
    }


def test_answers_go_to_the_partition_that_asked_or_where_the_partitioner_says() -> None:
    builder = StreamsBuilder()
    left, right = tables(builder)
    asked: list[tuple[str, object, object, int]] = []

    def by_first(topic: str, key: object, value: object, count: int) -> int:
        asked.append((topic, key, value, count))
        return 0

    joined = left.join(right, lambda value: value, plus, TableJoined(by_first, by_first, "fk"), Materialized("result", value=S))
    assert joined.queryable_store_name == "result"
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("other", S, S).pipe_input("b", "x", 1)
        driver.create_input_topic("in", S, S).pipe_input("a", "b", 2)
    assert asked == [
        ("topology-test-fk-subscription-registration-topic", "b", None, 1),
        ("topology-test-fk-subscription-response-topic", "a", None, 1),
    ]


def test_a_missing_serde_of_a_foreign_key_is_named_with_its_node() -> None:
    builder = StreamsBuilder()
    left, right = builder.table("in", Consumed(S)), builder.table("other", Consumed(value=S))
    left.join(right, lambda value: value, plus)
    with pytest.raises(TopologyError, match=r"has no (key|value) serde"):
        builder.build({"application.id": "app", "bootstrap.servers": "localhost:9092"})


@pytest.mark.parametrize("join", [KStream.join, KStream.left_join, KTable.join, KTable.left_join])
def test_help_shows_the_parameters_of_each_overload(join: Callable[..., object]) -> None:
    shown = pydoc.plain(pydoc.render_doc(join))
    overloads = typing.get_overloads(join)
    assert len(overloads) >= 3
    for overload in overloads:
        names = [each for each in inspect.signature(overload).parameters if each != "self"]
        assert re.search(rf"^ +{join.__name__}\({'.*'.join(f'{name}: ' for name in names)}.*\) -> ", shown, re.MULTILINE), names
