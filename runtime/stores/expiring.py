"""Key-value stores whose entries have a time to live (docs/stores.md, *Time to live*).

An entry expires when the task's stream time is `ttl` past its timestamp. From then on no read returns it: that depends on the input alone,
not on commits. Each commit removes expired entries with a tombstone on the changelog, and a table forwards one. So a changelog, and
everything that is made of it, holds an entry until its tombstone; no reader of it needs to know the time to live.

The entries to remove are found by an index, whose rows are ordered by timestamp, in segments that are dropped as a whole:

    entries                   key               → timestamp · value      as in every timestamped store
    segment of `timestamp`    timestamp · key   →                        one row per write; `_cursor` is after those that were looked at

A row whose entry was written again or deleted since is skipped. A commit looks at a limited number of rows, and the next one continues: the
limit is larger than the number of rows that a commit adds, so the backlog of a jump in time shrinks. A copy only moves its cursor over the
rows whose entries are gone, so that its index does not grow, and expires nothing itself.

Rejected: expiry by the changelog's own retention (it follows the wall clock, so a replay would differ, and an idle application would lose
entries); a compaction filter of RocksDB (rocksdict has none, and nothing would reach the changelog); an index in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Protocol

from penstock.runtime.model.ids import NextOffset, TopicPartition
from penstock.runtime.model.record import Headers
from penstock.runtime.serdes.keys import TIMESTAMP
from penstock.runtime.stores.backend import Entries, KeyValueBackend, KeyValueSource, Meta, Offsets
from penstock.runtime.stores.base import ChangelogRecord, Entry, StoreContext
from penstock.runtime.stores.key_value import KeyValueView, StagedKeyValueStore
from penstock.runtime.stores.layout import LAYOUT_META, decode_format
from penstock.runtime.stores.memory import MemoryExpiring
from penstock.runtime.stores.reading import StagedRow
from penstock.runtime.stores.rocks import EXPIRY_INDEX
from penstock.runtime.stores.rocks_segments import RocksExpiring, index_rows
from penstock.runtime.stores.segmented import LAST, STREAM_TIME, TIME, StreamTime
from penstock.runtime.stores.settings import SegmentSettings, StoreSettings, segment_ms
from penstock.runtime.stores.staging import StagedStore

_CURSOR = "expiry.cursor"
_LEAST_ROWS = 1_000
"""Rows of the index that a commit may look at, besides two for each entry that it writes."""
_REBUILT_AT_ONCE = 10_000

ForwardExpired = Callable[[object, object, object, int], None]
"""Forwards a tombstone: key, None, the expired value, and the time at which it expired."""


class HasStreamTime(Protocol):
    """The context of a task."""

    stream_time: int


class _NoTask:
    stream_time = -1


_NO_TASK = _NoTask()


class ExpiringBackend(KeyValueBackend, Protocol):
    """A backend with an index by timestamp, which `write` maintains."""

    def segments(self) -> list[int]: ...

    def range_in(self, segment: int, lo: bytes | None, hi: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]: ...

    def drop_before(self, segment: int) -> int: ...

    def write_versions(self, latest: Entries, older: Entries, offsets: Offsets, meta: Meta) -> None:
        """Write entries and rows of the index."""

    def drop_index(self) -> None: ...


class LiveSource:
    """The committed entries of a store that have not expired at the stream time that `now` returns."""

    def __init__(self, source: KeyValueSource, ttl_ms: int, now: Callable[[], int]) -> None:
        self._source, self._ttl_ms, self._now = source, ttl_ms, now
        self.approximate_size = source.approximate_size
        self.offsets = source.offsets

    def get(self, key: bytes) -> bytes | None:
        expired = self._now() - self._ttl_ms  # before the entry: a commit in between may prolong the entry and move the time
        data = self._source.get(key)
        return data if data is not None and _time(data) > expired else None

    def range(self, lo: bytes | None, hi: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Iterate as `KeyValueSource.range`, as of now."""
        expired = self._now() - self._ttl_ms
        return (row for row in self._source.range(lo, hi, reverse=reverse) if _time(row[1]) > expired)


