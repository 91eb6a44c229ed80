"""The command `penstock`, from outside."""

from __future__ import annotations

import importlib.metadata
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import penstock
from penstock.orchestration.cli import app
from tests.support import ROOT

SLOW = """
import signal, sys, time
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "penstock.orchestration.cli":
            print("loading", flush=True)
            time.sleep(30)
sys.meta_path.insert(0, Slow())
from penstock.orchestration.__main__ import main
main()
"""


def test_ctrl_c_while_the_command_loads_ends_it_without_a_traceback() -> None:
    command = [sys.executable, "-c", SLOW]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "loading\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=10)
    assert process.returncode == -signal.SIGINT
    assert errors == ""


ONE_COMMAND = """
import sys
from typer.testing import CliRunner
from penstock.orchestration.cli import app
from penstock.orchestration.database import ControlPlane
assert CliRunner().invoke(app, ["status", "--help"]).exit_code == 0
own = [name.removeprefix("penstock.orchestration.commands.") for name in sys.modules if name.startswith("penstock.orchestration.commands.")]
print(*sorted(own))
url = f"sqlite:///{sys.argv[1]}/control-plane.db"
with ControlPlane(url).reading():
    pass
print(*sorted({"alembic", "dagster"} & sys.modules.keys()))
"""


def test_a_command_imports_its_own_module_and_what_migrates_tables_only_if_there_are_some_to_migrate(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ONE_COMMAND, str(tmp_path)]
    said = [subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout for _ in range(2)]
    assert [each.splitlines() for each in said] == [["command_config common inspection", last] for last in ("alembic", "")]


def test_the_version_is_the_installed_packages() -> None:
    installed = importlib.metadata.version("penstock")
    assert penstock.__version__ == installed and "__version__" in dir(penstock)
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"penstock {installed}\n")


def test_a_name_that_is_copied_from_a_page_of_dagster_may_have_marks_where_it_may_be_broken() -> None:
    """The pages of Dagster break long names; who pastes one does not see the marks."""
    command = [sys.executable, "-m", "penstock.orchestration", "run-\u200bbook", "skip-record", "--he\u200blp"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and "skip-record" in done.stdout, done.stderr


def test_a_package_that_is_not_installed_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert not hasattr(penstock, "__version__")
