"""Which project the command line and Dagster's processes work on."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.orchestration.commands.dev import _dagster
from penstock.orchestration.declarations.project_paths import ProjectPaths
from tests.support import ROOT


@pytest.fixture
def team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("PENSTOCK_STREAMS", "PENSTOCK_HOME", "PENSTOCK_DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path.resolve() / "team"
    folder.mkdir()
    (folder / "streams.toml").touch()
    return folder


def test_the_current_folders_streams_toml_is_the_project_and_what_is_kept_is_beside_it(team: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(team)
    paths = ProjectPaths.find()
    assert (paths.root, paths.streams_toml, paths.home) == (team, team / "streams.toml", team / ".penstock")
    assert paths.database_url == f"sqlite:///{team}/.penstock/control-plane.db"


def test_a_folder_without_one_and_folders_above_it_are_not_the_project(team: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (team / "below").mkdir()
    monkeypatch.chdir(team / "below")
    assert (ProjectPaths.find().root, ProjectPaths.find().home) == (ROOT, ROOT / ".penstock")


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


def test_dagsters_own_files_come_to_a_project_that_has_none(team: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(team)
    kept = team / ".dagster"
    arguments, environment = _dagster(ProjectPaths.find())
    assert arguments == ["--workspace", str(kept / "workspace.yaml")]
    assert environment["DAGSTER_HOME"] == str(kept) and "telemetry: {enabled: false}" in (kept / "dagster.yaml").read_text()

    (team / "workspace.yaml").touch()
    arguments, environment = _dagster(ProjectPaths.find())
    assert arguments == [] and "DAGSTER_HOME" not in environment
