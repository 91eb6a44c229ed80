"""The table and the plot that `python -m benchmarks checkpoints --write` puts into the pages."""

from __future__ import annotations

from xml.etree import ElementTree

from benchmarks.checkpoints import BEGIN, END, INTERVALS, PAGE, Row, table
from penstock.orchestration.drawing.bars import Bars, bars

ROWS = [Row(name, 100_000.0 - 1_000 * number, 1.5, 12_345.0, 3.0) for number, name in enumerate(INTERVALS)]


def test_the_table_has_a_row_per_interval_and_compares_with_the_default() -> None:
    text = table(ROWS, 1_000_000, 3)
    assert "| every commit | 100 | 103% | 1.5 s | 12,345 records | 3.0 s |" in text
    assert "| 5 min | 97 | 100% |" in text


def test_the_plot_is_an_svg_with_a_bar_per_value() -> None:
    charts = [Bars("a < b", ["x", "y"], [1.0, 2.0]), Bars("zero", ["x"], [0.0])]
    root = ElementTree.fromstring(bars(charts))
    drawn = list(root.iter("{http://www.w3.org/2000/svg}rect"))
    assert len(drawn) == 3
    assert float(drawn[1].attrib["height"]) == 2 * float(drawn[0].attrib["height"])
    assert "a < b" in [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]


def test_the_page_has_the_place_for_it() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page.index(BEGIN) < page.index(END)
