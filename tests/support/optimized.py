"""The optimized topologies of tests/formats/topologies/Descriptions.java in Python, in the same order of calls."""

from __future__ import annotations

from penstock import Grouped, JoinWindows, Materialized, Processor, StreamJoined, StreamsBuilder, TimeWindows

MINUTES_5 = 300_000


def _value(key: object, value: object) -> object:
    return value


def _pair(key: object, value: object) -> tuple[object, object]:
    return key, value


def _always(key: object, value: object) -> bool:
    return True


def _first(left: object, right: object) -> object:
    return left


def two_counts(b: StreamsBuilder) -> None:
    s = b.stream("in").select_key(_value)
    s.group_by_key().count().to_stream().to("a")
    s.filter(_always).group_by_key(Grouped(name="named")).count().to_stream().to("b")
    s.to("c")


def joined_and_grouped(b: StreamsBuilder) -> None:
    s = b.stream("in").map(_pair)
    table = b.table("table")
    s.peek(_value).left_join(table, _first).to("a")
    s.group_by_key().windowed_by(TimeWindows.of_size_with_no_grace(MINUTES_5)).count()
    s.map_values(lambda value: value).group_by_key().count()
    s.to_table().to_stream().to("b")


def merged_streams(b: StreamsBuilder) -> None:
    left = b.stream("left").select_key(_value)
    right = b.stream("right").flat_map(lambda key, value: [(key, value)])
    left.merge(right).filter(_always).group_by_key().count()
    b.stream("third").merge(b.stream("fourth").select_key(_value)).group_by_key().count()


def one_of_each(b: StreamsBuilder) -> None:
    b.stream("in").group_by(_value).count()
    b.stream("in").group_by(_value, Grouped(name="grouped")).count()
    b.stream("in").process(Processor).repartition().group_by_key().count()
    b.stream("in").process(Processor).group_by_key().count()


def self_joins(b: StreamsBuilder) -> None:
    w = JoinWindows.of_time_difference_with_no_grace(MINUTES_5)
    s = b.stream("in")
    s.join(s, _first, w).to("a")
    b.stream("other").join(b.stream("other"), _first, w, StreamJoined(store_name="named")).to("b")
    changed = b.stream("third").select_key(_value)
    changed.join(changed, _first, w).to("c")
    changed.group_by_key().count()


def tables(b: StreamsBuilder) -> None:
    b.table("in", materialized=Materialized("rows")).filter(_always).to_stream().to("a")
    b.stream("stream").select_key(_value).join(b.table("joined"), _first).to("b")
    b.table("plain").to_stream().to("c")
