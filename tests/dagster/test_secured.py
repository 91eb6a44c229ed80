"""An application, its commands and Spark on a broker that wants TLS and a login: configured once, and no secret is shown."""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.admin._scram import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from penstock.assets.checks import look_at
from penstock.assets.spark.changelog.kafka_options import connector_options
from penstock.assets.spark.history.command import brokers_of
from penstock.assets.spark.history.run import HistoryRequest, run_history
from penstock.assets.spark.seeds.plan import SeedApplication
from penstock.assets.spark.session.explained import explained
from penstock.assets.spark.tables.job import make
from penstock.assets.spark.tables.request import TableRequest
from penstock.orchestration.board.follower import Follower
from penstock.orchestration.board.state import BoardState, Subject
from penstock.orchestration.cli import app
from penstock.orchestration.commands.command_config import VARIABLE as VARIABLE_OF_COMMANDS
from penstock.orchestration.database import ControlPlane
from penstock.orchestration.database.audit import now
from penstock.orchestration.dead_letters.topic import RawRecord, store_dead_letter
from penstock.orchestration.declarations.applications import Applications
from penstock.orchestration.declarations.backfills import BackfillInput
from penstock.orchestration.declarations.project_paths import ProjectPaths, default_database_url
from penstock.orchestration.declarations.spark_settings import SparkSettings
from penstock.orchestration.doctor.finding import Outcome
from penstock.orchestration.doctor.granted import held_against
from penstock.orchestration.doctor.questions import Questions
from penstock.orchestration.embedded.ports import free_port
from penstock.orchestration.embedded.tools import command
from penstock.orchestration.health.broker_facts import ask_broker
from penstock.orchestration.instances.operations import Operations
from penstock.orchestration.projection.feed import SilentBrokers
from penstock.orchestration.rights import Operation, Resource, Right, Role, rights
from penstock.runtime.config.environment import client_config
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.coordination.topics import coordination_topic, heartbeats_topic
from penstock.runtime.instance.precheck import Findings, check_settings
from penstock.runtime.instance.settings import InstanceSettings
from penstock.runtime.kafka.connection import Connection
from penstock.runtime.kafka.topic_admin import TopicAdmin, create_commands
from penstock.runtime.model.errors import StreamsError
from penstock.runtime.topology.factory import build_topology
from tests.dagster.telling import STREAMS_TOML, Project
from tests.support import Kafka, unique, wait_until
from tests.support.issuer import Issuer
from tests.support.secured import ADMIN, ROTATED, SecuredBroker

PASSWORD = secrets.token_hex(12)
VARIABLE, USER = "PENSTOCK_TEST_KAFKA_PASSWORD", "PENSTOCK_TEST_KAFKA_USER"
NEW_PASSWORD = secrets.token_hex(12)
LEAST = "least rights"
FILE = "file"
"""The password is in a file of this name in the project's folder."""
TABLE = "a table"
"""As `no rights`, with a store that is restored from an input topic."""
TOKEN_SECONDS = 20
"""Less than a test takes: the broker ends connections whose token has expired, unless their client brings another one."""


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    folder, passwords = tmp_path_factory.mktemp("secured"), dict.fromkeys((ADMIN, ROTATED, *Role), PASSWORD)
    with Issuer(folder, {str(user): password for user, password in passwords.items()}, TOKEN_SECONDS) as issuer:
        broker = SecuredBroker(folder, free_port(), free_port(), passwords, issuer)
        broker.start()
        yield broker
        broker.stop()


