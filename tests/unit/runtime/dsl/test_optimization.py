"""`topology.optimization`: who is asked, what is left alone, and that results stay as they are."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock import (
    JoinWindows,
    Materialized,
    Processor,
    ProcessorContext,
    Record,
    Stores,
    StreamsBuilder,
    StreamsConfigError,
    Topology,
    TopologyError,
    serdes,
)
from penstock.runtime.changelog.reading import SourceBatch
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.input.deserialization import Decoder
from penstock.runtime.model.timestamps import ConsumerRecord
from penstock.testing import TopologyTestDriver
from tests.unit.runtime.changelog.test_folding import messages

DEFAULTS = {
    "application.id": "app",
    "bootstrap.servers": "none:9092",
    "default.key.serde": serdes.STRING,
    "default.value.serde": serdes.STRING,
}
ALL = {"topology.optimization": "all"}
WINDOW = JoinWindows.of_time_difference_with_no_grace(10)


def value_of(_key: str, value: str) -> str:
    return value


def both(left: object, right: object) -> str:
    return f"{left}+{right}"


def built(define: Callable[[StreamsBuilder], object], **more: object) -> Topology:
    builder = StreamsBuilder()
    define(builder)
    return builder.build({**DEFAULTS, **more})


def unchanged(define: Callable[[StreamsBuilder], object]) -> bool:
    return str(built(define).describe()) == str(built(define, **ALL).describe())


@pytest.mark.parametrize("value", ["some", "none,all", "all,merge.repartition.topics", ""])
def test_an_unknown_optimization_is_refused(value: str) -> None:
    with pytest.raises(StreamsConfigError, match=r"topology\.optimization.*choose none, all, or some of merge\.repartition\.topics"):
        StreamsConfig({**DEFAULTS, "topology.optimization": value})


def test_optimizations_are_chosen_one_by_one() -> None:
    config = StreamsConfig({**DEFAULTS, "topology.optimization": "single.store.self.join, merge.repartition.topics"})
    assert config.optimizations == {"single.store.self.join", "merge.repartition.topics"}


def test_who_asks_for_an_optimization_that_was_not_built_in_is_refused() -> None:
    """One topology is built, printed and run."""
    with pytest.raises(TopologyError, match=r"was built without it: give the same configuration to StreamsBuilder\.build\(config\)"):
        TopologyTestDriver(built(lambda builder: builder.table("in")), {**DEFAULTS, **ALL})
    TopologyTestDriver(built(lambda builder: builder.table("in"), **ALL), {**DEFAULTS, **ALL}).close()


def test_building_twice_gives_the_same_topology_and_leaves_the_other_as_it_was() -> None:
    builder = StreamsBuilder()
    builder.stream("in").select_key(value_of).group_by_key().count()
    plain = str(builder.build(DEFAULTS).describe())
    first, second = (str(builder.build({**DEFAULTS, **ALL}).describe()) for _ in range(2))
    assert first == second != plain == str(builder.build().describe())


def joined_with_a_global_table(builder: StreamsBuilder) -> None:
    table = builder.global_table("table")
    builder.stream("in").select_key(value_of).join(table, lambda key, _: key, both).group_by_key().count()


def merged_with_others_on_the_way(builder: StreamsBuilder) -> None:
    """Records of `other` reach the repartition topic round the changed key, and what is merged was changed on one side."""
    changed = builder.stream("in").select_key(value_of).map_values(str.upper)
    changed.merge(builder.stream("other")).group_by_key().count()


def joined_when_not_at_the_same_time(builder: StreamsBuilder) -> None:
    stream = builder.stream("in")
    stream.join(stream, both, WINDOW.before(-2))


def left_joined(builder: StreamsBuilder) -> None:
    stream = builder.stream("in")
    stream.left_join(stream, both, WINDOW)


@pytest.mark.parametrize(
    "define", [joined_with_a_global_table, merged_with_others_on_the_way, joined_when_not_at_the_same_time, left_joined]
)
def test_what_would_change_results_is_left_as_it_is(define: Callable[[StreamsBuilder], object]) -> None:
    assert unchanged(define)


def test_two_aggregates_of_one_filtered_stream_share_a_topic() -> None:
    """(Kafka Streams 4.3.1 raises `Found a null keyChangingChild node`.)"""

    def twice(builder: StreamsBuilder) -> None:
        stream = builder.stream("in").select_key(value_of).filter(lambda key, value: True)
        stream.group_by_key().count().to_stream().to("counts", produced=None)
        stream.group_by_key().reduce(both).to_stream().to("reduced")

    topology = built(twice, **ALL, **{"default.value.serde": serdes.STRING}).resolved(StreamsConfig({**DEFAULTS, **ALL}))
    assert len([topic for topic in topology.internal_topics() if topic.kind == "repartition"]) == 1
    assert len(topology.sub_topologies()) == 2


def test_a_table_from_a_topic_has_no_changelog_and_members_see_the_difference() -> None:
    def rows(builder: StreamsBuilder) -> None:
        builder.table("in", materialized=Materialized("rows"))

    optimized = built(rows, **ALL).resolved(StreamsConfig({**DEFAULTS, **ALL}))
    assert optimized.internal_topics() == ()
    assert dict(optimized.sub_topologies()[0].source_changelogs) == {"rows": "in"}
    plain = built(rows)
    assert str(plain.describe()) == str(optimized.describe())
    assert plain.resolved(StreamsConfig(DEFAULTS)).hash() != optimized.hash()


class Keep(Processor[str, str, None, None]):
    def init(self, context: ProcessorContext[None, None]) -> None:
        self._rows = context.get_state_store("rows")

    def process(self, record: Record[str, str]) -> None:
        self._rows.put(record.key, record.value)


def test_a_read_only_store_is_a_copy_of_its_topic_without_a_changelog() -> None:
    topology = Topology()
    builder = Stores.key_value_store_builder(Stores.in_memory_key_value_store("rows"), serdes.STRING, serdes.STRING)
    topology.add_read_only_state_store(builder, "source", "in", "keep", Keep)
    resolved = topology.resolved(StreamsConfig(DEFAULTS))
    assert resolved.internal_topics() == ()
    assert dict(resolved.sub_topologies()[0].source_changelogs) == {"rows": "in"}
    with TopologyTestDriver(topology, DEFAULTS) as driver:
        driver.create_input_topic("in", serdes.STRING, serdes.STRING).pipe_input("k", "v")
        assert dict(driver.get_key_value_store("rows").all()) == {"k": "v"}


def by_value(record: ConsumerRecord, _partition_time: int) -> int:
    return int(str(record.value or "0"))


@pytest.mark.parametrize("by_key", [True, False])
def test_a_source_topic_is_restored_as_it_was_processed(by_key: bool) -> None:
    """Records that cannot be read, or have no key or a negative time, are left out; times are the extractor's."""
    batch = SourceBatch(by_key, False, Decoder("in", serdes.STRING, serdes.STRING, by_value))
    batch.add(messages(("a", "7", 1), ("a", "no number", 2), ("b", "-1", 3), (None, "5", 4), ("c", "9", 5), ("c", None, 6)), 0)
    assert batch.records == 6
    tail = [(b"c", None, 0)]
    assert batch.take() == [(b"a", b"7", 7), *([] if by_key else [(b"c", b"9", 9)]), *tail]
    assert batch.take() == []
