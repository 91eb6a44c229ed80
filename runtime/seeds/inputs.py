"""Start offsets of a seeded application.

A source topic is read from the offset at which the seed ends, if that is still on the log.

A repartition topic is written by the application itself, so a seed has no offset for it:

    computed seed           its state holds the whole history, nothing is in transit: the task begins at the topic's end (0 for a new one)
    snapshot                it is consistent per task, not between tasks (rules.md, 29): the reading task had processed some of the
                            writing task's records. Two cases skip and repeat no record; all others are refused: the writers of the
                            topic keep their position and the reader's offset is still on the topic; or the application stood still
                            when the snapshot was taken, with nothing in transit. If the snapshot records that (`settled`), all tasks
                            can go back to it together: each begins at its topic's end, because the writers write again what came since.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence

from penstock.runtime.kafka.clients import ClientProperties
from penstock.runtime.kafka.log_reader import LogReader
from penstock.runtime.kafka.topic_admin import ANSWER_SECONDS, TopicAdmin
from penstock.runtime.model.errors import SeedRefusedError
from penstock.runtime.model.ids import NextOffset, TopicPartition
from penstock.runtime.seeds.plan import SeededTask
from penstock.runtime.snapshots.catalogue import Snapshot
from penstock.runtime.topology.topology import Topology

logger = logging.getLogger(__name__)

_MARKER = 1
"""Offsets taken by the control record that ends a transaction."""


def starts(
    topology: Topology,
    topics: TopicAdmin,
    application_id: str,
    seed: Snapshot,
    tasks: Sequence[SeededTask],
    staying: Sequence[SeededTask] = (),
) -> dict[TopicPartition, NextOffset]:
    """Return the offsets to commit for the inputs of these tasks; tasks in `staying` keep theirs. Raises SeedRefusedError with every input
    that cannot be read from its offset; BrokerUnavailableError, StreamsError."""
    inputs = {partition: offset for task in tasks for partition, offset in task.inputs.items()}
    problems = list(_out_of_range(topics, inputs))
    repartitions = [partition for task in tasks for partition in task.repartitions]
    ends = topics.end_offsets(repartitions)
    found = {**inputs, **ends}
    settled = bool(seed.manifest.settled) and not staying
    crosses = (seed.manifest.kind == "snapshot" and not settled) or bool(staying)
    if crosses and any(task.repartitions for task in (*tasks, *staying)):
        crossing = _Crossing(topology, topics, application_id, seed, tasks)
        found.update({partition: crossing.start(partition, end) for partition, end in ends.items()})
        reasons = [reason for task in tasks if task.stores for at in task.repartitions for reason in crossing.reasons(at)]
        reasons += [reason for task in staying if task.stores for at in task.repartitions for reason in crossing.doubled(at)]
        if reasons:
            problems += [*dict.fromkeys(reasons), _REMEDIES]
    if problems:
        raise SeedRefusedError("the application cannot continue where the seed ends:" + "".join(f"\n  {text}" for text in problems))
    return found


def _out_of_range(topics: TopicAdmin, inputs: Mapping[TopicPartition, NextOffset]) -> Iterator[str]:
    begins, ends = topics.start_offsets(inputs), topics.high_watermarks(inputs)
    facts = topics.describe({partition.topic for partition in inputs})
    for partition, offset in sorted(inputs.items()):
        if offset > ends[partition]:
            yield (
                f"{partition} ends at {ends[partition]}, and the seed is up to {offset}: the topic was created again since, or is another "
                "one than the seed was made from. A seed made from the current topic fits"
            )
        elif offset < begins[partition]:
            config = facts[partition.topic].config
            policy = config.get("cleanup.policy", "delete")
            if "delete" in policy:
                bytes_ = config.get("retention.bytes", "-1")
                why = f"deleted by retention (retention.ms={config.get('retention.ms', '?')}, retention.bytes={bytes_})"
            else:
                why = f"removed (DeleteRecords, or a compaction: cleanup.policy={policy})"
            yield (
                f"{partition} begins at {begins[partition]}, and the seed is up to {offset}: the {begins[partition] - offset} "
                f"records from {offset} to {begins[partition] - 1} were {why}. A later seed, or one that has these "
                "records from the lake, closes the gap"
            )


def warn_of_compaction(topics: TopicAdmin, properties: ClientProperties, inputs: Mapping[TopicPartition, NextOffset]) -> None:
    """Warn about compacted inputs whose first record after the seed's end is missing. Only a warning: a table still has the latest value of
    each key, and control records take offsets too. Raises StreamsError."""
    compacted = {name for name, found in topics.describe({partition.topic for partition in inputs}).items() if found.compacted}
    asked = {partition: offset for partition, offset in inputs.items() if partition.topic in compacted}
    if not asked:
        return
    reader, until = LogReader(properties, "seed"), time.monotonic() + ANSWER_SECONDS
    try:
        for partition, offset in asked.items():
            reader.assign(partition, offset)
        while reader.assigned and time.monotonic() < until:
            poll = reader.poll(0.5)
            for partition, messages in poll.runs.items():
                if partition in reader.assigned and (first := messages[0].offset() or 0) > asked[partition]:
                    logger.warning(
                        "%s: no record is left at offsets %d to %d, from which the application continues: compaction has removed them, or "
                        "they are transaction markers. A table still has its latest values; a stream would miss records",
                        partition,
                        asked[partition],
                        first - 1,
                    )
            for partition in {*poll.runs, *poll.ends, *poll.out_of_range} & reader.assigned:
                reader.unassign(partition)
    finally:
        reader.close()


class _Crossing:
    """Records in transit between tasks when a snapshot was taken."""

    def __init__(self, topology: Topology, topics: TopicAdmin, application_id: str, seed: Snapshot, tasks: Sequence[SeededTask]) -> None:
        self._topics = topics
        self._application_id = application_id
        self._seed_application = seed.manifest.application
        self._writers = {topic.name: topic.writers for topic in topology.internal_topics() if topic.kind == "repartition"}
        self._tasks = tasks
        self._offsets = {TopicPartition(at.topic, at.partition): NextOffset(at.next_offset) for at in seed.manifest.inputs}
        self._committed = topics.committed_offsets(self._seed_application)

    def _in_seed_application(self, partition: TopicPartition) -> TopicPartition:
        """Return the same repartition partition of the snapshot's application."""
        return TopicPartition(self._seed_application + partition.topic.removeprefix(self._application_id), partition.partition)

    def start(self, partition: TopicPartition, end: NextOffset) -> NextOffset:
        """Return the reader's own offset if this is its topic and still holds it, else the topic's end."""
        offset = self._offsets.get(partition, end)
        return offset if self._topics.start_offsets([partition])[partition] <= offset <= end else end

    def reasons(self, partition: TopicPartition) -> list[str]:
        """Return the reasons why records would be skipped or repeated; empty if none would."""
        in_seed = self._in_seed_application(partition)
        offset = self._offsets.get(in_seed)
        if offset is None:
            return [f"the snapshot has no offset of {in_seed}, which its tasks must have read"]
        if not self._topics.describe([in_seed.topic]):
            return [f"{in_seed.topic} no longer exists, so it is unknown what was in transit when the snapshot was taken."]
        begin, end = self._topics.start_offsets([in_seed])[in_seed], self._topics.end_offsets([in_seed])[in_seed]
        reasons = []
        if offset > end or (offset < begin and in_seed == partition):
            reasons.append(
                f"{in_seed} holds offsets {begin} to {end}, and its reader was at {offset} when the snapshot was taken: the "
                "records that it has read since were purged."
            )
        if in_seed != partition and end - offset > _MARKER:
            reasons.append(f"{end - offset} records were in transit in {in_seed} when the snapshot was taken, or were written since.")
        return [*reasons, *self.doubled(partition)]

    def doubled(self, partition: TopicPartition) -> list[str]:
        """Return the reasons why the reader of this topic would repeat records; empty if it would not."""
        writers = self._writers.get(partition.topic, ())
        moved = ", ".join(str(task.task) for task in self._tasks if task.task.subtopology in writers and self._moves(task))
        if not moved:
            return []
        return [
            f"tasks {moved} would repeat their writes to {partition.topic} since the snapshot was taken, and its reader would count those "
            "records twice."
        ]

    def _moves(self, task: SeededTask) -> bool:
        """Return True if the task moves back to an earlier position, or if that is unknown because the application is gone. A partition
        that was never read has no committed offset."""
        in_seed = map(self._in_seed_application, task.repartitions)
        begins = {**task.inputs, **{partition: self._offsets[partition] for partition in in_seed if partition in self._offsets}}
        return not self._committed or any(self._committed.get(partition, offset) != offset for partition, offset in begins.items())


_REMEDIES = (
    "A snapshot fits a topology with repartition topics only if it was taken while nothing was in transit between tasks (stop the input, "
    "wait for a lag of 0, take it), or if the application has processed nothing since; otherwise compute a seed "
    "(`penstock docs seeding`), or begin again from the start of the inputs"
)
