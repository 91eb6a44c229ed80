"""Paths of launchpads in Dagster's UI, with the run-book's configuration filled in."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from urllib.parse import quote

_COMMENT = 120
"""Maximum length of a comment in a form."""


def comments(facts: Iterable[tuple[str, object]]) -> str:
    """Return a line of comment for each fact that is known."""
    return "".join(f"# {name}: {_comment(text)}\n" for name, text in facts if text)


def _comment(value: object) -> str:
    """Return a text that stays in the line of its comment, whatever it contains."""
    text = "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in str(value))
    return text if len(text) <= _COMMENT else f"{text[: _COMMENT - 1]}…"


def launchpad_path(job: str, op: str, config: Mapping[str, object], *, facts: Iterable[tuple[str, object]] = ()) -> str:
    """Return the path, within Dagster's UI, of the launchpad of a job with this configuration of its op, below comments with facts."""
    lines = "".join(f"      {key}: {json.dumps(value)}\n" for key, value in config.items())
    text = f"{comments(facts)}ops:\n  {op}:\n    config:\n{lines}"
    return f"/guess/{job}/playground/setup?config={quote(text)}"  # Dagster finds the code location, whose name is the project's
