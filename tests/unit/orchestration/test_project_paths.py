"""Choice of the project for the command line and Dagster's processes, and the places of its files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.orchestration.cli import app
from penstock.orchestration.commands.dev import _dagster
from penstock.orchestration.declarations import project_paths
from penstock.orchestration.declarations.applications import Applications, WrongDeclarationError
from penstock.orchestration.declarations.project_paths import ProjectPaths

APPLICATION = '[{}applications.shop]\nfactory = "shop:build"\ninstances = 1\n'


@pytest.fixture
def team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("PENSTOCK_STREAMS", "PENSTOCK_HOME", "PENSTOCK_DATABASE_URL", "DAGSTER_HOME"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path.resolve() / "team"
    (folder / "src" / "deep").mkdir(parents=True)
    (folder / "streams.toml").touch()
    return folder


def test_the_nearest_streams_toml_upwards_is_the_project_and_its_files_are_beside_it(team: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in (team, team / "src" / "deep"):
        monkeypatch.chdir(folder)
        paths = ProjectPaths.find()
        assert (paths.root, paths.streams_toml, paths.home) == (team, team / "streams.toml", team / ".penstock")
        assert paths.database_url == f"sqlite:///{team}/.penstock/control-plane.db"
        assert paths.declared
    (team / "src" / "streams.toml").touch()
    assert ProjectPaths.find().root == team / "src"


def test_a_pyproject_declares_the_same_below_tool_penstock(team: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = team / "src" / "pyproject.toml"
    monkeypatch.chdir(team / "src" / "deep")
    own.write_text("[project]\nname = 'x'\n")
    assert ProjectPaths.find().root == team
    own.write_text("[tool.penstock]\nthis is not TOML")
    assert ProjectPaths.find().root == team
    own.write_text(APPLICATION.format("tool.penstock."))
    (application,) = Applications.of(ProjectPaths.find()).applications
    assert application.id == "shop"
    own.write_text(APPLICATION.format("tool.penstock.") + "instanses = 2\n")
    with pytest.raises(WrongDeclarationError, match=r"pyproject\.toml, line 4: tool\.penstock\.applications\.shop\.instanses: unknown key"):
        Applications.of(ProjectPaths.find())


def test_a_file_of_another_user_above_the_current_folder_is_not_used(team: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: (team / "streams.toml").stat().st_uid + 1)
    monkeypatch.setattr(project_paths, "_ROOT", -1)  # tests may run as root, who owns these files then
    monkeypatch.chdir(team / "src")
    assert not ProjectPaths.find().declared and "of another user" in ProjectPaths.find().sources["streams_toml"]
    monkeypatch.chdir(team)
    assert ProjectPaths.find().declared, "whoever goes there trusts it"


def test_without_a_project_the_current_folder_is_used_and_commands_say_so(
    tmp_path: Path, team: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    paths = ProjectPaths.find()
    assert (paths.root, paths.home, paths.declared) == (tmp_path.resolve(), tmp_path.resolve() / ".penstock", False)
    with pytest.raises(WrongDeclarationError, match="penstock init NAME"):
        Applications.of(paths)
    for name, value in paths.environment.items():
        monkeypatch.setenv(name, value)
    assert not ProjectPaths.find().declared, "not in a child process either"


def test_the_environment_goes_before_the_current_folder(team: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(team)
    other = tmp_path.resolve() / "other.toml"
    monkeypatch.setenv("PENSTOCK_STREAMS", str(other))
    assert (ProjectPaths.find().streams_toml, ProjectPaths.find().home) == (other, other.parent / ".penstock")
    monkeypatch.setenv("PENSTOCK_HOME", "kept")
    assert (ProjectPaths.find().streams_toml, ProjectPaths.find().home) == (other, team / "kept")


def test_processes_that_begin_in_another_folder_find_the_same_project(team: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(team)
    found = ProjectPaths.find()
    monkeypatch.chdir("/")
    for name, value in found.environment.items():
        monkeypatch.setenv(name, value)
    assert ProjectPaths.find() == found


def test_dagsters_home_and_settings_come_to_a_project_that_has_none(team: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(team)
    kept = team / ".penstock"
    arguments, environment = _dagster(ProjectPaths.find())
    assert arguments == ["--workspace", str(kept / "workspace.yaml")] and "penstock.dagster" in (kept / "workspace.yaml").read_text()
    home = kept / "dagster"
    assert environment["DAGSTER_HOME"] == str(home) and "telemetry: {enabled: false}" in (home / "dagster.yaml").read_text()


@pytest.mark.parametrize(
    ("name", "text"), [("workspace.yaml", ""), ("pyproject.toml", "[tool.dg]\n"), ("pyproject.toml", "[tool.dagster]\n")]
)
def test_a_project_that_says_what_dagster_loads_is_left_to_it(name: str, text: str, team: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(team)
    (team / name).write_text(text)
    arguments, environment = _dagster(ProjectPaths.find())
    assert arguments == [] and environment["DAGSTER_HOME"] == str(team / ".penstock" / "dagster")


def test_dagsters_settings_of_the_user_are_used_as_they_are(team: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(team)
    (team / "dagster.yaml").write_text("telemetry: {enabled: true}\n")
    assert _dagster(ProjectPaths.find())[1]["DAGSTER_HOME"] == str(team)
    monkeypatch.setenv("DAGSTER_HOME", str(team / "own"))
    assert _dagster(ProjectPaths.find())[1]["DAGSTER_HOME"] == str(team / "own")
    assert list((team / "own").iterdir()) == [] and (team / "dagster.yaml").read_text() == "telemetry: {enabled: true}\n"


def test_applications_that_name_no_broker_use_the_embedded_one_at_its_last_port(team: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(team)
    (team / "streams.toml").write_text(
        APPLICATION.format("") + '[applications.far]\nfactory = "a:b"\ninstances = 1\nconfig = {"bootstrap.servers" = "far:1"}\n'
    )

    def brokers() -> list[str]:
        return [each.bootstrap_servers for each in Applications.of(ProjectPaths.find()).applications]

    assert brokers() == ["127.0.0.1:9092", "far:1"]
    (team / ".penstock" / "broker").mkdir(parents=True)
    (team / ".penstock" / "broker" / "lock").write_text('{"pid": 1, "port": 9192}')
    assert brokers() == ["127.0.0.1:9192", "far:1"]


def test_where_shows_each_path_and_why(team: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(team / "src")
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", "postgresql://ann:secret@db/penstock")
    done = CliRunner().invoke(app, ["where", "--json"])
    rows = {row["name"]: (row["value"], row["why"]) for row in json.loads(done.output)}
    assert rows["project"][0] == str(team) and rows["streams.toml"] == (str(team / "streams.toml"), f"the nearest above {team / 'src'}")
    assert rows["home"][0] == str(team / ".penstock") and rows["home"][1].startswith("default")
    assert rows["database"] == ("postgresql://ann:…@db/penstock", "PENSTOCK_DATABASE_URL")
    assert rows["dagster home"][0] == str(team / ".penstock" / "dagster")
    assert rows["cache"] == (str(tmp_path / "cache"), "PENSTOCK_CACHE")
    assert rows["broker"][0] == "127.0.0.1:9092" and rows["extra dagster"][0] == "installed"
    assert {path.name for path in team.iterdir()} == {"src", "streams.toml"} and not (tmp_path / "cache").exists(), "nothing is created"
    assert str(team / ".penstock") in CliRunner().invoke(app, ["where"], env={"COLUMNS": "300"}).output
    (team / "streams.toml").rename(team / "pyproject.toml")
    (team / "pyproject.toml").write_text("[tool.penstock]\n")
    (row, *_) = json.loads(CliRunner().invoke(app, ["where", "--json"]).output)
    assert row == {"name": "project", "value": str(team), "why": "its pyproject.toml"}
