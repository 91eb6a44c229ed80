"""`scripts/slow-tests`: a second try for what failed, and its names at the end of the output."""

from __future__ import annotations

import re
from collections import OrderedDict
from pathlib import Path
from types import ModuleType
from unittest.mock import Mock

import pytest

from tests.support import ROOT, script_as_module
from tests.support.lanes import LONG, UNITS, Lanes, unit_of

SUITE = """
from pathlib import Path

import pytest

def test_passes():
    pass

@pytest.mark.nightly
def test_takes_long():
    Path(__file__).with_suffix(".long").touch()

def test_fails_at_first():
    seen = Path(__file__).with_suffix(".seen")
    if not seen.exists():
        seen.touch()
        raise AssertionError("too late")
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, over a suite of its own, with xdist as the only plugin: others take a second to import."""
    module = script_as_module("slow-tests")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "xdist.plugin")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = nightly\n")
    (tmp_path / "test_suite.py").write_text(SUITE)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "FOLDERS", ["test_suite.py"])
    monkeypatch.setattr(
        module, "RUNS", {"slow": ["-m", "not nightly", "-n", "1", "--dist", "loadscope"], "nightly": module.RUNS["nightly"]}
    )
    return module


def end_of(output: str) -> list[str]:
    """The lines after the last line that names the page of flaky tests."""
    _, found, end = output.rpartition("add them to docs/flaky-tests.md:\n")
    return end.split("\n")[:-1] if found else []


def test_what_passes_at_the_second_try_is_named_at_the_end(script: ModuleType, capfd: pytest.CaptureFixture[str]) -> None:
    assert script.main([]) == 0
    assert end_of(capfd.readouterr().out) == ["  test_suite.py::test_fails_at_first"]
    assert script.main([]) == 0
    assert end_of(capfd.readouterr().out) == [], "the next run, in which all passes at once, names nothing"


def test_what_fails_twice_is_a_failure_and_not_flaky(script: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE.replace("seen.touch()", "pass"))
    assert script.main([]) == 1
    assert end_of(capfd.readouterr().out) == []


def test_nightly_tests_are_left_out_and_run_by_themselves(script: ModuleType, tmp_path: Path) -> None:
    assert script.main([]) == 0
    assert not (tmp_path / "test_suite.long").exists()
    (tmp_path / "test_suite.seen").unlink()
    assert script.main(["--nightly"]) == 0
    assert (tmp_path / "test_suite.long").exists()
    assert not (tmp_path / "test_suite.seen").exists(), "others ran too"


def test_files_with_heavy_needs_share_a_unit_and_a_file_is_never_torn() -> None:
    in_a_class = unit_of("tests/broker/test_commit.py::TestKill::test_a[x::y]")
    assert in_a_class == unit_of("tests/broker/test_commit.py::test_b") != unit_of("tests/dagster/test_feed.py::test_b")
    assert unit_of("tests/differential/test_windows.py::test_a") == unit_of("tests/differential/test_tables.py::test_b")
    needs = re.compile(
        r"^from (pyspark|playwright|tests\.(dagster\.(postgresql|spark_jobs|tutorial)|chaos\.cluster|support\.brokers import QuickCluster))"
        r"|mark\.spark",
        re.MULTILINE,
    )
    files = [path for folder in ("dagster", "chaos", "broker") for path in (ROOT / "tests" / folder).glob("test_*.py")]
    heavy = {str(path.relative_to(ROOT)) for path in files if needs.search(path.read_text())}
    assert heavy == {file for files in UNITS.values() for file in files}
    assert {unit: {unit_of(f"{file}::test_a") for file in files} for unit, files in UNITS.items()} == {unit: {unit} for unit in UNITS}


def test_units_that_take_long_come_first() -> None:
    assert all(unit in (*UNITS, "tests/differential") or (ROOT / unit).is_file() for unit in LONG), "a file of LONG was renamed"
    queue = {unit: dict.fromkeys(range(tests)) for unit, tests in (("tests/broker/test_global.py", 30), (LONG[1], 20), (LONG[0], 2))}
    lanes = Lanes.__new__(Lanes)
    lanes.workqueue, lanes.assigned_work, node = OrderedDict(queue), {}, Mock()
    lanes.registered_collections = {node: list(range(30))}
    for _ in queue:
        lanes._assign_work_unit(node)
    assert list(lanes.assigned_work[node]) == [LONG[0], LONG[1], "tests/broker/test_global.py"]
