"""Checks while a topology is built, with errors that name the node, instead of failures at the first record: users' arguments, sources that
read the same topic, and generated names.

A source with a pattern reads every topic whose name matches it, including topics that are created later (`stream(re.compile(…))`). The
topics are known after a request to the brokers; until then the source has none. A topic belongs to one source: a pattern must not match a
topic that another source names, and two patterns must not match the same topic.

A generated name of a store, or of a topic that contains it, contains the number of operations that were defined before (KIP-1111). If an
operation is inserted before it, the store gets another name, and is empty. Explicit names avoid that;
`ensure.explicit.internal.resource.naming` refuses a topology without them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from penstock.runtime.model.arity import checked
from penstock.runtime.model.errors import TopologyError
from penstock.runtime.operators.map_async import MapAsync
from penstock.runtime.operators.map_batches import MapBatches
from penstock.runtime.operators.processor import UserProcessor
from penstock.runtime.operators.stateless import Foreach, Peek, Print
from penstock.runtime.operators.transform_values import TableTransformValues
from penstock.runtime.serdes.serde import Serde
from penstock.runtime.topology.nodes import Node, ProcessorNode, SinkNode, SourceNode


def check_serde_pair(node: str, key: object, value: object) -> None:
    """Raise TopologyError for an argument that is neither a serde nor None (the default serde)."""
    for serde in (key, value):
        if serde is not None and not isinstance(serde, Serde):
            raise TopologyError(f"{node}: {serde!r} is not a Serde; for example penstock.serdes.STRING")


def check_extractor(node: str, extractor: object | None) -> None:
    """Raise TopologyError for an argument that is not a timestamp extractor: neither a function `(record, partition_time)`, nor an object
    with such a method `extract`, nor a class of such objects."""
    if extractor is None or isinstance(extractor, str):  # a dotted path is imported where the topology runs
        return
    extract = getattr(extractor, "extract", None if isinstance(extractor, type) else extractor)
    if not callable(extract):
        raise TopologyError(
            f"source {node}: a timestamp extractor is a function (record, partition_time), or has a method extract; {extractor!r} does not"
        )
    if not isinstance(extractor, type):
        checked(extract, node, "record", "partition time")


def check_partitioner(node: str, partitioner: object | None) -> None:
    """Raise TopologyError for an argument that is not a partitioner."""
    if partitioner is not None:
        checked(partitioner, node, "topic", "key", "value", "number of partitions")  # type: ignore[type-var]


def check_supplier(node: str, supplier: object, method: str) -> None:
    """Raise TopologyError for an argument that does not create objects with this method: a processor instead of its class, another class,
    or a function with required parameters."""
    if not callable(supplier):
        kind = type(supplier).__name__
        remedy = f": give the class {kind}, or a function that makes a new one each time" if hasattr(supplier, method) else ""
        raise TopologyError(f"node {node}: expected something that makes processors, not {supplier!r}{remedy}")
    if isinstance(supplier, type) and not hasattr(supplier, method):
        remedy = f": give {supplier.__name__}() for a supplier" if hasattr(supplier, "get") else ""
        raise TopologyError(f"node {node}: the class {supplier.__name__} has no method {method}{remedy}")
    checked(supplier, node)


def check_builder(builder: object) -> None:
    """Raise TopologyError for an argument that is not a store builder, such as a supplier or a name."""
    if isinstance(builder, type) or not all(hasattr(builder, member) for member in ("name", "build", "logging_enabled")):
        raise TopologyError(
            f"expected a store's builder, such as Stores.key_value_store_builder(supplier, key_serde, value_serde), not {builder!r}"
        )


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


def has_effect(node: Node) -> bool:
    """Return True for a node that writes a topic, uses a store, or calls code of the application that is there to act."""
    match node:
        case SinkNode():
            return True
        case ProcessorNode():
            acts = isinstance(node.supplier, Foreach | MapAsync | MapBatches | Peek | Print | TableTransformValues | UserProcessor)
            return acts or bool(node.stores) or node.wrapper is not None
    return False


_GENERATED = re.compile(r"(STATE-STORE|KSTREAM-[A-Z-]+|KTABLE-[A-Z-]+)-[0-9]{10}")
_HOW = (
    (re.compile(r"KTABLE-FK-JOIN-SUBSCRIPTION-"), "TableJoined(…)"),
    (re.compile(r"KTABLE-SUPPRESS-"), "Suppressed.….with_name(…)"),
    (re.compile(r"KSTREAM-(JOIN|OUTER)(THIS|OTHER|SHARED)-.*-store"), "StreamJoined(store_name=…)"),
    (re.compile(r"-Buffer$"), "Joined(name=…)"),
    (re.compile(r"KSTREAM-REPARTITION-"), "Repartitioned(…)"),
    (re.compile(r"KSTREAM-TOTABLE-[0-9]{10}-repartition"), "to_table(named=…)"),
    (re.compile(r"STATE-STORE-[0-9]{10}-repartition"), "Grouped(name=…)"),
    (re.compile(r"-repartition$"), "Joined(name=…) or StreamJoined(name=…)"),
)
_MATERIALIZED = "Materialized(…)"


def unnamed(names: Iterable[str], given: Collection[str]) -> list[str]:
    """Return the generated ones among the names, in order. `given`: explicit names, although they look generated."""
    return [name for name in names if is_generated(name) and not any(name.startswith(each) for each in given)]


def is_generated(name: str) -> bool:
    """Return True if a name has the form of generated names."""
    return _GENERATED.search(name) is not None


def how_to_name(name: str) -> str:
    """Return the argument that names a store or repartition topic."""
    return next((how for form, how in _HOW if form.search(name)), _MATERIALIZED)
