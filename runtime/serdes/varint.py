"""Numbers of variable length, as Kafka writes them (`ByteUtils.writeVarint`): zigzag, seven bits a byte, the lowest first."""

from __future__ import annotations

_ONE_BYTE = [bytes((2 * number,)) for number in range(64)]
"""Numbers of one byte, as the lengths of most values are."""


def varint(number: int) -> bytes:
    """Encode a number of 32 bits."""
    if 0 <= number < len(_ONE_BYTE):
        return _ONE_BYTE[number]
    rest = number << 1 if number >= 0 else (-number << 1) - 1
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def read_varint(data: bytes, start: int = 0, missing: str = "there is no number where one is due") -> tuple[int, int]:
    """Return the number at `start` and the index after it. Raises ValueError with the text `missing` if it does not end."""
    if start < len(data) and (first := data[start]) < 0x80:
        return (first >> 1) ^ -(first & 1), start + 1
    rest = 0
    for place, byte in enumerate(data[start : start + 5]):
        rest |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return (rest >> 1) ^ -(rest & 1), start + place + 1
    raise ValueError(missing)
