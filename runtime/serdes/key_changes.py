"""Compatibility of two formats of keys. A key is found, and gets its partition, by its bytes. So it is not enough that existing keys can be
read in the new format: the new format must also write them as the same bytes.

| change | answer |
|---|---|
| a field is added, with a default too, or removed; another order of fields | refused |
| int → float, int or float → Decimal, set → list | refused |
| what a field may be left out for (`omit_defaults`, its default, UNSET) | refused |
| a union, an enum, a literal or a constraint gets wider; T → T or None | fits |
| only the class's name | fits |
| any change of a schema in a registry | refused: the bytes contain the schema's id |
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import msgspec

from penstock.runtime.serdes.serde_format import SerdeFormat, versions_changes
from penstock.runtime.serdes.type_changes import alternatives
from penstock.runtime.serdes.type_schemas import Node, json_schema_nodes

_REGISTRY = ("AVRO", "JSON", "PROTOBUF")


def key_changes(written: Sequence[SerdeFormat], read: SerdeFormat) -> list[str]:
    """Return the reasons why keys of any of several versions cannot be read, or would be written as other bytes; empty if neither."""
    found = versions_changes(written, read)
    if found:
        return found
    other = dict.fromkeys(text for version in written for text in _format(version, read))
    return [f"{text}, so they would be written as other bytes, by which what is stored is not found" for text in other]


def _format(written: SerdeFormat, read: SerdeFormat) -> Iterator[str]:
    if written.language != read.language or not written.language:
        for old, new in zip(written.parts, read.parts, strict=False):
            yield from _format(old, new)
    elif written.language in _REGISTRY:
        schemas = _schemas(written), _schemas(read)
        if schemas[0] != schemas[1] and all((*schemas[0], *schemas[1])):
            yield "their schema has changed, and with it the id that they begin with"
    else:
        before, after = _described(written), _described(read)
        if before is not None and after is not None:
            yield from _Comparison(before, after).differences("", before, after, frozenset())


def _schemas(form: SerdeFormat) -> list[object]:
    texts = [form.text, *(part.text for part in form.parts)]
    return [msgspec.json.decode(text) if text and form.language != "PROTOBUF" else text for text in texts]


def _described(form: SerdeFormat) -> Node | None:
    if form.language == "type":
        return form.schema
    return json_schema_nodes(msgspec.json.decode(form.text)) if form.text else None


class _Comparison:
    """Two descriptions of which the second can read what the first wrote."""

    def __init__(self, written: Node, read: Node) -> None:
        self._written, self._read = written, read

    def differences(self, at: str, written: Node, read: Node, seen: frozenset[tuple[int, int]]) -> Iterator[str]:
        """Yield the reasons why a value of the first type is written by the second as other bytes."""
        choices = alternatives(read, self._read)
        for each in alternatives(written, self._written):
            found = [next(self._plain(at, each, other, seen), None) for other in choices]
            if None not in found:
                yield str(found[0] if len(found) == 1 else f"{_named(at)} has another type")

    def _plain(self, at: str, written: Node, read: Node, seen: frozenset[tuple[int, int]]) -> Iterator[str]:
        if (id(written), id(read)) in seen:
            return
        seen |= {(id(written), id(read))}
        old, new = written["is"], read["is"]
        if new == "any" or (old == "enum" and new in ("enum", "str", "int")):
            return  # it is read already, and written as it was read
        if old != new or any(written.get(name) != read.get(name) for name in ("as", "set", "tag", "text")):
            yield f"{_named(at)} was {_kind(written)} and is {_kind(read)}"
        elif old == "object":
            yield from self._objects(at, cast(dict[str, Node], written["fields"]), cast(dict[str, Node], read["fields"]), seen)
        elif old == "tuple":
            places, still = cast(list[Node], written["fields"]), cast(list[Node], read["fields"])
            if len(places) != len(still):
                yield f"{_named(at)} had {len(places)} places and has {len(still)}"
            for number, (mine, theirs) in enumerate(zip(places, still, strict=False)):
                yield from self.differences(f"{at}[{number}]", cast(Node, mine["type"]), cast(Node, theirs["type"]), seen)
        for part in ("items", "keys", "values"):
            if old in ("array", "map") and part in written:
                yield from self.differences(f"{at}[]", cast(Node, written[part]), cast(Node, read[part]), seen)

    def _objects(self, at: str, old: dict[str, Node], new: dict[str, Node], seen: frozenset[tuple[int, int]]) -> Iterator[str]:
        prefix = f"{at}." if at else ""
        for text, names in (("is new", [name for name in new if name not in old]), ("is gone", [name for name in old if name not in new])):
            yield from (f"field {prefix}{name} {text}" for name in names)
        if old.keys() == new.keys() and list(old) != list(new):
            yield f"the order of the fields of {_named(at)} has changed"
        for name in [name for name in old if name in new]:
            yield from self.differences(f"{prefix}{name}", cast(Node, old[name]["type"]), cast(Node, new[name]["type"]), seen)
            left_out = [(each["omitted"], each.get("default") if each["omitted"] else None) for each in (old[name], new[name])]
            if left_out[0] != left_out[1]:
                yield f"field {prefix}{name} is left out for other values"


def _named(at: str) -> str:
    return f"field {at}" if at else "the key"


def _kind(node: Node) -> str:
    return str(node.get("as", "set" if node.get("set") else node["is"]))
