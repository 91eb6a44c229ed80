"""Configuration objects of the DSL: accepted and refused values, and their effect on the topology."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import (
    Branched,
    Consumed,
    Grouped,
    Joined,
    Materialized,
    Named,
    Processor,
    Produced,
    Record,
    Repartitioned,
    Stores,
    StreamsBuilder,
    StreamsConfig,
    TimeWindows,
    Topology,
    TopologyError,
    serdes,
)
from penstock.runtime.model.offsets import AutoOffsetReset
from penstock.runtime.operators.stateless import HasKey, PassThrough
from penstock.runtime.stores import EntryStore
from penstock.runtime.stores.suppliers import Builder
from penstock.runtime.topology.nodes import ProcessorNode, SinkNode, SourceNode
from penstock.testing import TopologyTestDriver
from tests.support.building import STRINGS, second


def resolved(builder: StreamsBuilder) -> Topology:
    return builder.build().resolved(StreamsConfig(STRINGS))


def store(define: Callable[[StreamsBuilder], object]) -> Builder[EntryStore]:
    """The one store of a topology."""
    builder = StreamsBuilder()
    define(builder)
    (found,) = (each for part in resolved(builder).sub_topologies() for each in part.stores)
    assert isinstance(found, Builder)
    return found


@pytest.mark.parametrize("name", ["", ".", "..", "with space", "a/b", "ä", "x" * 250])
def test_a_name_that_no_topic_could_carry_is_refused(name: str) -> None:
    builder = StreamsBuilder()
    stream, rows = builder.stream("in"), builder.table("t")
    refusals: list[Callable[[], object]] = [
        lambda: Named(name),
        lambda: Materialized(name),
        lambda: stream.filter(second, name),
        lambda: stream.group_by_key(name).count(),
        lambda: StreamsBuilder().stream("in", Consumed(name=name)),
        lambda: stream.to("out", Produced(name=name)),
        lambda: stream.repartition(name),
        lambda: stream.repartition(Repartitioned(name)),
        lambda: stream.map(lambda k, v: (k, v)).join(rows, second, Joined(name=name)),
        lambda: stream.group_by(second, Grouped(name=name)),
    ]
    for refuse in refusals:
        with pytest.raises(TopologyError, match="a name has 1 to 249 characters"):
            refuse()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Consumed("STRING"),  # type: ignore[arg-type]
        lambda: Produced(value=str),  # type: ignore[arg-type]
        lambda: Grouped(serdes),  # type: ignore[arg-type]
        lambda: Joined(other_value=b""),  # type: ignore[arg-type]
        lambda: Repartitioned(key=1),  # type: ignore[arg-type]
        lambda: Materialized("s", value=serdes.json),  # type: ignore[arg-type]
    ],
)
def test_a_value_that_is_not_a_serde_is_refused_at_once(wrong: Callable[[], object]) -> None:
    with pytest.raises(TopologyError, match=r"is not a Serde; for example penstock.serdes.STRING"):
        wrong()


def test_only_the_first_field_goes_by_position() -> None:
    with pytest.raises(TypeError):
        Consumed(serdes.STRING, serdes.STRING)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Materialized("store", serdes.STRING)  # type: ignore[call-arg]


def test_a_name_alone_stands_for_the_object() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", "source")
    stream.filter(second, "filter").to("out", "sink")
    described = str(builder.build().describe())
    assert "Source: source (topics: [in])" in described
    assert "Processor: filter" in described and "Sink: sink" in described


def test_key_and_value_stand_for_an_object_of_serdes_alone() -> None:
    def short(b: StreamsBuilder) -> None:
        b.stream("in", key=serdes.STRING, value=serdes.LONG).to("out", key=serdes.STRING, value=serdes.LONG)
        moved = b.stream("a", "by-name", key=serdes.STRING, value=serdes.LONG).map(lambda k, v: (k, v))
        moved.group_by_key(key=serdes.STRING, value=serdes.LONG).count("counts")
        moved.repartition("again", key=serdes.STRING, value=serdes.LONG).group_by(lambda k, v: v, "by", key=serdes.LONG).count("more")
        table = b.table("t", Materialized("rows"), key=serdes.STRING, value=serdes.LONG)
        table.group_by(lambda k, v: (v, k), key=serdes.LONG, value=serdes.STRING).count()
        b.global_table("g", key=serdes.STRING, value=serdes.LONG)

    def long(b: StreamsBuilder) -> None:
        b.stream("in", Consumed(serdes.STRING, value=serdes.LONG)).to("out", Produced(serdes.STRING, value=serdes.LONG))
        moved = b.stream("a", Consumed(serdes.STRING, value=serdes.LONG, name="by-name")).map(lambda k, v: (k, v))
        moved.group_by_key(Grouped(serdes.STRING, value=serdes.LONG)).count(Materialized("counts"))
        again = moved.repartition(Repartitioned("again", key=serdes.STRING, value=serdes.LONG))
        again.group_by(lambda k, v: v, Grouped(serdes.LONG, name="by")).count(Materialized("more"))
        table = b.table("t", Consumed(serdes.STRING, value=serdes.LONG), Materialized("rows"))
        table.group_by(lambda k, v: (v, k), Grouped(serdes.LONG, value=serdes.STRING)).count()
        b.global_table("g", Consumed(serdes.STRING, value=serdes.LONG))

    def nodes(define: Callable[[StreamsBuilder], None]) -> list[object]:
        builder = StreamsBuilder()
        define(builder)
        topology = builder.build().resolved(StreamsConfig({"application.id": "a", "bootstrap.servers": "b:1"}))
        ends = [end for part in topology.sub_topologies() for end in part.nodes if isinstance(end, SourceNode | SinkNode)]
        stores = [each.settings for part in topology.sub_topologies() for each in part.stores if isinstance(each, Builder)]
        return [str(topology.describe()), *((repr(end.key_serde), repr(end.value_serde)) for end in ends), *map(repr, stores)]

    assert nodes(short) == nodes(long)


@pytest.mark.parametrize(
    "twice",
    [
        lambda b: b.stream("in", Consumed(serdes.STRING), value=serdes.STRING),
        lambda b: b.stream("in").to("out", Produced(name="n"), key=serdes.STRING),
        lambda b: b.table("in", Consumed(name="n"), key=serdes.STRING),
        lambda b: b.global_table("in", Consumed(), "rows", key=serdes.STRING),
        lambda b: b.stream("in").repartition(Repartitioned("n"), key=serdes.STRING),
        lambda b: b.stream("in").group_by(second, Grouped(name="n"), key=serdes.STRING),
        lambda b: b.stream("in").group_by_key(Grouped(name="n"), key=serdes.STRING),
        lambda b: b.table("in").group_by(second, Grouped(name="n"), key=serdes.STRING),
    ],
)
def test_serdes_beside_an_object_that_may_have_some_are_refused(twice: Callable[[StreamsBuilder], object]) -> None:
    with pytest.raises(
        TopologyError, match=r"^serdes are given twice, beside \w+\(...\) too: give them in \w+\(...\), or as key= and value="
    ):
        twice(StreamsBuilder())


def test_one_node_name_cannot_be_given_twice() -> None:
    stream = StreamsBuilder().stream("in")
    stream.filter(second, "filter")
    with pytest.raises(TopologyError, match="node 'filter' was added before"):
        stream.map_values(lambda value: value, "filter")


def test_one_store_name_cannot_be_given_twice() -> None:
    stream = StreamsBuilder().stream("in")
    stream.group_by_key().count(Materialized("counts"))
    with pytest.raises(TopologyError, match="store 'counts' was added before"):
        stream.group_by_key().count(Materialized("counts"))


# -- sources -------------------------------------------------------------------------------------------------------------------


def test_offset_resets_and_extractors_reach_the_source() -> None:
    def at_once(record: object, partition_time: int) -> int:
        return 0

    builder = StreamsBuilder()
    builder.stream("in", Consumed(offset_reset_policy="latest", timestamp_extractor=at_once))
    (source,) = resolved(builder).sub_topologies()[0].sources
    assert (source.offset_reset, source.timestamp_extractor) == (AutoOffsetReset.latest(), at_once)


def test_an_unknown_offset_reset_is_refused() -> None:
    with pytest.raises(TopologyError, match=r"an offset reset is earliest, latest, none or by_duration.*not 'newest'"):
        StreamsBuilder().stream("in", Consumed(offset_reset_policy="newest"))


def test_streams_of_the_same_topics_must_be_read_alike() -> None:
    builder = StreamsBuilder()
    builder.stream(["a", "b"], Consumed(serdes.STRING))
    builder.stream(["b", "a"], Consumed(serdes.STRING, name="again"))
    with pytest.raises(TopologyError, match="topics a, b are read twice, with different Consumed"):
        builder.stream(["a", "b"], Consumed(serdes.LONG))
    with pytest.raises(TopologyError, match="topic a is already read by source KSTREAM-SOURCE-0000000000"):
        builder.stream("a")
    with pytest.raises(TopologyError, match="topic b is already read by source"):
        builder.table("b")


def test_at_least_one_topic_is_read() -> None:
    with pytest.raises(TopologyError, match="at least one topic is needed"):
        StreamsBuilder().stream([])
    with pytest.raises(TopologyError, match="the topology reads no topic"):
        resolved(StreamsBuilder())


# -- windows -------------------------------------------------------------------------------------------------------------------


def test_durations_are_timedeltas_or_milliseconds() -> None:
    hour = TimeWindows.of_size_and_grace(timedelta(hours=1), timedelta(minutes=10))
    assert hour == TimeWindows.of_size_and_grace(3_600_000, 600_000)
    assert (hour.size_ms, hour.advance_ms, hour.grace_period_ms) == (3_600_000, 3_600_000, 600_000)
    assert hour.advance_by(timedelta(minutes=5)).advance_ms == 300_000
    assert TimeWindows.of_size_with_no_grace(5).grace_period_ms == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TimeWindows.of_size_with_no_grace(0), "the size must be positive"),
        (lambda: TimeWindows.of_size_with_no_grace(10).advance_by(0), r"the advance must be in \(0, 10\] ms, not 0"),
        (lambda: TimeWindows.of_size_with_no_grace(10).advance_by(11), r"the advance must be in \(0, 10\] ms, not 11"),
    ],
)
def test_impossible_windows(make: Callable[[], object], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        make()


def test_negative_and_fractional_durations_are_refused() -> None:
    with pytest.raises(ValueError, match="the grace period must not be negative"):
        TimeWindows.of_size_and_grace(10, -1)
    with pytest.raises(TypeError, match=r"the window size is a datetime.timedelta or whole milliseconds"):
        TimeWindows.of_size_with_no_grace(1.5)  # type: ignore[arg-type]


@given(size=st.integers(1, 1000), data=st.data())
def test_windows_hold_their_records_and_no_other(size: int, data: st.DataObject) -> None:
    advance, timestamp = data.draw(st.integers(1, size)), data.draw(st.integers(0, 5000))
    windows = TimeWindows.of_size_with_no_grace(size).advance_by(advance)
    every = range(0, timestamp + size, windows.advance_ms)
    assert list(windows.windows_for(timestamp)) == [start for start in every if start <= timestamp < start + size]


# -- stores --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("materialized", "persistent", "caching", "logging"),
    [
        (Materialized("s"), True, True, True),
        (Materialized("s", store_type="in_memory"), False, True, True),
        (Materialized(Stores.in_memory_key_value_store("s")), False, True, True),
        (Materialized(Stores.persistent_key_value_store("s"), store_type="in_memory"), True, True, True),
        (Materialized("s", caching=False, logging=False), True, False, False),
    ],
)
def test_how_a_store_is_kept(materialized: Materialized, persistent: bool, caching: bool, logging: bool) -> None:
    found = store(lambda b: b.stream("in").group_by_key().count(materialized))
    assert (found.name, found.build().persistent, found.caching_enabled, found.logging_enabled) == ("s", persistent, caching, logging)


def test_settings_of_the_changelog() -> None:
    found = store(lambda b: b.stream("in").group_by_key().count(Materialized("s", logging={"segment.bytes": "1000"})))
    assert dict(found.changelog_config()) == {
        "cleanup.policy": "compact",
        "message.timestamp.type": "CreateTime",
        "segment.bytes": "1000",
    }


def test_windows_are_kept_for_size_plus_grace_or_longer() -> None:
    def retention(how: Materialized) -> int | None:
        windows = TimeWindows.of_size_and_grace(1000, 500)
        return store(lambda b: b.stream("in").group_by_key().windowed_by(windows).count(how)).build().layout.retention_ms

    assert retention(Materialized()) == 1500
    assert retention(Materialized(retention=timedelta(seconds=60))) == 60_000
    with pytest.raises(TopologyError, match="retention of 500 ms is shorter than window size plus grace, 1500 ms"):
        retention(Materialized(retention=500))
    assert retention(Materialized(Stores.in_memory_window_store("w", 2000, 1000))) == 2000
    with pytest.raises(TopologyError, match="store w: its retention of 1499 ms is shorter than window size plus grace, 1500 ms"):
        retention(Materialized("w", retention=1499))


def test_a_supplier_of_the_wrong_kind() -> None:
    grouped = StreamsBuilder().stream("in").group_by_key()
    with pytest.raises(TopologyError, match="store w: a table without windows needs a key-value store"):
        grouped.count(Materialized(Stores.in_memory_window_store("w", 10, 10)))
    with pytest.raises(TopologyError, match="store s: a windowed table needs a window store"):
        grouped.windowed_by(TimeWindows.of_size_with_no_grace(10)).count(Materialized(Stores.in_memory_key_value_store("s")))
    with pytest.raises(TopologyError, match="store_type is rocksDB or in_memory, not 'memory'"):
        Materialized(store_type="memory")


def test_a_supplier_for_other_windows_is_refused() -> None:
    windows = TimeWindows.of_size_with_no_grace(10)
    with pytest.raises(TopologyError, match="store w: its windows are of 20 ms, those of the aggregate of 10 ms"):
        StreamsBuilder().stream("in").group_by_key().windowed_by(windows).count(Materialized(Stores.in_memory_window_store("w", 40, 20)))


def test_two_tables_cannot_share_a_store() -> None:
    """They would write over each other's rows."""
    builder = StreamsBuilder()
    builder.table("first", materialized=Materialized("rows"))
    with pytest.raises(TopologyError, match="'rows' was added before"):
        builder.table("second", materialized=Materialized("rows"))


