"""Tables whose rows have a time to live."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from penstock import Consumed, Grouped, Joined, Materialized, Produced, Stores, StreamsBuilder, serdes
from penstock.runtime.model.errors import TopologyError
from penstock.runtime.topology.topology import Topology
from penstock.testing import TopologyTestDriver
from tests.cases.case import Case, each, each_restarted
from tests.cases.restarting import State, restart

TEXT = Consumed(serdes.STRING, value=serdes.STRING)
COUNTS = {"out": (serdes.STRING, serdes.LONG)}


def counts(caching: bool) -> Callable[[], Topology]:
    def build() -> Topology:
        builder = StreamsBuilder()
        counted = builder.stream("in", TEXT).group_by_key().count(Materialized("n", ttl=10, caching=caching))
        counted.to_stream().to("out", Produced(serdes.STRING, value=serdes.LONG))
        return builder.build()

    return build


def tables(caching: bool) -> Callable[[], Topology]:
    """Count the rows by value, and join each row with that of another table, which does not expire."""

    def build() -> Topology:
        builder = StreamsBuilder()
        table = builder.table("in", TEXT, Materialized("rows", ttl=10, caching=caching))
        by_value = table.group_by(lambda key, value: (value, key), Grouped(serdes.STRING, value=serdes.STRING, name="by"))
        by_value.count(Materialized("n", caching=caching)).to_stream().to("out", Produced(serdes.STRING, value=serdes.LONG))
        other = builder.table("other", TEXT, Materialized("others"))
        table.left_join(other, lambda left, right: f"{left}{right}").to_stream().to("joined", Produced(serdes.STRING, value=serdes.STRING))
        return builder.build()

    return build


def piped(*rows: tuple[str, str | None, int]) -> list[tuple[str, object, object, int]]:
    return [("in", *row) for row in rows]


CASES = [
    *(
        Case(
            f"a row expires by stream time with a tombstone at that time, and a late record counts for a row that lives ({kind})",
            counts(caching),
            piped(("a", "", 0), ("a", "", 5), ("b", "", 14), ("a", "", 1), ("c", "", 15), ("a", "", 16)),
            {
                "out": [
                    *[("a", 1, 0), ("a", 2, 5), ("b", 1, 14), ("a", 3, 5)],
                    *[("c", 1, 15), ("a", None, 15), ("a", 1, 16)],
                ]
            },
            COUNTS,
        )
        for kind, caching in (("caching", True), ("no cache", False))
    ),
    Case(
        "an expired row of the record's own key: a cache folds its tombstone",
        counts(True),
        piped(("a", "", 0), ("a", "", 20)),
        {"out": [("a", 1, 0), ("a", 1, 20)]},
        COUNTS,
    ),
    Case(
        "an expired row of the record's own key: without a cache its tombstone comes first",
        counts(False),
        piped(("a", "", 0), ("a", "", 20)),
        {"out": [("a", 1, 0), ("a", None, 10), ("a", 1, 20)]},
        COUNTS,
    ),
    *(
        Case(
            f"a record that would begin an expired row is dropped and counted ({caching})",
            counts(caching),
            piped(("b", "", 100), ("a", "", 90), ("a", "", 91)),
            {"out": [("b", 1, 100), ("a", 1, 91)]},
            COUNTS,
            dropped=1,
        )
        for caching in (True, False)
    ),
    *(
        Case(
            f"what is derived of a table follows its expired rows ({caching})",
            tables(caching),
            [("other", "a", "!", 0), *piped(("a", "x", 1), ("b", "x", 2), ("a", "x", 3), ("c", "y", 12), ("c", "y", 13), ("d", "x", 14))],
            {
                "out": [
                    *[("x", 1, 1), ("x", 2, 2), ("x", 2, 3), ("y", 1, 12), ("x", 1, 12)],
                    *[("y", 1, 13), ("x", 0, 13), ("x", 1, 14)],
                ],
                "joined": [
                    *[("a", "x!", 1), ("b", "xNone", 2), ("a", "x!", 3), ("c", "yNone", 12), ("b", None, 12)],
                    *[("c", "yNone", 13), ("a", None, 13), ("d", "xNone", 14)],
                ],
            },
            COUNTS,
        )
        for caching in (True, False)
    ),
]

test_case = each(CASES)
test_restarts_change_nothing = each_restarted(CASES)


@pytest.mark.parametrize("caching", [True, False])
def test_a_result_of_a_join_that_has_expired_is_subtracted_once(caching: bool) -> None:
    """The tables above still have the rows that it was made of."""
    builder = StreamsBuilder()
    left, right = (builder.table(topic, TEXT) for topic in ("in", "other"))
    kept = Materialized("rows", key=serdes.STRING, value=serdes.STRING, ttl=10, caching=caching)
    rows = left.left_join(right, lambda one, other: f"{one}", materialized=kept)
    by_value = rows.group_by(lambda key, value: (value, value), Grouped(serdes.STRING, value=serdes.STRING, name="by"))
    by_value.count(Materialized("n", caching=False)).to_stream().to("out", Produced(serdes.STRING, value=serdes.LONG))
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("in", serdes.STRING, serdes.STRING)
        for value, time in [("a", 0), ("a", 25), ("b", 26)]:
            topic.pipe_input("k", value, time)
        found = driver.create_output_topic("out", serdes.STRING, serdes.LONG).read_key_values_to_list()
        assert [found[0], found[-2], found[-1]] == [("a", 1), ("a", 0), ("b", 1)]
        assert min(count for _, count in found if count is not None) == 0


@pytest.mark.parametrize("state", State)
def test_time_and_rows_survive_a_restart(state: State) -> None:
    """Also where the row is restored, and the record that made time pass touched no store's row."""
    builder = StreamsBuilder()
    table = builder.table("in", TEXT, Materialized("rows", ttl=timedelta(milliseconds=10)))
    builder.stream("reads", TEXT).left_join(table, lambda read, row: f"{read}{row}", Joined(name="reading")).to("out")
    config = {"default.key.serde": serdes.STRING, "default.value.serde": serdes.STRING}
    with TopologyTestDriver(builder.build(), config, 0) as driver:
        rows = driver.create_input_topic("in", serdes.STRING, serdes.STRING)
        reads = driver.create_input_topic("reads", serdes.STRING, serdes.STRING)
        rows.pipe_input("a", "x", 5)
        reads.pipe_input("b", "?", 14)
        restart(driver, state)
        reads.pipe_input("a", "?", 3)  # the row lives until 15
        reads.pipe_input("a", "?", 15)
        restart(driver, state)
        reads.pipe_input("a", "?", 4)
        rows.pipe_input("a", "y", 5)
        reads.pipe_input("a", "?", 16)
        found = driver.create_output_topic("out", serdes.STRING, serdes.STRING).read_values_to_list()
        assert found == ["?None", "?x", "?None", "?None", "?None"]


