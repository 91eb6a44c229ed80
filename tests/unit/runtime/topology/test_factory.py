"""A factory that cannot be imported or raises: the error names the line of the application's code."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from penstock.runtime.model.errors import TopologyError
from penstock.runtime.topology.factory import build_topology

HELPER = "def asked():\n    return {}['missing']\n"


@pytest.mark.parametrize(
    ("code", "error", "line"),
    [
        ("import math\nimport numpyy\n", "cannot be imported: ModuleNotFoundError: No module named 'numpyy'", 2),
        ("\n\ndef build(:\n", "cannot be imported: SyntaxError: invalid syntax", 3),
        ("LIMIT = int('ten')\n", "cannot be imported: ValueError: invalid literal for int() with base 10: 'ten'", 1),
        ("import sys\nsys.exit('no')\n", "cannot be imported: SystemExit: no", 2),
        ("import json\ndef build():\n    return json.loads('{')\n", "raised JSONDecodeError: Expecting property name", 3),
        ("def build():\n    import sys\n    sys.exit(3)\n", "raised SystemExit: 3", 3),
    ],
)
def test_the_line_is_named(code: str, error: str, line: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = f"team{tmp_path.name.replace('-', '_')}"
    (tmp_path / package).mkdir()
    (tmp_path / package / "topology.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(TopologyError) as raised:
        build_topology(f"{package}.topology:build")
    assert f"factory '{package}.topology:build' {error}" in str(raised.value)
    assert str(raised.value).endswith(f" ({tmp_path / package / 'topology.py'}, line {line})")


def test_of_a_helper_in_the_same_package_the_line_in_the_helper_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "teamhelped").mkdir()
    (tmp_path / "teamhelped" / "helper.py").write_text(HELPER)
    (tmp_path / "teamhelped" / "topology.py").write_text("from teamhelped.helper import asked\n\ndef build():\n    asked()\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(TopologyError, match=r"raised KeyError: 'missing' \(.*helper\.py, line 2\)$"):
        build_topology("teamhelped.topology:build")
    sys.modules.pop("teamhelped", None)


def test_a_module_or_function_that_is_not_there_has_no_line() -> None:
    with pytest.raises(TopologyError, match=r"No module named 'tests\.nowhere'$"):
        build_topology("tests.nowhere:build")
    with pytest.raises(TopologyError, match=r"has no attribute 'nothing_at_all'$"):
        build_topology("tests.support.topologies:nothing_at_all")
