"""*Restore global topic*: write rows back to the topic of a global table that has lost them, from the newest snapshot.

Deleted records (DeleteRecords, retention, a topic that was recreated) take with them the only record of each key that was not written
again: a rebuilt table misses these rows, and so does every later instance. A snapshot of the application has them. A row is written only if
its key is not on the topic, whatever its record there: a newer value and a deletion stay. A key whose deletion was among the lost records
comes back, so the policy proposes such a run, and a person approves it.

A run reads the topic after it has fenced all others by its transactional id, so concurrent and repeated runs write each row once.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import msgspec
from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from penstock.orchestration.database import audit
from penstock.orchestration.database.models import to_ms
from penstock.orchestration.dead_letters.topic import fencing_producer
from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.instances.operations import Operations
from penstock.orchestration.kafka.log import FROM_START, reader, to_end
from penstock.orchestration.kafka.task_commands import RefusedError
from penstock.orchestration.run_books.base import Findings, Progress, Request, RunBook, RunBookError, Step, Subject
from penstock.orchestration.run_books.rebuild_global_store import living
from penstock.orchestration.snapshots.exports import export_root
from penstock.orchestration.snapshots.taking import local_root
from penstock.runtime.kafka.failures import kafka_error, with_remedy
from penstock.runtime.kafka.topic_admin import TopicAdmin, TopicDescription
from penstock.runtime.model.errors import StateDirectoryError
from penstock.runtime.model.extras import extra
from penstock.runtime.model.ids import TopicPartition
from penstock.runtime.serdes.murmur import partition_for
from penstock.runtime.snapshots.catalogue import Snapshot, find_all
from penstock.runtime.snapshots.export_manager import expanded
from penstock.runtime.snapshots.manifest import GLOBAL, StoreManifest, TaskManifest
from penstock.runtime.snapshots.opening import place_of
from penstock.runtime.snapshots.reading import store_files

RESTORED_FROM = "__penstock.restored.from"
"""Header of a restored record: the id of the snapshot."""
_BATCH = 1_000
_SHOWN = 3
_SECONDS = 30.0
_READ_SECONDS = 600.0
_VERIFY_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class _Row:
    key: bytes
    value: bytes
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class _Missing:
    """Rows of the snapshot that the topic has no record of. `expired`: further ones that the topic's retention would delete again."""

    rows: list[_Row]
    expired: int


