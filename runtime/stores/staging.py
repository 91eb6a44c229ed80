"""Staging: the uncommitted updates of a store, its record cache and its read cache, in one map (KIP-892).

Every update must be visible to the next read, reach the changelog once per key and commit, be forwarded downstream either at once or
folded, disappear on an abort, and reach RocksDB in one atomic batch; all that in a few hundred nanoseconds of Python per record.

So there is one `Entry` per key with two marks, *not yet committed* (staging) and *not yet forwarded* (cache). The hot path is a look-up in
one dict and a few assignments. The expensive work (serialising, the changelog, RocksDB) happens once per key and commit. After a commit the
entries stay as a read cache, so a hot key is not read and decoded again every 100 ms.

    _entries        key -> Entry: all uncommitted ones, and the clean ones of this generation
    _older          key -> Entry: clean ones of the previous generation
    _uncommitted    key -> Entry, in the order of the first update since the commit
    _waiting        how many of these are not yet forwarded. Each entry has the number of its last update, by which entries are sorted when
                    they are forwarded (as in Kafka Streams' `NamedCache`, so that time runs forward downstream): a map in that order
                    costs two look-ups per update
    _in_order       keys of unforwarded entries in that order, as of when the cache last was too large: those that were not updated since
                    are the oldest

The read cache evicts by generations: when `_entries` has grown to half of its share, it becomes `_older` and the previous generation is
dropped; a hit in `_older` moves the entry back. That is nearly LRU and costs nothing on a hit. As long as nothing has been dropped and the
backend was empty at the start, the map is known to hold *every* key, and an absent key costs no read at all (`_complete`).

Rejected: a WriteBatchWithIndex (rocksdict has none, and every read would cross into RocksDB and be decoded again); an LRU list (a move per
read); copies of the map per commit (a pause, and twice the memory); staging mutable values as objects (user code that changes a dict in
place would change state that was not put).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from operator import attrgetter
from struct import Struct

from penstock.runtime.model.errors import InvalidStateStoreError, SchemaRegistryUnavailableError, StreamsError
from penstock.runtime.model.ids import NextOffset, TopicPartition
from penstock.runtime.model.record import AggregationWithHeaders, Headers, ValueAndTimestamp, ValueTimestampHeaders
from penstock.runtime.stores.backed import UPDATE_BYTES, B, BackedStore
from penstock.runtime.stores.backend import BY_KEY, Entries, Meta, Offsets, in_key_order
from penstock.runtime.stores.base import ChangelogRecord, Entry, EntryStore, FlushListener, FlushRun
from penstock.runtime.stores.headers import split_stored, stored_rows
from penstock.runtime.stores.look_ahead import NOT_READ, LookAhead
from penstock.runtime.stores.reading import NOTHING_STAGED, Staged, StagedRow
from penstock.runtime.stores.settings import StoreSettings

_TIMESTAMP = Struct(">q")
ENTRY_BYTES = 330
"""Python memory of an entry besides key and value: the object, its timestamp, its place in a dict, the object headers of key and value."""
_LOADS_PER_LOOK = 256
"""Number of loads after which the size of the read cache is checked."""
_ONE_READ_IN = 8
"""Look-ahead is used while one in this many records has to be read."""
_ASKED_PER_LOOK = 2_048
"""Number of records after which that ratio is checked."""
_LEAST_AHEAD = 16
"""Minimum number of keys for a read on another thread; fewer are read faster one by one."""
_EVICTED_AT_ONCE = 64
"""An eviction frees this part of the cache's budget."""
_BY_UPDATE = attrgetter("update")
NUMBERS = count(1)
"""Numbers of updates, of all stores of the process, in their order."""
_INSORT = 64
"""Up to this many new keys the sorted view is updated key by key; above, it is sorted again."""


