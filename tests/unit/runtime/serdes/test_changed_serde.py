"""Changes on repartition topics: Kafka's bytes (`ChangedSerializer`, KIP-904), both ways."""

from __future__ import annotations

import pytest

from penstock import serdes
from penstock.runtime.model.record import Change
from penstock.runtime.serdes.internal import ChangedSerde

SERDE = ChangedSerde(serdes.STRING)
WRITE, READ = SERDE.serializer("t"), SERDE.deserializer("t")


@pytest.mark.parametrize(
    ("change", "data"),
    [
        (Change(None, "old"), b"old\x00"),
        (Change("new", None), b"new\x01"),
        (Change("new", "former"), b"\x06newformer\x02"),
        (Change("", ""), b"\x00\x02"),
        # A length of 64 takes two bytes as a zigzag varint.
        (Change("n" * 64, "o"), b"\x80\x01" + b"n" * 64 + b"o\x02"),
    ],
)
def test_bytes(change: Change, data: bytes) -> None:
    assert WRITE(change) == data
    assert READ(data) == change


@pytest.mark.parametrize(
    ("data", "change"),
    [(b"old\x01\x03", Change(None, "old")), (b"new\x00\x04", Change("new", None)), (b"\x06newold\x01\x05", Change("new", "old"))],
)
def test_bytes_with_the_flag_for_the_latest_version_are_read(data: bytes, change: Change) -> None:
    assert READ(data) == change


def test_malformed_bytes_are_refused() -> None:
    with pytest.raises(ValueError, match="flag from 0 to 5, not 9"):
        READ(b"x\x09")
    with pytest.raises(ValueError, match="no length"):
        READ(b"\xff\xff\xff\xff\xff\xff\x02")
    with pytest.raises(ValueError, match="an old value, a new one, or both"):
        WRITE(Change(None, None))
