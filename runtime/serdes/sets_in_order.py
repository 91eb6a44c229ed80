"""Sets in an order of their own. Each process has another one (texts are hashed with a random number), so equal keys with a set in them
would be other bytes in each: two keys, counted apart.

msgspec orders sets whose items can be compared, and with them dicts whose keys are text. Any other set becomes a list, in the order of its
items' bytes, which JSON writes as it writes a set.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from msgspec import inspect as mi

from penstock.runtime.serdes.types_in import types_in

_COMPARABLE = (mi.IntType, mi.FloatType, mi.StrType, mi.BytesType, mi.DecimalType, mi.DateType, mi.UUIDType)


def ordered_encoder(info: mi.Type) -> Callable[[object], bytes]:
    """Return msgspec's encoder of a type as JSON, which writes equal sets as equal bytes."""
    inside = list(types_in(info))
    items = [each.item_type for each in inside if isinstance(each, mi.SetType | mi.FrozenSetType)]
    if not items:
        return msgspec.json.Encoder().encode
    keys = [each.key_type for each in inside if isinstance(each, mi.DictType)]
    if all(isinstance(each, _COMPARABLE) for each in items) and all(isinstance(each, mi.StrType) for each in keys):
        return msgspec.json.Encoder(order="deterministic").encode
    encode = msgspec.json.Encoder().encode
    return lambda value: encode(_ordered(value, encode))


def _ordered(value: object, encode: Callable[[object], bytes]) -> object:
    """Return a value with lists in place of its sets. Instances of classes are copied, without `__init__` and `__post_init__`."""
    if isinstance(value, set | frozenset):
        return sorted((_ordered(each, encode) for each in value), key=encode)
    if isinstance(value, dict):
        return {key: _ordered(each, encode) for key, each in value.items()}
    if isinstance(value, list):
        return [_ordered(each, encode) for each in value]
    if isinstance(value, tuple):
        items = tuple(_ordered(each, encode) for each in value)
        return value._make(items) if hasattr(value, "_make") else items  # a named tuple
    if isinstance(value, msgspec.Struct):
        return _with_ordered_fields(value, value.__struct_fields__, msgspec.structs.force_setattr, encode)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _with_ordered_fields(value, [field.name for field in dataclasses.fields(value)], object.__setattr__, encode)
    return value


def _with_ordered_fields(
    value: object, names: Iterable[str], put: Callable[[Any, str, Any], None], encode: Callable[[object], bytes]
) -> object:
    found = {name: (own, _ordered(own, encode)) for name in names if (own := getattr(value, name, None)) is not None}
    changed = {name: ordered for name, (own, ordered) in found.items() if ordered is not own}
    if not changed:
        return value
    made = copy.copy(value)
    for name, ordered in changed.items():
        put(made, name, ordered)
    return made
