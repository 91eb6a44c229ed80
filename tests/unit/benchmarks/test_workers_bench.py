"""`make bench ARGS=workers`: the table, and its place on the page."""

from __future__ import annotations

from benchmarks.workers import BEGIN, END, PAGE, Result, text


def test_processor_time_per_record_is_compared_with_the_first_row() -> None:
    results = {
        1: [Result(1_000_000, 10.0, 5.0, 100.0), Result(1_000_000, 10.0, 6.0, 110.0), Result(1_000_000, 20.0, 7.0, 120.0)],
        4: [Result(1_000_000, 5.0, 6.6, 400.0)],
    }
    assert text(results).splitlines()[2:] == ["| 1 | 100 | 6.0 | 1.00 | 110 |", "| 4 | 200 | 6.6 | 1.10 | 400 |"]


def test_the_page_has_a_place_for_the_table() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page.index(BEGIN) < page.index(END)
