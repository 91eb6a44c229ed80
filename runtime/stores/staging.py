"""Staging: the uncommitted updates of a store, its record cache and its read cache, in one map (KIP-892).

The problem: every update must be seen by the next read, must reach the changelog once per key and commit, must be forwarded
downstream either at once or folded, must vanish on an abort, and must reach RocksDB in one atomic batch; and all that in a few
hundred nanoseconds of Python per record.

The way taken: one `Entry` per key that carries two marks, *not yet committed* (staging) and *not yet forwarded* (cache). The hot path
is a look-up in one dict and a few assignments. Everything that costs (serialising, the changelog, RocksDB) happens once per key
and commit. After a commit the entries stay as a read cache, so a hot key is not read and decoded again every 100 ms.

    _entries        key -> Entry: all uncommitted ones, and the clean ones of this generation
    _older          key -> Entry: clean ones of the generation before
    _uncommitted    key -> Entry, in the order of the first update since the commit
    _waiting        how many of these are not yet forwarded. Each entry has the number of its last update, by which they are put in order
                    when they are (as Kafka Streams' `NamedCache`, so that time runs forward downstream): a map that is kept in that order
                    costs two look-ups per update
    _in_order       keys of unforwarded entries in that order, as of when the cache last was too large: those that were not updated since
                    are the oldest

The read cache gives way by generations: when `_entries` has grown to half of its share, it becomes `_older` and the generation before is
dropped; a hit in `_older` moves the entry back. That is nearly LRU and costs nothing on a hit. As long as nothing has been dropped and the
backend was empty at the start, the map is known to hold *every* key, and an absent key costs no read at all (`_complete`).

Ways rejected: a WriteBatchWithIndex (rocksdict has none, and every read would cross into RocksDB and be decoded again); an LRU list
(a move per read); copies of the map per commit (a pause, and twice the memory); staging mutable values as objects (user code that
changes a dict in place would change state that was not put).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from operator import attrgetter, itemgetter
from struct import Struct

from runtime.errors import InvalidStateStoreError, SchemaRegistryUnavailableError, StreamsError
from runtime.ids import NextOffset, Partition
from runtime.record import Headers, ValueAndTimestamp
from runtime.stores.backed import UPDATE_BYTES, B, BackedStore
from runtime.stores.base import ChangelogRecord, Entry, EntryStore, FlushListener, FlushRun
from runtime.stores.reading import StagedRow
from runtime.stores.settings import StoreSettings

_TIMESTAMP = Struct(">q")
ENTRY_BYTES = 330
"""Python memory of an entry besides key and value: the object, its timestamp, its place in a dict, the headers of key and value objects."""
_LOADS_PER_LOOK = 256
"""Loads after which the size of the read cache is looked at."""
_EVICTED_AT_ONCE = 64
"""An eviction frees this part of the cache's budget."""
_BY_UPDATE = attrgetter("update")
_BY_KEY = itemgetter(0)
_numbers = count(1)
"""Numbers of updates, of all stores of the process."""
_INSORT = 64
"""New keys up to which the sorted view is kept up key by key; above, it is sorted anew."""


