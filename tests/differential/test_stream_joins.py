"""Joins of two streams, as java/StreamJoins.java has them."""

from __future__ import annotations

from penstock import JoinWindows, KStream, StreamJoined, StreamsBuilder, serdes
from penstock.runtime.stores import Stores
from tests.differential.family import Family, as_java

WINDOWS = JoinWindows.of_time_difference_and_grace(5, 3)
ASYMMETRIC = JoinWindows.of_time_difference_with_no_grace(2).before(8).after(1)
ONLY_AFTER = JoinWindows.of_time_difference_and_grace(9, 2).before(-2)


def both(left: object, right: object) -> str:
    return f"{text(left)}+{text(right)}"


def with_key(key: object, left: object, right: object) -> str:
    return f"{text(key)}{text(left)}+{text(right)}"


def text(value: object) -> str:
    return "null" if value is None else str(value)


def streams(builder: StreamsBuilder) -> tuple[KStream, KStream]:
    return builder.stream("in"), builder.stream("other")


def inner_streams(builder: StreamsBuilder) -> None:
    left, right = streams(builder)
    left.join(right, both, WINDOWS).to("out")
    left.join(right, with_key, ASYMMETRIC, "named").to("asymmetric")
    left.join(right, with_key, ONLY_AFTER).to("after")


def left_streams(builder: StreamsBuilder) -> None:
    left, right = streams(builder)
    left.left_join(right, both, WINDOWS).to("out")


def left_asymmetric_streams(builder: StreamsBuilder) -> None:
    left, right = streams(builder)
    left.left_join(right, with_key, ASYMMETRIC).to("out")


def left_only_after_streams(builder: StreamsBuilder) -> None:
    left, right = streams(builder)
    left.left_join(right, with_key, ONLY_AFTER).to("out")


def outer_streams(builder: StreamsBuilder) -> None:
    left, right = streams(builder)
    how = StreamJoined(serdes.STRING, value=serdes.STRING, other_value=serdes.STRING, store_name="joined")
    left.outer_join(right, both, WINDOWS, how).to("out")


def outer_asymmetric_streams(builder: StreamsBuilder) -> None:
    left, right = streams(builder)
    left.outer_join(right, with_key, ASYMMETRIC).to("out")


def outer_in_memory_streams(builder: StreamsBuilder) -> None:
    left, right = streams(builder)
    how: StreamJoined = StreamJoined(
        this_store=Stores.in_memory_window_store("this", 13, 10, True), other_store=Stores.in_memory_window_store("other", 13, 10, True)
    )
    left.outer_join(right, with_key, WINDOWS, how).to("out")


def self_joined_stream(builder: StreamsBuilder) -> None:
    stream = builder.stream("in")
    stream.join(stream, both, WINDOWS).to("inner")
    stream.outer_join(stream, both, ASYMMETRIC).to("outer")


def repartitioned_streams(builder: StreamsBuilder) -> None:
    left, right = (stream.select_key(lambda key, value: value) for stream in streams(builder))
    left.outer_join(right, with_key, WINDOWS, "by-value").to("out")


FAMILIES = [
    Family("StreamJoins", define, topics=("in", "other"))
    for define in (
        inner_streams,
        left_streams,
        left_asymmetric_streams,
        left_only_after_streams,
        outer_streams,
        outer_asymmetric_streams,
        outer_in_memory_streams,
        repartitioned_streams,
    )
]
FAMILIES.append(Family("StreamJoins", self_joined_stream))
test_as_java = as_java(FAMILIES)
