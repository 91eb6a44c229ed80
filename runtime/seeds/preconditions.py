"""Preconditions of a seed: the changelogs and committed offsets of the application decide for which tasks it is installed.

    its changelogs                         its committed offsets       the seed
    all new, or begun by this seed         none                        is installed for all tasks
    all new, or some of them               there                       refused; with `reset`, lost state is replaced (below)
    written by others                      none                        refused: that state is not the seed's
    written by this seed, complete         there                       was installed before: nothing is done

*Replaced*: a sub-topology that lost all its changelogs gets its state and its input offsets from the seed together. A sub-topology with
changelogs keeps its own. A changelog counts as lost only if its topic was created again: its new id invalidates copies on other machines,
which would look complete beside a topic whose records were only deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from penstock.runtime.coordination.group import members_group
from penstock.runtime.kafka.topic_admin import TopicAdmin
from penstock.runtime.model.errors import SeedRefusedError
from penstock.runtime.model.ids import NextOffset, TopicPartition
from penstock.runtime.seeds.journal import Mark, Stage
from penstock.runtime.seeds.plan import SeededTask


class _Condition(Enum):
    """Condition of the changelogs of a sub-topology."""

    NONE = "none"
    NEW = "new"
    DONE = "done"
    KEPT = "kept"
    MIXED = "mixed"


@dataclass(frozen=True, slots=True)
class Preconditions:
    """State of the brokers. `ends` are high watermarks of changelogs; `marks` those of this seed's installation; `topic_ids` of
    changelogs."""

    application_id: str
    committed: Mapping[TopicPartition, NextOffset]
    ends: Mapping[TopicPartition, NextOffset]
    marks: Mapping[TopicPartition, Mark]
    topic_ids: Mapping[str, str]

    def is_installed(self, tasks: Sequence[SeededTask]) -> bool:
        """Return True if this seed was installed before and nothing was lost since."""
        found = set(self._conditions(tasks).values())
        return bool(self.committed) and _Condition.NEW not in found and (_Condition.DONE in found or self._inputs_done(tasks))

    def to_install(self, tasks: Sequence[SeededTask], reset: bool) -> list[SeededTask]:
        """Return the tasks to install the seed for. Raises SeedRefusedError."""
        found, by_part = self._conditions(tasks), _by_part(tasks)
        new = {part for part, condition in found.items() if condition is _Condition.NEW}
        if not self.committed:
            self._refuse_written(tasks)
            return list(tasks)
        if not reset:
            raise SeedRefusedError(self._has_offsets(new))
        mixed = [task for part, of_part in by_part.items() if found[part] is _Condition.MIXED for task in of_part]
        if mixed:
            raise SeedRefusedError(self._mixed(mixed))
        if not new:
            raise SeedRefusedError(
                f"no changelog of application {self.application_id} is lost: there is nothing to put back. To begin again from the seed: "
                f"{self._reset_first}"
            )
        return [task for part in sorted(new) for task in by_part[part]]

    def _conditions(self, tasks: Sequence[SeededTask]) -> dict[int, _Condition]:
        """Return the condition of each sub-topology."""
        return {part: self._condition(of_part) for part, of_part in _by_part(tasks).items()}

    def _condition(self, tasks: Sequence[SeededTask]) -> _Condition:
        topics = self._written_topics(tasks)
        if not topics:
            return _Condition.NONE
        partitions = [partition for of_topic in topics.values() for partition in of_topic]
        if all((mark := self.marks.get(partition)) is not None and mark.stage is Stage.DONE for partition in partitions):
            return _Condition.DONE
        new = [topic for topic, of_topic in topics.items() if all(self._is_new(partition) for partition in of_topic)]
        return _Condition.NEW if len(new) == len(topics) else _Condition.MIXED if new else _Condition.KEPT

    def _written_topics(self, tasks: Sequence[SeededTask]) -> dict[str, list[TopicPartition]]:
        """Return changelog partitions by topic, of stores that the seed has entries for."""
        topics: dict[str, list[TopicPartition]] = {}
        written: set[str] = set()
        for task in tasks:
            for store in task.stores:
                if store.changelog is not None:
                    topics.setdefault(store.changelog.topic, []).append(store.changelog)
                    at = store.manifest.changelog
                    if at is None or at.next_offset > 0:
                        written.add(store.changelog.topic)
        return {topic: partitions for topic, partitions in topics.items() if topic in written} or topics

    def _is_new(self, partition: TopicPartition) -> bool:
        """Return True if it was never written to, or only by this seed's unfinished installation."""
        mark = self.marks.get(partition)
        return self.ends[partition] == 0 or (mark is not None and mark.stage is not Stage.DONE)

    def _inputs_done(self, tasks: Sequence[SeededTask]) -> bool:
        marks = [self.marks.get(partition) for task in tasks for partition in task.inputs]
        return not any(task.changelogs for task in tasks) and bool(marks) and all(mark is not None for mark in marks)

    # --- refusals -------------------------------------------------------------------------------------------------------------

    def _refuse_written(self, tasks: Sequence[SeededTask]) -> None:
        written = sorted({partition.topic for task in tasks for partition in task.changelogs if not self._is_new(partition)})
        if written:
            raise SeedRefusedError(
                f"the changelogs {', '.join(written)} are not empty: what they hold is not of this seed (of another one perhaps, whose "
                f"installation was not finished). Either finish that one, or begin again from the seed: {self._reset_first}"
            )

    def _has_offsets(self, new: Iterable[int]) -> str:
        at = ", ".join(f"{partition}@{offset}" for partition, offset in sorted(self.committed.items())[:4])
        more = "" if len(self.committed) <= 4 else f" and {len(self.committed) - 4} more"
        text = (
            f"application {self.application_id} has committed offsets ({at}{more}): it has run, and the seed would count again what it has "
            "counted, or leave out what it has not. "
        )
        if lost := sorted(new):
            return text + (
                f"The changelogs of sub-topology {', '.join(map(str, lost))} are empty; if they were lost, --reset-offsets puts state and "
                "input offsets of those tasks back to where the seed was taken"
            )
        return text + (f"Give the application another application.id, or begin again from the seed: {self._reset_first}")

    def _mixed(self, tasks: Sequence[SeededTask]) -> str:
        kept = sorted({partition.topic for task in tasks for partition in task.changelogs if not self._is_new(partition)})
        return (
            "some changelogs of a sub-topology are lost and others are there, as of another moment than the seed's: state that belongs "
            f"together can be put back only as a whole. Delete these too, then start again: {', '.join(kept)}; or begin again from the "
            f"seed: {self._reset_first}"
        )

    @property
    def _reset_first(self) -> str:
        return f"penstock reset {self.application_id}, then start with --seed again"


def _by_part(tasks: Sequence[SeededTask]) -> dict[int, list[SeededTask]]:
    found: dict[int, list[SeededTask]] = {}
    for task in tasks:
        found.setdefault(task.task.subtopology, []).append(task)
    return found


def refuse_running(topics: TopicAdmin, application_id: str) -> None:
    """Raise SeedRefusedError if an instance of the application runs, on any machine."""
    if running := running_instances(topics, application_id):
        raise SeedRefusedError(running)


def running_instances(topics: TopicAdmin, application_id: str) -> str | None:
    """Return a message that names the running instances, or None. Raises BrokerUnavailableError, StreamsError."""
    members = topics.members(members_group(application_id))
    if not members:
        return None
    return (
        f"application {application_id} runs ({', '.join(members)}): stop every instance first (penstock stop {application_id}). One that "
        "was killed a moment ago counts until its session has ended (session.timeout.ms)"
    )
