"""Console that commands and benchmarks print to."""

from __future__ import annotations

import os
import textwrap
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

_FILE_WIDTH = 200
"""Columns of a table that is written to a file or another program, where lines may be long, unless COLUMNS is set."""

UNBROKEN = "\u00a0"
"""In the text of `Wrapped`: a space at which it is not wrapped."""


def stdout_console() -> Console:
    """Return a console on stdout that wraps no lines except in tables, which are as wide as the terminal."""
    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _FILE_WIDTH
    return console


@dataclass(frozen=True, slots=True)
class Wrapped:
    """Text that a terminal shows without breaking a word, such as a record's place or a path: it is wrapped at spaces, and continued with
    an indent. A file or another program gets it as it is, unless COLUMNS is set. Control characters are escaped: errors and keys come from
    records, and could write to the terminal what they like."""

    text: str
    style: str = ""
    indent: int = 0

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        begin = " " * self.indent
        lines = [begin + _escaped(line) for line in self.text.splitlines()] or [""]
        if console.is_terminal or "COLUMNS" in os.environ:
            wrapper = textwrap.TextWrapper(
                options.max_width,
                subsequent_indent=begin + "  ",
                break_long_words=False,
                break_on_hyphens=False,
                replace_whitespace=False,
            )
            lines = [part for line in lines for part in wrapper.wrap(line) or [""]]
        for line in lines:
            yield Text(line.replace(UNBROKEN, " "), style=self.style, no_wrap=True, overflow="ignore", end="\n")


def _escaped(line: str) -> str:
    return "".join(char if char.isprintable() or char == UNBROKEN else char.encode("unicode_escape").decode() for char in line)
