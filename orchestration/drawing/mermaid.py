"""Topology as a Mermaid flowchart: a frame per sub-topology, topics between the frames, stores beside the nodes that use them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from penstock.orchestration.drawing.description import Drawing, Part, TopicRate

_STYLES = """\
  classDef topic fill:#e8f1f8,stroke:#3a7ca5,color:#16425b
  classDef store fill:#f6efe0,stroke:#b08930,color:#5c4813
  classDef paused fill:#fdeceb,stroke:#d3372e,stroke-width:2px
  classDef lagging fill:#fff1dc,stroke:#b86e00,stroke-width:2px
"""


def mermaid(drawing: Drawing, rates: Mapping[str, TopicRate] | None = None) -> str:
    """Return the chart's text, for a code block marked `mermaid`. `rates` by topic."""
    topics = {topic: f"t{number}" for number, topic in enumerate(_topics(drawing))}
    lines = [f"  {key}([{_text(topic)}]):::topic" for topic, key in topics.items()]
    for part in drawing.parts:
        lines += _frame(part)
    for part in drawing.parts:
        keys = _keys(part)
        for node in part.nodes:
            for topic in node.topics:
                reads, found = node.kind == "source", (rates or {}).get(topic)
                ends = (topics[topic], keys[node.name]) if reads else (keys[node.name], topics[topic])
                rate = None if found is None else found.read if reads else found.written
                label = "" if rate is None else f'|"{rate:,.0f}/s"|'
                lines.append(f"  {ends[0]} -->{label} {ends[1]}")
        if part.note.level:
            lines.append(f"  class p{part.number} {part.note.level.value}")
    return "flowchart TB\n" + "\n".join(lines) + "\n" + _STYLES


def _topics(drawing: Drawing) -> list[str]:
    return list(dict.fromkeys(topic for part in drawing.parts for node in part.nodes for topic in node.topics))


def _keys(part: Part) -> dict[str, str]:
    return {node.name: f"p{part.number}n{number}" for number, node in enumerate(part.nodes)}


def _frame(part: Part) -> Iterator[str]:
    keys = _keys(part)
    yield f"  subgraph p{part.number}[{_text(part.title)}]"
    for node in part.nodes:
        yield f"    {keys[node.name]}[{_text(node.title)}]"
    stores = dict.fromkeys(store for node in part.nodes for store in node.stores)
    for number, store in enumerate(stores):
        yield f"    p{part.number}s{number}[({_text(store)})]:::store"
        for node in part.nodes:
            if store in node.stores:
                yield f"    {keys[node.name]} -.- p{part.number}s{number}"
    for node in part.nodes:
        for child in node.children:
            yield f"    {keys[node.name]} --> {keys[child]}"
    yield "  end"


def _text(text: str) -> str:
    """Quote a label, so that Mermaid interprets none of its characters."""
    escaped = text.replace("#", "#35;").replace('"', "#quot;").replace("<", "#lt;").replace(">", "#gt;")
    return f'"{escaped}"'
