"""A project made by `penstock init`, used as its README says: `penstock dev`, sample records, an instance, results, `dagster dev`.

Its own tests run in tests/unit/orchestration/test_init_command.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.orchestration.embedded.ports import free_port
from tests.dagster.live import LiveDagster
from tests.support import PATIENCE, Kafka, wait_until
from tests.support.brokers import QuickBroker
from tests.support.installed import users_environment


class NewProject:
    """A new project `cold-store`, and commands in its folder, as in a terminal."""

    def __init__(self, parent: Path) -> None:
        self.kafka = Kafka(f"127.0.0.1:{free_port()}")
        self.environment = users_environment(PENSTOCK_BOOTSTRAP_SERVERS=self.kafka.bootstrap_servers)
        self.folder = parent
        self.penstock("init", "cold-store")
        self.folder = parent / "cold-store"

    def penstock(self, *arguments: str) -> str:
        return self.run("penstock.orchestration", *arguments)

    def run(self, module: str, *arguments: str) -> str:
        command = [sys.executable, "-m", module, *arguments]
        done = subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def project(tmp_path: Path) -> Iterator[NewProject]:
    project = NewProject(tmp_path)
    yield project
    project.penstock("stop", "--kill", "--timeout", "5")
    project.penstock("broker", "stop")


ASSETS = {"cold-store/instances", "kafka/readings", "kafka/rooms", "sample_records"}


def test_a_new_project_works_at_once(project: NewProject, tmp_path: Path) -> None:
    kafka_port = project.kafka.bootstrap_servers.rpartition(":")[2]
    # `penstock dev` would start it, but gives it a minute; tests/dagster/test_installed.py has that.
    QuickBroker(project.folder / ".penstock" / "broker", int(kafka_port)).start(60 * PATIENCE)
    command = ("penstock.orchestration", "dev", "--kafka-port", kafka_port)
    live = LiveDagster(
        tmp_path / "penstock-dev", project=project.folder, location="cold-store", command=command, environment=project.environment
    )
    try:
        assert live.assets() == ASSETS
        project.run("dagster", "asset", "materialize", "--select", "sample_records", "-m", "cold_store.definitions")
        assert "cold-store-1 is RUNNING" in project.penstock("start")
        wait_until(lambda: readings_of_all_rooms(project.kafka) == 1_000, 60, "the results of the sample records")
    finally:
        live.stop()
    own = project.folder / "cold_store" / "defs" / "own.py"
    assert "successfully" in project.run("dagster_dg_cli.cli", "check", "defs")
    project.run("dagster_dg_cli.cli", "scaffold", "defs", "dagster.asset", own.name)
    assert "def own" in own.read_text()
    live = LiveDagster(tmp_path / "dagster-dev", project=project.folder, location="cold-store", environment=project.environment)
    try:
        assert live.assets() == ASSETS | {"own"}
    finally:
        live.stop()


def readings_of_all_rooms(kafka: Kafka) -> int:
    latest = {record.key: json.loads(record.value or b"{}") for record in kafka.consume("rooms")}
    return sum(room["readings"] for room in latest.values())
