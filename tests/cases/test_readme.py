"""The programs on the pages run, and what they assert holds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import ROOT

PAGES = (
    *("README.md", "docs/dsl.md", "docs/enrichment.md", "docs/joins.md", "docs/processors.md"),
    *("docs/recovery.md", "docs/serdes.md", "docs/stores.md", "docs/windows.md"),
    *(page.relative_to(ROOT).as_posix() for page in sorted((ROOT / "docs").glob("coming-from-*.md"))),
    *(page.relative_to(ROOT).as_posix() for page in sorted((ROOT / "docs" / "cookbook").glob("*.md"))),
)
PROGRAMS = [
    pytest.param(program, id=f"{page}-{number}")
    for page in PAGES
    for number, program in enumerate(re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL))
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_on_a_page_runs(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "streams.toml").touch()  # the programs that import `penstock.dagster` are parts of a project
    monkeypatch.chdir(tmp_path)
    exec(compile(program, "page", "exec", dont_inherit=True), {"__name__": "page"})
