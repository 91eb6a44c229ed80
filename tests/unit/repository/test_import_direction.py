"""The rooms of the project and the one direction between them (docs/architecture.md), as `[tool.importlinter]` in pyproject.toml has it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support import ROOT


def lint(config: Path) -> subprocess.CompletedProcess[str]:
    line = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache", "--config", str(config)]
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def test_imports_go_in_one_direction() -> None:
    done = lint(ROOT / "pyproject.toml")
    assert done.returncode == 0, done.stdout


def test_a_broken_contract_is_seen(tmp_path: Path) -> None:
    """The linter reads the code as it is: a contract that the code does not keep fails."""
    config = tmp_path / "importlinter.toml"
    config.write_text("""
        [tool.importlinter]
        root_package = "penstock"
        [[tool.importlinter.contracts]]
        name = "upside down"
        type = "layers"
        layers = ["penstock.runtime", "penstock.orchestration"]
        """)
    done = lint(config)
    assert done.returncode == 1
    assert "penstock.orchestration is not allowed to import penstock.runtime" in done.stdout
