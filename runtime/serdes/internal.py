"""Serdes of internal topics and stores. The right column names the class of Kafka Streams that defines the layout.

Changes on a grouped table's repartition topic (Kafka Streams' `ChangedSerializer`, `ChangedDeserializer`; KIP-904). Records that Kafka
Streams writes with a flag for the latest version (3, 4, 5) are also read.

    old value · 0                                   the row left the group
    new value · 1                                   the row joined the group
    varint (zigzag) n · new value · old value · 2   the row stays in the group and changed; n is the new value's length

Entries of the store in which an outer stream-stream join keeps records that have no match yet. The order of the keys' bytes is the order of
time.

    key      int64 timestamp · 1 (left) or 0 (right) · the record's key     TimestampedKeyAndJoinSideSerializer
    value    1 · int32 number of values · each: int32 length · 1 (left) or 0 (right) · the record's value
                                                       ListSerializer, LeftOrRightValueSerializer

Messages of a foreign-key join between its two sides. If there is no hash (the left row was deleted), the version's highest bit is set.
Subscriptions of version 0, which have no partition, are also read.

    subscription            version · instruction · hash of left row, 16 bytes · primary key · int32 partition    SubscriptionWrapperSerde
    response                version · hash of left row, 16 bytes · right row                              SubscriptionResponseWrapperSerde
    key in the store        int32 length of the foreign key · foreign key · primary key                           CombinedKeySchema
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import NamedTuple, cast

from penstock.runtime.model.record import Change
from penstock.runtime.serdes.serde import CurrentHeaders, Deserializer, Serde, Serializer, WrappingSerde
from penstock.runtime.serdes.varint import read_varint, varint


class ChangedSerde(WrappingSerde):
    """Serde of `Change`, around the serde of the values."""

    __slots__ = ("_inner",)

    def __init__(self, inner: Serde) -> None:
        super().__init__("changed", inner)
        self._inner = inner

    def serializer(self, topic: str, headers: CurrentHeaders | None = None) -> Serializer:
        write = self._inner.serializer(topic, headers)

        def changed(data: object) -> bytes:
            new, old = cast(Change, data)
            new_bytes = None if new is None else write(new)
            old_bytes = None if old is None else write(old)
            if new_bytes is None:
                if old_bytes is None:
                    raise ValueError("a change on a repartition topic has an old value, a new one, or both")
                return old_bytes + b"\x00"
            if old_bytes is None:
                return new_bytes + b"\x01"
            return varint(len(new_bytes)) + new_bytes + old_bytes + b"\x02"

        return changed

    def deserializer(self, topic: str, headers: CurrentHeaders | None = None) -> Deserializer:
        read = self._inner.deserializer(topic, headers)

        def changed(data: bytes) -> object:
            flag = data[-1]
            if flag > 5:
                raise ValueError(f"a change on a repartition topic ends with a flag from 0 to 5, not {flag}")
            body = data[:-1] if flag < 3 else data[:-2]
            kind = flag % 3
            if kind == 0:
                return Change(None, read(body))
            if kind == 1:
                return Change(read(body), None)
            length, start = read_varint(body, missing="a change on a repartition topic has no length")
            if not 0 <= length <= len(body) - start:
                raise ValueError(
                    f"a change on a repartition topic has a new value of {length} bytes, but only {len(body) - start} are there"
                )
            return Change(read(body[start : start + length]), read(body[start + length :]))

        return changed


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


_NO_HASH = 0x80
_HASH_BYTES = 16
_INT32 = Struct(">i")
_SUBSCRIPTION_VERSION, _RESPONSE_VERSION = 1, 0


class Instruction(IntEnum):
    """Action of the right side for a subscription, and whether it responds."""

    DELETE_KEY_NO_PROPAGATE = 0
    DELETE_KEY_AND_PROPAGATE = 1
    PROPAGATE_NULL_IF_NO_FK_VAL_AVAILABLE = 2
    PROPAGATE_ONLY_IF_FK_VAL_AVAILABLE = 3


_INSTRUCTIONS = {int(each): each for each in Instruction}
"""A look-up here is several times faster than a call of the class."""


class Subscription(NamedTuple):
    """Request of a left row for the right row of its foreign key.

    `hash`: hash of the left row, None if it was deleted. `partition`: partition of the left table's task, None in messages of version 0.
    """

    hash: bytes | None
    instruction: Instruction
    primary_key: object
    partition: int | None


class Response(NamedTuple):
    """The right row, or None, for the left row with that hash. `partition` is the target partition; it is not serialised."""

    hash: bytes | None
    value: object
    partition: int | None = None


class SubscriptionSerde(WrappingSerde):
    """Serde of `Subscription`, around the serde of the primary key.

    The inner serde is called with the topic `<subscription topic>-pk`, for the subscription topic and for the changelog of its store alike.
    `topic` and `changelog` are their names without the application's id.
    """

    __slots__ = ("_changelog", "_inner", "_topic")

    def __init__(self, inner: Serde, topic: str, changelog: str) -> None:
        super().__init__("subscription", inner)
        self._inner, self._topic, self._changelog = inner, topic, changelog

    def _key_topic(self, topic: str) -> str:
        return f"{topic.removesuffix(self._changelog)}{self._topic}-pk" if topic.endswith(self._changelog) else f"{topic}-pk"

    def serializer(self, topic: str, headers: CurrentHeaders | None = None) -> Serializer:
        write = self._inner.serializer(self._key_topic(topic), headers)

        def subscription(data: object) -> bytes:
            row_hash, instruction, key, partition = cast(Subscription, data)
            version = 0 if partition is None else _SUBSCRIPTION_VERSION
            head = bytes((version | _NO_HASH, instruction)) if row_hash is None else bytes((version, instruction)) + row_hash
            return head + written(write(key)) + (b"" if partition is None else _INT32.pack(partition))

        return subscription

    def deserializer(self, topic: str, headers: CurrentHeaders | None = None) -> Deserializer:
        read = self._inner.deserializer(self._key_topic(topic), headers)

        def subscription(data: bytes) -> object:
            version, row_hash, rest = _head(data, 1, _SUBSCRIPTION_VERSION)
            partition = None if version == 0 else _INT32.unpack_from(data, len(data) - _INT32.size)[0]
            key = data[rest:] if partition is None else data[rest : -_INT32.size]
            instruction = _INSTRUCTIONS.get(data[1])
            if instruction is None:
                raise ValueError(f"a message of a foreign-key join has the instruction {data[1]}: known are 0 to {len(_INSTRUCTIONS) - 1}")
            return Subscription(row_hash, instruction, read(key), partition)

        return subscription


class ResponseSerde(WrappingSerde):
    """Serde of `Response`, around the serde of the right table's rows."""

    __slots__ = ("_inner",)

    def __init__(self, inner: Serde) -> None:
        super().__init__("response", inner)
        self._inner = inner

    def serializer(self, topic: str, headers: CurrentHeaders | None = None) -> Serializer:
        write = self._inner.serializer(topic, headers)

        def response(data: object) -> bytes:
            row_hash, value, _ = cast(Response, data)
            head = bytes((_RESPONSE_VERSION | _NO_HASH,)) if row_hash is None else bytes((_RESPONSE_VERSION,)) + row_hash
            return head if value is None else head + (write(value) or b"")

        return response

    def deserializer(self, topic: str, headers: CurrentHeaders | None = None) -> Deserializer:
        read = self._inner.deserializer(topic, headers)

        def response(data: bytes) -> object:
            _, row_hash, rest = _head(data, 0, _RESPONSE_VERSION)
            return Response(row_hash, read(data[rest:]) if len(data) > rest else None)

        return response


