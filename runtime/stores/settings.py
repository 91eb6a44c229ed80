"""What a store is, before it is opened: its name, serdes, switches, and where its bytes live."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from runtime.serdes.serde import Serde
from runtime.stores.base import StoreLayout

_SHORTEST_SEGMENT_MS = 60_000


@dataclass(frozen=True, slots=True)
class WindowSettings:
    """Times of a window store, in ms. Segments are as long as Kafka Streams': half the retention, at least a minute."""

    size_ms: int
    retention_ms: int

    @property
    def segment_ms(self) -> int:
        return max(self.retention_ms // 2, _SHORTEST_SEGMENT_MS)


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """All that a builder was told."""

    name: str
    persistent: bool
    key_serde: Serde
    value_serde: Serde
    timestamped: bool = False
    window: WindowSettings | None = None
    caching: bool = False
    logging: bool = True
    logging_config: Mapping[str, str] = field(default_factory=dict)

    def changelog_config(self) -> dict[str, str]:
        """Topic settings as Kafka Streams makes them (`InternalTopicConfig`): windows are deleted after
        their retention, to which `windowstore.changelog.additional.retention.ms` is added when the topic is made."""
        config = {"cleanup.policy": "compact", "message.timestamp.type": "CreateTime"}
        if self.window is not None:
            config["cleanup.policy"] = "compact,delete"
            config["retention.ms"] = str(self.window.retention_ms)
        return {**config, **self.logging_config}

    def layout(self) -> StoreLayout:
        window = self.window
        return StoreLayout(
            kind="key_value" if window is None else "window",
            timestamped=self.timestamped,
            key_serde=self.key_serde.name,
            value_serde=self.value_serde.name,
            window_size_ms=window.size_ms if window else None,
            retention_ms=window.retention_ms if window else None,
        )

    def folder(self, task_dir: Path) -> Path:
        """Where the store's files are, as in Kafka Streams: `<task>/rocksdb/<store>`."""
        return task_dir / "rocksdb" / self.name

    def destroy(self, task_dir: Path) -> None:
        """Removes the files of a store that is closed."""
        shutil.rmtree(self.folder(task_dir), ignore_errors=not self.folder(task_dir).exists())

    @property
    def family(self) -> str:
        """The column family of a key-value store's entries, named as in Kafka Streams, which keeps the two formats apart."""
        return "keyValueWithTimestamp" if self.timestamped else "default"
