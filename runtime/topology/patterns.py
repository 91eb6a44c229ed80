"""Sources that read every topic whose name matches a pattern, including topics that are created later (`stream(re.compile(…))`).

The topics are known after a request to the brokers; until then the source has none. A topic belongs to one source: a pattern must not match
a topic that another source names, and two patterns must not match the same topic.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from penstock.runtime.model.errors import TopologyError
from penstock.runtime.topology.nodes import Node, SourceNode

_KAFKAS_OWN = frozenset(("__consumer_offsets", "__share_group_state", "__transaction_state"))


def check_apart(name: str, pattern: re.Pattern[str] | None, topics: Iterable[str], others: Iterable[Node]) -> None:
    """Raise TopologyError if a new source reads a topic of another one, as far as topics are known yet."""
    for other in others:
        if not isinstance(other, SourceNode):
            continue
        if pattern is None and (taken := set(topics) & set(other.topics)):
            raise TopologyError(f"source {name}: topic {', '.join(sorted(taken))} is already read by source {other.name}")
        matching, named = (pattern, other.topics) if pattern is not None else (other.pattern, tuple(topics))
        if matching is not None and (taken := {topic for topic in named if matching.fullmatch(topic)}):
            raise TopologyError(
                f"source {name}: the pattern {matching.pattern} of source {name if pattern is not None else other.name} matches the topic "
                f"{', '.join(sorted(taken))}, which source {other.name if pattern is not None else name} reads: a topic has one source"
            )


def matched(nodes: Mapping[str, Node], existing: Collection[str], own: str) -> dict[str, Node]:
    """Return the nodes, with the existing topics that their patterns match, except Kafka's own topics and those that begin with `own`.
    Raises TopologyError if two patterns match one topic."""
    candidates = sorted(topic for topic in existing if topic not in _KAFKAS_OWN and not topic.startswith(own))
    taken: dict[str, SourceNode] = {}
    found = dict(nodes)
    for node in nodes.values():
        if not isinstance(node, SourceNode) or node.pattern is None:
            continue
        topics = tuple(topic for topic in candidates if node.pattern.fullmatch(topic))
        for topic in topics:
            other = taken.setdefault(topic, node)
            if other is not node:
                raise TopologyError(f"topic {topic} is matched by the patterns of source {other.name} and source {node.name}: only one may")
        found[node.name] = replace(node, topics=topics)
    return found
