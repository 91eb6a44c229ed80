"""Plain models of the stores, in dicts: what a store must answer, written in the shortest way."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from penstock.runtime.model.record import SessionWindow, ValueAndTimestamp, VersionedRecord, Window, Windowed

K = TypeVar("K")
V = TypeVar("V")
Cell = tuple[str, int, int]
"""Key, and two times: a window's start and 0, or a session's start and end."""


class KeyValueModel:
    """Every key's value."""

    def __init__(self) -> None:
        self.entries: dict[str, int] = {}

    def copy(self) -> KeyValueModel:
        twin = KeyValueModel()
        twin.entries = dict(self.entries)
        return twin

    def put(self, key: str, value: int | None) -> None:
        _set(self.entries, key, value)

    def between(self, first: str | None, last: str | None) -> list[tuple[str, int]]:
        found = ((key, value) for key, value in self.entries.items() if (first is None or first <= key) and (last is None or key <= last))
        return sorted(found)


class ExpiringModel:
    """Every key's value with its timestamp, until stream time is the time to live past it."""

    def __init__(self, ttl: int) -> None:
        self.entries: dict[str, ValueAndTimestamp[int]] = {}
        self.now = -1
        self.ttl = ttl

    def copy(self) -> ExpiringModel:
        twin = ExpiringModel(self.ttl)
        twin.entries, twin.now = dict(self.entries), self.now
        return twin

    def put(self, key: str, value: int | None, time: int) -> bool:
        if value is not None and time <= self.now - self.ttl:
            return False
        _set(self.entries, key, None if value is None else ValueAndTimestamp(value, time))
        return True

    def get(self, key: str) -> ValueAndTimestamp[int] | None:
        return dict(self.between(None, None)).get(key)

    def between(self, first: str | None, last: str | None) -> list[tuple[str, ValueAndTimestamp[int]]]:
        live = {key: entry for key, entry in self.entries.items() if entry.timestamp > self.now - self.ttl}
        return sorted((key, entry) for key, entry in live.items() if (first is None or first <= key) and (last is None or key <= last))


class TimesModel:
    """Values by key and times, of which `time_of` returns the one that expires."""

    def __init__(self, retention: int, time_of: Callable[[Cell], int]) -> None:
        self.cells: dict[Cell, int] = {}
        self.now = -1
        self.retention, self._time_of = retention, time_of

    def copy(self) -> TimesModel:
        twin = TimesModel(self.retention, self._time_of)
        twin.cells, twin.now = dict(self.cells), self.now
        return twin

    def put(self, cell: Cell, value: int | None) -> None:
        self.now = max(self.now, self._time_of(cell))
        if self._time_of(cell) > self.now - self.retention:
            _set(self.cells, cell, value)

    def live(self, wanted: Callable[[Cell], bool] = lambda cell: True) -> list[tuple[Cell, int]]:
        horizon = self.now - self.retention
        return [(cell, value) for cell, value in self.cells.items() if self._time_of(cell) > horizon and wanted(cell)]


class VersionsModel:
    """Every version that was put, and nothing forgotten."""

    def __init__(self, retention: int) -> None:
        self.versions: dict[str, dict[int, int | None]] = {}
        self.now = -1
        self.retention = retention

    def copy(self) -> VersionsModel:
        twin = VersionsModel(self.retention)
        twin.versions, twin.now = {key: dict(versions) for key, versions in self.versions.items()}, self.now
        return twin

    def put(self, key: str, value: int | None, time: int) -> bool:
        self.now = max(self.now, time)
        taken = time >= self.now - self.retention
        if taken:
            self.versions.setdefault(key, {})[time] = value
        return taken

    def valid_to(self, key: str, time: int) -> int | None:
        return min((other for other in self.versions[key] if other > time), default=None)

    def get(self, key: str, as_of: int | None) -> VersionedRecord | None:
        versions = self.versions.get(key, {})
        time = max((time for time in versions if as_of is None or time <= as_of), default=None)
        if time is None or versions[time] is None:
            return None
        valid_to = self.valid_to(key, time)
        if as_of is not None and valid_to is not None and as_of < self.now - self.retention:
            return None
        return VersionedRecord(versions[time], time, valid_to)

    def between(self, key: str, first: int, last: int) -> list[VersionedRecord]:
        """The versions, without deletions, that are valid at some time from `first` to `last` and not forgotten."""
        found = []
        for time, value in sorted(self.versions.get(key, {}).items()):
            valid_to = self.valid_to(key, time)
            lives = time <= last and (valid_to is None or valid_to > max(first, self.now - self.retention) <= last)
            if lives and value is not None:
                found.append(VersionedRecord(value, time, valid_to))
        return found


def window_row(cell: Cell, size: int) -> Windowed:
    """A window's cell as the store shows it."""
    return Windowed(cell[0], Window(cell[1], cell[1] + size))


def session_row(cell: Cell) -> Windowed:
    """A session's cell as the store shows it."""
    return Windowed(cell[0], SessionWindow(cell[1], cell[2]))


def _set(entries: dict[K, V], key: K, value: V | None) -> None:
    if value is None:
        entries.pop(key, None)
    else:
        entries[key] = value
