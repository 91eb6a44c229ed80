"""The layout that a store keeps beside its entries, so that a program in which the store has become another one does not misread them."""

from __future__ import annotations

import msgspec

from runtime.stores.base import StoreLayout

KEPT_LAYOUT = "layout"
"""The meta that holds it."""
_FIELDS = ("kind", "timestamped", "key_serde", "value_serde", "window_size_ms", "retention_ms")


def encode_layout(layout: StoreLayout) -> bytes:
    """As it is kept: what follows from the rest (segments, duplicates) is not."""
    return msgspec.json.encode({name: getattr(layout, name) for name in _FIELDS})


def decode_layout(data: bytes) -> StoreLayout | None:
    """What `encode_layout` wrote; None for what a later version may write."""
    try:
        return msgspec.json.decode(data, type=StoreLayout)
    except msgspec.DecodeError:
        return None


def differences(kept: StoreLayout, wanted: StoreLayout) -> list[str]:
    """Why entries of the one cannot be read as the other, in words. Times of windows are none of it: retention is looked at apart."""
    told = []
    if kept.kind != wanted.kind:
        told.append(f"it was a {_kind(kept)} store and is a {_kind(wanted)} store now")
    elif kept.timestamped != wanted.timestamped:
        told.append(f"its values were kept {_time(kept)} and would be read {_time(wanted)}")
    if kept.key_serde != wanted.key_serde:
        told.append(f"its keys were {kept.key_serde} and are {wanted.key_serde} now")
    if kept.value_serde != wanted.value_serde:
        told.append(f"its values were {kept.value_serde} and are {wanted.value_serde} now")
    return told


def _kind(layout: StoreLayout) -> str:
    return layout.kind.replace("_", "-")


def _time(layout: StoreLayout) -> str:
    return "with a timestamp" if layout.timestamped else "without a timestamp"
