"""Progress of an installation, kept in the transactions that do the work, so that it is always exact.

Each batch commits the number of records written per changelog partition to the group `<application.id>-seed`, which has no members. After a
kill the next attempt continues behind them; records that the killed one had not committed are aborted by the brokers and not counted. The
metadata of each offset names the seed and the topic's id: it is ignored for a topic that was created again.

(Rejected: a file. The disk may be another one at the next attempt, and a file and a transaction cannot be written in one step.)
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

from penstock.runtime.kafka.failures import Meaning, meaning
from penstock.runtime.kafka.topic_admin import TopicAdmin
from penstock.runtime.model.errors import BrokerUnavailableError, SeedRefusedError, StreamsError
from penstock.runtime.model.ids import TopicPartition
from penstock.runtime.model.offsets import OffsetAndMetadata

logger = logging.getLogger(__name__)


class Stage(StrEnum):
    """Stage of a partition."""

    PART = "part"
    WHOLE = "whole"
    DONE = "done"
    """The input offsets are committed too."""


class Mark(NamedTuple):
    """Mark of a partition: the seed, the topic's id, and the number of records written."""

    seed: str
    topic_id: str
    records: int
    stage: Stage

    def encoded(self) -> OffsetAndMetadata:
        return OffsetAndMetadata(self.records, f"{self.seed} {self.topic_id} {self.stage.value}")


def journal_group(application_id: str) -> str:
    """Return the group that holds the marks."""
    return f"{application_id}-seed"


def refuse_unfinished(topics: TopicAdmin, application_id: str, changelogs: Iterable[TopicPartition], topic_ids: Mapping[str, str]) -> None:
    """Raise SeedRefusedError if an installation has begun and not finished, since state and input offsets do not match then. Called at each
    start, before anything is opened. `topics` must be used for no other group.

    Raises BrokerUnavailableError if no broker knows now (the coordinator hangs, or moves): without the answer, tasks to which the
    installation has not come yet would begin. Without the right to ask, the start continues; the checks at the opening of tasks apply."""
    try:
        marks = read_marks(topics, application_id, changelogs, topic_ids)
    except BrokerUnavailableError:
        raise
    except StreamsError as error:
        if Meaning.COORDINATOR_NOT_READY in meaning(error.__cause__):
            raise BrokerUnavailableError(str(error)) from error
        logger.warning("whether a seed was being installed cannot be asked: %s", error)
        return
    unfinished = sorted({mark.seed.partition(":")[0] for mark in marks.values() if mark.stage is not Stage.DONE})
    if unfinished:
        raise SeedRefusedError(
            f"seed {', '.join(unfinished)} was being installed for application {application_id}, and has not ended: start with "
            f"--seed again, and it continues from there; or begin again: penstock reset {application_id}"
        )


def read_marks(
    topics: TopicAdmin, application_id: str, partitions: Iterable[TopicPartition], topic_ids: Mapping[str, str]
) -> dict[TopicPartition, Mark]:
    """Return the marks of these partitions that belong to the topics' current ids. `topics` must be used for no other group. Raises
    BrokerUnavailableError, StreamsError."""
    wanted = list(partitions)
    found = topics.last_committed(journal_group(application_id), wanted) if wanted else {}
    marks: dict[TopicPartition, Mark] = {}
    for partition, at in found.items():
        seed, _, rest = at.metadata.partition(" ")
        topic_id, _, stage = rest.partition(" ")
        if topic_id == topic_ids.get(partition.topic) and stage in list(Stage):
            marks[partition] = Mark(seed, topic_id, at.offset, Stage(stage))
    return marks
