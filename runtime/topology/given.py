"""Whether what users hand to a topology can be what it is handed over for: told when the topology is built, by the node's name, instead of
by whatever fails at the first record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runtime.dsl.arity import checked
from runtime.errors import TopologyError
from runtime.serdes.serde import Serde

if TYPE_CHECKING:
    from runtime.topology.topology import Topology


def check_serde_pair(node: str, key: object, value: object) -> None:
    """Raises TopologyError for what is neither a serde nor None, which stands for the default one."""
    for serde in (key, value):
        if serde is not None and not isinstance(serde, Serde):
            raise TopologyError(f"{node}: {serde!r} is not a Serde; for example runtime.serdes.STRING")


def check_extractor(node: str, extractor: object | None) -> None:
    """Raises TopologyError for what cannot tell the time of a record: neither a function `(record, partition_time)`, nor an object with
    such a method `extract`, nor the class of one."""
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
    """Raises TopologyError for what cannot be asked for a partition."""
    if partitioner is not None:
        checked(partitioner, node, "topic", "key", "value", "number of partitions")  # type: ignore[type-var]


def check_supplier(node: str, supplier: object, method: str) -> None:
    """Raises TopologyError for what makes nothing with this method: a processor itself in the place of its class, a class of something
    else, a function that wants arguments."""
    if not callable(supplier):
        kind = type(supplier).__name__
        way_out = f": give the class {kind}, or a function that makes a new one each time" if hasattr(supplier, method) else ""
        raise TopologyError(f"node {node}: expected something that makes processors, not {supplier!r}{way_out}")
    if isinstance(supplier, type) and not hasattr(supplier, method):
        way_out = f": give {supplier.__name__}() for a supplier" if hasattr(supplier, "get") else ""
        raise TopologyError(f"node {node}: the class {supplier.__name__} has no method {method}{way_out}")
    checked(supplier, node)


def checked_topology(topology: Topology) -> Topology:
    """The topology. Raises TopologyError for what is none yet, such as a builder."""
    if not hasattr(topology, "resolved"):
        way_out = ": call its build()" if hasattr(topology, "build") else ""
        raise TopologyError(f"expected a Topology, not {topology!r}{way_out}")
    return topology


def check_builder(builder: object) -> None:
    """Raises TopologyError for what makes no store: a supplier alone, or a name."""
    if isinstance(builder, type) or not all(hasattr(builder, member) for member in ("name", "build", "logging_enabled")):
        raise TopologyError(
            f"expected a store's builder, such as Stores.key_value_store_builder(supplier, key_serde, value_serde), not {builder!r}"
        )
