"""The wheel, the source distribution and the editable install: one package, `penstock`, beside whatever a user's project has."""

from __future__ import annotations

import re
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.installed import build_sdist, build_wheel, copy_of_the_repository, install, run, users_project

PROGRAM = """
import penstock, runtime, sensors, assets
from penstock import serdes
from penstock.testing import TopologyTestDriver

with TopologyTestDriver(runtime.build(), {"application.id": "shop"}) as driver:
    orders = driver.create_input_topic("orders", serdes.STRING, serdes.STRING)
    counts = driver.create_output_topic("counts", serdes.STRING, serdes.LONG)
    orders.pipe_input("ann", "tea")
    orders.pipe_input("ann", "milk")
    print(counts.read_key_values_to_list())
print(penstock.__file__)
print(*(package.__file__ for package in (runtime, sensors, assets)))
"""
NOT_INSTALLED = """
import importlib.util
print([name for name in ("benchmarks", "examples", "orchestration", "tests") if importlib.util.find_spec(name)])
"""
OLD_NAMES = re.compile(
    r"""(?<![\w.])(?:from|import|-m)\ (?:runtime|orchestration|assets|sensors)\b
    |["'](?:runtime|orchestration|assets|sensors)[.:][a-z_]""",
    re.VERBOSE,
)
USERS_OWN = {"tests/support/installed.py", "tests/unit/repository/test_packaging.py"}
"""They have a user's packages of these names."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_of_the_repository(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(source, tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return users_project(tmp_path / "project")


def contents(wheel: Path) -> dict[str, int]:
    """The size of each file in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {entry.filename: entry.file_size for entry in archive.infolist()}


def test_the_wheel_holds_the_package_penstock_alone(source: Path, wheel: Path) -> None:
    files = contents(wheel)
    folders = {name.split("/")[0] for name in files}
    assert {name.split("-")[0] for name in folders} == {"penstock"} and len(folders) == 2, "penstock, and penstock-….dist-info"
    rooms = {"runtime", "orchestration", "assets", "sensors"}
    modules = {f"penstock/{path.relative_to(source)}" for room in rooms for path in (source / room).rglob("*.py")}
    assert modules <= files.keys()
    locks = {f"penstock/{path.relative_to(source)}" for path in (source / "orchestration" / "embedded" / "locks").iterdir()}
    assert locks | {"penstock/py.typed"} <= files.keys()


def test_the_source_distribution_builds_the_same_wheel(source: Path, wheel: Path, tmp_path: Path) -> None:
    unpacked = build_sdist(source, tmp_path)
    assert not any((unpacked / name).exists() for name in ("examples", "benchmarks", "tests"))
    (tmp_path / "wheel").mkdir()
    assert contents(build_wheel(unpacked, tmp_path / "wheel")).keys() == contents(wheel).keys()


@pytest.mark.parametrize("editable", [False, True])
def test_a_project_with_packages_of_the_same_names_uses_its_own(
    editable: bool, source: Path, wheel: Path, project: Path, tmp_path: Path
) -> None:
    environment = tmp_path.resolve() / "environment"
    python = install(environment, *(["--editable", str(source)] if editable else [str(wheel)]))
    counts, penstock, own = run(python, project, PROGRAM).splitlines()
    assert counts == "[('ann', 1), ('ann', 2)]"
    assert Path(penstock).is_relative_to(source if editable else environment)
    assert own.split() == [str(project.resolve() / name / "__init__.py") for name in ("runtime", "sensors", "assets")]
    assert run(python, project, NOT_INSTALLED) == "[]\n"


def test_nothing_in_the_repository_uses_the_old_top_level_names() -> None:
    """Code, docs, scripts and files to deploy; in strings too: factories, serdes and `python -m`."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout.decode()
    found = []
    for name in filter(None, listed.split("\0")):
        path = ROOT / name
        if path.suffix in {".py", ".md", ".toml", ".yaml", ".yml", ".service", ".sh", ""} and path.is_file() and not path.is_symlink():
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            found += [f"{name}:{number}: {line}" for number, line in enumerate(lines, 1) if OLD_NAMES.search(line)]
    past = ("CHANGELOG.md", *USERS_OWN)  # what is released is not rewritten
    assert [line for line in found if not line.startswith(past)] == []
