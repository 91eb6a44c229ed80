"""Serdes of a node: its own, else inherited, else the configured defaults; and the error if there is none."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock import (
    Consumed,
    Grouped,
    Joined,
    Materialized,
    Produced,
    Repartitioned,
    StreamsBuilder,
    StreamsConfig,
    TimeWindows,
    Topology,
    TopologyError,
    serdes,
)
from penstock.runtime.dsl.kstream import KStream
from penstock.runtime.serdes.serde import Serde
from penstock.runtime.stores.custom import build_store
from penstock.runtime.topology.nodes import SinkNode, SourceNode

S, L, J, B = serdes.STRING, serdes.LONG, serdes.JSON, serdes.BYTES
STRINGS = Consumed(S, value=S)
BASE: dict[str, object] = {"application.id": "app", "bootstrap.servers": "localhost:9092"}
DEFAULTS = {**BASE, "default.key.serde": B, "default.value.serde": B}


def second(_first: object, value: object) -> object:
    return value


def resolved(define: Callable[[StreamsBuilder], object], config: dict[str, object] | None = None) -> Topology:
    builder = StreamsBuilder()
    define(builder)
    return builder.build().resolved(StreamsConfig(config or DEFAULTS))


def node_serdes(topology: Topology, ending: str) -> tuple[Serde | None, Serde | None]:
    """Key and value serde of the one source or sink whose topic ends so."""
    found = [
        (node.key_serde, node.value_serde)
        for part in topology.sub_topologies()
        for node in part.nodes
        if (isinstance(node, SinkNode) and str(node.topic).endswith(ending))
        or (isinstance(node, SourceNode) and any(topic.endswith(ending) for topic in node.topics))
    ]
    assert len(set(found)) == 1, found
    return found[0]


def from_stream(operation: Callable[[KStream], KStream], produced: Produced | None = None) -> tuple[Serde | None, Serde | None]:
    """The serdes of the sink behind an operation on a stream of strings."""
    return node_serdes(resolved(lambda b: operation(b.stream("in", STRINGS)).to("out", produced)), "out")


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        (lambda s: s, (S, S)),
        (lambda s: s.filter(lambda k, v: True), (S, S)),
        (lambda s: s.peek(lambda k, v: None), (S, S)),
        (lambda s: s.map_values(lambda v: v), (S, B)),
        (lambda s: s.flat_map_values(lambda v: [v]), (S, B)),
        (lambda s: s.select_key(second), (B, S)),
        (lambda s: s.map(lambda k, v: (k, v)), (B, B)),
        (lambda s: s.flat_map(lambda k, v: []), (B, B)),
        (lambda s: s.merge(s), (S, S)),
        (lambda s: s.merge(s.map_values(lambda v: v)), (S, B)),
        (lambda s: s.repartition(), (S, S)),
        (lambda s: s.repartition(Repartitioned(value=J)), (S, J)),
        (lambda s: s.group_by_key().count().to_stream(), (S, L)),
        (lambda s: s.group_by_key().reduce(second).to_stream(), (S, S)),
        (lambda s: s.group_by_key().aggregate(dict, lambda k, v, a: a).to_stream(), (S, B)),
        (lambda s: s.group_by_key().aggregate(dict, lambda k, v, a: a, Materialized("x", value=J)).to_stream(), (S, J)),
        (lambda s: s.group_by(second, Grouped(L)).count().to_stream(), (L, L)),
        (lambda s: s.group_by(second, Grouped(L)).reduce(second).to_stream(), (L, S)),
        (lambda s: s.group_by(second).reduce(second, Materialized("x", key=L)).to_stream(), (L, S)),
        (lambda s: s.group_by_key().count().filter(lambda k, v: True).to_stream(), (S, L)),
        (lambda s: s.group_by_key().count().map_values(lambda v: v).to_stream(), (S, B)),
        (lambda s: s.group_by_key().count().map_values(lambda v: v, Materialized(value=J)).to_stream(), (S, J)),
    ],
)
def test_inherited_serdes(operation: Callable[[KStream], KStream], expected: tuple[Serde, Serde]) -> None:
    assert from_stream(operation) == expected


def test_produced_comes_first() -> None:
    assert from_stream(lambda s: s, Produced(L, value=J)) == (L, J)


def test_a_joined_stream_keeps_its_key_and_forgets_its_value() -> None:
    def join(how: Joined | None) -> tuple[Serde | None, Serde | None]:
        return node_serdes(resolved(lambda b: b.stream("in", STRINGS).join(b.table("t", STRINGS), second, how).to("out")), "out")

    assert join(None) == (S, B)
    assert join(Joined(L)) == (L, B)


def test_a_join_repartitions_with_the_serdes_of_joined() -> None:
    def define(builder: StreamsBuilder) -> None:
        stream: KStream = builder.stream("in", STRINGS).select_key(second)
        stream.join(builder.table("t", STRINGS), second, Joined(L, name="joined")).to("out")

    assert node_serdes(resolved(define), "joined-repartition") == (L, S)


def test_windowed_keys_wrap_the_inner_serde_and_the_default_one() -> None:
    def sink(consumed: Consumed) -> Serde | None:
        windows = TimeWindows.of_size_with_no_grace(10)
        return node_serdes(
            resolved(lambda b: b.stream("in", consumed).group_by_key().windowed_by(windows).count().to_stream().to("out")), "out"
        )[0]

    assert repr(sink(STRINGS)) == "serdes.time_windowed(STRING)"
    assert repr(sink(Consumed())) == "serdes.time_windowed(BYTES)"


def test_a_grouped_tables_repartition_topic_carries_changes() -> None:
    def define(builder: StreamsBuilder) -> None:
        builder.table("t", STRINGS).group_by(lambda k, v: (v, v), Grouped(S, value=S, name="g")).count()

    assert [repr(serde) for serde in node_serdes(resolved(define), "g-repartition")] == ["serdes.STRING", "serdes.changed(STRING)"]


@pytest.mark.parametrize(
    ("consumed", "materialized", "expected"),
    [
        (Consumed(S, value=J), Materialized("rows"), ("STRING", "JSON")),
        (Consumed(), Materialized("rows", key=S, value=J), ("STRING", "JSON")),
        (Consumed(S, value=J), Materialized("rows", key=L, value=L), ("STRING", "JSON")),
        (None, "rows", ("BYTES", "BYTES")),
    ],
)
@pytest.mark.parametrize("kind", ["table", "global"])
def test_a_tables_store_has_its_topics_serdes(
    consumed: Consumed | None, materialized: Materialized | str, expected: tuple[str, str], kind: str
) -> None:
    def define(builder: StreamsBuilder) -> None:
        if kind == "table":
            builder.table("in", consumed, materialized)
        else:
            builder.global_table("in", consumed, materialized)

    topology = resolved(define)
    stores = [*(store for part in topology.sub_topologies() for store in part.stores), *(g.store for g in topology.global_stores())]
    layout = build_store(stores[0]).layout
    assert (layout.key_serde, layout.value_serde, layout.timestamped) == (*expected, True)


@pytest.mark.parametrize(
    ("define", "message"),
    [
        (
            lambda b: b.stream("in"),
            r"node KSTREAM-SOURCE-0000000000 \(stream at test_dsl_serdes\.py:\d+\) has no key serde: give it one \(.*\), or set default",
        ),
        (lambda b: b.stream("in", Consumed(S, name="flights")), "node flights has no value serde"),
        (
            lambda b: b.stream("in", STRINGS).map_values(lambda v: v).to("out"),
            r"node KSTREAM-SINK-0000000002 \(to at test_dsl_serdes\.py:\d+\) has no value serde",
        ),
        (
            lambda b: b.stream("in", STRINGS).group_by_key().aggregate(dict, lambda k, v, a: a, "agg", "sums"),
            "store sums has no value serde",
        ),
        (lambda b: b.stream("in", STRINGS).group_by(second).count(Materialized("n")), "node n-repartition-sink has no key serde"),
        (
            lambda b: b.stream("in", STRINGS).select_key(second).group_by_key().windowed_by(TimeWindows.of_size_with_no_grace(1)).count(),
            "has no key serde",
        ),
    ],
)
def test_a_missing_serde_names_the_node(define: Callable[[StreamsBuilder], object], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        resolved(define, BASE)


def test_build_with_a_configuration_checks_at_once() -> None:
    builder = StreamsBuilder()
    builder.stream("in")
    assert builder.build() is builder.build()
    with pytest.raises(TopologyError, match="has no key serde"):
        builder.build(BASE)
    builder.build(DEFAULTS)
    builder.build(StreamsConfig(DEFAULTS))
