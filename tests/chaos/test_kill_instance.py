"""kill -9 of an instance at random moments: what readers see at the end is the truth, each record counted once."""

from __future__ import annotations

import json
import os
import random
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from penstock.runtime.coordination.commands import CommandClient
from penstock.runtime.model.errors import StreamsError
from tests.support import Kafka, wait_until
from tests.support.engine import latest
from tests.support.instances import SESSION

Topic = Callable[..., str]
RECORDS, KEYS = 120_000, 3_000


@contextmanager
def instance(
    broker: Kafka, application_id: str, name: str, folder: Path, source: str, output: str, *, caching: bool
) -> Iterator[subprocess.Popen[bytes]]:
    """An instance as a process of its own; killed at the end if it still runs."""
    folder.mkdir(exist_ok=True)
    settings = {
        "application": application_id,
        "instance": name,
        "factory": "tests.chaos.applications:count",
        "config": {
            "bootstrap.servers": broker.bootstrap_servers,
            "state.dir": str(folder / "state"),
            **SESSION,
        },
        "log_path": str(folder / "log"),
    }
    (folder / "config.json").write_text(json.dumps(settings))
    environment = {**os.environ, "SOURCE_TOPIC": source, "OUTPUT_TOPIC": output, "CACHING": "1" if caching else "0"}
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock.runtime.instance", "--config", str(folder / "config.json")], env=environment
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def committed(broker: Kafka, application_id: str, source: str) -> int:
    return sum(broker.committed_offsets(application_id, source).values())


def _beyond(before: int, broker: Kafka, application_id: str, source: str) -> bool:
    return committed(broker, application_id, source) > before


@pytest.mark.parametrize("caching", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_killed_again_and_again_the_counts_are_right(
    broker: Kafka, topic: Topic, application_id: str, tmp_path: Path, caching: bool
) -> None:
    source, output = topic("in", partitions=4), topic("out", partitions=4)
    dice = random.Random(7)
    keys = [f"k{dice.randrange(KEYS)}" for _ in range(RECORDS)]
    truth = dict(Counter(keys))
    portion = RECORDS // 4
    for number in range(3):
        broker.produce(source, [(key, "v") for key in keys[number * portion : (number + 1) * portion]])
        with instance(broker, application_id, "one", tmp_path / "one", source, output, caching=caching) as process:
            before = committed(broker, application_id, source)
            wait_until(partial(_beyond, before, broker, application_id, source), 60, "a commit")
            time.sleep(dice.random() * 0.3)
            assert process.poll() is None, (tmp_path / "one" / "log").read_text()[-3000:]
            process.kill()
    broker.produce(source, [(key, "v") for key in keys[3 * portion :]])
    with instance(broker, application_id, "one", tmp_path / "one", source, output, caching=caching) as process:
        wait_until(lambda: committed(broker, application_id, source) == RECORDS, 90, "the end of the input")
        process.terminate()
        assert process.wait(30) == 0
    assert latest(broker, output) == truth
    if not caching:
        rises_by_one(broker, output, truth)


def rises_by_one(broker: Kafka, output: str, truth: dict[str, int]) -> None:
    """Without caching every update is sent: each key's counts must be 1, 2, 3 … without a gap or a repetition."""
    seen: Counter[str] = Counter()
    for record in broker.consume(output):
        key = (record.key or b"").decode()
        seen[key] += 1
        assert struct.unpack(">q", record.value or b"") == (seen[key],)
    assert seen == Counter(truth)


def shares(client: CommandClient) -> list[int]:
    """Return the number of tasks that each member reports; empty before the application has started."""
    try:
        return [len(member.tasks) for member in client.members()]
    except StreamsError:
        return []


def test_one_of_two_is_killed_and_the_other_takes_over(broker: Kafka, topic: Topic, application_id: str, tmp_path: Path) -> None:
    source, output = topic("in", partitions=4), topic("out", partitions=4)
    keys = [f"k{n % 100}" for n in range(20_000)]
    with (
        instance(broker, application_id, "one", tmp_path / "one", source, output, caching=False) as one,
        instance(broker, application_id, "two", tmp_path / "two", source, output, caching=False) as two,
    ):
        with CommandClient(application_id, broker.connection, "test") as client:
            wait_until(lambda: shares(client) == [2, 2], 60, "two tasks each")
        broker.produce(source, [(key, "v") for key in keys[:10_000]])
        wait_until(lambda: committed(broker, application_id, source) >= 10_000, 60, "the first half")
        one.kill()
        broker.produce(source, [(key, "v") for key in keys[10_000:]])
        wait_until(lambda: committed(broker, application_id, source) == 20_000, 60, "the end of the input")
        assert two.poll() is None
    rises_by_one(broker, output, dict(Counter(keys)))
