"""The contract of state stores, for users, for the engine, and for backends.

Three layers, each of which knows only the one below:

    typed store (key_value, window)   objects; serdes; timestamps; segments; forwarding to operators
    staging                           uncommitted and recently read entries by key bytes; read-your-writes; commit and rollback
    backend (rocks, memory)           committed bytes and offsets; one atomic batch per commit

Processing reads staging first, so it sees its own writes. Interactive queries read the backend alone, so they never see data that may still
be rolled back (KIP-892). The offsets that belong to the data (changelog and input) are written in the same batch as the data: a store
cannot be ahead of or behind its own offsets (KIP-892, KIP-1035).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Protocol, TypeVar, runtime_checkable

import msgspec

from penstock.runtime.model.errors import StreamsError
from penstock.runtime.model.ids import NextOffset, TaskId, TopicPartition
from penstock.runtime.model.record import Headers
from penstock.runtime.serdes.serde import RegistrySchema, Serializer
from penstock.runtime.stores.budget import StoreMemory
from penstock.runtime.stores.store_format import StoreFormat

ChangelogRecord = tuple[bytes, bytes | None, int]
"""Key, value (None is a tombstone) and timestamp in ms of a changelog record."""

RestoreCallback = Callable[[Sequence[ChangelogRecord]], None]
"""Applies changelog records, in order, to a user's store (Kafka Streams' `RecordBatchingStateRestoreCallback`). It must be idempotent: a
later record of a key replaces an earlier one, None removes the key."""

FlushListener = Callable[[object, object, object, int, Headers | None], None]
"""`(key, new value, old value, timestamp, headers)` of an entry that leaves the cache; a missing value is None."""

FlushRun = Callable[["Sequence[Entry]"], None]
"""Forwards many entries that leave the cache at once: resets `unforwarded` where it is set, drops their headers, and sends those with a new
or an old value downstream."""


class LoggedChanges(Protocol):
    """The engine's records of a user's store (`custom.py`)."""

    @property
    def pending(self) -> Mapping[bytes, bytes | None]: ...

    def register(self, store: StateStore, restore: RestoreCallback, staged: bool) -> None: ...

    def log_change(self, key: bytes, value: bytes | None, timestamp: int | None) -> None: ...


@dataclass(frozen=True, slots=True)
class StoreContext:
    """Context in which a store is opened. `state_dir` is the task's directory (or `global`), for a user's store a directory of its own;
    `changelog` is None for a store without one; `task_id` is None for a global store. All stores of the process share `memory`.
    `record_time` returns the timestamp in ms of the current record, which is the time of a plain `put` on the changelog.

    `register`, `log_change` and `pending` are for users' stores only; for the engine's they raise StreamsError.
    """

    application_id: str
    state_dir: Path
    task_id: TaskId | None = None
    changelog: TopicPartition | None = None
    memory: StoreMemory = field(default_factory=StoreMemory)
    record_time: Callable[[], int] = lambda: 0
    changes: LoggedChanges | None = None

    def register(self, store: StateStore, restore: RestoreCallback, *, staged: bool = False) -> None:
        """Register the restore callback, in `init`. `staged`: the store does not apply its `log_change` calls until the commit, where
        `restore` applies them; otherwise it applies its changes itself, at once."""
        self._own().register(store, restore, staged)

    def log_change(self, key: bytes, value: bytes | None, timestamp: int | None = None) -> None:
        """Log a change of the store, None for a removal. The changelog gets the last change of each key at the commit. `timestamp` in ms;
        default: that of the current record."""
        self._own().log_change(key, value, timestamp)

    @property
    def pending(self) -> Mapping[bytes, bytes | None]:
        """Return the changes logged since the last commit, so that a staged store reads its own writes."""
        return self._own().pending

    def _own(self) -> LoggedChanges:
        if self.changes is None:
            raise StreamsError("only a store of your own registers with its context and logs its changes there")
        return self.changes


@runtime_checkable
class StateStore(Protocol):
    """A state store (Kafka Streams' `StateStore`, with KIP-1035's offsets)."""

    @property
    def name(self) -> str: ...

    @property
    def persistent(self) -> bool:
        """True if the content survives the process."""
        ...

    @property
    def is_open(self) -> bool: ...

    @property
    def manages_offsets(self) -> bool:
        """True if `commit` stores the offsets in one atomic step with the data."""
        ...

    def init(self, context: StoreContext, root: StateStore | None = None) -> None:
        """Open the store. A store that was closed begins with its committed content."""

    def flush(self) -> None:
        """Make everything that was committed durable on disk."""

    def commit(self, offsets: Mapping[TopicPartition, NextOffset]) -> None:
        """Commit what was written since the last commit, with the next offsets of its changelog and inputs."""

    def committed_offset(self, topic_partition: TopicPartition) -> NextOffset | None:
        """Return the last committed next offset of this partition, or None. Penstock's own stores raise TypeError for another type."""
        ...

    def close(self) -> None: ...


