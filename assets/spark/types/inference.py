"""Inference of a JSON Schema from values whose type is not declared.

All values are examined, so that no field is missed; a declared type, or a sample, is faster. Fields are ordered by
name, each may be missing or null, and an object with an unseen field does not fit: a sample never loses a field silently.
Integers mixed with other numbers are numbers, if each integer is exactly a DOUBLE; other mixtures have no type (`{}`) and become
text. Objects that use names as data, a thousand or more of them, are maps.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TypeAlias

import msgspec
import pyarrow as pa

from penstock.assets.spark.types.shapes import EXACT

_Json: TypeAlias = "dict[str, object] | list[object] | str | int | float | bool | None"
_MOST_FIELDS, _DEEPEST = 1_000, 32
_KINDS: dict[type, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
    dict: "object",
    list: "array",
}
_NOTHING: dict[str, object] = {"type": "null"}
"""Type of the items of lists and objects that were always empty: no item fits it, so none is mistaken for text."""
_decode = msgspec.json.Decoder().decode
_NO_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def infer(columns: Iterable[pa.BinaryArray]) -> dict[str, object] | None:
    """Infer the JSON Schema of all values in some columns; None if there are no values. Bytes that are not JSON are ignored here: they fit
    no schema."""
    return infer_of([observed(columns)])


def observed(columns: Iterable[pa.BinaryArray]) -> bytes:
    """Observe some columns for `infer_of`: if there is too much data for one process, each observes a part."""
    seen = _Seen()
    for column in columns:
        seen.add(_objects(column.drop_null().to_pylist()), 0)
    return pickle.dumps(seen)


def infer_of(observations: Iterable[bytes]) -> dict[str, object] | None:
    """Infer the JSON Schema, like `infer`, from the results of `observed` in several processes of one program."""
    seen = _Seen()
    for observation in observations:
        seen._absorb(pickle.loads(observation))
    return seen.schema() if seen.kinds else None


def _objects(values: Sequence[bytes]) -> Sequence[object]:
    """Parse the values, without those that are not JSON. Each is parsed alone: two invalid ones, joined, could form a valid one."""
    try:
        return [_decode(value) for value in values]
    except _NO_JSON:
        return [each for value in values for each in _object(value)]


def _object(value: bytes) -> list[object]:
    try:
        return [_decode(value)]
    except _NO_JSON:
        return []


class _Seen:
    """Types observed at one position of the values."""

    def __init__(self) -> None:
        self.kinds: set[str] = set()
        self._fields: dict[str, _Seen] = {}
        self._items: _Seen | None = None
        """Node of the items of arrays, and of the values of maps."""
        self._is_map = False

    def add(self, objects: Sequence[object], depth: int) -> None:
        """Observe objects, `depth` levels below the value."""
        types = set(map(type, objects))
        self.kinds.update(_KINDS[each] for each in types)
        if int in types:
            self._add_size([each for each in objects if type(each) is int])
        if depth >= _DEEPEST:
            self.kinds.update(("object", "array") if types & {dict, list} else ())
            return
        if list in types:
            self._add_items(list(chain.from_iterable(each for each in objects if type(each) is list)), depth)
        if dict in types:
            self._add_fields([each for each in objects if type(each) is dict], depth)

    def _add_size(self, numbers: Sequence[int]) -> None:
        if not -(2**63) <= min(numbers) <= max(numbers) < 2**63:
            self.kinds.add("huge")
        if max(map(abs, numbers)) > EXACT:
            self.kinds.add("wide")

    def _add_items(self, items: Sequence[object], depth: int) -> None:
        if self._items is None:
            self._items = _Seen()
        self._items.add(items, depth + 1)

    def _add_fields(self, found: Sequence[dict[str, object]], depth: int) -> None:
        names = set().union(*found)
        if not self._is_map and len(names | self._fields.keys()) >= _MOST_FIELDS:
            self._become_map()
        if self._is_map:
            self._add_items(list(chain.from_iterable(each.values() for each in found)), depth)
            return
        for name in names:
            self._fields.setdefault(name, _Seen()).add([each[name] for each in found if name in each], depth + 1)

    def _become_map(self) -> None:
        self._is_map = True
        for field in self._fields.values():
            self._items = field if self._items is None else self._items._absorb(field)
        self._fields.clear()

    def _absorb(self, other: _Seen) -> _Seen:
        self.kinds |= other.kinds
        if other._items is not None:
            self._items = other._items if self._items is None else self._items._absorb(other._items)
        for name, field in other._fields.items():
            self._fields[name] = self._fields[name]._absorb(field) if name in self._fields else field
        self._is_map = self._is_map or other._is_map
        if self._is_map or len(self._fields) >= _MOST_FIELDS:
            self._become_map()
        return self

    def schema(self) -> dict[str, object]:
        """Return the JSON Schema."""
        found = self._of_present(self.kinds - {"null"})
        return _or_null(found) if "null" in self.kinds else found

    def _of_present(self, kinds: set[str]) -> dict[str, object]:
        if kinds == {"integer", "wide"}:
            return {"type": "integer"}
        if kinds == {"integer", "number"}:
            return {"anyOf": [{"type": "integer"}, {"type": "number"}]}
        if not kinds:
            return {"type": "null"}
        if len(kinds) > 1:
            return {}
        (kind,) = kinds
        if kind == "array":
            return {"type": "array", "items": self._items.schema() if self._items is not None else _NOTHING}
        if kind == "object" and (self._is_map or not self._fields):
            return {"type": "object", "additionalProperties": self._items.schema() if self._items is not None else _NOTHING}
        if kind == "object":
            properties = {name: _or_null(self._fields[name].schema()) for name in sorted(self._fields)}
            return {"type": "object", "properties": properties, "additionalProperties": False}
        return {"type": kind}


def _or_null(schema: dict[str, object]) -> dict[str, object]:
    members = schema.get("anyOf", [schema])
    assert isinstance(members, list)
    return schema if not schema or _NOTHING in members else {"anyOf": [*members, _NOTHING]}