def test_a_time_to_live_is_refused_where_rows_are_kept_by_another_rule() -> None:
    with pytest.raises(ValueError, match="at least 1 ms"):
        Materialized("a", ttl=0)
    for supplier in (
        Stores.persistent_window_store("w", 10, 10),
        Stores.persistent_session_store("s", 10),
        Stores.persistent_versioned_key_value_store("v", 10),
        Stores.lru_map("l", 10),
    ):
        with pytest.raises(TopologyError, match="ttl"):
            Materialized(supplier, ttl=10)
    with pytest.raises(ValueError, match="use timestamped_key_value_store_builder"):
        Stores.key_value_store_builder(Stores.persistent_key_value_store("p", ttl=10), serdes.STRING, serdes.STRING)
    with pytest.raises(TopologyError, match="rows cannot expire"):
        StreamsBuilder().global_table("topic", TEXT, Materialized("g", ttl=10))


def test_a_table_that_expires_does_not_reuse_its_topic() -> None:
    builder = StreamsBuilder()
    builder.table("in", TEXT, Materialized("rows", ttl=10)).to_stream().to("out", Produced(serdes.STRING, value=serdes.STRING))
    parts = builder.build({"topology.optimization": "all"}).sub_topologies()
    assert [(store.name, store.logging_enabled) for store in parts[0].stores] == [("rows", True)]
    assert not parts[0].source_changelogs
