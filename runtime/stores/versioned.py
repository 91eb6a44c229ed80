"""Versioned key-value stores: every key with its history (Kafka Streams' `VersionedKeyValueStore`, KIP-889).

A version is valid from its timestamp to that of the next version of its key, in whatever order they were put. A deletion is a version too.
The latest version never expires; an older one can be read until stream time (the largest timestamp that was put) is the history retention
past the end of its validity. A put of a timestamp older than stream time minus the history retention is dropped and counted.

    latest                     key                                  → timestamp · value
    segment of `valid to`      key · int64 valid to · int64 from    → 1 · value, or 0 for a deletion

The versions of a key follow each other without gaps: each older one ends where the next begins. The latest version is in a family of its
own, so `get(key)` reads one entry. A deletion that is the latest version is not there: it is in a segment, valid to its own timestamp, so
that it is dropped when nothing can be put before it any more (as in `RocksDBVersionedStore`). The older version that is valid at a moment
is the first one with `valid to` after it, if it began by then.

The changelog has a record per put: key, value, and the version's timestamp as the record's. It is folded by key and timestamp, and must not
be folded by key alone; for the same reason its topic is not compacted before the history retention and a day have passed (rules.md, 9).

Writes are staged as rows of the two kinds, over the backend's, and written in one batch with the offsets.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from struct import Struct
from typing import NamedTuple, Protocol, TypeVar, cast

from penstock.runtime.model.errors import SchemaRegistryUnavailableError, StreamsError
from penstock.runtime.model.ids import NextOffset, TopicPartition
from penstock.runtime.model.record import VersionedRecord
from penstock.runtime.stores.backed import UPDATE_BYTES, BackedStore
from penstock.runtime.stores.backend import SegmentedBackend, SegmentedSource
from penstock.runtime.stores.base import ChangelogRecord, StoreContext
from penstock.runtime.stores.memory import MemoryVersions
from penstock.runtime.stores.reading import Reader
from penstock.runtime.stores.rocks_segments import RocksVersions
from penstock.runtime.stores.segmented import LAST, STREAM_TIME, TIME, StreamTime
from penstock.runtime.stores.settings import SegmentSettings, StoreSettings, VersionSettings

_SPAN = Struct(">qq")
"""The end of an older version's key: valid to, from; both in ms."""
_DELETED = b"\x00"
_VALUE = b"\x01"
NOT_PUT = -(2**63)
VALID_TO_UNDEFINED = -1

T = TypeVar("T")
Rows = Mapping[bytes, bytes | None]


