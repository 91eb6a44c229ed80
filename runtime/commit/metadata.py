"""The text kept with a committed offset: a partition's time, in Kafka Streams' own layout (`TopicPartitionMetadata`).

base64 of: byte 2 (version), int64 partition time in ms; what processors of Kafka Streams add would follow. `kafka-consumer-groups
--reset-offsets` erases it, so the stores keep the time too, and the larger of both is taken (rules.md, 17).
"""

from __future__ import annotations

import base64
import binascii
import struct
from typing import NamedTuple

_VERSION = 2
_LAYOUT = struct.Struct(">bq")


def encode_partition_time(partition_time: int) -> str:
    """`partition_time` in ms; -1 where no record was seen."""
    return base64.b64encode(_LAYOUT.pack(_VERSION, partition_time)).decode("ascii")


def decode_partition_time(metadata: str | None) -> int:
    """The partition time in ms, -1 for anything that does not hold one. Reads Kafka Streams' versions 1 and 2."""
    if not metadata:
        return -1
    try:
        data = base64.b64decode(metadata, validate=True)
        version, partition_time = _LAYOUT.unpack_from(data)
    except (binascii.Error, struct.error, ValueError):
        return -1
    return int(partition_time) if version in (1, _VERSION) else -1


class OffsetAndMetadata(NamedTuple):
    """A committed offset: the next one to process, and the text kept with it."""

    offset: int
    metadata: str
