"""Whether a topology fits the state of the one before: what is told of each change."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from runtime import Consumed, Grouped, Materialized, Stores, StreamsBuilder, serdes
from runtime.config import StreamsConfig
from runtime.coordination.records import TopologyText, decode, encode
from runtime.topology.shape import TopologyShape, left_out, misfits, shape_of

CONFIG = StreamsConfig(
    {"application.id": "app", "bootstrap.servers": "x:9092", "default.key.serde": serdes.STRING, "default.value.serde": serdes.STRING}
)


def shape(*parts: Callable[[StreamsBuilder], object], optimized: str = "none") -> TopologyShape:
    builder = StreamsBuilder()
    for part in parts:
        part(builder)
    config = StreamsConfig({**CONFIG, "topology.optimization": optimized})
    return shape_of(builder.build(config).resolved(config), "app")


def counted(builder: StreamsBuilder) -> None:
    builder.stream(["in", "more"]).group_by(lambda key, value: value, Grouped(name="by-value")).count(Materialized("counts"))


def reduced(builder: StreamsBuilder) -> None:
    builder.stream("other").group_by_key().reduce(lambda one, other: one, Materialized("newest"))


def copied(builder: StreamsBuilder) -> None:
    builder.stream("copied").to("out")


def table(builder: StreamsBuilder) -> None:
    builder.table("rows", materialized=Materialized("rows"))


def told(former: TopologyShape, now: TopologyShape, **unread: int) -> list[str]:
    return misfits(former, now, [store.name for store in former.stores], {name.replace("_", "-"): left for name, left in unread.items()})


def test_the_shape_is_kept_with_the_text_of_a_topology() -> None:
    record = TopologyText(hash="h", text="t", shape=shape(counted, table, optimized="reuse.ktable.source.topics"))
    assert decode(record.key, encode(record)) == record
    assert decode(record.key, b'{"hash":"h","text":"t"}') == TopologyText(hash="h", text="t")


def test_what_is_added_behind_and_what_has_no_state_does_no_harm() -> None:
    former = shape(counted)
    assert told(former, shape(counted, reduced, table)) == []
    assert told(shape(copied), shape(reduced)) == []
    assert misfits(former, shape(reduced), [], {}) == [], "nothing is left of its state"


def test_a_sub_topology_before_others_moves_their_numbers() -> None:
    [first] = told(shape(reduced), shape(copied, reduced))
    assert first.startswith("store newest was in sub-topology 0 and is in sub-topology 1 now")


def test_a_store_of_another_name_is_asked_about() -> None:
    def renamed(builder: StreamsBuilder) -> None:
        builder.stream("other").group_by_key().reduce(lambda one, other: one, Materialized("latest"))

    assert told(shape(reduced), shape(renamed)) == [
        "store newest of sub-topology 0 is not there any more: was it renamed to latest?",
    ]


def test_a_store_may_be_left_out() -> None:
    both, one = shape(counted, reduced), shape(counted)
    assert told(both, one) == []
    assert left_out(both, one, ["newest"]) == ["newest"]


def test_a_store_of_another_kind_is_told() -> None:
    def versioned(builder: StreamsBuilder) -> None:
        supplier = Stores.persistent_versioned_key_value_store("newest", 1000)
        builder.stream("other").group_by_key().reduce(lambda one, other: one, Materialized(supplier))

    [change] = told(shape(reduced), shape(versioned))
    assert change == "store newest was a key-value store and is a versioned store now"


def test_a_source_topic_of_stores_that_is_not_read_any_more_is_told() -> None:
    def fewer(builder: StreamsBuilder) -> None:
        builder.stream("in").group_by_key().count(Materialized("counts"))

    def more(builder: StreamsBuilder) -> None:
        builder.stream(["in", "more"]).group_by_key().count(Materialized("counts"))

    assert told(shape(more), shape(fewer)) == ["source topic more of sub-topology 0 is not read any more: its stores hold what came of it"]
    assert told(shape(fewer), shape(more)) == []


@pytest.mark.parametrize("left", [7, 0])
def test_a_repartition_topic_of_another_name_is_told_if_it_holds_something(left: int) -> None:
    def renamed(builder: StreamsBuilder) -> None:
        builder.stream(["in", "more"]).group_by(lambda key, value: value, Grouped(name="otherwise")).count(Materialized("counts"))

    unread = {"app-by-value-repartition": left} if left else {}
    found = misfits(shape(counted), shape(renamed), ["counts"], unread)
    text = f"repartition topic app-by-value-repartition is not there any more, and holds {left} records that nobody would process"
    assert found == ([text] if left else [])


def test_a_table_may_begin_to_reuse_its_topic_but_not_to_keep_a_changelog() -> None:
    plain, reusing = shape(table), shape(table, optimized="all")
    assert told(plain, reusing) == []
    assert told(reusing, plain) == ["store rows was restored from topic rows, and shall have a changelog now, which has nothing of it"]


def test_topics_of_a_pattern_are_no_part_of_the_shape() -> None:
    import re

    def matching(builder: StreamsBuilder) -> None:
        builder.stream(re.compile("in-.*"), Consumed(serdes.STRING, value=serdes.STRING)).group_by_key().count(Materialized("counts"))

    assert shape(matching).sources == {0: ()}