class StagedStore(BackedStore[B], EntryStore):
    """Base of key-value, window and session stores: everything except the typed reads."""

    # --- life ---------------------------------------------------------------------------------------------------------------

    def __init__(self, settings: StoreSettings) -> None:
        super().__init__(settings)
        self._entries: dict[bytes, Entry] = {}
        self._ahead = LookAhead()

    def _reset_staging(self) -> None:
        self._entries.clear()  # operators keep references to the map itself, over a rollback or a wipe too
        self._older: dict[bytes, Entry] = {}
        self._uncommitted: dict[bytes, Entry] = {}
        self._waiting = 0
        self._flushing = False
        self._in_order: Iterator[tuple[int, bytes]] = iter(())
        self._sorted: list[bytes] = []
        self._staged_meta: dict[str, bytes] = {}
        self._prepared: list[ChangelogRecord] | None = None
        self._write: Callable[[Offsets, Meta], None] | None = None
        self._held_bytes = 0
        self._uncommitted_bytes = 0
        self._loads = 0
        self._reads = 0
        self._asked = 0
        self._reads_files = False
        self._value_bytes = 0
        self._counted = 0
        self._complete = False

    def _loaded_from_backend(self) -> None:
        super()._loaded_from_backend()
        self._complete = self._opened().is_empty()

    def _forget(self) -> None:
        """Empty the staging and return its memory to the shared budgets."""
        self._ahead.forget()
        self._cache.used -= self._held_bytes
        self._read_cache.used -= self._counted
        self._reset_staging()

    # --- hot path -----------------------------------------------------------------------------------------------------------

    @property
    def find(self) -> Callable[[bytes], Entry | None]:
        return self._entries.get

    def entry(self, key: bytes) -> Entry:
        return self._entries.get(key) or self._load(key)

    def update(self, key: bytes, key_object: object, entry: Entry, value: object, timestamp: int, headers: Headers | None) -> None:
        size = self._fixed_size
        if size is None:
            value, size = self._sized(entry, value)
        if entry.unforwarded:
            entry.update = next(NUMBERS)
            entry.headers = headers
            entry.value = value
            entry.timestamp = timestamp
            if self._fixed_size is None and self._cache.used > self._cache.limit:
                self._evict()
            return
        counted = UPDATE_BYTES + len(key) + size
        if not entry.uncommitted:
            entry.uncommitted = True
            self._uncommitted[key] = entry
            self._uncommitted_bytes += counted
        if self._listener is not None:
            entry.unforwarded = True
            entry.update = next(NUMBERS)
            entry.forwarded_value = entry.value
            self._waiting += 1
            entry.key = key_object if key_object is not None else self._key_object(key)
            entry.headers = headers
            self._held_bytes += counted
            cache = self._cache
            cache.used = used = cache.used + counted
            entry.value = value
            entry.timestamp = timestamp
            if used > cache.limit:
                self._evict()
        else:
            entry.value = value
            entry.timestamp = timestamp

    def stage(self, key: bytes, value: object, timestamp: int) -> object:
        """Do what `update` does without reading the entry before, in a store without a cache whose rows are read by ranges alone. Return
        the value as it is staged."""
        entry, uncommitted = Entry(None, timestamp), self._uncommitted
        size = self._fixed_size
        if size is None:
            value, size = self._sized(entry, value)
        entry.value, entry.uncommitted = value, True
        others = len(uncommitted)
        uncommitted[key] = entry
        if len(uncommitted) > others:
            self._uncommitted_bytes += UPDATE_BYTES + len(key) + size
        return value

    def _sized(self, entry: Entry, value: object) -> tuple[object, int]:
        """Return a value without a fixed size as it is staged, with its size. The counted size of an uncommitted entry is updated."""
        try:
            if value is not None and self._encode is not None:
                value = self._encode(value)
            size = _length(value)
        except SchemaRegistryUnavailableError:
            raise  # not the fault of the value
        except BaseException as error:
            raise self._unwritable(value, error) from error
        if entry.uncommitted:
            grown = size - _length(entry.value)
            self._uncommitted_bytes += grown
            self._value_bytes += grown
            if entry.unforwarded:
                self._held_bytes += grown
                self._cache.used += grown
        return value, size

    def value_of(self, entry: Entry) -> object:
        value = entry.value
        if value is None or self._encode is None:
            return value
        try:
            return self._read_value(value)  # type: ignore[arg-type]  # staged as bytes
        except BaseException as error:
            raise self._unreadable(self._key_of(entry), value, error) from error

    def _key_of(self, entry: Entry) -> bytes | None:
        """Return the key of an entry by a search, for error messages."""
        return next((key for key, each in [*self._entries.items(), *self._uncommitted.items()] if each is entry), None)

    def _load(self, key: bytes) -> Entry:
        older = self._older.pop(key, None) if self._older else None
        if older is not None:
            self._entries[key] = older
            return older
        data: bytes | None = None
        if not self._complete and not self._is_new(key):
            self._reads += 1
            ahead = self._ahead.found.pop(key, NOT_READ)
            data = ahead if ahead is not NOT_READ else self._read(key)
        if data is None:
            entry = Entry(None, -1)
        else:
            timestamp = 0
            if self.keeps_headers:
                timestamp, data = self._reader.unpacked(data, key)
            elif self._timestamped:
                timestamp, data = _TIMESTAMP.unpack_from(data)[0], data[8:]
            try:
                entry = Entry(data if self._decode is None else self._decode(data), timestamp)
            except BaseException as error:
                raise self._unreadable(key, data, error) from error
            self._value_bytes += len(data)
        self._loads += 1
        if self._loads >= _LOADS_PER_LOOK:
            self._check_read_cache()
        self._entries[key] = entry
        return entry

    def _read(self, key: bytes) -> bytes | None:
        if self._ahead.collect():
            ahead = self._ahead.found.pop(key, NOT_READ)
            if ahead is not NOT_READ:
                return ahead
        return self._opened().get(key)

    def reads_files(self, records: int) -> bool:
        self._asked += records
        if self._asked >= _ASKED_PER_LOOK:
            self._reads_files = self._reads * _ONE_READ_IN >= self._asked
            self._asked = self._reads = 0
        return self._reads_files and not self._complete

    def look_ahead(self, keys: Iterable[bytes]) -> bool:
        absent = list(set(keys).difference(self._entries).difference(self._older).difference(self._ahead.found))
        if len(absent) < _LEAST_AHEAD:
            return False
        self._ahead.begin(absent, self._opened().begin_get_all)
        return True

    def _is_new(self, key: bytes) -> bool:
        """Return True if the key alone shows that it is not stored unless it is in memory."""
        return False

    def _taken(self, value: object) -> tuple[object, int]:
        """Convert the argument of a user's `put` to (value, timestamp)."""
        if not self._timestamped or value is None:
            return value, self._record_time()
        if isinstance(value, ValueAndTimestamp):
            return value
        if self.keeps_headers and isinstance(value, ValueTimestampHeaders):
            if value.value is None:
                return None, self._record_time()
            return AggregationWithHeaders(value.value, value.headers), value.timestamp
        wanted = ValueTimestampHeaders if self.keeps_headers else ValueAndTimestamp
        raise TypeError(f"store {self.name} is timestamped: it takes {wanted.__name__}, not {type(value).__name__}")

    # --- memory -------------------------------------------------------------------------------------------------------------

    def _check_read_cache(self) -> None:
        """Count this generation, and begin a new one if all stores together have used up their half of the budget and this store its
        share."""
        self._loads = 0
        budget = self._read_cache
        counted = len(self._entries) * ENTRY_BYTES + self._value_bytes
        budget.used += counted - self._counted
        self._counted = counted
        half = budget.limit // 2
        if budget.used > half and counted > half // budget.holders:
            if self._older:
                self._dropped()
                self._ahead.forget_evicted(self._older.keys())
            self._older = self._entries.copy()  # operators keep references to the map itself
            self._entries.clear()
            self._entries.update(self._uncommitted)
            for key in self._uncommitted:
                self._older.pop(key, None)
            self._value_bytes = 0
            budget.used -= counted
            self._counted = 0

    def _dropped(self) -> None:
        """Note that stored entries leave memory: a key that is not in memory may be stored now."""
        self._complete = False

    def _evict(self) -> None:
        """Forward the oldest entries until the cache is within its budget again; they stay staged (rules.md, 9). It continues to slightly
        below the budget, so that this is not done for each update. During a flush there is nothing to do: all entries are being
        forwarded."""
        cache, uncommitted = self._cache, self._uncommitted
        enough = cache.limit - cache.limit // _EVICTED_AT_ONCE
        while self._waiting and not self._flushing:
            for update, key in self._in_order:
                entry = uncommitted.get(key)
                if entry is None or entry.update != update or not entry.unforwarded:
                    continue  # updated or moved since, or forwarded as a consequence of another one
                self._waiting -= 1
                size = self._fixed_size
                counted = UPDATE_BYTES + len(key) + (size if size is not None else _length(entry.value))
                self._held_bytes -= counted
                cache.used -= counted
                self._forward(entry)
                if cache.used <= enough:
                    return
            self._in_order = iter(sorted([(entry.update, key) for key, entry in uncommitted.items() if entry.unforwarded]))

    def _forward(self, entry: Entry) -> None:
        entry.unforwarded = False
        new, old, headers = entry.value, entry.forwarded_value, entry.headers
        entry.headers = None
        if new is None and old is None:
            return  # added and deleted between two flushes: downstream never received it (Kafka Streams' CachingKeyValueStore)
        if self._encode is not None:
            try:
                new = self._read_value(new) if new is not None else None  # type: ignore[arg-type]  # staged as bytes
                old = self._read_value(old) if old is not None else None  # type: ignore[arg-type]  # staged as bytes
            except BaseException as error:
                raise self._unreadable(self._key_of(entry), (new, old), error) from error
        if self._listener is not None:
            self._listener(entry.key, new, old, entry.timestamp, headers)

    def _key_object(self, key: bytes) -> object:
        """Return the key as an object, as the flush listener and iterators show it."""
        try:
            return self._read_key(key)
        except BaseException as error:
            raise self._reader.unreadable_key(key, error) from error

    # --- commit -------------------------------------------------------------------------------------------------------------

    def set_flush_listener(self, listener: FlushListener | None, run: FlushRun | None = None) -> None:
        if self._context is None or self._backend is None:
            raise InvalidStateStoreError(f"store {self.name} is not open")
        self._listener = listener if self.caching else None
        self._flush_run = run

    def flush_cache(self) -> bool:
        if not self._waiting:
            return False
        waiting = sorted([entry for entry in self._uncommitted.values() if entry.unforwarded], key=_BY_UPDATE)
        self._waiting, self._in_order, self._flushing = 0, iter(()), True
        self._release_held()
        # An operator downstream may write to this store too: an entry that it updates is nevertheless forwarded here.
        if self._encode is not None or self._flush_run is None:
            for entry in waiting:
                if entry.unforwarded:
                    self._forward(entry)
        else:
            self._flush_run(waiting)
        self._flushing = False
        return True

    def _release_held(self) -> None:
        self._cache.used -= self._held_bytes
        self._held_bytes = 0

    def changelog_records(self) -> Iterator[ChangelogRecord]:
        self._prepared, self._write = self._prepare(), None
        return iter(self._prepared)

    def _prepare(self) -> list[ChangelogRecord]:
        items = self._uncommitted.items()
        if self._encode is not None:
            return [(key, entry.value, entry.timestamp) for key, entry in items]  # type: ignore[misc]  # staged as bytes
        write = self._write_value
        try:
            return [(key, write(value) if (value := entry.value) is not None else None, entry.timestamp) for key, entry in items]
        except SchemaRegistryUnavailableError:
            raise  # not the fault of the value
        except BaseException as error:
            raise self._unwritable(value, error) from error

    def prepare_commit(self) -> None:
        if self._prepared and self.persistent:
            self._write = self._opened().begin_write(self._stored(self._prepared))

    def commit(self, offsets: Mapping[TopicPartition, NextOffset]) -> None:
        backend = self._opened()
        if self._waiting:
            raise StreamsError(f"store {self.name} cannot be committed while {self._waiting} updates are not forwarded")
        moved = {partition: offset for partition, offset in offsets.items() if self._offsets.get(partition) != offset}
        if not (moved or self._uncommitted or self._staged_meta):
            self._prepared = self._write = None
            return
        prepared = self._prepared if self._prepared is not None else self._prepare()
        if len(prepared) != len(self._uncommitted):
            raise StreamsError(f"store {self.name} was updated after its changelog records were taken: they would not be on the changelog")
        if self._write is None:
            backend.write(self._stored(prepared), moved, self._staged_meta)
        else:
            self._write(moved, self._staged_meta)
        self._committed(moved)

    def _stored(self, records: Sequence[ChangelogRecord]) -> Entries:
        """Return changelog records as the backend stores them, in the order of their keys; each entry is made when it is written."""
        if not self._timestamped:
            return in_key_order(records)
        ordered = sorted(records, key=BY_KEY)
        if self.keeps_headers:
            return stored_rows(ordered)
        pack = _TIMESTAMP.pack
        return ((key, pack(timestamp) + value if value is not None else None) for key, value, timestamp in ordered)

    def _changelog_record(self, key: bytes, stored: bytes | None, timestamp: int) -> ChangelogRecord:
        if stored is None or not self._timestamped:
            return key, stored, timestamp
        if self.keeps_headers:
            own, packed = split_stored(stored)
            return key, packed, own
        return key, stored[_TIMESTAMP.size :], _TIMESTAMP.unpack_from(stored)[0]

    def _committed(self, offsets: Mapping[TopicPartition, NextOffset]) -> None:
        for entry in self._uncommitted.values():
            entry.uncommitted = False
        self._uncommitted.clear()
        self._uncommitted_bytes = 0
        self._sorted = []
        self._prepared = self._write = None
        self._staged_meta.clear()
        self._offsets.update(offsets)
        self._check_read_cache()

    def rollback(self) -> None:
        backend = self._opened()
        self._ahead.forget()  # an entry that leaves memory here may have been committed since it was read ahead
        for key in self._uncommitted:
            self._entries.pop(key, None)
            self._older.pop(key, None)  # where a caller held the entry during the change of generations
        if self._uncommitted and not (self._complete and backend.is_empty()):
            self._dropped()
        self._release_held()
        self._uncommitted.clear()
        self._waiting, self._in_order, self._flushing = 0, iter(()), False
        self._uncommitted_bytes = 0
        self._sorted = []
        self._prepared = self._write = None
        self._reset_meta()

    def restore(self, records: Sequence[ChangelogRecord], offsets: Mapping[TopicPartition, NextOffset]) -> None:
        if self._uncommitted:
            raise StreamsError(f"store {self.name} cannot be restored while it holds {len(self._uncommitted)} uncommitted updates")
        self._ahead.forget()
        self._opened().write(self._stored(records), offsets, self._staged_meta)
        self._staged_meta.clear()
        self._offsets.update(offsets)
        self._dropped()
        if self._entries or self._older:
            for key, _, _ in records:
                self._entries.pop(key, None)
                self._older.pop(key, None)

    @property
    def approximate_num_uncommitted_bytes(self) -> int:
        return self._uncommitted_bytes

    # --- ranges -------------------------------------------------------------------------------------------------------------

    def _staged(self, uncommitted: bool) -> Staged:
        """Return what a view shows beside the committed rows."""
        return Staged(self._staged_row, self._staged_range, lambda: len(self._uncommitted)) if uncommitted else NOTHING_STAGED

    def _staged_row(self, key: bytes) -> StagedRow | None:
        entry = self._uncommitted.get(key)
        return None if entry is None else (key, entry.value, entry.timestamp)

    def _staged_range(self, lo: bytes | None, hi: bytes | None) -> list[StagedRow]:
        """Return (key, staged value, timestamp) of the uncommitted entries with lo <= key < hi, in the order of the keys.

        The sorted view is built at the first range and then updated: the dict keeps the order of insertion and loses nothing before the
        commit, so the keys that are new since the last range are its last ones.
        """
        uncommitted, keys = self._uncommitted, self._sorted
        new = len(uncommitted) - len(keys)
        if new > _INSORT:
            keys[:] = sorted(uncommitted)
        elif new:
            for key, _ in zip(reversed(uncommitted), range(new), strict=False):
                insort(keys, key)
        first = 0 if lo is None else bisect_left(keys, lo)
        last = len(keys) if hi is None else bisect_left(keys, hi)
        return [(key, (entry := uncommitted[key]).value, entry.timestamp) for key in keys[first:last]]


def _length(value: object) -> int:
    """Return the length of a staged value without a fixed size: bytes or str."""
    return len(value) if value is not None else 0  # type: ignore[arg-type]  # as above
