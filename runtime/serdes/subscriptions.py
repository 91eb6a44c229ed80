"""Messages of a foreign-key join between its two sides, and their serdes.

    subscription            version · instruction · hash of left row, 16 bytes · primary key · int32 partition    SubscriptionWrapperSerde
    response                version · hash of left row, 16 bytes · right row                              SubscriptionResponseWrapperSerde
    key in the store        int32 length of the foreign key · foreign key · primary key                           CombinedKeySchema

The right column names the class of Kafka Streams that defines the layout. If there is no hash (the left row was deleted), the version's
highest bit is set. Subscriptions of version 0, which have no partition, are also read.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import NamedTuple, cast

from penstock.runtime.serdes.serde import CurrentHeaders, Deserializer, Serde, Serializer, WrappingSerde

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
            return Subscription(row_hash, Instruction(data[1]), read(key), partition)

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
