"""The table and the plot that `python -m benchmarks checkpoints --write` puts into the pages."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from benchmarks import checkpoints
from benchmarks.checkpoints import BEGIN, END, PAGE, Measured, Restart, Row, Steady, run_seconds, table
from penstock.orchestration.drawing.bars import Bars, bars

STEADY = Steady(19_990.0, 9.0, 21.0, 8.25), Steady(20_000.0, 8.0, 25.0, 8.25), Steady(20_010.0, 11.0, 23.0, 8.25)
RESTARTS = Restart(1.5, 12_345, 3.0), Restart(1.0, 12_345, 2.0), Restart(2.0, 12_345, 4.0)


def runs(interval: float) -> tuple[Measured, ...]:
    both = zip(STEADY, RESTARTS, strict=True)
    return tuple(Measured(interval, 20_000, run_seconds(interval), 1.5, steady, restart) for steady, restart in both)


def test_the_table_has_the_median_and_the_range_of_each_interval() -> None:
    text = table([Row(0, runs(0)), Row(30, runs(30))], 20_000)
    cells = "20,000 (19,990–20,010) | 9 (8–11) ms | 23 (21–25) ms | 8.2 | 1.5 (1.0–2.0) s | 12,345 records | 3.0 (2.0–4.0) s |"
    assert f"| every commit | {cells}" in text
    assert f"| 30 s | {cells}" in text
    assert "20,000 records/s arrive for 165 s; commits every 100 ms, exactly once; medians of 3 runs (least–most)." in text
    assert "load averages over 5 minutes from 1.5 to 1.5" in text


def test_a_measurement_in_pieces_is_put_together_from_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "runs.json"
    monkeypatch.setattr(checkpoints, "_one_checkpoint", lambda: "")
    file.write_bytes(b"".join(msgspec.json.encode(run) + b"\n" for run in (*runs(0), *runs(30))))
    app = typer.Typer()
    app.command()(checkpoints.main)
    command = ["--repeats", "0", "--runs", str(file)]
    found = CliRunner().invoke(app, [*command, "--interval", "0", "--interval", "30"])
    assert "medians of 3 runs" in found.stdout and found.exit_code == 0
    missing = CliRunner().invoke(app, [*command, "--interval", "30", "--interval", "1"])
    assert "no runs at 20,000 records/s with checkpoints at 1 s; measure them first" in missing.stdout and missing.exit_code == 1
    assert CliRunner().invoke(app, [*command, "--interval", "30", "--rate", "10000"]).exit_code == 1


def test_a_run_contains_five_checkpoints_of_its_interval_and_ends_between_two() -> None:
    for interval in (1.0, 30.0, 300.0):
        assert run_seconds(interval) >= 5.5 * interval
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