class Entry(msgspec.Struct, gc=False, eq=False):
    """The staged state of one key.

    `value` is the object itself where the serde is immutable, else its bytes; None is a tombstone (or an absent key). `timestamp` is in ms,
    -1 without a value. `uncommitted`: not yet in the backend. `unforwarded`: not yet sent downstream (caching); then `forwarded_value` is
    the value last sent downstream, and `update` the number of the last update, in ascending order. `key` is the key as an object, None
    until it is needed.

    (A struct instead of a class with slots: it is created in C, in a quarter of the time.)
    """

    value: object
    timestamp: int
    key: object = None
    headers: Headers | None = None
    uncommitted: bool = False
    unforwarded: bool = False
    forwarded_value: object = None
    update: int = 0


@dataclass(frozen=True, slots=True)
class StoreLayout:
    """Layout of a store's files. `kind` is `key_value`, `window`, `session`, `versioned`, `buffer` or `custom` (a user's own, whose files
    only the user can read). In ms: the window size (windows only), the retention, during which entries can be read, and the length of a
    segment. `duplicates`: several values of one key and time are kept (window stores of joins). `headers`: each value has the headers of a
    record (`headers.py`)."""

    kind: str
    timestamped: bool
    key_serde: str
    value_serde: str
    window_size_ms: int | None = None
    retention_ms: int | None = None
    segment_ms: int | None = None
    duplicates: bool = False
    headers: bool = False


@dataclass(frozen=True, slots=True)
class StoreSchemas:
    """Schemas of a store's serdes (`Serde.schema`, `Serde.registry_schema`)."""

    key: Mapping[str, object] | None = None
    value: Mapping[str, object] | None = None
    key_registry: RegistrySchema | None = None
    value_registry: RegistrySchema | None = None


class CommittedView(Protocol):
    """Base of the read-only interfaces of all kinds."""

    def all(self) -> Iterator[tuple[object, object]]:
        """Iterate over all committed entries with their keys."""
        ...


