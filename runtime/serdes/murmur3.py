"""Murmur3, 128 bits, as Kafka Streams hashes a row that is joined by a foreign key (`Murmur3.hash128`, with Hive's seed)."""

from __future__ import annotations

from struct import Struct

_SEED = 104729
_MASK = (1 << 64) - 1
_C1, _C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F
_BLOCK, _HASH = Struct("<QQ"), Struct(">QQ")


def hash128(data: bytes) -> bytes:
    """The hash, 16 bytes: its two halves big-endian, as Kafka Streams writes them."""
    length = len(data)
    h1 = h2 = _SEED
    for at in range(0, length & ~15, 16):
        k1, k2 = _BLOCK.unpack_from(data, at)
        h1 ^= _mixed(k1, _C1, _C2, 31)
        h1 = (_rotated(h1, 27) + h2) * 5 + 0x52DCE729 & _MASK
        h2 ^= _mixed(k2, _C2, _C1, 33)
        h2 = (_rotated(h2, 31) + h1) * 5 + 0x38495AB5 & _MASK
    if length & 15:
        k1, k2 = _BLOCK.unpack(data[length & ~15 :].ljust(16, b"\0"))
        h2 ^= _mixed(k2, _C2, _C1, 33)
        h1 ^= _mixed(k1, _C1, _C2, 31)
    h1, h2 = h1 ^ length, h2 ^ length
    h1 = h1 + h2 & _MASK
    h2 = h1 + h2 & _MASK
    h1, h2 = _final(h1), _final(h2)
    h1 = h1 + h2 & _MASK
    return _HASH.pack(h1, h1 + h2 & _MASK)


def _rotated(number: int, by: int) -> int:
    return (number << by | number >> 64 - by) & _MASK


def _mixed(part: int, first: int, second: int, by: int) -> int:
    return _rotated(part * first & _MASK, by) * second & _MASK


def _final(number: int) -> int:
    number = (number ^ number >> 33) * 0xFF51AFD7ED558CCD & _MASK
    number = (number ^ number >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return number ^ number >> 33
