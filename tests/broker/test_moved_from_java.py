"""An application that ran on Kafka Streams is continued with its state folder, its changelogs and its group's offsets."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import serdes
from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.options import Consumed, Materialized, Produced
from penstock.runtime.dsl.windows import TimeWindows
from penstock.runtime.model.errors import TopologyError
from penstock.runtime.model.states import State
from penstock.runtime.serdes.keys import window_store_key
from penstock.runtime.topology.topology import Topology
from tests.support import Kafka
from tests.support.engine import client, counts_become, reaches, running, set_offset

JAVA = Path(__file__).parents[1] / "formats" / "written_by_java"
APPLICATION = "java-app"
WORDS, AIRPORTS, COUNTED, HOURLY, NAMED = (f"{APPLICATION}-{name}" for name in ("words", "airports", "counted", "hours", "named"))
COMPACT = {"cleanup.policy": "compact"}
HOUR = 3_600_000
ZURICH = "Zürich ✈"
TEXT = Consumed(serdes.STRING, value=serdes.STRING)


@pytest.fixture
def moved(broker: Kafka) -> Iterator[Kafka]:
    """The topics as Java left them: six processed words, and the changelogs of the results.

    The changelog of the counts differs from the store, to show which of the two was read."""
    _forget(broker)
    broker.create_topic(WORDS, exact=True)
    broker.create_topic(AIRPORTS, 2, COMPACT, exact=True)
    for name in (COUNTED, HOURLY, NAMED):
        broker.create_topic(name, exact=True)
    broker.produce(WORDS, [(word, "v") for word in ("EWR", "JFK", "LGA", "EWR", ZURICH, "EWR")], partition=0)
    broker.produce(AIRPORTS, [("EWR", "not what the store has")], partition=0)
    broker.produce(AIRPORTS, [("JFK", "nor this")], partition=1)
    broker.create_topic(f"{APPLICATION}-counts-changelog", 1, COMPACT, exact=True)
    wrong = (77).to_bytes(8, "big")
    broker.produce(f"{APPLICATION}-counts-changelog", [(word, wrong) for word in ("EWR", "JFK", "LGA", ZURICH)], partition=0)
    config = {"cleanup.policy": "compact,delete", "retention.ms": "-1"}
    broker.create_topic(f"{APPLICATION}-hourly-changelog", 1, config, exact=True)
    windows = [(window_store_key(word.encode(), 0), (40).to_bytes(8, "big")) for word in ("EWR", "JFK", "LGA", ZURICH)]
    broker.produce(f"{APPLICATION}-hourly-changelog", windows, partition=0, timestamps=[1_300_000] * 4)
    set_offset(broker, APPLICATION, WORDS, 6)
    yield broker
    _forget(broker)


def _forget(broker: Kafka) -> None:
    for name in sorted(broker.topics()):
        if name.startswith(f"{APPLICATION}-"):
            broker.delete_topic(name)


def topology() -> Topology:
    builder = StreamsBuilder()
    words = builder.stream(WORDS, TEXT)
    airports = builder.global_table(AIRPORTS, TEXT, Materialized("airports"))
    grouped = words.group_by_key()
    grouped.count(Materialized("counts")).to_stream().to(COUNTED, Produced(serdes.STRING, value=serdes.LONG))
    hours = grouped.windowed_by(TimeWindows.of_size_with_no_grace(HOUR)).count(Materialized("hourly"))
    hours.to_stream(lambda windowed, _: windowed.key).to(HOURLY, Produced(serdes.STRING, value=serdes.LONG))
    named = words.left_join(airports, lambda word, _: word, lambda _, name: name)
    named.to(NAMED, Produced(serdes.STRING, value=serdes.STRING))
    return builder.build()


@pytest.mark.parametrize("version", ["4.2", "4.3"])
def test_an_application_of_kafka_streams_continues_where_it_stopped(
    moved: Kafka, state_dir: Path, version: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    shutil.copytree(JAVA / f"state-{version}", state_dir / APPLICATION)
    for again in range(2):
        with running(moved, topology(), APPLICATION, state_dir):
            moved.produce(WORDS, [("EWR", "v")], partition=0, timestamps=[1_360_000])
            counts_become(moved, COUNTED, {"EWR": 4 + again})  # three from the store, not the changelog's number
            counts_become(moved, HOURLY, {"EWR": 41 + again})  # windows: the changelog's number
    assert [record.value for record in moved.consume(NAMED)] == [b"Newark", b"Newark"]
    assert "hourly holds segments" in caplog.text


def test_a_store_that_has_changed_stops_the_client_and_leaves_all_as_it_was(moved: Kafka, state_dir: Path) -> None:
    shutil.copytree(JAVA / "state-4.3", state_dir / APPLICATION)
    with running(moved, topology(), APPLICATION, state_dir):
        moved.produce(WORDS, [("EWR", "v")], partition=0, timestamps=[1_360_000])
        counts_become(moved, COUNTED, {"EWR": 4})
    builder = StreamsBuilder()
    words = builder.stream(WORDS, TEXT).group_by_key()
    words.reduce(lambda old, new: new, Materialized("counts")).to_stream().to(COUNTED, Produced(serdes.STRING, value=serdes.STRING))
    with client(moved, builder.build(), APPLICATION, state_dir) as changed:
        changed.start()
        reaches(changed, State.ERROR)
        assert isinstance(changed.failure, TopologyError)
        assert "store counts: its values were LONG and are STRING now" in str(changed.failure)
        assert f"--delete --topic {APPLICATION}-counts-changelog" in str(changed.failure)
    with running(moved, topology(), APPLICATION, state_dir):
        moved.produce(WORDS, [("EWR", "v")], partition=0, timestamps=[1_360_000])
        counts_become(moved, COUNTED, {"EWR": 5})
