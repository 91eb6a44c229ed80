"""The flight board is killed in the middle of the replay, again and again; at the end the answers are those of the files."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from examples.flight_board import data, topology, truth
from penstock.orchestration.embedded.kafka import EmbeddedBroker
from tests.support import ROOT, Kafka, wait_until

FLIGHTS = 40_000
KILLS = 3


def settings(folder: Path, broker: Kafka) -> Path:
    path = folder / "instance.json"
    config = {
        "bootstrap.servers": broker.bootstrap_servers,
        "state.dir": str(folder / "state"),
        "deserialization.exception.handler": "penstock.LogAndContinueExceptionHandler",
        "windowstore.changelog.additional.retention.ms": 631_152_000_000,
        "session.timeout.ms": 1_000,
        "heartbeat.interval.ms": 300,
    }
    described = {"application": "flight-board", "instance": "one", "factory": "examples.flight_board.topology:build", "config": config}
    path.write_text(json.dumps(described))
    return path


def run(config: Path) -> subprocess.Popen[bytes]:
    with (config.parent / "instance.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "penstock.runtime.instance", "--config", str(config)], cwd=ROOT, stdout=log, stderr=log
        )


@pytest.mark.nightly
def test_killed_in_the_middle_of_the_replay_the_truth_is_unchanged(own_broker: EmbeddedBroker, tmp_path: Path) -> None:
    broker = Kafka(own_broker.bootstrap_servers)
    data.load(broker.bootstrap_servers, FLIGHTS)
    expected, config, kills = truth.compute(FLIGHTS), settings(tmp_path, broker), 0

    def done() -> int:
        return sum(broker.committed_offsets("flight-board", topology.FLIGHTS).values())

    def log() -> str:
        return (tmp_path / "instance.log").read_text(errors="replace")[-3000:]

    for _ in range(KILLS):
        instance, before = run(config), done()
        goal = before + random.randint(1, FLIGHTS // 8)

        def on_the_way(instance: subprocess.Popen[bytes] = instance, goal: int = goal) -> bool:
            assert instance.poll() is None, log()
            return done() >= goal

        wait_until(on_the_way, 60, f"flight {goal}")
        instance.kill()
        instance.wait()
        kills += done() <= FLIGHTS
    assert kills == KILLS, "the replay was over before it could be killed"

    instance = run(config)
    try:
        wait_until(lambda: done() == FLIGHTS + 1, 120, "the last flight")
        wait_until(lambda: not truth.compare(expected, truth.read_results(broker.bootstrap_servers)), 60, "the truth")
    finally:
        instance.terminate()
        status = instance.wait(60)
    assert status == 0, log()
    assert truth.compare(expected, truth.read_results(broker.bootstrap_servers)) == []
