"""Values with record headers, as Kafka Streams 4.3 stores them (KIP-1271).

    stored, with timestamp       varint n · n bytes of headers · int64 timestamp · value     ValueTimestampHeadersSerializer
    stored, of a session         varint n · n bytes of headers · value                       AggregationWithHeadersSerializer
    headers                      varint count · count × (varint length · name · varint length · value), a null value has length -1
    no headers                   n is 0, and nothing follows it
    on the changelog             the value alone; headers and timestamp are those of the record

A varint is zigzag, as in Kafka's `ByteUtils.writeVarint`. The right column names the class of Kafka Streams that defines the layout.

Between staging and the changelog a value is *packed*: in the layout of a session, with the timestamp beside it as in every store. So the
staging, the caches and the restore know nothing of headers. Operators see the value alone; what they write has no headers (KIP-1285).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from struct import Struct
from struct import error as StructError
from threading import local
from typing import Never, cast

from penstock.runtime.model.record import AggregationWithHeaders, Headers, ValueAndTimestamp, ValueTimestampHeaders
from penstock.runtime.serdes.keys import TIMESTAMP
from penstock.runtime.serdes.serde import CurrentHeaders, Deserializer, Serde, Serializer
from penstock.runtime.serdes.varint import read_varint, varint
from penstock.runtime.stores.base import ChangelogRecord
from penstock.runtime.stores.reading import Reader, unreadable

FAMILY = "keyValueWithTimestampAndHeaders"
"""The column family of a key-value store's entries, named as in Kafka Streams."""
NO_HEADERS = b"\0"
"""First byte of a value without headers."""
_TIMESTAMP = Struct(">q")


def encode_headers(headers: Headers | None) -> bytes:
    """Return the headers with their length, as they stand before a value."""
    if not headers:
        return NO_HEADERS
    parts = [varint(len(headers))]
    for name, value in headers:
        raw, data = name.encode(), cast("bytes | str | None", value)  # a client gives None for null, and may give text
        data = data.encode() if isinstance(data, str) else data
        parts += (varint(len(raw)), raw, varint(-1)) if data is None else (varint(len(raw)), raw, varint(len(data)), data)
    body = b"".join(parts)
    return varint(len(body)) + body


def _end_of_headers(data: bytes) -> int:
    """Return where the headers end. Raises ValueError if the bytes are too few."""
    if data[:1] == NO_HEADERS:
        return 1
    length, start = read_varint(data, 0)
    if length < 0 or start + length > len(data):
        raise ValueError(f"the headers of a stored value are damaged: {length} bytes of {len(data) - start}")
    return start + length


def headers_of(data: bytes) -> Headers:
    """Return the headers of a packed or stored value. Raises ValueError for damaged ones."""
    end = _end_of_headers(data)
    found: Headers = []
    if end == 1:
        return found
    count, at = read_varint(data, read_varint(data, 0)[1])
    for _ in range(count):
        length, at = read_varint(data, at)
        name, at = data[at : at + length].decode(), at + length
        length, at = read_varint(data, at)
        found.append((name, None if length < 0 else data[at : at + length]))  # type: ignore[arg-type]  # a null value, as clients give it
        at += max(length, 0)
    if at != end:
        raise ValueError(f"the headers of a stored value are damaged: they end at byte {at} and not at {end}")
    return found


def pack(headers: Headers | None, value: bytes | None) -> bytes | None:
    """Return the packed form of a changelog record's value; None for a tombstone."""
    return None if value is None else encode_headers(headers) + value


def without_headers(data: bytes) -> bytes:
    """Return a packed or stored value without its headers. Raises ValueError for damaged ones."""
    return data[_end_of_headers(data) :]


def split_stored(data: bytes) -> tuple[int, bytes]:
    """Return timestamp in ms and packed value of a stored value with a timestamp. Raises ValueError if the bytes are too few."""
    end = _end_of_headers(data)
    try:
        timestamp: int = _TIMESTAMP.unpack_from(data, end)[0]
    except StructError as error:
        raise ValueError(f"a stored value with headers has no timestamp: {error}") from error
    return timestamp, data[:end] + data[end + TIMESTAMP :]


