"""What a JSON Schema says of a value beside its type: how large, how long, of what pattern.

The serde of a type with `msgspec.Meta` refuses what is beyond, so it does not fit here either.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import cast

import msgspec

from assets.spark.shapes import LONG, Scalar, limited

_OF_NUMBERS = {"minimum": "ge", "exclusiveMinimum": "gt", "maximum": "le", "exclusiveMaximum": "lt", "multipleOf": "multiple_of"}
_LIMITS: Mapping[str, Mapping[str, str]] = {
    "integer": _OF_NUMBERS,
    "number": _OF_NUMBERS,
    "string": {"minLength": "min_length", "maxLength": "max_length", "pattern": "pattern"},
    "array": {"minItems": "min_length", "maxItems": "max_length"},
}
"""The words of JSON Schema, by type, and those of `msgspec.Meta`."""
_LEAST, _LARGEST = -(2**63), 2**63 - 1


def within(shape: Scalar, schema: Mapping[str, object]) -> Scalar:
    """The shape with the limits that the schema sets to its type."""
    limits = limits_of(str(schema["type"]), schema)
    return shape if limits is None else replace(shape, python=limited(int if shape is LONG else shape.python, limits))


def limits_of(kind: str, schema: Mapping[str, object]) -> msgspec.Meta | None:
    """The limits that a schema sets to a type; None where it sets none. Those that msgspec could not hold are passed over."""
    words = _LIMITS.get(kind, {})
    given: dict[str, object] = {words[word]: value for word, value in schema.items() if word in words and _is_usable(kind, word, value)}
    if not given:
        return None
    if kind == "integer":  # what a BIGINT holds bounds it too
        given = {**({} if "gt" in given else {"ge": _LEAST}), **({} if "lt" in given else {"le": _LARGEST}), **given}
    return cast("Callable[..., msgspec.Meta]", msgspec.Meta)(**given)  # whose words depend on each other, which no mapping can tell


def _is_usable(kind: str, word: str, value: object) -> bool:
    if word == "pattern":
        return isinstance(value, str) and _is_pattern(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if word == "multipleOf" and value <= 0:
        return False
    return kind == "number" or (isinstance(value, int) and _LEAST <= value <= _LARGEST)


def _is_pattern(text: str) -> bool:
    try:
        re.compile(text)
    except re.error:
        return False
    return True
