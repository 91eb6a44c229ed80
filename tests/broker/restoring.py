"""A process that restores two stores and prints its progress, so that it can be killed in the middle.

    python -m tests.broker.restoring <bootstrap servers> <topic> <folder>      (one store for each of the topic's two partitions)

It prints `start <partition> <offset>`, and after each write `batch <partition> <offset of the last record written>`; then it waits for a
line on its input, so that it cannot finish before it is killed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from penstock.runtime.changelog import restore
from penstock.runtime.changelog.restore import Restorer
from penstock.runtime.changelog.staleness import Changelog
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.kafka import log_reader
from penstock.runtime.kafka.topic_admin import TopicAdmin
from penstock.runtime.model.clock import SystemClock
from penstock.runtime.model.events import EventSink
from penstock.runtime.model.ids import TaskId, TopicPartition
from penstock.runtime.model.metrics import Metrics
from penstock.runtime.stores import Stores
from penstock.runtime.stores.base import EngineStore, StoreContext
from penstock.serdes import STRING

AT_ONCE = 500


class RecordingListener:
    """A `StateRestoreListener` that prints, and waits."""

    def on_restore_start(self, partition: TopicPartition, store: str, start: int, end: int) -> None:
        print("start", partition.partition, start, flush=True)

    def on_batch_restored(self, partition: TopicPartition, store: str, batch_end: int, records: int) -> None:
        print("batch", partition.partition, batch_end, flush=True)
        sys.stdin.readline()

    def on_restore_end(self, partition: TopicPartition, store: str, total: int) -> None: ...

    def on_restore_suspended(self, partition: TopicPartition, store: str, total: int) -> None: ...


def open_store(folder: Path, partition: TopicPartition) -> EngineStore:
    """Open the store of a partition, under `folder`."""
    task = TaskId(0, partition.partition)
    store = Stores.key_value_store_builder(Stores.persistent_key_value_store("counts"), STRING, STRING).build()
    store.open(folder / str(task), StoreContext("app", folder / str(task), task, partition))
    return store


def main(servers: str, topic: str, folder: Path) -> None:
    """Restore to the current end offsets."""
    restore._MOST_KEYS = log_reader._MOST_PER_POLL = AT_ONCE
    restore._STEP_MS = 0
    clock = SystemClock()
    topics = TopicAdmin(StreamsConfig({"application.id": "app", "bootstrap.servers": servers}))
    partitions = [TopicPartition(topic, number) for number in range(2)]
    facts, ends = topics.describe([topic])[topic], topics.high_watermarks(partitions)
    restorer = Restorer({"bootstrap.servers": servers}, clock, Metrics(), EventSink("app", "instance", clock), [RecordingListener()])
    stores = [open_store(folder, partition) for partition in partitions]
    for store, partition in zip(stores, partitions, strict=True):
        changelog = Changelog(partition, ends[partition], facts.topic_id, facts.delete_retention_ms)
        restorer.add(TaskId(0, partition.partition), [(store, changelog)])
    while restorer.restoring:
        restorer.step(0.1)
    restorer.close()
    for store in stores:
        store.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
