"""docs/environment.md lists the environment variables that the code reads or sets."""

from __future__ import annotations

import ast
import re

from tests.support import ROOT

FOLDERS = ("runtime", "orchestration", "assets", "sensors", "penstock")


def names_in_the_code() -> set[str]:
    """Names in `os.environ.get(…)`, `os.environ[…]`, `… in os.environ`, `envvar=…`, and all that begin with PENSTOCK_."""
    found: set[str] = set()
    for path in sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        tree = ast.parse(path.read_text())
        constants = {
            target.id: node.value.value
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and re.fullmatch(r"PENSTOCK_[A-Z_]+", str(node.value)):
                found.add(str(node.value))
            for key in asked_for(node):
                value = key.value if isinstance(key, ast.Constant) else constants.get(key.id) if isinstance(key, ast.Name) else None
                if isinstance(value, str):
                    found.add(value)
    return found


def asked_for(node: ast.AST) -> list[ast.expr]:
    match node:
        case ast.Subscript(value=ast.Attribute(attr="environ"), slice=key):
            return [key]
        case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="environ")), args=[key, *_]):
            return [key]
        case ast.Call(func=ast.Attribute(attr="getenv"), args=[key, *_]):
            return [key]
        case ast.Compare(left=key, comparators=[ast.Attribute(attr="environ")]):
            return [key]
    return []


def test_each_variable_is_on_the_page_and_each_on_the_page_is_read() -> None:
    page = (ROOT / "docs" / "environment.md").read_text()
    listed = {name for row in re.findall(r"^\| (`[^|]*) \|", page, re.MULTILINE) for name in re.findall(r"`([A-Z][A-Z0-9_]+)`", row)}
    found = names_in_the_code()
    assert len(found) > 10
    assert listed == found
