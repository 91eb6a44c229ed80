"""Check of a topology against the state of earlier runs, at each start, before anything is created or opened.

`compatibility.py` protects running members; this module covers a program that was changed while all instances were stopped. The
coordination topic has the shape of the state; the brokers and the disk show how much of it is left. Only existing state counts, so a start
after a reset, or after the changelog of a dropped store was deleted, is accepted.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.coordination.lost_record import awaited_record
from penstock.runtime.coordination.records import SHAPE, TOPOLOGY, Record, StateShape, Tombstone, TopologyText, decode, newest
from penstock.runtime.coordination.state_shape import Acceptance
from penstock.runtime.coordination.stores_left_behind import refuse_left_behind
from penstock.runtime.coordination.topics import coordination_topic
from penstock.runtime.coordination.unread_records import with_records
from penstock.runtime.kafka.connection import Connection
from penstock.runtime.kafka.log_reader import LogReader
from penstock.runtime.kafka.topic_admin import ANSWER_SECONDS, TopicAdmin, TopicDescription
from penstock.runtime.model.errors import BrokerUnavailableError, TopologyError, WrongPartitionsError
from penstock.runtime.model.ids import NextOffset, TopicPartition, changelog_topic
from penstock.runtime.stores.directory import StateDirectory
from penstock.runtime.topology.input_growth import remedies
from penstock.runtime.topology.shape import StoreShape, TopologyShape, accepted, has_formats, left_out, misfits, shape_of
from penstock.runtime.topology.topology import Topology

logger = logging.getLogger(__name__)


def refuse_misfit(topology: Topology, config: StreamsConfig, topics: TopicAdmin, directory: StateDirectory) -> Acceptance:
    """Return how the topology fits the state. Raises TopologyError that names the changes and the remedies; BrokerUnavailableError,
    StreamsError."""
    application = config.application_id
    now = shape_of(topology, application)
    recorded = awaited_record(now, config, topics, partial(standing_record, config, topics))
    if recorded is None:
        return Acceptance(application, None, now)
    previous, last = recorded
    refuse_left_behind(None if last is None else last.shape, now, config, topics)
    if last is not None and last.shape is not None:
        refuse_moved_keys(last, last.shape, topology, config, topics, directory)
    if previous is None or previous == now:
        return Acceptance(application, previous, now)
    wanted = {*(store.changelog for store in previous.stores if store.changelog), *previous.repartitions}
    found = topics.describe(wanted)
    offsets = _Offsets(config, topics, found)
    here = {store.name: store for store in now.stores}
    kept = [store.name for store in previous.stores if _is_left(store, here.get(store.name), found, offsets, directory)]
    unread = {topic: left for topic in previous.repartitions if topic in found and (left := offsets.unread(topic))}
    problems = misfits(previous, now, kept, unread)
    if problems:
        raise TopologyError(_refusal(problems, config, sorted({*found} & {*_own(previous)})))
    for text in accepted(previous, now, kept):
        logger.warning("%s", text)
    for name in left_out(previous, now, kept):
        logger.warning("store %s is not part of the topology any more; what it held is left: %s", name, changelog_topic(application, name))
    return Acceptance(application, previous, now, kept, unread)


def standing_record(config: StreamsConfig, topics: TopicAdmin) -> tuple[TopologyShape | None, TopologyText | None] | None:
    """Return `recorded_shapes`, or None if nothing is recorded."""
    topic = coordination_topic(config.application_id)
    if topic not in topics.describe([topic]):
        return None
    previous, last = recorded_shapes(config, topics.give_up)
    return None if previous is None and last is None else (previous, last)


def recorded_shapes(config: StreamsConfig, give_up: Callable[[], bool] = lambda: False) -> tuple[TopologyShape | None, TopologyText | None]:
    """Return the recorded shape of the state and the topology that was started last, each None if unknown. For an application that only
    earlier versions of Penstock ran, the shape is that of the last topology, without formats: bytes are then accepted as they are."""
    shapes: dict[str, StateShape] = {}
    earlier: TopologyShape | None = None
    last: TopologyText | None = None
    for record in records(config, TOPOLOGY, SHAPE, give_up=give_up):
        match record:
            case StateShape():
                shapes.setdefault(record.key.decode(), record)
            case Tombstone(kind=kind, id=key) if kind == SHAPE:
                shapes.pop(f"{SHAPE}/{key}", None)
            case Tombstone():  # by a reset, of all topologies
                last = earlier = None
            case TopologyText(shape=shape):
                last = record
                earlier = shape if shape is not None and not has_formats(shape) else earlier
    recorded = newest(shapes.values())
    return earlier if recorded is None else recorded.shape, last


def refuse_moved_keys(
    last: TopologyText, previous: TopologyShape, topology: Topology, config: StreamsConfig, topics: TopicAdmin, directory: StateDirectory
) -> None:
    """Raise WrongPartitionsError if an input topic of a sub-topology with state has another number of partitions now: keys would be looked
    up in the wrong task. (The partitions of changelogs show that only for the widest input with a changelog.)"""
    read = {topic for part in topology.sub_topologies() for topic in part.source_topics}
    counts = topics.partition_counts(last.inputs.keys() & read)
    for topic, count in sorted(counts.items()):
        left = _left_of(topic, previous, config, topics, directory) if count != last.inputs[topic] else []
        if left:
            raise WrongPartitionsError(
                f"input topic {topic} has {count} partitions, and had {last.inputs[topic]} when {config.application_id} ran last. "
                f"Its state is kept by partition (store {', '.join(left)}): existing keys would move to other partitions. "
                f"{remedies(topic, last.inputs[topic], config.application_id)}"
            )


def _left_of(topic: str, previous: TopologyShape, config: StreamsConfig, topics: TopicAdmin, directory: StateDirectory) -> list[str]:
    """Return the stores with state of the sub-topologies that read a topic."""
    readers = {part for part, sources in previous.sources.items() if topic in sources}
    stores = [store for store in previous.stores if store.sub_topology in readers]
    found = topics.describe({topic, *(store.changelog for store in stores if store.changelog)})
    offsets = _Offsets(config, topics, found)
    processed = any(offsets.committed(topic).values())
    return [store.name for store in stores if (processed if store.of_source else _is_left(store, store, found, offsets, directory))]


def records(config: StreamsConfig, *kinds: str, give_up: Callable[[], bool] = lambda: False) -> Iterator[Record | None]:
    """Yield the records of these kinds on the coordination topic, which must exist. Raises BrokerUnavailableError (also if `give_up` ends
    the wait for one), StreamsError."""
    partition, until = TopicPartition(coordination_topic(config.application_id), 0), time.monotonic() + ANSWER_SECONDS
    prefixes = tuple(f"{kind}/".encode() for kind in kinds)
    reader = LogReader({**config.consumer_properties("restore"), "fetch.wait.max.ms": 10}, "previous topology")
    try:
        reader.assign(partition, None)
        while True:
            poll = reader.poll(1.0)
            for message in poll.runs.get(partition, ()):
                if (message.key() or b"").startswith(prefixes):
                    yield decode(message.key(), message.value())
            if partition in poll.ends:
                return
            if time.monotonic() > until or give_up():
                raise BrokerUnavailableError(f"bootstrap.servers = {config['bootstrap.servers']}: {partition} cannot be read")
    finally:
        reader.close()


class _Offsets:
    """Committed and unread offsets of the application."""

    def __init__(self, config: StreamsConfig, topics: TopicAdmin, found: Mapping[str, TopicDescription]) -> None:
        self._config = config
        self._topics = topics
        self._found = found

    def committed(self, topic: str) -> dict[TopicPartition, int]:
        partitions = [TopicPartition(topic, number) for number in range(self._found[topic].partitions)]
        return {partition: at.offset for partition, at in self._topics.last_committed(self._config.application_id, partitions).items()}

    def unread(self, topic: str) -> int:
        """Return the number of unprocessed offsets, counting only partitions that hold a record there."""
        committed = self.committed(topic)
        partitions = [TopicPartition(topic, number) for number in range(self._found[topic].partitions)]
        starts, ends = self._topics.start_offsets(partitions), self._topics.end_offsets(partitions)
        begins = {partition: NextOffset(max(committed.get(partition, 0), starts[partition])) for partition in partitions}
        left = {partition: begin for partition, begin in begins.items() if begin < ends[partition]}
        holding = with_records(self._config, left, self._topics.give_up) if left else set()
        return sum(ends[partition] - left[partition] for partition in holding)


def _is_left(
    store: StoreShape, now: StoreShape | None, found: Mapping[str, TopicDescription], offsets: _Offsets, directory: StateDirectory
) -> bool:
    """Return True if state of a store exists. A table restored from its source topic has none, unless it gets a changelog now."""
    if store.of_source:
        shall_be_logged = now is not None and not now.of_source
        return shall_be_logged and store.changelog in found and any(offsets.committed(store.changelog).values())
    if store.changelog:
        return store.changelog in found
    tasks = (task for task in directory.tasks_on_disk() if task.subtopology == store.sub_topology)
    return any((directory.path / str(task) / "rocksdb" / store.name).exists() for task in tasks)


def _own(previous: TopologyShape) -> Iterator[str]:
    """Yield the previous topology's internal topics."""
    yield from (store.changelog for store in previous.stores if store.changelog and not store.of_source)
    yield from previous.repartitions


