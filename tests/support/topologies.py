"""The topologies of tests/formats/topologies/Descriptions.java in Python, with the same names and the same order of calls."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta

from penstock import (
    Branched,
    Consumed,
    EmitStrategy,
    Grouped,
    Joined,
    JoinWindows,
    Materialized,
    Named,
    Printed,
    Processor,
    ProcessorSupplier,
    Produced,
    Repartitioned,
    SessionWindows,
    SlidingWindows,
    Stores,
    StreamJoined,
    StreamsBuilder,
    Suppressed,
    TableJoined,
    TimeWindows,
    Topology,
    UnlimitedWindows,
    ValueTransformerWithKey,
    serdes,
)
from penstock.runtime.stores import EngineStore, StoreBuilder
from tests.support import optimized


def pair(key: object, value: object) -> tuple[object, object]:
    return key, value


def pairs(key: object, value: object) -> list[tuple[object, object]]:
    return [(key, value)]


def second(_first: object, value: object) -> object:
    return value


def first(left: object, _right: object) -> object:
    return left


def always(_key: object, _value: object) -> bool:
    return True


def by_value(_key: object, value: object) -> object:
    return value


def itself(value: object) -> object:
    return value


def merge(_key: object, one: object, _other: object) -> object:
    return one


def nothing() -> None:
    return None


def aggregate(_key: object, _value: object, total: object) -> object:
    return total


def stateless(b: StreamsBuilder) -> None:
    s = b.stream(["in-b", "in-a", "in-c"])
    s.filter(always).map_values(lambda v: v).flat_map_values(lambda v: [v]).peek(pair).to("out")
    s.filter_not(always, Named("negated")).map(pair).to("out-2", Produced(name="sink"))
    s.flat_map(pairs).select_key(second).foreach(pair)


def counts(b: StreamsBuilder) -> None:
    s = b.stream("in")
    s.group_by_key().count()
    s.group_by_key().count(Named("counter"))
    s.group_by_key().count(Materialized("counts"))
    s.group_by_key().count(Materialized(value=serdes.LONG))
    s.group_by_key().reduce(second)
    s.group_by_key().reduce(second, "reducer", "reduced")
    s.group_by_key().aggregate(nothing, aggregate)


def group_by(b: StreamsBuilder) -> None:
    s = b.stream("in")
    s.group_by(second).count().to_stream().to("a")
    s.group_by(second, Grouped(name="by-value")).count().to_stream().to("b")
    s.group_by(second).count(Materialized("store")).to_stream().to("c")
    s.select_key(second).group_by_key().reduce(second).to_stream(second).to("d")
    s.select_key(second, "selected").group_by_key("again").aggregate(nothing, aggregate)


def shared_group(b: StreamsBuilder) -> None:
    grouped = b.stream("in").group_by(second, "grouped")
    grouped.count().to_stream().to("a")
    b.stream("between").foreach(pair)
    grouped.reduce(second).to_stream().to("b")
    grouped.windowed_by(TimeWindows.of_size_with_no_grace(1000)).count()


def shared_join(b: StreamsBuilder) -> None:
    s = b.stream("in").map(pair)
    t = b.table("table")
    s.join(t, first).to("a")
    s.left_join(t, lambda key, left, right: left).to("b")
    s.join(t, first, Joined(name="joined")).to("c")
    s.join(t, first).to("d")


def tables(b: StreamsBuilder) -> None:
    t = b.table("in")
    f = t.filter(always).map_values(lambda v: v)
    f.filter_not(always, "negated", "kept").to_stream("changes").to("out")
    b.table("other", "other-table").to_stream(second).to("out-2")
    b.table("named", materialized="named-store").map_values(lambda v: v, materialized="mapped")
    t.map_values(second, Materialized())
    b.stream("stream").join(f, first).to("joined")


def grouped_tables(b: StreamsBuilder) -> None:
    t = b.table("in")
    t.group_by(pair).count()
    t.group_by(pair).reduce(second, second)
    t.group_by(pair, "grouped").aggregate(nothing, aggregate, aggregate, "aggregator", "sums")
    grouped = t.filter(always).group_by(pair, "twice")
    grouped.count().to_stream().to("a")
    b.stream("between").foreach(pair)
    grouped.count(Materialized("second")).to_stream().to("b")


def windows(b: StreamsBuilder) -> None:
    s = b.stream("in")
    five = TimeWindows.of_size_and_grace(timedelta(minutes=5), timedelta(minutes=1)).advance_by(timedelta(minutes=1))
    s.group_by_key().windowed_by(five).count()
    s.group_by_key().windowed_by(five).count(Materialized())
    s.group_by_key().windowed_by(five).reduce(second, Materialized("reduced"))
    s.group_by(second, "by").windowed_by(five).aggregate(nothing, aggregate, "sum", "sums").to_stream().to("out")


def global_tables(b: StreamsBuilder) -> None:
    g = b.global_table("global")
    s = b.stream("in")
    h = b.global_table("other", Consumed(name="other-table"), Materialized("other-store"))
    s.join(g, second, first).left_join(h, second, first, Named("left")).to("out")


def merge_and_repartition(b: StreamsBuilder) -> None:
    s = b.stream("a")
    m = s.merge(b.stream("b")).merge(s.select_key(second), "merged")
    m.repartition().group_by_key().count()
    m.repartition(Repartitioned("wide")).group_by_key().count()
    m.group_by_key().count()


def _store(name: str) -> StoreBuilder[EngineStore]:
    return Stores.key_value_store_builder(Stores.in_memory_key_value_store(name), serdes.STRING, serdes.STRING)


def split(b: StreamsBuilder) -> None:
    s = b.stream("in")
    named = (
        s.split("by-size-")
        .branch(always, Branched("large"))
        .branch(always, Branched("mapped", function=lambda x: x.map_values(lambda v: v)))
        .branch(always, Branched(consumer=lambda x: x.to("apart")))
        .branch(always)
        .default_branch("rest")
    )
    named["by-size-large"].to("large")
    named["by-size-mapped"].to("mapped")
    named["by-size-4"].merge(named["by-size-rest"]).group_by_key().count()
    plain = s.select_key(second).split().branch(always).no_default_branch()
    next(iter(plain.values())).group_by_key().count()


def printed(b: StreamsBuilder) -> None:
    s = b.stream("in")
    s.print(Printed.to_sys_out())
    s.print(Printed.to_sys_out(name="printer", label="label"))


def to_table(b: StreamsBuilder) -> None:
    s = b.stream("in")
    s.to_table().to_stream().to("a")
    s.to_table("named").filter(always).to_stream().to("b")
    s.to_table(Materialized("rows")).to_stream().to("c")
    s.to_table(Materialized()).group_by(lambda key, value: (value, key)).count()
    changed = s.map(pair)
    changed.to_table().to_stream().to("d")
    changed.to_table("other").to_stream().to("e")
    changed.to_table("last", Materialized("kept"))


def patterns(b: StreamsBuilder) -> None:
    s = b.stream(re.compile("flights-.*"))
    again = b.stream(re.compile("flights-.*"))
    other = b.stream(re.compile("other-[0-9]+"), "others")
    s.merge(other).group_by_key().count()
    again.filter(always).to("out")
    b.stream(["x", "y"]).join(b.table("t"), first)


class Bringing(ProcessorSupplier):
    def __init__(self, store: StoreBuilder[EngineStore]) -> None:
        self._store = store

    def get(self) -> Processor:
        return Processor()

    def stores(self) -> list[StoreBuilder[EngineStore]]:
        return [self._store]


def stores_of_suppliers(b: StreamsBuilder) -> None:
    brought = _store("brought")
    b.add_state_store(_store("given"))
    s = b.stream("in")
    s.process(Bringing(brought), "given").to("a")
    s.process(Bringing(brought), named="second")


def processors(b: StreamsBuilder) -> None:
    b.add_state_store(_store("seen"))
    b.add_state_store(_store("last"))
    s = b.stream("in")
    s.process(Processor, "seen", "last").to("a")
    s.process_values(Processor, "seen", named="values").group_by_key().count()
    b.stream("apart").process(Processor, "last")


def same_topic_twice(b: StreamsBuilder) -> None:
    s = b.stream("in")
    again = b.stream("in")
    t = b.table("table")
    again.join(t, first).to("a")
    s.group_by_key().count().to_stream().to("b")
    again.filter(always).to("c")


def fan_out(b: StreamsBuilder) -> None:
    s = b.stream("flights")
    weather = b.table("weather", materialized="weather")
    airlines = b.global_table("airlines", materialized="airlines")
    per_carrier = s.group_by(second, "by-carrier").count(Materialized("carriers")).to_stream()
    per_carrier.join(airlines, first, first).to("flights-per-carrier")
    s.select_key(second).join(weather, first, "by-hour").map_values(lambda v: v).to("flights-with-weather")
    hourly = s.group_by(second, "by-origin").windowed_by(TimeWindows.of_size_with_no_grace(timedelta(hours=1)))
    hourly.aggregate(nothing, aggregate, Materialized("hourly-delay")).to_stream().to("hourly-delay")
    s.filter(always).filter(always).filter(always).foreach(pair)
    s.to("archive")
    s.filter(always).to("late")


def sessions_and_sliding_windows(b: StreamsBuilder) -> None:
    s = b.stream("in")
    sliding = SlidingWindows.of_time_difference_with_no_grace(timedelta(minutes=5))
    sessions = SessionWindows.of_inactivity_gap_with_no_grace(timedelta(minutes=5))
    g = s.group_by(second)
    g.windowed_by(sliding).count()
    g.windowed_by(sliding).count(Materialized(value=serdes.LONG))
    g.windowed_by(sliding).reduce(first, "sliding", "slid")
    g.windowed_by(sessions).count()
    g.windowed_by(sessions).count(Materialized(value=serdes.LONG))
    g.windowed_by(sessions).emit_strategy(EmitStrategy.on_window_close()).reduce(first, Named("visits"))
    g.windowed_by(sessions).aggregate(nothing, aggregate, merge, Materialized("sessions")).to_stream().to("out")
    s.group_by_key().windowed_by(UnlimitedWindows.of()).count(Named("ever"))


def cogroups(b: StreamsBuilder) -> None:
    g = b.stream("a").group_by_key()
    h = b.stream("b").group_by(second)
    i = b.stream("c").group_by(second, "by-c")
    both = g.cogroup(aggregate).cogroup(h, aggregate)
    both.aggregate(nothing)
    both.cogroup(i, aggregate).aggregate(nothing, "all", "totals").to_stream().to("out")
    hour = timedelta(hours=1)
    h.cogroup(aggregate).windowed_by(TimeWindows.of_size_with_no_grace(hour)).aggregate(nothing)
    g.cogroup(aggregate).windowed_by(SlidingWindows.of_time_difference_with_no_grace(hour)).aggregate(nothing, Named("slide"))
    g.cogroup(aggregate).windowed_by(SessionWindows.of_inactivity_gap_with_no_grace(hour)).aggregate(nothing, merge)


def suppressed(b: StreamsBuilder) -> None:
    s, t = b.stream("in"), b.table("table")
    second, hour, unbounded = timedelta(seconds=1), timedelta(hours=1), Suppressed.BufferConfig.unbounded()
    t.suppress(Suppressed.until_time_limit(second, unbounded)).to_stream().to("a")
    few = Suppressed.until_time_limit(second, Suppressed.BufferConfig.max_records(1)).with_name("few")
    t.filter(always).suppress(few).map_values(itself)
    closes = Suppressed.until_window_closes(unbounded)
    hourly = s.group_by_key().windowed_by(TimeWindows.of_size_with_no_grace(hour)).count()
    hourly.suppress(closes).to_stream().to("b")
    visits = s.group_by(by_value).windowed_by(SessionWindows.of_inactivity_gap_with_no_grace(hour)).count(Materialized("visits"))
    visits.map_values(itself).suppress(closes.with_name("final")).to_stream().to("c")
    s.join(t.suppress(Suppressed.until_time_limit(second, unbounded)), first).to("d")


def stream_joins(b: StreamsBuilder) -> None:
    left, right, w = b.stream("left"), b.stream("right"), JoinWindows.of_time_difference_with_no_grace(timedelta(minutes=5))
    left.join(right, first, w).to("a")
    left.left_join(right, first, w).to("b")
    left.outer_join(right, first, w).to("c")
    left.join(right, first, w, "inner").to("d")
    left.left_join(right, first, w, StreamJoined(name="left", store_name="left-stores")).to("e")
    left.outer_join(right, first, w, StreamJoined(name="outer", store_name="outer-stores")).to("f")
    minutes = timedelta(minutes=10)
    stores: StreamJoined = StreamJoined(
        this_store=Stores.in_memory_window_store("this", minutes, minutes, True),
        other_store=Stores.in_memory_window_store("other", minutes, minutes, True),
    )
    left.outer_join(right, first, w, stores).to("g")
    left.join(left, first, w).to("h")


def repartitioned_stream_joins(b: StreamsBuilder) -> None:
    left, right = b.stream("left").select_key(by_value), b.stream("right").map(pair)
    w = JoinWindows.of_time_difference_with_no_grace(timedelta(minutes=5))
    left.left_join(right, first, w).to("a")
    left.join(right, first, w, StreamJoined(name="joined")).to("b")
    left.outer_join(b.stream("third"), first, w).to("c")


def table_joins(b: StreamsBuilder) -> None:
    left, right = b.table("left"), b.table("right")
    joined = left.join(right, first)
    left.left_join(right, first, "named").to_stream().to("a")
    left.outer_join(right, first, Materialized("kept")).to_stream().to("b")
    left.filter(always).outer_join(right.map_values(itself), first, Materialized()).to_stream().to("c")
    left.join(right, first, "both", Materialized("both-store")).to_stream().to("d")
    joined.left_join(b.table("third"), first).to_stream().to("e")
    b.stream("stream").join(joined, first).to("f")


def foreign_key_joins(b: StreamsBuilder) -> None:
    left, right = b.table("left"), b.table("right")
    left.join(right, itself, first).to_stream().to("a")
    left.left_join(right, first, first, "named").to_stream().to("b")
    left.left_join(right.map_values(itself), itself, first, TableJoined(name="kept"), "store").to_stream().to("c")
    left.join(left, itself, first, Materialized()).filter(always).group_by(pair).count()


def versioned_tables(b: StreamsBuilder) -> None:
    hour, minutes = timedelta(hours=1), timedelta(minutes=5)
    table = b.table("table", None, Materialized(Stores.persistent_versioned_key_value_store("rows", hour)))
    stream = b.stream("stream")
    stream.join(table, first, Joined(grace_period=minutes)).to("a")
    stream.left_join(table.filter(always), first, Joined(name="named", grace_period=minutes)).to("b")
    table.group_by(pair).count(Materialized(Stores.persistent_versioned_key_value_store("counts", hour)))


class Keep(ValueTransformerWithKey):
    def transform(self, read_only_key: object, value: object) -> object:
        return value


def transformed_tables(b: StreamsBuilder) -> None:
    b.add_state_store(_store("seen"))
    table = b.table("in")
    table.transform_values(Keep, "seen").to_stream().to("a")
    table.transform_values(Keep, "seen", materialized="kept", named="named").to_stream().to("b")
    b.stream("stream").join(table.transform_values(Keep, materialized=Materialized()), first).to("c")


def by_hand() -> Topology:
    topology = Topology()
    topology.add_source("source", ["in-1", "in-2"])
    topology.add_processor("first", Processor, "source")
    topology.add_processor("second", Processor, "first", "source")
    topology.add_state_store(_store("store"), "first", "second")
    topology.add_sink("sink", "out", "second", "first")
    topology.add_source("aside", "in-3")
    topology.add_sink("aside-sink", "out-2", "aside")
    return topology


OPTIMIZED: dict[str, Callable[[StreamsBuilder], None]] = {
    "optimized: two counts": optimized.two_counts,
    "optimized: joined and grouped": optimized.joined_and_grouped,
    "optimized: merged streams": optimized.merged_streams,
    "optimized: one of each": optimized.one_of_each,
    "optimized: self-joins": optimized.self_joins,
    "optimized: tables": optimized.tables,
}

DEFINITIONS: dict[str, Callable[[StreamsBuilder], None]] = {
    "sessions and sliding windows": sessions_and_sliding_windows,
    "cogroups": cogroups,
    "suppressed": suppressed,
    "stream joins": stream_joins,
    "repartitioned stream joins": repartitioned_stream_joins,
    "table joins": table_joins,
    "foreign-key joins": foreign_key_joins,
    "versioned tables": versioned_tables,
    "transformed tables": transformed_tables,
    "stateless": stateless,
    "counts": counts,
    "group_by": group_by,
    "shared group": shared_group,
    "shared join": shared_join,
    "tables": tables,
    "grouped tables": grouped_tables,
    "windows": windows,
    "global tables": global_tables,
    "merge and repartition": merge_and_repartition,
    "split": split,
    "printed": printed,
    "to table": to_table,
    "patterns": patterns,
    "stores of suppliers": stores_of_suppliers,
    "processors": processors,
    "same topic twice": same_topic_twice,
    "fan-out": fan_out,
}


SETTINGS = {
    "application.id": "described",
    "bootstrap.servers": "none:9092",
    "default.key.serde": serdes.STRING,
    "default.value.serde": serdes.STRING,
}


def build(name: str) -> Topology:
    """Return one of the topologies above."""
    if name == "by hand":
        return by_hand()
    builder = StreamsBuilder()
    if name in OPTIMIZED:
        OPTIMIZED[name](builder)
        return builder.build({"topology.optimization": "all", **SETTINGS})
    DEFINITIONS[name](builder)
    return builder.build()
