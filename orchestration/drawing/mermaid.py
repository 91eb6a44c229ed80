"""Topology as a Mermaid flowchart: a frame per sub-topology, topics between the frames, stores beside the nodes that use them."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.orchestration.drawing.description import Drawing, Part

_STYLES = """\
  classDef topic fill:#e8f1f8,stroke:#3a7ca5,color:#16425b
  classDef store fill:#f6efe0,stroke:#b08930,color:#5c4813
"""


def mermaid(drawing: Drawing) -> str:
    """Return the chart's text, for a code block marked `mermaid`."""
    topics = {topic: f"t{number}" for number, topic in enumerate(_topics(drawing))}
    lines = [f"  {key}([{_text(topic)}]):::topic" for topic, key in topics.items()]
    for part in drawing.parts:
        lines += _frame(part)
    for part in drawing.parts:
        keys = _keys(part)
        for node in part.nodes:
            for topic in node.topics:
                ends = (topics[topic], keys[node.name]) if node.kind == "source" else (keys[node.name], topics[topic])
                lines.append(f"  {ends[0]} --> {ends[1]}")
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
