"""Bytes that Kafka Streams 4.3.1 and Kafka's Java client wrote (java/WriteFormats.java): ours are equal, and theirs can be read."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from penstock import serdes
from penstock.runtime.model.offsets import decode_partition_time, encode_partition_time
from penstock.runtime.model.record import AggregationWithHeaders, Headers, Window, Windowed
from penstock.runtime.serdes.keys import pack_timestamp, session_key, split_session_key, split_window_store_key, window_store_key
from penstock.runtime.serdes.murmur import murmur2, partition_for
from penstock.runtime.stores.headers import PackedSerde, headers_of, split_stored, stored_rows

LINES = [line.split("\t") for line in (Path(__file__).parent / "written_by_java" / "bytes.tsv").read_text(encoding="utf-8").splitlines()]
HOUR = 3_600_000
PARSE: dict[str, Callable[[str], object]] = {
    "INTEGER": int, "LONG": int, "SHORT": int, "FLOAT": float, "DOUBLE": float, "STRING": str, "UUID": uuid.UUID,
    "BOOLEAN": "true".__eq__,
}  # fmt: skip


@pytest.mark.parametrize(("kind", "text", "data"), [line for line in LINES if line[0] in PARSE])
def test_primitive_serdes_equal_javas(kind: str, text: str, data: str) -> None:
    serde = getattr(serdes, kind)
    value = PARSE[kind](text)
    assert serde.serializer("t")(value) == bytes.fromhex(data)
    assert serde.deserializer("t")(bytes.fromhex(data)) == value


@pytest.mark.parametrize(("kind", "text", "data"), [line for line in LINES if line[0].startswith("list_of")])
def test_lists_equal_javas(kind: str, text: str, data: str) -> None:
    inner = kind.removeprefix("list_of ")
    entries = [None if entry == "null" else PARSE[inner](entry) for entry in text.split(",")] if text else []
    serde = serdes.list_of(getattr(serdes, inner))
    assert serde.serializer("t")(entries) == bytes.fromhex(data)
    assert serde.deserializer("t")(bytes.fromhex(data)) == entries


@pytest.mark.parametrize(("text", "data"), [line[1:] for line in LINES if line[0] == "time_windowed"])
def test_windowed_keys_equal_javas(text: str, data: str) -> None:
    key, start = text.split()
    windowed = Windowed(key, Window(int(start), int(start) + HOUR))
    serde = serdes.time_windowed(serdes.STRING, HOUR)
    assert serde.serializer("t")(windowed) == bytes.fromhex(data)
    assert serde.deserializer("t")(bytes.fromhex(data)) == windowed


@pytest.mark.parametrize(("text", "data"), [line[1:] for line in LINES if line[0] == "window_store_key"])
def test_window_store_keys_equal_javas(text: str, data: str) -> None:
    key, start = text.split()
    assert window_store_key(key.encode(), int(start)) == bytes.fromhex(data)
    assert split_window_store_key(bytes.fromhex(data)) == (key.encode(), int(start))


@pytest.mark.parametrize(("text", "data"), [line[1:] for line in LINES if line[0] == "session_key"])
def test_session_keys_equal_javas(text: str, data: str) -> None:
    key, start, end = text.split()
    assert session_key(key.encode(), int(start), int(end)) == bytes.fromhex(data)
    assert split_session_key(bytes.fromhex(data)) == (key.encode(), int(start), int(end))


@pytest.mark.parametrize(("text", "data"), [line[1:] for line in LINES if line[0] == "session_windowed"])
def test_session_windowed_keys_equal_javas(text: str, data: str) -> None:
    key, start, end = text.split()
    serde = serdes.session_windowed(serdes.STRING)
    windowed = Windowed(key, Window(int(start), int(end)))
    assert serde.serializer("t")(windowed) == bytes.fromhex(data)
    assert serde.deserializer("t")(bytes.fromhex(data)) == windowed


@pytest.mark.parametrize(("text", "data"), [line[1:] for line in LINES if line[0] == "value_and_timestamp"])
def test_values_with_their_time_equal_javas(text: str, data: str) -> None:
    value, time = text.split()
    assert pack_timestamp(int(time)) + value.encode() == bytes.fromhex(data)


@pytest.mark.parametrize(("text", "data"), [line[1:] for line in LINES if line[0] == "commit_metadata"])
def test_the_metadata_of_commits_equals_javas(text: str, data: str) -> None:
    assert encode_partition_time(int(text)).encode() == bytes.fromhex(data)
    assert decode_partition_time(bytes.fromhex(data).decode()) == int(text)


def test_murmur2_equals_javas() -> None:
    lines = [line for line in LINES if line[0] == "murmur2"]
    assert len(lines) == 40
    for _, key, hashed in lines:
        assert murmur2(bytes.fromhex(key)) == int(hashed)
        assert partition_for(bytes.fromhex(key), 7) == (int(hashed) & 0x7FFFFFFF) % 7


HEADERS: dict[str, Headers] = {
    "none": [],
    "some": [("trace", b"\x00\xff"), ("ü", b""), ("null", cast(bytes, None))],
    "large": [("h" * 70, bytes(9_000))],
}


@pytest.mark.parametrize(("name", "data"), [line[1:] for line in LINES if line[0] == "aggregation_with_headers"])
def test_values_with_headers_equal_javas(name: str, data: str) -> None:
    packed = bytes.fromhex(data)
    assert PackedSerde(serdes.STRING).serializer("t")(AggregationWithHeaders("EWR", HEADERS[name])) == packed
    assert headers_of(packed) == HEADERS[name] and PackedSerde(serdes.STRING).deserializer("t")(packed) == "EWR"
    (stored,) = (bytes.fromhex(line[2]) for line in LINES if line[:2] == ["value_timestamp_headers", name])
    assert list(stored_rows([(b"k", packed, 1_357_034_400_000)])) == [(b"k", stored)]
    assert split_stored(stored) == (1_357_034_400_000, packed)
