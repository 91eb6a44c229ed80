"""Stores as users write them, independent of the engine's: in SQLite, which keeps offsets in its own transaction, and in a dict with a
file, which does not."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from penstock.runtime.model.ids import NextOffset, TopicPartition
from penstock.runtime.stores import StateStore, StoreContext
from penstock.runtime.stores.base import ChangelogRecord


class SqliteStore:
    """Writes immediately, in a transaction that `commit` ends together with the offsets."""

    persistent = True
    manages_offsets = True

    def __init__(self, name: str) -> None:
        self.name = name
        self._database: sqlite3.Connection | None = None

    @property
    def is_open(self) -> bool:
        return self._database is not None

    def init(self, context: StoreContext, root: StateStore | None = None) -> None:
        self._context = context
        self._path = context.state_dir / "store.sqlite"
        self._database = sqlite3.connect(self._path, check_same_thread=False)
        self._database.execute("CREATE TABLE IF NOT EXISTS entries (key BLOB PRIMARY KEY, value BLOB)")
        self._database.execute("CREATE TABLE IF NOT EXISTS offsets (partition TEXT PRIMARY KEY, next INTEGER)")
        self._database.commit()
        context.register(self, self._restore)

    def _restore(self, records: Sequence[ChangelogRecord]) -> None:
        for key, value, _ in records:
            self._set(key, value)

    def _set(self, key: bytes, value: bytes | None) -> None:
        assert self._database is not None
        if value is None:
            self._database.execute("DELETE FROM entries WHERE key = ?", (key,))
        else:
            self._database.execute("REPLACE INTO entries VALUES (?, ?)", (key, value))

    def put(self, key: str, value: str | None) -> None:
        data = None if value is None else value.encode()
        self._set(key.encode(), data)
        self._context.log_change(key.encode(), data)

    def get(self, key: str) -> str | None:
        assert self._database is not None
        row = self._database.execute("SELECT value FROM entries WHERE key = ?", (key.encode(),)).fetchone()
        return None if row is None else row[0].decode()

    def flush(self) -> None:
        pass

    def commit(self, offsets: Mapping[TopicPartition, NextOffset]) -> None:
        assert self._database is not None
        self._database.executemany("REPLACE INTO offsets VALUES (?, ?)", [(str(p), o) for p, o in offsets.items()])
        self._database.commit()

    def committed_offset(self, topic_partition: TopicPartition) -> NextOffset | None:
        assert self._database is not None
        row = self._database.execute("SELECT next FROM offsets WHERE partition = ?", (str(topic_partition),)).fetchone()
        return None if row is None else NextOffset(row[0])

    def close(self) -> None:
        if self._database is not None:
            self._database.close()  # rolls back what was not committed
            self._database = None

    def query_view(self) -> SqliteView:
        return SqliteView(str(self._path))


class SqliteView:
    """Committed entries, read through a separate connection."""

    def __init__(self, path: str) -> None:
        self._path = path

    def all(self) -> Iterator[tuple[object, object]]:
        database = sqlite3.connect(self._path)
        try:
            rows = database.execute("SELECT key, value FROM entries ORDER BY key").fetchall()
        finally:
            database.close()
        return iter([(key.decode(), value.decode()) for key, value in rows])


class FileStore:
    """A dict, written to a file by `flush`. `staged`: it leaves its changes to the commit."""

    persistent = True
    manages_offsets = False

    def __init__(self, name: str, staged: bool) -> None:
        self.name = name
        self.is_open = False
        self._staged = staged

    def init(self, context: StoreContext, root: StateStore | None = None) -> None:
        self._context = context
        self._path = context.state_dir / "entries.json"
        self._entries: dict[str, str] = json.loads(self._path.read_text()) if self._path.exists() else {}
        self.is_open = True
        context.register(self, self._restore, staged=self._staged)

    def _restore(self, records: Sequence[ChangelogRecord]) -> None:
        for key, value, _ in records:
            if value is None:
                self._entries.pop(key.decode(), None)
            else:
                self._entries[key.decode()] = value.decode()

    def put(self, key: str, value: str | None) -> None:
        data = None if value is None else value.encode()
        self._context.log_change(key.encode(), data)
        if not self._staged:
            self._restore([(key.encode(), data, 0)])

    def get(self, key: str) -> str | None:
        if key.encode() in self._context.pending:
            value = self._context.pending[key.encode()]
            return None if value is None else value.decode()
        return self._entries.get(key)

    def flush(self) -> None:
        self._path.write_text(json.dumps(self._entries))

    def commit(self, offsets: Mapping[TopicPartition, NextOffset]) -> None:
        pass

    def committed_offset(self, topic_partition: TopicPartition) -> NextOffset | None:
        return None

    def close(self) -> None:
        self.is_open = False


OwnStore = SqliteStore | FileStore
KINDS = ["sqlite", "file-staged", "file-at-once"]


@dataclass(frozen=True)
class OwnBuilder:
    """The minimum that a user's builder needs."""

    name: str
    kind: str
    logging_enabled: bool = True

    def build(self) -> OwnStore:
        return SqliteStore(self.name) if self.kind == "sqlite" else FileStore(self.name, self.kind == "file-staged")
