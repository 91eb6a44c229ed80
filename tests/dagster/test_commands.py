"""`penstock …` on a real instance: the command line and its output."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest
from typer.testing import CliRunner, Result

from penstock.orchestration.alerts import incidents
from penstock.orchestration.cli import app
from penstock.orchestration.database import audit
from penstock.orchestration.declarations.applications import Applications
from penstock.orchestration.definitions import definitions
from penstock.orchestration.embedded.dagster_server import end_session
from penstock.orchestration.embedded.ports import free_port
from penstock.runtime.model.events import EventKind
from penstock.sensors.event_cursor import Cursor
from tests.dagster.telling import Project
from tests.support import PATIENCE, ROOT, wait_until
from tests.support.seeds import seed_of_counts


def penstock(*arguments: str, status: int = 0) -> str:
    """Run a command; return its output."""
    result: Result = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    assert result.exit_code == status, (result.output, result.exception)
    return result.output


def test_start_look_skip_and_stop(project: Project) -> None:
    application, broker = project.application, project.broker
    for end, partitions in (("in", 2), ("out", 1)):
        broker.create_topic(f"{application.id}-{end}", partitions, exact=True)
    name, other = application.instances
    assert "never started" in penstock("status")
    assert f"no instance or application 'nobody' is known; known are {name}, {other}" in penstock("status", "nobody", status=1)
    assert "the kinds are INSTANCE_STATE" in penstock("events", "--kind", "nonsense", status=2).replace("\n", " ").replace("│ ", "")
    assert f"{name} is RUNNING (started" in penstock("start", name)
    assert f"{name} is RUNNING (ran already" in penstock("start", name)
    assert "RUNNING" in penstock("status", name)
    assert f'(["{application.id}-in"]):::topic' in penstock("topology", application.id, "--no-rates")
    assert "tasks, 0 records/s" in penstock("topology", application.id, "--format", "svg")
    assert "Sub-topology: 0" in penstock(
        "topology", application.id, "--format", "text", "--bootstrap-servers", application.bootstrap_servers
    )
    assert f"task 0_0 is not paused; `penstock tasks {application.id}`" in penstock("skip", application.id, "0_0", "--yes", status=1)
    assert f"task 0_1 paused by {name}" in penstock("pause", application.id, "0_1")
    assert f"task 0_1 resumed by {name}" in penstock("resume", application.id, "0_1")
    assert "task 0_1 ran already" in penstock("run-book", "resume", application.id, "0_1")
    assert "task paused" in penstock("audit", application.id)

    broker.produce(f"{application.id}-in", [(b"key", b"{}"), (b"key", b'{"truncated'), (b"key", b"{}")], partition=0)
    where = f"{application.id}-in-0@1"
    wait_until(lambda: where in penstock("tasks", application.id), 60, "the paused task")
    assert f"no alert yet (Dagster's sensors open them): task 0_0 on {name} is paused at {where}" in penstock("alerts")
    skipped = penstock("skip", application.id, "0_0", "--yes", "--reason", "a test")
    for step in ("check", "keep", "shift", "resume", "verify", "close"):
        assert f"{step}: done" in skipped
    assert "step verify done" in penstock("audit", application.id)
    assert where in penstock("run-books", application.id)
    wait_until(lambda: "TASK_PAUSED" in penstock("events", application.id, "--kind", "task_paused"), 30, "the event")
    assert "had been skipped before" in penstock("skip", application.id, "0_0", "--record", where, "--yes")
    assert "not topic-partition@offset" in penstock("skip", application.id, "0_0", "--record", "nonsense", "--yes", status=2)

    assert f"{name} has closed" in penstock("stop", name)
    assert f"{name} has not been running" in penstock("stop", name)
    assert f"{other} has not been running" in penstock("stop", other)


def test_an_application_starts_with_a_seed(project: Project, tmp_path: Path) -> None:
    """The job installs the seed and starts nothing; the command finds it installed, and the count continues from a hundred."""
    application, broker = project.application, project.broker
    for end, partitions in (("in", 2), ("out", 1)):
        broker.create_topic(f"{application.id}-{end}", partitions, exact=True)
    broker.produce(f"{application.id}-in", [(b"key", b"{}")] * 3, partition=0)
    seed = seed_of_counts(tmp_path, f"{application.id}-in", {"key": 100}, next_offset=3)
    (name, other), job = application.instances, definitions(project.operations.applications).resolve_job_def("seed_application")
    config = dg.RunConfig(ops={"install_seed": {"config": {"instance": name, "seed": str(seed)}}})
    assert job.execute_in_process(run_config=config, instance=dg.DagsterInstance.ephemeral()).success
    started = penstock("start", name, "--seed", str(seed))
    assert "seed s1 was installed before" in started
    assert f"{name} is RUNNING (started" in started
    assert "is installed: 2 tasks, 1 changelog records written" in penstock("audit", application.id)
    broker.produce(f"{application.id}-in", [(b"key", b"{}")], partition=0)
    wait_until(lambda: [record.value for record in broker.consume(f"{application.id}-out")] == [(101).to_bytes(8, "big")], 30, "the count")
    assert f"instance {name} runs" in penstock("start", name, "--seed", str(seed), status=1).replace("\n", " ")
    assert "there is no snapshot at" in penstock("start", other, "--seed", str(tmp_path / "nowhere"), status=1).replace("\n", " ")
    assert "--reset-offsets needs --seed" in penstock("start", name, "--reset-offsets", status=2).replace("\n", " ")


def test_stop_works_without_a_broker_and_without_a_declaration(project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for end in ("in", "out"):
        project.broker.create_topic(f"{project.application.id}-{end}", exact=True)
    process = project.operations.start(project.application.instances[0], actor="ann").process
    monkeypatch.setenv("PENSTOCK_STREAMS", str(tmp_path / "nowhere.toml"))
    assert "cannot be read" in penstock("stop", "--kill", "--timeout", "20")
    assert not process.alive


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("start", "nobody"), "no instance 'nobody' is declared"),
        (("tasks", "nothing"), "no application 'nothing' is declared"),
        (("status", "nobody"), "no instance or application 'nobody' is known"),
        (("alerts", "history", "7"), "there is no alert 7"),
        (("alerts", "comment", "7", "text"), "there is no alert 7"),
        (("run-book", "approve", "7"), "there is no run 7"),
        (("run-book", "restart-instance", "nobody"), "no instance 'nobody' is declared"),
        (("alerts", "show", "7"), "there is no alert 7"),
        (("alerts", "ack", "7"), "there is no alert 7"),
    ],
)
def test_what_is_not_there_is_named(project: Project, arguments: tuple[str, ...], says: str) -> None:
    assert says in penstock(*arguments, status=1)


def test_a_task_id_that_is_none_is_explained(project: Project) -> None:
    assert "expected <subtopology>_<partition>" in penstock("resume", project.application.id, "three", status=2)


def test_a_broken_declaration_ends_with_its_explanation(project: Project) -> None:
    project.operations.paths.streams_toml.write_text("[applications.a]\nfactory = 5\n")
    assert "line 2: applications.a.factory" in penstock("status", status=1)


def test_looking_needs_kafka_alone(project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without `streams.toml`, with an unreachable database, without Dagster: on any machine that reaches the broker."""
    application, broker = project.application, project.broker
    for end, partitions in (("in", 2), ("out", 1)):
        broker.create_topic(f"{application.id}-{end}", partitions, exact=True)
    name = application.instances[0]
    project.operations.start(name, actor="ann")
    broker.produce(f"{application.id}-in", [(b"key", b'{"truncated')], partition=0)
    where = f"{application.id}-in-0@0"
    monkeypatch.setenv("PENSTOCK_STREAMS", str(tmp_path / "nowhere.toml"))
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", "postgresql://penstock:secret@127.0.0.1:1/penstock")
    here = ("--application", application.id, "--bootstrap-servers", broker.bootstrap_servers)

    def paused() -> list[dict[str, object]]:
        tasks: list[dict[str, object]] = json.loads(penstock("tasks", *here, "--json"))
        return [task for task in tasks if task["state"] == "PAUSED"]

    (task,) = wait_until(paused, 60, "the paused task")
    assert (task["task"], task["instance"], task["kind"], task["paused_at"]) == ("0_0", name, "ACTIVE", where)
    (status,) = json.loads(penstock("status", *here, "--json"))
    assert (status["instance"], status["wanted"], status["state"], status["tasks"], status["paused"]) == (name, True, "RUNNING", 2, 1)
    (event,) = json.loads(penstock("events", *here, "--json", "--kind", "task_paused"))
    assert (event["task"], event["payload"]["offset"]) == ("0_0", 0)
    assert [each["kind"] for each in json.loads(penstock("events", *here, "--json", "--limit", "1", "--task", "0_0"))] == ["TASK_PAUSED"]
    described = penstock("describe", *here, "--topology")
    assert "Sub-topology: 0" in described
    assert f"is paused at {where}" in described
    (wrong,) = json.loads(CliRunner().invoke(app, ["alerts", *here, "--json"]).stdout)
    assert (wrong["kind"], wrong["subject"], wrong["source"]) == ("TASK_PAUSED", where, "kafka")
    assert wrong["since_ms"] == event["at_ms"]
    assert "numbers, acknowledgements, comments and history are in the database" in penstock("alerts", *here)
    assert f"task 0_1 paused by {name}" in penstock("pause", application.id, "0_1", "-b", broker.bootstrap_servers)
    assert f"task 0_1 resumed by {name}" in penstock("resume", application.id, "0_1", "-b", broker.bootstrap_servers)
    assert "--bootstrap-servers needs to know which application" in penstock("tasks", "-b", broker.bootstrap_servers, status=2)
    assert "no broker answers at 127.0.0.1:1" in penstock("tasks", "-a", application.id, "-b", "127.0.0.1:1", status=1)
    assert "never been" not in penstock("tasks", "-a", "unknown", "-b", broker.bootstrap_servers)

    monkeypatch.setenv("PENSTOCK_STREAMS", str(project.operations.paths.streams_toml))
    assert "done, but not recorded in the audit trail" in penstock("pause", application.id, "0_1")
    shown = penstock("alerts")
    assert "127.0.0.1:1/penstock" in shown and "secret" not in shown
    assert f"is paused at {where}" in shown
    wait_until(lambda: f"task 0_1 on {name} was paused by hand" in penstock("alerts"), 15, "the other task in its instance's next report")


