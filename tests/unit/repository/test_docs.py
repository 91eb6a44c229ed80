"""The pages point at what exists: files by their links, make's targets by their names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from penstock.orchestration.cli import app
from tests.support import ROOT

COMMANDS = typer.main.get_command(app)
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site name them (`make docs` checks them too, and needs half a minute)."""
    titles = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page: Path) -> None:
    missing = []
    for link, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", page.read_text()):
        target = page.parent / link if link else page
        if "://" not in link and (not target.exists() or (anchor and anchor not in anchors(target))):
            missing.append(f"{link}#{anchor}")
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_makes_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:`|^)make ([a-z]+)", page.read_text(), re.MULTILINE))
    assert named <= targets


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_exist(page: Path) -> None:
    code = re.findall(r"```(?:sh|console)\n(.*?)```|(?<!`)`([^`\n]+)`(?!`)", page.read_text(), re.DOTALL)
    wrong = []
    for line in re.findall(
        r"(?:^|[\s/(])penstock (?!import )([a-z][^\n#|]*)", "\n".join(block or span for block, span in code), re.MULTILINE
    ):
        command, words = COMMANDS, line.split()
        while subcommands := getattr(command, "commands", None):
            if not words or not re.fullmatch(r"[a-z-]+", words[0]) or words[0].startswith("-"):
                break
            command = subcommands.get(words.pop(0))
            if command is None:
                wrong.append(line)
                break
        if command is not None and not command.context_settings.get("ignore_unknown_options"):
            known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
            wrong += [f"{line}: {word}" for word in words if re.fullmatch(r"--[a-z-]+", word) and word not in {*known, "--help"}]
    assert not wrong


def test_every_page_is_in_the_index_of_its_folder_and_every_folder_in_the_first() -> None:
    first = (ROOT / "docs" / "README.md").read_text()
    for page in (ROOT / "docs").rglob("*.md"):
        if page.name == "README.md":
            assert page.parent.name == "docs" or f"({page.parent.name}/README.md)" in first
        else:
            assert f"({page.name})" in (page.parent / "README.md").read_text(), page


def test_a_decision_is_short_and_says_what_was_rejected() -> None:
    decisions = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    assert [int(page.name[:4]) for page in decisions] == list(range(1, len(decisions) + 1))
    for page in decisions:
        text = page.read_text()
        assert re.findall(r"^## (.*)$", text, re.MULTILINE) == ["Context", "Decision", "Consequences", "Rejected"], page.name
        assert text.count("\n") <= 40, page.name


def test_headings_that_messages_and_comments_point_at_exist() -> None:
    missing, found = [], 0
    for path in (path for folder in ("runtime", "orchestration", "assets", "sensors") for path in (ROOT / folder).rglob("*.py")):
        for page, heading in re.findall(r"docs/([\w-]+\.md), ['*]([^'*]+)['*]", path.read_text()):
            found += 1
            if f"# {heading}\n" not in (ROOT / "docs" / page).read_text():
                missing.append(f"{path.relative_to(ROOT)}: docs/{page}, {heading}")
    assert found and not missing


def test_each_fault_names_tests_that_exist() -> None:
    lines = (ROOT / "docs" / "faults.md").read_text().splitlines()
    rows = [line for line in lines if line.startswith("| ") and not line.startswith("| fault |")]
    assert rows
    missing = []
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", row.rsplit(" | ", 1)[-1])
        if not named:
            missing.append(f"no test: {row}")
        for file, test in named:
            path = ROOT / file
            if not path.exists() or (test and f"def {test}(" not in path.read_text()):
                missing.append(f"{file}::{test}")
    assert not missing


def test_the_page_on_kips_names_what_exists() -> None:
    page = (ROOT / "docs" / "kips.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ") and not line.startswith("| clause |")]
    assert len(rows) > 40
    assert [row for row in rows if row.count(" | ") != 2] == []
    missing = []
    for file, name in re.findall(r"`((?:runtime|orchestration|assets|sensors|tests|benchmarks)/[\w/.]+?)(?:::(\w+))?`", page):
        path = ROOT / file
        if not path.exists() or (name and not re.search(rf"^\s*(?:def|class) {name}\b", path.read_text(), re.MULTILINE)):
            missing.append(f"{file}::{name}")
    known = (ROOT / "docs" / "configuration.md").read_text()
    missing += [key for key in re.findall(r"`([a-z]+(?:\.[a-z]+)+)`", page) if f"| `{key}` |" not in known]
    assert missing == []
