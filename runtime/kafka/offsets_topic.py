"""The topic in which brokers keep the committed offsets of groups."""

from __future__ import annotations

from penstock.runtime.model.ids import TopicPartition

OFFSETS_TOPIC = "__consumer_offsets"


def partition_of(key: str, partitions: int) -> int:
    """Return the partition that holds a group, or a transactional id, in Kafka's topic with so many partitions."""
    value = 0
    for unit in _utf_16(key):
        value = (31 * value + unit) & 0xFFFFFFFF
    signed = value - (1 << 32) if value >= 1 << 31 else value
    return 0 if value == 1 << 31 else abs(signed) % partitions


def offsets_of(group: str, partitions: int) -> TopicPartition:
    """Return the partition of the offsets that a group commits. `partitions`: number of those of the topic."""
    return TopicPartition(OFFSETS_TOPIC, partition_of(group, partitions))


def _utf_16(text: str) -> memoryview:
    """Return the units of a text in Java."""
    return memoryview(text.encode("utf-16-le")).cast("H")