@pytest.fixture(params=["password", "token", pytest.param("certificate", marks=pytest.mark.nightly), LEAST])
def project(tmp_path: Path, secured: SecuredBroker, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """As the fixture of all tests here, with a login: as a super user, or as the user that a variable names, with the least rights. The
    password is in the environment alone."""
    logins = {"certificate": secured.by_certificate, "token": secured.by_token}
    login = logins.get(request.param, secured.by_password)(ROTATED if request.param in (FILE, ROTATED) else ADMIN)
    application, path, home = unique("app"), tmp_path / "streams.toml", tmp_path / "home"
    monkeypatch.setenv(VARIABLE, PASSWORD)
    monkeypatch.setenv(USER, ADMIN)
    hidden = {PASSWORD: f"${{{VARIABLE}}}", ADMIN: f"${{{USER}}}"}
    if request.param == FILE:
        (tmp_path / FILE).write_text(PASSWORD)
        hidden[PASSWORD] = f"${{file:{tmp_path / FILE}}}"
    shown = {name: hidden.get(str(value), value) for name, value in login.settings.items()}
    lines = "".join(f'"{name}" = "{value}"\n' for name, value in shown.items())
    config = f"[applications.{application}.config]\n"
    text = STREAMS_TOML.format(application=application, bootstrap_servers=login.servers)
    factory = ":build_of_table" if request.param == TABLE else ":build"
    path.write_text(text.replace(config, config + lines).replace(":build", factory))
    for name, value in {"STREAMS": path, "HOME": home, "TEST_APPLICATION": outside(application)}.items():
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


def outside(application: str) -> str:
    """Return the first part of the names of inputs and outputs. A right on what is the application's own does not include them."""
    return f"of-{application}"


def needed(project: Project, role: Role) -> list[Right]:
    application = project.application
    return rights(application.id, build_topology(application.factory).resolved(application.streams_config()), role)


Binding = TypeVar("Binding", AclBinding, AclBindingFilter)


def bindings(kind: type[Binding], role: Role, right: Right) -> list[Binding]:
    kinds = {Resource.CLUSTER: ResourceType.BROKER}
    return [
        kind(
            kinds.get(right.resource) or ResourceType[right.resource.name],
            right.name,
            ResourcePatternType.PREFIXED if right.prefixed else ResourcePatternType.LITERAL,
            f"User:{role}",
            "*",
            AclOperation[operation.name],
            AclPermissionType.ALLOW,
        )
        for operation in right.operations
    ]


def grant(project: Project, granted: Mapping[Role, Sequence[Right]]) -> None:
    wanted = [binding for role, each in granted.items() for right in each for binding in bindings(AclBinding, role, right)]
    for answer in project.broker.admin.create_acls(wanted).values():
        answer.result(30)


def revoke(project: Project, role: Role, right: Right) -> None:
    for answer in project.broker.admin.delete_acls(bindings(AclBindingFilter, role, right)).values():
        assert answer.result(30)


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
        broker.create_topic(f"{outside(application.id)}-{end}", partitions, exact=True)
    name, _ = application.instances
    acts(Role.INSTANCE)
    assert f"{name} is RUNNING (started" in penstock("start", name)
    acts(Role.OPERATOR)
    assert f"task 0_1 paused by {name}" in penstock("pause", application.id, "0_1")
    assert f"task 0_1 resumed by {name}" in penstock("resume", application.id, "0_1")
    broker.produce(f"{outside(application.id)}-in", [(b"key", b"{}"), (b"key", b'{"truncated'), (b"key", b"{}")], partition=0)
    where = f"{outside(application.id)}-in-0@1"
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
    login = tmp_path / "client.properties"
    login.write_text("# the login\n\n" + "".join(f"{key}={value}\n" for key, value in application.config.items() if "handler" not in key))
    monkeypatch.setenv(VARIABLE_OF_COMMANDS, str(login))
    assert name in penstock("status", "--bootstrap-servers", application.bootstrap_servers, "--application", application.id)

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


@pytest.mark.nightly
@pytest.mark.parametrize("project", ["token"], indirect=True)
def test_an_instance_runs_on_when_its_tokens_expire(project: Project, secured: SecuredBroker) -> None:
    application, (name, _) = project.application, project.application.instances
    source, out = (f"{outside(application.id)}-{end}" for end in ("in", "out"))
    project.broker.create_topic(source, 2, exact=True)
    project.broker.create_topic(out, 1, exact=True)
    process, _ = project.operations.launcher.start(application, name)

    def goes_through(records: int) -> None:
        project.broker.produce(source, [("key", "{}")])
        wait_until(lambda: len(project.broker.consume(out)) == records, 60, f"result {records}")

    goes_through(1)
    tokens = secured.issuer.issued[ADMIN]
    for lifetime in (1, 2):
        began = time.monotonic()
        wait_until(lambda: time.monotonic() - began > TOKEN_SECONDS, what="the end of a token")  # noqa: B023 (called in this round)
        goes_through(1 + lifetime)
    assert process.alive and secured.issuer.issued[ADMIN] >= tokens + 2


@pytest.mark.nightly
@pytest.mark.parametrize("project", [FILE], indirect=True)
def test_a_password_in_a_file_is_rotated_while_an_instance_runs(project: Project, secured: SecuredBroker, tmp_path: Path) -> None:
    """The broker has the new one first, and all connections end; the file follows when the instance has been refused."""
    application, (name, _) = project.application, project.application.instances
    source, out = (f"{outside(application.id)}-{end}" for end in ("in", "out"))
    admin = Kafka(secured.bootstrap_servers, {key: str(value) for key, value in secured.connection.settings.items()})
    admin.create_topic(source, 2, exact=True)
    admin.create_topic(out, 1, exact=True)
    process, _ = project.operations.launcher.start(application, name)

    def goes_through(records: int) -> None:
        admin.produce(source, [("key", "{}")])
        wait_until(lambda: len(admin.consume(out)) == records, 60, f"result {records}")

    def heartbeats() -> int:
        return len(admin.consume(heartbeats_topic(application.id)))

    goes_through(1)
    project.feed()
    set_password(admin, NEW_PASSWORD)
    secured.stop()
    secured.start()
    log = project.operations.paths.log_path(name)
    wait_until(lambda: "Authentication failed" in log.read_text(), 60, "a refusal")
    refused = penstock("status").output
    assert "do not let this client read" in refused and "uthentication failed" in refused and "no broker answers" not in refused
    (tmp_path / "new").write_text(NEW_PASSWORD)
    (tmp_path / "new").replace(tmp_path / FILE)
    goes_through(2)
    before = heartbeats()
    wait_until(lambda: heartbeats() > before, 30, "a heartbeat")
    project.feed()
    assert process.alive and "RUNNING" in penstock("status").output
    assert penstock("pause", application.id, "0_1").exit_code == 0
    set_password(admin, PASSWORD)


def set_password(admin: Kafka, password: str) -> None:
    rotated = UserScramCredentialUpsertion(ROTATED, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), password.encode())
    admin.admin.alter_user_scram_credentials([rotated])[ROTATED].result(30)


