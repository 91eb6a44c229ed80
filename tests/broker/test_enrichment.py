"""`map_async` and `map_batches` in workers: a kill -9 with calls in flight, and a pause at a call that failed (docs/enrichment.md)."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import LogAndPauseProcessingExceptionHandler, serdes
from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.options import Consumed, Materialized, Produced
from penstock.runtime.model.ids import TaskId
from penstock.runtime.model.states import State
from tests.support import Kafka, wait_until
from tests.support.engine import client, counts_become, paused, reaches, running

Topic = Callable[..., str]


def test_each_result_comes_once_although_a_worker_is_killed_with_calls_in_flight(
    broker: Kafka, application_id: str, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first call for `hang` does not return, so that the calls behind it have returned when the worker is killed. Its successor calls
    them again."""
    source, output = broker.create_topic("in", 2), broker.create_topic("out", 2)
    for name, value in {"TEST_SOURCE": source, "TEST_OUTPUT": output, "TEST_FOLDER": str(state_dir)}.items():
        monkeypatch.setenv(name, value)
    settings = {"num.stream.threads": 2, "session.timeout.ms": 10_000, "heartbeat.interval.ms": 1_000}
    keys, killed = [f"k{number % 20}" for number in range(3_000)], state_dir / "calling"
    with client(broker, "tests.broker.worker_apps:enriched_counts", application_id, state_dir, **settings) as streams:
        streams.start()
        reaches(streams, State.RUNNING, 60)
        broker.produce(source, [(key, "hang" if number == 1_500 else "v") for number, key in enumerate(keys)])
        wait_until(lambda: killed.exists() and killed.read_text().endswith("."), 60, "the call that hangs")
        os.kill(int(killed.read_text().rstrip(".")), signal.SIGKILL)

        def counts() -> dict[str, list[int]]:
            found: dict[str, list[int]] = {}
            for record in broker.consume(output):
                found.setdefault((record.key or b"").decode(), []).append(int.from_bytes(record.value or b"", "big"))
            return found

        wait_until(lambda: sum(map(len, counts().values())) >= len(keys), 60, "all results")
        assert counts() == {key: list(range(1, keys.count(key) + 1)) for key in keys}


def test_slow_calls_of_many_tasks_do_not_outlast_their_transaction(broker: Kafka, application_id: str, state_dir: Path) -> None:
    """The tasks of a worker share its transaction: each turn of one task is committed before the next task begins. The turns of all of them
    together are longer than the transaction's timeout."""

    async def slow(value: str) -> str:
        await asyncio.sleep(1.5)
        return value

    source, output = broker.create_topic("in", 5), broker.create_topic("out", 1)
    builder = StreamsBuilder()
    slowed = builder.stream(source, key=serdes.STRING, value=serdes.STRING).map_async(slow, limit=1, timeout=3_000)
    slowed.to(output, key=serdes.STRING, value=serdes.STRING)
    broker.produce(source, [(f"k{number}", str(number)) for number in range(15)])
    with running(broker, builder.build(), application_id, state_dir, **{"transaction.timeout.ms": 8_000}):
        wait_until(lambda: len(list(broker.consume(output))) >= 15, 120, "all results")
        assert sorted(int(record.value or b"") for record in broker.consume(output)) == list(range(15))


@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
def test_a_pause_at_a_call_leaves_no_trace_of_the_record_and_of_those_behind_it(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, guarantee: str
) -> None:
    broken = {"on": True}

    async def fail_on_poison(value: str) -> str:
        if value == "poison" and broken["on"]:
            raise ValueError("poison")
        return value

    source, output, results = topic("in"), topic("out"), topic("results")
    builder = StreamsBuilder()
    stream = builder.stream(source, Consumed(serdes.STRING, value=serdes.STRING))
    stream.group_by_key().count(Materialized("counts", caching=False)).to_stream().to(output, Produced(serdes.STRING, value=serdes.LONG))
    stream.map_async(fail_on_poison).map_batches(list).to(results, Produced(serdes.STRING, value=serdes.STRING))
    broker.produce(source, [("a", "1"), ("a", "2"), ("a", "poison"), ("a", "3")])
    settings: dict[str, object] = {
        "processing.exception.handler": LogAndPauseProcessingExceptionHandler,
        "processing.guarantee": guarantee,
        "commit.interval.ms": 100,
    }
    with running(broker, builder.build(), application_id, state_dir, **settings) as streams:
        wait_until(lambda: paused(streams) == {"0_0"}, 60, "the pause")
        assert broker.committed_offsets(application_id, source) == {0: 2}
        counts_become(broker, output, {"a": 2})
        broken["on"] = False
        assert streams.resume(TaskId(0, 0)) is True
        counts_become(broker, output, {"a": 4})
        wait_until(lambda: b"3" in [record.value for record in broker.consume(results)], 60, "the results")
        found = [record.value for record in broker.consume(results)]
        assert (found if guarantee == "exactly_once_v2" else list(dict.fromkeys(found))) == [b"1", b"2", b"poison", b"3"]
