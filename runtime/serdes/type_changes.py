"""Compatibility of two descriptions of types (`type_schemas.py`): can every value of one type be read as the other, with the same meaning?

| change | answer |
|---|---|
| a field with a default, or an optional one, is added | fits |
| a field is removed | fits: it is ignored when read, and missing when the value is written again; refused by `forbid_unknown_fields` |
| a field is renamed: a new one has its type, or a wider or narrower one | refused, even with a default (`was it renamed?`) |
| a required field is added | refused |
| int → float, int or float → Decimal | fits |
| a union, an enum, a literal or a constraint gets wider | fits; refused where it gets narrower |
| a value of an enum has another name | refused: it may mean something else; a renamed member keeps its old name as an alias |
| flags → an enum or a literal, or to flags that refuse unknown bits | refused: a combination is no member |
| set → list, tuple[T, ...] → list | fits; list → set is refused: duplicate values would be lost |
| an array-like class gains or loses its tag | refused: all fields would move by one place |
| typed text (datetime, bytes, UUID, …) ↔ str, or to another typed text | refused |
| the default of a field that `omit_defaults` leaves out changes | refused: the value would change |
| only the class's name | fits |
| anything → Any | fits |
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import cast

from penstock.runtime.serdes.type_schemas import Node

_Seen = frozenset[tuple[int, int]]
"""Pairs of nodes that are being compared: a type may contain itself."""


def type_changes(written: Node, read: Node, filled: Collection[str] = ()) -> list[str]:
    """Return the reasons why values of one type cannot be read as the other; empty if they can.

    `filled`: outermost fields for which the reader has a default of its own.
    """
    return list(dict.fromkeys(_Comparison(written, read, filled).changes("", written, read, frozenset())))


def removed_fields(written: Node, read: Node) -> list[str]:
    """Return the fields that were written and are no longer read, with the path to each."""
    return list(dict.fromkeys(at for at, _ in _removed("", written, written, read, read, frozenset())))


def likely_renames(written: Node, read: Node) -> list[str]:
    """Return messages about removed fields for which a new one with a default was added whose type can read the values of the removed
    field, or the reverse: a renamed field may have been widened or narrowed with it.

    Only the author knows whether such a field was renamed; its values would then be lost.
    """
    texts = (
        f"field {at} is gone and {' or '.join(alike)} of a type that fits is new: was it renamed? Its values would be lost. Keep the name "
        "in the data, or, if it was not renamed, remove the field in one version and add the other in a later one"
        for at, alike in _removed("", written, written, read, read, frozenset())
        if alike
    )
    return list(dict.fromkeys(texts))


def _removed(at: str, written: Node, all_written: Node, read: Node, all_read: Node, seen: _Seen) -> Iterator[tuple[str, list[str]]]:
    """Yield the path of each removed field, with the new fields beside it that may hold its values."""
    for mine in alternatives(written, all_written):
        for theirs in alternatives(read, all_read):
            if mine["is"] == theirs["is"] and (id(mine), id(theirs)) not in seen and _same_tag(mine, theirs):
                yield from _removed_inside(at, mine, all_written, theirs, all_read, seen | {(id(mine), id(theirs))})


def _removed_inside(at: str, written: Node, all_written: Node, read: Node, all_read: Node, seen: _Seen) -> Iterator[tuple[str, list[str]]]:
    old, new = _fields(written), _fields(read)
    for name, field in old.items():
        here = f"{at}.{name}" if at else name
        if name in new:
            yield from _removed(here, cast(Node, field["type"]), all_written, cast(Node, new[name]["type"]), all_read, seen)
        else:
            added = {other: cast(Node, found["type"]) for other, found in new.items() if other not in old}
            of = cast(Node, field["type"])
            yield here, [other for other, kind in added.items() if _may_be_renamed(of, all_written, kind, all_read)]
    for part in ("items", "values"):
        if isinstance(written.get(part), dict) and isinstance(read.get(part), dict):
            yield from _removed(f"{at}[]", cast(Node, written[part]), all_written, cast(Node, read[part]), all_read, seen)
    if written["is"] == "tuple":
        places, still = cast(list[Node], written["fields"]), cast(list[Node], read["fields"])
        for place, (mine, theirs) in enumerate(zip(places, still, strict=False)):
            here = f"{at}[{theirs.get('name', place)}]"
            yield from _removed(here, cast(Node, mine["type"]), all_written, cast(Node, theirs["type"]), all_read, seen)
        for place, gone in enumerate(places[len(still) :], len(still)):
            yield f"{at}[{gone.get('name', place)}]", []


def alternatives(node: Node, root: Node) -> list[Node]:
    """Return the members of a union, or the node itself."""
    node = _resolved(node, root)
    return [_resolved(each, root) for each in _members(node)] if node["is"] == "union" else [node]


def _same_tag(written: Node, read: Node) -> bool:
    """Return False for two members of tagged unions of which the second never reads what the first wrote."""
    return written.get("tag") is None or read.get("tag") is None or written["tag"] == read["tag"]


def _may_be_renamed(written: Node, all_written: Node, read: Node, all_read: Node) -> bool:
    """Return whether some value of one type, other than null, can be read as the other, in either direction."""
    older = [each for each in alternatives(written, all_written) if each["is"] != "null"]
    newer = [each for each in alternatives(read, all_read) if each["is"] != "null"]
    return any(
        _fits(mine, all_written, theirs, all_read) or _fits(theirs, all_read, mine, all_written) for mine in older for theirs in newer
    )


def _fits(written: Node, all_written: Node, read: Node, all_read: Node) -> bool:
    return next(_Comparison(all_written, all_read, ()).changes("", written, read, frozenset()), None) is None


class _Comparison:
    def __init__(self, written: Node, read: Node, filled: Collection[str]) -> None:
        self._written, self._read, self._filled = written, read, filled

    def changes(self, at: str, written: Node, read: Node, seen: _Seen) -> Iterator[str]:
        written, read = _resolved(written, self._written), _resolved(read, self._read)
        if read["is"] == "any":
            return
        if written["is"] == "union":
            for each in _members(written):
                yield from self.changes(at, each, read, seen)
        elif read["is"] == "union":
            for each in _by_kind(written):
                yield from self._one_of(at, each, _members(read), seen)
        else:
            yield from self._plain(at, written, read, seen, alone=True)

    def _one_of(self, at: str, written: Node, read: Sequence[Node], seen: _Seen) -> Iterator[str]:
        """Yield why no member of a union reads `written`. The member is chosen by the kind of the JSON value and an object's tag."""
        resolved = [_resolved(each, self._read) for each in read]
        if _is_whole(written) and (whole := [each for each in resolved if _is_whole(each)]):
            resolved = [*whole, *(each for each in resolved if each["is"] == "any")]  # no integer comes to a float beside them
        several = sum(each["is"] not in ("null", "opaque") for each in resolved) > 1
        if any(each["is"] == "any" for each in resolved):
            return
        objects = sum(each["is"] == "object" for each in resolved) > 1
        found: list[str] = []
        for each in resolved:
            if objects and each["is"] == "object" == written["is"] and written.get("tag") != each.get("tag"):
                continue
            first = next(self._plain(at, written, each, seen, alone=not several), None)
            if first is None:
                return
            if each["is"] == written["is"]:
                found.append(first)
        yield found[0] if len(found) == 1 else f"{_named(at)} is {_text(written)} and is read as {' or '.join(map(_text, resolved))}"

    def _plain(self, at: str, written: Node, read: Node, seen: _Seen, *, alone: bool) -> Iterator[str]:
        """Yield the differences of two types that are not unions. `alone`: `read` is not one of several members of a union."""
        if (id(written), id(read)) in seen:
            return
        seen |= {(id(written), id(read))}
        old, new = written["is"], read["is"]
        if old == new == "object":
            yield from self._objects(at, written, read, seen)
        elif old == new == "tuple":
            yield from self._tuples(at, written, read, seen)
        elif old == new == "map":
            yield from self.changes(f"a key of {_named(at)}", cast(Node, written["keys"]), cast(Node, read["keys"]), seen)
            yield from self.changes(f"{at}[]", cast(Node, written["values"]), cast(Node, read["values"]), seen)
            yield from _tighter(at, written, read)
        elif old == new == "array":
            if read["set"] and not written["set"]:
                yield f"{_named(at)} is a list and is read as a set: values that are there twice would be lost"
            yield from self.changes(f"{at}[]", cast(Node, written["items"]), cast(Node, read["items"]), seen)
            yield from _tighter(at, written, read)
        elif old == new == "enum":
            yield from _enums(at, written, read)
        elif old == "enum" and new in ("str", "int"):
            kind = str if new == "str" else int
            if not all(type(value) is kind for value in cast(list[object], written["values"])) or _limits(read):
                yield f"{_named(at)} is {_text(written)} and is read as {_text(read)}"
        elif new == "text" and read["as"] == "decimal" and old in ("int", "float") and alone:
            return
        elif (old, new) == ("int", "float") or all(written.get(name) == read.get(name) for name in ("is", "as", "text")):
            yield from _tighter(at, written, read)
        else:
            yield f"{_named(at)} is {_text(written)} and is read as {_text(read)}"

    def _objects(self, at: str, written: Node, read: Node, seen: _Seen) -> Iterator[str]:
        old, new = _fields(written), _fields(read)
        old_tag, new_tag = cast("list[object] | None", written.get("tag")), cast("list[object] | None", read.get("tag"))
        if old_tag is not None and old_tag[0] in new:
            old = {**old, str(old_tag[0]): {"type": {"is": "enum", "values": [old_tag[1]]}, "omitted": False}}
        if new_tag is not None:
            if old_tag is not None and old_tag[0] == new_tag[0] and old_tag[1] != new_tag[1]:
                yield f"{_named(at)} has the tag {old_tag[1]!r}, and is read by the tag {new_tag[1]!r}"
            elif new_tag[0] in old:
                yield f"{_named(at)} has a field {new_tag[0]}, which is its tag now"
        for name, field in new.items():
            here = f"{at}.{name}" if at else name
            if name in old:
                yield from self._field(here, old[name], field, seen)
            elif field["required"] and not (not at and name in self._filled):
                yield _missing(here)
        known = {*new, *([str(new_tag[0])] if new_tag is not None else [])}
        gone = [name for name in [*old, *([str(old_tag[0])] if old_tag is not None else [])] if name not in known]
        if read["closed"] and gone:
            yield f"{_named(at)} has a field {gone[0]}, and fields that are not known are forbidden"

    def _field(self, at: str, old: Node, new: Node, seen: _Seen) -> Iterator[str]:
        yield from self.changes(at, cast(Node, old["type"]), cast(Node, new["type"]), seen)
        if not old["omitted"]:
            return
        if new["required"]:
            yield f"field {at} may be missing in what was written, and has no default now"
        elif (left_out := old.get("default", "nothing")) != (now := new.get("default", "nothing")) and (left_out, now) != (
            "nothing",
            "null",
        ):
            yield f"field {at} is left out where it is {left_out}, and would be read as {now}"

    def _tuples(self, at: str, written: Node, read: Node, seen: _Seen) -> Iterator[str]:
        old, new = cast(list[Node], written["fields"]), cast(list[Node], read["fields"])
        for place, (mine, theirs) in enumerate(zip(old, new, strict=False)):
            if mine.get("name", "") != theirs.get("name", "") and mine.get("name") and theirs.get("name"):
                yield f"{_named(at)} has {mine['name']} at place {place}, where {theirs['name']} is read"
            yield from self.changes(f"{at}[{theirs.get('name', place)}]", cast(Node, mine["type"]), cast(Node, theirs["type"]), seen)
        for place in range(len(old), len(new)):
            if new[place]["required"]:
                yield _missing(f"{at}[{new[place].get('name', place)}]")
        if len(old) > len(new) and read["closed"]:
            yield f"{_named(at)} has {len(old)} places, and {len(new)} are read"