@pytest.mark.nightly
@pytest.mark.parametrize("project", [ROTATED], indirect=True)
def test_a_password_in_a_variable_is_rotated_by_a_rolling_restart(
    project: Project, secured: SecuredBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Afterwards all connections end, and nothing runs that has the old one. Before the deploy has the new one, it stops nothing."""
    application = project.application
    source, out = (f"{outside(application.id)}-{end}" for end in ("in", "out"))
    admin = Kafka(secured.bootstrap_servers, {key: str(value) for key, value in secured.connection.settings.items()})
    admin.create_topic(source, 2, exact=True)
    admin.create_topic(out, 1, exact=True)
    launcher, names = project.operations.launcher, application.instances
    before = [launcher.start(application, name)[0] for name in names]

    def goes_through(records: int) -> None:
        admin.produce(source, [("key", "{}")])
        wait_until(lambda: len(admin.consume(out)) == records, 60, f"result {records}")

    goes_through(1)
    set_password(admin, NEW_PASSWORD)
    refused = penstock("deploy", "--all", application.id)
    assert refused.exit_code == 1 and "uthentication failed" in refused.output and all(process.alive for process in before)
    goes_through(2)
    monkeypatch.setenv(VARIABLE, NEW_PASSWORD)
    deployed = penstock("deploy", "--all", application.id)
    assert deployed.exit_code == 0, deployed.output
    after = [launcher.running(name) for name in names]
    assert None not in after and not {process.pid for process in after if process} & {process.pid for process in before}
    secured.stop()
    secured.start()
    goes_through(3)
    assert not any(secret in project.operations.paths.log_path(name).read_text() for name in names for secret in (PASSWORD, NEW_PASSWORD))
    set_password(admin, PASSWORD)


@pytest.mark.nightly
@pytest.mark.parametrize("project", ["token"], indirect=True)
def test_a_login_that_is_refused_is_named_and_shows_no_secret(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the password that was tried nor the right one."""
    application, (name, _) = project.application, project.application.instances
    monkeypatch.setenv(VARIABLE, NEW_PASSWORD)
    monkeypatch.setattr("penstock.orchestration.doctor.examination.CONTACT_SECONDS", 4.0)
    monkeypatch.setattr("penstock.runtime.kafka.shared_log.ANSWER_SECONDS", 2.0)
    said = ""
    for words in (("start", name), ("doctor",), ("status",), ("pause", application.id, "0_0")):
        result = penstock(*words)
        assert result.exit_code == 1 and re.search("uthentication failed|Failed to acquire SASL OAUTHBEARER token", result.output), words
        assert "wrong    login: " in result.output or words != ("doctor",)
        said += result.output
    config = {**application.config_of(name), "state.dir": str(tmp_path / "state")}
    written = InstanceSettings(application=application.id, instance=name, factory=application.factory, config=config)
    [problem] = check_settings(Findings(problems=[]), [written]).problems  # as a deploy does
    assert "Failed to acquire SASL OAUTHBEARER token" in problem and "no answer" not in problem
    said += problem
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    for secret in (NEW_PASSWORD, PASSWORD):
        assert secret not in said
        assert not [str(path) for path in files if secret.encode() in path.read_bytes()]


def test_a_connection_shows_no_secret(secured: SecuredBroker) -> None:
    connection: Connection = secured.connection
    assert PASSWORD not in f"{connection} {connection!r}"
    assert connection.client({})["sasl.password"] == PASSWORD
    assert VARIABLE not in os.environ


def penstock(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "1000"})


def findings(*arguments: str) -> list[dict[str, str]]:
    result = penstock("doctor", *arguments, "--json")
    rows: list[dict[str, str]] = json.loads(result.stdout)
    assert result.exit_code == int(any(row["outcome"] == "wrong" for row in rows)), result.output
    return rows


def seen(project: Project, folder: Path) -> tuple[set[str], set[str], dict[Path, bytes]]:
    """Topics (without those that brokers make for themselves), groups, and files."""
    admin = project.broker.admin
    groups = {group.group_id for group in admin.list_consumer_groups().result(30).valid or ()}
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {topic for topic in project.broker.topics() if not topic.startswith("__")}, groups, files


