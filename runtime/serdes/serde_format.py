"""The format of the bytes that a serde writes: recorded with a store, and compared with that of later versions of the program.

Wrappers (`list_of`, `time_windowed`, the serdes of joins) have the formats of their inner serdes as parts, so that the same rules apply to
nested changes.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.runtime.serdes.schema_changes import (
    avro_changes,
    avro_defaults,
    avro_removals,
    avro_renames,
    protobuf_changes,
    protobuf_removals,
)
from penstock.runtime.serdes.type_changes import likely_renames, removed_fields, type_changes
from penstock.runtime.serdes.type_schemas import Node, json_schema_nodes


class SerdeFormat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Format of a serde's bytes.

    `name`: the serde's name; that of a wrapper excludes its inner serdes, which are `parts`. The parts of a Protobuf message are the files
    that its file imports. `detail`: what else must be equal, such as the
    size of windows. `language`: the language of `schema` or `text`. `kind`: the Python type that values are converted to, if any.
    """

    name: str
    detail: str = ""
    parts: tuple[SerdeFormat, ...] = ()
    language: str = ""
    """`type`: `schema` describes a type that msgspec reads; `json`, `AVRO`, `JSON`, `PROTOBUF`: `text` is a schema of that language
    (`json`: a JSON Schema that the user's own serde declares)."""
    schema: Node | None = None
    text: str = ""
    kind: Node | None = None

    def __str__(self) -> str:
        inner = self.parts if not self.language else ()
        return f"{self.name}({', '.join(map(str, inner))})" if inner else self.name


def format_changes(written: SerdeFormat, read: SerdeFormat) -> list[str]:
    """Return the reasons why bytes of the first format cannot be read as the second; empty if they can."""
    if written == read:
        return []
    if written.language and written.language == read.language and _named_alike(written, read):
        return _schema_changes(written, read)
    if written.name != read.name or len(written.parts) != len(read.parts):
        return [f"were {written} and are {read} now"]
    if written.detail != read.detail:
        return [f"were {written} of {written.detail} and are of {read.detail} now"]
    return [text for old, new in zip(written.parts, read.parts, strict=True) for text in format_changes(old, new)]


def format_renames(written: SerdeFormat, read: SerdeFormat) -> list[str]:
    """Return messages about fields that were probably renamed (`likely_renames`)."""
    found = [text for old, new in zip(written.parts, read.parts, strict=False) for text in format_renames(old, new)]
    for old, new in ((written.schema, read.schema), (written.kind, read.kind)):
        if old is not None and new is not None:
            found += likely_renames(old, new)
    if written.language == read.language == "AVRO" and written.text and read.text:
        found += avro_renames(written.text, read.text)
    return found


def format_removals(written: SerdeFormat, read: SerdeFormat) -> list[str]:
    """Return the fields that are no longer read."""
    found = [name for old, new in zip(written.parts, read.parts, strict=False) for name in format_removals(old, new)]
    if written.schema is not None and read.schema is not None:
        return found + removed_fields(written.schema, read.schema)
    if written.language == read.language == "AVRO" and written.text and read.text:
        return found + avro_removals(written.text, read.text)
    if written.language == read.language == "PROTOBUF" and written.detail and read.detail:
        old, new = ([each.text, *(part.text for part in each.parts)] for each in (written, read))
        return found + protobuf_removals(old, new, written.detail, read.detail)
    return found


def versions_changes(written: Sequence[SerdeFormat], read: SerdeFormat) -> list[str]:
    """Return the reasons of `format_changes` for bytes of any of several versions, the newest last, and likely renames since the newest."""
    found = [text for version in written for text in format_changes(version, read)]
    return list(dict.fromkeys(found + (format_renames(written[-1], read) if written else [])))


def with_version(written: Sequence[SerdeFormat], now: SerdeFormat) -> tuple[SerdeFormat, ...]:
    """Return the versions that bytes may have once `now` writes as well, with `now` last."""
    return (*(version for version in written if version != now), now)


def _named_alike(written: SerdeFormat, read: SerdeFormat) -> bool:
    """Return True if the schemas may be compared. A class may be renamed; a custom serde is identified by its name."""
    return written.language in ("type", "AVRO", "JSON", "PROTOBUF") or written.name == read.name


def _schema_changes(written: SerdeFormat, read: SerdeFormat) -> list[str]:
    match written.language:
        case "type":
            return type_changes(written.schema or {"is": "any"}, read.schema or {"is": "any"})
        case "AVRO":
            found = avro_changes(written.text, read.text) if written.text and read.text else []
            filled = avro_defaults(read.text)
        case "PROTOBUF":
            imported = [[part.text for part in each.parts] for each in (written, read)]
            return protobuf_changes(written.text, read.text, written.detail or None, read.detail or None, *imported)
        case _:
            nodes = [json_schema_nodes(msgspec.json.decode(each.text)) for each in (written, read) if each.text]
            found, filled = type_changes(*nodes) if len(nodes) == 2 else [], set()
    if written.kind is not None and read.kind is not None:
        found += type_changes(written.kind, read.kind, filled)
    elif (written.kind is None) != (read.kind is None) and not (written.text and read.text):
        found.append(f"were {written} and are {read} now")
    return found
