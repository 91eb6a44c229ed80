"""An application, its commands and Spark on a broker that wants TLS and a login: configured once, and no secret is shown."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from penstock.assets.spark.changelog.kafka_options import connector_options
from penstock.orchestration.cli import app
from penstock.orchestration.database import ControlPlane
from penstock.orchestration.declarations.applications import Applications
from penstock.orchestration.declarations.project_paths import ProjectPaths, default_database_url
from penstock.orchestration.embedded.ports import free_port
from penstock.orchestration.embedded.tools import command
from penstock.orchestration.instances.operations import Operations
from penstock.orchestration.rights import Resource, Right, Role, rights
from penstock.runtime.coordination.topics import coordination_topic
from penstock.runtime.kafka.connection import Connection
from penstock.runtime.topology.factory import build_topology
from tests.dagster.telling import STREAMS_TOML, Project
from tests.support import Kafka, unique, wait_until
from tests.support.secured import ADMIN, SecuredBroker

PASSWORD = secrets.token_hex(12)
VARIABLE, USER = "PENSTOCK_TEST_KAFKA_PASSWORD", "PENSTOCK_TEST_KAFKA_USER"
LEAST = "least rights"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    broker = SecuredBroker(tmp_path_factory.mktemp("secured"), free_port(), free_port(), dict.fromkeys((ADMIN, *Role), PASSWORD))
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture(params=["password", "certificate", LEAST])
def project(tmp_path: Path, secured: SecuredBroker, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """As the fixture of all tests here, with a login: as a super user, or as the user that a variable names, with the least rights. The
    password is in the environment alone."""
    login = secured.by_certificate(ADMIN) if request.param == "certificate" else secured.connection
    application, path, home = unique("app"), tmp_path / "streams.toml", tmp_path / "home"
    monkeypatch.setenv(VARIABLE, PASSWORD)
    monkeypatch.setenv(USER, ADMIN)
    hidden = {PASSWORD: f"${{{VARIABLE}}}", ADMIN: f"${{{USER}}}"}
    shown = {name: hidden.get(str(value), value) for name, value in login.settings.items()}
    lines = "".join(f'"{name}" = "{value}"\n' for name, value in shown.items())
    config = f"[applications.{application}.config]\n"
    text = STREAMS_TOML.format(application=application, bootstrap_servers=login.servers)
    path.write_text(text.replace(config, config + lines))
    for name, value in {"STREAMS": path, "HOME": home, "TEST_APPLICATION": application}.items():
        monkeypatch.setenv(f"PENSTOCK_{name}", str(value))
    monkeypatch.delenv("PENSTOCK_DATABASE_URL", raising=False)
    paths = ProjectPaths(tmp_path, home, path, default_database_url(home))
    operations = Operations(paths, Applications.read(path), ControlPlane(paths.database_url))
    project = Project(operations, Kafka(login.servers, {name: str(value) for name, value in login.settings.items()}))
    if request.param == LEAST:
        grant(project, {role: needed(project, role) for role in Role})
    yield project
    monkeypatch.setenv(USER, ADMIN)
    for name in operations.launcher.known():
        operations.launcher.stop(name, 5.0, kill=True)
    operations.control_plane.close()


def needed(project: Project, role: Role) -> list[Right]:
    application = project.application
    return rights(application.id, build_topology(application.factory).resolved(application.streams_config()), role)


def grant(project: Project, granted: Mapping[Role, Sequence[Right]]) -> None:
    kinds = {Resource.CLUSTER: ResourceType.BROKER}
    bindings = [
        AclBinding(
            kinds.get(right.resource) or ResourceType[right.resource.name],
            right.name,
            ResourcePatternType.PREFIXED if right.prefixed else ResourcePatternType.LITERAL,
            f"User:{role}",
            "*",
            AclOperation[operation.name],
            AclPermissionType.ALLOW,
        )
        for role, each in granted.items()
        for right in each
        for operation in right.operations
    ]
    for answer in project.broker.admin.create_acls(bindings).values():
        answer.result(30)


def test_everything_reaches_secured_brokers_and_shows_no_secret(
    project: Project, spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    application, broker, printed = project.application, project.broker, list[str]()

    def acts(role: Role) -> None:
        if LEAST in request.node.name:
            monkeypatch.setenv(USER, role)

    def penstock(*arguments: str) -> str:
        result = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
        printed.append(result.output)
        assert result.exit_code == 0, (result.output, result.exception)
        return result.output

    for end, partitions in (("in", 2), ("out", 1)):
        broker.create_topic(f"{application.id}-{end}", partitions, exact=True)
    name, _ = application.instances
    acts(Role.INSTANCE)
    assert f"{name} is RUNNING (started" in penstock("start", name)
    acts(Role.OPERATOR)
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

    acts(Role.SPARK)
    options = connector_options(application.streams_config())
    events = broker.consume(f"{application.id}-events") + broker.consume(coordination_topic(application.id))
    assert not [record for record in events if PASSWORD.encode() in (record.value or b"")]
    rows = spark.read.format("kafka").options(**options).option("subscribe", coordination_topic(application.id)).load().count()
    assert rows > 0

    acts(Role.OPERATOR)
    assert f"{name} has closed" in penstock("stop", name)
    assert "nothing was done" in penstock("reset", application.id, "--dry-run")
    penstock("reset", application.id, "--yes")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.suffix == ".db" for path in files)
    holding = [str(path) for path in files if PASSWORD.encode() in path.read_bytes()]
    assert not holding
    assert PASSWORD not in "".join(printed)


def test_a_connection_shows_no_secret(secured: SecuredBroker) -> None:
    connection: Connection = secured.connection
    assert PASSWORD not in f"{connection} {connection!r}"
    assert connection.client({})["sasl.password"] == PASSWORD
    assert VARIABLE not in os.environ


MISSING = (
    (Resource.GROUP, False, "the committed offsets cannot be read: .*Group authorization failed"),
    (Resource.GROUP, True, "Group authorization failed"),
    (Resource.TRANSACTIONAL_ID, True, "Transactional Id authorization failed"),
    (Resource.TOPIC, True, "do not let this client read .*-coordination .*authorization failed"),
)


@pytest.mark.parametrize(("resource", "prefixed", "said"), MISSING)
@pytest.mark.parametrize("project", ["no rights"], indirect=True)
def test_a_start_without_a_right_ends_and_says_which(
    project: Project, resource: Resource, prefixed: bool, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    application = project.application
    for end, partitions in (("in", 2), ("out", 1)):
        project.broker.create_topic(f"{application.id}-{end}", partitions, exact=True)
    given = [right for right in needed(project, Role.INSTANCE) if (right.resource, right.prefixed) != (resource, prefixed)]
    grant(project, {Role.INSTANCE: given})
    monkeypatch.setenv(USER, Role.INSTANCE)
    started = CliRunner().invoke(app, ("start", application.instances[0]), env={"COLUMNS": "400"})
    assert started.exit_code == 1
    assert re.search(said, started.output, re.IGNORECASE), started.output
    assert "`penstock acls`" in started.output
    assert "no broker answers" not in started.output


@pytest.mark.parametrize("project", ["certificate"], indirect=True)
def test_the_printed_commands_grant(secured: SecuredBroker, project: Project, tmp_path: Path) -> None:
    """One of each kind is run by Kafka's own tool."""
    login = f'org.apache.kafka.common.security.scram.ScramLoginModule required username="{ADMIN}" password="{PASSWORD}";'
    properties = tmp_path / "admin.properties"
    properties.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\n"
        f"sasl.jaas.config={login}\nssl.truststore.type=PEM\nssl.truststore.location={secured.certificates}/authority.crt\n"
    )
    by_kind = {(right.resource, right.prefixed): right for right in needed(project, Role.OPERATOR)}
    for right in by_kind.values():
        _, *arguments = shlex.split(right.command("User:somebody", secured.bootstrap_servers))
        done = subprocess.run(command("kafka-acls", arguments), cwd=tmp_path, capture_output=True, text=True, check=False)
        assert "Adding ACLs for resource" in done.stdout, done.stderr
