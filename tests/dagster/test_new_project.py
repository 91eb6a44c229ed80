"""A project made by `penstock init`, used as its README says: `penstock dev`, sample records, an instance, results, `dagster dev`; and this
repository, as its README says: plain `dagster dev`.

The new project's own tests run in tests/unit/orchestration/test_init_command.py.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.flight_board.data import create_topics
from penstock.orchestration.dagster.names import start_job
from penstock.orchestration.embedded.ports import free_port
from tests.dagster.live import LiveDagster
from tests.support import PATIENCE, ROOT, Kafka, wait_until
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


ASSETS = {"cold-store/instances", "cold-store/status", "kafka/readings", "kafka/rooms", "sample_records"}


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


@pytest.mark.nightly
def test_plain_dagster_dev_at_the_top_of_the_repository_needs_no_dagster_home(tmp_path: Path) -> None:
    """It loads everything and starts an instance, and its runs are kept in `.penstock`, though it speaks of a temporary directory."""
    clone = tmp_path / "clone"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout
    for name in filter(None, listed.split("\0")):
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, clone / name, follow_symlinks=False)
    port = free_port()
    QuickBroker(clone / ".penstock" / "broker", port).start(60 * PATIENCE)
    environment = users_environment()

    def penstock(*arguments: str) -> None:
        command = [sys.executable, "-m", "penstock.orchestration", *arguments]
        subprocess.run(command, cwd=clone, env=environment, capture_output=True, timeout=120, check=True)

    try:
        create_topics(f"127.0.0.1:{port}")
        live = LiveDagster(None, project=clone, environment=environment)
        try:
            assert {"flight-board/instances", "hourly_delay", "carriers", "kafka/flights"} <= live.assets()
            live.launch(start_job("flight_board"), instance=("flight-board", "flight-board-1"))
        finally:
            live.stop()
        assert (clone / ".penstock" / "dagster" / "history" / "runs.db").is_file()
        assert (clone / ".penstock" / "state" / "flight-board-1").is_dir()
        left = {path.name for path in clone.iterdir()} - {name.partition("/")[0] for name in listed.split("\0")}
        assert left <= {".penstock", live.log.name}, "Dagster's files are in .penstock, and nothing is left of its temporary directory"
    finally:
        penstock("stop", "--kill", "--timeout", "5")
        penstock("broker", "stop")
