"""Layout and format kept beside a store's entries, so that a program in which the store has changed does not misread them.

Whether a topology fits the state is decided before, for the whole application (`coordination/previous_run.py`). The store's own record is a
second safeguard, for files that were copied, or are older than the recording of formats.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from penstock.runtime.serdes.serde_format import SerdeFormat
from penstock.runtime.serdes.type_schemas import json_schema_nodes
from penstock.runtime.stores.base import EngineStore, StoreLayout, StoreSchemas
from penstock.runtime.stores.store_format import StoreFormat, store_changes, with_versions

LAYOUT_META = "layout"
"""Name of the metadata that contains it."""
_FIELDS = ("kind", "timestamped", "key_serde", "value_serde", "window_size_ms", "retention_ms")


class _Kept(msgspec.Struct):
    format: StoreFormat | None = None


def encode_layout(layout: StoreLayout, form: StoreFormat | None = None) -> bytes:
    """Encode a layout, without the fields that follow from others (segments, duplicates). `form`: the format, where it is known."""
    recorded: dict[str, object] = {name: getattr(layout, name) for name in _FIELDS}
    if layout.headers:
        recorded["headers"] = True
    return msgspec.json.encode(recorded if form is None else {**recorded, "format": form})


def decode_format(data: bytes) -> StoreFormat | None:
    """Return the format that `encode_layout` wrote; None for data of an earlier version, or of a later one."""
    try:
        return msgspec.json.decode(data, type=_Kept).format
    except msgspec.DecodeError:
        return None


def layout_with_versions(store: EngineStore, recorded: bytes | None) -> bytes:
    """Return the layout to keep in place of `recorded`: with the formats that existing entries may have, and the store's own."""
    before = None if recorded is None else decode_format(recorded)
    both = store.format is not None and before is not None
    return encode_layout(store.layout, with_versions(before, store.format) if both else store.format)  # type: ignore[arg-type]  # `both`


def decode_layout(data: bytes) -> StoreLayout | None:
    """Return the layout that `encode_layout` wrote; None for data that a later version may write."""
    try:
        return msgspec.json.decode(data, type=StoreLayout)
    except msgspec.DecodeError:
        return None


def changes(recorded: bytes, store: EngineStore) -> list[str]:
    """Describe why entries with the layout `recorded` cannot be read as the store's; empty if they can."""
    layout = decode_layout(recorded)
    if layout is None:
        return []
    return entry_changes(replace(layout, duplicates=store.layout.duplicates), decode_format(recorded), store)  # duplicates are not recorded


def entry_changes(layout: StoreLayout, form: StoreFormat | None, store: EngineStore, schemas: StoreSchemas | None = None) -> list[str]:
    """Describe why entries of this layout and format cannot be read as the store's; empty if they can. Where no format was recorded (by an
    earlier version, or for a user's store), names of serdes and JSON Schemas decide, as far as both are known."""
    if layout.kind != store.layout.kind:
        return [f"it was a {_kind(layout)} store and is a {_kind(store.layout)} store now"]
    if form is None or store.format is None:
        return store_changes(named_format(layout, schemas or StoreSchemas()), named_format(store.layout, store.schemas))
    return store_changes(form, store.format)


def named_format(layout: StoreLayout, schemas: StoreSchemas) -> StoreFormat:
    """Return the format of entries as far as the names of serdes and JSON Schemas show it."""
    return StoreFormat(
        timestamped=layout.timestamped,
        keys=(_named_serde(layout.key_serde, schemas.key),),
        values=(_named_serde(layout.value_serde, schemas.value),),
        window_size_ms=layout.window_size_ms,
        retention_ms=layout.retention_ms,
        segment_ms=layout.segment_ms,
        duplicates=layout.duplicates,
        headers=layout.headers,
    )


def _named_serde(name: str, schema: object) -> SerdeFormat:
    return SerdeFormat(name=name) if schema is None else SerdeFormat(name=name, language="type", schema=json_schema_nodes(schema))


def _kind(layout: StoreLayout) -> str:
    return layout.kind.replace("_", "-")
