"""Paths of launchpads in Dagster's UI, with the run-book's configuration filled in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from urllib.parse import quote


def launchpad_path(job: str, op: str, config: Mapping[str, object], *, comments: str = "") -> str:
    """Return the path, within Dagster's UI, of the launchpad of a job with this configuration of its op, below lines of comments."""
    lines = "".join(f"      {key}: {json.dumps(value)}\n" for key, value in config.items())
    text = f"{comments}ops:\n  {op}:\n    config:\n{lines}"
    return f"/guess/{job}/playground/setup?config={quote(text)}"  # Dagster finds the code location, whose name is the project's
