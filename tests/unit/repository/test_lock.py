"""requirements.txt: complete, with hashes, and without the address of an index, so that any mirror serves it."""

from __future__ import annotations

import re
import tomllib

from tests.support import ROOT

LOCK = (ROOT / "requirements.txt").read_text()
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS: dict[str, list[str]] = PYPROJECT["project"]["optional-dependencies"]
ASKED: list[str] = [
    *PYPROJECT["project"]["dependencies"],
    *PYPROJECT["dependency-groups"]["dev"],
    *(line for each in EXTRAS.values() for line in each),
]


def names(text: str) -> set[str]:
    """The packages that a requirements file asks for, as PEP 503 writes them."""
    found = re.findall(r"^([A-Za-z0-9][A-Za-z0-9._-]*)", text, re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower() for name in found}


def test_rule_31_it_names_no_address() -> None:
    assert not re.search(r"://|--(extra-)?index-url|--find-links|--trusted-host| @ ", LOCK)


def test_each_package_has_one_version_and_hashes() -> None:
    requirements = [block for block in re.split(r"\n(?=\S)", LOCK) if not block.startswith("#")]
    assert requirements
    for requirement in requirements:
        assert re.match(r"[A-Za-z0-9._-]+(\[[\w,-]+\])?==[\w.+]+( ; [^\\]+)? \\\n", requirement), requirement.splitlines()[0]
        assert "--hash=sha256:" in requirement, requirement.splitlines()[0]


def test_it_holds_what_is_asked_for() -> None:
    missing = names("\n".join(ASKED)) - names(LOCK) - {"penstock"}
    assert not missing, f"`make lock` has not been run: {missing}"


def test_dagsters_parts_have_one_version() -> None:
    versions = set(re.findall(r"^dagster(?:-webserver|-dg-cli|-graphql|-pipes)?==(\S+)", LOCK, re.MULTILINE))
    assert len(versions) == 1
