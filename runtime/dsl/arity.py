"""Which form of a callback a user has written, told by its number of parameters, once, when the topology is built.

Kafka Streams has an interface for each (`ValueMapper` and `ValueMapperWithKey`, `ValueJoiner` and `ValueJoinerWithKey`); Python has a
function. Parameters with defaults do not count; a callable whose signature cannot be read (some built-ins) is taken for the shorter form.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

from runtime.errors import TopologyError


def takes_key(function: Callable[..., object], plain: int, node: str) -> bool:
    """True if `function` takes the key before its `plain` parameters. Raises TopologyError if it takes neither number of them."""
    if not callable(function):
        raise TopologyError(f"node {node}: expected a function, not {function!r}")
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a built-in that does not tell
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = sum(p.default is p.empty for p in positional)
    most = len(positional) + (1000 if any(p.kind is p.VAR_POSITIONAL for p in parameters) else 0)
    if required <= plain <= most:
        return False
    if required <= plain + 1 <= most:
        return True
    forms = {1: "(value) or (key, value)", 2: "(left, right) or (key, left, right)"}[plain]
    raise TopologyError(f"node {node}: {getattr(function, '__qualname__', function)!r} takes {required} parameters; expected {forms}")
