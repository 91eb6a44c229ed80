"""The contract of state stores: what users see, what the engine drives, and what a place for bytes must promise.

Three layers, each of which knows only the one below:

    typed store (key_value, window)   objects; serdes; timestamps; segments; forwarding to operators
    staging                           uncommitted and recently read entries by key bytes; read-your-writes; commit and rollback
    backend (rocks, memory)           committed bytes and offsets; one atomic batch per commit

Processing reads staging first, so it sees its own writes. Interactive queries read the backend alone, so they never see what may still be
rolled back (KIP-892). The offsets that belong to the data (changelog and input) are written in the same batch as the data: a store cannot
be ahead of or behind its own offsets (KIP-892, KIP-1035).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Protocol, TypeVar, runtime_checkable

import msgspec

from runtime.errors import StreamsError
from runtime.ids import NextOffset, Partition, TaskId
from runtime.record import Headers
from runtime.serdes.serde import RegistrySchema, Serializer
from runtime.stores.budget import StoreMemory

ChangelogRecord = tuple[bytes, bytes | None, int]
"""Key, value (None is a tombstone), timestamp in ms, as on the changelog."""

RestoreCallback = Callable[[Sequence[ChangelogRecord]], None]
"""Applies changelog records, in their order, to a store of the user's (Kafka Streams' `RecordBatchingStateRestoreCallback`). Doing it twice
gives the same: a later record of a key takes the place of an earlier one, None removes it."""

FlushListener = Callable[[object, object, object, int, Headers | None], None]
"""`(key, new value, old value, timestamp, headers)` of an entry that leaves the cache; values are None where there is none."""

FlushRun = Callable[["Sequence[Entry]"], None]
"""Does for many entries what the store does for each that leaves the cache: those that are still `unforwarded` are so no more, their
headers are let go, and downstream is told, unless there is neither a new nor an old value."""


class OwnChanges(Protocol):
    """What the engine keeps for a store of the user's (`custom.py`)."""

    @property
    def pending(self) -> Mapping[bytes, bytes | None]: ...

    def register(self, store: StateStore, restore: RestoreCallback, staged: bool) -> None: ...

    def log_change(self, key: bytes, value: bytes | None, timestamp: int | None) -> None: ...


@dataclass(frozen=True, slots=True)
class StoreContext:
    """What a store is opened with. `state_dir` is the task's folder (or `global`), of a user's own store a folder for it alone;
    `changelog` is None for a store without one; `task_id` is None for a global store. `memory` is shared by all stores of the process.
    `record_time` gives the timestamp in ms of the record that is being processed: the time of a plain `put`, as the changelog shows it.

    `register`, `log_change` and `pending` are for stores of the user's; the engine's have no use for them (StreamsError)."""

    application_id: str
    state_dir: Path
    task_id: TaskId | None = None
    changelog: Partition | None = None
    memory: StoreMemory = field(default_factory=StoreMemory)
    record_time: Callable[[], int] = lambda: 0
    changes: OwnChanges | None = None

    def register(self, store: StateStore, restore: RestoreCallback, *, staged: bool = False) -> None:
        """Says, in `init`, how the store is restored. `staged`: it leaves what it gave to `log_change` alone until the commit, where
        `restore` applies it; otherwise it applies its changes itself, at once."""
        self._own().register(store, restore, staged)

    def log_change(self, key: bytes, value: bytes | None, timestamp: int | None = None) -> None:
        """A change of the store, None is a removal: for its changelog, where the last change of a key since the commit before is written.
        `timestamp` in ms; default: that of the record that is being processed."""
        self._own().log_change(key, value, timestamp)

    @property
    def pending(self) -> Mapping[bytes, bytes | None]:
        """What `log_change` was given since the last commit, so that a staged store reads its own writes."""
        return self._own().pending

    def _own(self) -> OwnChanges:
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
        """Opens the store. A store that had been closed begins with what was committed."""

    def flush(self) -> None:
        """Makes all that was committed durable on disk."""

    def commit(self, offsets: Mapping[Partition, NextOffset]) -> None:
        """Commits what was written since the last commit, with the next offsets of its changelog and inputs."""

    def committed_offset(self, topic_partition: Partition) -> NextOffset | None:
        """The next offset that was committed last for this partition, or None."""
        ...

    def close(self) -> None: ...