class VersionsSource(SegmentedSource, Protocol):
    """Reads of a segmented backend of older versions and of the latest ones, for threads other than the store's own."""

    def all_latest(self) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the latest versions in the order of their keys."""
        ...

    def read_consistently(self, read: Callable[[], T]) -> T:
        """Return the result of `read` on the backend, all of it as of one commit."""
        ...


class VersionsBackend(SegmentedBackend, Protocol):
    """The backend of a versioned store."""

    def shared(self) -> VersionsSource: ...

    def latest(self, key: bytes) -> bytes | None: ...

    def write_versions(
        self,
        latest: Sequence[tuple[bytes, bytes | None]],
        older: Sequence[tuple[bytes, bytes | None]],
        offsets: Mapping[TopicPartition, NextOffset],
        meta: Mapping[str, bytes],
    ) -> None:
        """Write as `write`, for both kinds of entries."""


class Older(NamedTuple):
    """An older version: when it was valid, and its value (None: a deletion). For a deletion that is the latest version, `valid_to` is
    `since`."""

    since: int
    valid_to: int
    value: bytes | None


class VersionedReads(ABC):
    """Reads over the store with its staging or over the committed data alone."""

    _reader: Reader
    _segments: SegmentSettings
    _time: StreamTime

    @abstractmethod
    def _versions(self) -> VersionsBackend:
        """Return the open backend."""

    @abstractmethod
    def _latest(self, key: bytes) -> tuple[int, bytes] | None:
        """Return timestamp and value of the latest version, None if there is none or it is a deletion."""

    @abstractmethod
    def _first_after(self, key: bytes, moment: int) -> Older | None:
        """Return the first older version of a key that is valid to a time after `moment`."""

    def _as_records(self, rows: Iterator[tuple[bytes, object]]) -> Iterator[tuple[object, object]]:
        """Iterate over rows of latest versions as keys and VersionedRecords."""
        read_key, read_value = self._reader.read_key, self._reader.value
        for data, row in cast(Iterator[tuple[bytes, bytes]], rows):
            try:
                key = read_key(data)
            except BaseException as error:
                raise self._reader.unreadable_key(data, error) from error
            yield key, VersionedRecord(read_value(row[8:], data), TIME.unpack_from(row)[0])

    def _get(self, key: object, as_of: int | None) -> VersionedRecord | None:
        data = self._reader.key_bytes(key)
        latest = self._latest(data)
        if as_of is None or (latest is not None and latest[0] <= as_of):
            return None if latest is None else VersionedRecord(self._reader.value(latest[1], data), latest[0])
        if as_of < self._time.now - self._segments.retention_ms:
            return None
        older = self._first_after(data, as_of)
        if older is None or older.since > as_of or older.value is None:
            return None
        return VersionedRecord(self._reader.value(older.value, data), older.since, older.valid_to)

    def _staged_older_of(self, key: bytes) -> Rows:
        """Return the staged rows of a key's older versions; None for one that is removed."""
        return {}

    def _versions_between(self, key: object, time_from: int, time_to: int, descending: bool) -> list[VersionedRecord]:
        """Return the versions, without deletions, that are valid at some time from `time_from` to `time_to` (ms, inclusive), in the order
        of their timestamps. Of times before the history retention only the latest version is known."""
        data = self._reader.key_bytes(key)
        moment = min(max(time_from, self._time.now - self._segments.retention_ms, 0), LAST - 1)
        lo, hi = data + _SPAN.pack(moment + 1, 0), data + _SPAN.pack(LAST, LAST)
        size, length, backend = len(lo), self._segments.segment_ms, self._versions()
        rows: dict[bytes, bytes | None] = {}
        if moment <= time_to:
            numbers = [segment for segment in backend.segments() if segment >= (moment + 1) // length]
            rows.update(row for segment in numbers for row in backend.range_in(segment, lo, hi) if len(row[0]) == size)
            rows.update({row_key: row for row_key, row in self._staged_older_of(data).items() if row_key >= lo})
        found: list[VersionedRecord] = []
        for older in (_older(row_key, row) for row_key, row in sorted(rows.items()) if row is not None):
            if older.since <= time_to and older.value is not None:
                found.append(VersionedRecord(self._reader.value(older.value, data), older.since, older.valid_to))
        latest = self._latest(data)
        if latest is not None and latest[0] <= time_to:
            found.append(VersionedRecord(self._reader.value(latest[1], data), latest[0]))
        return found[::-1] if descending else found

    def _stored_after(self, key: bytes, moment: int, hidden: Rows) -> tuple[bytes, bytes] | None:
        """Return the first stored row of a key that is valid to a time after `moment`, except those in `hidden`."""
        lo, hi = key + _SPAN.pack(moment + 1, 0), key + _SPAN.pack(LAST, LAST)
        size, length, backend = len(lo), self._segments.segment_ms, self._versions()
        for segment in backend.segments():
            if segment >= (moment + 1) // length:
                for row in backend.range_in(segment, lo, hi):
                    if len(row[0]) == size and row[0] not in hidden:
                        return row
        return None


class StagedVersionedStore(BackedStore[VersionsBackend], VersionedReads):
    """The engine's versioned store."""

    PUT_RETURN_CODE_VALID_TO_UNDEFINED = VALID_TO_UNDEFINED
    PUT_RETURN_CODE_NOT_PUT = NOT_PUT
    folded_by_key = False

    def __init__(self, settings: StoreSettings) -> None:
        super().__init__(settings)
        if not isinstance(settings.times, VersionSettings):
            raise ValueError(f"store {settings.name}: a versioned store needs its history retention")
        self._segments = settings.times.segments
        self._time = StreamTime()
        self._committed_time = StreamTime()
        self.expired_records = 0
        """Number of puts that were dropped because they were older than the history retention."""

    # --- life ---------------------------------------------------------------------------------------------------------------

    def _open_backend(self, directory: Path, context: StoreContext) -> VersionsBackend:
        if not self._settings.persistent:
            return MemoryVersions(self._segments)
        return RocksVersions(self._settings.folder(directory), self._segments, context.memory, context.task_id)

    def _reset_staging(self) -> None:
        self._staged_latest: dict[bytes, bytes | None] = {}
        self._staged_older: dict[bytes, bytes | None] = {}
        self._spans: dict[bytes, list[bytes]] = {}  # the keys of staged older versions, by the record's key, in order
        self._puts: dict[tuple[bytes, int], bytes | None] = {}
        self._staged_meta = {}
        self._staged_bytes = 0
        self._taken_puts = -1

    def _forget(self) -> None:
        self._reset_staging()

    def _loaded_from_backend(self) -> None:
        super()._loaded_from_backend()
        stored = self._opened().meta(STREAM_TIME)
        self._time.now = self._committed_time.now = TIME.unpack(stored)[0] if stored is not None else -1
        self._opened().drop_before(self._live_from())

    # --- what users call ----------------------------------------------------------------------------------------------------

    def get(self, key: object, as_of: int | None = None) -> VersionedRecord | None:
        """Return the latest version, or the one that was valid at `as_of` (ms). None if there is none, if it is a deletion, or if `as_of`
        is older than the history retention and not in the latest version. Raises ValueError for a None key."""
        return self._get(key, as_of)

    def put(self, key: object, value: object, timestamp: int) -> int:
        """Put the version of a timestamp (ms); None is a deletion as of then. Return until when it is valid (ms):
        `PUT_RETURN_CODE_VALID_TO_UNDEFINED` for the latest version, `PUT_RETURN_CODE_NOT_PUT` if it was too old and dropped."""
        if timestamp < 0:
            raise ValueError(f"store {self.name}: a version's timestamp cannot be negative: {timestamp}")
        return self.put_version(self._reader.key_bytes(key), value, timestamp)

    def put_version(self, key: bytes, value: object, timestamp: int) -> int:
        """Put as `put`, by a key's bytes."""
        if self._expired(timestamp):
            return NOT_PUT
        try:
            written = self._write_value(value) if value is not None else None
        except SchemaRegistryUnavailableError:
            raise  # not the fault of the value
        except BaseException as error:
            raise self._unwritable(value, error) from error
        self._puts[key, timestamp] = written
        return self._put(key, written, timestamp)

    def latest(self, key: bytes) -> tuple[int, bytes] | None:
        """Return timestamp and serialised value of a key's latest version, None if there is none or it is a deletion."""
        return self._latest(key)

    def value_from(self, data: bytes, key: bytes) -> object:
        """Decode a serialised value of a key. Raises StateUnreadableError."""
        return self._reader.value(data, key)

    def delete(self, key: object, timestamp: int) -> VersionedRecord | None:
        """Delete as of a timestamp (ms). Return the version that was valid then, or None."""
        self._time.now = max(self._time.now, timestamp)
        present = None if timestamp < self._time.now - self._segments.retention_ms else self.get(key, timestamp)
        self.put(key, None, timestamp)
        return present

    def _expired(self, timestamp: int) -> bool:
        self._time.now = max(self._time.now, timestamp)
        if timestamp >= self._time.now - self._segments.retention_ms:
            return False
        self.expired_records += 1
        return True

    # --- putting a version in its place -------------------------------------------------------------------------------------

    def _put(self, key: bytes, value: bytes | None, timestamp: int) -> int:
        latest = self._latest(key)
        if latest is None:
            return self._put_after_none(key, value, timestamp)
        since, present = latest
        if timestamp < since:
            return self._put_older(key, value, timestamp, since)
        if timestamp > since:
            self._stage_older(key, since, timestamp, present)
        return self._put_latest(key, value, timestamp)

    def _put_after_none(self, key: bytes, value: bytes | None, timestamp: int) -> int:
        """Put a version where the latest version is a deletion, or there is none."""
        deletion = self._latest_deletion(key)
        if deletion is not None and timestamp < deletion:
            return self._put_older(key, value, timestamp, deletion)
        if deletion is not None:
            self._unstage_older(key, deletion, deletion)
            if timestamp > deletion:
                self._stage_older(key, deletion, timestamp, None)
        return self._put_latest(key, value, timestamp)

    def _put_latest(self, key: bytes, value: bytes | None, timestamp: int) -> int:
        if value is None:
            self._stage_latest(key, None)
            self._stage_older(key, timestamp, timestamp, None)
        else:
            self._stage_latest(key, TIME.pack(timestamp) + value)
        return VALID_TO_UNDEFINED

    def _put_older(self, key: bytes, value: bytes | None, timestamp: int, newest: int) -> int:
        """Put a version that is not the latest, which begins at `newest`."""
        holder = self._first_after(key, timestamp)
        if holder is None or holder.since > timestamp:  # no known version is valid then
            valid_to = newest if holder is None else holder.since
        else:
            valid_to = holder.valid_to
            self._unstage_older(key, holder.since, valid_to)
            if holder.since < timestamp:
                self._stage_older(key, holder.since, timestamp, holder.value)
        self._stage_older(key, timestamp, valid_to, value)
        return valid_to

    def _latest_deletion(self, key: bytes) -> int | None:
        """Return when the key was deleted, if that is its latest version."""
        lo, hi = key + _SPAN.pack(0, 0), key + _SPAN.pack(LAST, LAST)
        size, backend, hidden = len(lo), self._opened(), self._staged_older
        last = next((row_key for row_key in reversed(self._spans.get(key, ())) if hidden[row_key] is not None), b"")
        for segment in reversed(backend.segments()):
            stored = backend.range_in(segment, lo, hi, reverse=True)
            found = next((row_key for row_key, _ in stored if len(row_key) == size and row_key not in hidden), None)
            if found is not None:
                last = max(last, found)
                break
        if not last:
            return None
        valid_to, since = _SPAN.unpack_from(last, len(key))
        return since if valid_to == since else None

    # --- staging ------------------------------------------------------------------------------------------------------------

    def _stage_latest(self, key: bytes, row: bytes | None) -> None:
        self._staged_bytes += _grown(self._staged_latest, key, row)
        self._staged_latest[key] = row

    def _stage_older(self, key: bytes, since: int, valid_to: int, value: bytes | None) -> None:
        self._stage_row(key, key + _SPAN.pack(valid_to, since), _DELETED if value is None else _VALUE + value)

    def _unstage_older(self, key: bytes, since: int, valid_to: int) -> None:
        self._stage_row(key, key + _SPAN.pack(valid_to, since), None)

    def _stage_row(self, key: bytes, row_key: bytes, row: bytes | None) -> None:
        if row_key not in self._staged_older:
            insort(self._spans.setdefault(key, []), row_key)
        self._staged_bytes += _grown(self._staged_older, row_key, row)
        self._staged_older[row_key] = row

    def _versions(self) -> VersionsBackend:
        return self._opened()

    def _latest(self, key: bytes) -> tuple[int, bytes] | None:
        row = self._staged_latest[key] if key in self._staged_latest else self._opened().latest(key)
        return None if row is None else (TIME.unpack_from(row)[0], row[8:])

    def _staged_older_of(self, key: bytes) -> Rows:
        return {row_key: self._staged_older[row_key] for row_key in self._spans.get(key, ())}

    def _first_after(self, key: bytes, moment: int) -> Older | None:
        staged, row_keys = self._staged_older, self._spans.get(key, [])
        found = self._stored_after(key, moment, staged)
        for place in range(bisect_left(row_keys, key + _SPAN.pack(moment + 1, 0)), len(row_keys)):
            row_key = row_keys[place]
            row = staged[row_key]
            if row is not None:
                return _older(row_key, row) if found is None or row_key < found[0] else _older(*found)
        return None if found is None else _older(*found)

    @property
    def approximate_num_uncommitted_bytes(self) -> int:
        return self._staged_bytes

    # --- commit -------------------------------------------------------------------------------------------------------------

    def changelog_records(self) -> Iterator[ChangelogRecord]:
        self._taken_puts = len(self._puts)
        return iter([(key, value, timestamp) for (key, timestamp), value in self._puts.items()])

    def commit(self, offsets: Mapping[TopicPartition, NextOffset]) -> None:
        if self._taken_puts not in (-1, len(self._puts)):
            raise StreamsError(f"store {self.name} was updated after its changelog records were taken: they would not be on the changelog")
        self._write(offsets)

    def _write(self, offsets: Mapping[TopicPartition, NextOffset]) -> None:
        backend = self._opened()
        moved = {partition: offset for partition, offset in offsets.items() if self._offsets.get(partition) != offset}
        if self._time.now != self._committed_time.now:
            self.set_meta(STREAM_TIME, TIME.pack(self._time.now))
        if moved or self._staged_meta or self._staged_latest or self._staged_older:
            first, length, at = self._live_from(), self._segments.segment_ms, self._segments.time
            live = [row for row in self._staged_older.items() if int.from_bytes(row[0][at], "big", signed=True) // length >= first]
            backend.write_versions(list(self._staged_latest.items()), live, moved, self._staged_meta)
            self._offsets.update(moved)
            self._committed_time.now = self._time.now
            backend.drop_before(first)
        self._reset_staging()

    def _live_from(self) -> int:
        """Return the first segment with a version that can still be read."""
        return max(0, self._time.now - self._segments.retention_ms + 1) // self._segments.segment_ms

    def rollback(self) -> None:
        self._reset_staging()
        self._reset_meta()
        self._time.now = self._committed_time.now

    def committed_records(self, records: Sequence[ChangelogRecord]) -> Iterator[ChangelogRecord]:
        """A version cannot be taken from a changelog again: where the committed history has none at the record's time, one with the value
        of that time takes its place."""
        for key, _, timestamp in records:
            latest = self._latest(key)
            if latest is not None and latest[0] <= timestamp:
                yield key, latest[1], timestamp
            else:
                older = self._first_after(key, timestamp)
                yield key, older.value if older is not None and older.since <= timestamp else None, timestamp

    def restore(self, records: Sequence[ChangelogRecord], offsets: Mapping[TopicPartition, NextOffset]) -> None:
        if self._puts:
            raise StreamsError(f"store {self.name} cannot be restored while it holds {len(self._puts)} uncommitted updates")
        for key, value, timestamp in records:
            if not self._expired(timestamp):
                self._put(key, value, timestamp)
        self._write(offsets)

    # --- queries ------------------------------------------------------------------------------------------------------------

    def query_view(
        self, *, timestamped: bool = False, headers: bool = False, uncommitted: bool = False
    ) -> VersionedView | UncommittedVersions:
        if uncommitted:
            return UncommittedVersions(self)
        return VersionedView(self._opened(), self._reader, self._segments, self._committed_time)

    def all_uncommitted(self) -> Iterator[tuple[object, object]]:
        """Iterate as `VersionedView.all`, with the staged versions as they are now. Any thread may read the iterator."""
        staged = [(key, row, 0) for key, row in sorted(self._staged_latest.items())]
        reader = replace(self._reader, staged_as_objects=True, stored_with_time=False, give_time=False, read_value=_as_it_is)
        return self._as_records(reader.merged(staged, self._opened().shared().all_latest(), False))

    def versions_between(self, key: object, time_from: int, time_to: int, descending: bool) -> Iterator[VersionedRecord]:
        """Iterate as `VersionedView.versions_between`, over staged versions too."""
        return iter(self._versions_between(key, time_from, time_to, descending))


class VersionedView(VersionedReads):
    """The committed content of a versioned store, for interactive queries from any thread."""

    def __init__(self, backend: VersionsBackend, reader: Reader, segments: SegmentSettings, time: StreamTime) -> None:
        self._backend = backend  # inside `read_consistently` only
        self._shared = backend.shared()
        self._reader = reader
        self._segments = segments
        self._time = time

    def get(self, key: object, as_of: int | None = None) -> VersionedRecord | None:
        """Return a version as `VersionedKeyValueStore.get`. Raises InvalidStateStoreError when the store is closed."""
        return self._shared.read_consistently(lambda: self._get(key, as_of))

    def versions_between(self, key: object, time_from: int, time_to: int, descending: bool) -> Iterator[VersionedRecord]:
        """Iterate over the versions of a key, without deletions, that are valid at some time from `time_from` to `time_to` (ms,
        inclusive), in the order of their timestamps. Raises InvalidStateStoreError when the store is closed."""
        return iter(self._shared.read_consistently(lambda: self._versions_between(key, time_from, time_to, descending)))

    def committed_offsets(self) -> dict[TopicPartition, NextOffset]:
        """Return the next offsets of changelog and inputs up to which the committed content goes."""
        return self._shared.offsets()

    def all(self) -> Iterator[tuple[object, object]]:
        """Iterate over the latest version of each key, in the order of the keys' bytes."""
        return self._as_records(self._shared.all_latest())

    def _versions(self) -> VersionsBackend:
        return self._backend

    def _latest(self, key: bytes) -> tuple[int, bytes] | None:
        row = self._backend.latest(key)
        return None if row is None else (TIME.unpack_from(row)[0], row[8:])

    def _first_after(self, key: bytes, moment: int) -> Older | None:
        found = self._stored_after(key, moment, {})
        return None if found is None else _older(*found)


class UncommittedVersions:
    """The content of a versioned store with its staging, for the store's own thread. Any thread may read its iterators."""

    def __init__(self, store: StagedVersionedStore) -> None:
        self.get = store.get
        self.all = store.all_uncommitted
        self.versions_between = store.versions_between


def _as_it_is(data: bytes | None) -> object:
    return data


def _older(row_key: bytes, row: bytes) -> Older:
    valid_to, since = _SPAN.unpack_from(row_key, len(row_key) - _SPAN.size)
    return Older(since, valid_to, row[1:] if row[:1] == _VALUE else None)


def _grown(rows: Mapping[bytes, bytes | None], key: bytes, row: bytes | None) -> int:
    """Return by how many bytes staging grows when `row` is set under `key`."""
    if key not in rows:
        return UPDATE_BYTES + len(key) + len(row or b"")
    return len(row or b"") - len(rows[key] or b"")
