"""Deduplication of a stream, against a model that forgets nothing, with records out of order and restarts."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import Consumed, KStream, Materialized, Produced, Stores, StreamsBuilder, serdes
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.model.errors import TopologyError
from penstock.runtime.topology.topology import Topology
from penstock.testing import TopologyTestDriver
from tests.cases.case import Case, each, each_restarted, rows, stream
from tests.cases.restarting import State, restart
from tests.support import examples

WITHIN = 10
CONFIG = StreamsConfig({"application.id": "app", "bootstrap.servers": "localhost:9092"})


def deduplicated(**how: object) -> Callable[[], Topology]:
    return stream(lambda records: records.deduplicate(within=WITHIN, store="seen", **how).to("out"))  # type: ignore[call-overload]


def by_value(**how: object) -> Callable[[], Topology]:
    """The value up to a colon is the id, if it has one."""

    def identity(key: str, value: str) -> str | None:
        return value.split(":")[0] or None

    return stream(lambda records: records.deduplicate(identity, WITHIN, "seen", **how).to("out"))  # type: ignore[call-overload]


CASES = [
    Case(
        "the first record of a key passes, with its own value, and the next one that is an interval later",
        deduplicated(),
        rows(("a", "1", 0), ("a", "2", 5), ("b", "3", 6), ("a", "4", 9), ("a", "5", 10), ("a", "6", 19), ("b", "7", 16)),
        {"out": [("a", "1", 0), ("b", "3", 6), ("a", "5", 10), ("b", "7", 16)]},
    ),
    Case(
        "a duplicate does not prolong the interval",
        deduplicated(),
        rows(("a", "1", 0), ("a", "2", 9), ("a", "3", 11)),
        {"out": [("a", "1", 0), ("a", "3", 11)]},
    ),
    Case(
        "out of order: a record is compared with those before and after it",
        deduplicated(),
        rows(("b", "", 30), ("a", "1", 30), ("a", "2", 21), ("b", "", 39), ("a", "3", 40), ("a", "4", 31), ("a", "5", 35)),
        {"out": [("b", "", 30), ("a", "1", 30), ("a", "3", 40)]},
    ),
    Case(
        "a record that is late by the interval or more passes, and is not remembered",
        deduplicated(),
        rows(("a", "1", 0), ("b", "", 100), ("a", "2", 90), ("a", "3", 90), ("a", "4", 91), ("a", "5", 91)),
        {"out": [("a", "1", 0), ("b", "", 100), ("a", "2", 90), ("a", "3", 90), ("a", "4", 91)]},
    ),
    Case(
        "records without a key, and without a value, are records",
        deduplicated(),
        rows((None, "1", 0), (None, "1", 0), ("a", None, 1), ("a", "2", 2)),
        {"out": [(None, "1", 0), (None, "1", 0), ("a", None, 1)]},
    ),
    *(
        Case(
            f"an id of its own: keys stay as they are, records without an id pass ({repartition=})",
            by_value(repartition=repartition),
            rows(("a", "x:1", 0), ("b", "x:2", 1), (None, "x:3", 2), ("a", "y:4", 3), ("a", ":5", 4), ("a", ":6", 4), (None, ":7", 4)),
            {"out": [("a", "x:1", 0), ("a", "y:4", 3), ("a", ":5", 4), ("a", ":6", 4), (None, ":7", 4)]},
        )
        for repartition in (True, False)
    ),
    Case(
        "a changed key goes through a repartition topic, also where it is None",
        stream(
            lambda records: (
                records.select_key(lambda key, value: value[0] if value[0] != "-" else None)
                .deduplicate(within=timedelta(milliseconds=WITHIN), store=Materialized("seen", key=serdes.STRING))
                .to("out", Produced(serdes.STRING, value=serdes.STRING))
            )
        ),
        rows(("a", "x1", 0), ("b", "x2", 1), ("a", "-", 2), ("b", "-", 3)),
        {"out": [("x", "x1", 0), (None, "-", 2), (None, "-", 3)]},
        config={"default.key.serde": serdes.STRING},
    ),
]

test_case = each(CASES)
test_restarts_change_nothing = each_restarted(CASES)


class Model:
    """Every record that passed, and nothing forgotten."""

    def __init__(self) -> None:
        self.now = -1
        self.passed: dict[str, list[int]] = {}

    def passes(self, identity: str, time: int) -> bool:
        self.now = max(self.now, time)
        if time <= self.now - WITHIN:
            return True
        times = self.passed.setdefault(identity, [])
        if any(abs(time - other) < WITHIN for other in times):
            return False
        times.append(time)
        return True


STEPS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(-25, 15)) | st.sampled_from(State),  # an id, and the distance to the last record
    min_size=1,
    max_size=40,
)


@pytest.mark.parametrize("persistent", [True, False], ids=["rocksdb", "memory"])
def test_a_model_that_forgets_nothing_lets_the_same_records_pass(persistent: bool) -> None:
    how = Materialized("seen", store_type="rocksDB" if persistent else "in_memory")

    @settings(
        max_examples=examples(15 if persistent else 60),
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(STEPS)
    def check(steps: list[tuple[str, int] | State]) -> None:
        topology = stream(lambda records: records.deduplicate(None, within=WITHIN, store=how).to("out"))()
        model, expected, time = Model(), [], 0
        with TopologyTestDriver(topology, {}, 0) as driver:
            given = driver.create_input_topic("in", serdes.STRING, serdes.STRING)
            for number, step in enumerate(steps):
                if isinstance(step, State):
                    restart(driver, step)
                    continue
                identity, time = step[0], max(0, time + step[1])
                given.pipe_input(identity, str(number), time)
                if model.passes(identity, time):
                    expected.append((identity, str(number), time))
            found = driver.create_output_topic("out", serdes.STRING, serdes.STRING).read_records_to_list()
            assert [(record.key, record.value, record.timestamp) for record in found] == expected
            store = driver.get_timestamped_key_value_store("seen")
            assert {key: entry.timestamp for key, entry in store.all()} == {
                key: times[-1]
                for key in sorted(model.passed)
                if (times := sorted(model.passed[key])) and times[-1] > model.now - 2 * WITHIN
            }

    check()


def names(topology: Topology) -> tuple[list[str], list[str]]:
    topics = [topic.name for topic in topology.internal_topics()]
    return [store.name for part in topology.sub_topologies() for store in part.stores], topics


def test_names_of_store_and_topics_follow_the_conventions() -> None:
    def made(define: Callable[[KStream[str, str]], object]) -> tuple[list[str], list[str]]:
        return names(stream(define)().resolved(CONFIG))

    assert made(lambda records: records.deduplicate(within=5, store="seen")) == (["seen"], ["app-seen-changelog"])
    assert made(lambda records: records.deduplicate(within=5)) == (
        ["KSTREAM-DEDUPLICATE-STATE-STORE-0000000002"],
        ["app-KSTREAM-DEDUPLICATE-STATE-STORE-0000000002-changelog"],
    )
    repartitioned = (["seen"], ["app-seen-changelog", "app-seen-repartition"])
    assert made(lambda records: records.deduplicate(lambda key, value: value, 5, "seen")) == repartitioned
    assert made(lambda records: records.deduplicate(lambda key, value: value, 5, "seen", repartition=False)) == (
        ["seen"],
        ["app-seen-changelog"],
    )
    grouped = made(lambda records: records.deduplicate(lambda key, value: value, 5, "seen").group_by_key().count("n"))
    assert grouped == (["seen", "n"], ["app-n-changelog", "app-n-repartition", "app-seen-changelog", "app-seen-repartition"])


def test_equal_ids_of_different_keys_come_to_one_partition() -> None:
    topology = by_value()().resolved(CONFIG)
    sink = next(sink for part in topology.sub_topologies() for sink in part.sinks if sink.topic == "app-seen-repartition")
    assert sink.partitioner is not None
    chosen = {identity: {sink.partitioner("t", key, f"{identity}:{key}", 100) for key in "abc"} for identity in ("x", "y", "")}
    assert len(chosen["x"]) == len(chosen["y"]) == 1
    assert chosen["x"] != chosen["y"]
    assert chosen[""] == {None}


def test_what_cannot_be_deduplicated_is_refused() -> None:
    records = StreamsBuilder().stream("in", Consumed(serdes.STRING, value=serdes.STRING))
    for within in (None, 0):
        with pytest.raises(TopologyError, match="within"):
            records.deduplicate(within=within)  # type: ignore[arg-type]  # no interval
    with pytest.raises(TopologyError, match="follows from within"):
        records.deduplicate(within=5, store=Materialized("seen", ttl=5))
    with pytest.raises(TopologyError, match="ttl"):
        records.deduplicate(within=5, store=Materialized(Stores.persistent_window_store("seen", 5, 5)))
    with pytest.raises(TopologyError, match="takes"):
        records.deduplicate(lambda value: value, 5)  # type: ignore[arg-type, misc]  # no key


@pytest.mark.parametrize("repartition", [True, False])
def test_a_pause_and_the_replay_before_it_let_each_id_pass_once(repartition: bool) -> None:
    def identity(key: str, value: str) -> str:
        if value == "bad":
            raise ValueError("not an id")
        return value

    topology = stream(lambda records: records.deduplicate(identity, WITHIN, "seen", repartition=repartition).to("out"))()
    config = {"processing.exception.handler": "penstock.LogAndPauseProcessingExceptionHandler"}
    with TopologyTestDriver(topology, config, 0) as driver:
        given = driver.create_input_topic("in", serdes.STRING, serdes.STRING)
        given.pipe_key_value_list([("a", "x"), ("b", "y"), ("c", "bad"), ("d", "x"), ("e", "z"), ("f", "y")], 0, 1)
        out = driver.create_output_topic("out", serdes.STRING, serdes.STRING)
        assert out.read_key_values_to_list() == [("a", "x"), ("b", "y")]
        [task] = driver.paused_local_tasks()
        driver.shift_offset("in")
        assert driver.resume(task.task_id)
        assert out.read_key_values_to_list() == [("e", "z")]