def test_a_table_may_be_kept_without_saying_how_it_is_read() -> None:
    builder = StreamsBuilder()
    kept = Materialized[str, int]("rows", key=serdes.STRING, value=serdes.LONG)
    assert builder.table("t", kept).queryable_store_name == "rows"
    assert builder.global_table("g", Materialized("all", key=serdes.STRING, value=serdes.LONG)).queryable_store_name == "all"
    builder.build({"application.id": "app", "bootstrap.servers": "localhost:9092"})


def test_a_table_gets_a_store_when_something_needs_its_rows() -> None:
    def stores(use: Callable[[StreamsBuilder], object]) -> list[str]:
        builder = StreamsBuilder()
        use(builder)
        return [each.name for part in resolved(builder).sub_topologies() for each in part.stores]

    assert stores(lambda b: b.table("t").filter(second).to_stream().to("out")) == []
    assert stores(lambda b: b.table("t", materialized="rows")) == ["rows"]
    assert stores(lambda b: b.stream("in").join(b.table("t"), second)) == ["t-STATE-STORE-0000000001"]
    assert stores(lambda b: b.stream("in").join(b.table("t").filter(second).map_values(str), second)) == ["t-STATE-STORE-0000000001"]
    assert stores(lambda b: b.stream("in").join(b.table("t").filter(second, materialized="few"), second)) == ["few"]
    assert stores(lambda b: b.table("t").map_values(str).group_by(lambda key, value: (key, value))) == ["t-STATE-STORE-0000000000"]