def test_watching_shows_it_again_until_ctrl_c(project: Project) -> None:
    project.create_events_topic()
    project.publish(project.event(EventKind.TASK_RESUMED, {"offsets": {}}, "0_0"))
    command = [sys.executable, "-m", "penstock.orchestration", "events", "--json", "--watch", "0.2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as watching:
        assert watching.stdout is not None
        first, second = watching.stdout.readline(), watching.stdout.readline()
        assert first == second
        assert [event["kind"] for event in json.loads(first)] == ["TASK_RESUMED"]
        watching.send_signal(signal.SIGINT)
        assert watching.wait(30) == 0


def test_an_alert_is_shown_with_the_bad_record_and_what_to_type_acknowledged_commented_and_resolved(project: Project) -> None:
    project.create_events_topic()
    payload: dict[str, object] = {"topic": "in", "partition": 0, "offset": 5, "error_type": "ValueError", "error": "not JSON"}
    payload |= {"key_base64": "a2V5", "value_base64": base64.b64encode(b'{"truncated\xff').decode(), "reason": "deserialization"}
    project.publish(project.event(EventKind.TASK_PAUSED, payload, "0_0"))
    project.feed()
    with project.control_plane.writing() as session:
        events, _ = Cursor().read(session, project.application.id, incidents.TASK_KINDS)
        incidents.of_tasks(session, project.application, events, audit.now())
    shown = penstock("alerts", "show", "1")
    assert 'value: {"truncated\\xff' in shown
    assert "00000000  7b 22 74 72 75 6e 63 61 74 65 64 ff" in shown
    assert "error: not JSON" in shown
    assert f"penstock run-book skip-record {project.application.id} 0_0 --record in-0@5" in shown
    assert "alert 1 is ACKNOWLEDGED" in penstock("alerts", "ack", "1", "--comment", "I look")
    penstock("alerts", "comment", "1", "the producer was wrong")
    assert "alert 1 is RESOLVED" in penstock("alerts", "resolve", "1", "--reason", "mended")
    history = json.loads(penstock("alerts", "history", "1", "--json"))
    actions = ["alert opened", "alert acknowledged", "alert commented", "alert commented", "alert resolved"]
    assert [entry["action"] for entry in history] == actions
    assert history[3]["detail"]["comment"] == "the producer was wrong"
    assert json.loads(CliRunner().invoke(app, ["alerts", "--json"]).stdout) == []
    (listed,) = json.loads(CliRunner().invoke(app, ["alerts", "list", "--all", "--json"]).stdout)
    assert (listed["subject"], listed["count"], listed["resolution"]) == ("in-0@5", 1, "mended")


def test_a_proposed_run_is_approved_on_the_command_line_and_a_dry_run_changes_nothing(project: Project) -> None:
    path = project.operations.paths.streams_toml
    path.write_text(path.read_text() + 'start = "after-approval"\n')
    (application,) = Applications.read(path).applications
    for end, partitions in (("in", 2), ("out", 1)):
        project.broker.create_topic(f"{application.id}-{end}", partitions, exact=True)
    project.operations.start(application.instances[0], actor="ann")
    project.broker.produce(f"{application.id}-in", [(b"key", b'{"truncated'), (b"key", b"{}")], partition=0)

    def proposed() -> bool:
        project.feed()
        with project.control_plane.writing() as session:
            events, _ = Cursor().read(session, application.id, incidents.TASK_KINDS)
            assert incidents.of_tasks(session, application, events, audit.now()) == []
        return "PROPOSED" in penstock("run-books")

    wait_until(proposed, 60, "the proposal")
    assert "penstock run-book approve 1" in penstock("alerts", "show", "1")
    reported = penstock("run-book", "skip-record", application.id, "0_0", "--dry-run")
    assert "shift: the committed offset moves" in reported and "nothing was done" in reported
    assert "run-book DONE" in penstock("run-book", "approve", "1")
    assert json.loads(CliRunner().invoke(app, ["alerts", "--json"]).stdout) == []
    assert "it is DONE" in penstock("run-book", "reject", "1", status=1)


def test_dev_in_the_background_of_a_script_ends_at_sigterm(tmp_path: Path) -> None:
    """A shell starts it with SIGINT ignored, which Dagster takes over for SIGTERM too, and passes on to its processes."""
    command = [sys.executable, "-m", "penstock.orchestration", "dev", "--no-broker", "--port", str(free_port())]
    environment = {**os.environ, "PENSTOCK_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)}
    former = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with (tmp_path / "dev.log").open("wb") as log:
            dev = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log, start_new_session=True)
    finally:
        signal.signal(signal.SIGINT, former)
    try:
        wait_until(lambda: "Launching Dagster services" in (tmp_path / "dev.log").read_text(), 120, "Dagster, in the place of the command")
        assert "superseded" not in (tmp_path / "dev.log").read_text(), "it says so before it launches them"
        dev.terminate()
        dev.wait(60 * PATIENCE)
    finally:
        end_session(dev.pid, 0.0)
