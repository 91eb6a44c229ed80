"""`scripts/build-env` on machines whose Python does not do: what is missing is named before anything is built."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT

SCRIPT = ROOT / "scripts" / "build-env"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project's root with the script in it, and nothing else."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "build-env").write_bytes(SCRIPT.read_bytes())
    return tmp_path


def interpreter(project: Path, before: str) -> Path:
    """An executable that is this Python, with some code run first."""
    path = project / "python"
    asked_for_version = f'[ "$1" = -V ] && exec "{sys.executable}" -V'
    path.write_text(f'#!/bin/sh\n{asked_for_version}\nshift\ncode=$1\nshift\nexec "{sys.executable}" -c "{before}\n$code" "$@"\n')
    path.chmod(0o755)
    return path


def build(project: Path, python: str) -> subprocess.CompletedProcess[str]:
    line = ["sh", str(project / "scripts" / "build-env")]
    return subprocess.run(line, env={**os.environ, "PYTHON": python}, capture_output=True, text=True, timeout=60, check=False)


def test_the_error_for_a_python_without_ensurepip_names_the_package(project: Path) -> None:
    python = interpreter(project, "import sys; sys.modules['ensurepip'] = None")
    done = build(project, str(python))
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert done.returncode == 1
    assert f"apt-get install python{version}-venv" in done.stderr
    assert not (project / ".venv").exists()


@pytest.mark.parametrize("version", ["(3, 10)", "(3, 14)"])
def test_rule_31_a_python_that_pyspark_does_not_know_is_refused(project: Path, version: str) -> None:
    done = build(project, str(interpreter(project, f"import sys; sys.version_info = {version}")))
    assert done.returncode == 1
    assert "Python 3.11, 3.12 or 3.13 is needed" in done.stderr


def test_the_error_on_a_machine_without_python_says_what_is_needed(project: Path) -> None:
    done = build(project, "no-such-python")
    assert done.returncode == 1
    assert "Python 3.11, 3.12 or 3.13 is needed" in done.stderr
    assert "found: none" in done.stderr
