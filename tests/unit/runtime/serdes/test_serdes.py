"""Serdes: accepted and refused values, headers and topics of custom serdes, types that stores hold as objects."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Generic

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import serdes
from penstock.runtime.model.clock import to_ms
from penstock.runtime.model.record import Headers, Window, Windowed
from penstock.runtime.model.type_variables import T
from penstock.runtime.serdes import keys
from penstock.runtime.serdes.serde import Serde


class Frozen(msgspec.Struct, frozen=True):
    n: int


class FrozenAround(msgspec.Struct, frozen=True):
    items: list[int]


class Box(msgspec.Struct, Generic[T], frozen=True):
    content: T


@dataclass
class Flight:
    origin: str
    delay: float


def test_stores_hold_objects_of_immutable_serdes_only() -> None:
    for name in ("BYTES", "STRING", "INTEGER", "LONG", "SHORT", "FLOAT", "DOUBLE", "UUID", "NULL"):
        assert getattr(serdes, name).immutable
    assert serdes.json(Frozen).immutable
    for mutable in (serdes.JSON, serdes.json(Flight), serdes.json(FrozenAround), serdes.json(dict)):
        assert not mutable.immutable


@pytest.mark.parametrize(
    ("kind", "value", "immutable"),
    [
        (dict[str, int], {"a": 1}, False),
        (list[dict[str, int]], [{"a": 1}], False),
        (tuple[int, ...], (1, 2), False),
        (Box[int], Box(1), True),
        (Box[list[int]], Box([1]), False),
        (int | None, None, False),
        (Annotated[int, msgspec.Meta(gt=0)], 1, False),
        (Any, ["a"], False),
    ],
)
def test_json_of_types_that_are_no_classes(kind: type[object], value: object, immutable: bool) -> None:
    """On Python 3.13 `issubclass(dict[str, int], …)` raises TypeError."""
    serde = serdes.json(kind)
    assert serde.immutable is immutable
    assert serde.name.startswith("json(")
    assert serde.deserializer("topic")(serde.serializer("topic")(value) or b"") == value


@pytest.mark.parametrize(
    ("serde", "value", "error"),
    [
        (serdes.INTEGER, 2**31, struct.error),
        (serdes.SHORT, "1", struct.error),
        (serdes.LONG, 1.5, struct.error),
        (serdes.STRING, 5, TypeError),
        (serdes.BYTES, "text", TypeError),
        (serdes.UUID, "01234567", TypeError),
        (serdes.BOOLEAN, 1, TypeError),
        (serdes.list_of(serdes.LONG), "12", TypeError),
        (serdes.list_of(serdes.LONG), ["1"], struct.error),
        (serdes.NULL, 0, TypeError),
        (serdes.JSON, object(), TypeError),
        (serdes.time_windowed(serdes.STRING, 5), "key", TypeError),
    ],
)
def test_values_that_a_serde_cannot_write_raise(serde: Serde, value: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        serde.serializer("t")(value)


@pytest.mark.parametrize(
    ("serde", "data", "error"),
    [
        (serdes.INTEGER, b"123", struct.error),
        (serdes.LONG, b"", struct.error),
        (serdes.STRING, b"\xff\xfe", UnicodeDecodeError),
        (serdes.UUID, b"no uuid", ValueError),
        (serdes.BOOLEAN, b"\x02", ValueError),
        (serdes.list_of(serdes.STRING), b"", ValueError),
        (serdes.list_of(serdes.STRING), b"\x02\0\0\0\0", ValueError),
        (serdes.list_of(serdes.STRING), b"\x00\0\0\0\0\0\0\0\0", ValueError),
        (serdes.list_of(serdes.STRING), b"\x01\x7f\xff\xff\xff", ValueError),
        (serdes.list_of(serdes.STRING), b"\x01\0\0\0\x01\0\0\0\x05abc", ValueError),
        (serdes.list_of(serdes.LONG), b"\x00\0\0\0\0\0\0\0\x01123", ValueError),
        (serdes.list_of(serdes.LONG), b"\x00\0\0\0\0\0\0\0\x00more", ValueError),
        (serdes.NULL, b"x", ValueError),
        (serdes.JSON, b'{"a":', msgspec.DecodeError),
        (serdes.json(Flight), b'{"origin": 5, "delay": 1}', msgspec.ValidationError),
        (serdes.time_windowed(serdes.STRING, 5), b"short", ValueError),
    ],
)
def test_bytes_that_a_serde_cannot_read_raise(serde: Serde, data: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        serde.deserializer("t")(data)


def test_a_nullable_serde_never_calls_the_inner_one_with_null() -> None:
    serde = serdes.nullable(serdes.STRING)
    assert serde.serializer("t")(None) is None
    assert serde.serializer("t")("") == b""
    assert serde.deserializer("t")(b"a") == "a"
    read: Callable[[bytes | None], object] = serde.deserializer("t")  # type: ignore[assignment]  # as programs of the user's may
    assert read(None) is None


@given(st.lists(st.none() | st.text()), st.lists(st.none() | st.integers(-(2**63), 2**63 - 1)))
def test_lists(texts: list[str | None], numbers: list[int | None]) -> None:
    for serde, entries in ((serdes.list_of(serdes.nullable(serdes.STRING)), texts), (serdes.list_of(serdes.LONG), numbers)):
        data = serde.serializer("t")(entries)  # type: ignore[arg-type]
        assert data is not None
        assert serde.deserializer("t")(data) == entries
    nested = serdes.list_of(serdes.list_of(serdes.STRING))
    assert nested.deserializer("t")(nested.serializer("t")([["a"], []]) or b"") == [["a"], []]


def test_typed_json() -> None:
    serde = serdes.json(Flight)
    data = serde.serializer("t")(Flight("EWR", 2.5))
    assert data == b'{"origin":"EWR","delay":2.5}'
    assert serde.deserializer("t")(data) == Flight("EWR", 2.5)


def test_a_users_serde_gets_topic_headers_and_data() -> None:
    seen: list[object] = []

    def write(topic: str, headers: Headers | None, data: str) -> bytes:
        seen.append((topic, headers, data))
        return data.encode()

    def read(topic: str, headers: Headers | None, data: bytes) -> str:
        seen.append((topic, headers, data))
        return data.decode()

    serde = Serde(write, read, declares=["my.key"])
    assert serde.declares == ("my.key",) and not serde.immutable
    current: list[Headers | None] = [[("h", b"1")]]
    assert serde.serializer("out", lambda: current[0])("a") == b"a"
    reader = serde.deserializer("in", lambda: current[0])
    current[0] = [("h", b"2")]
    assert reader(b"b") == "b"
    assert serde.serializer("out")("c") == b"c"
    assert seen == [("out", [("h", b"1")], "a"), ("in", [("h", b"2")], b"b"), ("out", None, "c")]


def test_the_inner_serde_of_a_windowed_one_gets_topic_and_headers() -> None:
    inner = Serde(lambda topic, headers, data: f"{topic}{headers}{data}".encode(), lambda topic, headers, data: f"{topic}{data!r}")
    serde = serdes.time_windowed(inner, timedelta(seconds=1))
    data = serde.serializer("t", list)(Windowed("k", Window(5, 1005)))
    assert data == b"t[]k" + (5).to_bytes(8, "big")
    assert serde.deserializer("u")(b"x" + (5).to_bytes(8, "big")) == Windowed("ub'x'", Window(5, 1005))


@given(st.binary(), st.integers(0, 2**63 - 1), st.integers(0, 2**31 - 1))
def test_composite_keys_round_trip(key: bytes, start: int, sequence: int) -> None:
    assert keys.split_window_store_key(keys.window_store_key(key, start, sequence)) == (key, start)
    assert keys.window_start(keys.window_store_key(key, start, sequence)) == start
    assert keys.split_windowed_key(keys.windowed_key(key, start)) == (key, start)


@given(st.binary(max_size=6), st.binary(max_size=6), st.integers(0, 2**40))
def test_the_upper_bound_includes_every_key_up_to_it(key: bytes, other: bytes, start: int) -> None:
    last = keys.pack_window_suffix(2**63 - 1, 2**31 - 1)
    if other <= key:
        assert keys.window_store_key(other, start) <= keys.upper_range(key, last)


def test_a_window_store_key_that_is_too_short_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 12 bytes"):
        keys.split_window_store_key(b"12345678901")


def test_durations() -> None:
    assert to_ms(timedelta(minutes=1, microseconds=1)) == 60_000
    assert to_ms(5) == 5
    with pytest.raises(ValueError, match="the window size must not be negative: -1 ms"):
        to_ms(-1, "the window size")
    with pytest.raises(TypeError, match="not float"):
        to_ms(1.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not bool"):
        to_ms(True)
