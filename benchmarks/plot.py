"""Bar charts as SVG, by hand: what a page of `docs/` shows needs no library for drawing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

_WIDTH, _HEIGHT, _TOP, _BOTTOM, _BAR = 250, 190, 40, 30, 0.6


@dataclass(frozen=True, slots=True)
class Bars:
    """One chart: a value per name, from zero."""

    title: str
    names: Sequence[str]
    values: Sequence[float]


def bars(charts: Sequence[Bars], in_a_row: int = 3) -> str:
    """The charts side by side, as an SVG that can be read on a light and on a dark page."""
    drawn = "".join(
        f'<g transform="translate({number % in_a_row * _WIDTH} {number // in_a_row * _HEIGHT})">{_chart(chart)}</g>'
        for number, chart in enumerate(charts)
    )
    width, height = _WIDTH * min(in_a_row, len(charts)), _HEIGHT * -(-len(charts) // in_a_row)
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    style = "text{font:11px sans-serif;fill:#777}.title{font-weight:bold}.bar{fill:#3a7ca5}"
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{style}</style>{drawn}</svg>\n'


def _chart(chart: Bars) -> str:
    highest = max(chart.values) or 1.0
    step = (_WIDTH - 20) / len(chart.values)
    room = _HEIGHT - _TOP - _BOTTOM
    parts = [f'<text class="title" x="10" y="16">{escape(chart.title)}</text>']
    for number, (name, value) in enumerate(zip(chart.names, chart.values, strict=True)):
        height = room * value / highest
        middle = 10 + (number + 0.5) * step
        top = _TOP + room - height
        parts.append(
            f'<rect class="bar" x="{middle - step * _BAR / 2:.1f}" y="{top:.1f}" width="{step * _BAR:.1f}" height="{height:.1f}"/>'
            f'<text x="{middle:.1f}" y="{top - 4:.1f}" text-anchor="middle">{_number(value)}</text>'
            f'<text x="{middle:.1f}" y="{_HEIGHT - 12}" text-anchor="middle">{escape(name)}</text>'
        )
    return "".join(parts)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 20 else f"{value:.1f}"