class EngineStore(ABC):
    """A store of any kind as the engine uses it. One thread writes; any thread may use `query_view`.

    The order at a commit: `EntryStore.flush_cache` (all stores in topological order, until no entry is left to forward),
    `changelog_records`, the broker's commit, `commit`. No update happens between `changelog_records` and `commit`. `rollback` goes back to
    the last commit.
    """

    persistent: bool
    manages_offsets = True
    changelog_headers: Headers | None = None
    """Headers of its changelog records, except tombstones."""
    keeps_headers = False
    """True if the values of its changelog records and of `restore` are packed with their headers (`headers.py`)."""
    folded_by_key = True
    """True if only the last of several changelog records of a key counts, so that a restore may leave out the others."""

    # --- identity -----------------------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def name(self) -> str: ...

    @property
    @abstractmethod
    def layout(self) -> StoreLayout: ...

    @property
    def format(self) -> StoreFormat | None:
        """The format of the entries that it writes; None for a user's store."""
        return None

    @property
    def schemas(self) -> StoreSchemas:
        """The known schemas of keys and values; none for a user's store."""
        return StoreSchemas()

    def schemas_with_writers(self, topics: Sequence[str]) -> StoreSchemas:
        """Return `schemas` with those that a Schema Registry has for data of these topics, as `Serde.schema_with_writers`."""
        return self.schemas

    @property
    @abstractmethod
    def is_open(self) -> bool: ...

    @property
    @abstractmethod
    def logging_enabled(self) -> bool: ...

    @abstractmethod
    def changelog_config(self) -> Mapping[str, str]:
        """Return the topic settings of the changelog: compact, or compact,delete with the retention for windows; then the user's own."""

    # --- life ---------------------------------------------------------------------------------------------------------------------

    @abstractmethod
    def open(self, directory: Path, context: StoreContext) -> None:
        """Open or create `<directory>/rocksdb/<name>`; `directory` is the task's.

        Raises StateDirectoryLockedError (another process; names its pid), StateDirectoryError (permissions, disk), TaskCorruptedError
        (unreadable files: call `wipe`, which then also opens the store, and restore).
        """

    def init(self, context: StoreContext, root: StateStore | None = None) -> None:
        """Open the store in the context's own directory (Kafka Streams' signature)."""
        self.open(context.state_dir, context)

    @abstractmethod
    def close(self) -> None:
        """Drop uncommitted data and close the files. Safe to call twice."""

    @abstractmethod
    def wipe(self) -> None:
        """Remove all entries, offsets, metadata and staging, and leave the store open. Also after an `open` that failed."""

    @abstractmethod
    def flush(self) -> None:
        """Make committed data durable against a power loss (a kill -9 loses nothing anyway)."""

    @abstractmethod
    def begin_checkpoint(self, path: Path) -> Callable[[], None]:
        """Start a consistent copy of the data committed now, as a RocksDB in the new directory `path`; in-memory stores write one too. The
        returned function completes it: any thread may call it, while the store is written to. Both raise StateDirectoryError."""

    def checkpoint(self, path: Path) -> None:
        """Make such a copy at once."""
        self.begin_checkpoint(path)()

    # --- commit -------------------------------------------------------------------------------------------------------------------

    @abstractmethod
    def changelog_records(self) -> Iterator[ChangelogRecord]:
        """Return the uncommitted updates, folded by key; values are serialised once and kept for `commit`."""

    def prepare_commit(self) -> None:  # noqa: B027 (a store that has nothing to prepare needs none)
        """Do the part of `commit` that needs no answer of the broker, between `changelog_records` and `commit`. It has no visible
        effect."""

    @abstractmethod
    def commit(self, offsets: Mapping[TopicPartition, NextOffset]) -> None:
        """Write staged data, offsets and metadata in one atomic batch; entries become clean and stay readable from memory."""

    @abstractmethod
    def rollback(self) -> None:
        """Roll back to the last commit: drop staging, cache and metadata set since."""

    @abstractmethod
    def committed_records(self, records: Sequence[ChangelogRecord]) -> Iterator[ChangelogRecord]:
        """Return for each record the one that takes a restore back from it to the committed entry: its key with the committed value. The
        timestamp is the committed one where the store keeps it, else that of the record. A user's store has none, because only the user
        can read it."""

    @abstractmethod
    def restore(self, records: Sequence[ChangelogRecord], offsets: Mapping[TopicPartition, NextOffset]) -> None:
        """Apply changelog records in order, with the offsets, in one atomic batch. The record's timestamp becomes the value's."""

    @abstractmethod
    def committed_offset(self, topic_partition: TopicPartition) -> NextOffset | None: ...

    @abstractmethod
    def committed_offsets(self) -> dict[TopicPartition, NextOffset]:
        """Return all committed offsets, of changelog and inputs."""

    @abstractmethod
    def set_meta(self, name: str, value: bytes) -> None:
        """Set metadata that belongs to the data (topic id, stream time, ...); written with the next commit or restore."""

    @abstractmethod
    def get_meta(self, name: str) -> bytes | None: ...

    @property
    @abstractmethod
    def approximate_num_uncommitted_bytes(self) -> int: ...

    @property
    def user_store(self) -> object:
        """The store that processors get: this store, or the user's own behind it."""
        return self

    # --- reads ----------------------------------------------------------------------------------------------------------------------

    @abstractmethod
    def has_entries(self) -> bool:
        """Return True if the store has committed entries."""

    def has_state(self) -> bool:
        """Return True if records were processed into the store and committed. Files that a store of the user's own makes when it is opened
        are entries of which nothing is known, and no state."""
        return self.has_entries()

    @abstractmethod
    def query_view(self, *, timestamped: bool = False, headers: bool = False, uncommitted: bool = False) -> CommittedView:
        """Return the read-only interface of the store's kind, on committed data only, for any thread. `timestamped`: values as
        ValueAndTimestamp. `headers`: values as processors see them, in a store with headers. `uncommitted`: staged data too; then only the
        store's own thread may call its methods, and any thread may read the iterators that they return. Raises InvalidStateStoreError when
        used after close."""


