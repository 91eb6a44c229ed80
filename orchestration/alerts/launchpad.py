"""Paths of launchpads in Dagster's UI, with the run-book's configuration filled in."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Mapping
from urllib.parse import quote

_COMMENT = 240
"""Maximum length of a comment in a form."""
_LINE = 84
"""Characters of a line that the form's editor shows in a window of 1440 pixels."""


def comments(facts: Iterable[tuple[str, object]]) -> str:
    """Return a comment for each fact that is known; a long one goes on in the next lines, which are indented."""
    wrapper = textwrap.TextWrapper(_LINE, initial_indent="# ", subsequent_indent="#   ", break_on_hyphens=False)
    return "".join(f"{line}\n" for name, text in facts if text for line in wrapper.wrap(f"{name}: {_comment(text)}"))


def _comment(value: object) -> str:
    """Return a text that stays within its comment, whatever it contains."""
    text = "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in str(value))
    return text if len(text) <= _COMMENT else f"{text[: _COMMENT - 1]}…"


def launchpad_path(job: str, op: str, config: Mapping[str, object], *, facts: Iterable[tuple[str, object]] = ()) -> str:
    """Return the path, within Dagster's UI, of the launchpad of a job with this configuration of its op, below comments with facts."""
    lines = "".join(f"      {key}: {json.dumps(value)}\n" for key, value in config.items())
    text = f"{comments(facts)}ops:\n  {op}:\n    config:\n{lines}"
    return f"/guess/{job}/playground/setup?config={quote(text)}"  # Dagster finds the code location, whose name is the project's