def _refusal(problems: list[str], config: StreamsConfig, internal: list[str]) -> str:
    tool, application = Connection.of(config.admin_properties()).tool("kafka-topics"), config.application_id
    named = [topic for topic in internal if any(_is_of(topic, text, application) for text in problems)]
    which = named[0] if len(named) == 1 else f"…, of {', '.join(named) or 'those of the stores above'}"
    delete = f"{tool} --delete --topic {which}"
    return (
        f"the topology does not fit the state that application {application} has:" + "".join(f"\n  {text}" for text in problems) + "\n"
        "Ways on (`penstock docs changing`):\n"
        "  take the change back, or make it fit: stores and repartition topics keep their names (Materialized, Grouped, StreamJoined, "
        "Repartitioned), a new field has a default, what is new comes behind what was there\n"
        f"  begin one store without what it holds: stop every instance (penstock stop {application}), delete its changelog ({delete}), "
        "and start\n"
        "  keep the state as it is: give the new topology an application.id of its own, with a seed (`penstock docs seeding`)\n"
        f"  begin without any state: penstock reset {application}"
    )


def _is_of(topic: str, text: str, application: str) -> bool:
    """Return True if a problem concerns the store or repartition topic of an internal topic."""
    store = topic.removeprefix(f"{application}-").removesuffix("-changelog")
    return re.match(rf"(store {re.escape(store)}|repartition topic {re.escape(topic)})[ :]", text) is not None
