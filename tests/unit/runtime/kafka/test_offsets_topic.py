"""The partition in which brokers keep what belongs to a group or a transactional id, as Java's brokers compute it."""

from __future__ import annotations

import pytest

from penstock.runtime.kafka.offsets_topic import partition_of


# jshell> Math.abs("…".hashCode()) % n
@pytest.mark.parametrize(
    ("key", "partitions", "partition"),
    [("", 50, 0), ("a", 50, 47), ("shop", 50, 12), ("shop", 3, 1), ("polygenelubricants", 50, 0), ("caf\u00e9 \U0001f375", 50, 38)],
)
def test_the_partition_of_a_key(key: str, partitions: int, partition: int) -> None:
    assert partition_of(key, partitions) == partition
