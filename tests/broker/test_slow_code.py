"""User code that takes much longer for each record than a turn of the worker may take."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import Consumed, Materialized, Produced, StreamsBuilder, Topology, serdes
from penstock.runtime.model.states import State
from tests.support import Kafka, wait_until
from tests.support.engine import client, reaches, running

Topic = Callable[..., str]
RECORDS = 400
S = serdes.STRING


def slow(source: str, sink: str, quick: str, seconds: float, called: list[str]) -> Topology:
    """Return a topology of a slow function, and a quick one beside it."""

    def wait(value: str) -> str:
        called.append(value)
        time.sleep(seconds)
        return value

    builder = StreamsBuilder()
    builder.stream(source, Consumed(S, value=S)).map_values(wait).to(sink, Produced(S, value=S))
    builder.stream(quick, Consumed(S, value=S)).to(sink, Produced(S, value=S))
    return builder.build()


@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
def test_slow_records_are_committed_as_they_are_processed_and_others_do_not_wait(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, guarantee: str
) -> None:
    """A whole poll of them would take twenty seconds: the transaction would time out, again and again."""
    source, sink, quick = topic("slow"), topic("out"), topic("quick", partitions=4)
    broker.produce(source, [(f"{n}", f"{n}") for n in range(RECORDS)])
    broker.produce(quick, [(f"{n}", f"{n}") for n in range(20_000)])
    called: list[str] = []
    settings = {"processing.guarantee": guarantee, "commit.interval.ms": 200}
    streams = client(broker, slow(source, sink, quick, 0.05, called), application_id, state_dir, **settings)
    streams.start()
    reaches(streams, State.RUNNING)
    wait_until(lambda: broker.committed_offsets(application_id, source).get(0, 0), 4, "a commit of slow records")
    wait_until(lambda: sum(broker.committed_offsets(application_id, quick).values()) == 20_000, 8, "all of the quick records")
    assert len(called) < RECORDS, "the first poll is not processed yet"
    stop = threading.Thread(target=streams.close, args=(30_000,))
    stop.start()
    stop.join(10)
    assert not stop.is_alive(), "a close waits for the turn"
    assert broker.committed_offsets(application_id, source, stable=True)[0] == len(set(called))


def test_slow_code_behind_a_cache_makes_commits_smaller(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is called in the flush of a commit, for all that was counted in between: three thousand times, which takes 9 s."""
    source, sink = topic("in"), topic("out")
    broker.produce(source, [(f"{n}", "") for n in range(3_000)])

    def wait(count: int) -> int:
        time.sleep(0.003)
        return count

    builder = StreamsBuilder()
    counts = builder.stream(source, Consumed(S, value=S)).group_by_key().count(Materialized("counts"))
    counts.to_stream().map_values(wait).to(sink, Produced(S, value=serdes.LONG))
    settings = {"transaction.timeout.ms": 3_000, "commit.interval.ms": 1_000}
    with running(broker, builder.build(), application_id, state_dir, **settings):
        wait_until(lambda: broker.committed_offsets(application_id, source).get(0) == 3_000, 60, "all records")
    assert any(message.startswith("the flush of the caches, with the user code behind them, took") for message in caplog.messages)
