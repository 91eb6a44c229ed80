"""State of tasks that are elsewhere is removed after `state.cleanup.delay.ms`; that of the tasks at hand is kept."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from tests.broker.engine import count_topology, counts_become, running
from tests.support import Kafka, wait_until


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
        time.sleep(2.5)  # longer than the delay: the tasks at hand are idle now, and stay
        assert {path.name for path in folder.iterdir() if path.is_dir() and path.name[0].isdigit()} == {"0_0", "0_1"}
        broker.produce(source, [(f"k{n}", "v") for n in range(10)])
        counts_become(broker, output, {f"k{n}": 2 for n in range(10)})
