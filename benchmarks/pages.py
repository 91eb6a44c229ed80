"""Measured tables in the pages of the documentation, between two marks."""

from __future__ import annotations

from pathlib import Path


def put(page: Path, begin: str, text: str, end: str) -> None:
    """Replace what is between the marks `begin` and `end`, which the page has, by a text."""
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    page.write_text(f"{before}{begin}\n{text.rstrip()}\n{end}{rest.partition(end)[2]}", encoding="utf-8")
