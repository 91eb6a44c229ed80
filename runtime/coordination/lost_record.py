"""Detection of state whose record is lost, because the coordination topic was deleted while no instance ran.

The members' group distinguishes such an application from a new one: it has a committed offset of the guard topic as soon as a leader has
assigned tasks, and by then the topology is recorded on the coordination topic. (An application migrated from Kafka Streams has changelogs
and offsets, but none of that group.) The broker keeps a group's offsets for `offsets.retention.minutes` after its last member has left, as
it keeps the offsets of the inputs, without which no state is continued.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec

from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.coordination.group import members_group
from penstock.runtime.coordination.resets import last_reset
from penstock.runtime.coordination.topics import coordination_topic, guard_topic
from penstock.runtime.coordination.unread_records import with_records
from penstock.runtime.kafka.topic_admin import TopicAdmin
from penstock.runtime.model.errors import BrokerUnavailableError, TopologyError
from penstock.runtime.model.ids import NextOffset, TopicPartition
from penstock.runtime.topology.shape import TopologyShape

ACCEPTED = "unrecorded.state.accepted"
"""Key by which an operator confirms that a program fits the state."""
_REWRITE_SECONDS = 60.0
_POLL_SECONDS = 0.5
Found = TypeVar("Found")


def awaited_record(now: TopologyShape, config: StreamsConfig, topics: TopicAdmin, read: Callable[[], Found | None]) -> Found | None:
    """Return the record that `read` returns; None for a new application. Live members write a lost record again: the call waits for them.
    Raises TopologyError if the record is lost; BrokerUnavailableError, StreamsError."""
    if (found := read()) is not None:
        return found
    state = _unrecorded_state(config, topics)
    if not state or config[ACCEPTED] == digest_of(now, state):
        return None
    until = time.monotonic() + _REWRITE_SECONDS
    while topics.members(members_group(config.application_id)) and time.monotonic() < until:
        if (found := read()) is not None:
            return found
        if topics.give_up():
            raise BrokerUnavailableError(f"{coordination_topic(config.application_id)}: the wait for its records was given up")
        time.sleep(_POLL_SECONDS)
    if (found := read()) is not None:
        return found
    raise TopologyError(_refusal(config.application_id, sorted(state), digest_of(now, state)))


def digest_of(shape: TopologyShape, state: Mapping[str, int]) -> str:
    """Return a digest of one program's shape on one state. Another program has another one, and so has this one once another has run."""
    return hashlib.sha256(msgspec.json.encode((shape, sorted(state.items())))).hexdigest()[:16]


def _unrecorded_state(config: StreamsConfig, topics: TopicAdmin) -> dict[str, int]:
    """Return the changelogs with records of an application that has run before, and its repartition topics with unprocessed records, each
    with the sum of its ends; empty if it has not run, or was reset since."""
    application, guard = config.application_id, guard_topic(config.application_id)
    names = {name for name in topics.names() if name.startswith(f"{application}-") and name.endswith(("-changelog", "-repartition"))}
    if not names or guard not in topics.describe([guard]):
        return {}
    partition = TopicPartition(guard, 0)
    members = TopicAdmin(config, topics.give_up)  # an admin asks for the offsets of one group
    if partition not in members.last_committed(members_group(application), [partition]) or last_reset(config, topics) is not None:
        return {}
    logs = [TopicPartition(name, number) for name, found in topics.describe(names).items() for number in range(found.partitions)]
    starts, ends = topics.start_offsets(logs), topics.high_watermarks(logs)
    holding = {log for log in logs if ends[log] > starts[log]}
    on_their_way = {log for log in holding if log.topic.endswith("-repartition")}
    if on_their_way:
        committed = topics.last_committed(application, on_their_way)
        begins = {log: NextOffset(committed[log].offset) if log in committed else starts[log] for log in on_their_way}
        unread = {log: begin for log, begin in begins.items() if begin < ends[log]}
        holding -= on_their_way - (with_records(config, unread, topics.give_up) if unread else set())
    with_state = sorted({log.topic for log in holding})
    return {topic: sum(ends[log] for log in logs if log.topic == topic) for topic in with_state}


def _refusal(application: str, state: list[str], digest: str) -> str:
    topic = coordination_topic(application)
    return (
        f"application {application} has run, and its state is in {', '.join(state)}, but {topic} says nothing about it: the topic was "
        "deleted while no instance ran, or its records were. So it is not known whether this program can read the state. If it is the "
        f"program that ran last, say so with {ACCEPTED} = {digest} in its configuration, which holds for no other program, and only "
        "as long as the state does not change. Else start the program that ran last in this way first; or begin without state: "
        f"penstock reset {application}"
    )