@pytest.mark.parametrize("project", ["no rights"], indirect=True)
def test_the_doctor_finds_each_right_that_is_missing_and_changes_nothing(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    application = project.application
    absent = {row["text"].partition(" does not exist")[0] for row in findings() if row["outcome"] == "wrong"}
    assert absent == {f"source topic {outside(application.id)}-in", f"output topic {outside(application.id)}-out"}, "both are named at once"
    for end, partitions in (("in", 2), ("out", 1)):
        project.broker.create_topic(f"{outside(application.id)}-{end}", partitions, exact=True)
    before = seen(project, tmp_path)
    for role in Role:
        monkeypatch.setenv(USER, role)
        missing = {row["text"] for row in findings(application.id, "--role", role) if row["subject"] == "rights"}
        wanted = needed(project, role)
        assert len(missing) == len(wanted)
        mine = [text for text in missing if application.id in text]  # other tests have granted the rest
        assert all(text.startswith("no right") for text in mine), "nothing is granted, so nothing may be done"
        grant(project, {role: wanted})
        wait_until_wrong(project, role, set())
    for role in Role:
        monkeypatch.setenv(USER, role)
        rows = findings(application.id, "--role", role)
        not_ok = {row["text"] for row in rows if row["subject"] == "rights" and row["outcome"] != "ok"}
        assert all(text.endswith("shows only once one of these topics exists") for text in not_ok)
        assert "wrong" not in {row["outcome"] for row in rows}
    assert seen(project, tmp_path) == before
    assert not [path for path, content in seen(project, tmp_path)[2].items() if PASSWORD.encode() in content]

    monkeypatch.setenv(USER, Role.INSTANCE)
    name, _ = application.instances
    out = f"{outside(application.id)}-out"
    project.broker.delete_topic(out)
    (absent_again,) = [row["text"] for row in findings() if row["outcome"] == "wrong"]
    assert absent_again.startswith(f"output topic {out} does not exist"), "an instance may not read whether brokers create topics"
    project.broker.create_topic(out, exact=True)
    assert penstock("start", name).exit_code == 0
    wait_until(lambda: {row["outcome"] for row in findings() if row["subject"] in ("clock", "quotas")} == {"ok"}, 30, "a heartbeat")
    shown = penstock("doctor", application.id)
    assert shown.exit_code == 0 and PASSWORD not in shown.output
    for line in ("5 of 5 are there", "answers: Kafka 4.3", "accepts this client (SASL_SSL SCRAM-SHA-512)", "the topology fits topics"):
        assert line in shown.output


def wrong(project: Project, role: Role) -> set[tuple[str, Operation]]:
    """The resource and operation of each right of a role that the doctor does not find."""
    connection = project.application.connection
    listed = needed(project, role)
    found = held_against(listed, Questions(connection), groups=True, principal="User:x", servers="x")
    missing = [(right, each.remedy) for right, each in zip(listed, found, strict=True) if each.outcome is Outcome.WRONG]
    return {(f"{right.resource} {right.name}", one) for right, said in missing for one in right.operations if f"--operation {one} " in said}


def wait_until_wrong(project: Project, role: Role, expected: set[tuple[str, Operation]]) -> None:
    wait_until(lambda: wrong(project, role) == expected, what=f"the finding of {expected} for {role}")


_IMPLYING = {Operation.DESCRIBE: {Operation.DELETE}, Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS}}
"""Operations that allow another one, too."""


@pytest.mark.nightly
@pytest.mark.parametrize("project", ["no rights"], indirect=True)
@pytest.mark.parametrize("role", Role)
def test_the_doctor_names_the_one_operation_that_is_left_out(project: Project, role: Role, monkeypatch: pytest.MonkeyPatch) -> None:
    application = project.application.id
    for topic in (f"{outside(application)}-in", f"{outside(application)}-out", coordination_topic(application)):
        project.broker.create_topic(topic, exact=True)
    listed = needed(project, role)
    grant(project, {role: listed})
    monkeypatch.setenv(USER, role)
    wait_until_wrong(project, role, set())
    for right in listed:
        for operation in right.operations:
            one = replace(right, operations=(operation,))
            revoke(project, role, one)
            others = {*right.operations} - {operation}
            implied = others & _IMPLYING.get(operation, set())
            expected = set() if implied else {(f"{right.resource} {right.name}", operation)}
            wait_until_wrong(project, role, expected)
            grant(project, {role: [one]})
            wait_until_wrong(project, role, set())


