"""The serde of changes on a grouped table's repartition topic (Kafka Streams' `ChangedSerializer`, `ChangedDeserializer`; KIP-904).

    old value · 0                                   the row left the group
    new value · 1                                   the row joined the group
    varint (zigzag) n · new value · old value · 2   the row stays in the group and changed; n is the new value's length

Records that Kafka Streams writes with a flag for the latest version (3, 4, 5) are also read.
"""

from __future__ import annotations

from typing import cast

from penstock.runtime.model.record import Change
from penstock.runtime.serdes.serde import CurrentHeaders, Deserializer, Serde, Serializer, WrappingSerde


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
            return _varint(len(new_bytes)) + new_bytes + old_bytes + b"\x02"

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
            length, start = _read_varint(body)
            if start + length > len(body):
                raise ValueError(
                    f"a change on a repartition topic has a new value of {length} bytes, but only {len(body) - start} are there"
                )
            return Change(read(body[start : start + length]), read(body[start + length :]))

        return changed


def _varint(number: int) -> bytes:
    """Encode a non-negative number as Kafka's `ByteUtils.writeVarint` does."""
    rest = number << 1
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _read_varint(data: bytes) -> tuple[int, int]:
    """Return the number at the start of `data` and the index after it. Raises ValueError if the varint does not end."""
    rest = 0
    for i, byte in enumerate(data[:5]):
        rest |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            return rest >> 1, i + 1
    raise ValueError("a change on a repartition topic has no length")
