"""`penstock docs`, and the messages that name it: an installed package has no folder `docs/`."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from typer.testing import CliRunner

from penstock.orchestration.cli import app
from tests.support import ROOT

PACKAGES = ("runtime", "orchestration", "assets", "sensors")
KEYS = ROOT / "runtime" / "config" / "keys.py"  # its texts become docs/configuration.md, with links


def shown(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["docs", *arguments])
    return result.exit_code, result.output


def messages(path: Path) -> list[str]:
    """Return the texts of a module that users may see: all but docstrings, and those of commands, which are their help."""
    tree = ast.parse(path.read_text())
    hidden = set()
    if path.parent.name != "commands":
        for node in ast.walk(tree):
            body = getattr(node, "body", None)
            for first in body if isinstance(body, list) else []:
                if isinstance(first, ast.Expr):
                    hidden.add(id(first.value))
    texts = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return [str(node.value) for node in texts if id(node) not in hidden]


def test_pages_are_listed_and_shown() -> None:
    status, listed = shown()
    assert status == 0
    assert {"tutorial", "changing", "cookbook/joins", "decisions"} <= {line.split()[0] for line in listed.splitlines()}
    assert shown("changing") == (0, (ROOT / "docs" / "changing.md").read_text() + "\n") == shown("docs/changing.md")
    status, said = shown("changin")
    assert (status, said.strip()) == (1, "there is no page 'changin'; `penstock docs` lists them. Did you mean 'changing'?")


def test_messages_name_pages_by_the_command_that_shows_them() -> None:
    pages = ROOT / "orchestration" / "pages"
    modules = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if path != KEYS and not path.is_relative_to(pages)]
    texts = {text: path for path in modules for text in messages(path)}
    assert [(text, path) for text, path in texts.items() if re.search(r"docs/[a-z-]+\.md", text)] == [], "an installed package has no docs/"
    named = {page for text in texts for page in re.findall(r"penstock docs ([a-z-]+)", text)}
    assert len(named) > 5
    assert [page for page in named if shown(page)[0] != 0] == []
