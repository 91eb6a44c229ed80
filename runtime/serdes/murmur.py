"""The two Murmur hashes of Kafka Streams, in pure Python.

`murmur2` is the hash of the default partitioner (`Utils.murmur2`): it gives the partition to which a Java or librdkafka (`murmur2_random`)
producer sends a key. It takes about 2 us for 16 bytes. The producer computes it in C; this function is for the test driver and for finding
the task of a key. `hash128` is Murmur3 with Hive's seed (`Murmur3.hash128`), the hash of a row in a foreign-key join.
"""

from __future__ import annotations

from struct import Struct

_M = 0x5BD1E995
_SEED_32 = 0x9747B28C
_MASK_32 = 0xFFFFFFFF
_SEED_128 = 104729
_MASK_128 = (1 << 64) - 1
_C1, _C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F
_BLOCK, _HASH = Struct("<QQ"), Struct(">QQ")


def murmur2(data: bytes) -> int:
    """Return the unsigned 32-bit hash."""
    length = len(data)
    h = _SEED_32 ^ length
    whole = length & ~3
    for i in range(0, whole, 4):
        k = (int.from_bytes(data[i : i + 4], "little") * _M) & _MASK_32
        k ^= k >> 24
        h = ((h * _M) & _MASK_32) ^ ((k * _M) & _MASK_32)
    if whole < length:
        h = ((h ^ int.from_bytes(data[whole:], "little")) * _M) & _MASK_32
    h = ((h ^ (h >> 13)) * _M) & _MASK_32
    return h ^ (h >> 15)


def partition_for(key: bytes, partitions: int) -> int:
    """Return the partition of a key, 0 to `partitions` - 1 (`BuiltInPartitioner.partitionForKey`)."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def hash128(data: bytes) -> bytes:
    """Return the 16 bytes of the hash: its two halves, each big-endian, as Kafka Streams writes them."""
    length = len(data)
    h1 = h2 = _SEED_128
    for at in range(0, length & ~15, 16):
        k1, k2 = _BLOCK.unpack_from(data, at)
        h1 ^= _mixed(k1, _C1, _C2, 31)
        h1 = (_rotated(h1, 27) + h2) * 5 + 0x52DCE729 & _MASK_128
        h2 ^= _mixed(k2, _C2, _C1, 33)
        h2 = (_rotated(h2, 31) + h1) * 5 + 0x38495AB5 & _MASK_128
    if length & 15:
        k1, k2 = _BLOCK.unpack(data[length & ~15 :].ljust(16, b"\0"))
        h2 ^= _mixed(k2, _C2, _C1, 33)
        h1 ^= _mixed(k1, _C1, _C2, 31)
    h1, h2 = h1 ^ length, h2 ^ length
    h1 = h1 + h2 & _MASK_128
    h2 = h1 + h2 & _MASK_128
    h1, h2 = _final(h1), _final(h2)
    h1 = h1 + h2 & _MASK_128
    return _HASH.pack(h1, h1 + h2 & _MASK_128)


def _rotated(number: int, by: int) -> int:
    return (number << by | number >> 64 - by) & _MASK_128


def _mixed(part: int, first: int, second: int, by: int) -> int:
    return _rotated(part * first & _MASK_128, by) * second & _MASK_128


def _final(number: int) -> int:
    number = (number ^ number >> 33) * 0xFF51AFD7ED558CCD & _MASK_128
    number = (number ^ number >> 33) * 0xC4CEB9FE1A85EC53 & _MASK_128
    return number ^ number >> 33
