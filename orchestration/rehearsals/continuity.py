"""Whether the state of a snapshot comes from the records since an earlier one: a reset and a seed begin anew."""

from __future__ import annotations

import shlex

from penstock.orchestration.rehearsals.processes import RehearsalError
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.coordination.past import read_past
from penstock.runtime.coordination.records import SHAPE, StateShape, newest
from penstock.runtime.coordination.resets import last_reset
from penstock.runtime.coordination.topics import coordination_topic
from penstock.runtime.kafka.topic_admin import TopicAdmin
from penstock.runtime.model.clock import from_ms
from penstock.runtime.model.errors import BrokerUnavailableError, StreamsError
from penstock.runtime.model.offsets import AutoOffsetReset
from penstock.runtime.seeds.journal import journal_group, read_marks
from penstock.runtime.snapshots.catalogue import Snapshot


class NoBeginningError(RehearsalError):
    """The state with which a span begins is not known: there is nothing to audit yet."""


def check_continuous(config: StreamsConfig, topics: TopicAdmin, first: Snapshot | None, last: Snapshot, notes: list[str]) -> None:
    """Raise NoBeginningError if the state of `last` does not come from that of `first` (None: none) and the records since then. What cannot
    be asked is a note. Raises BrokerUnavailableError."""
    name = config.application_id
    later = (
        f"An audit can begin with a snapshot that is taken now (penstock snapshot take {name}), and compares the state of the one after it"
    )
    try:
        if (reset := last_reset(config, topics)) is not None and reset.at_ms <= last.manifest.at_ms:
            at = f"{from_ms(reset.at_ms):%Y-%m-%d %H:%M:%S} UTC"
            if first is not None and first.manifest.at_ms < reset.at_ms:
                raise NoBeginningError(
                    f"{name} was reset at {at}, after snapshot {first.id}: the state of snapshot {last.id} does not come from it. {later}"
                )
            if first is None and "--to" in shlex.split(reset.options):
                raise NoBeginningError(
                    f"{name} was reset at {at} ({reset.options}), and did not begin with the first records of its topics. {later}"
                )
        if first is None and (seed := _seed(config, topics)) is not None:
            raise NoBeginningError(f"{name} began with the state of seed {seed}, and not with none. {later}")
        if first is None and AutoOffsetReset.of(config.text("auto.offset.reset")) != AutoOffsetReset.earliest():
            notes.append(
                f"auto.offset.reset = {config['auto.offset.reset']}: if the topics had records when {name} began, it has not processed "
                "these, and the audit from their start has"
            )
    except BrokerUnavailableError:
        raise
    except StreamsError as error:
        notes.append(f"whether {name} began with a seed or was reset cannot be asked: {error}")


def _seed(config: StreamsConfig, topics: TopicAdmin) -> str | None:
    """Return the id of the seed whose state was installed. The marks of the installation expire (`offsets.retention.minutes`); the record
    of the state's shape does not, but earlier versions of Penstock wrote no seed to it."""
    if coordination_topic(config.application_id) in topics.describe([coordination_topic(config.application_id)]):
        shape = newest(record for record in read_past(config, SHAPE) if isinstance(record, StateShape))
        if shape is not None and shape.seed:
            return shape.seed
    marked = topics.committed_offsets(journal_group(config.application_id), stable=False)
    facts = topics.describe({partition.topic for partition in marked})
    # An admin client whose last offsets were those of another group cannot be used.
    marks = read_marks(TopicAdmin(config), config.application_id, marked, {name: found.topic_id for name, found in facts.items()})
    return next((mark.seed.partition(":")[0] for mark in marks.values()), None)
