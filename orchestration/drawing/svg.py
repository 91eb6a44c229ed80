"""Topology as SVG, with a layout of its own, so no graph drawing program has to be installed.

Each sub-topology is a frame. In it, every shape is one row below the lowest of its predecessors (the longest path from a topic), at their
mean position within the row, so chains are vertical and few lines cross. Frames are side by side if they are not connected, and below each
other if they are: a repartition topic is drawn where it is written and where it is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from penstock.orchestration.drawing.description import Drawing, Part, TopicRate

_CHARACTER, _PADDING, _HEIGHT, _GAP_X, _GAP_Y, _FRAME, _TITLE, _SPACE = 7.0, 20, 26, 18, 26, 16, 30, 34
_STYLE = (
    "text{font:11px sans-serif;text-anchor:middle;fill:#333}.frame{fill:#fafafa;stroke:#bbb}.title{font-weight:bold;text-anchor:start}"
    ".node{fill:#fff;stroke:#777}.topic{fill:#e8f1f8;stroke:#3a7ca5}.store{fill:#f6efe0;stroke:#b08930}"
    ".frame.paused{fill:#fdeceb;stroke:#d3372e;stroke-width:2}.frame.lagging{fill:#fff1dc;stroke:#b86e00;stroke-width:2}"
    ".title.paused{fill:#b3261e}.title.lagging{fill:#955400}"
    ".rate{font-weight:bold;fill:#0b6e8f;text-anchor:start;paint-order:stroke;stroke:#fff;stroke-width:4px}"
    ".line{fill:none;stroke:#777}.uses{fill:none;stroke:#b08930;stroke-dasharray:3 3}"
)
_ARROW = (
    '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0 0L8 4L0 8z" fill="#777"/></marker></defs>'
)


@dataclass(frozen=True, slots=True)
class _Shape:
    """`label`: shown while the pointer is on it, if that says more than the text."""

    key: str
    text: str
    kind: str
    label: str = ""

    @property
    def width(self) -> float:
        return len(self.text) * _CHARACTER + _PADDING


@dataclass(frozen=True, slots=True)
class _Frame:
    """Part with its layout: centres of its shapes, relative to the frame's corner."""

    part: Part
    shapes: Sequence[_Shape]
    lines: Sequence[tuple[str, str]]
    centres: Mapping[str, tuple[float, float]]
    width: float
    height: float


def svg(drawing: Drawing, rates: Mapping[str, TopicRate] | None = None, widest: int | None = None) -> str:
    """Return the diagram as a complete file, on white, so that it is readable on dark pages too. `rates` by topic. A diagram of more than
    `widest` pixels is scaled to that width."""
    frames = [_laid_out(part) for part in drawing.parts]
    drawn, y, width = [], 0.0, 0.0
    for row in _rows(frames):
        x = 0.0
        for frame in row:
            drawn.append(f'<g transform="translate({x:.0f} {y:.0f})">{"".join(_drawn(frame, rates or {}))}</g>')
            x += frame.width + _SPACE
        width, y = max(width, x), y + max(frame.height for frame in row) + _SPACE
    across, down = width - _SPACE + 20, y - _SPACE + 20
    size = f'viewBox="-10 -10 {across:.0f} {down:.0f}"'
    background = f'<rect x="-10" y="-10" width="{across:.0f}" height="{down:.0f}" fill="#fff"/>'
    scale = 1.0 if widest is None else min(1.0, widest / across)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{scale * across:.0f}" height="{scale * down:.0f}" {size}>'
        f"<style>{_STYLE}</style>{_ARROW}{background}{''.join(drawn)}</svg>\n"
    )


def _rows(frames: Sequence[_Frame]) -> list[list[_Frame]]:
    """Return the frames in rows: each below those that write a topic which it reads."""
    writes = {topic: frame.part.number for frame in frames for node in frame.part.nodes if node.kind == "sink" for topic in node.topics}
    by_number = {frame.part.number: frame for frame in frames}
    rows: dict[int, int] = {}

    def row(number: int, above: frozenset[int]) -> int:
        if number not in rows:
            reads = [topic for node in by_number[number].part.nodes if node.kind == "source" for topic in node.topics]
            feeding = {writes[topic] for topic in reads if topic in writes} - above - {number}
            rows[number] = max((row(other, above | {number}) + 1 for other in sorted(feeding)), default=0)
        return rows[number]

    found: dict[int, list[_Frame]] = {}
    for number, frame in by_number.items():
        found.setdefault(row(number, frozenset()), []).append(frame)
    return [found[number] for number in sorted(found)]


