"""Bar charts as SVG, for pages of `docs/` and of Dagster's UI, without a plotting library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

_WIDTH, _HEIGHT, _TOP, _BOTTOM, _BAR = 250, 190, 40, 30, 0.6
_LABELS = 6
"""Number of labels that fit side by side."""


@dataclass(frozen=True, slots=True)
class Bars:
    """One chart: a value per name, which may be negative. With many bars, only some names are shown."""

    title: str
    names: Sequence[str]
    values: Sequence[float]


def bars(charts: Sequence[Bars], in_a_row: int = 3) -> str:
    """Return the charts side by side, as an SVG that is readable on light and dark pages."""
    drawn = "".join(
        f'<g transform="translate({number % in_a_row * _WIDTH} {number // in_a_row * _HEIGHT})">{_chart(chart)}</g>'
        for number, chart in enumerate(charts)
    )
    width, height = _WIDTH * min(in_a_row, len(charts)), _HEIGHT * -(-len(charts) // in_a_row)
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    style = "text{font:11px sans-serif;fill:#777}.title{font-weight:bold}.bar{fill:#3a7ca5}"
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{style}</style>{drawn}</svg>\n'


def _chart(chart: Bars) -> str:
    highest, lowest = max(0.0, *chart.values), min(0.0, *chart.values)
    step = (_WIDTH - 20) / len(chart.values)
    room = _HEIGHT - _TOP - _BOTTOM
    scale = room / ((highest - lowest) or 1.0)
    zero = _TOP + highest * scale
    every = -(-len(chart.values) // _LABELS)
    parts = [f'<text class="title" x="10" y="16">{escape(chart.title)}</text>']
    for number, (name, value) in enumerate(zip(chart.names, chart.values, strict=True)):
        height = abs(value) * scale
        middle = 10 + (number + 0.5) * step
        top = zero - max(value, 0.0) * scale
        parts.append(
            f'<rect class="bar" x="{middle - step * _BAR / 2:.1f}" y="{top:.1f}" width="{step * _BAR:.1f}" height="{height:.1f}"/>'
        )
        if number % every == 0:
            parts.append(
                f'<text x="{middle:.1f}" y="{top - 4:.1f}" text-anchor="middle">{_number(value)}</text>'
                f'<text x="{middle:.1f}" y="{_HEIGHT - 12}" text-anchor="middle">{escape(name)}</text>'
            )
    return "".join(parts)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 20 or value == round(value) else f"{value:.1f}"
