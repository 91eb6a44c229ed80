"""A user's project with Penstock from a wheel: Dagster shows the user's definitions and Penstock's side by side."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.dagster.live import LiveDagster
from tests.support import wait_until
from tests.support.installed import build_wheel, copy_of_the_repository, install, users_environment, users_project


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """Return the interpreter of an environment with the wheel."""
    source = copy_of_the_repository(tmp_path / "source")
    (tmp_path / "wheel").mkdir()
    return install(tmp_path / "environment", str(build_wheel(source, tmp_path / "wheel")))


def test_dagster_merges_the_users_assets_and_sensors_with_penstocks(python: Path, tmp_path: Path) -> None:
    """The user's packages are named `assets`, `sensors` and `runtime`, like folders of this repository."""
    project = users_project(tmp_path / "project")
    live = LiveDagster(tmp_path / "dagster", project=project, python=python, module="definitions", environment=users_environment())
    try:
        assert live.assets() >= {"report", "instances"}
        assert live.sensors().keys() >= {"orders", "paused_tasks"}
        # The daemon evaluates both in the code location's process, which imports the user's package and the wheel's.
        wait_until(lambda: live.last_ticks().get("orders") == "SKIPPED", 60, "a tick of the user's sensor")
        wait_until(lambda: "instances_that_should_run" in live.last_ticks(), 60, "a tick of Penstock's sensor")
        assert live.last_ticks()["instances_that_should_run"] != "FAILURE", live.log.read_text()
        wait_until(lambda: live.partitions() == ["shop-1"], 60, "the declared instance")
    finally:
        live.stop()