def _enums(at: str, written: Node, read: Node) -> Iterator[str]:
    if gone := [value for value in cast(list[object], written["values"]) if value not in cast(list[object], read["values"])]:
        yield f"{_named(at)} may be {', '.join(map(repr, gone))}, which it no longer has as a value"
    old, new = (cast(Mapping[str, object], each.get("names", {})) for each in (written, read))
    for value in dict.fromkeys(old.values()):
        was, now = ([name for name, held in each.items() if held == value] for each in (old, new))
        if now and not set(was) & set(now):
            yield (
                f"{value!r} in {_named(at)} was {was[0]} and is {now[0]} now, which may mean something else; if it was only renamed, "
                f"keep the old name as an alias ({was[0]} = {now[0]})"
            )
    if (bits := written.get("flags")) is not None and read.get("flags") not in (bits, "keep"):
        yield f"{_named(at)} holds flags, which may be combined, and is read as {'other flags' if 'flags' in read else _text(read)}"


def _resolved(node: Node, root: Node) -> Node:
    while node["is"] == "ref":
        node = cast(Mapping[str, Node], root.get("definitions", {})).get(str(node["to"]), {"is": "opaque", "text": str(node["to"])})
    return node


def _by_kind(node: Node) -> list[Node]:
    """Split a literal of strings and numbers into one node for each kind, as a union reads them."""
    values = cast(list[object], node["values"]) if node["is"] == "enum" else []
    kinds = {type(value) for value in values}
    return [node] if len(kinds) < 2 else [{"is": "enum", "values": [each for each in values if type(each) is kind]} for kind in kinds]


