"""Penstock as users install it, from the source distribution: the core by pip; all of it in a user's project, and in an empty folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
import venv
from importlib.metadata import distributions as distributions_in
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from penstock.orchestration.embedded.ports import LOOPBACK, free_port
from tests.dagster.live import LiveDagster
from tests.support import wait_until
from tests.support.installed import (
    build_sdist,
    build_wheel,
    copy_of_the_repository,
    distributions,
    install,
    run,
    users_environment,
    users_project,
)

TOPOLOGY = """
import runtime
from penstock import serdes
from penstock.testing import TopologyTestDriver

with TopologyTestDriver(runtime.build(), {"application.id": "shop"}) as driver:
    driver.create_input_topic("orders", serdes.STRING, serdes.STRING).pipe_input("ann", "tea")
    print(driver.create_output_topic("counts", serdes.STRING, serdes.LONG).read_key_values_to_list())
"""


DG_PROJECT = {
    "pyproject.toml": """[tool.dg]
directory_type = "project"

[tool.dg.project]
root_module = "shopping"
""",
    "shopping/__init__.py": "",
    "shopping/definitions.py": """
from pathlib import Path

import dagster as dg


@dg.definitions
def defs() -> dg.Definitions:
    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
""",
    "shopping/defs/own.py": """
import dagster as dg


@dg.asset
def report() -> int:
    return 7
""",
}
"""A project as `create-dagster project` lays it out."""
DG = """
import sys
from dagster_dg_cli.cli import cli

for command in sys.argv[1:]:
    if status := cli.main(command.split(), standalone_mode=False):
        sys.exit(status)
"""
"""Runs commands of `dg` one after the other: starting it takes seconds."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel that was built from the source distribution."""
    folder = tmp_path_factory.mktemp("built")
    (folder / "wheel").mkdir()
    return build_wheel(build_sdist(copy_of_the_repository(folder / "source"), folder), folder / "wheel")


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with all extras."""
    return install(tmp_path_factory.mktemp("all").resolve(), str(wheel))


def test_pip_installs_a_core_that_runs_a_topology(wheel: Path, tmp_path: Path) -> None:
    """In the versions of this environment, which pip has in its cache."""
    core = distributions()
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("".join(f"{name}=={each.version}\n" for name, each in core.items()))
    folder = tmp_path / "environment"
    venv.create(folder, with_pip=False, symlinks=True)
    command = [sys.executable, "-m", "pip", "--python", str(folder), "install", "--quiet", "--constraint", str(constraints), str(wheel)]
    done = subprocess.run(command, env=users_environment(), capture_output=True, text=True, timeout=540, check=False)
    assert done.returncode == 0, done.stderr
    (packages,) = (folder / "lib").glob("python*/site-packages")
    assert {canonicalize_name(each.name) for each in distributions_in(path=[str(packages)])} == core.keys() | {"penstock"}
    project = users_project(tmp_path / "project")
    assert run(folder / "bin" / "python", project, TOPOLOGY) == "[('ann', 1)]\n"


def test_dev_comes_up_in_an_empty_folder(python: Path, tmp_path: Path) -> None:
    empty, log = tmp_path.resolve() / "empty", tmp_path / "log"
    empty.mkdir()
    (package,) = python.parents[1].glob("lib/python*/site-packages/penstock")
    before = files(package)
    port, kafka = free_port(), free_port()
    environment = users_environment(DAGSTER_HOME="")
    command = [str(python.with_name("penstock")), "dev", "--port", str(port), "--kafka-port", str(kafka)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=empty, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    try:
        wait_until(lambda: process.poll() is not None or answers(port), 180, "an answer of Dagster's webserver")
        assert process.poll() is None, log.read_text()
        where = subprocess.run(
            [python.with_name("penstock"), "where", "--json"], cwd=empty, env=environment, capture_output=True, text=True, check=True
        )
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
        process.wait(60)
        subprocess.run([python.with_name("penstock"), "broker", "stop"], cwd=empty, env=environment, capture_output=True, check=True)
    rows = {row["name"]: row["value"] for row in json.loads(where.stdout)}
    assert rows["broker"] == f"{LOOPBACK}:{kafka}" and rows["dagster home"] == str(empty / ".penstock" / "dagster")
    assert "penstock init" in log.read_text() and "temporary" not in log.read_text()
    assert [path.name for path in empty.iterdir()] == [".penstock"]
    assert files(package) == before, "nothing is written beside the installed package"


def answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://{LOOPBACK}:{port}/server_info", timeout=10) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def files(folder: Path) -> set[Path]:
    """All files but what Python compiles."""
    return {path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts}


def test_dagster_merges_the_users_assets_and_sensors_with_penstocks(python: Path, tmp_path: Path) -> None:
    """The user's packages are named `assets`, `sensors` and `runtime`, like folders of this repository."""
    project = users_project(tmp_path / "project")
    live = LiveDagster(tmp_path / "dagster", project=project, python=python, module="definitions", environment=users_environment())
    try:
        assert live.assets() >= {"report", "shop/instances"}
        assert live.sensors().keys() >= {"orders", "paused_tasks"}
        # The daemon evaluates both in the code location's process, which imports the user's package and the wheel's.
        wait_until(lambda: live.last_ticks().get("orders") == "SKIPPED", 60, "a tick of the user's sensor")
        wait_until(lambda: live.partitions("shop") == ["shop-1"], 60, "the declared instance, which a tick of Penstock's sensor adds")
    finally:
        live.stop()


@pytest.mark.nightly
def test_a_project_of_dg_declares_the_applications_by_a_component(python: Path, tmp_path: Path) -> None:
    for name, text in DG_PROJECT.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    def dg(*commands: str) -> tuple[int, str]:
        environment = users_environment(DAGSTER_DISABLE_TELEMETRY="1", COLUMNS="200")
        program = [str(python), "-c", DG, *commands]
        done = subprocess.run(program, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    component, declared = "penstock.components.StreamsComponent", tmp_path / "shopping" / "defs" / "streams" / "defs.yaml"
    status, said = dg("list components", f"scaffold defs {component} streams")
    assert (status, component in said) == (0, True), said
    assert (tmp_path / "streams.toml").read_text().startswith("# What runs."), "there was none"
    scaffolded = declared.read_text()
    declared.write_text(scaffolded.replace("streams_toml: streams.toml", "streams_toml: [1]"))
    status, said = dg("check yaml")
    assert (status, "streams_toml" in said) == (1, True), said
    declared.write_text(scaffolded)
    (tmp_path / "streams.toml").write_text('[applications.shop]\nfactory = "m:f"\ninstances = 1\n')
    status, said = dg("check yaml", "check defs")
    assert (status, "All definitions loaded successfully" in said) == (0, True), said

    module = "shopping.definitions"
    live = LiveDagster(tmp_path / "dagster", project=tmp_path, python=python, module=module, environment=users_environment())
    try:
        assert live.assets() >= {"report", "shop/instances"}
        wait_until(lambda: live.partitions("shop") == ["shop-1"], 60, "the declared instance")
    finally:
        live.stop()
