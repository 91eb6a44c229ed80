"""Settings of a store before it is opened: its name, serdes, switches, and location."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock.runtime.serdes.keys import SESSION_SUFFIX, TIMESTAMP, WINDOW_SUFFIX
from penstock.runtime.serdes.serde import Serde
from penstock.runtime.stores.base import StoreLayout, StoreSchemas
from penstock.runtime.stores.headers import FAMILY
from penstock.runtime.stores.store_format import StoreFormat

_SHORTEST_SEGMENT_MS = 60_000
_COMPACTION_LAG_MS = 24 * 60 * 60_000
"""Kafka Streams' `VERSIONED_STORE_CHANGE_LOG_ADDITIONAL_COMPACTION_LAG_MS`."""


def segment_ms(retention_ms: int) -> int:
    """Return the length of a segment in ms as in Kafka Streams: half the retention, at least a minute."""
    return max(retention_ms // 2, _SHORTEST_SEGMENT_MS)


def version_segment_ms(retention_ms: int) -> int:
    """Return the length of a segment of versions in ms as in Kafka Streams (`RocksDbVersionedKeyValueBytesStoreSupplier`): shorter than
    other segments, down to 2 s, because every read of an older version searches them."""
    if retention_ms <= 60_000:
        return max(retention_ms // 3, 2_000)
    if retention_ms <= 300_000:
        return max(retention_ms // 5, 20_000)
    if retention_ms <= 3_600_000:
        return max(retention_ms // 12, 60_000)
    return max(retention_ms // 24, 300_000)


@dataclass(frozen=True, slots=True)
class SegmentSettings:
    """Settings of segments, for a store whose keys end in a time. `suffix`: number of bytes after the record's key; the first eight of them
    are the time that decides on the segment. 0: the keys begin with the time. The rest in ms."""

    retention_ms: int
    segment_ms: int
    suffix: int

    @property
    def time(self) -> slice:
        """The position of the time in a store key."""
        return slice(-self.suffix, -self.suffix + TIMESTAMP) if self.suffix else slice(TIMESTAMP)


@dataclass(frozen=True, slots=True)
class WindowSettings:
    """Times of a window store, in ms. `retain_duplicates`: several values of one key and time are kept. `longer_ms`: how much longer than
    the retention an operator that derives new windows can read one."""

    size_ms: int
    retention_ms: int
    retain_duplicates: bool = False
    longer_ms: int = 0
    starts: str = ""
    """Rule by which the windows of an aggregate start: part of the meaning of its entries."""

    @property
    def segments(self) -> SegmentSettings:
        """Settings of the segments, by window start."""
        return SegmentSettings(self.retention_ms + self.longer_ms, segment_ms(self.retention_ms), WINDOW_SUFFIX)


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """Times of a session store, in ms; `longer_ms` and `starts` as of windows."""

    retention_ms: int
    longer_ms: int = 0
    starts: str = ""

    @property
    def segments(self) -> SegmentSettings:
        """Settings of the segments, by session end."""
        return SegmentSettings(self.retention_ms + self.longer_ms, segment_ms(self.retention_ms), SESSION_SUFFIX)


@dataclass(frozen=True, slots=True)
class VersionSettings:
    """Times of a versioned store, in ms: how long an older version can be read, and the length of a segment."""

    retention_ms: int
    segment_ms: int

    @property
    def segments(self) -> SegmentSettings:
        """Settings of the segments, by the end of an older version's validity; its start follows in the key."""
        return SegmentSettings(self.retention_ms, self.segment_ms, 2 * TIMESTAMP)


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Everything that a builder was configured with."""

    name: str
    persistent: bool
    key_serde: Serde
    value_serde: Serde
    timestamped: bool = False
    times: WindowSettings | SessionSettings | VersionSettings | None = None
    caching: bool = False
    logging: bool = True
    logging_config: Mapping[str, str] = field(default_factory=dict)
    buffer: bool = False
    """The store holds waiting changes (`buffer.py`)."""
    max_entries: int | None = None
    """The store keeps this many of the most recently used entries (`StagedLruStore`)."""
    ttl_ms: int | None = None
    """Time after its timestamp at which an entry of a key-value store expires (`expiring.py`)."""
    headers: bool | None = False
    """Each value has the headers of a record; None: as `dsl.store.format` says (`Topology.resolved`)."""

    def changelog_config(self) -> dict[str, str]:
        """Return the topic settings as Kafka Streams makes them (`InternalTopicConfig`): windows and sessions are deleted after their
        retention, plus `windowstore.changelog.additional.retention.ms` when the topic is created; versions are not compacted while they
        can be read."""
        config = {"cleanup.policy": "compact", "message.timestamp.type": "CreateTime"}
        if isinstance(self.times, VersionSettings):
            config["min.compaction.lag.ms"] = str(self.times.retention_ms + _COMPACTION_LAG_MS)
        elif self.times is not None:
            config["cleanup.policy"] = "compact,delete"
            config["retention.ms"] = str(self.times.retention_ms)
        return {**config, **self.logging_config}

    def layout(self) -> StoreLayout:
        return StoreLayout(
            kind=self.kind,
            timestamped=self.timestamped,
            key_serde=self.key_serde.name,
            value_serde=self.value_serde.name,
            window_size_ms=self.times.size_ms if isinstance(self.times, WindowSettings) else None,
            retention_ms=self.times.segments.retention_ms if self.times is not None else None,
            segment_ms=self.times.segments.segment_ms if self.times is not None else None,
            duplicates=isinstance(self.times, WindowSettings) and self.times.retain_duplicates,
            headers=bool(self.headers),
        )

    def format(self) -> StoreFormat:
        """Return the format of the store's entries, which is recorded."""
        layout = self.layout()
        return StoreFormat(
            timestamped=layout.timestamped,
            keys=(self.key_serde.format(),),
            values=(self.value_serde.format(),),
            window_size_ms=layout.window_size_ms,
            retention_ms=layout.retention_ms,
            segment_ms=layout.segment_ms,
            duplicates=layout.duplicates,
            ttl_ms=self.ttl_ms,
            headers=layout.headers,
            starts="" if isinstance(self.times, VersionSettings | None) else self.times.starts,
        )

    def schemas(self, topics: Sequence[str] = ()) -> StoreSchemas:
        """Return the schemas of keys and values; with those that a Schema Registry has for data of `topics`, as
        `Serde.schema_with_writers`."""
        key, value = self.key_serde, self.value_serde
        if not topics:
            return StoreSchemas(key.schema, value.schema, key.registry_schema, value.registry_schema)
        return StoreSchemas(key.schema, value.schema, key.schema_with_writers(topics), value.schema_with_writers(topics))

    @property
    def kind(self) -> str:
        """As in `StoreLayout`."""
        match self.times:
            case WindowSettings():
                return "window"
            case SessionSettings():
                return "session"
            case VersionSettings():
                return "versioned"
            case None:
                return "buffer" if self.buffer else "key_value"

    def folder(self, task_dir: Path) -> Path:
        """Return the directory of the store's files, as in Kafka Streams: `<task>/rocksdb/<store>`."""
        return task_dir / "rocksdb" / self.name

    def destroy(self, task_dir: Path) -> None:
        """Remove the files of a closed store."""
        shutil.rmtree(self.folder(task_dir), ignore_errors=not self.folder(task_dir).exists())

    @property
    def family(self) -> str:
        """The column family of a key-value store's entries, named as in Kafka Streams, which separates the formats."""
        return FAMILY if self.headers else "keyValueWithTimestamp" if self.timestamped else "default"
