"""Defaults that msgspec does not write: those of a dataclass without slots.

msgspec reads a field that is absent in the JSON without setting it: the value's class has the default, so the attribute reads as it should.
But msgspec writes only what the value itself has. So a value that was read would be written without the field, as other bytes than an
equal value that the program has made, and a later version with another default would read another value. `with_class_defaults` makes the
value complete before it is written.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import inspect as mi

from penstock.runtime.serdes.types_in import CLASSES, types_in


def with_class_defaults(kind: object, write: Callable[[object], bytes]) -> Callable[[object], bytes]:
    """Return a writer of a type that writes every field of its dataclasses; `write` itself if the type needs no more."""
    if not any(isinstance(each, mi.DataclassType) and _defaults(each.cls) for each in types_in(mi.type_info(kind))):
        return write

    def write_whole(value: object) -> bytes:
        _complete(value)
        return write(value)

    return write_whole


def _complete(value: object) -> None:
    """Set the defaults of the dataclasses in a value, in place: the value equals what it was."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _complete(key)
            _complete(inner)
    elif isinstance(value, list | tuple | set | frozenset):
        for inner in value:
            _complete(inner)
    else:
        cls: Any = type(value)  # mypy does not take `type[object]` for hashable
        for name, default in _defaults(cls).items():
            vars(value).setdefault(name, default)
        for name in _inside(cls):
            _complete(getattr(value, name))


@lru_cache(1024)
def _defaults(cls: type) -> Mapping[str, object]:
    """Return the defaults that a dataclass keeps in the class; none for one with slots."""
    cls = getattr(cls, "__origin__", cls)
    if not dataclasses.is_dataclass(cls) or "__dict__" not in dir(cls):
        return {}
    slots = {name for base in cls.__mro__ for name in vars(base).get("__slots__", ())}
    return {
        field.name: field.default
        for field in dataclasses.fields(cls)
        if field.init and field.default is not dataclasses.MISSING and field.name not in slots
    }


@lru_cache(1024)
def _inside(cls: type) -> tuple[str, ...]:
    """Return the fields of a class that may hold further values with fields."""
    if not (dataclasses.is_dataclass(cls) or issubclass(cls, msgspec.Struct)):
        return ()
    info = mi.type_info(cls)
    assert isinstance(info, CLASSES), cls
    return tuple(field.name for field in info.fields if not isinstance(field.type, _PLAIN))


_PLAIN = (mi.NoneType, mi.BoolType, mi.IntType, mi.FloatType, mi.StrType, mi.BytesType, mi.DateTimeType, mi.DecimalType, mi.UUIDType)
