"""Does a topology fit the state that the last one has left? Asked at each start, before anything is made or opened.

Members that run are protected by `compatibility.py`. Here nobody runs: the program was changed while all was stopped. The coordination
topic knows the topology that ran last; the brokers and the disk know what is left of its state. Only what is left counts, so whoever resets
the application, or deletes the changelog of a store that shall be no more, is let in.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping

from runtime.changelog.log_reader import LogReader
from runtime.config import StreamsConfig
from runtime.coordination.records import TOPOLOGY, Record, TopologyText, decode
from runtime.errors import BrokerUnavailableError, TopologyError
from runtime.ids import Partition, changelog_topic
from runtime.stores.directory import StateDirectory
from runtime.topics import ANSWER_SECONDS, TopicAdmin, TopicDescription, coordination_topic
from runtime.topology.shape import StoreShape, TopologyShape, left_out, misfits, shape_of
from runtime.topology.topology import Topology

logger = logging.getLogger(__name__)


def refuse_misfit(topology: Topology, config: StreamsConfig, topics: TopicAdmin, directory: StateDirectory) -> None:
    """Raises TopologyError that names what has changed and the ways out; BrokerUnavailableError, StreamsError."""
    application = config.application_id
    if coordination_topic(application) not in topics.describe([coordination_topic(application)]):
        return
    former, now = last_shape(config), shape_of(topology, application)
    if former is None or former == now:
        return
    wanted = {*(store.changelog for store in former.stores if store.changelog), *former.repartitions}
    found = topics.describe(wanted)
    offsets = _Offsets(application, topics, found)
    here = {store.name: store for store in now.stores}
    kept = [store.name for store in former.stores if _is_left(store, here.get(store.name), found, offsets, directory)]
    unread = {topic: left for topic in former.repartitions if topic in found and (left := offsets.unread(topic))}
    told = misfits(former, now, kept, unread)
    if told:
        raise TopologyError(_refusal(told, config, sorted({*found} & {*_own(former)})))
    for name in left_out(former, now, kept):
        logger.warning("store %s is not part of the topology any more; what it held is left: %s", name, changelog_topic(application, name))
    again = topics.describe({store.changelog for store in now.stores if store.changelog and not store.of_source} - wanted)
    for name in sorted(name for name, topic in again.items() if offsets.holds_something(topic)):
        logger.warning(
            "the topology that ran last had no store with changelog %s; it goes on from what that holds, without what came since", name
        )


def last_shape(config: StreamsConfig) -> TopologyShape | None:
    """The shape of the topology that ran last; None if none is known, as of an application of an earlier version."""
    shape = None
    for record in _records(config):
        if isinstance(record, TopologyText):
            shape = record.shape
    return shape


def _records(config: StreamsConfig) -> Iterator[Record | None]:
    partition, until = Partition(coordination_topic(config.application_id), 0), time.monotonic() + ANSWER_SECONDS
    reader = LogReader({**config.consumer_properties("restore"), "fetch.wait.max.ms": 10}, "former topology")
    try:
        reader.assign(partition, None)
        while True:
            poll = reader.poll(1.0)
            for message in poll.runs.get(partition, ()):
                if (message.key() or b"").startswith(TOPOLOGY.encode()):
                    yield decode(message.key(), message.value())
            if partition in poll.ends:
                return
            if time.monotonic() > until:
                raise BrokerUnavailableError(f"bootstrap.servers = {config['bootstrap.servers']}: {partition} cannot be read")
    finally:
        reader.close()


class _Offsets:
    """How far the application has read topics."""

    def __init__(self, application_id: str, topics: TopicAdmin, found: Mapping[str, TopicDescription]) -> None:
        self._application_id = application_id
        self._topics = topics
        self._found = found

    def committed(self, topic: str) -> dict[Partition, int]:
        partitions = [Partition(topic, number) for number in range(self._found[topic].partitions)]
        return {partition: at.offset for partition, at in self._topics.last_committed(self._application_id, partitions).items()}

    def holds_something(self, topic: TopicDescription) -> bool:
        partitions = [Partition(topic.name, number) for number in range(topic.partitions)]
        starts, ends = self._topics.start_offsets(partitions), self._topics.high_watermarks(partitions)
        return any(ends[partition] > starts[partition] for partition in partitions)

    def unread(self, topic: str) -> int:
        """Offsets that are still to be processed."""
        committed = self.committed(topic)
        partitions = [Partition(topic, number) for number in range(self._found[topic].partitions)]
        starts, ends = self._topics.start_offsets(partitions), self._topics.end_offsets(partitions)
        # What was committed last may be a marker or two away from the end.
        left = (ends[partition] - max(committed.get(partition, 0), starts[partition]) for partition in partitions)
        return sum(each for each in left if each > 1)


def _is_left(
    store: StoreShape, now: StoreShape | None, found: Mapping[str, TopicDescription], offsets: _Offsets, directory: StateDirectory
) -> bool:
    """Whether there is something of a store's state. A table that its topic restores has none, unless it shall have a changelog now."""
    if store.of_source:
        shall_be_logged = now is not None and not now.of_source
        return shall_be_logged and store.changelog in found and any(offsets.committed(store.changelog).values())
    if store.changelog:
        return store.changelog in found
    tasks = (task for task in directory.tasks_on_disk() if task.subtopology == store.sub_topology)
    return any((directory.path / str(task) / "rocksdb" / store.name).exists() for task in tasks)


def _own(former: TopologyShape) -> Iterator[str]:
    """The former topology's internal topics."""
    yield from (store.changelog for store in former.stores if store.changelog and not store.of_source)
    yield from former.repartitions


def _refusal(told: list[str], config: StreamsConfig, internal: list[str]) -> str:
    servers, application, changes = config["bootstrap.servers"], config.application_id, "".join(f"\n  {text}" for text in told)
    delete = f" kafka-topics --bootstrap-server {servers} --delete --topic '{'|'.join(internal)}';" if internal else ""
    return (
        f"the topology does not fit the state that application {application} has:{changes}\n"
        "Give stores and repartition topics the names that they had (Materialized, Grouped, StreamJoined, Repartitioned) and add what is "
        "new behind what was there; or give the new topology an application.id of its own; or begin anew: stop every instance; delete the "
        f"local state (KafkaStreams.clean_up());{delete} kafka-consumer-groups --bootstrap-server {servers} --group {application} "
        "--all-topics --reset-offsets --to-earliest --execute. Of a store that shall begin anew or be no more: delete its changelog alone"
    )
