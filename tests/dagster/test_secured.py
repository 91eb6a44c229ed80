"""An application, its commands and Spark on a broker that wants TLS and a login: configured once, and no secret is shown."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from penstock.assets.spark.changelog.kafka_options import connector_options
from penstock.orchestration.cli import app
from penstock.orchestration.database import ControlPlane
from penstock.orchestration.declarations.applications import Applications
from penstock.orchestration.declarations.project_paths import ProjectPaths, default_database_url
from penstock.orchestration.embedded.ports import free_port
from penstock.orchestration.instances.operations import Operations
from penstock.runtime.coordination.topics import coordination_topic
from penstock.runtime.kafka.connection import Connection
from tests.dagster.telling import STREAMS_TOML, Project
from tests.support import Kafka, unique, wait_until
from tests.support.secured import OPERATOR, SecuredBroker

PASSWORD = secrets.token_hex(12)
VARIABLE = "PENSTOCK_TEST_KAFKA_PASSWORD"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    broker = SecuredBroker(tmp_path_factory.mktemp("secured"), free_port(), free_port(), {OPERATOR: PASSWORD})
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture(params=["password", "certificate"])
def project(tmp_path: Path, secured: SecuredBroker, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """As the fixture of all tests here, with a login. The password is in the environment alone."""
    login = secured.connection if request.param == "password" else secured.by_certificate(OPERATOR)
    application, path, home = unique("app"), tmp_path / "streams.toml", tmp_path / "home"
    monkeypatch.setenv(VARIABLE, PASSWORD)
    shown = {name: f"${{{VARIABLE}}}" if value == PASSWORD else value for name, value in login.settings.items()}
    lines = "".join(f'"{name}" = "{value}"\n' for name, value in shown.items())
    config = f"[applications.{application}.config]\n"
    text = STREAMS_TOML.format(application=application, bootstrap_servers=login.servers)
    path.write_text(text.replace(config, config + lines))
    for name, value in {"STREAMS": path, "HOME": home, "TEST_APPLICATION": application}.items():
        monkeypatch.setenv(f"PENSTOCK_{name}", str(value))
    monkeypatch.delenv("PENSTOCK_DATABASE_URL", raising=False)
    paths = ProjectPaths(tmp_path, home, path, default_database_url(home))
    operations = Operations(paths, Applications.read(path), ControlPlane(paths.database_url))
    yield Project(operations, Kafka(login.servers, {name: str(value) for name, value in login.settings.items()}))
    for name in operations.launcher.known():
        operations.launcher.stop(name, 5.0, kill=True)
    operations.control_plane.close()


def test_everything_reaches_secured_brokers_and_shows_no_secret(project: Project, spark: SparkSession, tmp_path: Path) -> None:
    application, broker, printed = project.application, project.broker, list[str]()

    def penstock(*arguments: str) -> str:
        result = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
        printed.append(result.output)
        assert result.exit_code == 0, (result.output, result.exception)
        return result.output

    for end, partitions in (("in", 2), ("out", 1)):
        broker.create_topic(f"{application.id}-{end}", partitions, exact=True)
    name, _ = application.instances
    assert f"{name} is RUNNING (started" in penstock("start", name)
    assert f"task 0_1 paused by {name}" in penstock("pause", application.id, "0_1")
    assert f"task 0_1 resumed by {name}" in penstock("resume", application.id, "0_1")
    broker.produce(f"{application.id}-in", [(b"key", b"{}"), (b"key", b'{"truncated'), (b"key", b"{}")], partition=0)
    where = f"{application.id}-in-0@1"
    wait_until(lambda: where in penstock("tasks", application.id), 60, "the paused task")
    project.feed()
    assert where in penstock("alerts")
    assert "verify: done" in penstock("skip", application.id, "0_0", "--yes", "--reason", "a test")
    assert len(broker.consume(f"{application.id}-dead-letter")) == 1
    wait_until(lambda: "TASK_PAUSED" in penstock("events", application.id, "--kind", "task_paused"), 30, "the event")
    penstock("describe", application.id)
    penstock("topology", application.id)
    assert "is complete: 2 tasks" in penstock("snapshot", "take", application.id)
    penstock("status", "--json")

    options = connector_options(application.streams_config())
    rows = spark.read.format("kafka").options(**options).option("subscribe", coordination_topic(application.id)).load().count()
    assert rows > 0

    assert f"{name} has closed" in penstock("stop", name)
    assert "nothing was done" in penstock("reset", application.id, "--dry-run")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.suffix == ".db" for path in files)
    holding = [str(path) for path in files if PASSWORD.encode() in path.read_bytes()]
    assert not holding
    assert PASSWORD not in "".join(printed)
    events = broker.consume(f"{application.id}-events") + broker.consume(coordination_topic(application.id))
    assert not [record for record in events if PASSWORD.encode() in (record.value or b"")]


def test_a_connection_shows_no_secret(secured: SecuredBroker) -> None:
    connection: Connection = secured.connection
    assert PASSWORD not in f"{connection} {connection!r}"
    assert connection.client({})["sasl.password"] == PASSWORD
    assert VARIABLE not in os.environ
