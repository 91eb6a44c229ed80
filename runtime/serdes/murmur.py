"""The two Murmur hashes of Kafka Streams.

`murmur2` is the hash of the default partitioner (`Utils.murmur2`): it gives the partition to which a Java or librdkafka (`murmur2_random`)
producer sends a key. It takes about 2 us for 16 bytes. The producer computes it in C; this function is for the test driver and for finding
the task of a key. `hash128` is Murmur3 with Hive's seed (`Murmur3.hash128`), the hash of a row in a foreign-key join: two for each update
of a left row, so that is computed in C too.
"""

from __future__ import annotations

from struct import Struct

from mmh3 import mmh3_x64_128_digest

_M = 0x5BD1E995
_SEED_32 = 0x9747B28C
_MASK_32 = 0xFFFFFFFF
_SEED_128 = 104729
_HALVES, _BIG_ENDIAN = Struct("<QQ"), Struct(">QQ")


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
    return _BIG_ENDIAN.pack(*_HALVES.unpack(mmh3_x64_128_digest(data, _SEED_128)))
