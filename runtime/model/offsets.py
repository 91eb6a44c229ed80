"""Committed offsets with their metadata, and the position at which a source partition starts without one.

The metadata contains the partition time and the times of processors, in Kafka Streams' layout (`TopicPartitionMetadata`,
`ProcessorMetadata`): base64 of byte 2 (version), int64 partition time in ms; then, if a processor has a time, int32 n and n times (int32
length, UTF-8 name, int64 time in ms). `kafka-consumer-groups --reset-offsets` erases the metadata, so stores contain these times too, and
the larger one counts (rules.md, 17). The metadata is needed when stores are lost: a store restored from its changelog has no times.

`AutoOffsetReset` is Kafka Streams' (KIP-1106): the start of a partition whose committed offset is missing or no longer on the log, for a
topic (`Consumed(offset_reset_policy=…)`) or for all (`auto.offset.reset`).
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from penstock.runtime.model.clock import Duration, to_ms

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


_ISO_8601 = re.compile(r"P(?:(\d+)D)?(?:T(?=\d)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d{1,3})?)S)?)?", re.IGNORECASE)
"""The format of Java's `Duration.toString`, from days to milliseconds."""
_BY_DURATION = "by_duration"


class Strategy(Enum):
    """The four strategies."""

    EARLIEST = "earliest"
    LATEST = "latest"
    NONE = "none"
    BY_DURATION = _BY_DURATION


@dataclass(frozen=True, slots=True)
class AutoOffsetReset:
    """A reset policy, created by `earliest()`, `latest()`, `none()` or `by_duration(…)`. `str()` returns its configuration value."""

    strategy: Strategy
    duration_ms: int = 0

    @classmethod
    def earliest(cls) -> AutoOffsetReset:
        """Start at the first record."""
        return cls(Strategy.EARLIEST)

    @classmethod
    def latest(cls) -> AutoOffsetReset:
        """Start at the end."""
        return cls(Strategy.LATEST)

    @classmethod
    def none(cls) -> AutoOffsetReset:
        """Stop the client with an error that names the partition."""
        return cls(Strategy.NONE)

    @classmethod
    def by_duration(cls, duration: Duration) -> AutoOffsetReset:
        """Start at the first record that is no older than `duration`; at the end if there is none. Raises ValueError if it is negative."""
        return cls(Strategy.BY_DURATION, to_ms(duration, "the duration of an offset reset"))

    @classmethod
    def of(cls, setting: AutoOffsetReset | str) -> AutoOffsetReset:
        """Parse `earliest`, `latest`, `none` or `by_duration:PT1H` (ISO 8601); a policy is returned as it is. Raises ValueError."""
        if isinstance(setting, AutoOffsetReset):
            return setting
        name, _, duration = str(setting).partition(":")
        if name == _BY_DURATION:
            return cls(Strategy.BY_DURATION, _milliseconds(duration))
        try:
            return cls(Strategy(setting))
        except ValueError:
            raise ValueError(f"an offset reset is earliest, latest, none or by_duration:<ISO 8601 duration>, not {setting!r}") from None

    def __str__(self) -> str:
        if self.strategy is not Strategy.BY_DURATION:
            return str(self.strategy.value)
        seconds, milliseconds = divmod(self.duration_ms, 1000)
        return f"{_BY_DURATION}:PT{seconds}{f'.{milliseconds:03d}' if milliseconds else ''}S"


def _milliseconds(text: str) -> int:
    match = _ISO_8601.fullmatch(text)
    if match is None or not any(match.groups()):
        raise ValueError(f"by_duration takes an ISO 8601 duration such as PT1H, PT30M or P1DT12H, not {text!r}")
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return round(1000 * (seconds + 60 * (minutes + 60 * (hours + 24 * days))))
