"""The signatures of overloaded methods in `help()`, which shows the implementation's `*arguments` only."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from textwrap import indent
from typing import TypeVar, get_overloads

Function = TypeVar("Function", bound=Callable[..., object])


def with_overloads(function: Function) -> Function:
    """Append the overloads' signatures to the docstring of their implementation."""
    signatures = "\n".join(_shown(function.__name__, inspect.signature(overload)) for overload in get_overloads(function))
    function.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\nSignatures:\n\n{indent(signatures, '    ')}\n"
    return function


def _shown(name: str, signature: inspect.Signature) -> str:
    parameters = [_parameter(each) for each in signature.parameters.values() if each.name != "self"]
    return f"{name}({', '.join(parameters)}) -> {signature.return_annotation}"


def _parameter(parameter: inspect.Parameter) -> str:
    default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
    return f"{parameter.name}: {parameter.annotation}{default}"
