"""Modules that the process of an instance imports before it starts: the start waits for each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from penstock.runtime.instance.build import build_of
from tests.support import ROOT

NOT_NEEDED = ("dagster", "http.server", "importlib.metadata", "prometheus_client", "pyarrow", "pyspark", "sqlalchemy", "zipfile")
"""Modules that only some instances need, or none, and whose import is slow."""
OWN = ("penstock.orchestration", "penstock.runtime.endpoint", "penstock.runtime.seeds.install", "penstock.runtime.testing")


def test_a_start_imports_nothing_that_only_some_instances_need() -> None:
    code = f"import sys, penstock.runtime.instance.__main__; print(*sorted(sys.modules.keys() & {{*{NOT_NEEDED + OWN!r}}}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == []


def test_an_installed_package_is_part_of_the_fingerprint(tmp_path: Path) -> None:
    config: dict[str, object] = {}
    before = build_of(config, "shop:build")
    assert build_of(config, "shop:build") == before
    described = tmp_path / "thing-1.0.dist-info"
    described.mkdir()
    sys.path.append(str(tmp_path))
    try:
        first = build_of(config, "shop:build")
        described.rename(tmp_path / "thing-2.0.dist-info")
        assert len({before, first, build_of(config, "shop:build")}) == 3
    finally:
        sys.path.remove(str(tmp_path))
