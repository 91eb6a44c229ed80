"""Serdes of optional values, and of lists of values (Kafka Streams' `Serdes.ListSerde`).

The bytes of a list, all integers int32, big-endian:

    0 · number of nulls · their indexes · number of entries · the entries' bytes        entries of a fixed size (SHORT … DOUBLE, UUID)
    1 · number of entries · for each its size (-1: null) and its bytes                  all others
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct

from penstock.runtime.model.type_variables import T
from penstock.runtime.serdes.primitive import DOUBLE, FLOAT, INTEGER, LONG, SHORT, UUID
from penstock.runtime.serdes.serde import CurrentHeaders, Serde, WrappingSerde
from penstock.runtime.serdes.serde_format import SerdeFormat

_FIXED = {serde: serde.size for serde in (SHORT, INTEGER, LONG, FLOAT, DOUBLE, UUID)}
"""Serdes that Java's `ListSerializer` treats as fixed in size. (BOOLEAN is not among them.)"""
_INT = Struct(">i")
_NULL = _INT.pack(-1)


def nullable(inner: Serde[T]) -> Serde[T | None]:
    """Return a serde for values of the inner serde or None: None becomes null and back, without a call to the inner serde.

    Topics and stores do not need it, because the engine never calls a serde with None. It types optional values (`KTable[str, Flight |
    None]`) and is for programs that call serdes themselves.
    """
    return _Nullable(inner)


def list_of(inner: Serde[T]) -> Serde[list[T]]:
    """Return a serde of lists of the inner serde's values, which may contain None. Reading raises ValueError for malformed bytes."""
    return _ListSerde(inner)


class _Nullable(WrappingSerde["T | None"]):
    __slots__ = ("_inner",)

    def __init__(self, inner: Serde[T]) -> None:
        super().__init__("nullable", inner, immutable=inner.immutable, schema=inner.schema, registry_schema=inner.registry_schema)
        self._inner = inner

    def format(self) -> SerdeFormat:
        return self._inner.format()  # the same bytes

    def serializer(self, topic: str, headers: CurrentHeaders | None = None) -> Callable[[T | None], bytes | None]:
        write = self._inner.serializer(topic, headers)
        return lambda data: None if data is None else write(data)

    def deserializer(self, topic: str, headers: CurrentHeaders | None = None) -> Callable[[bytes | None], T | None]:
        read = self._inner.deserializer(topic, headers)
        return lambda data: None if data is None else read(data)


class _ListSerde(WrappingSerde[list[T]]):
    __slots__ = ("_inner", "_size")

    def __init__(self, inner: Serde[T]) -> None:
        super().__init__("list_of", inner, schema=inner.schema)
        self._inner = inner
        self._size = next((size for serde, size in _FIXED.items() if serde is inner), None)

    def serializer(self, topic: str, headers: CurrentHeaders | None = None) -> Callable[[list[T]], bytes]:
        write, size = self._inner.serializer(topic, headers), self._size

        def written(data: list[T]) -> bytes:
            if not isinstance(data, list | tuple):
                raise TypeError(f"{self!r} takes a list, not {type(data).__name__}")
            entries = [None if entry is None else write(entry) for entry in data]
            return _sized(entries) if size is None else _unsized(entries)

        return written

    def deserializer(self, topic: str, headers: CurrentHeaders | None = None) -> Callable[[bytes], list[T]]:
        read = self._inner.deserializer(topic, headers)

        def entries(data: bytes) -> list[T | None]:
            return [None if entry is None else read(entry) for entry in _Input(data, self).entries(self._size)]

        return entries  # type: ignore[return-value]  # a list may hold None whatever T is, as in Java


def _sized(entries: list[bytes | None]) -> bytes:
    parts = [b"\x01", _INT.pack(len(entries))]
    for entry in entries:
        parts += (_NULL,) if entry is None else (_INT.pack(len(entry)), entry)
    return b"".join(parts)


def _unsized(entries: list[bytes | None]) -> bytes:
    nulls = [_INT.pack(index) for index, entry in enumerate(entries) if entry is None]
    found = [entry for entry in entries if entry is not None]
    return b"".join((b"\x00", _INT.pack(len(nulls)), *nulls, _INT.pack(len(entries)), *found))


class _Input:
    """Reader of the bytes of a list."""

    __slots__ = ("_at", "_data", "_serde")

    def __init__(self, data: bytes, serde: object) -> None:
        self._data = data
        self._serde = serde
        self._at = 0

    def _take(self, size: int) -> bytes:
        start, self._at = self._at, self._at + size
        if size < 0 or self._at > len(self._data):
            raise ValueError(f"{self._serde!r}: {len(self._data)} bytes are no list: {size} more are expected at byte {start}")
        return self._data[start : self._at]

    def _number(self) -> int:
        return int(_INT.unpack(self._take(4))[0])

    def _count(self) -> int:
        """Read a count. Raises ValueError if it exceeds the number of bytes, before anything of that size is allocated."""
        count = self._number()
        if not 0 <= count <= len(self._data):
            raise ValueError(f"{self._serde!r}: {len(self._data)} bytes are no list: they cannot hold {count} entries")
        return count

    def entries(self, size: int | None) -> list[bytes | None]:
        flag = self._take(1)
        if flag not in (b"\x00", b"\x01"):
            raise ValueError(f"{self._serde!r}: a list begins with 0 or 1, not {flag[0]}")
        if flag == b"\x00" and size is None:
            raise ValueError(f"{self._serde!r}: a list of fixed-size entries, and the entries of this serde have no fixed size")
        found = self._with_sizes() if flag == b"\x01" else self._without_sizes(size or 0)
        if self._at != len(self._data):
            raise ValueError(f"{self._serde!r}: {len(self._data) - self._at} bytes are left behind the list")
        return found

    def _with_sizes(self) -> list[bytes | None]:
        return [None if (size := self._number()) == -1 else self._take(size) for _ in range(self._count())]

    def _without_sizes(self, size: int) -> list[bytes | None]:
        nulls = {self._number() for _ in range(self._count())}
        return [None if index in nulls else self._take(size) for index in range(self._count())]