def test_a_global_store_with_an_offset_reset_policy_is_refused_with_the_reason() -> None:
    """KIP-406 rejects the policy: `latest` would lose rows. It used to be ignored."""
    reason = r"offset_reset_policy=latest is not possible: it holds the whole topic"
    latest = Consumed(serdes.STRING, value=serdes.STRING, offset_reset_policy="latest")
    with pytest.raises(TopologyError, match=f"global table g: {reason}"):
        StreamsBuilder().global_table("g", latest)
    store = Stores.key_value_store_builder(Stores.in_memory_key_value_store("all"), serdes.STRING, serdes.STRING)
    with pytest.raises(TopologyError, match=f"global store of topic g: {reason}"):
        StreamsBuilder().add_global_store(store, "g", latest, Processor)


def test_a_global_table_has_no_changelog_and_no_cache() -> None:
    builder = StreamsBuilder()
    builder.global_table("g", materialized="rows")
    (found,) = resolved(builder).global_stores()
    assert (found.topic, found.store.name, found.own_processor) == ("g", "rows", False)
    assert isinstance(found.store, Builder)
    assert not found.store.logging_enabled and not found.store.caching_enabled


# -- repartition topics ----------------------------------------------------------------------------------------------------------


def keyless_filters(builder: StreamsBuilder) -> dict[str, type]:
    return {
        node.name: type(node.supplier)
        for part in resolved(builder).sub_topologies()
        for node in part.nodes
        if isinstance(node, ProcessorNode) and node.name.endswith("-filter")
    }


