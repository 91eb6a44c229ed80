"""Checks of users' arguments when a topology is built, with errors that name the node, instead of failures at the first record."""

from __future__ import annotations

from penstock.runtime.model.arity import checked
from penstock.runtime.model.errors import TopologyError
from penstock.runtime.serdes.serde import Serde


def check_serde_pair(node: str, key: object, value: object) -> None:
    """Raise TopologyError for an argument that is neither a serde nor None (the default serde)."""
    for serde in (key, value):
        if serde is not None and not isinstance(serde, Serde):
            raise TopologyError(f"{node}: {serde!r} is not a Serde; for example penstock.serdes.STRING")


def check_extractor(node: str, extractor: object | None) -> None:
    """Raise TopologyError for an argument that is no timestamp extractor: neither a function `(record, partition_time)`, nor an object with
    such a method `extract`, nor a class of such objects."""
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
    """Raise TopologyError for an argument that is no partitioner."""
    if partitioner is not None:
        checked(partitioner, node, "topic", "key", "value", "number of partitions")  # type: ignore[type-var]


def check_supplier(node: str, supplier: object, method: str) -> None:
    """Raise TopologyError for an argument that does not create objects with this method: a processor instead of its class, another class,
    or a function with required parameters."""
    if not callable(supplier):
        kind = type(supplier).__name__
        way_out = f": give the class {kind}, or a function that makes a new one each time" if hasattr(supplier, method) else ""
        raise TopologyError(f"node {node}: expected something that makes processors, not {supplier!r}{way_out}")
    if isinstance(supplier, type) and not hasattr(supplier, method):
        way_out = f": give {supplier.__name__}() for a supplier" if hasattr(supplier, "get") else ""
        raise TopologyError(f"node {node}: the class {supplier.__name__} has no method {method}{way_out}")
    checked(supplier, node)


def check_builder(builder: object) -> None:
    """Raise TopologyError for an argument that is no store builder, such as a supplier or a name."""
    if isinstance(builder, type) or not all(hasattr(builder, member) for member in ("name", "build", "logging_enabled")):
        raise TopologyError(
            f"expected a store's builder, such as Stores.key_value_store_builder(supplier, key_serde, value_serde), not {builder!r}"
        )