def _laid_out(part: Part) -> _Frame:
    shapes, lines = _contents(part)
    above: dict[str, list[str]] = {shape.key: [] for shape in shapes}
    for start, end in lines:
        above[end].append(start)
    row = _depths(above)
    x: dict[str, float] = {}
    rows: dict[int, list[_Shape]] = {}
    for shape in shapes:
        rows.setdefault(row[shape.key], []).append(shape)
    for number in sorted(rows):
        _place(rows[number], above, x)
    left = min(x[shape.key] - shape.width / 2 for shape in shapes) - _FRAME
    right = max(x[shape.key] + shape.width / 2 for shape in shapes) + _FRAME
    title = len(part.title) * _CHARACTER * 1.1 + 2 * _FRAME
    centres = {key: (at - left, _TITLE + _HEIGHT / 2 + row[key] * (_HEIGHT + _GAP_Y)) for key, at in x.items()}
    height = _TITLE + (max(rows) + 1) * (_HEIGHT + _GAP_Y) - _GAP_Y + _FRAME
    return _Frame(part, shapes, lines, centres, max(right - left, title), height)


def _contents(part: Part) -> tuple[list[_Shape], list[tuple[str, str]]]:
    """Return the shapes of a frame, and the lines between them; a line to a store goes down from the node that uses it."""
    shapes: dict[str, _Shape] = {}
    lines: list[tuple[str, str]] = []
    for node in part.nodes:
        shapes[f"node {node.name}"] = _Shape(f"node {node.name}", node.title, "node", node.name if node.call_site else "")
    for node in part.nodes:
        key = f"node {node.name}"
        for topic in node.topics:
            topic_key = f"{'in' if node.kind == 'source' else 'out'} {topic}"
            shapes[topic_key] = _Shape(topic_key, topic, "topic")
            lines.append((topic_key, key) if node.kind == "source" else (key, topic_key))
        for store in node.stores:
            shapes[f"store {store}"] = _Shape(f"store {store}", store, "store")
            lines.append((key, f"store {store}"))
        lines += [(key, f"node {child}") for child in node.children]
    return list(shapes.values()), lines


def _depths(above: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Return the longest path to each shape from one without predecessors. (A topology is acyclic.)"""
    found: dict[str, int] = {}

    def depth(key: str) -> int:
        if key not in found:
            found[key] = max((depth(parent) + 1 for parent in above[key]), default=0)
        return found[key]

    for key in above:
        depth(key)
    return found


def _place(row: list[_Shape], above: Mapping[str, Sequence[str]], x: dict[str, float]) -> None:
    """Centre the shapes of a row below their predecessors, without overlaps."""

    def middle(shape: _Shape) -> float:
        feeding = [x[parent] for parent in above[shape.key] if parent in x]
        return sum(feeding) / len(feeding) if feeding else 0.0

    ordered = sorted(row, key=middle)
    edge = float("-inf")
    for shape in ordered:
        x[shape.key] = max(middle(shape), edge + _GAP_X + shape.width / 2)
        edge = x[shape.key] + shape.width / 2
    wanted = sum(middle(shape) for shape in ordered) / len(ordered)
    shift = wanted - (x[ordered[0].key] + x[ordered[-1].key]) / 2 if len(ordered) > 1 else 0.0
    for shape in ordered:
        x[shape.key] += shift


def _drawn(frame: _Frame, rates: Mapping[str, TopicRate]) -> Iterator[str]:
    level = frame.part.note.level.value
    yield f'<rect class="frame {level}" width="{frame.width:.0f}" height="{frame.height:.0f}" rx="6"/>'
    yield f'<text class="title {level}" x="{_FRAME}" y="19">{escape(frame.part.title)}</text>'
    shapes = {shape.key: shape for shape in frame.shapes}
    labels = []
    for start, end in frame.lines:
        (x1, y1), (x2, y2) = frame.centres[start], frame.centres[end]
        top, bottom = y1 + _HEIGHT / 2, y2 - _HEIGHT / 2
        uses = shapes[end].kind == "store"
        look = 'class="uses"' if uses else 'class="line" marker-end="url(#arrow)"'
        bend = _GAP_Y / 2
        yield f'<path {look} d="M{x1:.1f} {top:.1f}C{x1:.1f} {top + bend:.1f} {x2:.1f} {bottom - bend:.1f} {x2:.1f} {bottom:.1f}"/>'
        rate = _rate(shapes[start], shapes[end], rates)
        if rate is not None:
            labels.append(f'<text class="rate" x="{(x1 + x2) / 2 + 6:.1f}" y="{(top + bottom) / 2 + 3:.1f}">{rate:,.0f}/s</text>')
    for shape in frame.shapes:
        x, y = frame.centres[shape.key]
        round_by = 13 if shape.kind == "topic" else 3
        yield (
            f'<rect class="{shape.kind}" x="{x - shape.width / 2:.1f}" y="{y - _HEIGHT / 2:.1f}" width="{shape.width:.1f}" '
            f'height="{_HEIGHT}" rx="{round_by}">{f"<title>{escape(shape.label)}</title>" if shape.label else ""}</rect>'
            f'<text x="{x:.1f}" y="{y + 4:.1f}">{escape(shape.text)}</text>'
        )
    yield from labels


def _rate(start: _Shape, end: _Shape, rates: Mapping[str, TopicRate]) -> float | None:
    """Return the records per second of an edge, if it is one between a topic and a node."""
    if start.kind == "topic":
        found = rates.get(start.text)
        return None if found is None else found.read
    found = rates.get(end.text) if end.kind == "topic" else None
    return None if found is None else found.written
