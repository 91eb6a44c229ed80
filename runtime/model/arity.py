"""Checks of callbacks' parameters when the topology is built: whether a callback accepts its arguments, and in which of two forms.

Kafka Streams has an interface for each form (`ValueMapper` and `ValueMapperWithKey`, `ValueJoiner` and `ValueJoinerWithKey`); in Python it
is a function. Parameters with defaults do not count. A callable without a readable signature (some built-ins) gets the shorter form. Async
functions are refused except by `map_async`: records are processed synchronously, so nothing would await them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TypeVar

from penstock.runtime.model.errors import TopologyError

Function = TypeVar("Function", bound=Callable[..., object])

_FORMS = {1: "(value) or (key, value)", 2: "(left, right) or (key, left, right)"}


def checked(function: Function, node: str, *parameters: str) -> Function:
    """Return the function if it accepts these parameters. Raises TopologyError, naming the node and the parameters, if not."""
    fewest, most = _takes(function, node)
    if not fewest <= len(parameters) <= most:
        raise TopologyError(f"node {node}: {_name(function)} is given ({', '.join(parameters)}) and takes {_count(fewest, most)}")
    return function


def takes_key(function: Callable[..., object], plain: int, node: str, *, awaited: bool = False) -> bool:
    """Return True if `function` takes the key before its `plain` parameters. `awaited`: it may be async. Raises TopologyError if it accepts
    neither form."""
    fewest, most = _takes(function, node, awaited=awaited)
    if fewest <= plain <= most:
        return False
    if fewest <= plain + 1 <= most:
        return True
    raise TopologyError(f"node {node}: {_name(function)} is given {_FORMS[plain]} and takes {_count(fewest, most)}")


def takes_context(extractor: Callable[..., object], node: str) -> bool:
    """Return True if a topic extractor takes the record's context after (key, value). Raises TopologyError if it accepts neither form."""
    fewest, most = _takes(extractor, node)
    if fewest <= 2 <= most:
        return False
    if fewest <= 3 <= most:
        return True
    given = "(key, value) or (key, value, context)"
    raise TopologyError(f"node {node}: {_name(extractor)} is given {given} and takes {_count(fewest, most)}")


def _takes(function: Callable[..., object], node: str, *, awaited: bool = False) -> tuple[int, int]:
    """Return the smallest and largest number of positional arguments."""
    if not callable(function):
        raise TopologyError(f"node {node}: expected a function, not {function!r}")
    if not awaited and _is_awaited(function):
        raise TopologyError(
            f"node {node}: {_name(function)} is an async function, which is never awaited: pass a plain function, or use map_async"
        )
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a built-in without a signature
        return 0, 1000
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = sum(p.default is p.empty for p in positional)
    return required, 1000 if any(p.kind is p.VAR_POSITIONAL for p in parameters) else len(positional)


def _is_awaited(function: Callable[..., object]) -> bool:
    """Return True if a function, or a callable object, is async."""
    called = getattr(function, "__call__", None)  # noqa: B004 (the method itself)
    return any(kind(f) for kind in (inspect.iscoroutinefunction, inspect.isasyncgenfunction) for f in (function, called))


def _name(function: Callable[..., object]) -> str:
    return str(getattr(function, "__qualname__", repr(function)))


def _count(fewest: int, most: int) -> str:
    return str(fewest) if fewest == most else f"{fewest} to {most}" if most < 1000 else f"at least {fewest}"
