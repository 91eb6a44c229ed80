"""Pictures of topologies: Mermaid for pages that render it, SVG for everything else. Drawn from the text of `Topology.describe()`, which
stands on the coordination topic too, so that a picture needs neither the application's code nor a running instance."""

from orchestration.drawing.description import Drawing, Node, Part, parse
from orchestration.drawing.mermaid import mermaid
from orchestration.drawing.svg import svg

__all__ = ["Drawing", "Node", "Part", "mermaid", "parse", "svg"]