class Entry(msgspec.Struct, gc=False, eq=False):
    """One key's place in staging.

    `value` is the object itself where the serde is immutable, else its bytes; None is a tombstone (or an absent key). `timestamp` is
    in ms, -1 when there is no value. `uncommitted`: not yet in the backend. `unforwarded`: not yet sent downstream (caching); then
    `forwarded_value` is what downstream last saw, and `update` the number of the last update: the larger, the later. `key` is the key as an
    object, None until somebody needs it.

    (A struct and not a class with slots: it is made in C, in a quarter of the time.)
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
    """What somebody who reads a store's files must know. `kind` is `key_value`, `window`, `session`, `versioned`, `buffer` or `custom` (a
    user's own, whose files only the user can read). In ms: the size of windows (windows only), the retention, for which entries can be
    read, and the length of a segment. `duplicates`: several values of one key and time stand side by side (window stores of joins)."""

    kind: str
    timestamped: bool
    key_serde: str
    value_serde: str
    window_size_ms: int | None = None
    retention_ms: int | None = None
    segment_ms: int | None = None
    duplicates: bool = False


@dataclass(frozen=True, slots=True)
class StoreSchemas:
    """What a store's serdes tell of the bytes that they write (`Serde.schema`, `Serde.registry_schema`)."""

    key: Mapping[str, object] | None = None
    value: Mapping[str, object] | None = None
    key_registry: RegistrySchema | None = None
    value_registry: RegistrySchema | None = None


class CommittedView(Protocol):
    """What the read-only interfaces of all kinds have in common."""

    def all(self) -> Iterator[tuple[object, object]]:
        """Every entry that is committed, with its key."""
        ...


class EngineStore(ABC):
    """A store as the engine drives it, of whatever kind. One thread writes; `query_view` may be used by any.

    The order at a commit: `EntryStore.flush_cache` (all stores in topological order, until none had anything), `changelog_records`, the
    broker's commit, `commit`. No update happens between `changelog_records` and `commit`. `rollback` goes back to the last commit.
    """

    persistent: bool
    manages_offsets = True
    changelog_headers: Headers | None = None
    """Headers of its changelog's records, tombstones excepted."""
    folded_by_key = True
    """True if of several changelog records of one key only the last one counts, so that a restore may leave the others out."""

    # --- identity -----------------------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def name(self) -> str: ...

    @property
    @abstractmethod
    def layout(self) -> StoreLayout: ...

    @property
    def schemas(self) -> StoreSchemas:
        """What is known of the bytes of keys and values; of a user's own store, nothing."""
        return StoreSchemas()

    @property
    @abstractmethod
    def is_open(self) -> bool: ...

    @property
    @abstractmethod
    def logging_enabled(self) -> bool: ...

    @abstractmethod
    def changelog_config(self) -> Mapping[str, str]:
        """Topic settings of the changelog: compact, or compact,delete with the retention for windows; then the user's own."""

    # --- life ---------------------------------------------------------------------------------------------------------------------

    @abstractmethod
    def open(self, directory: Path, context: StoreContext) -> None:
        """Opens (or makes) `<directory>/rocksdb/<name>`; `directory` is the task's.

        Raises StateDirectoryLockedError (another process; names its pid), StateDirectoryError (rights, disk), TaskCorruptedError
        (files that cannot be read: `wipe`, which then also opens, and restore)."""

    def init(self, context: StoreContext, root: StateStore | None = None) -> None:
        """`open` in the context's own folder (Kafka Streams' signature)."""
        self.open(context.state_dir, context)

    @abstractmethod
    def close(self) -> None:
        """Drops what is not committed and closes the files. Safe to call twice."""

    @abstractmethod
    def wipe(self) -> None:
        """Empty and open afterwards: entries, offsets, metas and staging are gone. Also after an `open` that failed."""

    @abstractmethod
    def flush(self) -> None:
        """Makes committed data durable against a power loss (a kill -9 costs nothing anyway)."""

    @abstractmethod
    def begin_checkpoint(self, path: Path) -> Callable[[], None]:
        """Begins a consistent copy of the data that is committed now, as a RocksDB in the new folder `path`; in-memory stores write one
        too. What it gives does the rest: any thread may call it, while the store is written to. Both raise StateDirectoryError."""

    def checkpoint(self, path: Path) -> None:
        """Such a copy, made at once."""
        self.begin_checkpoint(path)()

    # --- commit -------------------------------------------------------------------------------------------------------------------

    @abstractmethod
    def changelog_records(self) -> Iterator[ChangelogRecord]:
        """The uncommitted updates, folded by key; values are serialised once and kept for `commit`."""

    def prepare_commit(self) -> None:  # noqa: B027 (a store that has nothing to prepare needs none)
        """What can be done of `commit` before the broker has answered, between `changelog_records` and it. By itself it changes nothing."""

    @abstractmethod
    def commit(self, offsets: Mapping[Partition, NextOffset]) -> None:
        """Writes staged data, offsets and metas in one atomic batch; entries become clean and stay readable from memory."""

    @abstractmethod
    def rollback(self) -> None:
        """Back to the last commit: staging, cache and metas set since are dropped."""

    @abstractmethod
    def restore(self, records: Sequence[ChangelogRecord], offsets: Mapping[Partition, NextOffset]) -> None:
        """Applies changelog records in order and the offsets, in one atomic batch. The record's timestamp becomes the value's."""

    @abstractmethod
    def committed_offset(self, topic_partition: Partition) -> NextOffset | None: ...

    @abstractmethod
    def committed_offsets(self) -> dict[Partition, NextOffset]:
        """All that were committed, changelog and inputs."""

    @abstractmethod
    def set_meta(self, name: str, value: bytes) -> None:
        """A small fact that belongs to the data (topic id, stream time, ...); written with the next commit or restore."""

    @abstractmethod
    def get_meta(self, name: str) -> bytes | None: ...

    @property
    @abstractmethod
    def approximate_num_uncommitted_bytes(self) -> int: ...

    @property
    def user_store(self) -> object:
        """What processors get: this store, or the user's own one behind it."""
        return self

    # --- reads ----------------------------------------------------------------------------------------------------------------------

    @abstractmethod
    def has_entries(self) -> bool:
        """True if something is committed."""

    @abstractmethod
    def query_view(self, *, timestamped: bool = False) -> CommittedView:
        """Committed data only, from any thread: the read-only interface of the store's kind. `timestamped`: values as ValueAndTimestamp.
        Raises InvalidStateStoreError when used after close."""


