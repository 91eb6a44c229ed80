"""Buffer of a suppression: changes of a table that wait, ordered by time (Kafka Streams' `InMemoryTimeOrderedKeyValueChangeBuffer`).

A key is in the buffer at most once. A later change replaces the waiting one and keeps its place in the order; the value that downstream
last received for the key (`prior`) stays too. Changes leave from the front only.

The changelog contains the waiting changes, in Kafka Streams' own bytes (`BufferValue`), written once per key and commit, and a
tombstone for each change that left. Unlike there, the committed content is in RocksDB too: a restart reads it from the disk, and without a
changelog nothing is lost. All waiting changes are also in memory, as objects where the serde is immutable, as bytes otherwise.

The format of a buffered change is that of Kafka Streams' changelog (`BufferValue`, `ProcessorRecordContext`; version 3):

    int64 timestamp · int64 offset · text topic · int32 partition · int32 n · n × (text name · data value)      the record's context
    data prior · data old, -2 if equal to prior · data new · int64 time in the buffer

A text and data are an int32 length and so many bytes; the length -1 is null. All big-endian. Records have the header `v` = 3.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

import msgspec

from penstock.runtime.model.clock import NEVER
from penstock.runtime.model.errors import InvalidStateStoreError, SchemaRegistryUnavailableError, StreamsError
from penstock.runtime.model.ids import NextOffset, TopicPartition
from penstock.runtime.model.record import Headers
from penstock.runtime.serdes.serde import Serializer
from penstock.runtime.stores.backed import UPDATE_BYTES, BackedStore
from penstock.runtime.stores.backend import KeyValueBackend, Meta, Offsets, in_key_order
from penstock.runtime.stores.base import ChangelogRecord, CommittedView, StoreContext
from penstock.runtime.stores.rocks import RocksBackend
from penstock.runtime.stores.settings import StoreSettings

CHANGELOG_HEADERS: Headers = [("v", b"\x03")]
"""Version of a changelog record."""
_NULL = -1
_SAME_AS_PRIOR = -2
_INT = Struct(">i")
_LONG = Struct(">q")
_TIMES = Struct(">qq")
_NO_DATA = _INT.pack(_NULL)


class Origin(msgspec.Struct, frozen=True, gc=False):
    """Origin of a record: topic, partition and offset of the input (-1 where there was none), and its headers."""

    topic: str
    partition: int
    offset: int
    headers: Headers | None


class BufferValue(NamedTuple):
    """A buffered change: the value that downstream received before it was buffered (`prior`), the one before this change (`old`), and the
    new one; the record's timestamp and origin; the time by which the buffer orders it. Times in ms."""

    prior: bytes | None
    old: bytes | None
    new: bytes | None
    timestamp: int
    origin: Origin
    time: int

    def to_bytes(self) -> bytes:
        """Encode it as on the changelog."""
        prior, old, new, timestamp, origin, time = self
        headers = origin.headers
        parts = [_TIMES.pack(timestamp, origin.offset), _place(origin.topic, origin.partition), _INT.pack(len(headers) if headers else 0)]
        for name, value in headers or ():
            parts += (_data(name.encode()), _data(value))
        same = old is not None and old == prior
        parts += (_data(prior), _INT.pack(_SAME_AS_PRIOR) if same else _data(old), _data(new), _LONG.pack(time))
        return b"".join(parts)

    @classmethod
    def from_bytes(cls, data: bytes) -> BufferValue:
        """Decode a change. Raises struct.error for bytes that are too short or too long."""
        timestamp, offset = _TIMES.unpack_from(data)
        reader = _Reader(data, _TIMES.size)
        topic, partition, count = reader.text(), reader.number(), reader.number()
        headers = [(reader.text(), reader.data() or b"") for _ in range(count)]
        prior = reader.data()
        length = reader.number()
        old = prior if length == _SAME_AS_PRIOR else reader.exactly(length)
        new = reader.data()
        (time,) = _LONG.unpack(data[reader.at :])
        return cls(prior, old, new, timestamp, Origin(topic, partition, offset, headers or None), time)


def memory_size(key: bytes, value: BufferValue) -> int:
    """Return the counted bytes of an entry (`residentMemorySizeEstimate`). An old value that equals the prior one counts once."""
    prior, old, new, _, origin, _ = value
    size = 8 + len(key) + 8 + 8 + len(origin.topic) + 4
    if prior is not None:
        size += len(prior)
    if old is not None and old != prior:
        size += len(old)
    if new is not None:
        size += len(new)
    for name, data in origin.headers or ():
        size += len(name) + len(data)
    return size


def _data(data: bytes | None) -> bytes:
    return _NO_DATA if data is None else _INT.pack(len(data)) + data


@lru_cache
def _place(topic: str, partition: int) -> bytes:
    return _data(topic.encode()) + _INT.pack(partition)


