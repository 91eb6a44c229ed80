"""Evaluation of `python -m benchmarks tables`, and the sums that every reader must find."""

from __future__ import annotations

from benchmarks.table_rows import truth
from benchmarks.tables import BEGIN, END, PAGE, PARQUET, SCAN, SNAPSHOT, table


def test_the_table_compares_medians_with_parquet_and_with_the_plain_scan() -> None:
    text = table({SCAN: [4.0], SNAPSHOT: [8.0, 10.0, 90.0], PARQUET: [1.0, 2.0, 3.0]}, 10_000_000, 3)
    assert [line.split(" | ")[1:] for line in text.splitlines()[2:5]] == [
        ["2.0", "5,000", "1.00", "2.00 |"],
        ["10.0", "1,000", "0.20", "0.40 |"],
        ["4.0", "2,500", "0.50", "1.00 |"],
    ]
    assert "10,000,000 rows" in text


def test_the_sums_are_those_of_the_rows() -> None:
    for rows in (1, 999, 1_000, 12_345):
        assert truth(rows) == (rows, sum(number % 1000 for number in range(rows)))


def test_the_page_has_the_place_for_it() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page.index(BEGIN) < page.index(END)
