"""What the brokers have of an application that is to be seeded: is it the ground for a seed, and for which tasks?

    its changelogs                         its committed offsets       the seed
    all new, or begun by this very seed    none                        is installed, all of it
    all new, or some of them               there                       refused; with `reset`, what is lost is put back (below)
    written to by somebody else            none                        refused: that state is not the seed's
    written by this very seed, whole       there                       was installed before: nothing is done

*Put back*: a sub-topology whose changelogs were lost, all of them, gets its state and its input offsets from the seed, as one. One whose
changelogs are there stays where it is. A changelog counts as lost only when its topic was made anew: copies of the old one on other
machines are thrown away then, because the topic has another id; behind one that was only emptied they would be taken for whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from runtime.coordination.group import members_group
from runtime.errors import SeedRefusedError
from runtime.ids import NextOffset, Partition
from runtime.seeds.journal import Mark, Stage
from runtime.seeds.plan import SeededTask
from runtime.topics import TopicAdmin


class _Condition(Enum):
    """Of the changelogs of a sub-topology."""

    NONE = "none"
    NEW = "new"
    DONE = "done"
    KEPT = "kept"
    MIXED = "mixed"


@dataclass(frozen=True, slots=True)
class Ground:
    """What was found. `ends` are high watermarks of changelogs; `marks` those of this seed's installation; `topic_ids` of changelogs."""

    application_id: str
    committed: Mapping[Partition, NextOffset]
    ends: Mapping[Partition, NextOffset]
    marks: Mapping[Partition, Mark]
    topic_ids: Mapping[str, str]

    def is_installed(self, tasks: Sequence[SeededTask]) -> bool:
        """True if this seed was installed before, and nothing was lost since."""
        found = set(self._conditions(tasks).values())
        return bool(self.committed) and _Condition.NEW not in found and (_Condition.DONE in found or self._inputs_done(tasks))

    def to_install(self, tasks: Sequence[SeededTask], reset: bool) -> list[SeededTask]:
        """The tasks that the seed is to be installed for. Raises SeedRefusedError."""
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
                f"no changelog of application {self.application_id} is lost: there is nothing to put back. To begin anew from the seed, "
                f"{self._way_to_begin_anew(tasks)}"
            )
        return [task for part in sorted(new) for task in by_part[part]]

    def _conditions(self, tasks: Sequence[SeededTask]) -> dict[int, _Condition]:
        """By sub-topology."""
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

    def _written_topics(self, tasks: Sequence[SeededTask]) -> dict[str, list[Partition]]:
        """Changelog partitions by topic, of stores that had something in them."""
        topics: dict[str, list[Partition]] = {}
        written: set[str] = set()
        for task in tasks:
            for store in task.stores:
                if store.changelog is not None:
                    topics.setdefault(store.changelog.topic, []).append(store.changelog)
                    at = store.manifest.changelog
                    if at is None or at.next_offset > 0:
                        written.add(store.changelog.topic)
        return {topic: partitions for topic, partitions in topics.items() if topic in written} or topics

    def _is_new(self, partition: Partition) -> bool:
        """True if nobody has ever written to it, or this seed's installation, which was not finished."""
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
                f"installation was not finished). Either finish that one, or {self._way_to_begin_anew(tasks)}"
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
        return text + (
            "Give the application another application.id, or, to begin anew from the seed: penstock stop; delete its changelogs and local "
            "state; kafka-consumer-groups --delete-offsets"
        )

    def _mixed(self, tasks: Sequence[SeededTask]) -> str:
        kept = sorted({partition.topic for task in tasks for partition in task.changelogs if not self._is_new(partition)})
        return (
            "some changelogs of a sub-topology are lost and others are there, as of another moment than the seed's: state that belongs "
            f"together can be put back only as a whole. Delete these too, then start again: {', '.join(kept)}"
        )

    def _way_to_begin_anew(self, tasks: Sequence[SeededTask]) -> str:
        topics = "|".join(sorted({partition.topic for task in tasks for partition in task.changelogs}))
        return f"delete them (kafka-topics --delete --topic '{topics}') and the local state (KafkaStreams.clean_up()), then start again"


def _by_part(tasks: Sequence[SeededTask]) -> dict[int, list[SeededTask]]:
    found: dict[int, list[SeededTask]] = {}
    for task in tasks:
        found.setdefault(task.task.subtopology, []).append(task)
    return found


def refuse_running(topics: TopicAdmin, application_id: str) -> None:
    """Raises SeedRefusedError if an instance of the application runs, on whatever machine."""
    if members := topics.members(members_group(application_id)):
        raise SeedRefusedError(
            f"application {application_id} runs ({', '.join(members)}): stop every instance first (penstock stop). One that was killed a "
            "moment ago counts until its session has ended (session.timeout.ms)"
        )
