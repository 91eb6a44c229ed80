"""Identities that are passed around in the engine: small, ordered, hashable, and impossible to mix up.

`NextOffset` exists because Kafka Streams has two conventions for the offset of a store, *last applied* and *next to read*, and has
mixed them up more than once. Inside Penstock there is one: the next offset to read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple, NewType

NextOffset = NewType("NextOffset", int)
"""The next offset to read of a partition: one more than the last one applied. Never negative."""

_TASK_ID = re.compile(r"(\d+)_(\d+)")


@dataclass(frozen=True, slots=True, order=True)
class TaskId:
    """A sub-topology and one partition of its input. `str()` is Kafka Streams' form, `0_3`; ordered by sub-topology, then partition."""

    subtopology: int
    partition: int

    def __str__(self) -> str:
        return f"{self.subtopology}_{self.partition}"

    @classmethod
    def parse(cls, text: str) -> TaskId:
        """The task that `str()` wrote. Raises ValueError for anything else."""
        match = _TASK_ID.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not a task id: expected <subtopology>_<partition>, for example 0_3")
        return cls(int(match[1]), int(match[2]))


class Partition(NamedTuple):
    """A partition of a topic, as the engine's own key. (confluent-kafka's `TopicPartition` also carries an offset and an error, and
    refuses comparison with any other type; it is used at the public border only.)"""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.number}"


def changelog_topic(application_id: str, store: str) -> str:
    """The changelog of a store, as Kafka Streams names it."""
    return f"{application_id}-{store}-changelog"
