"""`penstock init`: the project that it makes, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.orchestration.cli import app
from penstock.orchestration.commands.init import OUTPUTS, PROJECT
from penstock.orchestration.declarations.applications import Applications
from tests.support.installed import users_environment

TEMPLATES = tuple(OUTPUTS)


def init(*arguments: str, status: int = 0) -> str:
    result = CliRunner().invoke(app, ["init", *arguments])
    assert result.exit_code == status, (result.output, result.exception)
    return result.output


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_new_project_passes_its_own_tests_under_its_own_name(template: str, tmp_path: Path) -> None:
    folder = tmp_path / "Smart-Home"
    output = init(str(folder), *([] if template == PROJECT else ["--from-examples", template]))
    texts = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}
    assert texts.keys() > {"Dockerfile", "pyproject.toml", "README.md", "streams.toml", "smart_home/topology.py", "tests/test_topology.py"}
    assert f"{len(texts)} files written to {folder}" in output
    left = [name for name, text in texts.items() if "examples." in text or "examples/" in text or "penstock-project" in text]
    assert left == []
    (application,) = Applications.read(folder / "streams.toml").applications
    assert (application.id, application.factory) == ("Smart-Home", "smart_home.topology:build")
    for command in ("pip install -e '.[dev]'", "pytest", "penstock dev", "python -m smart_home.send", "penstock start"):
        assert command in output and command in texts["README.md"]
    assert f"--topic {OUTPUTS[template]} " in output and f"--topic {OUTPUTS[template]} " in texts["README.md"]
    tests = subprocess.run(
        [sys.executable, "-m", "pytest", "-q"], cwd=folder, env=users_environment(), capture_output=True, text=True, check=False
    )
    assert tests.returncode == 0, tests.stdout + tests.stderr


def test_a_folder_with_files_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    init(str(tmp_path / "shop"))  # an empty one is fine
    (tmp_path / "shop" / "README.md").write_text("mine")
    assert f"{tmp_path / 'shop'} is not empty: it has .dockerignore, .gitignore, Dockerfile and" in init(str(tmp_path / "shop"), status=1)
    assert (tmp_path / "shop" / "README.md").read_text() == "mine"
    (tmp_path / "file").touch()
    assert f"{tmp_path / 'file'} is a file" in init(str(tmp_path / "file"), status=1)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("2nd", "begins with a letter"),
        ("a b", "is no name for a project"),
        ("shop-", "ends with a letter or a digit"),
        ("class", "'class', which is a word of the language Python"),
        ("Json", "'json', which is a module of Python's standard library"),
        ("tests", "'tests', which is the name of a folder of every project"),
        ("Penstock", "'penstock', which is an installed package"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused(name: str, why: str, tmp_path: Path) -> None:
    assert why in init(str(tmp_path / name), status=1)
    assert not (tmp_path / name).exists()


def test_an_unknown_example_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    output = init(str(tmp_path / "shop"), "--from-examples", "order", status=1)
    assert "there is no example 'order'; the examples are fraud, orders. Did you mean 'orders'?" in output
    assert not (tmp_path / "shop").exists()
