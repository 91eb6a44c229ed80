"""Console that commands and benchmarks print to."""

from __future__ import annotations

import os

from rich.console import Console

_FILE_WIDTH = 200
"""Columns of a table that is written to a file or another program, where lines may be long, unless COLUMNS is set."""


def stdout_console() -> Console:
    """Return a console on stdout that wraps no lines except in tables, which are as wide as the terminal."""
    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _FILE_WIDTH
    return console
