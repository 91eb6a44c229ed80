"""Check of the type of a serde at its declaration: can msgspec write its values as JSON and read them again?

msgspec itself refuses some types when the decoder is made, with an error that names the inner type alone. Others it accepts and fails on
the first value that is read, which may be a value in a store, long after the program was started: classes that it does not know, dicts
whose keys JSON cannot hold, sets of lists.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import get_origin

import msgspec
from msgspec import inspect as mi

from penstock.runtime.model.errors import TopologyError
from penstock.runtime.serdes.class_defaults import with_class_defaults
from penstock.runtime.serdes.sets_in_order import ordered_encoder
from penstock.runtime.serdes.types_in import CLASSES

_JSON_VALUES = (dict, list, str, int, float, bool, type(None))
_NUMBERS = (mi.IntType, mi.FloatType, mi.DecimalType)
_NO_KEYS = (mi.NoneType, mi.BoolType, mi.CollectionType, mi.TupleType, mi.DictType, mi.StructType, mi.DataclassType, mi.TypedDictType)
_UNHASHABLE = (mi.ListType, mi.DictType, mi.SetType, mi.ByteArrayType, mi.TypedDictType)


def class_of(info: mi.StructType | mi.DataclassType | mi.TypedDictType | mi.NamedTupleType) -> type:
    """Return the class itself, `Box` for `Box[int]`."""
    return get_origin(info.cls) or info.cls


def check_json_type(kind: object, serde: str) -> None:
    """Raise TopologyError, naming serde, type and remedy, if msgspec cannot write all values of the type as JSON and read them again."""
    try:
        msgspec.json.Decoder(kind)
        found = next(_problems("", mi.type_info(kind), set()), None)
    except Exception as error:
        raise TopologyError(_message(kind, serde, f"{type(error).__name__}: {error}")) from error
    if found is not None:
        raise TopologyError(_message(kind, serde, found))


def json_writer(kind: object, read: Callable[[bytes], object]) -> Callable[[object], bytes]:
    """Return the encoder of a type, which writes every default, so that equal values are equal bytes. It raises ValueError for NaN and
    infinities: JSON has neither, and msgspec writes null, which is read as another value or not at all. `read`: the type's decoder.

    Only data that holds `null` is checked, and none of a type without floats: other data costs one more call.
    """
    info = mi.type_info(kind)
    encode = with_class_defaults(kind, ordered_encoder(info))
    floats, nullable = _floats(info, set())
    if not floats:
        return encode

    def write(value: object) -> bytes:
        data = encode(value)
        if b"null" in data:
            if nullable:
                _refuse_non_finite(msgspec.to_builtins(value, builtin_types=(bytes,)))
            else:
                try:
                    read(data)
                except msgspec.ValidationError:
                    _refuse_non_finite(msgspec.to_builtins(value, builtin_types=(bytes,)))
        return data

    return write


def _floats(info: mi.Type, seen: set[object]) -> tuple[bool, bool]:
    """Return whether a type holds floats, and whether null may stand where one does."""
    match info:
        case mi.Metadata():
            return _floats(info.type, seen)
        case mi.FloatType():
            return True, False
        case mi.AnyType() | mi.CustomType() | mi.RawType():
            return True, True
        case mi.UnionType():
            floats, nullable = _any_floats(info.types, seen)
            return floats, nullable or (floats and any(isinstance(each, mi.NoneType) for each in info.types))
        case mi.TupleType():
            return _any_floats(info.item_types, seen)
        case mi.DictType():
            return _any_floats((info.key_type, info.value_type), seen)
        case mi.CollectionType():
            return _floats(info.item_type, seen)
        case mi.StructType() | mi.DataclassType() | mi.TypedDictType() | mi.NamedTupleType() if info.cls not in seen:
            seen.add(info.cls)
            return _any_floats([field.type for field in info.fields], seen)
    return False, False


def _any_floats(infos: Iterable[mi.Type], seen: set[object]) -> tuple[bool, bool]:
    found = [_floats(each, seen) for each in infos]
    return any(floats for floats, _ in found), any(nullable for _, nullable in found)


def _refuse_non_finite(value: object) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"JSON has no {value}, which would be written as null: write None where the type allows it, or another number")
    if isinstance(value, dict):
        for inner in (*value.keys(), *value.values()):
            _refuse_non_finite(inner)
    elif isinstance(value, list | tuple | set | frozenset):
        for inner in value:
            _refuse_non_finite(inner)


def _message(kind: object, serde: str, why: str) -> str:
    name = kind.__qualname__ if isinstance(kind, type) and get_origin(kind) is None else repr(kind)
    return (
        f"{serde} cannot have the type {name}: {why}. Use a dataclass, a msgspec.Struct, a TypedDict, or types that JSON has; "
        f'for any other type, define a serde of your own: serdes.Serde(write, read, name="{getattr(kind, "__name__", "mine")}-1")'
    )


def _problems(at: str, info: mi.Type, seen: set[object]) -> Iterator[str]:
    match info:
        case mi.Metadata():
            yield from _problems(at, info.type, seen)
        case mi.CustomType() if not any(_is_a(each, info.cls) for each in _JSON_VALUES):
            yield f"{_named(at)} is {info.cls.__qualname__}, which msgspec cannot read from JSON"
        case mi.UnionType():
            for each in info.types:
                yield from _problems(at, each, seen)
        case mi.TupleType():
            for place, each in enumerate(info.item_types):
                yield from _problems(f"{at}[{place}]", each, seen)
        case mi.DictType():
            if (why := _wrong_key(info.key_type)) is not None:
                yield f"the keys of {_named(at)} are {why}"
            yield from _problems(f"a key of {_named(at)}", info.key_type, seen)
            yield from _problems(f"{at}[]", info.value_type, seen)
        case mi.CollectionType():
            if isinstance(info, mi.SetType | mi.FrozenSetType) and _is_unhashable(info.item_type):
                yield f"{_named(at)} is a set of values that are not hashable"
            yield from _problems(f"{at}[]", info.item_type, seen)
        case mi.StructType() | mi.DataclassType() | mi.TypedDictType() | mi.NamedTupleType() if info.cls not in seen:
            seen.add(info.cls)
            for field in info.fields:
                yield from _problems(f"{at}.{field.name}" if at else field.name, field.type, seen)


def _is_a(value: type, cls: type) -> bool:
    try:
        return issubclass(value, cls)
    except TypeError:  # a protocol that isinstance does not accept
        return False


def _wrong_key(info: mi.Type) -> str | None:
    """Return why JSON cannot hold a dict's keys, or would not give them back; None if it can."""
    while isinstance(info, mi.Metadata):
        info = info.type
    if isinstance(info, mi.UnionType):
        members = [each.type if isinstance(each, mi.Metadata) else each for each in info.types]
        if any(map(_is_number, members)) and not all(map(_is_number, members)):
            return "of a union of numbers and texts: JSON has texts alone as keys, so a number would be read as a text"
        return next(filter(None, map(_wrong_key, members)), None)
    if isinstance(info, _NO_KEYS) or (isinstance(info, mi.CustomType) and not _is_a(str, info.cls)):
        return "neither texts nor numbers, and JSON has no other keys"
    if isinstance(info, mi.LiteralType):
        values = [type(each) for each in info.values]
        if not (set(values) <= {str} or set(values) <= {int}):
            return "neither all texts nor all numbers, and JSON would not give them back"
    return None


def _is_number(info: mi.Type) -> bool:
    of_values = isinstance(info, mi.LiteralType) and all(type(each) is int for each in info.values)
    of_members = isinstance(info, mi.EnumType) and all(isinstance(each.value, int) for each in info.cls)
    return isinstance(info, _NUMBERS) or of_values or of_members


def _is_unhashable(info: mi.Type) -> bool:
    while isinstance(info, mi.Metadata):
        info = info.type
    if isinstance(info, mi.UnionType):
        return any(map(_is_unhashable, info.types))
    if isinstance(info, mi.StructType):
        config = class_of(info).__struct_config__  # type: ignore[attr-defined]  # every struct has it
        return bool(config.eq and not config.frozen)  # its __hash__ raises
    return isinstance(info, _UNHASHABLE) or (isinstance(info, CLASSES) and class_of(info).__hash__ is None)


def _named(at: str) -> str:
    if not at or at.startswith("a key"):
        return at or "the value"
    return f"the value at {at}" if at.startswith("[") else f"field {at}"