class EntryStore(EngineStore):
    """A store of one entry per key, which operators read and write entry by entry, with an optional record cache."""

    @property
    @abstractmethod
    def caching(self) -> bool:
        """True if updates are cached and reach downstream through the flush listener; known once the store is open."""

    @abstractmethod
    def set_flush_listener(self, listener: FlushListener | None, run: FlushRun | None = None) -> None:
        """Set the listener for entries that leave the cache. Without a listener nothing is cached. `run` does the same for all entries of a
        flush at once, where values are objects."""

    @abstractmethod
    def flush_cache(self) -> bool:
        """Forward every unforwarded entry, oldest update first. Return True if there was one."""

    @property
    @abstractmethod
    def key_to_bytes(self) -> Serializer:
        """Return the serializer of the record's key (of the inner key, in a window store), for this store's changelog. Known once the store
        is open."""

    @property
    @abstractmethod
    def value_to_bytes(self) -> Serializer:
        """Return the serializer of the values, for this store's changelog. Known once the store is open."""

    # --- hot path of the operators ------------------------------------------------------------------------------------------------

    @abstractmethod
    def entry(self, key: bytes) -> Entry:
        """Return the entry of a key (of a window store: of `keys.window_store_key(...)`), loading it if necessary. Never None: an absent
        key has value None."""

    @property
    @abstractmethod
    def find(self) -> Callable[[bytes], Entry | None]:
        """Return a faster `entry` that returns None for an entry that must be loaded: `find(key) or entry(key)`. It stays valid as long as
        the store object, also after rollbacks and wipes."""

    @abstractmethod
    def reads_files(self, records: int) -> bool:
        """Return True if the store has lately read so many entries from files that a `look_ahead` pays off for the next `records`
        records."""

    @abstractmethod
    def look_ahead(self, keys: Iterable[bytes]) -> bool:
        """Start to read entries that the next records will need and that are not in memory, on another thread. Return False if too few are
        absent to be read ahead."""

    @abstractmethod
    def update(self, key: bytes, key_object: object, entry: Entry, value: object, timestamp: int, headers: Headers | None) -> None:
        """Set an entry obtained from `entry` in this commit. `value` is an object or None; `key_object` goes to the flush listener.

        With `caching` the flush listener forwards the update later; otherwise the caller forwards it.
        """

    @abstractmethod
    def value_of(self, entry: Entry) -> object:
        """Return the entry's value as an object that the caller may change; None for an absent key. Where `values_are_objects`, simply
        `entry.value`."""

    @property
    @abstractmethod
    def values_are_objects(self) -> bool:
        """True if `entry.value` is the object itself (immutable serde): operators then read it without a call. Known once the store is
        open."""


S_co = TypeVar("S_co", covariant=True, bound=StateStore)


class StoreBuilder(Protocol, Generic[S_co]):
    """Builder that makes a new store for each task; the contract for users' builders. It may also have `changelog_config()`, the topic
    settings of its changelog (default: compact). Builders of `Stores` have more methods (`suppliers.Builder`)."""

    @property
    def name(self) -> str: ...

    @property
    def logging_enabled(self) -> bool:
        """True if the store has a changelog."""
        ...

    def build(self) -> S_co:
        """Return a new store, closed."""
        ...
