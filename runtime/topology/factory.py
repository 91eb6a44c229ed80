"""A topology by the name of the function that makes it: what a process of its own can be told (rules.md, 6)."""

from __future__ import annotations

import importlib

from runtime.errors import TopologyError
from runtime.topology.topology import Topology


def build_topology(factory: str) -> Topology:
    """Calls `module:function`. Raises TopologyError naming what cannot be imported, called or used."""
    module_name, _, function_name = factory.partition(":")
    if not module_name or not function_name:
        raise TopologyError(f"factory {factory!r}: expected module:function, for example examples.flight_board.topology:build")
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError) as error:
        raise TopologyError(f"factory {factory!r} cannot be imported: {error}") from error
    try:
        topology = function()
    except Exception as error:
        raise TopologyError(f"factory {factory!r} raised {type(error).__name__}: {error}") from error
    if not isinstance(topology, Topology):
        raise TopologyError(f"factory {factory!r} returned {type(topology).__name__}, not a Topology: end it with builder.build()")
    return topology
