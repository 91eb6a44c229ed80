"""A case: a topology, its input, and the output of Kafka Streams, as data.

CASES = [Case(...), ...]
test_case = each(CASES)
test_restarts_change_nothing = each_restarted(CASES)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from penstock import Consumed, KStream, StreamsBuilder, serdes
from penstock.runtime.model.metrics import TASK
from penstock.runtime.model.record import Record
from penstock.runtime.topology.topology import Topology
from penstock.serdes import Serde
from penstock.testing import TopologyTestDriver
from tests.cases.restarting import State, restart

Row = tuple[object, object, int]
"""Key, value, timestamp in ms."""


@dataclass(frozen=True)
class Case:
    """`given` are rows of (topic, key, value, timestamp) in the order in which they are piped; `expected` the rows of each output topic.

    Topics are strings to strings unless `serdes` says otherwise; `dropped` is the count of `dropped-records-total` afterwards.
    """

    name: str
    build: Callable[[], Topology]
    given: Sequence[tuple[str, object, object, int]]
    expected: Mapping[str, Sequence[Row]]
    serdes: Mapping[str, tuple[Serde, Serde]] = field(default_factory=dict)
    dropped: int = 0
    config: Mapping[str, object] = field(default_factory=dict)


def outcome(case: Case, state: State | None = None) -> tuple[dict[str, list[Row]], int]:
    """Return the outputs of a case's topology and the number of dropped records. With `state` the application restarts before each
    record."""
    strings = (serdes.STRING, serdes.STRING)
    with TopologyTestDriver(case.build(), case.config, 0) as driver:
        inputs = {topic: driver.create_input_topic(topic, *case.serdes.get(topic, strings)) for topic, _, _, _ in case.given}
        for topic, key, value, timestamp in case.given:
            if state is not None:
                restart(driver, state)
            inputs[topic].pipe_input(key, value, timestamp)
        found: dict[str, list[Row]] = {}
        for topic in case.expected:
            records = driver.create_output_topic(topic, *case.serdes.get(topic, strings)).read_records_to_list()
            found[topic] = [row(record) for record in records]
        dropped = sum(value for name, value in driver.metrics().items() if name.name == "dropped-records-total" and name.group == TASK)
    return found, int(dropped)


def row(record: Record) -> Row:
    """A record without its headers."""
    return record.key, record.value, record.timestamp


def check(case: Case, state: State | None = None) -> None:
    """Runs the case, `state` as in `outcome`. Fails where outputs or the number of dropped records are others than expected."""
    found, dropped = outcome(case, state)
    assert found == {topic: list(rows) for topic, rows in case.expected.items()}
    assert dropped == case.dropped


def stream(define: Callable[[KStream[str, str]], object]) -> Callable[[], Topology]:
    """Return a function that builds what `define` makes of the stream of topic `in`."""

    def build() -> Topology:
        builder = StreamsBuilder()
        define(builder.stream("in", Consumed(serdes.STRING, value=serdes.STRING)))
        return builder.build()

    return build


def rows(*given: tuple[object, object, int], topic: str = "in") -> list[tuple[str, object, object, int]]:
    """Return rows of one topic for `Case.given`."""
    return [(topic, *row) for row in given]


def each(cases: Sequence[Case]) -> Callable[[Case], None]:
    """Return the test that runs each case."""

    @pytest.mark.parametrize("case", cases, ids=lambda case: case.name)
    def test_case(case: Case) -> None:
        check(case)

    return test_case


def each_restarted(cases: Sequence[Case]) -> Callable[[Case, State], None]:
    """Return the test that runs each case with restarts, with and without the state on the disk."""

    @pytest.mark.parametrize("state", State)
    @pytest.mark.parametrize("case", cases, ids=lambda case: case.name)
    def test_restarts_change_nothing(case: Case, state: State) -> None:
        check(case, state)

    return test_restarts_change_nothing