def test_the_doctor_lists_all_problems_without_a_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = f"""[applications.shop]
factory = "no.such.module:build"
instances = 1
[applications.shop.config]
"bootstrap.servers" = "127.0.0.1:{free_port()}"
"http.token" = "${{PENSTOCK_TEST_NOT_SET}}"
"""
    (tmp_path / "streams.toml").write_text(config)
    monkeypatch.setenv("PENSTOCK_STREAMS", str(tmp_path / "streams.toml"))
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("penstock.orchestration.doctor.examination.CONTACT_SECONDS", 1.0)
    rows = findings()
    said = "\n".join(row["text"] for row in rows if row["outcome"] == "wrong")
    for problem in ("no broker has answered", "${PENSTOCK_TEST_NOT_SET} is not set", "no.such.module"):
        assert problem in said
    assert {row["subject"] for row in rows if row["outcome"] == "unknown"} == {"topics", "rights", "clock", "quotas"}
    assert [path.name for path in tmp_path.iterdir()] == ["streams.toml"]
    (tmp_path / "streams.toml").write_text("[applications.shop]\nfactory = 1\n")
    (broken,) = findings()
    assert broken["outcome"] == "wrong" and "factory" in broken["text"]


def every_right(role: Role) -> list[Right]:
    """Return the rights of a role, each with one operation, for an application whose id is `APP`."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PENSTOCK_TEST_APPLICATION", outside("APP"))
        topology = build_topology("tests.dagster.topology:build")
        resolved = topology.resolved(StreamsConfig({"application.id": "app", "bootstrap.servers": "127.0.0.1:1"}))
    return [replace(right, operations=(operation,)) for right in rights("APP", resolved, role) for operation in right.operations]


def named_right(right: Right) -> str:
    return f"{right.operations[0]} on {right.resource} {right.name}"


_NOT_AT_A_START = {
    "Delete on topic APP-": "repartition topics are purged while it runs",
    "DescribeConfigs on topic APP-": "AlterConfigs implies it",
    "AlterConfigs on topic APP-": "only topics of earlier versions are altered",
}
_REFUSED_EARLIER = {
    "Read on topic of-APP-in": "Describe on topic of-APP-in",
    "Write on topic of-APP-out": "Describe on topic of-APP-out",
}
"""Read and Write include Describe, which is asked for first."""
_SAID = {
    "Read on topic APP-": "Read on topic APP-coordination",
    "Write on topic APP-": "Write on topic APP-coordination",
    "Create on topic APP-": "Create on topic APP-coordination",
}


def without(project: Project, role: Role, left_out: Right) -> Right:
    """Grant a role everything but one operation, which is returned."""
    missing = replace(left_out, name=left_out.name.replace("APP", project.application.id))
    given = [replace(right, operations=(one,)) for right in needed(project, role) for one in right.operations]
    assert missing.command("", "") in [right.command("", "") for right in given]
    grant(project, {role: [right for right in given if right.command("", "") != missing.command("", "")]})
    return missing


@pytest.mark.parametrize("left_out", every_right(Role.INSTANCE), ids=named_right)
@pytest.mark.parametrize("project", ["no rights"], indirect=True)
def test_an_instance_without_a_right_ends_says_which_and_starts_once_it_is_granted(
    project: Project, left_out: Right, monkeypatch: pytest.MonkeyPatch
) -> None:
    application, launcher = project.application, project.operations.launcher
    for end, partitions in (("in", 2), ("out", 1)):
        project.broker.create_topic(f"{outside(application.id)}-{end}", partitions, exact=True)
    project.broker.produce(f"{outside(application.id)}-in", [("key", "{}")])
    missing = without(project, Role.INSTANCE, left_out)
    monkeypatch.setenv(USER, Role.INSTANCE)
    name, text = application.instances[0], named_right(left_out)
    process, _ = launcher.start(application, name)
    if text not in _NOT_AT_A_START:
        wait_until(lambda: not process.alive, 60, "the end of the instance")
        said = launcher.last_words(name)
        right = _REFUSED_EARLIER.get(text) or _SAID.get(text, text)
        assert f"It needs {right}".replace("APP", application.id) in said
        assert "`penstock acls`" in said
        grant(project, {Role.INSTANCE: [missing]})
        launcher.start(application, name)
    out = f"{outside(application.id)}-out"
    wait_until(lambda: project.broker.consume(out), 60, "the result")
    assert len(project.broker.consume(out)) == 1, "nothing half-made was left"


_NOT_TRIED = {
    "Describe on topic of-APP-out": "Delete includes it",
    "DescribeConfigs on topic of-APP-out": "AlterConfigs includes it",
    "Read on group APP-": "commands to instances that run read with such a group",
    "Read on topic of-APP-in": "a reset needs Describe, which Write includes; run-books need it, in the next test",
    "Write on topic of-APP-in": "a run-book needs it, in the next test",
}
_OTHER_COMMANDS = {
    "Read on topic APP-": ("status",),
    "Read on group penstock-reader": ("status",),
}
"""Than a reset, which needs most rights."""
_OF_HEALTH_CHECKS = (
    "Describe on topic __consumer_offsets",
    "DescribeConfigs on cluster kafka-cluster",
    "DescribeConfigs on topic of-APP-in",
)


def board_says(project: Project) -> str:
    """Return the state of the board once it is known, and check what it says of a missing right."""
    state = BoardState(Subject(project.application.id))
    follower = Follower(project.application.streams_config(), state)
    follower.start()

    def reading() -> Mapping[str, object] | None:
        found = state.document(time.time_ns() // 1_000_000)["reading"]
        assert isinstance(found, Mapping)
        return None if found["state"] == "reading" else found

    try:
        found = wait_until(reading, 60, "what the board says")
        assert isinstance(found, Mapping)
        assert ("do not let this client read" in str(found) and "`penstock acls`" in str(found)) is (found["state"] == "lost")
        return str(found["state"])
    finally:
        follower.stop()


@pytest.mark.nightly
@pytest.mark.parametrize("project", ["no rights"], indirect=True)
def test_an_operator_without_a_right_is_told_which_and_finishes_once_it_is_granted(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    application, role = project.application, Role.OPERATOR
    source, out = (f"{outside(application.id)}-{end}" for end in ("in", "out"))
    project.broker.create_topic(source, 2, exact=True)
    project.broker.create_topic(out, 1, {"cleanup.policy": "compact"}, exact=True)
    project.broker.produce(source, [("key", "{}")])
    name, _ = application.instances
    assert penstock("start", name).exit_code == 0
    wait_until(lambda: project.broker.consume(out), 60, "the result")
    assert penstock("stop", name).exit_code == 0
    monkeypatch.setenv(USER, role)
    assert board_says(project) == "lost"
    grant(project, {role: needed(project, role)})
    assert board_says(project) == "live"
    reset = ("reset", application.id, "--yes", "--delete-outputs", "yes", "--to", "latest")
    for left_out in every_right(role):
        text = named_right(left_out)
        if text in _NOT_TRIED:
            continue
        right = replace(left_out, name=left_out.name.replace("APP", application.id))
        wait_until_wrong(project, role, set())
        revoke(project, role, right)
        wait_until_wrong(project, role, {(f"{right.resource} {right.name}", right.operations[0])})
        if text in _OF_HEALTH_CHECKS:
            with pytest.raises(StreamsError) as raised:
                ask_broker(application, [], [])
            said = str(raised.value)
        else:
            command = [word.replace("APP", application.id) for word in _OTHER_COMMANDS.get(text, reset)]
            refused = penstock(*command)
            said = refused.output
            assert refused.exit_code == 1, (text, said)
        assert re.search(f"It needs ({right.operations[0]}|Describe) on (the |each )?{right.resource}( {right.name})?", said), (text, said)
        assert "`penstock acls`" in said
        grant(project, {role: [right]})
    wait_until_wrong(project, role, set())
    assert "begins without state" in penstock(*reset).output
    monkeypatch.setenv(USER, ADMIN)
    assert penstock("start", name).exit_code == 0


def checks_say(project: Project) -> str:
    """Return why the checks of the health schedule cannot be known; empty if they can."""
    results, _, _ = look_at(project.operations, project.application, now(), logging.getLogger(__name__), SilentBrokers())
    (unknown,) = {result.unknown for result in results}
    return unknown


_SKIP, _REPLAY = ("skip", "APP", "0_0", "--yes", "--reason", "a test"), ("run-book", "replay-dead-letters", "APP", "--yes")
_PAUSE, _CHECKS = ("pause", "APP", "0_1"), ()
_OF_CONTROL_PLANE: Mapping[str, Sequence[tuple[str, ...]]] = {
    "Read on topic of-APP-in": (_SKIP, ("rehearse", "APP", "--paused", "0_0")),
    "Write on topic of-APP-in": (_REPLAY,),
    "DescribeConfigs on topic of-APP-in": (_CHECKS,),
    "Read on topic APP-": (_CHECKS, _SKIP, _REPLAY, _PAUSE, ("events", "APP"), ("snapshot", "take", "APP")),
    "Write on topic APP-": (_SKIP, _REPLAY, _PAUSE, ("snapshot", "take", "APP")),
    "Create on topic APP-": (_SKIP,),
    "DescribeConfigs on topic APP-": (_CHECKS,),
    "Read on group penstock-reader": (_SKIP, _REPLAY, ("describe", "APP")),
    "Describe on topic __consumer_offsets": (_CHECKS,),
    "Write on transactional-id APP-": (_SKIP, _REPLAY),
    "DescribeConfigs on cluster kafka-cluster": (_CHECKS,),
}
"""Commands that fail while an instance runs, by the right that is left out; none stands for the checks. A reset needs the other rights."""


@pytest.mark.nightly
@pytest.mark.parametrize("project", ["no rights"], indirect=True)
def test_the_control_plane_without_a_right_says_which_and_repairs_once_it_is_granted(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    application, role = project.application, Role.OPERATOR
    source, out = (f"{outside(application.id)}-{end}" for end in ("in", "out"))
    project.broker.create_topic(source, 2, exact=True)
    project.broker.create_topic(out, 1, exact=True)
    project.broker.produce(source, [(b"key", b'{"truncated'), (b"key", b"{}")], partition=0)
    project.broker.produce(source, [(b"skipped", b"{}")], partition=1)
    name, _ = application.instances
    assert penstock("start", name).exit_code == 0
    wait_until(lambda: project.broker.consume(out), 60, "the result of partition 1")
    place = f"{source}-0@0"
    wait_until(lambda: place in penstock("tasks", application.id).output, 60, "the paused task")
    assert place in penstock("tasks", application.id).output
    project.feed()
    letters = f"{application.id}-dead-letter"

    def refused(right: Right, words: tuple[str, ...]) -> None:
        if words == _CHECKS:
            said = checks_say(project)
        else:
            result = penstock(*(word.replace("APP", application.id) for word in words))
            said = result.output
            assert result.exit_code == 1 and not isinstance(result.exception, KafkaException), (right, words, said)
        wanted = f"It needs [^`]*({right.operations[0]}|Describe) on {right.resource} {right.name}"
        assert re.search(wanted, said) and "`penstock acls`" in said, (named_right(right), words, said)

    every = every_right(role)
    assert {named_right(right) for right in every} >= _OF_CONTROL_PLANE.keys()
    grant(project, {role: needed(project, role)})
    monkeypatch.setenv(USER, role)
    for left_out in every:
        right = replace(left_out, name=left_out.name.replace("APP", application.id))
        commands = _OF_CONTROL_PLANE.get(named_right(left_out), ())
        if not commands:
            continue
        wait_until_wrong(project, role, set())
        revoke(project, role, right)
        wait_until_wrong(project, role, {(f"{right.resource} {right.name}", right.operations[0])})
        for words in commands:
            if words == _SKIP and left_out.operations == (Operation.CREATE,):
                project.broker.delete_topic(letters)
            if words == _REPLAY:
                store_dead_letter(
                    project.broker.connection, application.id, RawRecord(source, 1, 0, b"skipped", b"{}", None, ()), "Error", "text"
                )
            refused(right, words)
        grant(project, {role: [right]})
    wait_until_wrong(project, role, set())
    assert (len(project.broker.consume(out)), len(project.broker.consume(source))) == (1, 3), "nothing half-made was left"
    assert checks_say(project) == ""
    assert penstock(*(word.replace("APP", application.id) for word in _SKIP)).exit_code == 0
    wait_until(lambda: len(project.broker.consume(out)) == 2, 30, "the result of the record behind it")
    done = penstock(*(word.replace("APP", application.id) for word in _REPLAY))
    assert done.exit_code == 0 and len(project.broker.consume(source)) == 5, done.output


_OF_TABLES = ("Read on topic APP-", "DescribeConfigs on topic APP-")
"""Rights of Spark that tables of changelogs need; history needs the others."""


# py4j leaves its sockets to the garbage collector: not in our code.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("project", ["no rights"], indirect=True)
def test_spark_without_a_right_says_which_writes_nothing_and_works_once_it_is_granted(
    project: Project, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    application, role = project.application, Role.SPARK
    source, out = (f"{outside(application.id)}-{end}" for end in ("in", "out"))
    for topic, partitions in ((source, 2), (out, 1)):
        project.broker.create_topic(topic, partitions, exact=True)
    project.broker.produce(source, [("key", "{}"), ("other", "{}")])
    name, _ = application.instances
    assert penstock("start", name).exit_code == 0
    wait_until(lambda: len(project.broker.consume(out)) == 2, 60, "the results")
    assert penstock("stop", name).exit_code == 0
    monkeypatch.setenv(USER, role)
    monkeypatch.setitem(spark.sparkContext.environment, "PENSTOCK_TEST_APPLICATION", outside(application.id))
    written = tmp_path / "written"
    table = TableRequest(
        application=application.id,
        store="counts",
        table="counts",
        format="parquet",
        source="changelog",
        location=str(written / "table"),
        versions=str(written / "versions"),
        version="1",
        factory=application.factory,
        config=dict(application.config),
    )
    settings = {**client_config(application.config, application.id), "application.id": "history"}

    def make_table() -> int:
        return make(table, spark, lambda _: None).rows

    def run_over_history() -> Mapping[str, Mapping[int, int]]:
        subject = SeedApplication.of("history", application.factory, settings)
        request = HistoryRequest(subject, {source: BackfillInput("kafka")}, "latest", str(written / "seeds"), str(written / "outputs"))
        return run_history(spark, request, brokers_of(subject, "latest")).next_offsets

    grant(project, {role: needed(project, role)})
    for left_out in every_right(role):
        text = named_right(left_out)
        right = replace(left_out, name=left_out.name.replace("APP", application.id))
        wait_until_wrong(project, role, set())
        revoke(project, role, right)
        wait_until_wrong(project, role, {(f"{right.resource} {right.name}", right.operations[0])})
        with pytest.raises(StreamsError) as raised:
            (make_table if text in _OF_TABLES else run_over_history)()
        assert re.search(f"It needs ({right.operations[0]}|Describe) on {right.resource} {right.name}", str(raised.value)), text
        assert "`penstock acls`" in str(raised.value)
        assert not [path for path in written.rglob("*") if path.is_file() and path.name != ".lock"]
        if text == "Read on topic APP-":
            seen_only = replace(right, operations=(Operation.DESCRIBE,))
            grant(project, {role: [seen_only]})
            wait_until(lambda: TopicAdmin(application.streams_config()).partition_counts([coordination_topic(application.id)]))
            with pytest.raises(Exception, match="Not authorized to access topics") as refused:
                make_table()
            assert "It needs Read on each topic" in explained(refused.value, SparkSettings())
            assert not [path for path in written.rglob("*.parquet") if "_temporary" not in path.parts]
            revoke(project, role, seen_only)
        grant(project, {role: [right]})
    wait_until_wrong(project, role, set())
    assert (make_table(), run_over_history()) == (2, {source: {0: 1, 1: 1}})


# py4j: as above
@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("project", [TABLE], indirect=True)
def test_a_store_that_is_restored_from_an_input_needs_rights_on_it_and_on_the_group(
    project: Project, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows count up to the committed offset of the input, so the group is read, too."""
    application = project.application
    source, out = (f"{outside(application.id)}-{end}" for end in ("in", "out"))
    for topic, partitions in ((source, 2), (out, 1)):
        project.broker.create_topic(topic, partitions, exact=True)
    project.broker.produce(source, [("key", "value")])
    name, launcher = application.instances[0], project.operations.launcher
    inputs = [Right(Resource.TOPIC, source, (each,), "") for each in (Operation.READ, Operation.DESCRIBE_CONFIGS)]
    group = Right(Resource.GROUP, application.id, (Operation.READ,), "")
    described = replace(group, operations=(Operation.DESCRIBE,))

    def restored(right: Right, instead: Sequence[Right] = ()) -> None:
        """Start an instance whose state is lost, without a right; grant it, and start it again."""
        revoke(project, Role.INSTANCE, right)
        if instead:
            grant(project, {Role.INSTANCE: instead})
        monkeypatch.setenv(USER, Role.INSTANCE)
        shutil.rmtree(project.operations.paths.state_dir(name), ignore_errors=True)
        process, _ = launcher.start(application, name)
        wait_until(lambda: not process.alive, 60, f"the end of the instance without {right}")
        words = launcher.last_words(name)
        assert re.search(f"It needs ({right.operations[0]}|Describe) on {right.resource} {right.name}", words), (right, words)
        assert "`penstock acls`" in words
        monkeypatch.setenv(USER, ADMIN)
        for each in instead:
            revoke(project, Role.INSTANCE, each)
        grant(project, {Role.INSTANCE: [right]})

    grant(project, {role: needed(project, role) for role in Role})
    monkeypatch.setenv(USER, Role.INSTANCE)
    assert penstock("start", name).exit_code == 0
    wait_until(lambda: project.broker.consume(out), 60, "the row")
    assert penstock("stop", name).exit_code == 0
    project.broker.produce(source, [("key", "newer"), ("other", "value")])
    for right in (*inputs, group):
        restored(right)
    restored(group, [described])  # which the first commit shows
    monkeypatch.setenv(USER, Role.INSTANCE)
    assert penstock("start", name).exit_code == 0
    wait_until(lambda: len(project.broker.consume(out)) == 3, 60, "the other rows: nothing half-made was left")
    monkeypatch.setenv(USER, ADMIN)
    assert penstock("stop", name).exit_code == 0

    monkeypatch.setenv(USER, Role.SPARK)
    monkeypatch.setitem(spark.sparkContext.environment, "PENSTOCK_TEST_APPLICATION", outside(application.id))
    written = tmp_path / "written"
    table = TableRequest(
        application=application.id,
        store="rows",
        table="rows",
        format="parquet",
        source="changelog",
        location=str(written / "table"),
        versions=str(written / "versions"),
        version="1",
        factory=application.factory,
        config=dict(application.config),
    )
    for right in (*inputs, described):
        wait_until_wrong(project, Role.SPARK, set())
        revoke(project, Role.SPARK, right)
        wait_until_wrong(project, Role.SPARK, {(f"{right.resource} {right.name}", right.operations[0])})
        with pytest.raises(StreamsError) as raised:
            make(table, spark, lambda _: None)
        assert re.search(f"It needs ({right.operations[0]}|Describe) on {right.resource} {right.name}", str(raised.value)), right
        assert "`penstock acls`" in str(raised.value)
        assert not [path for path in written.rglob("*") if path.is_file() and path.name != ".lock"]
        grant(project, {Role.SPARK: [right]})
    wait_until_wrong(project, Role.SPARK, set())
    assert make(table, spark, lambda _: None).rows == 2


@pytest.mark.nightly
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
    made = unique("made")
    tool, *arguments = shlex.split(create_commands(secured.connection, {made: 2}))
    subprocess.run(command(tool, arguments), cwd=tmp_path, capture_output=True, check=True)
    assert made in project.broker.topics()
