"""`penstock snapshot` and the schedule of `take_snapshot`, where no broker is needed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import dagster as dg
import pytest
from typer.testing import CliRunner, Result

from penstock.orchestration.cli import app
from penstock.orchestration.dagster.jobs import APPLICATION, snapshot_schedules, take_snapshot_job, tick
from penstock.orchestration.database import ControlPlane
from penstock.orchestration.declarations.applications import Applications
from penstock.orchestration.declarations.project_paths import ProjectPaths
from penstock.orchestration.instances.operations import Operations
from penstock.orchestration.projection.writer import instance_row
from penstock.orchestration.snapshots.taking import keep_newest
from penstock.runtime.snapshots.manifest import SNAPSHOT
from penstock.runtime.snapshots.places import LocalPlace
from tests.unit.runtime.snapshots.test_snapshots import complete, write

DECLARED = """
[applications.app]
factory = "m:f"
instances = ["one"]
[applications.app.config]
"bootstrap.servers" = "127.0.0.1:1"
[applications.app.snapshots]
every-minutes = 15
"""


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProjectPaths:
    (tmp_path / "streams.toml").write_text(DECLARED)
    monkeypatch.setenv("PENSTOCK_STREAMS", str(tmp_path / "streams.toml"))
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PENSTOCK_DATABASE_URL", raising=False)
    monkeypatch.setattr("penstock.orchestration.kafka.task_commands._SECONDS", 0.3)  # what a broker that is away is waited for
    return ProjectPaths.find()


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["snapshot", *arguments])


@pytest.mark.parametrize(
    ("command", "does", "reported"), [("take", "take_snapshot", "no new snapshot"), ("export", "export_snapshot", "continues it")]
)
def test_ctrl_c_says_what_stays(paths: ProjectPaths, monkeypatch: pytest.MonkeyPatch, command: str, does: str, reported: str) -> None:
    def stopped(*arguments: object, **named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"penstock.orchestration.commands.snapshot.{does}", stopped)
    result = run(command, "app")
    assert result.exit_code == 130
    assert reported in result.output.replace("\n", " ")


def test_snapshots_are_listed_shown_and_deleted(paths: ProjectPaths, tmp_path: Path) -> None:
    assert f"at {paths.snapshots('app')}. Take one: penstock snapshot take app" in run("list", "app").output.replace("\n", " ")
    root = paths.snapshots("app")
    for name in ("s1", "s2"):
        write(tmp_path / "share", name)
        complete(root, tmp_path / "share", name)
    (root / "half").mkdir()
    listed = run("list", "app").output
    assert "s1" in listed and listed.index("s2") < listed.index("s1") and "half" not in listed
    newest, oldest = json.loads(run("list", "app", "--json").output)
    assert (newest["snapshot"], oldest["snapshot"], newest["tasks"]) == ("s2", "s1", ["0_0", "0_1"])
    shown = run("show", "app")
    assert shown.exit_code == 0 and "flights, windows, memory" in shown.output and "app-flights-changelog-1" in shown.output
    assert json.loads(run("show", "app", "s1", "--json").output)["inputs"][0] == {"topic": "in", "partition": 0, "next_offset": 5}
    missing = run("show", "app", "half")
    assert missing.exit_code == 1 and "is not complete" in missing.output and "complete are s1, s2" in missing.output
    gone = run("delete", "app", "s1")
    assert gone.exit_code == 0 and not (root / "s1").exists() and not (tmp_path / "share" / "s1").exists(), gone.output
    assert run("delete", "app", "s1").exit_code == 1


def test_a_damaged_manifest_does_not_hinder_others(paths: ProjectPaths, tmp_path: Path) -> None:
    root = paths.snapshots("app")
    for name in ("s1", "s2", "s3"):
        write(tmp_path / "share", name)
        complete(root, tmp_path / "share", name)
    (root / "s2" / SNAPSHOT).write_text("{")
    listed = run("list", "app")
    assert listed.exit_code == 1 and "s1" in listed.stdout and "s3" in listed.stdout
    assert f"{root / 's2' / SNAPSHOT} cannot be read" in listed.output.replace("\n", "")
    keep_newest(LocalPlace(root), 2)
    assert sorted(os.listdir(root)) == ["s2", "s3"]
    assert run("delete", "app", "s2", "s1").exit_code == 1 and (root / "s2").exists(), "all of them, or none"
    assert run("delete", "app", "s2").exit_code == 0 and not (root / "s2").exists()
    (root / "s3" / SNAPSHOT).write_text("{")
    assert run("delete", "app", "s3", "--at", str(root.parent)).exit_code == 0 and not (root / "s3").exists()


def test_a_place_elsewhere_is_looked_at_with_the_same_commands(paths: ProjectPaths, tmp_path: Path) -> None:
    write(tmp_path / "share", "s1")
    complete(tmp_path / "copies" / "app", tmp_path / "share", "s1")
    for where in (str(tmp_path / "copies"), f"file://{tmp_path}/copies"):
        assert json.loads(run("list", "app", "--at", where, "--json").output)[0]["snapshot"] == "s1"
    assert run("delete", "app", "s1", "--at", f"file://{tmp_path}/copies").exit_code == 0
    assert not (tmp_path / "copies" / "app" / "s1").exists() and (tmp_path / "share" / "s1").exists()
    assert "Copy one there: penstock snapshot export" in run("list", "app", "--at", str(tmp_path / "copies")).output.replace("\n", " ")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("export", "app"), "where to? Name a place (--to s3://bucket/folder)"),
        (("export", "app", "--to", "folder"), "'folder' is neither a URI"),
        (("export", "app", "--to", "/tmp/x"), "there is no snapshot at"),
        (("list", "app", "--at", "nope://x/y"), "Known are file:///folder"),
        (("list", "app", "--at", "s3://${NOT_SET}"), "NOT_SET} is not set"),
        (("list", "other"), "no application 'other' is declared"),
    ],
)
def test_what_cannot_be_is_said_in_a_line(paths: ProjectPaths, arguments: tuple[str, ...], why: str) -> None:
    found = run(*arguments)
    assert found.exit_code == 1 and why in found.output.replace("\n", " ")


def test_the_help_teaches() -> None:
    for command in ("take", "list", "show", "export", "delete"):
        assert run(command, "--help").exit_code == 0
    assert "no common cut" in " ".join(run("--help").output.split())


def test_a_schedule_takes_snapshots_while_an_instance_runs_and_the_last_one_is_done(paths: ProjectPaths) -> None:
    operations = Operations(paths, Applications.read(paths.streams_toml), ControlPlane(paths.database_url))
    [schedule] = snapshot_schedules(operations.applications)
    assert (schedule.name, schedule.cron_schedule) == ("snapshots_of_app", "*/15 * * * *")
    [application] = operations.applications.applications
    with dg.DagsterInstance.ephemeral() as dagster:
        skipped = tick(dagster, operations, application)
        assert isinstance(skipped, dg.SkipReason) and "no instance of app runs" in str(skipped.skip_message)
        with operations.control_plane.writing() as session:
            instance_row(session, "app", "one").state = "RUNNING"
        request = tick(dagster, operations, application)
        assert isinstance(request, dg.RunRequest) and request.tags == {APPLICATION: "app"}
        assert request.run_config["ops"]["take"]["config"]["application"] == "app"
        dagster.create_run_for_job(take_snapshot_job, run_config=request.run_config, tags=request.tags, status=dg.DagsterRunStatus.STARTED)
        busy = tick(dagster, operations, application)
        assert isinstance(busy, dg.SkipReason) and "still being taken" in str(busy.skip_message)
    operations.control_plane.close()


def test_nothing_is_scheduled_where_nothing_is_declared(paths: ProjectPaths) -> None:
    two = DECLARED
    for number, application in enumerate(("a-b", "a.b")):
        two += DECLARED.replace("applications.app", f'applications."{application}"').replace('"one"', f'"i{number}"')
    names = [each.name for each in snapshot_schedules(Applications.parse(two, paths.streams_toml))]
    assert len(set(names)) == 3 and names[0] == "snapshots_of_app", "ids that differ in punctuation alone have schedules of their own"
    assert os.environ["PENSTOCK_STREAMS"] and snapshot_schedules(Applications.parse(DECLARED.replace("15", "0"), paths.streams_toml)) == []
