"""Workloads of `run.py`, and its results as tables and as a plot."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table

from benchmarks.measure import ROOT, Measurement
from benchmarks.pages import put
from benchmarks.peers.programs import BY_HAND, PENSTOCK, PROGRAMS
from penstock.orchestration.drawing.bars import Bars, bars

COMMIT_MS = {True: 100, False: 1000}
"""Commit interval in ms, by whether the run is exactly once."""
PAGE, PLOT = ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "benchmarks.svg"
BEGIN, END = "<!-- operators: begin -->", "<!-- operators: end -->"


@dataclass(frozen=True, slots=True)
class Workload:
    """A kind of `workloads.py`. `cache`: updates are combined until the commit."""

    kind: str
    eos: bool
    cache: bool = True

    @property
    def name(self) -> str:
        return f"{self.kind}-{'eos' if self.eos else 'alo'}{'' if self.cache else '-nocache'}"


KINDS = ("stateless", "count", "window", "join", "stream-join", "foreign-key-join", "session", "suppress", "table-aggregate")
WORKLOADS = {
    each.name: each
    for kind in KINDS
    for each in (
        Workload(kind, True),
        *([Workload(kind, True, cache=False)] if kind in ("count", "window") else []),
        Workload(kind, False),
        *([Workload(kind, False, cache=False)] if kind in ("count", "window") else []),
    )
}

Results = dict[tuple[str, str], list[Measurement]]
"""By workload and program."""


def write(results: Results, records: int, repeats: int) -> None:
    """Write the table and the plot into docs/."""
    put(PAGE, BEGIN, text(results, records, repeats), END)
    names = list(dict.fromkeys(name for name, _ in results))
    charts = []
    for other in _others(results):
        for kind in KINDS:
            shown = [name for name in names if WORKLOADS[name].kind == kind and (name, other) in results]
            ratios = [_ratio(results, name, other) for name in shown]
            if shown:
                charts.append(Bars(f"{kind}: ratio to {other}", [name.removeprefix(f"{kind}-") for name in shown], ratios))
    PLOT.write_text(bars(charts), encoding="utf-8")


def _others(results: Results) -> list[str]:
    found = {program for _, program in results}
    return [name for name in PROGRAMS if name in found and name != PENSTOCK]


def text(results: Results, records: int, repeats: int) -> str:
    """Return the table for the page, in Markdown."""
    others = _others(results)
    headings = ["krec/s"]
    for other in others:
        headings += [other, "ratio"]
    for figure in ("CPU s/M", "MiB", "out/rec"):
        headings += [figure, *others]
    fewer = "".join(f"; {PROGRAMS[name].most_records:,} for {name}" for name in others if PROGRAMS[name].most_records)
    lines = [
        f"{records:,} records{fewer}, the median of {repeats}:\n",
        f"| | {' | '.join(headings)} |",
        f"|{'---|' * (1 + len(headings))}",
    ]
    for name in dict.fromkeys(name for name, _ in results):
        cells = [f"{_rate(results[name, PENSTOCK]) / 1000:.0f}"]
        for other in others:
            runs = results.get((name, other))
            cells += ["–", "–"] if runs is None else [f"{_rate(runs) / 1000:.0f}", f"**{_ratio(results, name, other):.2f}**"]
        for of in (_cpu, _mib, _updates):
            cells += ["–" if (runs := results.get((name, each))) is None else of(runs) for each in (PENSTOCK, *others)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _rate(runs: Sequence[Measurement]) -> float:
    return statistics.median(each.rate for each in runs)


def _ratio(results: Results, workload: str, other: str) -> float:
    return _rate(results[workload, PENSTOCK]) / _rate(results[workload, other])


def _cpu(runs: Sequence[Measurement]) -> str:
    return f"{statistics.median(each.cpu_seconds / each.records for each in runs) * 1e6:.2f}"


def _mib(runs: Sequence[Measurement]) -> str:
    return f"{max(each.rss_bytes for each in runs) / 2**20:.0f}"


def _updates(runs: Sequence[Measurement]) -> str:
    return f"{runs[-1].updates / runs[-1].records:.2f}"


def shown(results: Results, records: int) -> Table:
    """Return the table for a terminal."""
    table = Table(
        title=f"{records:,} records; commits every {COMMIT_MS[True]} ms exactly once (eos), {COMMIT_MS[False]} ms at least once",
        caption="krec/s: thousand records per second, median (least–most); ratio: to the hand-written loop; "
        "CPU s/M: processor seconds per million records; out/rec: output records per input record",
        padding=(0, 1, 0, 0),
        pad_edge=False,
        box=box.SIMPLE,
    )
    table.add_column("", no_wrap=True)
    for heading in ("krec/s", "2nd half", "ratio", "CPU s/M", "RSS MiB", "out/rec"):
        table.add_column(heading, justify="right", no_wrap=True)
    for workload in dict.fromkeys(name for name, _ in results):
        table.add_row(f"[bold]{workload}[/bold]")
        by_hand = results.get((workload, BY_HAND))
        for program in PROGRAMS:
            if (workload, program) in results:
                table.add_row(f"  {program}", *_row(results[workload, program], by_hand))
        table.add_section()
    return table


def _row(runs: Sequence[Measurement], by_hand: Sequence[Measurement] | None) -> tuple[str, ...]:
    rates = sorted(each.rate / 1000 for each in runs)
    return (
        f"{_rate(runs) / 1000:.0f} ({rates[0]:.0f}–{rates[-1]:.0f})",
        f"{statistics.median(each.second_half for each in runs) / 1000:.0f}",
        "–" if by_hand is None else f"{_rate(runs) / _rate(by_hand):.2f}",
        _cpu(runs),
        _mib(runs),
        _updates(runs),
    )
