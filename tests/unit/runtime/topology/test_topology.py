"""A topology as data: its parts, the topics that it makes for itself, and how many partitions each must have."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import (
    Joined,
    Materialized,
    Processor,
    Repartitioned,
    Stores,
    StreamsBuilder,
    StreamsConfig,
    TimeWindows,
    Topology,
    TopologyError,
    ValueTransformerWithKey,
    WrongPartitionsError,
    serdes,
)
from penstock.runtime.operators.stateless import PassThrough
from penstock.runtime.stores import EngineStore, StoreBuilder
from penstock.runtime.topology.internal_topics import plan_partitions, task_count
from penstock.runtime.topology.nodes import Node, ProcessorNode, SourceNode, node_groups
from tests.support.building import STRINGS, second


def store(name: str) -> StoreBuilder[EngineStore]:
    return Stores.key_value_store_builder(Stores.in_memory_key_value_store(name), serdes.STRING, serdes.STRING)


def resolved(define: Callable[[StreamsBuilder], object], **config: object) -> Topology:
    builder = StreamsBuilder()
    define(builder)
    return builder.build().resolved(StreamsConfig({**STRINGS, **config}))


def partitions(topology: Topology, **existing: int) -> dict[str, int]:
    """Return the plan of `plan_partitions`, without the topics that exist."""
    planned = plan_partitions(topology.sub_topologies(), topology.internal_topics(), topology.copartition_groups(), existing)
    return {topic: number for topic, number in planned.items() if topic not in existing}


# -- parts -----------------------------------------------------------------------------------------------------------------------


def test_parts_are_numbered_in_the_order_in_which_they_were_begun() -> None:
    def define(builder: StreamsBuilder) -> None:
        builder.stream("z", "z-first").group_by(second, "b").count()
        builder.stream("a", "a-second").group_by(second, "a").count()

    parts = resolved(define).sub_topologies()
    assert [(part.id, part.source_topics) for part in parts] == [
        (0, ("z",)),
        (1, ("app-b-repartition",)),
        (2, ("a",)),
        (3, ("app-a-repartition",)),
    ]


class Transformer(ValueTransformerWithKey[str, str, str]):
    def transform(self, read_only_key: str, value: str | None, /) -> str | None:
        return value


def test_the_global_stores_that_a_part_may_read_are_those_of_its_joins_or_any_where_user_code_may_ask() -> None:
    """Its tasks wait for these alone (rules.md, 27)."""

    def define(builder: StreamsBuilder) -> None:
        first, other = builder.global_table("g", materialized="first"), builder.global_table("h", materialized="other")
        builder.stream("plain").filter(second).to("out-0")
        builder.stream("join").join(first, second, second).to("out-1")
        builder.stream("both").join(first, second, second).left_join(other, second, second).to("out-2")
        builder.stream("process").process(Processor).to("out-3")
        builder.stream("process-values").process_values(Processor).to("out-4")
        builder.table("transform").transform_values(Transformer).to_stream().to("out-5")

    read = {part.source_topics[0]: part.global_stores for part in resolved(define).sub_topologies()}
    assert read == {
        "plain": frozenset(),
        "join": {"first"},
        "both": {"first", "other"},
        "process": None,
        "process-values": None,
        "transform": None,
    }


def test_parts_of_global_stores_take_numbers_but_have_no_tasks() -> None:
    def define(builder: StreamsBuilder) -> None:
        builder.global_table("g", materialized="rows")
        builder.stream("in").foreach(second)
        builder.add_global_store(store("own"), "h", None, Processor)

    topology = resolved(define)
    assert [part.id for part in topology.sub_topologies()] == [1]
    assert [(each.id, each.topic, each.store.name, each.own_processor) for each in topology.global_stores()] == [
        (0, "g", "rows", False),
        (2, "h", "own", True),
    ]
    assert topology.source_topics == ("g", "h", "in")
    assert topology.global_topics == ("g", "h")


def test_a_shared_store_makes_one_part() -> None:
    def define(builder: StreamsBuilder) -> None:
        builder.add_state_store(store("s"))
        builder.stream("a").process(Processor, "s")
        builder.stream("b").process(Processor)
        builder.stream("c").process(Processor, "s")

    assert [part.source_topics for part in resolved(define).sub_topologies()] == [("a", "c"), ("b",)]


@given(st.data())
def test_sub_topologies_are_connected_by_edges_and_stores(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 12))
    names = [f"n{i}" for i in range(size)]
    parents = {name: tuple(data.draw(st.sets(st.sampled_from(names[:i]), max_size=2))) if i else () for i, name in enumerate(names)}
    nodes: dict[str, Node] = {}
    for name in names:
        stores = tuple(data.draw(st.sets(st.sampled_from(["s", "t"]), max_size=1))) if parents[name] else ()
        nodes[name] = ProcessorNode(name, PassThrough(), stores) if parents[name] else SourceNode(name, (name,), None, None)
    groups = node_groups(nodes, parents)
    number = {name: i for i, group in enumerate(groups) for name in group}
    assert sorted(number) == sorted(names)
    assert [group[0] for group in groups] == sorted((group[0] for group in groups), key=names.index)

    reached = {name: {name} for name in names}  # by brute force: merge until nothing changes
    links = [{name, *parents[name]} for name in names]
    links += [{n.name for n in nodes.values() if isinstance(n, ProcessorNode) and s in n.stores} for s in ("s", "t")]
    for _ in names:
        for link in links:
            together = set().union(*(reached[name] for name in link)) if link else set()
            for name in together:
                reached[name] = together
    assert {frozenset(group) for group in groups} == {frozenset(each) for each in reached.values()}


# -- internal topics ---------------------------------------------------------------------------------------------------------------


def test_internal_topics_have_kafka_streams_names_and_settings() -> None:
    def define(builder: StreamsBuilder) -> None:
        grouped = builder.stream("in").group_by(second, "grouped")
        grouped.count(Materialized("counts"))
        windows = TimeWindows.of_size_and_grace(timedelta(hours=1), timedelta(hours=1))
        grouped.windowed_by(windows).count(Materialized("hourly"))
        grouped.count(Materialized("silent", logging=False))

    topics = {topic.name: topic for topic in resolved(define).internal_topics()}
    create_time = {"message.timestamp.type": "CreateTime"}
    assert {name: dict(topic.config) for name, topic in topics.items()} == {
        "app-counts-changelog": {"cleanup.policy": "compact", **create_time},
        "app-hourly-changelog": {"cleanup.policy": "compact,delete", "retention.ms": str(7_200_000 + 86_400_000), **create_time},
        "app-grouped-repartition": {"cleanup.policy": "delete", "retention.ms": "-1", "segment.bytes": "52428800", **create_time},
    }
    assert {name: (topic.kind, topic.subtopology, topic.writers) for name, topic in topics.items()} == {
        "app-counts-changelog": ("changelog", 1, ()),
        "app-hourly-changelog": ("changelog", 1, ()),
        "app-grouped-repartition": ("repartition", 1, (0,)),
    }


def test_the_additional_retention_of_window_changelogs_is_configured() -> None:
    def define(builder: StreamsBuilder) -> None:
        windows = TimeWindows.of_size_with_no_grace(1000)
        builder.stream("in").group_by_key().windowed_by(windows).count(Materialized("w"))

    (topic,) = resolved(define, **{"windowstore.changelog.additional.retention.ms": 5}).internal_topics()
    assert topic.config["retention.ms"] == "1005"


def test_a_resolved_topology_is_itself() -> None:
    topology = resolved(lambda b: b.stream("in").group_by(second, "g").count())
    assert topology.resolved(StreamsConfig({**STRINGS, "application.id": "other"})) is topology
    assert topology.source_topics == ("in",)


# -- partitions --------------------------------------------------------------------------------------------------------------------


def test_repartition_topics_follow_their_widest_input_through_several_steps() -> None:
    def define(builder: StreamsBuilder) -> None:
        merged = builder.stream("a").merge(builder.stream("b"))
        merged.repartition("one").select_key(second).repartition("two").group_by_key().count(Materialized("n"))

    topology = resolved(define)
    assert partitions(topology, a=3, b=7) == {"app-one-repartition": 7, "app-two-repartition": 7, "app-n-changelog": 7}
    assert [
        task_count(part, {"a": 3, "b": 7, "app-one-repartition": 7, "app-two-repartition": 7}) for part in topology.sub_topologies()
    ] == [
        7,
        7,
        7,
    ]


def test_a_repartition_topic_that_is_joined_gets_the_tables_partitions() -> None:
    def define(builder: StreamsBuilder) -> None:
        builder.stream("in").select_key(second).join(builder.table("t", materialized="rows"), second, Joined(name="j"))

    assert partitions(resolved(define), **{"in": 8, "t": 3}) == {"app-j-repartition": 3, "app-rows-changelog": 3}


def test_topics_that_are_joined_must_have_the_same_number() -> None:
    topology = resolved(lambda b: b.stream("in").join(b.table("t"), second))
    assert topology.copartition_groups() == (frozenset({"in", "t"}),)
    with pytest.raises(WrongPartitionsError, match="in has 8, t has 3; repartition one of them"):
        partitions(topology, **{"in": 8, "t": 3})


def test_a_configured_number_of_partitions_must_fit_the_join() -> None:
    def define(builder: StreamsBuilder) -> None:
        builder.stream("in").repartition(Repartitioned("wide", partitions=5)).join(builder.table("t"), second)

    with pytest.raises(WrongPartitionsError, match="app-wide-repartition has 5, t has 3"):
        partitions(resolved(define), **{"in": 8, "t": 3})


def test_a_configured_number_of_partitions_determines_topics_downstream() -> None:
    def define(builder: StreamsBuilder) -> None:
        builder.stream("in").repartition(Repartitioned("wide", partitions=5)).group_by(second, "next").count(Materialized("n"))

    assert partitions(resolved(define), **{"in": 2}) == {"app-wide-repartition": 5, "app-next-repartition": 5, "app-n-changelog": 5}


# -- by hand -----------------------------------------------------------------------------------------------------------------------


def by_hand() -> Topology:
    return Topology().add_source("source", "in").add_processor("work", Processor, "source")


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda t: t.add_source("source", "other"), "node 'source' was added before"),
        (lambda t: t.add_source("again", "in"), "topic in is already read by source source"),
        (lambda t: t.add_source("", "x"), "name must not be empty"),
        (lambda t: t.add_source("none", []), "at least one topic is needed"),
        (lambda t: t.add_source("empty", ""), "source empty: a topic's name has .* this is none: ''"),
        (lambda t: t.add_sink("spaced", "a b", "source"), "sink spaced: a topic's name has .* this is none: 'a b'"),
        (lambda t: t.add_processor("p", Processor), "at least one parent is needed"),
        (lambda t: t.add_processor("p", Processor, "missing"), "its parent 'missing' was not added"),
        (lambda t: t.add_processor("p", Processor, "source", stores=["s"]), "node p: store 's' was not added"),
        (lambda t: t.add_sink("s", "out"), "at least one parent is needed"),
        (lambda t: t.add_sink("s", "out", "work").add_processor("p", Processor, "s"), "'s' is a sink, which has no children"),
        (lambda t: t.connect_processor_and_state_stores("source", "s"), "'source' is not a processor"),
        (lambda t: t.connect_processor_and_state_stores("work", "s"), "store 's' was not added"),
        (lambda t: t.add_state_store(store("s")).add_state_store(store("s")), "store 's' was added before"),
        (
            lambda t: t.add_global_store(store("g"), "gs", "g", "gp", Processor).connect_processor_and_state_stores("work", "g"),
            "store 'g' is global; every processor may read it",
        ),
    ],
)
def test_mistakes_are_named(mistake: Callable[[Topology], object], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        mistake(by_hand())


def test_a_store_may_be_connected_later() -> None:
    topology = by_hand().add_state_store(store("s")).connect_processor_and_state_stores("work", "s")
    (part,) = topology.resolved(StreamsConfig(STRINGS)).sub_topologies()
    assert [each.name for each in part.stores] == ["s"]
    assert part.processors[0].stores == ("s",)