def stored_rows(rows: Iterable[ChangelogRecord]) -> Iterator[tuple[bytes, bytes | None]]:
    """Return packed rows as they are stored with their timestamps."""
    for key, value, timestamp in rows:
        if value is None:
            yield key, None
        else:
            end = _end_of_headers(value)
            yield key, value[:end] + _TIMESTAMP.pack(timestamp) + value[end:]


def by_headers(rows: Sequence[ChangelogRecord]) -> Iterator[tuple[Headers | None, list[ChangelogRecord]]]:
    """Yield packed rows as changelog records, grouped by their headers. (Rows of one key must not be among them twice.)"""
    groups: dict[bytes, list[ChangelogRecord]] = {}
    for key, value, timestamp in rows:
        end = 0 if value is None else _end_of_headers(value)
        prefix = NO_HEADERS if value is None else value[:end]
        groups.setdefault(prefix, []).append((key, value if value is None else value[end:], timestamp))
    for prefix, group in groups.items():
        yield headers_of(prefix) or None, group


class _Current(local):
    """The headers that the serde inside sees; a thread each, since queries read on their own threads."""

    headers: Headers | None = None


class PackedSerde(Serde[object]):
    """The serde of packed values, around that of the values, which gets the value's own headers. It writes `AggregationWithHeaders`, and
    other values without headers; it reads values alone."""

    __slots__ = ("_inner",)

    def __init__(self, inner: Serde) -> None:
        super().__init__(_not_called, _not_called, name=inner.name)
        self._inner = inner

    def serializer(self, topic: str, headers: CurrentHeaders | None = None) -> Serializer:
        current = _Current()
        write = self._inner.serializer(topic, lambda: current.headers)

        def write_packed(value: object) -> bytes | None:
            if type(value) is not AggregationWithHeaders:
                data = write(value)
                return None if data is None else NO_HEADERS + data
            if value.aggregation is None:
                return None
            current.headers = value.headers
            try:
                return pack(value.headers, write(value.aggregation))
            finally:
                current.headers = None

        return write_packed

    def deserializer(self, topic: str, headers: CurrentHeaders | None = None) -> Deserializer:
        current = _Current()
        read = self._inner.deserializer(topic, lambda: current.headers)

        def read_packed(data: bytes) -> object:
            if data[:1] == NO_HEADERS:
                return read(data[1:])
            current.headers = headers_of(data)
            try:
                return read(without_headers(data))
            finally:
                current.headers = None

        return read_packed


def _not_called(_topic: str, _headers: object, data: object) -> Never:
    raise AssertionError(f"a packed value is written and read by topic, not alone: {data!r}")


@dataclass(frozen=True, slots=True)
class HeadersReader(Reader):
    """Decoding of a store of packed values. `give_headers`: results are `ValueTimestampHeaders`, of sessions `AggregationWithHeaders`."""

    give_headers: bool = True

    def giving(self, timestamped: bool, headers: bool = False) -> Reader:
        return replace(self, give_time=timestamped and self.stored_with_time, give_headers=headers)

    def staged(self, value: object, timestamp: int, key: bytes) -> object:
        return None if value is None else self._given(value, timestamp, key)  # type: ignore[arg-type]  # staged as bytes

    def stored(self, data: bytes | None, key: bytes) -> object:
        if data is None:
            return None
        timestamp, packed = self.unpacked(data, key)
        return self._given(packed, timestamp, key)

    def unpacked(self, data: bytes, key: bytes) -> tuple[int, bytes]:
        if not self.stored_with_time:
            return 0, data
        try:
            return split_stored(data)
        except ValueError as error:
            raise unreadable(self.store, self.value_serde, key, self.read_key, data, error) from error

    def _given(self, packed: bytes, timestamp: int, key: bytes) -> object:
        value = self.value(packed, key)
        if not self.give_headers:
            return ValueAndTimestamp(value, timestamp) if self.give_time else value
        headers = headers_of(packed)
        return ValueTimestampHeaders(value, timestamp, headers) if self.stored_with_time else AggregationWithHeaders(value, headers)