class _Reader:
    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self.at = at

    def number(self) -> int:
        (number,) = _INT.unpack_from(self._data, self.at)
        self.at += _INT.size
        return int(number)

    def exactly(self, length: int) -> bytes | None:
        if length == _NULL:
            return None
        start, self.at = self.at, self.at + length
        if length < 0 or self.at > len(self._data):
            raise StructError(f"{length} bytes are expected at byte {start} of {len(self._data)}")
        return self._data[start : self.at]

    def data(self) -> bytes | None:
        return self.exactly(self.number())

    def text(self) -> str:
        return (self.data() or b"").decode()


class Waiting(msgspec.Struct, gc=False, eq=False):
    """A change in the buffer; `prior`, `old` and `new` are staged values. `size` is its part of the buffer's size in bytes."""

    key: object
    time: int
    prior: object
    old: object
    new: object
    timestamp: int
    origin: Origin
    size: int = 0


class _SameTime:
    """Keys of one time. They are sorted once, in descending order, when the first of them leaves; `late` is the heap of those that are
    added afterwards, None until then."""

    __slots__ = ("keys", "late")

    def __init__(self, key: bytes) -> None:
        self.keys = [key]
        self.late: list[bytes] | None = None

    def pop(self) -> bytes:
        keys, late = self.keys, self.late
        if late is None:
            keys.sort(reverse=True)
            self.late = []
        elif late and not (keys and keys[-1] < late[0]):
            return heapq.heappop(late)
        return keys.pop()

    def __bool__(self) -> bool:
        return bool(self.keys or self.late)


class _InOrder:
    """Keys in the order of their times, and of their bytes where these are equal. Most keys of a windowed table have the time of some
    others, so that a heap of all keys would be several times slower."""

    __slots__ = ("_at", "_times")

    def __init__(self) -> None:
        self._at: dict[int, _SameTime] = {}
        self._times: list[int] = []

    def add(self, time: int, key: bytes) -> int:
        """Add a key. Return the smallest time."""
        same = self._at.get(time)
        if same is None:
            self._at[time] = _SameTime(key)
            heapq.heappush(self._times, time)
        elif same.late is None:
            same.keys.append(key)
        else:
            heapq.heappush(same.late, key)
        return self._times[0]

    def pop(self) -> tuple[bytes, int]:
        """Remove the first key. Return it, and the smallest time that is left, NEVER if there is none."""
        times = self._times
        time = times[0]
        same = self._at[time]
        key = same.pop()
        if same:
            return key, time
        del self._at[heapq.heappop(times)]
        return key, times[0] if times else NEVER


class Evicted(NamedTuple):
    """A change that has left the buffer. `old` is the value that downstream last received for the key."""

    key: object
    new: object
    old: object
    timestamp: int
    origin: Origin


