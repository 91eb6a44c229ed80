"""Invariants of an application, checked from outside: its outputs against its input, its stores against their changelogs."""

from __future__ import annotations

import struct
from collections import Counter, defaultdict
from contextlib import closing
from dataclasses import dataclass, field

from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ClientPartition

from penstock.runtime.changelog.writer import changelog_partition
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.coordination.records import Member
from penstock.runtime.model.ids import NextOffset, TaskId, TopicPartition
from penstock.runtime.model.record import ValueAndTimestamp, Windowed
from penstock.runtime.serdes.keys import split_window_store_key
from penstock.runtime.stores.base import EngineStore, StoreContext
from penstock.runtime.stores.custom import build_store
from penstock.runtime.topology.topology import Topology
from tests.chaos.sabotage import WINDOW_MS
from tests.support import Kafka, RawRecord, unique
from tests.support.instances import coordination_log

Rows = dict[object, tuple[int, int]]
"""Count and timestamp by key; the key of a window is (key, start)."""


def number(value: bytes | None) -> int:
    """A count as it stands on a topic."""
    assert value is not None
    (found,) = struct.unpack(">q", value)
    assert isinstance(found, int)
    return found


# -- outputs against the input -----------------------------------------------------------------------------------------------------


def truth(records: list[RawRecord]) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """Counts by key, by value, and by key and minute, of what stands in the source topic."""
    pairs = [((record.key or b"").decode(), (record.value or b"").decode(), record.timestamp) for record in records]
    return (
        Counter(key for key, _, _ in pairs),
        Counter(value for _, value, _ in pairs),
        Counter(f"{key}@{time // WINDOW_MS * WINDOW_MS}" for key, _, time in pairs),
    )


def each_update_once(records: list[RawRecord], wanted: Counter[str], topic: str) -> None:
    """Every update of a count is an output: the committed ones of a key must be 1, 2, 3 … up to the truth, none missing, none twice."""
    seen: dict[str, list[int]] = defaultdict(list)
    for record in records:
        seen[(record.key or b"").decode()].append(number(record.value))
    wrong = {key: counts for key, counts in seen.items() if counts != list(range(1, wanted[key] + 1))}
    missing = wanted.keys() - seen.keys()
    assert not wrong and not missing, f"{topic}: {len(wrong)} keys are wrong, such as {next(iter(wrong.items()), None)}; missing: {missing}"


# -- stores against their changelogs -----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Changelogs:
    """Content of the changelogs read so far, committed records only; a second reading continues where the first ended."""

    broker: Kafka
    records: dict[TopicPartition, list[tuple[int, bytes, bytes | None, int]]] = field(default_factory=lambda: defaultdict(list))
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    """The last stable offset of each changelog, which is as far as anybody may have read it."""

    def read(self, partitions: list[TopicPartition]) -> None:
        """Reads to the last stable offsets."""
        settings = {
            "bootstrap.servers": self.broker.bootstrap_servers,
            "group.id": unique("witness"),
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,  # the end of a partition is reported by an empty fetch
        }
        with closing(Consumer(settings)) as consumer:
            consumer.assign([ClientPartition(*partition, self.ends.get(partition, 0)) for partition in partitions])
            unread = set(partitions)
            while unread:
                for message in consumer.consume(10_000, 0) or consumer.consume(1, 1.0):
                    partition = TopicPartition(str(message.topic()), int(message.partition() or 0))
                    error = message.error()
                    if error is None:
                        key, value, offset = message.key(), message.value(), int(message.offset() or 0)
                        assert isinstance(key, bytes) and not isinstance(value, str)
                        self.records[partition].append((offset, key, value, message.timestamp()[1]))
                    else:
                        assert error.name() == "_PARTITION_EOF", error
                        self.ends[partition] = int(message.offset() or 0)
                        unread.discard(partition)

    def fold(self, partition: TopicPartition, before: int, *, windows: bool) -> Rows:
        """Return the expected content of a store that has applied the records before this offset."""
        rows: Rows = {}
        for offset, key, value, timestamp in self.records[partition]:
            if offset >= before:
                break
            name = _window(key) if windows else key.decode()
            if value is None:
                rows.pop(name, None)
            else:
                rows[name] = (number(value), timestamp)
        return rows


def _window(key: bytes) -> object:
    inner, start = split_window_store_key(key)
    return inner.decode(), start


def stores_equal_their_changelogs(changelogs: Changelogs, topology: Topology, config: StreamsConfig) -> dict[TopicPartition, NextOffset]:
    """Opens every store that the dead instance left, and compares it with its changelog up to the store's offset. Gives these offsets."""
    application = config.application_id
    found: dict[TopicPartition, tuple[NextOffset, Rows, bool]] = {}
    for part in topology.resolved(config).sub_topologies():
        for folder in sorted((config.state_dir / application).glob(f"{part.id}_*")):
            task = TaskId.parse(folder.name)
            for builder in part.stores:
                if (folder / "rocksdb" / builder.name).exists():
                    changelog = changelog_partition(application, builder.name, task)
                    store = build_store(builder)
                    store.open(folder, StoreContext(application, folder, task, changelog))
                    with closing(store):
                        at = store.committed_offset(changelog)
                        found[changelog] = (NextOffset(0) if at is None else at, _rows(store), store.layout.kind == "window")
    changelogs.read(sorted(found))
    for changelog, (offset, rows, windows) in found.items():
        assert offset <= changelogs.ends[changelog], f"{changelog}: the store is at {offset}, ahead of what is committed"
        assert rows == changelogs.fold(changelog, offset, windows=windows), f"{changelog}: the store at {offset} is not what the log says"
    return {changelog: offset for changelog, (offset, _, _) in found.items()}


def _rows(store: EngineStore) -> Rows:
    rows: Rows = {}
    for key, value in store.query_view(timestamped=True).all():
        assert isinstance(value, ValueAndTimestamp) and isinstance(value.value, int)
        rows[(key.key, key.window.start) if isinstance(key, Windowed) else key] = (value.value, value.timestamp)
    return rows


# -- committed offsets -------------------------------------------------------------------------------------------------------------


def end_of_the_dead(broker: Kafka, application_id: str) -> None:
    """Aborts what killed members left open, as the next member will: from now on committed offsets do not move."""
    for _, record in coordination_log(broker, application_id):
        if isinstance(record, Member):
            producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": record.transactional_id})
            producer.init_transactions(30)


def committed(broker: Kafka, application_id: str, topics: list[str]) -> dict[str, int]:
    """The group's committed offsets, as `topic-partition`."""
    return {f"{topic}-{at}": offset for topic in topics for at, offset in broker.committed_offsets(application_id, topic).items()}
