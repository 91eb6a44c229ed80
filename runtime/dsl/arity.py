"""Whether a callback takes what it will be given, and in which of two forms: told by its parameters, once, when the topology is built.

Kafka Streams has an interface for each form (`ValueMapper` and `ValueMapperWithKey`, `ValueJoiner` and `ValueJoinerWithKey`); Python has a
function. Parameters with defaults do not count; a callable whose signature cannot be read (some built-ins) is taken for the shorter form.
Functions that are awaited are refused: records are processed one after the other, and nobody would await what they return.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TypeVar

from runtime.errors import TopologyError

Function = TypeVar("Function", bound=Callable[..., object])

_FORMS = {1: "(value) or (key, value)", 2: "(left, right) or (key, left, right)"}


def checked(function: Function, node: str, *parameters: str) -> Function:
    """The function, if it can be called with so many arguments. Raises TopologyError naming the node and what it will be given."""
    fewest, most = _takes(function, node)
    if not fewest <= len(parameters) <= most:
        raise TopologyError(f"node {node}: {_name(function)} is given ({', '.join(parameters)}) and takes {_count(fewest, most)}")
    return function


def takes_key(function: Callable[..., object], plain: int, node: str) -> bool:
    """True if `function` takes the key before its `plain` parameters. Raises TopologyError if it takes neither number of them."""
    fewest, most = _takes(function, node)
    if fewest <= plain <= most:
        return False
    if fewest <= plain + 1 <= most:
        return True
    raise TopologyError(f"node {node}: {_name(function)} is given {_FORMS[plain]} and takes {_count(fewest, most)}")


def takes_context(extractor: Callable[..., object], node: str) -> bool:
    """True if a function that chooses a topic takes the record's context behind (key, value). Raises TopologyError if it takes neither."""
    fewest, most = _takes(extractor, node)
    if fewest <= 2 <= most:
        return False
    if fewest <= 3 <= most:
        return True
    given = "(key, value) or (key, value, context)"
    raise TopologyError(f"node {node}: {_name(extractor)} is given {given} and takes {_count(fewest, most)}")


def _takes(function: Callable[..., object], node: str) -> tuple[int, int]:
    """The fewest and the most positional arguments."""
    if not callable(function):
        raise TopologyError(f"node {node}: expected a function, not {function!r}")
    if _is_awaited(function):
        raise TopologyError(f"node {node}: {_name(function)} is an async function, which nobody would await; give a plain one")
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a built-in that does not tell
        return 0, 1000
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = sum(p.default is p.empty for p in positional)
    return required, 1000 if any(p.kind is p.VAR_POSITIONAL for p in parameters) else len(positional)


def _is_awaited(function: Callable[..., object]) -> bool:
    """Whether a function, or an object that is called like one, is async."""
    called = getattr(function, "__call__", None)  # noqa: B004 (the method itself)
    return any(kind(f) for kind in (inspect.iscoroutinefunction, inspect.isasyncgenfunction) for f in (function, called))


def _name(function: Callable[..., object]) -> str:
    return str(getattr(function, "__qualname__", repr(function)))


def _count(fewest: int, most: int) -> str:
    return str(fewest) if fewest == most else f"{fewest} to {most}" if most < 1000 else f"at least {fewest}"
