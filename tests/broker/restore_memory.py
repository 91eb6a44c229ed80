"""A process that restores stores like the engine and prints its peak memory growth in bytes, and the growth left at the end:

python -m tests.broker.restore_memory <bootstrap servers> <topic> <partitions> <folder>
"""

from __future__ import annotations

import sys
from pathlib import Path

import psutil

from penstock.runtime.changelog.restore import Restorer
from penstock.runtime.changelog.staleness import Changelog
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.kafka.topic_admin import TopicAdmin
from penstock.runtime.model.clock import SystemClock
from penstock.runtime.model.events import EventSink
from penstock.runtime.model.ids import TaskId, TopicPartition
from penstock.runtime.model.metrics import Metrics
from penstock.runtime.stores import Stores
from penstock.runtime.stores.base import StoreContext
from penstock.runtime.stores.budget import MIB, StoreMemory
from penstock.serdes import STRING


def main(servers: str, topic: str, partitions: int, folder: Path) -> None:
    """Restore to the current end offsets."""
    clock, memory = SystemClock(), StoreMemory(MIB, 16 * MIB, 16 * MIB, 16 * MIB)
    config = StreamsConfig({"application.id": "app", "bootstrap.servers": servers})
    topics = TopicAdmin(config)
    logs = [TopicPartition(topic, number) for number in range(partitions)]
    facts, ends = topics.describe([topic])[topic], topics.high_watermarks(logs)
    process = psutil.Process()
    before = process.memory_info().rss
    restorer = Restorer(
        config.consumer_properties("restore"), clock, Metrics(), EventSink("app", "i", clock), most_bytes=memory.restore_bytes
    )
    for log in logs:
        task = TaskId(0, log.partition)
        store = Stores.key_value_store_builder(Stores.persistent_key_value_store("counts"), STRING, STRING).build()
        store.open(folder / str(task), StoreContext("app", folder / str(task), task, log, memory))
        restorer.add(task, [(store, Changelog(log, ends[log], facts.topic_id, facts.delete_retention_ms))])
    most = held = 0
    while restorer.restoring:
        restorer.step(0.1)
        most, held = max(most, process.memory_info().rss - before), max(held, restorer.held_bytes)
    print(most, process.memory_info().rss - before, held, flush=True)
    restorer.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
