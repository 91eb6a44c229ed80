"""Table of a TOML file with its position, so that every mistake is reported with file, line, key and the expected value.

`tomllib` returns values without lines. The line of a key is therefore searched in the text, only if there is a mistake to report: below its
table's header, otherwise the header itself. (Rejected: a TOML library that keeps positions; no maintained one offers them in its public
interface.)
"""

from __future__ import annotations

import contextlib
import datetime
import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from penstock.orchestration.declarations.errors import ExpectedError
from penstock.runtime.model.secrets import kind, shown


class WrongDeclarationError(ExpectedError):
    """`streams.toml` is missing or wrong, or names something that does not exist. The message says where, what, and what is expected."""


_REQUIRED: tuple[str, ...] = ("\0required",)
_ENTRY = "\0"
"""Prefix of the index of an array's table in the path to a key: `tables`, `\\0` + `1`, `store`."""


class Table:
    """One table, with typed access to its keys. Keys that were never read are unknown (`reject_unknown`)."""

    def __init__(self, content: Mapping[str, object], at: tuple[str, ...], path: Path, text: str) -> None:
        self._content = content
        self._at = at
        self._path = path
        self._text = text
        self._known: list[str] = []

    def wrong(self, keys: tuple[str, ...], message: str) -> WrongDeclarationError:
        """Return an error on a key below this table (or on the table itself)."""
        at = (*self._at, *keys)
        return WrongDeclarationError(f"{self._path}, line {_line_of(self._text, at)}: {_dotted(at)}: {message}")

    def own_name(self, pattern: str) -> str:
        """Return the last part of the table's header."""
        name = self._at[-1]
        if not re.fullmatch(pattern, name):
            raise self.wrong(
                (), f"the name {name!r} is not possible: letters, digits and _ (inside also . and -), for example flight_board"
            )
        return name

    def tables(self, key: str) -> list[Table]:
        """Return the tables below `key`, by name."""
        parent = self.table(key)
        return [parent.table(name) for name in parent._content]

    def table(self, key: str) -> Table:
        """Return the table below `key`; an empty one if it is missing."""
        value = self._take(key, {})
        if not isinstance(value, dict):
            raise self.wrong((key,), f"expected a table, [{_dotted((*self._at, key))}], found {kind(value)}")
        return Table(value, (*self._at, key), self._path, self._text)

    def array(self, key: str) -> list[Table]:
        """Return the tables of an array, `[[key]]`."""
        value = self._take(key, [])
        if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
            raise self.wrong((key,), f"expected tables, [[{_dotted((*self._at, key))}]], found {kind(value)}")
        return [Table(entry, (*self._at, key, f"{_ENTRY}{number}"), self._path, self._text) for number, entry in enumerate(value)]

    def has(self, key: str) -> bool:
        """Return True if the table has the key."""
        return key in self._content

    def scalars(self) -> dict[str, str | int | float | bool]:
        """Return all keys of the table, each of which must be a string, a number or a Boolean."""
        found: dict[str, str | int | float | bool] = {}
        for key, value in self._content.items():
            if isinstance(value, dict):
                # The names inside may be a secret, as in a table below a misspelled key.
                raise self.wrong((key,), f'expected a value, found a table. A key that holds dots is quoted: "{key}.…" = …')
            if not isinstance(value, (str, int, float, bool)):
                raise self.wrong((key,), f"expected text, a number, true or false, found {kind(value)}")
            found[key] = value
        self._known.extend(found)
        return found

    def text(self, key: str, *, pattern: str, example: str) -> str:
        value = self._take(key, None)
        if value is None:
            raise self.wrong((key,), f'is missing: expected for example {key} = "{example}"')
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise self.wrong((key,), f'{shown(key, value)} is not possible here, for example {key} = "{example}"')
        return value

    def optional_text(self, key: str, *, pattern: str, example: str) -> str | None:
        """Return the same as `text`, or None if the key is missing."""
        if self.has(key):
            return self.text(key, pattern=pattern, example=example)
        self._known.append(key)
        return None

    def texts(self, key: str, *, pattern: str = ".+", example: str = "name", default: Sequence[str] = _REQUIRED) -> tuple[str, ...]:
        value = self._take(key, None if default is _REQUIRED else list(default))
        if value is None:
            raise self.wrong((key,), f'is missing: expected for example {key} = ["{example}"]')
        if not isinstance(value, list):
            raise self.wrong((key,), f'expected a list, for example {key} = ["{example}"], found {shown(key, value)}')
        if default is _REQUIRED and not value:
            raise self.wrong((key,), f'the list is empty: expected at least one, for example ["{example}"]')
        for entry in value:
            if not isinstance(entry, str) or not re.fullmatch(pattern, entry):
                raise self.wrong((key,), f'{shown(key, entry)} is not possible here, for example ["{example}"]')
        return tuple(value)

    def choice(self, key: str, choices: Sequence[str], default: str) -> str:
        value = self._take(key, default)
        if value not in choices:
            near = difflib.get_close_matches(str(value), choices, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise self.wrong((key,), f"{shown(key, value)} is not one of {', '.join(map(repr, choices))}.{hint}")
        return str(value)

    def day(self, key: str) -> datetime.date | None:
        """Return a date, written as a TOML date or as a string; None if the key is missing."""
        value = self._take(key, None)
        if isinstance(value, str):
            with contextlib.suppress(ValueError):
                return datetime.date.fromisoformat(value)
        if value is None or (isinstance(value, datetime.date) and not isinstance(value, datetime.datetime)):
            return value
        raise self.wrong((key,), f"expected a day, for example {key} = 2013-01-01, found {shown(key, value)}")

    def is_list(self, key: str) -> bool:
        """Return True if the key is a list."""
        return isinstance(self._content.get(key), list)

    def is_whole(self, key: str) -> bool:
        """Return True if the key is an integer."""
        value = self._content.get(key)
        return isinstance(value, int) and not isinstance(value, bool)

    def whole(self, key: str, *, default: int, least: int, most: int | None = None) -> int:
        value = self._take(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < least or (most is not None and value > most):
            bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
            raise self.wrong((key,), f"expected a whole number {bounds}, found {shown(key, value)}")
        return value

    def truth(self, key: str, *, default: bool) -> bool:
        value = self._take(key, default)
        if not isinstance(value, bool):
            raise self.wrong((key,), f"expected true or false, found {shown(key, value)}")
        return value

    def reject_unknown(self) -> None:
        """Raise WrongDeclarationError for a key that was never read, with the nearest known one."""
        for key in self._content:
            if key not in self._known:
                near = difflib.get_close_matches(key, self._known, 1)
                hint = f"did you mean {near[0]!r}? " if near else ""
                raise self.wrong((key,), f"unknown key: {hint}known here are {', '.join(map(repr, self._known))}")

    def _take(self, key: str, default: object) -> object:
        self._known.append(key)
        return self._content.get(key, default)


def _line_of(text: str, at: tuple[str, ...]) -> int:
    """Return the line (from 1) of the key or table `at`, or of the nearest enclosing table."""
    header: tuple[str, ...] = ()
    entries: dict[tuple[str, ...], int] = {}
    best, depth = 1, 0
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if stripped.startswith("["):
            named = _split(stripped.strip("[]").split("#")[0].rstrip("] \t"))
            if stripped.startswith("[["):
                entries[named] = entries.get(named, -1) + 1
            header = here = _entered(named, entries)
        elif "=" in stripped and not stripped.startswith("#"):
            here = (*header, *_split(stripped.split("=", 1)[0]))
        else:
            continue
        shared = min(len(here), len(at))
        if at[:shared] == here[:shared] and shared > depth:
            best, depth = number, shared
    return best


def _entered(named: tuple[str, ...], entries: Mapping[tuple[str, ...], int]) -> tuple[str, ...]:
    """Return a header with the number of the entry after the name of each array in it."""
    found: tuple[str, ...] = ()
    for depth, part in enumerate(named, start=1):
        entry = entries.get(named[:depth])
        found = (*found, part) if entry is None else (*found, part, f"{_ENTRY}{entry}")
    return found


def _split(dotted: str) -> tuple[str, ...]:
    parts = re.findall(r"\"([^\"]*)\"|'([^']*)'|([^.\s\"']+)", dotted)
    return tuple(next(part for part in found if part) if any(found) else "" for found in parts)


def _dotted(at: Sequence[str]) -> str:
    parts = [part for part in at if not part.startswith(_ENTRY)]
    return ".".join(part if re.fullmatch(r"[\w-]+", part) else f'"{part}"' for part in parts) or "the file"
