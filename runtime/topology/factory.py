"""Topology factories, named as `module:function`, so that another process can build the same topology (rules.md, 6)."""

from __future__ import annotations

import importlib
import logging
import traceback

from penstock.runtime.model.errors import TopologyError
from penstock.runtime.model.user_errors import described, distinct_ctrl_c, pass_ctrl_c
from penstock.runtime.topology.topology import Topology

logger = logging.getLogger(__name__)
_prepared: dict[str, Topology] = {}


def prepare_topology(factory: str) -> Topology:
    """Build a topology, and keep it for the next call of `build_topology` in this process, so that a check and the run after it call the
    factory once: it may add to a builder of its module, or register metrics. Raises as `build_topology`."""
    topology = build_topology(factory)
    _prepared[factory] = topology
    return topology


def build_topology(factory: str) -> Topology:
    """Call `module:function` and return its topology. Raises TopologyError, naming the cause, if that fails."""
    if (prepared := _prepared.pop(factory, None)) is not None:
        return prepared
    module_name, _, function_name = factory.partition(":")
    if not module_name or not function_name:
        raise TopologyError(f"factory {factory!r}: expected module:function, for example examples.flight_board.topology:build")
    with distinct_ctrl_c():
        try:
            function = getattr(importlib.import_module(module_name), function_name)
        except BaseException as error:
            pass_ctrl_c(error, f"factory {factory}")
            raise TopologyError(f"factory {factory!r} cannot be imported: {_cause(error, module_name)}") from error
        try:
            topology = function()
        except BaseException as error:
            pass_ctrl_c(error, f"factory {factory}")
            raise TopologyError(f"factory {factory!r} raised {_cause(error, module_name)}") from error
    if not isinstance(topology, Topology):
        raise TopologyError(f"factory {factory!r} returned {type(topology).__name__}, not a Topology: end it with builder.build()")
    return topology


def _cause(error: BaseException, module: str) -> str:
    """Return the error's text, with the last line of the factory's package in its traceback."""
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg} ({error.filename}, line {error.lineno})"
    package = module.partition(".")[0]
    frames = traceback.walk_tb(error.__traceback__)
    own = [(frame, line) for frame, line in frames if str(frame.f_globals.get("__name__")).partition(".")[0] == package]
    place = f" ({own[-1][0].f_code.co_filename}, line {own[-1][1]})" if own else ""
    return f"{described(error)}{place}"


def checked_topology(topology: Topology) -> Topology:
    """Return the topology. Raises TopologyError for any other object, such as a builder."""
    if not hasattr(topology, "resolved"):
        remedy = ": call its build()" if hasattr(topology, "build") else ""
        raise TopologyError(f"expected a Topology, not {topology!r}{remedy}")
    return topology


def warn_of_no_effect(topology: Topology) -> None:
    """Log sub-topologies that do nothing, which are probably unfinished."""
    if idle := topology.without_effect():
        logger.warning(
            "the topology has a part without effect: %s. It writes no topic and keeps no store. "
            "Is a to(...), or the name of a store, missing?",
            idle,
        )
