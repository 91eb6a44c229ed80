"""Deduplication on a broker: exactly once through kills, and a changelog that forgets what has expired."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from penstock import Consumed, Produced, StreamsBuilder, serdes
from penstock.runtime.topology.topology import Topology
from tests.broker.worker_apps import once
from tests.support import Kafka, wait_until
from tests.support.instances import Application

Topic = Callable[..., str]
WITHIN, CHUNK, IDS = 1_000, 200, 40
START = 1_700_000_000_000
HANGS = {f"{chunk * CHUNK + CHUNK // 2}" for chunk in (1, 2, 3)}


def _identity(key: str, value: str) -> str:
    """Return the id, the first word. Hang at some records, once."""
    identity, number = value.split()
    if number in HANGS and once(f"hung-{number}"):
        time.sleep(600)
    return identity


def deduplicated() -> Topology:
    """Return a topology with a repartition by id. It hangs in front of the repartition topic."""
    builder = StreamsBuilder()
    records = builder.stream(os.environ["TEST_SOURCE"], Consumed(serdes.STRING, value=serdes.STRING))
    records.deduplicate(_identity, WITHIN, "seen").to(os.environ["TEST_OUTPUT"], Produced(serdes.STRING, value=serdes.STRING))
    return builder.build()


def test_each_id_passes_once_per_interval_through_kills(
    broker: Kafka, topic: Topic, application_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each kill hits records whose transaction is open; at the second one the disk is lost too."""
    monkeypatch.setenv("TEST_FOLDER", str(tmp_path))
    choice, now, largest, passed = random.Random(7), START, START, dict[str, list[int]]()
    rows: list[tuple[str, str, int]] = []
    expected: list[str] = []
    ends: list[int] = []
    for number in range(4 * CHUNK):
        now += choice.randint(0, 60)
        at, identity = now - choice.choice([0, 0, 300, 900]), f"id{choice.randint(1, IDS)}"
        largest = max(largest, at)
        rows.append((f"k{number % 7}", f"{identity} {number}", at))
        times = passed.setdefault(identity, [])
        late = at <= largest - WITHIN
        if late or all(abs(at - other) >= WITHIN for other in times):
            expected.append(rows[-1][1])
            if not late:
                times.append(at)
        if (number + 1) % CHUNK == 0:
            ends.append(len(expected))
    source, output = topic("in"), topic("out")
    factory = "tests.broker.test_deduplicate:deduplicated"
    running = Application(broker, application_id, source, output, tmp_path, {"processing.guarantee": "exactly_once_v2"}, factory)

    def outputs() -> list[str]:
        return [(record.value or b"").decode() for record in broker.consume(output)]

    def written(records: int) -> bool:
        return len(outputs()) >= records

    def remembered() -> dict[bytes, bytes]:
        folded = {record.key or b"": record.value for record in broker.consume(f"{application_id}-seen-changelog")}
        return {key: value for key, value in folded.items() if value is not None}

    def produce(*those: tuple[str, str, int]) -> None:
        broker.produce(source, [(key, value) for key, value, _ in those], timestamps=[at for _, _, at in those])

    try:
        running.start("one")
        running.becomes({"one": 2}, 90)
        for chunk, end in enumerate(ends):
            produce(*rows[chunk * CHUNK : (chunk + 1) * CHUNK])
            if chunk:
                wait_until((tmp_path / f"hung-{chunk * CHUNK + CHUNK // 2}").exists, 90, "the record at which it hangs")
                running.kill("one")
                if chunk == 2:
                    shutil.rmtree(tmp_path / "one")
                running.start("one")
            wait_until(partial(written, end), 90, f"output {end}")
        assert outputs() == expected
        produce(("k", "last 0", largest + 100 * WITHIN), ("k", "last 1", largest + 101 * WITHIN))
        wait_until(lambda: len(remembered()) == 1, 90, "the tombstones of the ids before the jump in time")
        assert outputs() == [*expected, "last 0", "last 1"]
    finally:
        running.kill_all()
