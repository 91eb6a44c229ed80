"""Messages on an unknown name of an instance, an application or a table, with the nearest known names."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from pathlib import Path

_MOST = 12
"""Number of names that a message lists; if there are more, it lists the nearest and the first."""
_NEAREST = 3


def unknown(
    kind: str, name: str, known: Collection[str], *, source: Path | str | None = None, how: str = "declared", of: str | None = None
) -> str:
    """Return the message: `no instance 'a-11' is declared; declared are a-1, a-2 (in streams.toml). Did you mean 'a-1'?`"""
    place = "" if source is None else f" (in {source})"
    owner = "" if of is None else f" of {of}"
    return f"no {kind} {name!r}{owner} is {how}; {how} are {_listed(known, nearest_names(name, known))}{place}{did_you_mean(name, known)}"


def did_you_mean(name: str, known: Collection[str]) -> str:
    """Return the end of a message: the nearest known name; "" if none is similar."""
    nearest = nearest_names(name, known)
    return f". Did you mean {' or '.join(map(repr, nearest))}?" if nearest else ""


def nearest_names(name: str, known: Collection[str]) -> list[str]:
    """Return the known names that are similar, the nearest first; upper and lower case are equal."""
    folded = {each.casefold(): each for each in sorted(known, reverse=True)}
    return [folded[near] for near in difflib.get_close_matches(name.casefold(), folded, _NEAREST)]


def _listed(known: Collection[str], nearest: Collection[str]) -> str:
    if len(known) <= _MOST:
        return ", ".join(known) or "none"
    first = [*nearest, *(each for each in known if each not in nearest)][:_MOST]
    return f"{', '.join(first)}, … ({len(known)} in all)"
