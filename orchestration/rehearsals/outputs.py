"""Output records of a run in a file of SQLite, sorted by topic and key when they are read.

outputs(topic, key, number, value, timestamp, headers)      number: the record's place among all outputs of the run
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import msgspec

from penstock.runtime.model.record import Headers

_BLOCK = 5_000


@dataclass(frozen=True, slots=True)
class Output:
    """A record of an output topic. `headers` are encoded."""

    value: bytes | None
    timestamp: int
    headers: bytes


class OutputWriter:
    """Writes a new file."""

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(path)
        self._database.execute("PRAGMA journal_mode = OFF")
        self._database.execute("PRAGMA synchronous = OFF")
        self._database.execute(
            "CREATE TABLE outputs(topic TEXT, key BLOB, number INTEGER PRIMARY KEY, value BLOB, timestamp INTEGER, headers BLOB)"
        )
        self._rows: list[tuple[str, bytes | None, bytes | None, int, bytes]] = []
        self.number = 0

    def add(
        self, topic: str, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers | None, partition: int | None
    ) -> None:
        """Append a record."""
        self._rows.append((topic, key, value, timestamp, msgspec.msgpack.encode(headers) if headers else b""))
        self.number += 1
        if len(self._rows) >= _BLOCK:
            self._write()

    def _write(self) -> None:
        self._database.executemany("INSERT INTO outputs(topic, key, value, timestamp, headers) VALUES (?, ?, ?, ?, ?)", self._rows)
        self._rows.clear()

    def close(self) -> None:
        """Write what is left, and sort."""
        self._write()
        self._database.execute("CREATE INDEX by_key ON outputs(topic, key, number)")
        self._database.commit()
        self._database.close()


def topics(path: Path) -> list[str]:
    """Return the topics of a file, sorted."""
    with closing(sqlite3.connect(path)) as database:
        return [topic for (topic,) in database.execute("SELECT DISTINCT topic FROM outputs ORDER BY topic")]


def by_key(path: Path, topic: str) -> Iterator[tuple[bytes, list[Output]]]:
    """Yield the records of each key in order; the key null is empty, after which come the others by their bytes, each behind a byte 1."""
    with closing(sqlite3.connect(path)) as database:
        rows = database.execute("SELECT key, value, timestamp, headers FROM outputs WHERE topic = ? ORDER BY key, number", (topic,))
        for key, of_key in groupby(rows, itemgetter(0)):
            yield b"" if key is None else b"\x01" + key, [Output(*row[1:]) for row in of_key]


def in_order(path: Path, first: int) -> Iterator[tuple[str, bytes | None, Output]]:
    """Yield all records from the `first`-th on, in the order in which they were written."""
    with closing(sqlite3.connect(path)) as database:
        query = "SELECT topic, key, value, timestamp, headers FROM outputs WHERE number > ? ORDER BY number"
        for topic, key, *rest in database.execute(query, (first,)):
            yield topic, key, Output(*rest)
