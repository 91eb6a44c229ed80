"""Installs a seed: state that was computed elsewhere, or a snapshot, becomes the state of an application that is stopped.

    1. it is looked whether all fits, and whether the application stands still (`plan.py`, `ground.py`, `inputs.py`); the files are brought
       and held against their checksums (`files.py`)
    2. the changelogs are written from the seed's files, some hundred thousand records per transaction
    3. the files are put into the state directory, at the ends of the changelogs
    4. one transaction commits the offsets of all inputs, with their times

The changelogs come first (rules.md, 30): files without a changelog would be lost with the disk. The offsets come last, and until then an
instance that is started refuses to run. So the order is safe to be killed in at any point, and to be begun again: the transactions say how
many records are written (`journal.py`), the files are brought anew.

Rejected: to have the changelog name the seed as its base. Every restore, on every machine and for ever, would need the seed's files, and a
standby could not follow by reading one log.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException

from runtime.commit.metadata import OffsetAndMetadata, encode_partition_time
from runtime.commit.transactions import kafka_error
from runtime.config import StreamsConfig
from runtime.errors import SeedRefusedError, StateDirectoryLockedError, StreamsError, TaskMigratedError, TransactionAbortedError
from runtime.ids import NextOffset, Partition, TaskId
from runtime.operators.kept_time import carried_times
from runtime.seeds.entries import changelog_headers, changelog_records
from runtime.seeds.files import Staging
from runtime.seeds.find import find_seed
from runtime.seeds.ground import Ground, refuse_running
from runtime.seeds.inputs import starts, warn_of_compaction
from runtime.seeds.journal import Mark, Stage, read_marks
from runtime.seeds.plan import SeededStore, SeededTask, plan_seed
from runtime.seeds.progress import Progress
from runtime.seeds.writing import SeedWriter, told
from runtime.snapshots.catalogue import Snapshot
from runtime.snapshots.manifest import encoded
from runtime.stores.directory import StateDirectory
from runtime.stores.rocks_placing import look_beside
from runtime.topics import ANSWER_SECONDS, TopicAdmin
from runtime.topology.topology import Topology

logger = logging.getLogger(__name__)

_TRANSACTION_RECORDS = 250_000
_TRANSACTION_SECONDS = 5.0
_LOOK_SECONDS = 0.1
_TOO_NEW = (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._NOENT)


@dataclass(frozen=True, slots=True)
class Installed:
    """What was done: for how many tasks, and how many records were written. No tasks: the seed was installed before."""

    seed: str
    tasks: int
    records: int

    def __str__(self) -> str:
        if not self.tasks:
            return f"seed {self.seed} was installed before"
        return f"seed {self.seed} is installed: {self.tasks} tasks, {self.records:,} changelog records written"


def install_seed(
    topology: Topology, config: StreamsConfig, where: str, *, reset: bool = False, progress: Progress | None = None
) -> Installed:
    """Installs the seed at `where`, a path or URI, for a resolved topology. Safe to do again, after a kill or when it is done.

    `reset`: the application has committed offsets and has lost changelogs; tasks whose changelogs are gone are put back to the seed.

    Raises SeedRefusedError with what is in the way and the ways out, StateDirectoryError, BrokerUnavailableError, and what
    `TopicAdmin.prepare` raises.
    """
    seed = find_seed(where, config.application_id)
    directory = StateDirectory(config.state_dir, config.application_id)
    try:
        directory.lock()
    except StateDirectoryLockedError as error:
        raise SeedRefusedError(
            f"application {config.application_id} runs on this machine: {error}. Stop it first (penstock stop)"
        ) from error
    try:
        return _Installation(topology, config, seed, directory, progress or Progress()).run(reset)
    finally:
        directory.unlock()


class _Installation:
    def __init__(self, topology: Topology, config: StreamsConfig, seed: Snapshot, directory: StateDirectory, progress: Progress) -> None:
        self._config = config
        self._application_id = config.application_id
        self._seed = seed
        self._id = _fingerprint(seed)
        self._directory = directory
        self._progress = progress
        self._topics = TopicAdmin(config)
        self._topology = topology.matched(self._topics.names()) if topology.patterns else topology
        self._staging = Staging(directory)
        self._carried: dict[TaskId, dict[str, int]] = {}

    def run(self, reset: bool) -> Installed:
        layout = self._topics.prepare(self._topology)
        planned = plan_seed(self._topology, layout, self._application_id, self._seed)
        ground = self._ground(planned)
        if ground.is_installed(planned):
            return Installed(self._seed.id, 0, 0)
        refuse_running(self._topics, self._application_id)
        tasks = ground.to_install(planned, reset)
        staying = [task for task in planned if task not in tasks]
        inputs = starts(self._topology, self._topics, self._application_id, self._seed, tasks, staying)
        warn_of_compaction(self._topics, self._config.consumer_properties("restore"), inputs)
        logger.info("seed %s (%s) is installed for %d tasks", self._seed.id, self._seed.place, len(tasks))
        self._directory.await_former_workers()
        writer = SeedWriter(self._config)
        try:
            writer.start()
            total = self._bring(tasks)
            records = self._write(writer, tasks, total, ground.marks, ground.topic_ids, inputs)
            self._put_in_place(tasks, ground.topic_ids)
            refuse_running(self._topics, self._application_id)
            self._commit(writer, tasks, ground.topic_ids, inputs)
        except (TaskMigratedError, TransactionAbortedError) as error:
            raise told(error) from error
        finally:
            writer.close()
            self._staging.end()
        return Installed(self._seed.id, len(tasks), records)

    def _ground(self, tasks: list[SeededTask]) -> Ground:
        changelogs = [partition for task in tasks for partition in task.changelogs]
        inputs = [partition for task in tasks for partition in (*task.inputs, *task.repartitions)]
        ends = self._ends(changelogs)
        facts = self._topics.describe({partition.topic for partition in (*changelogs, *inputs)})
        topic_ids = {name: found.topic_id for name, found in facts.items()}
        committed = self._topics.committed_offsets(self._application_id)
        return Ground(
            application_id=self._application_id,
            committed={partition: committed[partition] for partition in inputs if partition in committed},
            ends=ends,
            marks={
                partition: mark
                for partition, mark in read_marks(TopicAdmin(self._config), self._application_id, [*changelogs, *inputs], topic_ids).items()
                if mark.seed == self._id
            },
            topic_ids=topic_ids,
        )

    def _ends(self, changelogs: list[Partition]) -> dict[Partition, NextOffset]:
        """Of changelogs that were made a moment ago: it takes a while until all brokers know who leads them."""
        until = time.monotonic() + ANSWER_SECONDS
        while True:
            try:
                return self._topics.high_watermarks(changelogs)
            except StreamsError as error:
                if not _is_too_new(error) or time.monotonic() > until:
                    raise
                time.sleep(_LOOK_SECONDS)
                self._topics.prepare(self._topology)  # one that was still being deleted counted as there

    # --- changelogs -----------------------------------------------------------------------------------------------------------

    def _bring(self, tasks: list[SeededTask]) -> int:
        """Returns how many entries there are, about. Before anything is written: a seed that is damaged leaves no trace."""
        self._staging.begin()
        total = 0
        for task in tasks:
            self._staging.bring(task)
            total += sum(look_beside(self._staging.path(task, store)).entries for store in task.stores if store.changelog is not None)
        return total

    def _write(
        self,
        writer: SeedWriter,
        tasks: list[SeededTask],
        total: int,
        marks: Mapping[Partition, Mark],
        topic_ids: Mapping[str, str],
        inputs: Mapping[Partition, NextOffset],
    ) -> int:
        """Returns how many records were written."""
        begun = {log: self._mark(log, topic_ids, 0, Stage.PART) for task in tasks for log in task.changelogs if log not in marks}
        if begun:
            writer.commit(begun)  # from here on what is on the changelogs is known to be this seed's
        known = {**begun, **marks}
        already = sum(known[log].records for task in tasks for log in task.changelogs)
        self._progress.begin(max(total, already), already)
        for task in tasks:
            carried = self._carried[task.task] = {}
            own = {partition: inputs[partition] for partition in (*task.inputs, *task.repartitions)}
            for store in task.stores:
                carried |= carried_times(store.name, self._staging.complete(task, store, own))
                if store.changelog is not None:
                    self._write_store(writer, task, store, known[store.changelog], topic_ids)
        self._progress.end()
        return self._progress.done - already

    def _write_store(self, writer: SeedWriter, task: SeededTask, store: SeededStore, mark: Mark, topic_ids: Mapping[str, str]) -> None:
        if mark.stage is not Stage.PART or store.changelog is None or task.manifest is None:
            return
        log, headers = store.changelog, changelog_headers(store.layout)
        seen, written, committed, began = 0, mark.records, mark.records, time.monotonic()
        for records in changelog_records(self._staging.path(task, store), store.layout, task.manifest.at_ms):
            skipped = min(len(records), max(0, mark.records - seen))
            seen += len(records)
            if skipped == len(records):
                continue
            writer.send(log, records[skipped:], headers)
            written += len(records) - skipped
            self._progress.add(len(records) - skipped)
            if written - committed >= _TRANSACTION_RECORDS or time.monotonic() - began >= _TRANSACTION_SECONDS:
                writer.commit({log: self._mark(log, topic_ids, written, Stage.PART)})
                committed, began = written, time.monotonic()
        writer.commit({log: self._mark(log, topic_ids, written, Stage.WHOLE)})

    def _mark(self, partition: Partition, topic_ids: Mapping[str, str], records: int, stage: Stage) -> Mark:
        return Mark(self._id, topic_ids[partition.topic], records, stage)

    # --- files and offsets ----------------------------------------------------------------------------------------------------

    def _put_in_place(self, tasks: list[SeededTask], topic_ids: Mapping[str, str]) -> None:
        ends = self._topics.high_watermarks([log for task in tasks for log in task.changelogs])
        now_ms = time.time_ns() // 1_000_000
        for task in tasks:
            if task.stores:
                self._staging.put_in_place(task, ends, topic_ids, now_ms)

    def _commit(
        self, writer: SeedWriter, tasks: list[SeededTask], topic_ids: Mapping[str, str], inputs: Mapping[Partition, NextOffset]
    ) -> None:
        offsets: dict[Partition, OffsetAndMetadata] = {}
        for task in tasks:
            carried = self._carried[task.task]
            for partition in (*task.inputs, *task.repartitions):
                at_ms = task.times.get(partition, task.stream_time)
                offsets[partition] = OffsetAndMetadata(inputs[partition], encode_partition_time(at_ms, carried))
        done = [*offsets, *(log for task in tasks for log in task.changelogs)]
        writer.commit({partition: self._mark(partition, topic_ids, 0, Stage.DONE) for partition in done}, offsets)


def _is_too_new(error: StreamsError) -> bool:
    cause = error.__cause__
    return isinstance(cause, KafkaException) and kafka_error(cause).code() in _TOO_NEW


def _fingerprint(seed: Snapshot) -> str:
    """Names this seed and no other one."""
    return f"{seed.id}:{hashlib.sha256(encoded(seed.manifest)).hexdigest()[:16]}"
