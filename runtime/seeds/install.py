"""Installation of a seed or snapshot as the state of a stopped application.

    1. check that everything fits and that the application is stopped (`plan.py`, `preconditions.py`, `inputs.py`); fetch the files and
       verify their checksums (`files.py`)
    2. write the changelogs from the seed's files, some hundred thousand records per transaction
    3. move the files into the state directory, with the ends of the changelogs
    4. commit the offsets of all inputs, with their times, in one transaction

The changelogs come first: files without a changelog would be lost with the disk. The offsets come last; until then an instance refuses to
start. So the installation may be killed at any point and repeated: the transactions hold the number of records written (`journal.py`), and
the files are fetched again (rules.md, 30).

Rejected: naming the seed as the base of the changelog. Every restore on every machine would need the seed's files forever, and a standby
could not follow by reading one log.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.coordination.records import encode
from penstock.runtime.coordination.resets import drop_state_of_before, stands_as_reset
from penstock.runtime.coordination.topics import TopicLayout, coordination_topic, prepare_topics
from penstock.runtime.kafka.failures import Meaning, meaning
from penstock.runtime.kafka.topic_admin import ANSWER_SECONDS, TopicAdmin
from penstock.runtime.model.errors import (
    BrokerUnavailableError,
    SeedRefusedError,
    StateDirectoryLockedError,
    StreamsError,
    TaskMigratedError,
    TransactionAbortedError,
)
from penstock.runtime.model.ids import NextOffset, TaskId, TopicPartition
from penstock.runtime.model.offsets import OffsetAndMetadata, encode_partition_time
from penstock.runtime.operators.event_time import select_processor_metadata
from penstock.runtime.seeds.entries import changelog_records, with_headers
from penstock.runtime.seeds.files import Staging
from penstock.runtime.seeds.find import find_seed
from penstock.runtime.seeds.inputs import starts, warn_of_compaction
from penstock.runtime.seeds.journal import Mark, Stage, read_marks
from penstock.runtime.seeds.plan import SeededStore, SeededTask, SeedPlan, misfit_text, plan_seed
from penstock.runtime.seeds.preconditions import Preconditions, refuse_running, running_instances
from penstock.runtime.seeds.progress import Progress
from penstock.runtime.seeds.state_record import state_record
from penstock.runtime.seeds.writing import SeedWriter, as_streams_error
from penstock.runtime.snapshots.catalogue import Snapshot
from penstock.runtime.snapshots.manifest import encoded
from penstock.runtime.stores.directory import StateDirectory
from penstock.runtime.stores.rocks_loading import inspect_store
from penstock.runtime.topology.topology import Topology

logger = logging.getLogger(__name__)

_TRANSACTION_RECORDS = 250_000
_TRANSACTION_SECONDS = 5.0
_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Installed:
    """Result: number of tasks, and of changelog records written. 0 tasks: the seed was installed before."""

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
    """Install the seed at `where`, a path or URI, for a resolved topology. Safe to repeat, after a kill or when it is done.

    `reset`: the application has committed offsets and lost changelogs; tasks without changelogs are put back to the seed.

    Raises SeedRefusedError with all obstacles and their remedies, StateDirectoryError, BrokerUnavailableError, and the errors of
    `prepare_topics`.
    """
    seed = find_seed(where, config.application_id)
    directory = StateDirectory(config.state_dir, config.application_id)
    installation = _Installation(topology, config, seed, directory, progress or Progress())
    try:
        directory.lock()
    except StateDirectoryLockedError as error:
        installation.refuse(
            f"application {config.application_id} runs on this machine: {error}. Stop it first (penstock stop {config.application_id})",
            error,
        )
    try:
        return installation.run(reset)
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
        self._processor_metadata: dict[TaskId, dict[str, int]] = {}

    def refuse(self, running: str, cause: Exception | None = None) -> NoReturn:
        """Raise SeedRefusedError for a running application, together with everything that does not fit."""
        problems = [running]
        try:
            problems += self._misfit(plan_seed(self._topology, self._layout(make=False), self._application_id, self._seed))
        except StreamsError as error:  # the remedies behind the colon, such as a reset, are not for an application that runs
            problems += [str(each).partition(": ")[0] for each in (error, *error.further)]
        raise SeedRefusedError("\n".join(problems)) from cause

    def run(self, reset: bool) -> Installed:
        drop_state_of_before(self._config, self._topics, self._directory)
        running = running_instances(self._topics, self._application_id)
        if running is not None and not self._was_installed():
            self.refuse(running)
        plan = plan_seed(self._topology, self._layout(), self._application_id, self._seed)
        planned, preconditions = plan.tasks, self._read_preconditions(plan.tasks)
        if not plan.misfits and preconditions.is_installed(planned):
            return Installed(self._seed.id, 0, 0)
        tasks, inputs = self._ready(plan, preconditions, reset)
        warn_of_compaction(self._topics, self._config.consumer_properties("restore"), inputs)
        logger.info("seed %s (%s) is installed for %d tasks", self._seed.id, self._seed.place, len(tasks))
        self._directory.await_previous_workers()
        writer = SeedWriter(self._config)
        try:
            writer.start()
            total = self._fetch_all(tasks)
            records = self._write(writer, tasks, total, preconditions.marks, preconditions.topic_ids, inputs)
            self._put_in_place(tasks, preconditions.topic_ids)
            refuse_running(self._topics, self._application_id)
            self._commit(writer, tasks, preconditions.topic_ids, inputs)
        except (TaskMigratedError, TransactionAbortedError) as error:
            raise as_streams_error(error) from error
        finally:
            writer.close()
            self._staging.end()
        return Installed(self._seed.id, len(tasks), records)

    def _layout(self, *, make: bool = True) -> TopicLayout:
        return prepare_topics(self._topics, self._topology, self._config, make=make)

    def _misfit(self, plan: SeedPlan) -> list[str]:
        return [misfit_text(plan.misfits, self._application_id, self._seed)] if plan.misfits else []

    def _was_installed(self) -> bool:
        """Return True if a running application began with this seed. One with missing or other topics did not."""
        try:
            plan = plan_seed(self._topology, self._layout(make=False), self._application_id, self._seed)
        except BrokerUnavailableError:
            raise
        except StreamsError:  # reported by `refuse`
            return False
        logs = {partition.topic for task in plan.tasks for partition in task.changelogs}
        return (
            not plan.misfits and logs == set(self._topics.describe(logs)) and self._read_preconditions(plan.tasks).is_installed(plan.tasks)
        )

    def _ready(
        self, plan: SeedPlan, preconditions: Preconditions, reset: bool
    ) -> tuple[list[SeededTask], dict[TopicPartition, NextOffset]]:
        """Return the tasks to install and the start offsets of their inputs. Raises SeedRefusedError with all obstacles."""
        problems, tasks = self._misfit(plan), plan.tasks
        try:
            tasks = preconditions.to_install(plan.tasks, reset)
        except SeedRefusedError as error:
            problems.append(str(error))
        staying = [task for task in plan.tasks if task not in tasks]
        inputs: dict[TopicPartition, NextOffset] = {}
        try:
            inputs = starts(self._topology, self._topics, self._application_id, self._seed, tasks, staying)
        except SeedRefusedError as error:
            problems.append(str(error))
        if problems:
            raise SeedRefusedError("\n".join(problems))
        return tasks, inputs

    def _read_preconditions(self, tasks: list[SeededTask]) -> Preconditions:
        changelogs = [partition for task in tasks for partition in task.changelogs]
        inputs = [partition for task in tasks for partition in (*task.inputs, *task.repartitions)]
        ends = self._ends(changelogs)
        facts = self._topics.describe({partition.topic for partition in (*changelogs, *inputs)})
        topic_ids = {name: found.topic_id for name, found in facts.items()}
        marks = read_marks(TopicAdmin(self._config), self._application_id, [*changelogs, *inputs], topic_ids)
        # Offsets set by a reset do not mean that the application has run.
        fresh = all(mark.stage is not Stage.DONE for mark in marks.values()) and stands_as_reset(self._config, self._topics)
        committed = {} if fresh else self._topics.committed_offsets(self._application_id)
        return Preconditions(
            application_id=self._application_id,
            committed={partition: committed[partition] for partition in inputs if partition in committed},
            ends=ends,
            marks={partition: mark for partition, mark in marks.items() if mark.seed == self._id},
            topic_ids=topic_ids,
        )

    def _ends(self, changelogs: list[TopicPartition]) -> dict[TopicPartition, NextOffset]:
        """Return the ends of changelogs. New ones are unknown until all brokers know their leaders."""
        until = time.monotonic() + ANSWER_SECONDS
        while True:
            try:
                return self._topics.high_watermarks(changelogs)
            except StreamsError as error:
                if not _is_too_new(error) or time.monotonic() > until:
                    raise
                time.sleep(_POLL_SECONDS)
                prepare_topics(self._topics, self._topology, self._config)  # a topic in deletion counted as existing

    # --- changelogs -----------------------------------------------------------------------------------------------------------

    def _fetch_all(self, tasks: list[SeededTask]) -> int:
        """Fetch all files and return the approximate number of entries. Nothing is written yet, so a damaged seed leaves no trace."""
        self._staging.begin()
        total = 0
        for task in tasks:
            self._staging.fetch(task)
            total += sum(inspect_store(self._staging.path(task, store)).entries for store in task.stores if store.changelog is not None)
        return total

    def _write(
        self,
        writer: SeedWriter,
        tasks: list[SeededTask],
        total: int,
        marks: Mapping[TopicPartition, Mark],
        topic_ids: Mapping[str, str],
        inputs: Mapping[TopicPartition, NextOffset],
    ) -> int:
        """Write the changelogs and return the number of records written."""
        begun = {log: self._mark(log, topic_ids, 0, Stage.PART) for task in tasks for log in task.changelogs if log not in marks}
        record = state_record(self._topology, self._config, self._topics, tasks, self._seed.id)
        if record is not None:
            at = TopicPartition(coordination_topic(self._application_id), 0)
            writer.send(at, [(record.key, encode(record), time.time_ns() // 1_000_000)], None)
        if begun or record is not None:
            writer.commit(begun)  # from here on the changelogs are marked as this seed's
        known = {**begun, **marks}
        already = sum(known[log].records for task in tasks for log in task.changelogs)
        self._progress.begin(max(total, already), already)
        for task in tasks:
            metadata = self._processor_metadata[task.task] = {}
            own = {partition: inputs[partition] for partition in (*task.inputs, *task.repartitions)}
            for store in task.stores:
                metadata |= select_processor_metadata(store.name, self._staging.complete(task, store, own))
                if store.changelog is not None:
                    self._write_store(writer, task, store, known[store.changelog], topic_ids)
        self._progress.end()
        return self._progress.done - already

    def _write_store(self, writer: SeedWriter, task: SeededTask, store: SeededStore, mark: Mark, topic_ids: Mapping[str, str]) -> None:
        if mark.stage is not Stage.PART or store.changelog is None or task.manifest is None:
            return
        log = store.changelog
        seen, written, committed, began = 0, mark.records, mark.records, time.monotonic()
        for records in changelog_records(self._staging.path(task, store), store.layout, task.manifest.at_ms):
            skipped = min(len(records), max(0, mark.records - seen))
            seen += len(records)
            if skipped == len(records):
                continue
            for headers, group in with_headers(store.layout, records[skipped:]):
                writer.send(log, group, headers)
            written += len(records) - skipped
            self._progress.add(len(records) - skipped)
            if written - committed >= _TRANSACTION_RECORDS or time.monotonic() - began >= _TRANSACTION_SECONDS:
                writer.commit({log: self._mark(log, topic_ids, written, Stage.PART)})
                committed, began = written, time.monotonic()
        writer.commit({log: self._mark(log, topic_ids, written, Stage.WHOLE)})

    def _mark(self, partition: TopicPartition, topic_ids: Mapping[str, str], records: int, stage: Stage) -> Mark:
        return Mark(self._id, topic_ids[partition.topic], records, stage)

    # --- files and offsets ----------------------------------------------------------------------------------------------------

    def _put_in_place(self, tasks: list[SeededTask], topic_ids: Mapping[str, str]) -> None:
        ends = self._topics.high_watermarks([log for task in tasks for log in task.changelogs])
        now_ms = time.time_ns() // 1_000_000
        for task in tasks:
            if task.stores:
                self._staging.put_in_place(task, ends, topic_ids, now_ms)

    def _commit(
        self, writer: SeedWriter, tasks: list[SeededTask], topic_ids: Mapping[str, str], inputs: Mapping[TopicPartition, NextOffset]
    ) -> None:
        offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        for task in tasks:
            metadata = self._processor_metadata[task.task]
            for partition in (*task.inputs, *task.repartitions):
                at_ms = task.times.get(partition, task.stream_time)
                offsets[partition] = OffsetAndMetadata(inputs[partition], encode_partition_time(at_ms, metadata))
        done = [*offsets, *(log for task in tasks for log in task.changelogs)]
        writer.commit({partition: self._mark(partition, topic_ids, 0, Stage.DONE) for partition in done}, offsets)


def _is_too_new(error: StreamsError) -> bool:
    return bool(meaning(error.__cause__) & (Meaning.NO_LEADER | Meaning.UNKNOWN_PARTITION))


def _fingerprint(seed: Snapshot) -> str:
    """Return an id that is unique to this seed's content."""
    return f"{seed.id}:{hashlib.sha256(encoded(seed.manifest)).hexdigest()[:16]}"
