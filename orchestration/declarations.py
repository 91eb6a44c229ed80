"""A table of a TOML file that knows where it stands, so that every mistake is reported with file, line, key and what would be right.

`tomllib` gives values without lines. The line of a key is therefore looked up in the text when, and only when, there is something to
report: under its table's header, else the header itself. (Rejected: a TOML library that keeps positions; none of the maintained ones offers
them as part of its interface.)
"""

from __future__ import annotations

import contextlib
import datetime
import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path


class WrongDeclarationError(Exception):
    """`streams.toml` is missing or wrong, or names something that is not there. The message says where, what, and what would be right."""


_REQUIRED: tuple[str, ...] = ("\0required",)
_ENTRY = "\0"
"""Before the number of an array's table, where that stands in the way to a key: `tables`, `\\0` + `1`, `store`."""


class Table:
    """One table: typed reading of its keys. Keys that nobody read are unknown (`reject_unknown`)."""

    def __init__(self, content: Mapping[str, object], at: tuple[str, ...], path: Path, text: str) -> None:
        self._content = content
        self._at = at
        self._path = path
        self._text = text
        self._known: list[str] = []

    def wrong(self, keys: tuple[str, ...], message: str) -> WrongDeclarationError:
        """An error at a key below this table (or at the table itself)."""
        at = (*self._at, *keys)
        return WrongDeclarationError(f"{self._path}, line {_line_of(self._text, at)}: {_dotted(at)}: {message}")

    def own_name(self, pattern: str) -> str:
        """The last part of the table's header."""
        name = self._at[-1]
        if not re.fullmatch(pattern, name):
            raise self.wrong(
                (), f"the name {name!r} is not possible: letters, digits and _ (inside also . and -), for example flight_board"
            )
        return name

    def tables(self, key: str) -> list[Table]:
        """The tables below `key`, by name."""
        parent = self.table(key)
        return [parent.table(name) for name in parent._content]

    def table(self, key: str) -> Table:
        """The table below `key`; an empty one if there is none."""
        value = self._take(key, {})
        if not isinstance(value, dict):
            raise self.wrong((key,), f"expected a table, [{_dotted((*self._at, key))}], found {_shown(value)}")
        return Table(value, (*self._at, key), self._path, self._text)

    def array(self, key: str) -> list[Table]:
        """The tables of an array, `[[key]]`."""
        value = self._take(key, [])
        if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
            raise self.wrong((key,), f"expected tables, [[{_dotted((*self._at, key))}]], found {_shown(value)}")
        return [Table(entry, (*self._at, key, f"{_ENTRY}{number}"), self._path, self._text) for number, entry in enumerate(value)]

    def has(self, key: str) -> bool:
        """True if the key is there."""
        return key in self._content

    def scalars(self) -> dict[str, str | int | float | bool]:
        """All keys of the table, each of which must be text, a number or a truth value."""
        found: dict[str, str | int | float | bool] = {}
        for key, value in self._content.items():
            if isinstance(value, dict):
                raise self.wrong((key,), f'expected a value. A key that holds dots is quoted: "{_flat(key, value)}" = …')
            if not isinstance(value, (str, int, float, bool)):
                raise self.wrong((key,), f"expected text, a number, true or false, found {_shown(value)}")
            found[key] = value
        self._known.extend(found)
        return found

    def text(self, key: str, *, pattern: str, example: str) -> str:
        value = self._take(key, None)
        if value is None:
            raise self.wrong((key,), f'is missing: expected for example {key} = "{example}"')
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise self.wrong((key,), f'{_shown(value)} is not possible here, for example {key} = "{example}"')
        return value

    def optional_text(self, key: str, *, pattern: str, example: str) -> str | None:
        """As `text`; None if the key is not there."""
        if self.has(key):
            return self.text(key, pattern=pattern, example=example)
        self._known.append(key)
        return None

    def texts(self, key: str, *, pattern: str = ".+", example: str = "name", default: Sequence[str] = _REQUIRED) -> tuple[str, ...]:
        value = self._take(key, None if default is _REQUIRED else list(default))
        if value is None:
            raise self.wrong((key,), f'is missing: expected for example {key} = ["{example}"]')
        if not isinstance(value, list):
            raise self.wrong((key,), f'expected a list, for example {key} = ["{example}"], found {_shown(value)}')
        if default is _REQUIRED and not value:
            raise self.wrong((key,), f'the list is empty: expected at least one, for example ["{example}"]')
        for entry in value:
            if not isinstance(entry, str) or not re.fullmatch(pattern, entry):
                raise self.wrong((key,), f'{_shown(entry)} is not possible here, for example ["{example}"]')
        return tuple(value)

    def choice(self, key: str, choices: Sequence[str], default: str) -> str:
        value = self._take(key, default)
        if value not in choices:
            near = difflib.get_close_matches(str(value), choices, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise self.wrong((key,), f"{_shown(value)} is not one of {', '.join(map(repr, choices))}.{hint}")
        return str(value)

    def day(self, key: str) -> datetime.date | None:
        """A date, as TOML writes it or as text; None if the key is not there."""
        value = self._take(key, None)
        if isinstance(value, str):
            with contextlib.suppress(ValueError):
                return datetime.date.fromisoformat(value)
        if value is None or (isinstance(value, datetime.date) and not isinstance(value, datetime.datetime)):
            return value
        raise self.wrong((key,), f"expected a day, for example {key} = 2013-01-01, found {_shown(value)}")

    def is_whole(self, key: str) -> bool:
        """True if the key is a number."""
        value = self._content.get(key)
        return isinstance(value, int) and not isinstance(value, bool)

    def whole(self, key: str, *, default: int, least: int, most: int | None = None) -> int:
        value = self._take(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < least or (most is not None and value > most):
            bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
            raise self.wrong((key,), f"expected a whole number {bounds}, found {_shown(value)}")
        return value

    def reject_unknown(self) -> None:
        """Raises WrongDeclarationError for a key that nothing reads, with the nearest one that something does."""
        for key in self._content:
            if key not in self._known:
                near = difflib.get_close_matches(key, self._known, 1)
                hint = f"did you mean {near[0]!r}? " if near else ""
                raise self.wrong((key,), f"unknown key: {hint}known here are {', '.join(map(repr, self._known))}")

    def _take(self, key: str, default: object) -> object:
        self._known.append(key)
        return self._content.get(key, default)


def _line_of(text: str, at: tuple[str, ...]) -> int:
    """The line (from 1) of the key or table `at`, or of the nearest table around it."""
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
    """A header with the number of the entry behind the name of each array that it goes through."""
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


def _flat(key: str, value: Mapping[str, object]) -> str:
    inner, below = next(iter(value.items()), ("", None))
    return f"{key}.{_flat(inner, below)}" if isinstance(below, dict) else f"{key}.{inner}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
