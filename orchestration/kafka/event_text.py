"""Text of events."""

from __future__ import annotations

from collections.abc import Mapping

_MOST = 500
"""Number of characters of a detail in one line; with `--json` commands show all."""


def brief(detail: Mapping[str, object]) -> str:
    """Format an entry's details as one line, without the bytes of records, stacks and ends of logs."""
    long = ("stack", "log_end")
    shown = {key: value for key, value in detail.items() if value not in (None, "") and key not in long and not key.endswith("_base64")}
    return ", ".join(f"{key} {one_line(str(value), _MOST)}" for key, value in shown.items())


def one_line(text: str, most: int) -> str:
    """Return a text as one line of at most so many characters. Errors may quote records: with line breaks of its own a text looks like
    several entries of a list."""
    line = " ".join(text[: 2 * most].split())
    return line if len(line) <= most and len(text) <= 2 * most else f"{line[: most - 1]}…"
