"""Diagrams of topologies: Mermaid for pages that render it, SVG for all others. Their source is the text of `Topology.describe()`, which is
also on the coordination topic, so a diagram needs neither the application's code nor a running instance."""

from penstock.orchestration.drawing.description import Drawing, Level, Node, Note, Part, TopicRate, parse, with_call_sites
from penstock.orchestration.drawing.mermaid import mermaid
from penstock.orchestration.drawing.svg import svg

__all__ = ["Drawing", "Level", "Node", "Note", "Part", "TopicRate", "mermaid", "parse", "svg", "with_call_sites"]