def _is_whole(node: Node) -> bool:
    """Return whether a type is of integers, or an enum or literal with some."""
    return node["is"] == "int" or (node["is"] == "enum" and any(type(each) is int for each in cast(list[object], node["values"])))


def _members(union: Node) -> list[Node]:
    return cast(list[Node], union["of"])


def _fields(node: Node) -> dict[str, Node]:
    found = node.get("fields")
    return found if isinstance(found, dict) else {}


def _limits(node: Node) -> list[str]:
    return [name for name in ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern", "tz") if name in node]


def _tighter(at: str, written: Node, read: Node) -> Iterator[str]:
    """Yield the reader's constraints that written values need not satisfy."""
    for name in _limits(read):
        if not _implied(name, written, cast(float, read[name])):
            yield f"{_named(at)} must have {name}={read[name]!r} now, which what was written need not have"


def _implied(name: str, written: Node, wanted: float) -> bool:
    have = {each: cast(float, written[each]) for each in _limits(written)}
    match name:
        case "ge" | "gt":
            return ("gt" in have and have["gt"] >= wanted) or (
                "ge" in have and (have["ge"] >= wanted if name == "ge" else have["ge"] > wanted)
            )
        case "le" | "lt":
            return ("lt" in have and have["lt"] <= wanted) or (
                "le" in have and (have["le"] <= wanted if name == "le" else have["le"] < wanted)
            )
        case "min_length":
            return have.get(name, 0) >= wanted
        case "max_length":
            return name in have and have[name] <= wanted
        case "multiple_of":
            return name in have and have[name] % wanted == 0
    return have.get(name) == wanted


def _missing(at: str) -> str:
    return f"field {at} is new and has no default: values that were written without it cannot be read"


def _named(at: str) -> str:
    return f"field {at}" if at and not at.startswith("a key") else at or "the value"


def _text(node: Node) -> str:
    match node["is"]:
        case "text":
            return str(node["as"])
        case "enum":
            return f"one of {', '.join(map(repr, cast(list[object], node['values'])))}"
        case "array":
            return "a set" if node["set"] else "a list"
        case "object" if node.get("tag"):
            return f"an object with tag {cast(list[object], node['tag'])[1]!r}"
        case "object":
            return "an object"
        case "map":
            return "a dict"
        case "tuple":
            return "a tuple"
        case "opaque":
            return "another type"
    return str(node["is"])
