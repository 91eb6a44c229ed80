"""Generated names: listed, refused where that is asked for, and what moves them."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from penstock import (
    Grouped,
    Joined,
    JoinWindows,
    KafkaStreams,
    Materialized,
    ProcessingError,
    StreamJoined,
    StreamsBuilder,
    StreamsConfig,
    Suppressed,
    TableJoined,
    Topology,
    TopologyError,
    serdes,
)
from penstock.testing import TopologyTestDriver

CONFIG = {
    "application.id": "app",
    "bootstrap.servers": "none:9092",
    "default.key.serde": serdes.STRING,
    "default.value.serde": serdes.STRING,
}
NAMED = {**CONFIG, "ensure.explicit.internal.resource.naming": True}
WINDOW = JoinWindows.of_time_difference_with_no_grace(10)


def by_value(_key: object, value: object) -> object:
    return value


def left(one: object, _other: object) -> object:
    return one


def without_names(builder: StreamsBuilder) -> None:
    builder.stream("in").group_by(by_value).count()
    builder.stream("one").join(builder.stream("two"), left, WINDOW)
    table = builder.table("rows", materialized=Materialized("rows"))
    builder.stream("three").select_key(by_value).join(table, left)
    table.suppress(Suppressed.until_time_limit(5, Suppressed.BufferConfig.max_records(3)))
    table.join(table, lambda value: value, left)
    builder.table("not-kept").to_stream().to("out")


FIRST = without_names.__code__.co_firstlineno + 1
"""The line of the first operation."""


def with_names(builder: StreamsBuilder) -> None:
    builder.stream("in").group_by(by_value, Grouped(name="by-value")).count(Materialized("counts"))
    builder.stream("one").join(builder.stream("two"), left, WINDOW, StreamJoined(store_name="both"))
    table = builder.table("rows", materialized=Materialized("rows"))
    builder.stream("three").select_key(by_value).join(table, left, Joined(name="joined"))
    table.suppress(Suppressed.until_time_limit(5, Suppressed.BufferConfig.max_records(3)).with_name("later"))
    table.join(table, lambda value: value, left, TableJoined(name="foreign"))


def moved_from_generated(builder: StreamsBuilder) -> None:
    """Names as they were generated once, now given, so that the state stays."""
    grouped = builder.stream("in").group_by(by_value, Grouped(name="KSTREAM-AGGREGATE-STATE-STORE-0000000002"))
    grouped.count(Materialized("KSTREAM-AGGREGATE-STATE-STORE-0000000002"))


def built(define: Callable[[StreamsBuilder], None], config: dict[str, object]) -> StreamsBuilder:
    builder = StreamsBuilder()
    define(builder)
    builder.build(config)
    return builder


def test_all_generated_names_are_refused_in_one_error_with_what_names_them() -> None:
    with pytest.raises(TopologyError) as refused:
        built(without_names, NAMED)
    for reported in (
        f"store KSTREAM-AGGREGATE-STATE-STORE-0000000002 of count at test_names.py:{FIRST} (Materialized(…))",
        f"store KSTREAM-JOINTHIS-0000000011-store of join at test_names.py:{FIRST + 1} (StreamJoined(store_name=…))",
        f"store KSTREAM-JOINOTHER-0000000012-store of join at test_names.py:{FIRST + 1} (StreamJoined(store_name=…))",
        f"repartition topic KSTREAM-AGGREGATE-STATE-STORE-0000000002-repartition of count at test_names.py:{FIRST} (Grouped(name=…))",
        f"-repartition of join at test_names.py:{FIRST + 3} (Joined(name=…) or StreamJoined(name=…))",
        "(Suppressed.….with_name(…))",
        "(TableJoined(…))",
    ):
        assert reported in str(refused.value)
    assert "not-kept" not in str(refused.value), "there is no store"


@pytest.mark.parametrize("define", [with_names, moved_from_generated])
def test_given_names_are_let_in_whatever_they_look_like(define: Callable[[StreamsBuilder], None]) -> None:
    topology = built(define, NAMED).build()
    TopologyTestDriver(topology, NAMED).close()


def test_otherwise_a_client_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    topology = built(without_names, CONFIG).build()
    with caplog.at_level(logging.WARNING):
        KafkaStreams(topology, CONFIG).close()
    reported = [record for record in caplog.records if "names were generated" in record.message]
    assert len(reported) == 1
    assert f"store KSTREAM-AGGREGATE-STATE-STORE-0000000002 of count at test_names.py:{FIRST} (Materialized(…))" in reported[0].message


OF_THE_COUNT = ("KSTREAM-AGGREGATE-0000000005", "KSTREAM-SINK-0000000006", "KSTREAM-FILTER-0000000007", "KSTREAM-SOURCE-0000000008")


def chained(builder: StreamsBuilder) -> None:
    (
        builder.stream("in")
        .filter(lambda key, value: True, "named")
        .map_values(
            lambda value: value.missing,
        )
        .group_by(by_value)
        .count()
    )


def test_an_unnamed_node_is_shown_with_the_line_that_made_it_beside_kafka_streams_description() -> None:
    line = chained.__code__.co_firstlineno + 2
    topology = built(chained, CONFIG).build()
    by_hand = Topology().add_source("KSTREAM-SOURCE-0000000000", "in").describe()
    sites = topology.describe().call_sites
    assert sites == {
        "KSTREAM-SOURCE-0000000000": f"stream at test_names.py:{line}",
        "KSTREAM-MAPVALUES-0000000002": f"map_values at test_names.py:{line + 2}",
        "KSTREAM-KEY-SELECT-0000000003": f"group_by at test_names.py:{line + 5}",
        **dict.fromkeys(OF_THE_COUNT, f"count at test_names.py:{line + 6}"),
    }
    assert "test_names.py" not in str(topology.describe()) and by_hand.call_sites["KSTREAM-SOURCE-0000000000"].startswith("add_source at ")
    assert topology.resolved(StreamsConfig(CONFIG)).sub_topologies()[0].label("named") == "named"


def test_an_error_of_a_lambda_says_where_the_lambda_is_and_which_line_made_its_node() -> None:
    line = chained.__code__.co_firstlineno + 2
    with TopologyTestDriver(built(chained, CONFIG).build(), CONFIG) as driver, pytest.raises(ProcessingError) as failed:
        driver.create_input_topic("in", serdes.STRING, serdes.STRING).pipe_input("key", "value")
    assert str(failed.value) == (
        f"task 0_0, node KSTREAM-MAPVALUES-0000000002 (map_values at test_names.py:{line + 2}), record in-0@0, "
        f"at {__file__}:{line + 3} in chained.<locals>.<lambda>: AttributeError: 'str' object has no attribute 'missing'"
    )
    assert failed.value.node == "KSTREAM-MAPVALUES-0000000002"


def stores(*definitions: Callable[[StreamsBuilder], object]) -> set[str]:
    builder = StreamsBuilder()
    for define in definitions:
        define(builder)
    topology = builder.build().resolved(StreamsConfig(CONFIG))
    return {store.name for part in topology.sub_topologies() for store in part.stores}


def test_an_addition_behind_keeps_generated_names_one_in_front_moves_them_and_names_protect() -> None:
    def count(builder: StreamsBuilder) -> None:
        builder.stream("in").group_by_key().count()

    def named(builder: StreamsBuilder) -> None:
        builder.stream("in").group_by_key().count(Materialized("counts"))

    def more(builder: StreamsBuilder) -> None:
        builder.stream("more").map_values(str).to("out")

    assert stores(count) == stores(count, more) == {"KSTREAM-AGGREGATE-STATE-STORE-0000000001"}
    assert stores(more, count) == {"KSTREAM-AGGREGATE-STATE-STORE-0000000004"}
    assert stores(named) == stores(more, named) == stores(named, more) == {"counts"}
