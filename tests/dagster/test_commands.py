"""`penstock …` on a real instance: what people type, and what they read."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from orchestration.cli import app
from tests.dagster.telling import Project
from tests.support import wait_until


def penstock(*arguments: str, status: int = 0) -> str:
    """Runs a command; gives what it printed."""
    result: Result = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    assert result.exit_code == status, (result.output, result.exception)
    return result.output


def test_start_look_skip_and_stop(project: Project) -> None:
    application, broker = project.application, project.broker
    for end, partitions in (("in", 2), ("out", 1)):
        broker.create_topic(f"{application.id}-{end}", partitions, exact=True)
    name, other = application.instances
    assert "never started" in penstock("status")
    assert f"{name} is RUNNING (started" in penstock("start", name)
    assert f"{name} is RUNNING (ran already" in penstock("start", name)
    assert "RUNNING" in penstock("status", name)
    assert f"task 0_0 is not paused; `penstock tasks {application.id}`" in penstock("skip", application.id, "0_0", "--yes", status=1)

    broker.produce(f"{application.id}-in", [(b"key", b"{}"), (b"key", b'{"truncated'), (b"key", b"{}")], partition=0)
    where = f"{application.id}-in-0@1"
    wait_until(lambda: where in penstock("tasks", application.id), 60, "the paused task")
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
        (("alerts", "show", "7"), "there is no alert 7"),
        (("alerts", "ack", "7"), "there is no alert 7"),
    ],
)
def test_what_is_not_there_is_named(project: Project, arguments: tuple[str, ...], says: str) -> None:
    assert says in penstock(*arguments, status=1)


def test_a_task_id_that_is_none_is_explained(project: Project) -> None:
    assert "expected <subtopology>_<partition>" in penstock("resume", project.application.id, "three", status=2)


def test_a_broken_declaration_ends_with_its_explanation(project: Project) -> None:
    project.operations.places.streams_toml.write_text("[applications.a]\nfactory = 5\n")
    assert "line 2: applications.a.factory" in penstock("status", status=1)
