"""Kafka's default partitioner over a column of keys (the vectorized form of `runtime/serdes/murmur.py`), and Spark's hash."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_M = np.uint32(0x5BD1E995)
_SEED = 0x9747B28C
_MASK = 0xFFFFFFFF


def partitions_of(keys: Sequence[bytes], partitions: int) -> npt.NDArray[np.int32]:
    """Return the partition of each key, like `murmur2.partition_for`.

    Keys of equal length are hashed together, one word of all of them at a time: some 50 ns per key instead of 2 us.
    """
    lengths = np.fromiter(map(len, keys), np.int64, len(keys))
    starts = np.concatenate(([0], np.cumsum(lengths[:-1]))) if len(keys) else lengths
    data = np.frombuffer(b"".join(keys), np.uint8)
    hashes = np.zeros(len(keys), np.uint32)
    for length in np.unique(lengths):
        rows = np.flatnonzero(lengths == length)
        hashes[rows] = _murmur2(data[starts[rows, None] + np.arange(length)])
    return ((hashes & np.uint32(0x7FFFFFFF)) % np.uint32(partitions)).astype(np.int32)


def _murmur2(keys: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """Return the hash of each row."""
    count, length = keys.shape
    whole = length & ~3
    h = np.full(count, _SEED ^ length, np.uint32)
    words = np.ascontiguousarray(keys[:, :whole]).view("<u4").astype(np.uint32) if whole else np.empty((count, 0), np.uint32)
    for word in words.T:
        k = word * _M
        k ^= k >> np.uint32(24)
        h = (h * _M) ^ (k * _M)
    if whole < length:
        tail = np.zeros(count, np.uint32)
        for place in range(whole, length):
            tail |= keys[:, place].astype(np.uint32) << np.uint32(8 * (place - whole))
        h = (h ^ tail) * _M
    h ^= h >> np.uint32(13)
    h *= _M
    return h ^ (h >> np.uint32(15))


def slots(partitions: int) -> list[int]:
    """Return an int32 per partition that Spark's `repartition(partitions, number)` sends to a Spark partition of its own, so that the rows
    of one task never wait for those of another."""
    found: dict[int, int] = {}
    number = 0
    while len(found) < partitions:
        found.setdefault(_spark_hash(number) % partitions, number)
        number += 1
    return [found[place] for place in range(partitions)]


def _spark_hash(value: int) -> int:
    """Return Spark's `hash` of an int32, signed: 32-bit Murmur3 of its four bytes, with seed 42."""
    k = value * 0xCC9E2D51 & _MASK
    k = (k << 15 | k >> 17) * 0x1B873593 & _MASK
    h = 42 ^ k
    h = (h << 13 | h >> 19) * 5 + 0xE6546B64 & _MASK
    h ^= 4
    h = (h ^ h >> 16) * 0x85EBCA6B & _MASK
    h = (h ^ h >> 13) * 0xC2B2AE35 & _MASK
    h ^= h >> 16
    return h - (1 << 32) if h >> 31 else h
