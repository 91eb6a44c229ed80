"""The plan of a history run: the order of its stages, and what is refused by name before anything runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import pytest

from penstock import (
    Consumed,
    Grouped,
    Materialized,
    Processor,
    ProcessorContext,
    Produced,
    Record,
    StreamsBuilder,
    StreamsConfig,
    Topology,
    serdes,
)
from penstock.assets.spark.history.errors import HistoryError
from penstock.assets.spark.history.plan import HistoryPlan, _mixed_writers, plan_history
from penstock.assets.spark.seeds.plan import SeedApplication
from tests.support.history import CONFIG
from tests.support.own_stores import OwnBuilder

STRINGS = Consumed(serdes.STRING, value=serdes.STRING)


def two_steps() -> Topology:
    """Return a topology whose reader of a repartition topic has the lower number."""
    builder = StreamsBuilder()
    builder.stream("in", STRINGS).select_key(lambda key, value: value).repartition().group_by_key().count(Materialized("counts"))
    builder.stream("other", STRINGS).to("out")
    return builder.build()


def foreign() -> Topology:
    builder = StreamsBuilder()
    left = builder.table("left", STRINGS)
    left.join(builder.table("right", STRINGS), lambda value: value, lambda one, other: one + other).to_stream().to("out")
    return builder.build()


def two_in_turns() -> Topology:
    """Return a foreign-key join between a stage before it and one after it."""
    builder = StreamsBuilder()
    by_value = Grouped(serdes.STRING, value=serdes.STRING, name="by-value")
    counted = builder.stream("in", STRINGS).group_by(lambda key, value: value, by_value).reduce(max)
    joined = counted.join(builder.table("right", STRINGS), lambda value: value, lambda one, other: one + other)
    after = Grouped(serdes.STRING, value=serdes.STRING, name="after")
    joined.to_stream().group_by(lambda key, value: value, after).count(Materialized("counts"))
    return builder.build()


def own_topic() -> Topology:
    builder = StreamsBuilder()
    builder.stream("in", STRINGS).to("between")
    builder.stream("between", STRINGS).to("out")
    return builder.build()


def chosen_partitions() -> Topology:
    builder = StreamsBuilder()
    builder.stream("in", STRINGS).to("out", Produced(partitioner=lambda topic, key, value, count: 0))
    return builder.build()


class Keeping(Processor[str, str, str, str]):
    """Forwards what it gets."""

    def init(self, context: ProcessorContext[str, str]) -> None:
        self._context = context

    def process(self, record: Record[str, str]) -> None:
        self._context.forward(record)


def own_store() -> Topology:
    builder = StreamsBuilder()
    builder.add_state_store(OwnBuilder("mine", "file"))
    builder.stream("in", STRINGS).process(Keeping, "mine").to("out")
    return builder.build()


def grouped() -> Topology:
    builder = StreamsBuilder()
    by_value = Grouped(serdes.STRING, value=serdes.STRING, name="by-value")
    builder.stream("in", STRINGS).group_by(lambda key, value: value, by_value).count(Materialized("counts"))
    return builder.build()


def by_pattern() -> Topology:
    builder = StreamsBuilder()
    builder.stream(re.compile("flights-.*"), STRINGS).to("out")
    return builder.build()


def planned(build: Callable[[], Topology], counts: Mapping[str, int], config: Mapping[str, object] = CONFIG) -> HistoryPlan:
    application = SeedApplication.of("history", f"{__name__}:{build.__name__}", config)
    return plan_history(application, [topic for topic in counts if topic != "out"], counts)


def test_a_stage_runs_after_those_that_write_its_repartition_topics() -> None:
    plan = planned(two_steps, {"in": 3, "other": 2})
    [first, second, third] = plan.stages
    written = {topic for stage in (first, second) for topic in stage.sinks}
    assert set(third.topics) == third.repartitions
    assert third.repartitions <= written
    assert [stage.tasks for stage in plan.stages] == [3, 2, 3]
    assert plan.inputs == ("in", "other")


def test_the_sub_topologies_of_a_circle_are_one_stage() -> None:
    plan = planned(two_in_turns, {"in": 3, "right": 2})
    first, circle, last = plan.stages
    assert [stage.circle for stage in plan.stages] == [False, True, False]
    assert len(circle.sub_topologies) == 2
    assert circle.topics == ("history-by-value-repartition", "right")
    assert circle.repartitions == {"history-by-value-repartition"} == set(first.sinks)
    assert set(circle.sinks) == set(last.topics)
    assert (circle.tasks, circle.spark_tasks) == (3 + 2, 1)
    [alone] = planned(foreign, {"left": 2, "right": 2}).stages
    assert (alone.label, alone.repartitions) == ("sub-topologies 0, 1, in turns", frozenset())


def test_a_topic_of_a_circle_that_others_write_too_is_refused() -> None:
    """No program makes one today; its records would have no order."""
    parts = foreign().resolved(StreamsConfig(CONFIG)).sub_topologies()
    inside = {topic: (0, 1, 2) for part in parts for topic in part.source_topics}
    assert all("by 2: the order" in problem for problem in _mixed_writers(parts, inside))
    assert len(list(_mixed_writers(parts, inside))) == len(inside)


@pytest.mark.parametrize(
    ("build", "counts", "said"),
    [
        (own_topic, {"in": 1, "between": 1}, "topic between is written by .* and read again by the topology"),
        (chosen_partitions, {"in": 1}, "sink topic out does not exist, and .* chooses partitions"),
        (own_store, {"in": 1}, "store mine is one of your own"),
        (
            grouped,
            {"elsewhere": 1},
            r"(?s)topic in is a source topic, and has no input: --input in=.*topic elsewhere has an input, but",
        ),
        (grouped, {"in": 0}, "source topic in does not exist"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_what_cannot_be_done_right_is_refused_by_name(build: Callable[[], Topology], counts: Mapping[str, int], said: str) -> None:
    with pytest.raises(HistoryError, match=said):
        planned(build, counts)


def test_a_topic_that_a_pattern_reads_and_that_has_no_input_is_refused() -> None:
    """The stream would have read it."""
    application = SeedApplication.of("history", f"{__name__}:by_pattern", CONFIG)
    counts = {"flights-a": 2, "flights-b": 1}
    assert plan_history(application, list(counts), counts, [*counts, "other", "history-flights-changelog"]).inputs == tuple(counts)
    with pytest.raises(HistoryError, match=r"topic flights-b exists and is read by the pattern flights-\.\*, and has no input: --input"):
        plan_history(application, ["flights-a"], counts, [*counts, "other"])


def test_another_partitioner_of_the_producer_is_refused() -> None:
    with pytest.raises(HistoryError, match=re.escape("producer.partitioner = consistent")):
        planned(grouped, {"in": 1}, {**CONFIG, "producer.partitioner": "consistent"})
