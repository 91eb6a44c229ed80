"""Difference of two documents as a JSON merge patch (RFC 7396), in which null removes a key. Documents contain no null."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

Document: TypeAlias = Mapping[str, object]
"""Nested mappings with text keys. Other values, such as lists, are replaced as a whole; no value is None."""


def difference(before: Document, after: Document) -> dict[str, object]:
    """Return the patch that makes `after` of `before`; empty if they are equal. Parts that are the same object are not compared."""
    if before is after:
        return {}
    patch: dict[str, object] = {key: None for key in before if key not in after}
    for key, new in after.items():
        old = before.get(key)
        if old is new:
            continue
        if isinstance(new, Mapping):
            inner = difference(old if isinstance(old, Mapping) else {}, new)
            if inner or not isinstance(old, Mapping):
                patch[key] = inner
        elif old != new:
            patch[key] = new
    return patch


def patched(document: Document, patch: Document) -> dict[str, object]:
    """Apply a patch, as the page does."""
    found = dict(document)
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        elif isinstance(value, Mapping):
            old = found.get(key)
            found[key] = patched(old if isinstance(old, Mapping) else {}, value)
        else:
            found[key] = value
    return found