class EntryStore(EngineStore):
    """A store of one entry per key, which operators read and write entry by entry and which may hold updates back (caching)."""

    @property
    @abstractmethod
    def caching(self) -> bool:
        """True if updates are held back and reach downstream through the flush listener; known once the store is open."""

    @abstractmethod
    def set_flush_listener(self, listener: FlushListener | None, run: FlushRun | None = None) -> None:
        """Who is told about entries that leave the cache. Without a listener nothing is held back. `run` does the same for all entries of a
        flush at once, where values are objects."""

    @abstractmethod
    def flush_cache(self) -> bool:
        """Forwards every unforwarded entry, oldest update first. True if there was one."""

    @property
    @abstractmethod
    def key_to_bytes(self) -> Serializer:
        """The serializer of the record's key (of the inner key, in a window store), for this store's changelog. Known once the store
        is open."""

    @property
    @abstractmethod
    def value_to_bytes(self) -> Serializer:
        """The serializer of the values, for this store's changelog. Known once the store is open."""

    # --- hot path of the operators ------------------------------------------------------------------------------------------------

    @abstractmethod
    def entry(self, key: bytes) -> Entry:
        """The entry of a key (of a window store: of `keys.window_store_key(...)`), loaded if need be. Never None: an absent key has
        value None."""

    @property
    @abstractmethod
    def find(self) -> Callable[[bytes], Entry | None]:
        """A faster `entry` that gives None for what must be loaded: `find(key) or entry(key)`. Good as long as the store object lives, over
        rollbacks and wipes too."""

    @abstractmethod
    def update(self, key: bytes, key_object: object, entry: Entry, value: object, timestamp: int, headers: Headers | None) -> None:
        """Sets an entry got by `entry` in this commit. `value` is an object or None; `key_object` goes to the flush listener.

        With `caching` the update is forwarded later by the flush listener, otherwise forwarding is the caller's.
        """

    @abstractmethod
    def value_of(self, entry: Entry) -> object:
        """The entry's value as an object that the caller may change; None for an absent key. Where `values_are_objects`, simply
        `entry.value`."""

    @property
    @abstractmethod
    def values_are_objects(self) -> bool:
        """True if `entry.value` is the object itself (immutable serde): operators then read it without a call. Known once the store
        is open."""


S_co = TypeVar("S_co", covariant=True, bound=StateStore)


class StoreBuilder(Protocol, Generic[S_co]):
    """Makes a store anew for each task: what a user's own builder must have. It may also have `changelog_config()`, the topic settings of
    its changelog (default: compact). Those that `Stores` gives have more (`suppliers.Builder`)."""

    @property
    def name(self) -> str: ...

    @property
    def logging_enabled(self) -> bool:
        """True if the store has a changelog."""
        ...

    def build(self) -> S_co:
        """A new store, closed."""
        ...
