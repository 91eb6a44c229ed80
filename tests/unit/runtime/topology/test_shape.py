"""Whether a topology fits the state of the previous one, with a message for each change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from penstock import Consumed, Grouped, Materialized, SessionWindows, Stores, StreamsBuilder, TimeWindows, serdes
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.coordination.records import TopologyText, decode, encode
from penstock.runtime.serdes.serde import Serde
from penstock.runtime.topology.shape import TopologyShape, accepted, has_formats, left_out, merged, misfits, shape_of

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


def reported(previous: TopologyShape, now: TopologyShape, **unread: int) -> list[str]:
    return misfits(
        previous, now, [store.name for store in previous.stores], {name.replace("_", "-"): left for name, left in unread.items()}
    )


def test_the_shape_is_kept_with_the_text_of_a_topology() -> None:
    record = TopologyText(hash="h", text="t", shape=shape(counted, table, optimized="reuse.ktable.source.topics"))
    assert decode(record.key, encode(record)) == record
    assert decode(record.key, b'{"hash":"h","text":"t"}') == TopologyText(hash="h", text="t")


def test_what_is_added_behind_and_what_has_no_state_does_no_harm() -> None:
    previous = shape(counted)
    assert reported(previous, shape(counted, reduced, table)) == []
    assert reported(shape(copied), shape(reduced)) == []
    assert misfits(previous, shape(reduced), [], {}) == [], "nothing is left of its state"


def test_a_sub_topology_before_others_moves_their_numbers() -> None:
    [first] = reported(shape(reduced), shape(copied, reduced))
    assert first.startswith("store newest was in sub-topology 0 and is in sub-topology 1 now")


def test_a_removed_and_an_added_store_are_reported_as_a_likely_rename() -> None:
    def renamed(builder: StreamsBuilder) -> None:
        builder.stream("other").group_by_key().reduce(lambda one, other: one, Materialized("latest"))

    assert reported(shape(reduced), shape(renamed)) == [
        "store newest of sub-topology 0 is not there any more: was it renamed to latest?",
    ]


def test_a_store_may_be_left_out() -> None:
    both, one = shape(counted, reduced), shape(counted)
    assert reported(both, one) == []
    assert left_out(both, one, ["newest"]) == ["newest"]


def test_a_changed_kind_of_a_store_is_reported() -> None:
    def versioned(builder: StreamsBuilder) -> None:
        supplier = Stores.persistent_versioned_key_value_store("newest", 1000)
        builder.stream("other").group_by_key().reduce(lambda one, other: one, Materialized(supplier))

    [change] = reported(shape(reduced), shape(versioned))
    assert change == "store newest was a key-value store and is a versioned store now"


def test_a_removed_source_topic_of_stores_is_reported() -> None:
    def fewer(builder: StreamsBuilder) -> None:
        builder.stream("in").group_by_key().count(Materialized("counts"))

    def more(builder: StreamsBuilder) -> None:
        builder.stream(["in", "more"]).group_by_key().count(Materialized("counts"))

    assert reported(shape(more), shape(fewer)) == [
        "source topic more of sub-topology 0 is not read any more: its stores hold results of its records"
    ]
    assert reported(shape(fewer), shape(more)) == []


@pytest.mark.parametrize("left", [7, 0])
def test_a_renamed_repartition_topic_is_reported_if_it_has_records(left: int) -> None:
    def renamed(builder: StreamsBuilder) -> None:
        builder.stream(["in", "more"]).group_by(lambda key, value: value, Grouped(name="otherwise")).count(Materialized("counts"))

    unread = {"app-by-value-repartition": left} if left else {}
    found = misfits(shape(counted), shape(renamed), ["counts"], unread)
    text = f"repartition topic app-by-value-repartition is not there any more, and holds up to {left} records that would not be processed"
    assert found == ([text] if left else [])


def test_a_table_may_begin_to_reuse_its_topic_but_not_to_keep_a_changelog() -> None:
    plain, reusing = shape(table), shape(table, optimized="all")
    assert reported(plain, reusing) == []
    assert reported(reusing, plain) == ["store rows was restored from topic rows, and is to have a changelog now, which is empty"]


def test_topics_of_a_pattern_are_no_part_of_the_shape() -> None:
    import re

    def matching(builder: StreamsBuilder) -> None:
        builder.stream(re.compile("in-.*"), Consumed(serdes.STRING, value=serdes.STRING)).group_by_key().count(Materialized("counts"))

    assert shape(matching).sources == {0: ()}


# --- formats ------------------------------------------------------------------------------------------------------------------


def windowed(
    size: int = 1000, advance: int | None = None, grace: int = 0, retention: int | None = None, **how: object
) -> Callable[..., object]:
    windows = TimeWindows.of_size_and_grace(size, grace).advance_by(size if advance is None else advance)

    def part(builder: StreamsBuilder) -> None:
        builder.stream("in").group_by_key().windowed_by(windows).count(Materialized("windows", retention=retention, **how))  # type: ignore[arg-type]

    return part


def sessions(gap: int) -> Callable[..., object]:
    def part(builder: StreamsBuilder) -> None:
        windows = SessionWindows.of_inactivity_gap_and_grace(gap, 100 - gap)
        builder.stream("in").group_by_key().windowed_by(windows).count(Materialized("sessions"))

    return part


def valued(value: Serde[Any], **how: object) -> Callable[..., object]:
    def part(builder: StreamsBuilder) -> None:
        kept: Materialized[str, Any] = Materialized("newest", value=value, **how)  # type: ignore[arg-type]
        builder.stream("in").group_by_key().aggregate(lambda: 0, lambda key, value, total: total, kept)

    return part


def grouped(value: Serde[Any]) -> Callable[..., object]:
    def part(builder: StreamsBuilder) -> None:
        stream = builder.stream("in", Consumed(serdes.STRING, value=value))
        stream.group_by(lambda key, value: key, Grouped(serdes.STRING, value=value, name="g")).count(Materialized("counts"))

    return part


class Old(msgspec.Struct):
    n: int


class New(msgspec.Struct):
    n: int
    m: str = ""


class Newest(msgspec.Struct):
    n: int
    m: str


@pytest.mark.parametrize(
    ("previous", "now", "change"),
    [
        (valued(serdes.LONG), valued(serdes.DOUBLE), "store newest: its values were LONG and are DOUBLE now"),
        (valued(serdes.json(Old)), valued(serdes.json(Newest)), "store newest: its values: field m is new and has no default"),
        (valued(serdes.LONG), valued(serdes.LONG, logging=False), "is to have no changelog now"),
        (valued(serdes.LONG, logging=False), valued(serdes.LONG), "had no changelog and is to have one now, which is empty"),
        (windowed(1000), windowed(2000), "its windows were of 1000 ms and are of 2000 ms now"),
        (windowed(1000), windowed(1000, 500), "its windows started every 1000 ms and start every 500 ms now"),
        (windowed(logging=False), windowed(grace=9, logging=False), "it has no changelog to make them from"),
        (sessions(10), sessions(20), "its windows started after a gap of 10 ms and start after a gap of 20 ms now"),
    ],
)
def test_a_changed_format_of_a_store_is_reported(previous: Callable[..., object], now: Callable[..., object], change: str) -> None:
    [text] = reported(shape(previous), shape(now))
    assert change in text


@pytest.mark.parametrize(
    ("previous", "now", "notes"),
    [
        (valued(serdes.json(Old)), valued(serdes.json(New)), []),
        (valued(serdes.json(New)), valued(serdes.json(Old)), ["store newest: field m of its values is not read any more"]),
        (valued(serdes.LONG), valued(serdes.LONG, caching=False), []),
        (valued(serdes.LONG), valued(serdes.LONG, store_type="in_memory"), []),
        (windowed(), windowed(grace=9), ["store windows: its retention was 1000 ms and is 1009 ms now: what has expired"]),
        (windowed(retention=5000), windowed(), ["store windows: its retention was 5000 ms and is 1000 ms now: what is older is gone"]),
    ],
)
def test_a_lossless_change_is_accepted_with_a_warning(
    previous: Callable[..., object], now: Callable[..., object], notes: list[str]
) -> None:
    before, after = shape(previous), shape(now)
    assert reported(before, after) == []
    found = accepted(before, after, [store.name for store in before.stores])
    assert len(found) == len(notes) and all(text.startswith(note) for text, note in zip(found, notes, strict=True))


def test_records_of_a_repartition_topic_are_compared_as_long_as_they_are_unread() -> None:
    previous, now = shape(grouped(serdes.LONG)), shape(grouped(serdes.DOUBLE))
    assert reported(previous, now) == []
    assert reported(previous, now, app_g_repartition=3) == [
        "repartition topic app-g-repartition holds up to 3 records that are not processed yet, and its values were LONG and are DOUBLE now"
    ]


def test_a_changed_default_serde_is_reported() -> None:
    def shaped(default: Serde[Any]) -> TopologyShape:
        builder = StreamsBuilder()
        reduced(builder)
        config = StreamsConfig({**CONFIG, "default.value.serde": default})
        return shape_of(builder.build(config).resolved(config), "app")

    assert reported(shaped(serdes.STRING), shaped(serdes.LONG)) == ["store newest: its values were STRING and are LONG now"]


def test_the_record_keeps_every_version_that_the_state_may_hold() -> None:
    first, second, third = (shape(valued(serdes.json(kind))) for kind in (Old, New, Newest))
    recorded = merged(first, second, ["newest"], [])
    assert msgspec.json.decode(msgspec.json.encode(recorded), type=TopologyShape) == recorded
    assert reported(second, third) == [] and len(reported(recorded, third)) == 1
    assert merged(recorded, second, ["newest"], []) == recorded, "nothing to write at the next start"
    assert merged(recorded, third, [], []) == third, "nothing is left of the previous state"


def test_a_store_that_is_left_out_with_its_sub_topology_is_still_known_when_it_comes_back() -> None:
    """No topology between touches its input, so it continues from its changelog: in the format that is there."""

    def first(builder: StreamsBuilder) -> None:
        builder.stream("first", Consumed(serdes.STRING, value=serdes.STRING)).group_by_key().count(Materialized("counts"))

    both, one, other = shape(first, valued(serdes.LONG)), shape(first), shape(first, valued(serdes.DOUBLE))
    recorded = merged(both, one, ["counts", "newest"], [])
    assert reported(recorded, one) == [] and left_out(recorded, one, ["newest"]) == [], "it is asked about once"
    assert merged(recorded, one, ["counts", "newest"], []) == recorded, "nothing to write at the next start"
    assert reported(recorded, other) == ["store newest: its values were LONG and are DOUBLE now"]
    assert reported(recorded, both) == [] and merged(recorded, both, ["counts", "newest"], []) == both
    assert merged(recorded, other, ["counts"], []) == other, "its changelog was deleted"


def test_stores_that_a_topic_of_the_user_fills_may_have_any_type() -> None:
    def rows(value: Serde[Any]) -> TopologyShape:
        return shape(lambda builder: builder.table("rows", Consumed(serdes.STRING, value=value), Materialized("rows")), optimized="all")

    assert reported(rows(serdes.LONG), rows(serdes.DOUBLE)) == []


def test_a_record_of_an_earlier_version_says_nothing_about_bytes() -> None:
    plain = shape(valued(serdes.LONG))
    earlier = msgspec.structs.replace(
        plain, stores=tuple(msgspec.structs.replace(store, format=None) for store in plain.stores), formats={}
    )
    assert not has_formats(earlier) and has_formats(plain)
    now = shape(valued(serdes.DOUBLE))
    assert reported(earlier, now) == [] and merged(earlier, now, ["newest"], []) == now