class ChangeBuffer(BackedStore[KeyValueBackend]):
    """The store of one suppression. `load` must be called before the first `put` or `evict`."""

    changelog_headers: Headers | None = CHANGELOG_HEADERS

    def __init__(self, settings: StoreSettings) -> None:
        super().__init__(settings)
        self.counts_bytes = False
        """True: sizes are known at every put, because they are limited; False: as of the last commit."""
        self.first = NEVER
        """The time in ms of the change at the front; NEVER if the buffer is empty."""
        self.size = 0
        """Bytes in the buffer, counted as Kafka Streams does."""
        self._watcher: Callable[[int, int], None] | None = None
        self._reset_staging()

    def _open_backend(self, directory: Path, context: StoreContext) -> KeyValueBackend:
        return RocksBackend(self._settings.folder(directory), self._settings.family, context.memory, context.task_id)

    def _reset_staging(self) -> None:
        self._waiting: dict[bytes, Waiting] = {}
        self._order = _InOrder()
        self._changed: dict[bytes, int] = {}
        self._prepared: list[ChangelogRecord] | None = None
        self._write: Callable[[Offsets, Meta], None] | None = None
        self._uncommitted_bytes = 0
        self._loaded = False
        self._staged_meta = {}
        self.first, self.size = NEVER, 0

    def _forget(self) -> None:
        self._reset_staging()

    # --- use ----------------------------------------------------------------------------------------------------------------

    def load(self, watcher: Callable[[int, int], None] | None = None) -> None:
        """Load the committed content into memory. `watcher` receives the number of changes and their bytes at each commit."""
        self._watcher = watcher
        if self._loaded:
            return
        read = self._read_value
        held = read if self._encode is None else bytes
        for raw, data in self._opened().range(None, None):
            value = BufferValue.from_bytes(data)
            try:
                prior, old, new = (None if part is None else held(part) for part in (value.prior, value.old, value.new))
            except BaseException as error:
                raise self._unreadable(raw, data, error) from error
            size = memory_size(raw, value)
            self._waiting[raw] = Waiting(None, value.time, prior, old, new, value.timestamp, value.origin, size)
            self.size += size
            self.first = self._order.add(value.time, raw)
        self._loaded = True

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, time: int, key: object, new: object, old: object, timestamp: int, origin: Origin) -> None:
        """Add a change; `time` orders it, unless the key waits already. All times in ms."""
        encode = self._encode
        if encode is not None:
            new = None if new is None else self._encoded(encode, new)
            old = None if old is None else self._encoded(encode, old)
        raw = self._reader.key_bytes(key)
        waiting = self._waiting.get(raw)
        if waiting is None:
            waiting = self._waiting[raw] = Waiting(key, time, old, old, new, timestamp, origin)
            self.first = self._order.add(time, raw)
        else:
            waiting.old, waiting.new, waiting.timestamp, waiting.origin = old, new, timestamp, origin
        if raw not in self._changed:
            self._uncommitted_bytes += 2 * UPDATE_BYTES + len(raw)
        self._changed[raw] = timestamp
        if self.counts_bytes:
            self._count(raw, waiting, self._value(waiting))

    def evict(self) -> Evicted:
        """Remove and return the change at the front."""
        raw, self.first = self._order.pop()
        waiting = self._waiting.pop(raw)
        self.size -= waiting.size
        self._changed[raw] = waiting.timestamp
        try:
            key = self._read_key(raw) if waiting.key is None else waiting.key
        except BaseException as error:
            raise self._reader.unreadable_key(raw, error) from error
        if self._encode is None:
            return Evicted(key, waiting.new, waiting.prior, waiting.timestamp, waiting.origin)
        try:
            return Evicted(key, self._object(waiting.new), self._object(waiting.prior), waiting.timestamp, waiting.origin)
        except BaseException as error:
            raise self._unreadable(raw, waiting.new, error) from error

    def prior(self, key: object) -> tuple[object] | None:
        """Return the value that downstream last received for a waiting key; None if it does not wait."""
        waiting = self._waiting.get(self._reader.key_bytes(key))
        return None if waiting is None else (self._object(waiting.prior),)

    def _object(self, staged: object) -> object:
        return staged if staged is None or self._encode is None else self._read_value(staged)  # type: ignore[arg-type]  # staged as bytes

    def _value(self, waiting: Waiting) -> BufferValue:
        """Return the stored form of a change."""
        prior, old, new = waiting.prior, waiting.old, waiting.new
        if self._encode is None:
            write = self._write_value
            prior = None if prior is None else self._encoded(write, prior)
            old = None if old is None else self._encoded(write, old)
            new = None if new is None else self._encoded(write, new)
        return BufferValue(prior, old, new, waiting.timestamp, waiting.origin, waiting.time)  # type: ignore[arg-type]  # bytes, or None

    def _encoded(self, write: Serializer, part: object) -> bytes | None:
        try:
            return write(part)
        except SchemaRegistryUnavailableError:
            raise  # not the fault of the value
        except BaseException as error:
            raise self._unwritable(part, error) from error

    def _count(self, raw: bytes, waiting: Waiting, value: BufferValue) -> None:
        size = memory_size(raw, value)
        self.size += size - waiting.size
        waiting.size = size

    # --- commit -------------------------------------------------------------------------------------------------------------

    def changelog_records(self) -> Iterator[ChangelogRecord]:
        self._prepared, self._write = self._prepare(), None
        return iter(self._prepared)

    def _prepare(self) -> list[ChangelogRecord]:
        records: list[ChangelogRecord] = []
        for raw, timestamp in self._changed.items():
            waiting = self._waiting.get(raw)
            if waiting is None:
                records.append((raw, None, timestamp))
                continue
            value = self._value(waiting)
            self._count(raw, waiting, value)
            records.append((raw, value.to_bytes(), timestamp))
        return records

    def prepare_commit(self) -> None:
        if self._prepared:
            self._write = self._opened().begin_write(in_key_order(self._prepared))

    def commit(self, offsets: Mapping[TopicPartition, NextOffset]) -> None:
        moved = {partition: offset for partition, offset in offsets.items() if self._offsets.get(partition) != offset}
        if not (moved or self._changed or self._staged_meta):
            self._prepared = self._write = None
            return
        prepared = self._prepared if self._prepared is not None else self._prepare()
        if len(prepared) != len(self._changed):
            raise StreamsError(f"store {self.name} was changed after its changelog records were taken: they would not be on the changelog")
        if self._write is None:
            self._opened().write(in_key_order(prepared), moved, self._staged_meta)
        else:
            self._write(moved, self._staged_meta)
        self._changed.clear()
        self._staged_meta.clear()
        self._prepared, self._write, self._uncommitted_bytes = None, None, 0
        self._offsets.update(moved)
        if self._watcher is not None:
            self._watcher(len(self._waiting), self.size)

    def rollback(self) -> None:
        self._reset_staging()
        self._reset_meta()

    def restore(self, records: Sequence[ChangelogRecord], offsets: Mapping[TopicPartition, NextOffset]) -> None:
        if self._changed:
            raise StreamsError(f"store {self.name} cannot be restored while it holds {len(self._changed)} uncommitted changes")
        self._opened().write(in_key_order(records), offsets, self._staged_meta)
        self._reset_staging()
        self._offsets.update(offsets)

    @property
    def approximate_num_uncommitted_bytes(self) -> int:
        return self._uncommitted_bytes

    def query_view(self, *, timestamped: bool = False, headers: bool = False, uncommitted: bool = False) -> CommittedView:
        raise InvalidStateStoreError(f"store {self.name!r} is the buffer of a suppression: it cannot be queried")
