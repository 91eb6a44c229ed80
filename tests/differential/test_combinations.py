"""Operations behind one another and at their limits, as java/Combinations.java has them."""

from __future__ import annotations

from penstock import (
    Consumed,
    Grouped,
    JoinWindows,
    Materialized,
    Produced,
    Repartitioned,
    SessionWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    serdes,
)
from tests.differential.family import Family, as_java

S, L = serdes.STRING, serdes.LONG
BOTH = ("in", "other")
AT_ONCE = JoinWindows.of_time_difference_with_no_grace(0)
NEAR = JoinWindows.of_time_difference_and_grace(4, 2)


def text(value: object) -> str:
    return "null" if value is None else str(value)


def both(left: object, right: object) -> str:
    return f"{text(left)}+{text(right)}"


def joined_at_once(builder: StreamsBuilder) -> None:
    left, right = builder.stream("in"), builder.stream("other")
    left.join(right, both, AT_ONCE).to("inner")
    left.outer_join(right, both, AT_ONCE).to("outer")


def joined_at_once_or_soon(builder: StreamsBuilder) -> None:
    left, right = builder.stream("in"), builder.stream("other")
    left.left_join(right, both, JoinWindows.of_time_difference_and_grace(0, 3)).to("left")
    left.join(right, both, JoinWindows.of_time_difference_and_grace(0, 3).after(2)).to("after")


def counted_joins(builder: StreamsBuilder) -> None:
    left, right = builder.stream("in"), builder.stream("other")
    pairs = left.outer_join(right, both, NEAR)
    pairs.group_by(lambda key, value: value, Grouped(S, value=S)).count(Materialized("pairs")).to_stream().to("pairs", Produced(S, value=L))
    pairs.group_by_key(Grouped(S, value=S)).windowed_by(TimeWindows.of_size_and_grace(10, 20)).reduce(both).to_stream(
        lambda key, value: f"{key.key}@{key.window.start}"
    ).to("reduced")


def counted_counts(builder: StreamsBuilder) -> None:
    counts = builder.stream("in").group_by_key().count(Materialized("counts"))
    groups = counts.group_by(lambda key, count: (str(count), key), Grouped(S, value=S))
    groups.count(Materialized("of-counts")).to_stream().to("of-counts", Produced(S, value=L))
    groups.aggregate(lambda: "", lambda key, new, total: f"{total}+{new}", lambda key, old, total: f"{total}-{old}").to_stream().to("names")


def joined_counts(builder: StreamsBuilder) -> None:
    one = builder.stream("in").group_by_key().count()
    other = builder.stream("other").group_by_key().count(Materialized("others"))
    one.outer_join(other, both, Materialized("sums")).filter(lambda key, value: len(value) < 5).to_stream().to("sums")
    one.left_join(other, both).suppress(Suppressed.until_time_limit(5, Suppressed.BufferConfig.unbounded())).to_stream().to("later")


def joined_foreign_counts(builder: StreamsBuilder) -> None:
    rows, others = builder.table("in"), builder.stream("other").group_by_key().reduce(both, Materialized("others"))
    by_key = rows.left_join(others, lambda value: value[:1], both, materialized=Materialized("joined", value=S))
    by_key.group_by(lambda key, value: (value[:1], value), Grouped(S, value=S)).count().to_stream().to("counts", Produced(S, value=L))


def table_again(builder: StreamsBuilder) -> None:
    rows = builder.table("in").map_values(lambda value: text(value) + "!").to_stream().select_key(lambda key, value: value).to_table()
    rows.filter(lambda key, value: value != "2!").to_stream().to("out")
    rows.group_by(lambda key, value: (value[:1], value), Grouped(S, value=S)).count().to_stream().to("counts", Produced(S, value=L))


def split_and_merged(builder: StreamsBuilder) -> None:
    parts = (
        builder.stream("in")
        .split("part-")
        .branch(lambda key, value: value == "1", "one")
        .branch(lambda key, value: key == "a", "a")
        .default_branch("rest")
    )
    changed = parts["part-one"].select_key(lambda key, value: "one")
    merged = changed.merge(parts["part-rest"]).merge(builder.stream("other").repartition(Repartitioned("through", key=S, value=S)))
    merged.group_by_key(Grouped(S, value=S)).count(Materialized("merged")).to_stream().to("merged", Produced(S, value=L))
    parts["part-a"].left_join(builder.table("rows", Consumed(S, value=S)), both).to("a")


def windows_at_their_limits(builder: StreamsBuilder) -> None:
    groups = builder.stream("in").group_by_key()

    def shown(name: str, windows: TimeWindows) -> None:
        groups.windowed_by(windows).count(Materialized(name, retention=3_600_000)).to_stream(
            lambda key, count: f"{key.key}@{key.window.start}-{key.window.end}"
        ).to(name, Produced(S, value=L))

    shown("smallest", TimeWindows.of_size_with_no_grace(1))
    shown("dense", TimeWindows.of_size_and_grace(7, 3).advance_by(1))
    shown("uneven", TimeWindows.of_size_and_grace(10, 1).advance_by(7))
    groups.windowed_by(SessionWindows.of_inactivity_gap_with_no_grace(1)).count(Materialized("bursts", retention=3_600_000)).to_stream(
        lambda key, count: f"{key.key}@{key.window.start}-{key.window.end}"
    ).to("bursts", Produced(S, value=L))


FAMILIES = [
    Family("Combinations", joined_at_once, topics=BOTH, ahead=2, behind=4),
    Family("Combinations", joined_at_once_or_soon, topics=BOTH, ahead=2, behind=4),
    Family("Combinations", counted_joins, topics=BOTH),
    Family("Combinations", counted_counts),
    Family("Combinations", joined_counts, topics=BOTH),
    Family("Combinations", joined_foreign_counts, topics=BOTH, keys=("1", "2", "3"), values=("1", "2", "3")),
    Family("Combinations", table_again),
    Family("Combinations", split_and_merged, topics=("in", "other", "rows")),
    Family("Combinations", windows_at_their_limits, null_values=False),
]
test_as_java = as_java(FAMILIES)