class RestoreGlobalTopic(RunBook):
    """One run. Refused if no instance runs, if no snapshot has the table, if a processor of the user fills the store (its rows are not the
    topic's records), or if producers use another partitioner than Kafka's default, whose partitions could not be found."""

    NAME = "restore-global-topic"
    STEPS: ClassVar[tuple[Step, ...]] = (
        Step("check", "the newest snapshot has rows of the table whose keys are not on the topic"),
        Step("write", "these rows are written to the topic, with their timestamps, each once"),
        Step("verify", "every worker has read them"),
    )

    def __init__(
        self, operations: Operations, application: Application, topic: str, request: Request, progress: Progress = lambda _: None
    ) -> None:
        super().__init__(application, operations.control_plane, request, progress)
        self._operations = operations
        self._topic = topic
        self._topics = TopicAdmin(application.streams_config())
        self._source: tuple[Snapshot, TaskManifest, StoreManifest] | None = None
        self._instances: tuple[str, ...] = ()
        self._missing = _Missing([], 0)
        self._written = 0

    def subject(self) -> Subject:
        return Subject(f"global topic {self._topic}", topic=self._topic)

    def needless(self, step: Step) -> bool:
        return not self._missing.rows

    def inspect(self, findings: Findings) -> None:
        self.feed.step()  # fails if no broker answers
        self._instances = living(self.control_plane, self.application)
        if not self._instances:
            raise RefusedError(f"no instance of {self.application.id} runs, so no instance could confirm that the rows are in the table")
        self._source = snapshot, _, store = self._newest()
        for instance in self._instances:
            if not self._ask(instance, store.name).get("copy"):
                raise RefusedError(f"a processor of its own fills {store.name}: its rows are not the records of {self._topic}")
        self._missing = self._compare()
        first = [row.key.decode(errors="replace") for row in self._missing.rows[:_SHOWN]]
        findings.update({"snapshot": snapshot.id, "missing": len(self._missing.rows), "first": first, "expired": self._missing.expired})

    def take(self, step: Step, findings: Findings) -> None:
        match step.name:
            case "write":
                findings["written"] = self._write()
            case "verify":
                findings.update(self._verify())

    def outcome(self) -> str:
        assert self._source is not None  # set by the first step
        if not self._missing.rows:
            beyond = f" that its retention keeps ({self._missing.expired} others are older)" if self._missing.expired else ""
            return f"{self._topic} has a record of every row of snapshot {self._source[0].id}{beyond}; nothing was written"
        return f"{self._written} rows of snapshot {self._source[0].id} are on {self._topic} again"

    def _newest(self) -> tuple[Snapshot, TaskManifest, StoreManifest]:
        """Return the newest snapshot, exported or not, with the table. Raises RefusedError."""
        roots = [local_root(self._operations, self.application)]
        if self.application.snapshots.export is not None:
            roots.append(place_of(expanded(export_root(self.application))))
        damaged: list[str] = []
        found = [snapshot for root in roots for snapshot in find_all(root, lambda error: damaged.append(str(error)))]
        for snapshot in sorted(found, key=lambda each: each.manifest.at_ms, reverse=True):
            if GLOBAL not in snapshot.manifest.tasks:
                continue
            try:
                task = snapshot.task(GLOBAL)
            except StateDirectoryError as error:
                damaged.append(str(error))
                continue
            for store in task.stores:
                if store.topic == self._topic and store.layout.kind == "key_value":
                    return snapshot, task, store
        unreadable = f" ({'; '.join(damaged)})" if damaged else ""
        raise RefusedError(f"no snapshot of {self.application.id} has a table of {self._topic}{unreadable}")

    def _compare(self) -> _Missing:
        """Return the rows whose key is not on the topic."""
        topic = self._topics.describe([self._topic]).get(self._topic)
        if topic is None:
            raise RefusedError(f"{self._topic} does not exist; create it first, compacted")
        keys = self._keys(topic.partitions)
        oldest = self._oldest_kept(topic)
        missing = [row for row in self._rows() if row.key not in keys]
        kept = [row for row in missing if row.timestamp_ms >= oldest]
        return _Missing(kept, len(missing) - len(kept))

    @staticmethod
    def _oldest_kept(topic: TopicDescription) -> int:
        """Return the timestamp (ms) from which on the topic's retention keeps records."""
        retention_ms = int(topic.config.get("retention.ms", "-1")) if "delete" in topic.config.get("cleanup.policy", "") else -1
        return 0 if retention_ms < 0 else to_ms(audit.now()) - retention_ms

    def _keys(self, partitions: int) -> set[bytes]:
        """Return all keys on the topic. Raises RefusedError if one is not in the default partitioner's partition."""
        keys: set[bytes] = set()
        with reader(self.application.connection) as consumer:
            for partition in range(partitions):
                consumer.assign([ClientPartition(self._topic, partition, FROM_START)])
                for message in to_end(consumer, _READ_SECONDS):
                    key = message.key()
                    if isinstance(key, bytes) and key not in keys:
                        if partitions > 1 and partition_for(key, partitions) != partition:
                            raise RefusedError(
                                f"key {key.decode(errors='replace')} is in {self._topic}-{partition}, where the default partitioner does "
                                "not put it: the partitions of the lost rows are not known"
                            )
                        keys.add(key)
        return keys

    def _rows(self) -> Iterator[_Row]:
        """Yield the snapshot's rows."""
        assert self._source is not None  # set by the first step
        snapshot, task, store = self._source
        with extra("cloud", "Reading a snapshot's rows"):
            from penstock.runtime.stores.rows import read_store
        with store_files(snapshot.task_place(GLOBAL), task, store) as folder:
            for rows in read_store(folder, store.layout):
                times: Iterable[int] = [0] * len(rows) if rows.timestamps is None else rows.timestamps.to_pylist()
                for key, value, at_ms in zip(rows.keys.to_pylist(), rows.values.to_pylist(), times, strict=True):
                    yield _Row(key, value, at_ms)

    def _write(self) -> int:
        """Write the rows that are missing now. Raises RunBookError if another run has fenced this one."""
        assert self._source is not None  # set by the first step
        headers: list[tuple[str, str | bytes | None]] = [(RESTORED_FROM, self._source[0].id.encode())]
        producer = fencing_producer(self.application.connection, f"{self.application.id}-restore-{self._topic}")
        rows = self._compare().rows
        partitions = self._topics.partition_count(self._topic)
        try:
            for start in range(0, len(rows), _BATCH):
                producer.begin_transaction()
                for row in rows[start : start + _BATCH]:
                    partition = partition_for(row.key, partitions)
                    at_ms = max(1, row.timestamp_ms)  # the client takes 0 for the current time
                    producer.produce(self._topic, row.value, row.key, partition, timestamp=at_ms, headers=headers)
                    producer.poll(0)
                producer.commit_transaction(_SECONDS)
        except KafkaException as error:
            why = with_remedy(kafka_error(error), f"Write on topic {self._topic}")
            raise RunBookError(f"rows could not be written to {self._topic}: {why}; start it again") from error
        self._written = len(rows)
        return len(rows)

    def _verify(self) -> Findings:
        """Wait until every worker has read the topic to its current end."""
        count = self._topics.partition_count(self._topic)
        ends = self._topics.end_offsets(TopicPartition(self._topic, number) for number in range(count))
        deadline, waiting = time.monotonic() + _VERIFY_SECONDS, list(self._instances)
        while waiting:
            waiting = [instance for instance in waiting if not self._has_read(instance, ends)]
            if waiting and time.monotonic() > deadline:
                raise RunBookError(f"{', '.join(waiting)} have not read {self._topic} after {_VERIFY_SECONDS:.0f} s; they continue")
            if waiting:
                time.sleep(0.2)
        return {"read by": list(self._instances)}

    def _has_read(self, instance: str, ends: Mapping[TopicPartition, int]) -> bool:
        assert self._source is not None  # set by the first step
        positions = msgspec.convert(self._ask(instance, self._source[2].name).get("positions"), list[tuple[str, int]])
        expected = {str(partition): end for partition, end in ends.items()}
        return {log for log, _ in positions} >= expected.keys() and all(offset >= expected.get(log, 0) for log, offset in positions)

    def _ask(self, instance: str, store: str) -> dict[str, object]:
        """Return what the instance says about its copy of the table."""
        return self.commands.ask_instance("rebuild-global-store", instance, {"store": store, "dry_run": True}).data
