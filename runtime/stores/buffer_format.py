"""Format of a buffered change, as on Kafka Streams' changelog (`BufferValue`, `ProcessorRecordContext`; version 3).

    int64 timestamp · int64 offset · text topic · int32 partition · int32 n · n × (text name · data value)      the record's context
    data prior · data old, -2 if equal to prior · data new · int64 time in the buffer

A text and data are an int32 length and so many bytes; the length -1 is null. All big-endian. Records have the header `v` = 3.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from penstock.runtime.model.record import Headers

CHANGELOG_HEADERS: Headers = [("v", b"\x03")]
"""Version of a changelog record."""
_NULL = -1
_SAME_AS_PRIOR = -2
_INT = Struct(">i")
_LONG = Struct(">q")
_TIMES = Struct(">qq")


class Origin(NamedTuple):
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
        topic, partition, offset, headers = self.origin
        parts = [_TIMES.pack(self.timestamp, offset), _data(topic.encode()), _INT.pack(partition), _INT.pack(len(headers or ()))]
        for name, value in headers or ():
            parts += (_data(name.encode()), _data(value))
        same = self.old is not None and self.old == self.prior
        parts += (_data(self.prior), _INT.pack(_SAME_AS_PRIOR) if same else _data(self.old), _data(self.new), _LONG.pack(self.time))
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
    old = None if value.old == value.prior else value.old
    values = sum(len(data) for data in (value.prior, old, value.new) if data is not None)
    named = sum(len(name) + len(data) for name, data in value.origin.headers or ())
    return 8 + len(key) + values + 8 + 8 + len(value.origin.topic) + 4 + named


def _data(data: bytes | None) -> bytes:
    return _INT.pack(_NULL) if data is None else _INT.pack(len(data)) + data


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