def test_records_without_key_pass_a_repartition_topic_for_a_left_join_only() -> None:
    builder = StreamsBuilder()
    changed = builder.stream("in").select_key(second)
    table = builder.table("t")
    changed.repartition("first").map_values(str).left_join(table, second, Joined(name="near"))
    changed.join(table, second, Joined(name="inner"))
    changed.left_join(table, second, Joined(name="left"))
    changed.repartition("apart").foreach(second)
    changed.repartition("global").left_join(builder.global_table("g"), second, second)
    assert keyless_filters(builder) == {
        "first-repartition-filter": PassThrough,
        "inner-repartition-filter": HasKey,
        "left-repartition-filter": PassThrough,
        "apart-repartition-filter": HasKey,
        "global-repartition-filter": PassThrough,
    }


def test_a_left_join_behind_a_repartition_topic_gets_records_without_key() -> None:
    builder = StreamsBuilder()
    strings, out = Consumed(serdes.STRING, value=serdes.STRING), Produced(serdes.STRING, value=serdes.STRING)
    stream, table = (
        builder.stream("in", strings).select_key(lambda key, value: None if value == "lost" else value),
        builder.table("t", strings),
    )
    stream.left_join(table, lambda left, right: f"{left}-{right}", Joined(serdes.STRING, name="left")).to("left", out)
    stream.join(table, lambda left, right: f"{left}-{right}", Joined(serdes.STRING, name="inner")).to("inner", out)
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("t", serdes.STRING, serdes.STRING).pipe_input("x", "row")
        driver.create_input_topic("in", serdes.STRING, serdes.STRING).pipe_value_list(["lost", "x"])
        found = {
            name: driver.create_output_topic(name, serdes.STRING, serdes.STRING).read_key_values_to_list() for name in ("left", "inner")
        }
    assert found == {"left": [(None, "lost-None"), ("x", "x-row")], "inner": [("x", "x-row")]}


def test_partitions_of_a_repartition_topic() -> None:
    builder = StreamsBuilder()
    builder.stream("in").repartition(Repartitioned("wide", partitions=12)).group_by_key().count()
    (wide,) = (topic for topic in resolved(builder).internal_topics() if topic.kind == "repartition")
    assert (wide.name, wide.partitions) == ("app-wide-repartition", 12)
    with pytest.raises(TopologyError, match="partitions is a whole number of at least 1, not 0"):
        Repartitioned(partitions=0)


def test_options_may_be_built_with_their_types() -> None:
    assert Consumed[str, str](serdes.STRING, value=serdes.STRING) == Consumed(serdes.STRING, value=serdes.STRING)
    assert Materialized[str, int]("counts") == Materialized("counts")
    assert Branched[str, str]("late").name == "late"
    assert Joined[str, str, str](serdes.STRING).key is serdes.STRING
    assert Record[str, int]("a", 1) == Record("a", 1)
