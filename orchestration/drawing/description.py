"""Parser of a topology's description, as Kafka Streams and `Topology.describe()` print it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

_PART = re.compile(r"Sub-topology: (\d+)( for global store)?")
_NODE = re.compile(r"(Source|Processor|Sink): (\S+) \((topics?|pattern|stores|extractor class): (.*)\)")


@dataclass(frozen=True, slots=True)
class Node:
    """Source, processor or sink. `topics`: those that a source reads or a sink writes. For a source with a pattern, it is the pattern; for
    a sink that chooses the topic per record, the function's name in brackets."""

    kind: str
    name: str
    topics: tuple[str, ...]
    stores: tuple[str, ...]
    children: tuple[str, ...]
    call_site: str = ""
    """The call and line that made it, if its name was generated."""

    @property
    def title(self) -> str:
        """Its name; if that was generated, the call and line that made it."""
        return self.call_site or self.name


class Level(StrEnum):
    """The most severe problem of a running sub-topology."""

    GOOD = ""
    LAGGING = "lagging"
    PAUSED = "paused"


@dataclass(frozen=True, slots=True)
class Note:
    """Tasks and rates of a running sub-topology, as text, and its most severe problem."""

    text: str
    level: Level = Level.GOOD


@dataclass(frozen=True, slots=True)
class TopicRate:
    """Records per second that the application reads from a topic, and that all writers append to it; None if unknown."""

    read: float | None
    written: float | None


@dataclass(frozen=True, slots=True)
class Part:
    """Sub-topology, or global store with its source. `note`: its tasks and rates while it runs."""

    number: int
    is_global: bool
    nodes: tuple[Node, ...]
    note: Note = Note("")

    @property
    def title(self) -> str:
        """Title of the frame: the kind, and the note."""
        what = f"Global store ({self.number})" if self.is_global else f"Sub-topology {self.number}"
        return f"{what}: {self.note.text}" if self.note.text else what


@dataclass(frozen=True, slots=True)
class Drawing:
    """Parts of a topology, in the order of their numbers."""

    parts: tuple[Part, ...] = field(default=())


def with_call_sites(text: str, call_sites: Mapping[str, str]) -> str:
    """Return the description followed by the call and line that made each node with a generated name."""
    lines = "".join(f"  {node}: {site}\n" for node, site in call_sites.items())
    return f"{text.rstrip()}\n\nLines:\n{lines}" if lines else text


def parse(text: str, notes: Mapping[int, Note] | None = None, call_sites: Mapping[str, str] | None = None) -> Drawing:
    """Parse the description of a topology; `notes` by the number of the sub-topology, `call_sites` by the name of the node. Raises
    ValueError for other text."""
    parts: list[Part] = []
    nodes: list[Node] = []
    for line in text.splitlines():
        if begins := _PART.search(line):
            number = int(begins[1])
            nodes = []
            parts.append(Part(number, begins[2] is not None, (), (notes or {}).get(number, Note(""))))
        elif found := _NODE.search(line):
            kind, name, what, listed = found.groups()
            names = tuple(listed.strip("[]").split(", ")) if listed.strip("[]") else ()
            topics = (f"[{listed}]",) if what == "extractor class" else () if what == "stores" else names
            nodes.append(Node(kind.lower(), name, topics, names if what == "stores" else (), (), (call_sites or {}).get(name, "")))
        elif "-->" in line and nodes:
            children = tuple(name for name in line.split("-->")[1].strip().split(", ") if name != "none")
            last = nodes[-1]
            nodes[-1] = replace(last, children=children)
        if parts:
            parts[-1] = Part(parts[-1].number, parts[-1].is_global, tuple(nodes), parts[-1].note)
    if not parts or not all(part.nodes for part in parts):
        raise ValueError("this is not the text of a topology, as describe() prints it")
    return Drawing(tuple(parts))
