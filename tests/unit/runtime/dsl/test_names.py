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
    StreamJoined,
    StreamsBuilder,
    StreamsConfig,
    Suppressed,
    TableJoined,
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
    for told in (
        "store KSTREAM-AGGREGATE-STATE-STORE-0000000002 (Materialized(…))",
        "store KSTREAM-JOINTHIS-0000000011-store (StreamJoined(store_name=…))",
        "store KSTREAM-JOINOTHER-0000000012-store (StreamJoined(store_name=…))",
        "repartition topic KSTREAM-AGGREGATE-STATE-STORE-0000000002-repartition (Grouped(name=…))",
        "-repartition (Joined(name=…) or StreamJoined(name=…))",
        "(Suppressed.….with_name(…))",
        "(TableJoined(…))",
    ):
        assert told in str(refused.value)
    assert "not-kept" not in str(refused.value), "there is no store"


@pytest.mark.parametrize("define", [with_names, moved_from_generated])
def test_given_names_are_let_in_whatever_they_look_like(define: Callable[[StreamsBuilder], None]) -> None:
    topology = built(define, NAMED).build()
    TopologyTestDriver(topology, NAMED).close()


def test_otherwise_a_client_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    topology = built(without_names, CONFIG).build()
    with caplog.at_level(logging.WARNING):
        KafkaStreams(topology, CONFIG).close()
    told = [record for record in caplog.records if "names were generated" in record.message]
    assert len(told) == 1
    assert "store KSTREAM-AGGREGATE-STATE-STORE-0000000002 (Materialized(…))" in told[0].message


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