class StagedStore(BackedStore[B], EntryStore):
    """What key-value, window and session stores have in common: everything but the typed reads."""

    # --- life ---------------------------------------------------------------------------------------------------------------

    def __init__(self, settings: StoreSettings) -> None:
        super().__init__(settings)
        self._entries: dict[bytes, Entry] = {}

    def _reset_staging(self) -> None:
        self._entries.clear()  # operators hold on to the map itself, over a rollback or a wipe too
        self._older: dict[bytes, Entry] = {}
        self._uncommitted: dict[bytes, Entry] = {}
        self._waiting = 0
        self._flushing = False
        self._in_order: Iterator[tuple[int, bytes]] = iter(())
        self._sorted: list[bytes] = []
        self._staged_meta: dict[str, bytes] = {}
        self._prepared: list[ChangelogRecord] | None = None
        self._to_write: list[tuple[bytes, bytes | None]] | None = None
        self._held_bytes = 0
        self._uncommitted_bytes = 0
        self._loads = 0
        self._value_bytes = 0
        self._counted = 0
        self._complete = False

    def _loaded_from_backend(self) -> None:
        super()._loaded_from_backend()
        self._complete = self._opened().is_empty()

    def _forget(self) -> None:
        """Drops all of staging and gives its memory back to the shared budgets."""
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
            entry.update = next(_numbers)
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
            entry.update = next(_numbers)
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

    def _sized(self, entry: Entry, value: object) -> tuple[object, int]:
        """A value without a fixed size, as it is staged, with its size; an entry that is counted already is counted anew."""
        try:
            if value is not None and self._encode is not None:
                value = self._encode(value)
            size = _length(value)
        except SchemaRegistryUnavailableError:
            raise  # says nothing about what was given
        except Exception as error:
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
        return self._read_value(value)  # type: ignore[arg-type]  # staged as bytes

    def _load(self, key: bytes) -> Entry:
        older = self._older.pop(key, None) if self._older else None
        if older is not None:
            self._entries[key] = older
            return older
        data = None if self._complete or self._is_new(key) else self._opened().get(key)
        if data is None:
            entry = Entry(None, -1)
        else:
            timestamp = 0
            if self._timestamped:
                timestamp, data = _TIMESTAMP.unpack_from(data)[0], data[8:]
            entry = Entry(data if self._decode is None else self._decode(data), timestamp)
            self._value_bytes += len(data)
        self._loads += 1
        if self._loads >= _LOADS_PER_LOOK:
            self._look_at_read_cache()
        self._entries[key] = entry
        return entry

    def _is_new(self, key: bytes) -> bool:
        """True if it is known of the key alone that what is not in memory is not stored either."""
        return False

    def _taken(self, value: object) -> tuple[object, int]:
        """What a user's `put` was given, as (value, timestamp)."""
        if not self._timestamped or value is None:
            return value, self._record_time()
        if not isinstance(value, ValueAndTimestamp):
            raise TypeError(f"store {self.name} is timestamped: it takes ValueAndTimestamp, not {type(value).__name__}")
        return value

    # --- memory -------------------------------------------------------------------------------------------------------------

    def _look_at_read_cache(self) -> None:
        """Counts this generation, and begins a new one if all stores together have used up their half of the budget and this store
        its share."""
        self._loads = 0
        budget = self._read_cache
        counted = len(self._entries) * ENTRY_BYTES + self._value_bytes
        budget.used += counted - self._counted
        self._counted = counted
        half = budget.limit // 2
        if budget.used > half and counted > half // budget.holders:
            if self._older:
                self._dropped()
            self._older = self._entries.copy()  # operators hold on to the map itself
            self._entries.clear()
            self._entries.update(self._uncommitted)
            for key in self._uncommitted:
                self._older.pop(key, None)
            self._value_bytes = 0
            budget.used -= counted
            self._counted = 0

    def _dropped(self) -> None:
        """Entries leave memory that are stored: a key that is not there need not be absent any more."""
        self._complete = False

    def _evict(self) -> None:
        """Forwards the oldest entries until the cache is within its budget again; they stay staged (rules.md, 9). It goes on a little below
        the budget, so that this is not done for each update. During a flush there is nothing to do: all have their turn."""
        cache, uncommitted = self._cache, self._uncommitted
        enough = cache.limit - cache.limit // _EVICTED_AT_ONCE
        while self._waiting and not self._flushing:
            for update, key in self._in_order:
                entry = uncommitted[key]
                if entry.update != update or not entry.unforwarded:  # updated since, or gone by what forwarding another one brought about
                    continue
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
            return  # came and went between two flushes: downstream never knew of it (Kafka Streams' CachingKeyValueStore)
        if self._encode is not None:
            new = self._read_value(new) if new is not None else None  # type: ignore[arg-type]  # staged as bytes
            old = self._read_value(old) if old is not None else None  # type: ignore[arg-type]  # staged as bytes
        if self._listener is not None:
            self._listener(entry.key, new, old, entry.timestamp, headers)

    def _key_object(self, key: bytes) -> object:
        """The key as an object, as the flush listener and iterators show it."""
        return self._read_key(key)

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
        # An operator downstream may write to this store too: an entry that it updates has its turn here all the same.
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
        self._prepared, self._to_write = self._prepare(), None
        return iter(self._prepared)

    def _prepare(self) -> list[ChangelogRecord]:
        items = self._uncommitted.items()
        if self._encode is not None:
            return [(key, entry.value, entry.timestamp) for key, entry in items]  # type: ignore[misc]  # staged as bytes
        write = self._write_value
        try:
            return [(key, write(value) if (value := entry.value) is not None else None, entry.timestamp) for key, entry in items]
        except SchemaRegistryUnavailableError:
            raise  # says nothing about what was given
        except Exception as error:
            raise self._unwritable(value, error) from error

    def prepare_commit(self) -> None:
        if self._prepared and self.persistent:
            self._to_write = sorted(self._stored(self._prepared), key=_BY_KEY)  # RocksDB has half the work with what is in order

    def commit(self, offsets: Mapping[Partition, NextOffset]) -> None:
        backend = self._opened()
        if self._waiting:
            raise StreamsError(f"store {self.name} was to be committed while {self._waiting} updates were not forwarded")
        moved = {partition: offset for partition, offset in offsets.items() if self._offsets.get(partition) != offset}
        if not (moved or self._uncommitted or self._staged_meta):
            self._prepared = self._to_write = None
            return
        prepared = self._prepared if self._prepared is not None else self._prepare()
        if len(prepared) != len(self._uncommitted):
            raise StreamsError(f"store {self.name} was updated after its changelog records were taken: they would not be on the changelog")
        backend.write(self._stored(prepared) if self._to_write is None else self._to_write, moved, self._staged_meta)
        self._committed(moved)

    def _stored(self, records: Sequence[ChangelogRecord]) -> Iterator[tuple[bytes, bytes | None]]:
        """Changelog records as the backend keeps them."""
        if not self._timestamped:
            return ((key, value) for key, value, _ in records)
        pack = _TIMESTAMP.pack
        return ((key, pack(timestamp) + value if value is not None else None) for key, value, timestamp in records)

    def _committed(self, offsets: Mapping[Partition, NextOffset]) -> None:
        for entry in self._uncommitted.values():
            entry.uncommitted = False
        self._uncommitted.clear()
        self._uncommitted_bytes = 0
        self._sorted = []
        self._prepared = self._to_write = None
        self._staged_meta.clear()
        self._offsets.update(offsets)
        self._look_at_read_cache()

    def rollback(self) -> None:
        backend = self._opened()
        for key in self._uncommitted:
            self._entries.pop(key, None)
            self._older.pop(key, None)  # where a caller held the entry while the generations changed
        if self._uncommitted and not (self._complete and backend.is_empty()):
            self._dropped()
        self._release_held()
        self._uncommitted.clear()
        self._waiting, self._in_order, self._flushing = 0, iter(()), False
        self._uncommitted_bytes = 0
        self._sorted = []
        self._prepared = self._to_write = None
        self._reset_meta()

    def restore(self, records: Sequence[ChangelogRecord], offsets: Mapping[Partition, NextOffset]) -> None:
        if self._uncommitted:
            raise StreamsError(f"store {self.name} was to be restored while it holds {len(self._uncommitted)} uncommitted updates")
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

    def _staged_range(self, lo: bytes | None, hi: bytes | None) -> list[StagedRow]:
        """(key, staged value, timestamp) of the uncommitted entries with lo <= key < hi, in the order of the keys.

        The sorted view is built when a range first asks and then follows: the dict keeps the order of insertion and loses nothing
        before the commit, so the keys that are new since the last range are its last ones.
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
    """Of a staged value without a fixed size: bytes or str."""
    return len(value) if value is not None else 0  # type: ignore[arg-type]  # as above
