"""`scripts/slow-tests`: a second try for what failed, and its names at the end of the output."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from tests.support import script_as_module
from tests.support.lanes import unit_of

SUITE = """
from pathlib import Path

def test_passes():
    pass

def test_fails_at_first():
    seen = Path(__file__).with_suffix(".seen")
    if not seen.exists():
        seen.touch()
        raise AssertionError("too late")
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, over a suite of its own."""
    module = script_as_module("slow-tests")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_suite.py").write_text(SUITE)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "RUNS", {"others": ["test_suite.py"]})
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


def test_what_is_not_on_a_broker_alone_is_one_unit_and_a_file_is_never_torn() -> None:
    in_a_class = unit_of("tests/broker/test_commit.py::TestKill::test_a[x::y]")
    assert in_a_class == unit_of("tests/broker/test_commit.py::test_b") != unit_of("tests/broker/test_pause.py::test_b")
    others = ("tests/dagster/test_spark_cluster.py::test_a", "tests/dagster/test_live.py::test_b", "tests/chaos/test_fleet.py::test_c")
    assert {unit_of(test) for test in others} == {"others"}