def foreign_prefix(foreign_key: bytes) -> bytes:
    """Return the prefix that the store keys of all subscriptions to one right row share."""
    return _INT32.pack(len(foreign_key)) + foreign_key


def primary_key_of(store_key: bytes) -> bytes:
    """Return the bytes of the primary key from a subscription's store key."""
    return store_key[_INT32.size + _INT32.unpack_from(store_key)[0] :]


def written(data: bytes | None) -> bytes:
    """Return the bytes of a key. Raises ValueError if a serde returned null for it."""
    if data is None:
        raise ValueError("a serde returned null for a key of a foreign-key join")
    return data


def _head(data: bytes, extra: int, newest: int) -> tuple[int, bytes | None, int]:
    """Return version, hash, and the index after the hash; `extra` bytes stand between version and hash. Raises ValueError for a version
    that is newer than this code."""
    version, start = data[0] & ~_NO_HASH, 1 + extra
    if version > newest:
        raise ValueError(f"a message of a foreign-key join has version {version}; this code reads versions up to {newest}")
    if data[0] & _NO_HASH:
        return version, None, start
    if len(data) < start + _HASH_BYTES:
        raise ValueError(f"a message of a foreign-key join has a hash of {_HASH_BYTES} bytes, but only {len(data) - start} are there")
    return version, data[start : start + _HASH_BYTES], start + _HASH_BYTES
