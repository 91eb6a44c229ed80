"""Shared by the stores' contract suites: creation of a store, and reopening it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from penstock.runtime.model.ids import NextOffset, TaskId, TopicPartition
from penstock.runtime.stores import StoreContext, StoreMemory
from penstock.runtime.stores.base import ChangelogRecord, EngineStore, EntryStore

CHANGELOG = TopicPartition("app-store-changelog", 3)
INPUT = TopicPartition("input", 3)

S = TypeVar("S", bound=EngineStore)
MUTABLE_KINDS = [(persistent, mutable) for persistent in (True, False) for mutable in (True, False)]
"""Arguments of `MutableKind`."""


class MutableKind:
    """An implementation of a store, in RocksDB or in memory, of immutable or of mutable values; and values that fit it."""

    def __init__(self, persistent: bool, mutable: bool) -> None:
        self.persistent, self.mutable = persistent, mutable

    def value(self, number: int) -> object:
        return {"n": number} if self.mutable else number


def name_of_kind(kind: tuple[bool, bool]) -> str:
    """Return the id of a parameter of `MUTABLE_KINDS`."""
    persistent, mutable = kind
    return f"{'rocksdb' if persistent else 'memory'}-{'bytes' if mutable else 'objects'}"


@dataclass
class Opened(Generic[S]):
    """A store under test. `time` is the timestamp of the current record."""

    make: Callable[[], S]
    directory: Path
    memory: StoreMemory = field(default_factory=StoreMemory)
    time: int = 1_000

    def __post_init__(self) -> None:
        self.store = self._open()

    def _open(self) -> S:
        store = self.make()
        context = StoreContext("app", self.directory, TaskId(0, 3), CHANGELOG, self.memory, record_time=lambda: self.time)
        store.open(self.directory, context)
        return store

    def reopened(self) -> S:
        """Close the store and open it again in a new object."""
        self.store.close()
        self.store = self._open()
        return self.store

    def commit(self, offset: int) -> None:
        """Run a complete commit: flush, changelog, store."""
        if isinstance(self.store, EntryStore):
            self.store.flush_cache()
        list(self.store.changelog_records())
        self.store.commit({CHANGELOG: NextOffset(offset), INPUT: NextOffset(10 * offset)})


def opened(make: Callable[[], S], directory: Path, memory: StoreMemory | None = None) -> Iterator[Opened[S]]:
    """For fixtures: yield an open store, closed at the end."""
    under_test = Opened(make, directory, memory or StoreMemory())
    try:
        yield under_test
    finally:
        under_test.store.close()


def restored(make: Callable[[], S], directory: Path, records: Sequence[ChangelogRecord]) -> Iterator[S]:
    """Yield another store, restored from these records of a changelog in batches of a hundred, which it has committed."""
    for other in opened(make, directory):
        for first in range(0, len(records), 100):
            other.store.restore(records[first : first + 100], {CHANGELOG: NextOffset(first)})
        assert other.store.committed_offset(CHANGELOG) == (len(records) - 1) // 100 * 100
        yield other.store
