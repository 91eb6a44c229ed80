"""Whether two versions of a topology may run at once: what each kind of change is answered with."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from penstock import Consumed, Grouped, Materialized, Repartitioned, Stores, StreamsBuilder, serdes
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.coordination.records import TopologyText, decode, encode
from penstock.runtime.topology.shape import Part, TopologyShape, conflicts, left_behind, parts_of, shape_of

CONFIG = StreamsConfig(
    {"application.id": "app", "bootstrap.servers": "x:9092", "default.key.serde": serdes.STRING, "default.value.serde": serdes.STRING}
)
Define = Callable[[StreamsBuilder], object]


def version(*parts: Define) -> tuple[TopologyShape, dict[int, Part]]:
    builder = StreamsBuilder()
    for part in parts:
        part(builder)
    topology = builder.build(CONFIG).resolved(CONFIG)
    return shape_of(topology, "app"), parts_of(topology.sub_topologies(), (), ())


def counted(builder: StreamsBuilder) -> None:
    builder.stream("in").group_by_key().count(Materialized("counts"))


def counted_and_more(builder: StreamsBuilder) -> None:
    stream = builder.stream("in")
    stream.filter(lambda key, value: True, "kept").to("out")
    stream.group_by_key().count(Materialized("counts"))
    stream.group_by_key().reduce(lambda one, other: other, Materialized("newest"))


def copied(builder: StreamsBuilder) -> None:
    builder.stream("copied").to("out")


def regrouped(builder: StreamsBuilder) -> None:
    builder.stream("in").group_by(lambda key, value: value, Grouped(name="by-value")).count(Materialized("counts"))


def of_pattern(pattern: str) -> Define:
    def define(builder: StreamsBuilder) -> None:
        builder.stream(re.compile(pattern), Consumed(serdes.STRING, value=serdes.STRING)).to("out")

    return define


def windowed(builder: StreamsBuilder) -> None:
    store = Stores.persistent_versioned_key_value_store("counts", 1000)
    builder.stream("in").group_by_key().count(Materialized(store))


def repartitioned(builder: StreamsBuilder) -> None:
    stream = builder.stream("in")
    stream.group_by_key().count(Materialized("counts"))
    stream.select_key(lambda key, value: value).repartition(Repartitioned("again")).to("out")


def summed(builder: StreamsBuilder) -> None:
    how: Materialized[str, float] = Materialized("counts", value=serdes.DOUBLE)
    builder.stream("in").group_by_key().aggregate(float, lambda key, value, found: found, how)


@dataclass
class Short:
    total: int


@dataclass
class Long:
    total: int
    since: int = 0


def kept_as(cls: type[Short | Long]) -> Define:
    def define(builder: StreamsBuilder) -> None:
        how = Materialized("sums", value=serdes.json(cls))
        builder.stream("in").group_by_key().aggregate(lambda: cls(0), lambda key, value, found: found, how)

    return define


def repartitioned_by_long(builder: StreamsBuilder) -> None:
    stream = builder.stream("in")
    stream.group_by_key().count(Materialized("counts"))
    stream.select_key(lambda key, value: 1).repartition(Repartitioned("again", key=serdes.LONG)).to("out")


def regrouped_elsewhere(builder: StreamsBuilder) -> None:
    builder.stream("more").group_by(lambda key, value: value, Grouped(name="by-more")).count(Materialized("more"))


def test_a_topology_has_the_same_digest_when_it_is_read_back() -> None:
    shape, parts = version(counted, regrouped_elsewhere)
    record = TopologyText(hash="h", text="t", shape=shape, parts=parts)
    read = decode(record.key, encode(record))
    assert read == record and isinstance(read, TopologyText) and read.digest == record.digest


def test_operators_sinks_stores_and_sub_topologies_may_be_added() -> None:
    assert conflicts(version(counted), version(counted)) == []
    assert conflicts(version(counted), version(counted_and_more)) == []
    assert conflicts(version(counted), version(counted, copied)) == []
    assert conflicts(version(counted), version(repartitioned)) == []
    assert conflicts(version(of_pattern("a.*")), version(of_pattern("a.*"), counted)) == []


@pytest.mark.parametrize(
    ("running", "coming", "why"),
    [
        (counted_and_more, counted, "store newest of sub-topology 0 is left out: the tasks that move would leave it behind"),
        (counted, windowed, "store counts was a key-value store and is a versioned store now"),
        (repartitioned, repartitioned_by_long, "repartition topic app-again-repartition: its keys"),
        (counted, summed, "store counts: "),
        (kept_as(Short), kept_as(Long), "if a task goes back to an instance with the version that runs: store "),
        (summed, counted, "store counts: "),
        (repartitioned, counted, "repartition topic app-again-repartition is left out"),
        (regrouped, counted, "store counts was in sub-topology 1 and is in sub-topology 0 now"),
        (of_pattern("a.*"), of_pattern("b.*"), "sub-topology 0 reads pattern b.*, and read pattern a.*"),
        (counted, of_pattern("b.*"), "sub-topology 0 reads pattern b.*, and read in"),
    ],
)
def test_differences_that_the_two_versions_would_misread_are_named(running: Define, coming: Define, why: str) -> None:
    assert any(why in text for text in conflicts(version(running), version(coming)))


def test_a_sub_topology_before_others_gives_task_ids_another_meaning() -> None:
    found = conflicts(version(copied), version(of_pattern("z.*"), copied))
    assert found == [
        "sub-topology 0 reads pattern z.*, and read copied",
        "topic copied is read by sub-topology 1, and was read by sub-topology 0",
    ]


def test_a_store_is_left_behind_by_a_topology_that_ran_its_input_without_it() -> None:
    old, new = version(counted)[0], version(counted_and_more)[0]
    assert [store.name for store in left_behind(old, new)] == ["newest"]
    assert left_behind(new, new) == [] == left_behind(new, old)
    assert left_behind(version(copied)[0], version(copied, counted)[0]) == [], "its sub-topology did not run: it continues where it was"
    assert [store.name for store in left_behind(version(copied)[0], version(copied, regrouped)[0])] == ["counts"], "nothing fed it"
