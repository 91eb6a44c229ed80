"""State of tasks that run elsewhere is removed after `state.cleanup.delay.ms`; that of the client's own tasks is kept."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import serdes
from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.options import Consumed, Materialized, Produced
from tests.support import Kafka, wait_until
from tests.support.engine import active_tasks, count_topology, counts_become, running


def test_the_state_of_a_task_that_moved_away_is_removed(
    broker: Kafka, topic: Callable[..., str], application_id: str, state_dir: Path
) -> None:
    source, output = topic("in", partitions=2), topic("out", partitions=2)
    folder = state_dir / application_id
    left = folder / "0_7" / "rocksdb" / "counts"
    left.mkdir(parents=True)
    long_ago = time.time() - 3600
    for path in (left, left.parent, left.parent.parent):
        os.utime(path, (long_ago, long_ago))
    broker.produce(source, [(f"k{n}", "v") for n in range(10)])
    with running(broker, count_topology(source, output), application_id, state_dir, **{"state.cleanup.delay.ms": 1000}):
        counts_become(broker, output, {f"k{n}": 1 for n in range(10)})
        wait_until(lambda: not (folder / "0_7").exists(), what="the clean-up")
        time.sleep(2.5)  # longer than the delay: the client's own tasks are idle now, and stay
        assert {path.name for path in folder.iterdir() if path.is_dir() and path.name[0].isdigit()} == {"0_0", "0_1"}
        broker.produce(source, [(f"k{n}", "v") for n in range(10)])
        counts_become(broker, output, {f"k{n}": 2 for n in range(10)})


def test_the_state_of_a_task_that_another_instance_runs_is_removed_a_while_after_it_was_lost(
    broker: Kafka, topic: Callable[..., str], application_id: str, state_dir: Path
) -> None:
    source, output = topic("in", partitions=2), topic("out", partitions=2)
    topology = count_topology(source, output)
    keys = {f"k{n}": 1 for n in range(10)}
    settings = {"state.cleanup.delay.ms": 3_000}

    def folders() -> set[str]:
        return {path.name for path in (state_dir / "a" / application_id).iterdir() if path.name.startswith("0_")}

    with running(broker, topology, application_id, state_dir / "a", **settings, **{"client.id": "a"}) as first:
        broker.produce(source, [(key, "v") for key in keys])
        counts_become(broker, output, keys)
        time.sleep(4)  # its own tasks are idle for longer than the delay
        with running(broker, topology, application_id, state_dir / "b", **settings, **{"client.id": "b"}) as second:
            wait_until(lambda: len(active_tasks(first)) == len(active_tasks(second)) == 1, 60, "one task each")
            lost = time.monotonic()
            assert folders() == {"0_0", "0_1"}, "the delay begins when the task is lost"
            wait_until(lambda: folders() == active_tasks(first), 30, "the clean-up")
            assert time.monotonic() - lost > 2
        wait_until(lambda: len(active_tasks(first)) == 2, 60, "both tasks")
        broker.produce(source, [(key, "v") for key in keys])
        counts_become(broker, output, dict.fromkeys(keys, 2))


def test_a_store_without_a_changelog_that_lacks_updates_is_named(
    broker: Kafka, topic: Callable[..., str], application_id: str, state_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where its task comes to another state folder it begins empty; where the task comes back it is as old as the folder."""
    source, output = topic("in"), topic("out")
    builder = StreamsBuilder()
    grouped = builder.stream(source, Consumed(serdes.STRING, value=serdes.STRING)).group_by_key()
    counts = grouped.count(Materialized("counts", logging=False, caching=False))
    counts.to_stream().to(output, Produced(serdes.STRING, value=serdes.LONG))
    topology = builder.build()
    caplog.set_level(logging.WARNING)

    def count(folder: str, wanted: int) -> str:
        """Count two records with this state folder. Return the warning about the store."""
        caplog.clear()
        with running(broker, topology, application_id, state_dir / folder) as streams:
            broker.produce(source, [("k", "v"), ("k", "v")])
            counts_become(broker, output, {"k": wanted})
            streams.close()
        return "".join(record.getMessage() for record in caplog.records if "has no changelog" in record.getMessage())

    assert count("a", 2) == ""
    assert count("a", 4) == ""
    other = count("b", 2)
    assert other.startswith("task 0_0: store counts has no changelog and begins empty, so results lack what came before ")
    assert f"{source}-0@" in other and "logging=True" in other
    back = count("a", 6)
    assert back.startswith(f"task 0_0: store counts has no changelog and was last updated at {source}-0@")
