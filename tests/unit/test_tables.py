"""Tables of the command line on a narrow terminal: what people copy stays whole, and other columns make room."""

from __future__ import annotations

import io

from rich.console import Console

from orchestration.commands.common import table


def test_names_are_whole_where_a_table_has_no_room() -> None:
    shown = table("application", "task", "instance", "state", "checkpoint", "paused at", "host")
    shown.add_row(
        "flight-board", "0_1", "flight-board-1", "RESTORING", "12 min ago", "flights-1@123456", "a-machine-with-a-long-name.example"
    )
    text = io.StringIO()
    Console(file=text, width=80).print(shown)
    for name in ("flight-board ", "0_1", "flight-board-1", "RESTORING", "flights-1@123456"):
        assert name in text.getvalue()


def test_sentences_go_on_in_the_next_line() -> None:
    shown = table("alert", "what")
    shown.add_row("1", "task 0_1 is paused at flights-1@123456 " * 5)
    text = io.StringIO()
    Console(file=text, width=40).print(shown)
    assert "…" not in text.getvalue() and text.getvalue().count("paused") == 5
