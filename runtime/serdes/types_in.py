"""The types that a type consists of."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import inspect as mi

CLASSES = (mi.StructType, mi.DataclassType, mi.TypedDictType, mi.NamedTupleType)
"""Types with fields."""


def types_in(info: mi.Type) -> Iterator[mi.Type]:
    """Yield a type and those inside it, each class once."""
    seen: set[object] = set()
    rest = [info]
    while rest:
        each = rest.pop()
        if isinstance(each, CLASSES):
            if each.cls in seen:
                continue
            seen.add(each.cls)
        yield each
        rest += _directly_in(each)


def _directly_in(info: mi.Type) -> list[mi.Type]:
    match info:
        case mi.Metadata():
            return [info.type]
        case mi.UnionType():
            return list(info.types)
        case mi.TupleType():
            return list(info.item_types)
        case mi.DictType():
            return [info.key_type, info.value_type]
        case mi.CollectionType():
            return [info.item_type]
        case mi.StructType() | mi.DataclassType() | mi.TypedDictType() | mi.NamedTupleType():
            return [field.type for field in info.fields]
    return []
