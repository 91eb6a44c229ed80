"""How far an installation has come, kept where it cannot lie: in the transactions that do the work.

The group `<application.id>-seed` is committed to, with each batch, how many records of each changelog partition are written. Nobody is a
member of it. After a kill the next attempt goes on behind them; what the killed one had not committed is aborted by the brokers, and is not
counted. The text of each offset says which seed and which topic it is about: for a topic that was made anew it means nothing.

(Rejected: a file. The disk may be another one at the next attempt, and a file and a transaction cannot be written in one step.)
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

from runtime.commit.metadata import OffsetAndMetadata
from runtime.errors import SeedRefusedError, StreamsError
from runtime.ids import Partition
from runtime.topics import TopicAdmin

logger = logging.getLogger(__name__)


class Stage(StrEnum):
    """How far a partition is."""

    PART = "part"
    WHOLE = "whole"
    DONE = "done"
    """The input offsets are committed too."""


class Mark(NamedTuple):
    """What was noted for a partition: of which seed, in the topic of which id, how many records."""

    seed: str
    topic_id: str
    records: int
    stage: Stage

    def encoded(self) -> OffsetAndMetadata:
        return OffsetAndMetadata(self.records, f"{self.seed} {self.topic_id} {self.stage.value}")


def journal_group(application_id: str) -> str:
    """The group that holds the marks."""
    return f"{application_id}-seed"


def refuse_unfinished(topics: TopicAdmin, application_id: str, changelogs: Iterable[Partition], topic_ids: Mapping[str, str]) -> None:
    """Asked at each start, before anything is opened. Raises SeedRefusedError where an installation has begun and not come to its end:
    state and input offsets do not belong together then. `topics` is asked for no other group.

    Where the brokers cannot tell (a coordinator that has just moved), it is not known to be so, and what tasks find when they are opened
    has to do."""
    try:
        marks = read_marks(topics, application_id, changelogs, topic_ids)
    except StreamsError as error:
        logger.warning("whether a seed was being installed cannot be asked: %s", error)
        return
    unfinished = sorted({mark.seed.partition(":")[0] for mark in marks.values() if mark.stage is not Stage.DONE})
    if unfinished:
        raise SeedRefusedError(
            f"seed {', '.join(unfinished)} was being installed for application {application_id}, and has not come to its end: start with "
            "--seed again, and it goes on from there; or delete the changelogs and the local state"
        )


def read_marks(
    topics: TopicAdmin, application_id: str, partitions: Iterable[Partition], topic_ids: Mapping[str, str]
) -> dict[Partition, Mark]:
    """The marks of these partitions, of the topics that have these ids now. `topics` is asked for no other group. Raises
    BrokerUnavailableError, StreamsError."""
    wanted = list(partitions)
    found = topics.last_committed(journal_group(application_id), wanted) if wanted else {}
    marks: dict[Partition, Mark] = {}
    for partition, at in found.items():
        seed, _, rest = at.metadata.partition(" ")
        topic_id, _, stage = rest.partition(" ")
        if topic_id == topic_ids.get(partition.topic) and stage in list(Stage):
            marks[partition] = Mark(seed, topic_id, at.offset, Stage(stage))
    return marks
