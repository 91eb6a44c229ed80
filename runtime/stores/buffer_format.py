"""What a buffer of changes holds of a key, in the bytes of Kafka Streams' changelog (`BufferValue`, `ProcessorRecordContext`; version 3).

    int64 timestamp · int64 offset · text topic · int32 partition · int32 n · n × (text name · data value)      the record's context
    data prior · data old, -2 where it is the prior one · data new · int64 time in the buffer

A text and data are an int32 length and so many bytes; the length -1 is null. All big-endian. Records carry the header `v` = 3.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from runtime.record import Headers

CHANGELOG_HEADERS: Headers = [("v", b"\x03")]
"""Says of what version a record of the changelog is."""
_NULL = -1
_SAME_AS_PRIOR = -2
_INT = Struct(">i")
_LONG = Struct(">q")
_TIMES = Struct(">qq")


class Origin(NamedTuple):
    """Where a record came from: topic, partition and offset of the input (-1 where there was none), and its headers."""

    topic: str
    partition: int
    offset: int
    headers: Headers | None


class BufferValue(NamedTuple):
    """A change as it waits: the value that downstream heard of before it was buffered (`prior`), the one before this change (`old`), and
    the new one; the record's time and origin; the time by which the buffer orders it. Times in ms."""

    prior: bytes | None
    old: bytes | None
    new: bytes | None
    timestamp: int
    origin: Origin
    time: int

    def to_bytes(self) -> bytes:
        """As it stands on the changelog."""
        topic, partition, offset, headers = self.origin
        parts = [_TIMES.pack(self.timestamp, offset), _data(topic.encode()), _INT.pack(partition), _INT.pack(len(headers or ()))]
        for name, value in headers or ():
            parts += (_data(name.encode()), _data(value))
        same = self.old is not None and self.old == self.prior
        parts += (_data(self.prior), _INT.pack(_SAME_AS_PRIOR) if same else _data(self.old), _data(self.new), _LONG.pack(self.time))
        return b"".join(parts)

    @classmethod
    def from_bytes(cls, data: bytes) -> BufferValue:
        """Raises struct.error for bytes that end too early."""
        timestamp, offset = _TIMES.unpack_from(data)
        reader = _Reader(data, _TIMES.size)
        topic, partition, count = reader.text(), reader.number(), reader.number()
        headers = [(reader.text(), reader.data() or b"") for _ in range(count)]
        prior = reader.data()
        length = reader.number()
        old = prior if length == _SAME_AS_PRIOR else reader.exactly(length)
        new = reader.data()
        time = _LONG.unpack_from(data, reader.at)[0]
        return cls(prior, old, new, timestamp, Origin(topic, partition, offset, headers or None), time)


def memory_size(key: bytes, value: BufferValue) -> int:
    """Bytes that an entry counts for (`residentMemorySizeEstimate`). An old value that is the prior one counts once."""
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
        self.at += length
        return self._data[self.at - length : self.at]

    def data(self) -> bytes | None:
        return self.exactly(self.number())

    def text(self) -> str:
        return (self.data() or b"").decode()
