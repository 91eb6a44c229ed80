"""Input topics that may grow: decided from the topology, before anything is read."""

from __future__ import annotations

import pytest

from penstock import serdes
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.options import Consumed, Grouped, Materialized, Produced, Repartitioned
from penstock.runtime.kafka.topic_watch import TopicWatcher
from penstock.runtime.model.events import EventSink
from penstock.runtime.topology.input_growth import obstacles, remedies, stateful_inputs
from penstock.runtime.topology.topology import Topology
from penstock.runtime.worker.input_partitions import InputPartitions
from penstock.testing import ManualClock

TEXT = Consumed(serdes.STRING, value=serdes.STRING)
WRITTEN = Produced(serdes.STRING, value=serdes.STRING)


def plain(builder: StreamsBuilder) -> None:
    builder.stream("in", TEXT).map_values(str.upper).to("out", WRITTEN)


def merged(builder: StreamsBuilder) -> None:
    builder.stream("in", TEXT).merge(builder.stream("other", TEXT)).to("out", WRITTEN)


def counted(builder: StreamsBuilder) -> None:
    builder.stream("in", TEXT).group_by_key().count(Materialized("counts"))


def table(builder: StreamsBuilder) -> None:
    builder.table("in", TEXT, Materialized("rows"))


def joined(builder: StreamsBuilder) -> None:
    builder.stream("in", TEXT).join(builder.table("other", TEXT, Materialized("rows")), lambda left, right: left).to("out", WRITTEN)


def repartitioned(builder: StreamsBuilder) -> None:
    builder.stream("in", TEXT).group_by(lambda key, value: value, Grouped(serdes.STRING, value=serdes.STRING)).count(Materialized("counts"))


def repartitioned_to_a_number(builder: StreamsBuilder) -> None:
    stream = builder.stream("in", TEXT).repartition(Repartitioned("by", key=serdes.STRING, value=serdes.STRING, partitions=3))
    stream.group_by_key().count(Materialized("counts"))


def built(define: object) -> Topology:
    builder = StreamsBuilder()
    define(builder)  # type: ignore[operator]
    return builder.build().resolved(StreamsConfig({"application.id": "app", "bootstrap.servers": "x:1"}))


def partitions(topology: Topology) -> dict[str, int]:
    return {**dict.fromkeys(topology.source_topics, 2), **{topic.name: topic.partitions or 2 for topic in topology.internal_topics()}}


@pytest.mark.parametrize(
    ("define", "reason"),
    [
        (plain, None),
        (merged, None),
        (repartitioned_to_a_number, None),
        (counted, "keeps state by partition (store counts)"),
        (table, "keeps state by partition (store rows)"),
        (joined, "keeps state by partition (store rows)"),
        (repartitioned, "which has as many partitions as its input had"),
    ],
)
def test_new_partitions_are_accepted_where_nothing_depends_on_their_number(define: object, reason: str | None) -> None:
    topology = built(define)
    found = obstacles(topology, partitions(topology), {"in": 3})
    assert found == {} if reason is None else reason in found["in"]


def test_inputs_with_a_fixed_number_of_partitions_are_recorded() -> None:
    assert stateful_inputs(built(joined), partitions(built(joined))) == {"in": 2, "other": 2}
    assert stateful_inputs(built(plain), partitions(built(plain))) == {}
    assert stateful_inputs(built(repartitioned), partitions(built(repartitioned))) == {}


def test_growth_is_reported_once_and_a_refused_growth_blocks_the_others() -> None:
    def both(builder: StreamsBuilder) -> None:
        plain(builder)
        builder.stream("kept", TEXT).group_by_key().count(Materialized("counts"))

    topology, clock = built(both), ManualClock(1_000)
    events = EventSink("app", "one", clock)
    inputs = InputPartitions(dict, topology, partitions(topology), events, TopicWatcher(clock))
    assert not inputs.check({"in": 2, "kept": 2})
    assert not inputs.check({"in": 1})  # it was recreated with fewer partitions
    assert not inputs.check({"in": 2, "kept": 3})
    assert [event.payload["topic"] for event in events.drain()] == ["kept"]
    assert not inputs.check({"in": 2, "kept": 3})
    assert not events.drain()
    assert not inputs.check({"in": 4, "kept": 3}), "a start with other tasks would be refused"
    reported = {event.payload["topic"]: event.payload["reason"] for event in events.drain()}
    assert "kept" in str(reported["in"]) and "counts" in str(reported["kept"])
    alone = built(plain)
    assert InputPartitions(dict, alone, partitions(alone), events, TopicWatcher(clock)).check({"in": 3})


def test_a_refused_growth_is_logged_with_a_command_to_run(caplog: pytest.LogCaptureFixture) -> None:
    assert "then penstock reset app, and start it" in remedies("in", 2, "app")
    topology, clock = built(counted), ManualClock(1_000)
    assert not InputPartitions(dict, topology, partitions(topology), EventSink("app", "one", clock), TopicWatcher(clock)).check({"in": 3})
    assert "then penstock reset app, and start it" in caplog.text
