"""The table and the plot that `python -m benchmarks checkpoints --write` puts into the pages."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from benchmarks.checkpoints import BEGIN, END, PAGE, Restart, Row, Steady, run_seconds, table
from penstock.orchestration.drawing.bars import Bars, bars

STEADY = Steady(19_990.0, 9.0, 21.0, 8.25), Steady(20_000.0, 8.0, 25.0, 8.25), Steady(20_010.0, 11.0, 23.0, 8.25)
RESTARTS = Restart(1.5, 12_345, 3.0), Restart(1.0, 12_345, 2.0), Restart(2.0, 12_345, 4.0)


def test_the_table_has_the_median_and_the_range_of_each_interval() -> None:
    text = table([Row(0, STEADY, RESTARTS), Row(30, STEADY, RESTARTS)], 20_000)
    cells = "20,000 (19,990–20,010) | 9 (8–11) ms | 23 (21–25) ms | 8.2 | 1.5 (1.0–2.0) s | 12,345 records | 3.0 (2.0–4.0) s |"
    assert f"| every commit | {cells}" in text
    assert f"| 30 s | {cells}" in text


def test_a_run_contains_two_checkpoints_of_its_interval_and_ends_between_two() -> None:
    for interval in (1.0, 30.0, 300.0):
        assert run_seconds(interval) >= 2.5 * interval
        assert run_seconds(interval) % interval == 0.5 * interval or interval == 1.0


def test_the_plot_is_an_svg_with_a_bar_per_value() -> None:
    charts = [Bars("a < b", ["x", "y"], [1.0, 2.0]), Bars("zero", ["x"], [0.0])]
    root = ElementTree.fromstring(bars(charts))
    drawn = list(root.iter("{http://www.w3.org/2000/svg}rect"))
    assert len(drawn) == 3
    assert float(drawn[1].attrib["height"]) == 2 * float(drawn[0].attrib["height"])
    assert "a < b" in [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]


def test_the_page_has_the_place_for_it_and_no_measured_figure_elsewhere() -> None:
    """`--write` would leave it behind."""
    page = PAGE.read_text(encoding="utf-8")
    assert page.index(BEGIN) < page.index(END)
    conclusions = page[page.index(END) :]
    assert re.findall(r"\d[\d,.]* *(?:ms|%|records|million|thousand)\b", conclusions) == []


def test_an_interval_is_on_the_page_only_if_it_was_measured() -> None:
    page = PAGE.read_text(encoding="utf-8")
    measured = page[page.index(BEGIN) : page.index(END)]
    rows = [line.split("|")[1].strip() for line in measured.splitlines() if line.startswith("| ")]
    assert rows[0] == "interval" and {"every commit", "30 s"} <= set(rows)
    assert "300 s" in rows or "which was not measured here" in page
