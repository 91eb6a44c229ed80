"""Optimized topologies give the results of those that are not: of the same random records, the same of each topic."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from penstock import JoinWindows, Materialized, StreamsBuilder, TimeWindows, serdes
from penstock.runtime.model.record import Record
from penstock.testing import TopologyTestDriver

S = serdes.STRING
DEFAULTS = {"default.key.serde": S, "default.value.serde": S}
WINDOW = JoinWindows.of_time_difference_and_grace(5, 30)
"""No record is so late that it is at the edge of the retention, where Kafka Streams' self-join differs by 1 ms (docs/dsl.md)."""
TOPICS = ("in", "other")
OUTPUTS = ("first", "second", "third")


def both(left: object, right: object) -> str:
    return f"{left}+{right}"


def of_one_changed_key(builder: StreamsBuilder) -> None:
    table = builder.table("other")
    changed = builder.stream("in").map(lambda key, value: (value, f"{key}{value}"))
    changed.peek(lambda key, value: None).left_join(table, both).to("first")
    changed.group_by_key().reduce(both).to_stream().to("second")
    counts = changed.filter(lambda key, value: key != "2").group_by_key().windowed_by(TimeWindows.of_size_with_no_grace(10))
    counts.reduce(both, materialized=Materialized(caching=False)).to_stream(lambda key, value: key.key).to("third")


def merged_before_they_are_grouped(builder: StreamsBuilder) -> None:
    changed = builder.stream("in").select_key(lambda key, value: value)
    changed.merge(builder.stream("other")).group_by_key().reduce(both).to_stream().to("first")


def joined_with_themselves(builder: StreamsBuilder) -> None:
    stream, changed = builder.stream("in"), builder.stream("other").select_key(lambda key, value: value)
    stream.join(stream, both, WINDOW).to("first")
    changed.join(changed, both, WINDOW.before(1)).to("second")


def tables_of_topics(builder: StreamsBuilder) -> None:
    table = builder.table("other", materialized=Materialized("rows"))
    builder.stream("in").join(table, both).to("first")
    table.group_by(lambda key, value: (value, key)).reduce(both, lambda every, one: f"{every}-{one}").to_stream().to("second")


def results(define: Callable[[StreamsBuilder], None], seed: int, optimization: str) -> dict[str, list[Record[str, str]]]:
    random, builder = Random(seed), StreamsBuilder()
    define(builder)
    config = {**DEFAULTS, "topology.optimization": optimization}
    with TopologyTestDriver(builder.build(config), config) as driver:
        inputs = {topic: driver.create_input_topic(topic, S, S) for topic in TOPICS}
        for at in range(60):
            value = random.choice("123") if random.random() < 0.9 else None
            inputs[random.choice(TOPICS)].pipe_input(random.choice("abc"), value, max(0, at + random.randint(-9, 3)))
        return {topic: driver.create_output_topic(topic, S, S).read_records_to_list() for topic in OUTPUTS}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("define", [of_one_changed_key, merged_before_they_are_grouped, joined_with_themselves, tables_of_topics])
def test_results_are_the_same(define: Callable[[StreamsBuilder], None], seed: int) -> None:
    plain = results(define, seed, "none")
    assert results(define, seed, "all") == plain
    assert plain["first"], "nothing came out"
