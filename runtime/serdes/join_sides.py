"""Serdes of the store in which an outer stream-stream join keeps records that have no match yet.

    key      int64 timestamp · 1 (left) or 0 (right) · the record's key     TimestampedKeyAndJoinSideSerializer
    value    1 · int32 number of values · each: int32 length · 1 (left) or 0 (right) · the record's value
                                                       ListSerializer, LeftOrRightValueSerializer

The right column names the class of Kafka Streams that defines the layout. The order of the keys' bytes is the order of time.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple, cast

from penstock.runtime.serdes.serde import CurrentHeaders, Deserializer, Serde, Serializer, WrappingSerde

_KEY = Struct(">qB")
_COUNT = Struct(">Bi")
_LENGTH = Struct(">i")
_VARIABLE_SIZE = 1
"""The flag by which `ListSerializer` marks values that each have their own length."""


class JoinKey(NamedTuple):
    """Key of a record without a match: its timestamp in ms, True if it is from the left stream, and the record's key."""

    timestamp: int
    left: bool
    key: object


class JoinKeySerde(WrappingSerde):
    """Serde of `JoinKey`, around the serde of the record's key."""

    __slots__ = ("_inner",)

    def __init__(self, inner: Serde) -> None:
        super().__init__("join_key", inner, immutable=inner.immutable)
        self._inner = inner

    def serializer(self, topic: str, headers: CurrentHeaders | None = None) -> Serializer:
        write = self._inner.serializer(topic, headers)

        def join_key(data: object) -> bytes:
            timestamp, left, key = cast(JoinKey, data)
            return _KEY.pack(timestamp, left) + _written(write(key))

        return join_key

    def deserializer(self, topic: str, headers: CurrentHeaders | None = None) -> Deserializer:
        read = self._inner.deserializer(topic, headers)

        def join_key(data: bytes) -> object:
            timestamp, left = _KEY.unpack_from(data)
            return JoinKey(timestamp, left == 1, read(data[_KEY.size :]))

        return join_key


JoinValues = tuple[tuple[bool, object], ...]
"""The values of one `JoinKey`, each preceded by True if it is from the left stream."""


class JoinValuesSerde(WrappingSerde):
    """Serde of `JoinValues`, around the serdes of both streams' values."""

    __slots__ = ("_left", "_right")

    def __init__(self, left: Serde, right: Serde) -> None:
        super().__init__("join_values", left, right)
        self._left, self._right = left, right

    def serializer(self, topic: str, headers: CurrentHeaders | None = None) -> Serializer:
        write_left, write_right = self._left.serializer(topic, headers), self._right.serializer(topic, headers)

        def join_values(data: object) -> bytes:
            values = cast(JoinValues, data)
            parts = [_COUNT.pack(_VARIABLE_SIZE, len(values))]
            for left, value in values:
                written = _written(write_left(value) if left else write_right(value))
                parts.append(_LENGTH.pack(len(written) + 1) + (b"\x01" if left else b"\x00") + written)
            return b"".join(parts)

        return join_values

    def deserializer(self, topic: str, headers: CurrentHeaders | None = None) -> Deserializer:
        read_left, read_right = self._left.deserializer(topic, headers), self._right.deserializer(topic, headers)

        def join_values(data: bytes) -> object:
            _, count = _COUNT.unpack_from(data)
            at, values = _COUNT.size, []
            for _ in range(count):
                end = at + _LENGTH.size + (length := _LENGTH.unpack_from(data, at)[0])
                if length < 1 or end > len(data):
                    raise ValueError(f"an entry of an outer join's store is damaged: a value of {length} bytes at byte {at} of {len(data)}")
                left, written = data[at + _LENGTH.size] == 1, data[at + _LENGTH.size + 1 : end]
                values.append((left, read_left(written) if left else read_right(written)))
                at = end
            if at != len(data) or count < 0:
                raise ValueError(f"an entry of an outer join's store is damaged: {len(data) - at} bytes follow its {count} values")
            return tuple(values)

        return join_values


def _written(data: bytes | None) -> bytes:
    if data is None:
        raise ValueError("a serde returned null for a key or value that is joined")
    return data