class StagedExpiringStore(StagedKeyValueStore):
    """The key-value store of a supplier with a time to live. Its values have timestamps."""

    def __init__(self, settings: StoreSettings) -> None:
        super().__init__(settings)
        if settings.ttl_ms is None or not settings.timestamped:
            raise ValueError(f"store {settings.name}: a store that expires needs a time to live, and timestamps")
        self._ttl = settings.ttl_ms
        self._index = SegmentSettings(self._ttl, segment_ms(self._ttl), 0)
        self._task: HasStreamTime = _NO_TASK
        self._forward_expired: ForwardExpired | None = None
        self._committed_time = StreamTime()
        self._cursor = self._committed_cursor = b""
        self._staged_from = LAST
        """No uncommitted entry has an earlier timestamp."""
        self._written = 0
        """Number of entries that the last commit has written, without those that it has removed."""
        self.dropped = False
        """True if the last update was dropped, because its timestamp had expired."""
        self.expired_records = 0
        """Number of updates that were dropped for that reason."""

    def follow(self, task: HasStreamTime) -> None:
        """Expire by the stream time of this task from now on, until a rollback or a wipe."""
        self._task = task
        self._committed_time.now = task.stream_time

    def forward_expired(self, forward: ForwardExpired) -> None:
        """Set the function that forwards the tombstone of an expired entry at once, where no cache does."""
        self._forward_expired = forward

    # --- life ---------------------------------------------------------------------------------------------------------------

    def _open_backend(self, directory: Path, context: StoreContext) -> ExpiringBackend:
        settings = self._settings
        if not settings.persistent:
            return MemoryExpiring(self._index, settings.family)
        return RocksExpiring(settings.folder(directory), self._index, context.memory, context.task_id, settings.family)

    def _expiring(self) -> ExpiringBackend:
        backend = self._opened()
        assert isinstance(backend, RocksExpiring | MemoryExpiring)
        return backend

    def _loaded_from_backend(self) -> None:
        backend, self._task = self._expiring(), _NO_TASK
        if not self._is_indexed() and not (backend.is_empty() and backend.meta(EXPIRY_INDEX) is None):
            self._rebuild_index()
        stored = backend.meta(STREAM_TIME)
        self._committed_time.now = TIME.unpack(stored)[0] if stored is not None else -1
        self._committed_cursor = backend.meta(_CURSOR) or b""
        super()._loaded_from_backend()

    def _is_indexed(self) -> bool:
        """Return True if the index has a row for each entry. It has not in files of a version without a time to live, or of a seed."""
        layout = self._opened().meta(LAYOUT_META)
        written = None if layout is None else decode_format(layout)
        return written is not None and written.ttl_ms == self._ttl and self._opened().meta(EXPIRY_INDEX) == TIME.pack(self._ttl)

    def _rebuild_index(self) -> None:
        backend = self._expiring()
        backend.drop_index()
        rows = backend.range(None, None)
        while entries := list(islice(rows, _REBUILT_AT_ONCE)):
            backend.write_versions((), index_rows(entries), {}, {})
        backend.write_versions((), (), {}, {EXPIRY_INDEX: TIME.pack(self._ttl), _CURSOR: b""})

    def _reset_meta(self) -> None:
        super()._reset_meta()
        self._cursor, self._staged_from = self._committed_cursor, LAST
        if self._opened().meta(EXPIRY_INDEX) is None:
            self._staged_meta[EXPIRY_INDEX] = TIME.pack(self._ttl)

    # --- hot path -----------------------------------------------------------------------------------------------------------

    @property
    def find(self) -> Callable[[bytes], Entry | None]:
        return self._find

    def _find(self, key: bytes) -> Entry | None:
        entry = self._entries.get(key)
        return entry if entry is None or entry.timestamp > self._task.stream_time - self._ttl else None

    def entry(self, key: bytes) -> Entry:
        """Return the entry of a key, to update it. If it has expired, it is removed first, with a tombstone downstream."""
        entry = self._entries.get(key) or self._load(key)
        if entry.value is not None and entry.timestamp <= self._task.stream_time - self._ttl:
            self._expire(key, entry)
        return entry

    def peek(self, key: bytes) -> Entry:
        """Return the entry of a key, to read it. An expired one has no value."""
        entry = self._entries.get(key) or self._load(key)
        return entry if entry.value is None or entry.timestamp > self._task.stream_time - self._ttl else Entry(None, -1)

    def update(self, key: bytes, key_object: object, entry: Entry, value: object, timestamp: int, headers: Headers | None) -> None:
        self.dropped = value is not None and (timestamp <= self._task.stream_time - self._ttl or timestamp < 0)
        if self.dropped:
            self.expired_records += 1
            return
        if timestamp < self._staged_from and value is not None:
            self._staged_from = timestamp
        StagedStore.update(self, key, key_object, entry, value, timestamp, headers)

    def _expire(self, key: bytes, entry: Entry) -> None:
        value = self.value_of(entry) if self._forward_expired is not None else None
        expired_ms = entry.timestamp + self._ttl
        StagedStore.update(self, key, None, entry, None, expired_ms, None)
        if self._forward_expired is not None:
            self._forward_expired(self._key_object(key), None, value, expired_ms)

    # --- commit -------------------------------------------------------------------------------------------------------------

    def expire(self) -> None:
        """Remove entries that have expired, up to a limit, with a tombstone for each. Called once per commit, before caches are flushed."""
        expired = self._task.stream_time - self._ttl
        if expired < 0:
            return
        # Caches above are flushed afterwards, so a table that they fill has its updates in the last commit only.
        limit = _LEAST_ROWS + 2 * max(len(self._uncommitted), self._written)
        rows = list(islice(self._index_rows(expired), limit))  # the list, because a tombstone may cause updates of this store
        for row in rows:
            key = row[TIMESTAMP:]
            entry = self._entries.get(key) or self._load(key)
            if entry.value is not None and entry.timestamp <= expired:
                self._expire(key, entry)
        if len(rows) == limit:
            self._cursor = rows[-1] + b"\0"
        else:  # rows of uncommitted entries are not in the index yet
            self._cursor = max(self._cursor, TIME.pack(min(expired + 1, self._staged_from)))

    def _index_rows(self, until: int) -> Iterator[bytes]:
        """Iterate over rows of the index from the cursor to a time, in the order of time."""
        backend, lo, hi = self._expiring(), self._cursor, TIME.pack(until + 1)
        if lo >= hi:
            return iter(())
        numbers = [number for number in backend.segments() if number <= until // self._index.segment_ms]
        return (row for row, _ in chain.from_iterable(backend.range_in(number, lo, hi) for number in numbers))

    def commit(self, offsets: Mapping[TopicPartition, NextOffset]) -> None:
        if self._task is not _NO_TASK and self._task.stream_time != self._committed_time.now:
            self.set_meta(STREAM_TIME, TIME.pack(self._task.stream_time))
        self._stage_cursor()
        self._written = sum(entry.value is not None for entry in self._uncommitted.values())
        super().commit(offsets)
        if self._task is not _NO_TASK:
            self._committed_time.now = self._task.stream_time
        self._drop_looked_at()

    def _stage_cursor(self) -> None:
        if self._cursor != self._committed_cursor:
            self.set_meta(_CURSOR, self._cursor)

    def _drop_looked_at(self) -> None:
        """Drop segments of the index before the cursor, which was just committed."""
        self._staged_from = LAST
        if self._cursor != self._committed_cursor:
            self._committed_cursor = self._cursor
            self._expiring().drop_before(TIME.unpack_from(self._cursor)[0] // self._index.segment_ms)

    def rollback(self) -> None:
        self._task = _NO_TASK
        super().rollback()

    def restore(self, records: Sequence[ChangelogRecord], offsets: Mapping[TopicPartition, NextOffset]) -> None:
        first = min((time for _, value, time in records if value is not None), default=LAST)
        self._cursor = min(self._cursor, TIME.pack(max(first, 0)))
        self._stage_cursor()
        newest = max((time for _, _, time in records), default=-1)
        if newest > self._committed_time.now:
            self.set_meta(STREAM_TIME, TIME.pack(newest))
        super().restore(records, offsets)
        self._committed_time.now = max(self._committed_time.now, newest)  # after the entries that this time has prolonged
        self._drop_looked_at()
        self._pass_removed(_LEAST_ROWS + 2 * len(records))

    def _pass_removed(self, limit: int) -> None:
        """Move the cursor over rows whose entries are gone, up to the first one that is there. It is written with the next records."""
        expired = self._committed_time.now - self._ttl
        if expired < 0:
            return
        get, rows = self._opened().get, list(islice(self._index_rows(expired), limit))
        for row in rows:
            data = get(row[TIMESTAMP:])
            if data is not None and data[:TIMESTAMP] == row[:TIMESTAMP]:
                self._cursor = row
                return
        self._cursor = rows[-1] + b"\0" if len(rows) == limit else max(self._cursor, TIME.pack(expired + 1))

    # --- reads --------------------------------------------------------------------------------------------------------------

    def get(self, key: object) -> object:
        """Return the value, or None, also if it has expired. Raises as `StagedKeyValueStore.get`."""
        data = self._reader.key_bytes(key)
        entry = self.peek(data)
        return self._reader.staged(entry.value, entry.timestamp, data)

    def query_view(self, *, timestamped: bool = False, headers: bool = False, uncommitted: bool = False) -> KeyValueView:
        reader = self._reader.giving(timestamped, headers)
        live = LiveSource(self._opened().shared(), self._ttl, self._now if uncommitted else self._committed_now)
        return KeyValueView(live, reader, self._staged(uncommitted))

    def _now(self) -> int:
        return self._task.stream_time

    def _committed_now(self) -> int:
        return self._committed_time.now

    def _rows(self, lo: bytes | None, hi: bytes | None, reverse: bool) -> Iterator[tuple[bytes, object]]:
        stored = LiveSource(self._opened(), self._ttl, self._now).range(lo, hi, reverse=reverse)
        return self._reader.merged(self._staged_range(lo, hi), stored, reverse)

    def _staged_row(self, key: bytes) -> StagedRow | None:
        row = super()._staged_row(key)
        return row if row is None or row[2] > self._now() - self._ttl else (key, None, row[2])

    def _staged_range(self, lo: bytes | None, hi: bytes | None) -> list[StagedRow]:
        expired = self._now() - self._ttl
        return [row if row[2] > expired else (row[0], None, row[2]) for row in super()._staged_range(lo, hi)]


def _time(data: bytes) -> int:
    return int(TIME.unpack_from(data)[0])
