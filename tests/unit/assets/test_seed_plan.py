"""Content of a seed, planned from the topology: tasks, the partitions of a store's keys, inputs; stores that cannot be seeded, with the
reason."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from penstock import (
    Consumed,
    EmitStrategy,
    Grouped,
    JoinWindows,
    Materialized,
    Produced,
    Repartitioned,
    StreamJoined,
    StreamsBuilder,
    TimeWindows,
    serdes,
)
from penstock.assets.spark.seeds.files import PartReport, add_empty_parts
from penstock.assets.spark.seeds.plan import SeedApplication, plan_seed
from penstock.runtime.model.errors import TopologyError, WrongPartitionsError
from penstock.runtime.model.ids import TaskId, TopicPartition
from penstock.runtime.operators.event_time import EMITTED_TIME, OBSERVED_TIME, encoded_time
from penstock.runtime.snapshots.opening import place_of
from penstock.runtime.topology.topology import Topology

MINUTE = timedelta(minutes=1)


def repartitioned() -> Topology:
    """Counts by another key: behind a repartition topic as wide as the wider of two topics; beside it a table, and a global one."""
    builder = StreamsBuilder()
    text = Consumed(serdes.STRING, value=serdes.STRING)
    merged = builder.stream("narrow", text).merge(builder.stream("wide", text))
    by_value = merged.group_by(lambda _key, value: value, Grouped(serdes.STRING, value=serdes.STRING, name="by-value"))
    by_value.count(Materialized("counts"))
    builder.table("table", text, Materialized("rows"))
    builder.global_table("everywhere", text, Materialized("names"))
    return builder.build()


def joined() -> Topology:
    """Stores that a user cannot write: both stores of a join, a store of spread keys; and a window store whose results go out on close."""
    builder = StreamsBuilder()
    text = Consumed(serdes.STRING, value=serdes.STRING)
    left, right = builder.stream("left", text), builder.stream("right", text)
    windows = JoinWindows.of_time_difference_and_grace(MINUTE, MINUTE)
    stream_joined = StreamJoined(serdes.STRING, value=serdes.STRING, other_value=serdes.STRING, store_name="waiting")
    left.join(right, lambda one, other: one + other, windows, stream_joined)
    spread = Repartitioned("spread", key=serdes.STRING, value=serdes.STRING, partitioner=lambda topic, key, value, partitions: 0)
    left.repartition(spread).group_by_key().count(Materialized("spread-counts"))
    closing = left.group_by_key().windowed_by(TimeWindows.of_size_and_grace(MINUTE, MINUTE))
    closing.emit_strategy(EmitStrategy.on_window_close()).count(Materialized("closing")).to_stream().to(
        "out", Produced(serdes.time_windowed(serdes.STRING, MINUTE), value=serdes.LONG)
    )
    return builder.build()


def uneven() -> Topology:
    """A table of a topic that is narrower than one which the same sub-topology reads."""
    builder = StreamsBuilder()
    text = Consumed(serdes.STRING, value=serdes.STRING)
    narrow = builder.stream("narrow", text)
    narrow.group_by_key(Grouped(serdes.STRING, value=serdes.STRING)).count(Materialized("counts"))
    narrow.merge(builder.stream("wide", text)).to("out", Produced(serdes.STRING, value=serdes.STRING))
    return builder.build()


def application(factory: str) -> SeedApplication:
    return SeedApplication.of("shop", f"tests.unit.assets.test_seed_plan:{factory}", {})


def offsets(**topics: int) -> dict[str, dict[int, int]]:
    """So many partitions of each topic, the offset of each ten times its number."""
    return {topic: {number: 10 * number for number in range(partitions)} for topic, partitions in topics.items()}


def test_keys_behind_a_repartition_topic_are_spread_over_as_many_tasks_as_it_has_partitions() -> None:
    plan = plan_seed(application("repartitioned"), ("counts", "rows"), offsets(narrow=2, wide=3, table=1))
    counts, rows = plan.stores["counts"], plan.stores["rows"]
    assert (counts.partitions, rows.partitions) == (3, 1)
    of_counts = [task for task in plan.inputs if task.subtopology == counts.sub_topology]
    assert [task.partition for task in of_counts] == [0, 1, 2]
    assert all(not plan.inputs[task] for task in of_counts), "repartition topics begin where their ends are"
    first = TaskId(0, 1)
    assert plan.inputs[first] == {TopicPartition("narrow", 1): 10, TopicPartition("wide", 1): 10}
    assert plan.inputs[TaskId(0, 2)] == {TopicPartition("wide", 2): 20}
    assert plan.left_empty == ()


@pytest.mark.parametrize(
    ("factory", "store", "reported"),
    [
        ("repartitioned", "names", "is global"),
        ("joined", "waiting-this-join-store", "what waits for a join"),
        ("joined", "spread-counts", "by a partitioner of its own"),
    ],
)
def test_stores_that_cannot_be_seeded_say_why(factory: str, store: str, reported: str) -> None:
    topics = offsets(narrow=2, wide=3, table=1) if factory == "repartitioned" else offsets(left=2, right=2)
    with pytest.raises(TopologyError, match=reported):
        plan_seed(application(factory), (store,), topics)


def test_topics_that_must_not_differ_are_refused() -> None:
    with pytest.raises(WrongPartitionsError, match="same number of partitions"):
        plan_seed(application("joined"), ("closing",), offsets(left=2, right=3))


def test_windows_that_had_closed_in_history_are_not_sent_again() -> None:
    closing = plan_seed(application("joined"), ("closing",), offsets(left=2, right=2)).stores["closing"]
    meta = closing.meta(600_000, 630_000)
    assert meta[OBSERVED_TIME] == encoded_time(630_000)
    assert meta[EMITTED_TIME] == encoded_time(570_000)
    assert OBSERVED_TIME not in closing.meta(-1, -1)


def test_each_task_has_every_store_in_the_seed_whether_it_has_rows_or_not(tmp_path: Path) -> None:
    plan = plan_seed(application("repartitioned"), ("rows",), offsets(narrow=2, wide=3, table=1))
    parts: dict[str, list[PartReport]] = {}
    add_empty_parts(parts, plan, place_of(str(tmp_path)))
    assert plan.left_empty == ("counts",)
    assert {name: len(found) for name, found in parts.items()} == {"counts": 3, "rows": 1}
    plan = plan_seed(application("uneven"), ("counts",), offsets(narrow=2, wide=3))
    assert plan.stores["counts"].partitions == 2
    parts = {}
    add_empty_parts(parts, plan, place_of(str(tmp_path / "uneven")))
    assert [part.partition for part in parts["counts"]] == [0, 1, 2]


def test_stores_that_cannot_be_seeded_are_not_left_empty() -> None:
    assert plan_seed(application("joined"), (), offsets(left=2, right=2)).left_empty == ("closing",)
