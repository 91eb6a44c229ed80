"""Metadata of a committed offset: the partition time and the times of processors, in Kafka Streams' layout (`TopicPartitionMetadata`,
`ProcessorMetadata`).

base64 of: byte 2 (version), int64 partition time in ms; then, if a processor has a time, int32 n and n times (int32 length, UTF-8 name,
int64 time in ms). `kafka-consumer-groups --reset-offsets` erases the metadata, so stores contain these times too, and the larger one counts
(rules.md, 17). The metadata is needed when stores are lost: a store restored from its changelog has no times.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Mapping
from typing import NamedTuple

_VERSION = 2
_LAYOUT = struct.Struct(">bq")
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_MOST_BYTES = 2_500
"""Limit for the times of processors; brokers accept 4096 characters (`offset.metadata.max.bytes`)."""


def encode_partition_time(partition_time: int, processors: Mapping[str, int] | None = None) -> str:
    """Encode the metadata. `partition_time` in ms; -1 before the first record. `processors`: times by name; if there is not enough room,
    the ones with the longest names are left out."""
    data = _LAYOUT.pack(_VERSION, partition_time)
    if processors:
        data += _encode_processors(processors)
    return base64.b64encode(data).decode("ascii")


def _encode_processors(processors: Mapping[str, int]) -> bytes:
    rows, size = list[bytes](), 0
    for name in sorted(processors, key=len):
        encoded = name.encode()
        size += _INT.size + len(encoded) + _LONG.size
        if size > _MOST_BYTES:
            break
        rows.append(_INT.pack(len(encoded)) + encoded + _LONG.pack(processors[name]))
    return _INT.pack(len(rows)) + b"".join(rows)


def decode_processors(metadata: str | None) -> dict[str, int]:
    """Return the times of processors in ms, by name; empty for metadata without them."""
    if not metadata:
        return {}
    try:
        data = base64.b64decode(metadata, validate=True)
        found, at = dict[str, int](), _LAYOUT.size + _INT.size
        if data[:1] != bytes([_VERSION]) or len(data) < at:
            return {}
        for _ in range(_INT.unpack_from(data, _LAYOUT.size)[0]):
            name_at = at + _INT.size
            at = name_at + _INT.unpack_from(data, at)[0]
            found[data[name_at:at].decode()] = int(_LONG.unpack_from(data, at)[0])
            at += _LONG.size
    except (binascii.Error, struct.error, ValueError):
        return {}
    return found


def decode_partition_time(metadata: str | None) -> int:
    """Return the partition time in ms; -1 for metadata without one. Reads Kafka Streams' versions 1 and 2."""
    if not metadata:
        return -1
    try:
        data = base64.b64decode(metadata, validate=True)
        version, partition_time = _LAYOUT.unpack_from(data)
    except (binascii.Error, struct.error, ValueError):
        return -1
    return int(partition_time) if version in (1, _VERSION) else -1


class OffsetAndMetadata(NamedTuple):
    """A committed offset: the next offset to process, and its metadata."""

    offset: int
    metadata: str
