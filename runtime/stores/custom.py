"""User-defined stores: any class with the attributes and methods of `StateStore`, used by the engine like its own (rules.md, 12).

The engine must write such a store's changes to the changelog, restore it from there, roll back the writes of an aborted transaction, and
know after a kill what the store holds, without any knowledge of its inside. In Kafka Streams the store logs its changes and registers a
restore callback. The same two calls are the contract here, on the `StoreContext` that `init` receives: `log_change(key, value)` and
`register(store, restore)`. Two properties of the store decide the rest:

                     manages_offsets                            does not manage offsets
    staged           changes reach it by `restore`, then        changes reach it by `restore` at the commit. It may be ahead of its
                     `commit(offsets)` stores both at once      recorded offsets, never of its changelog: restoring again after a kill
                                                                ends at the same content
    not staged       it writes at once, in a transaction of     it writes at once: an aborted transaction, or a stop without a clean
                     its own that `commit(offsets)` ends;       close, leaves uncommitted data. It is emptied and restored
                     `close` and `init` roll it back

Offsets of a store that does not manage them are kept beside it, and written when it has been flushed: with the checkpoint (KIP-116) and at
a clean close.

    <task>/custom/<store>/           the store's own directory, its `state_dir`; emptied when the store is rebuilt
    <task>/custom/<store>.offsets    offsets (where the engine keeps them) and metadata, JSON
    <task>/custom/<store>.open       exists while a store that writes at once is open

Rejected: intercepting a store's writes by wrapping its methods (each store has its own); asking the store for the previous value of a key
(it may not know it).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import msgspec

from penstock.runtime.model.errors import InvalidStateStoreError, StateDirectoryError, StreamsError, TaskCorruptedError
from penstock.runtime.model.ids import NextOffset, TopicPartition
from penstock.runtime.stores.backed import UPDATE_BYTES
from penstock.runtime.stores.base import (
    ChangelogRecord,
    CommittedView,
    EngineStore,
    RestoreCallback,
    StateStore,
    StoreBuilder,
    StoreContext,
    StoreLayout,
)
from penstock.runtime.stores.suppliers import Builder


class _StoredMetadata(msgspec.Struct, frozen=True):
    """Data kept beside a store: next offsets by partition (`topic-number`), and metadata."""

    offsets: dict[str, int]
    meta: dict[str, bytes]


class CustomStore(EngineStore):
    """A user's store, adapted for the engine."""

    folded_by_key = False

    def __init__(self, store: StateStore, *, logging: bool, changelog_config: Mapping[str, str]) -> None:
        self._store = store
        self._logging = logging
        self._config = dict(changelog_config)
        self.persistent = bool(store.persistent)
        self.manages_offsets = bool(store.manages_offsets)
        self._restore: RestoreCallback | None = None
        self._staged = False
        self._directory: Path | None = None
        self._context: StoreContext | None = None
        self._taken_up = False
        self._found_files = False
        self._unknown_files = False
        """True for files of which no offsets are known: they may be state."""
        self._ruined = False
        self._forget()

    def _forget(self) -> None:
        self._pending: dict[bytes, bytes | None] = {}
        self._times: dict[bytes, int] = {}
        self._pending_bytes = 0
        self._offsets: dict[TopicPartition, NextOffset] = {}
        self._meta: dict[str, bytes] = {}
        self._staged_meta: dict[str, bytes] = {}

    # --- identity -----------------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self._store.name

    @property
    def layout(self) -> StoreLayout:
        return StoreLayout("custom", timestamped=False, key_serde="BYTES", value_serde="BYTES")

    @property
    def is_open(self) -> bool:
        return self._taken_up and self._store.is_open

    @property
    def logging_enabled(self) -> bool:
        return self._logging

    @property
    def user_store(self) -> object:
        return self._store

    def changelog_config(self) -> Mapping[str, str]:
        return self._config

    # --- what the store calls (LoggedChanges) ------------------------------------------------------------------------------------

    @property
    def pending(self) -> Mapping[bytes, bytes | None]:
        """Return the changes logged since the last commit."""
        return self._pending

    def register(self, store: StateStore, restore: RestoreCallback, staged: bool) -> None:
        """Implement `StoreContext.register`."""
        self._restore, self._staged = restore, staged

    def log_change(self, key: bytes, value: bytes | None, timestamp: int | None) -> None:
        """Implement `StoreContext.log_change`."""
        if not isinstance(key, bytes) or not isinstance(value, bytes | None):
            raise TypeError(f"store {self.name}: keys and values are logged as bytes")
        if key not in self._pending:
            self._pending_bytes += UPDATE_BYTES + len(key)
        self._pending_bytes += len(value or b"") - len(self._pending.get(key) or b"")
        self._pending[key] = value
        self._times[key] = self._opened().record_time() if timestamp is None else timestamp

    # --- life ---------------------------------------------------------------------------------------------------------------

    def open(self, directory: Path, context: StoreContext) -> None:
        """Open the store. Raises TaskCorruptedError for a store that was not closed and may hold uncommitted data; what its `init` raises;
        and StreamsError if a restore callback is needed and not registered."""
        if self._taken_up:
            raise StreamsError(f"store {self.name} is already open")
        self._directory = directory
        self._folder = directory / "custom" / self.name
        self._beside = self._folder.with_name(f"{self.name}.offsets")
        self._mark = self._folder.with_name(f"{self.name}.open")
        self._context = replace(context, state_dir=self._folder, changes=self)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StateDirectoryError(f"the store's folder {self._folder} cannot be used: {error}") from error
        if self._mark.exists():
            raise self._corrupted("it was not closed, and may contain uncommitted writes")
        self._found_files, known = any(self._folder.iterdir()), self._read_metadata() or self.manages_offsets
        self._unknown_files = self._found_files and not known
        if self.persistent and not self._found_files and not known:
            self._write_metadata()  # files that `init` makes are no state, should the process be killed before the first commit
        self._init(self._context)
        self._taken_up = True

    def _init(self, context: StoreContext) -> None:
        self._store.init(context, self._store)
        if self._restore is None and (self._logging or context.task_id is None):
            self._store.close()
            raise StreamsError(f"store {self.name}: its init must say how it is restored: context.register(self, callback)")
        if self._writes_at_once and self.persistent:
            self._mark.touch()

    @property
    def _writes_at_once(self) -> bool:
        return not self.manages_offsets and not self._staged

    def _corrupted(self, reason: str) -> TaskCorruptedError:
        task = self._context.task_id if self._context else None
        return TaskCorruptedError([task] if task else [], f"store {self.name}: {reason}", self.name)

    def _opened(self) -> StoreContext:
        if self._context is None or not self._taken_up:
            raise InvalidStateStoreError(f"store {self.name} is not open")
        return self._context

    def close(self) -> None:
        if not self._taken_up:
            return
        clean = not self._pending and not self._ruined
        if clean and self._store.is_open:
            self.flush()
        self._taken_up = False
        self._store.close()
        if clean and self._writes_at_once:
            self._mark.unlink(missing_ok=True)
        self._forget()

    def wipe(self) -> None:
        if self._directory is None or self._context is None:
            raise InvalidStateStoreError(f"store {self.name} was never opened")
        if self._store.is_open:
            self._store.close()
        self._taken_up = self._ruined = False
        self._forget()
        for path in (self._beside, self._mark):
            path.unlink(missing_ok=True)
        shutil.rmtree(self._folder, ignore_errors=not self._folder.exists())
        self.open(self._directory, self._context)

    def flush(self) -> None:
        self._opened()
        self._store.flush()
        if self.persistent:
            self._write_metadata()

    def begin_checkpoint(self, path: Path) -> Callable[[], None]:
        raise StateDirectoryError(f"store {self.name} is of the user's own: no copy can be made of it")

    # --- beside the store ---------------------------------------------------------------------------------------------------

    def _read_metadata(self) -> bool:
        """Return False if there is none."""
        try:
            found = msgspec.json.decode(self._beside.read_bytes(), type=_StoredMetadata)
        except FileNotFoundError:
            return False
        except (OSError, msgspec.DecodeError) as error:
            raise self._corrupted(f"its stored offsets cannot be read: {error}") from error
        for name, offset in found.offsets.items():
            topic, _, number = name.rpartition("-")
            self._offsets[TopicPartition(topic, int(number))] = NextOffset(offset)
        self._meta.update(found.meta)
        return True

    def _write_metadata(self) -> None:
        offsets = {} if self.manages_offsets else {str(partition): int(offset) for partition, offset in self._offsets.items()}
        building = self._beside.with_suffix(".building")
        try:
            with building.open("wb") as file:
                file.write(msgspec.json.encode(_StoredMetadata(offsets, self._meta)))
                file.flush()
                os.fsync(file.fileno())
            building.replace(self._beside)
        except OSError as error:
            raise StateDirectoryError(f"the offsets of store {self.name} cannot be written to {self._beside}: {error}") from error

    # --- commit -------------------------------------------------------------------------------------------------------------

    def changelog_records(self) -> Iterator[ChangelogRecord]:
        return iter(self._changes())

    def _changes(self) -> list[ChangelogRecord]:
        return [(key, value, self._times[key]) for key, value in self._pending.items()]

    def commit(self, offsets: Mapping[TopicPartition, NextOffset]) -> None:
        self._opened()
        if self._staged and self._pending:
            self._apply(self._changes())
        self._commit(offsets)

    def _apply(self, records: Sequence[ChangelogRecord]) -> None:
        assert self._restore is not None  # checked by `_init`
        self._restore(records)

    def _commit(self, offsets: Mapping[TopicPartition, NextOffset]) -> None:
        self._store.commit(offsets)
        self._offsets.update(offsets)
        new_metas = self._staged_meta.keys() - self._meta.keys()
        self._meta.update(self._staged_meta)
        self._drop_pending()
        if self.manages_offsets and self.persistent and new_metas:
            self._write_metadata()  # the changelog of the offsets must be known as long as they are

    def _drop_pending(self) -> None:
        self._pending.clear()
        self._times.clear()
        self._staged_meta.clear()
        self._pending_bytes = 0

    def rollback(self) -> None:
        """Roll back. Raises TaskCorruptedError for a store that has already written uncommitted data."""
        context = self._opened()
        written = bool(self._pending)
        self._drop_pending()
        if self._staged:
            return
        if self.manages_offsets:
            self._store.close()
            self._init(context)
        elif written:
            self._ruined = True
            raise self._corrupted("it contains uncommitted writes")

    def committed_records(self, records: Sequence[ChangelogRecord]) -> Iterator[ChangelogRecord]:
        return iter(())

    def restore(self, records: Sequence[ChangelogRecord], offsets: Mapping[TopicPartition, NextOffset]) -> None:
        self._opened()
        if self._pending:
            raise StreamsError(f"store {self.name} cannot be restored while it holds {len(self._pending)} uncommitted updates")
        self._apply(records)
        self._commit(offsets)

    def committed_offset(self, topic_partition: TopicPartition) -> NextOffset | None:
        TopicPartition.checked(topic_partition)
        if not self.manages_offsets:
            return self._offsets.get(topic_partition)
        found = self._store.committed_offset(topic_partition)
        return None if found is None else NextOffset(found)

    def committed_offsets(self) -> dict[TopicPartition, NextOffset]:
        """Return the offset of the changelog and those given since the store was opened, for a store that manages its offsets; all offsets
        otherwise."""
        changelog = self._opened().changelog
        own = self.committed_offset(changelog) if changelog is not None else None
        return self._offsets | ({changelog: own} if changelog is not None and own is not None else {})

    def set_meta(self, name: str, value: bytes) -> None:
        self._staged_meta[name] = value

    def get_meta(self, name: str) -> bytes | None:
        return self._staged_meta.get(name, self._meta.get(name))

    @property
    def approximate_num_uncommitted_bytes(self) -> int:
        """Return the logged bytes, or the store's own number of this name if it is larger (KIP-892)."""
        own: object = getattr(self._store, "approximate_num_uncommitted_bytes", 0)
        return max(self._pending_bytes, own) if isinstance(own, int) else self._pending_bytes

    # --- reads --------------------------------------------------------------------------------------------------------------

    def has_entries(self) -> bool:
        """Return True if its files existed when it was opened, or it has commits."""
        return self._found_files or self.has_state()

    def has_state(self) -> bool:
        """Return True if it has committed records of its changelog, or files of which no offsets are known."""
        changelog = self._opened().changelog
        return self._unknown_files or (changelog is not None and bool(self.committed_offset(changelog)))

    def query_view(self, *, timestamped: bool = False, headers: bool = False, uncommitted: bool = False) -> CommittedView:
        """Return the store's own `query_view()`, if it has one: it must show committed data only, to any thread, also with
        `uncommitted`."""
        self._opened()
        view = getattr(self._store, "query_view", None)
        if view is None:
            raise InvalidStateStoreError(f"store {self.name!r} is of your own and cannot be queried: it has no query_view()")
        return cast(CommittedView, view())


def build_store(builder: StoreBuilder[StateStore]) -> EngineStore:
    """Build a store and adapt it for the engine."""
    built = builder.build()
    if isinstance(built, EngineStore):
        return built
    return CustomStore(built, logging=bool(builder.logging_enabled), changelog_config=changelog_config(builder))


def build_global_store(builder: StoreBuilder[StateStore]) -> EngineStore:
    """Build a store without a changelog and a cache: a global store is filled from its topic."""
    if isinstance(builder, Builder):
        plain: EngineStore = builder.with_caching_disabled().with_logging_disabled().build()
        return plain
    built = builder.build()
    return built if isinstance(built, EngineStore) else CustomStore(built, logging=False, changelog_config={})


def changelog_config(builder: StoreBuilder[StateStore]) -> dict[str, str]:
    """Return the topic settings of the changelog; a user's builder need not have any."""
    own = getattr(builder, "changelog_config", None)
    return {"cleanup.policy": "compact", "message.timestamp.type": "CreateTime", **(own() if own is not None else {})}
