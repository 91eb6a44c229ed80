"""Plan of a seed, derived from the topology alone: the tasks, the task of each key, and the stores with their serdes.

Nothing is declared twice. The factory that creates the topology for the instances creates it here too, on the driver and again on
every executor, and everything follows from it as in the engine: the number of tasks from the partitions of the input, a store's
layout and serdes from its builder, its changelog's name from the application.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.model.errors import StateDirectoryError, TopologyError, WrongPartitionsError
from penstock.runtime.model.ids import NextOffset, TaskId, TopicPartition, changelog_topic
from penstock.runtime.operators.event_time import EMITTED_TIME, OBSERVED_TIME, encoded_time
from penstock.runtime.operators.session import SessionAggregate
from penstock.runtime.operators.sliding import SlidingAggregate
from penstock.runtime.operators.stream_table_join import StreamTableGraceJoin
from penstock.runtime.operators.windowed import WindowAggregate, observed_name
from penstock.runtime.serdes.internal import JoinValuesSerde, SubscriptionSerde
from penstock.runtime.serdes.windowed import window_bytes
from penstock.runtime.stores.base import EngineStore, StateStore, StoreBuilder
from penstock.runtime.stores.layout import LAYOUT_META, encode_layout
from penstock.runtime.stores.segmented import STREAM_TIME, TIME
from penstock.runtime.stores.settings import StoreSettings
from penstock.runtime.stores.suppliers import Builder
from penstock.runtime.topology.catalogue import known_stores
from penstock.runtime.topology.factory import build_topology
from penstock.runtime.topology.internal_topics import plan_partitions, task_count
from penstock.runtime.topology.nodes import SubTopology
from penstock.runtime.topology.topology import Topology

SEEDED_KINDS = ("key_value", "window", "session", "versioned")


@dataclass(frozen=True, eq=False)
class SeedApplication:
    """Application as its instances run it: the factory (`module:function`) and its configuration, including `application.id`. Compared by
    identity: values in a configuration need not be comparable."""

    factory: str
    config: Mapping[str, object]

    @classmethod
    def of(cls, application: str, factory: str, config: Mapping[str, object]) -> SeedApplication:
        """Create it from the configuration of the instances; settings that only a running instance needs may be missing."""
        given = {"bootstrap.servers": "nowhere:9092", **config, "application.id": application}
        return cls(factory, given)

    def topology(self) -> Topology:
        """Create the topology. Raises TopologyError, StreamsConfigError."""
        return build_topology(self.factory).resolved(StreamsConfig(self.config))

    @property
    def id(self) -> str:
        return str(self.config["application.id"])


@dataclass(frozen=True, slots=True)
class StorePlan:
    """A store for which rows are given. `partitions`: the number of tasks that share it."""

    application: SeedApplication
    name: str
    sub_topology: int
    partitions: int

    @property
    def settings(self) -> StoreSettings:
        """All settings of the store's builder."""
        return self.builder.settings

    @property
    def builder(self) -> Builder[EngineStore]:
        builder = _sub_topology_of(self.application, self.name)[1]
        assert isinstance(builder, Builder)  # checked when the plan was made
        return builder

    @property
    def changelog(self) -> str:
        """Topic name that its serdes receive."""
        return changelog_topic(self.application.id, self.name)

    @property
    def window_bytes(self) -> int:
        """Length of the window that follows the partitioning key, if the store's own keys are windowed."""
        return window_bytes(self.settings.key_serde)

    def task(self, partition: int) -> TaskId:
        return TaskId(self.sub_topology, partition)

    def meta(self, store_time: int, observed: int) -> dict[str, bytes]:
        """Return the metadata kept with the entries: the store's layout, its stream time (of starts, ends or versions), and the time
        observed by the nodes that write to it, so that a record that is late for them is also late after the seed. Both in ms, -1 for
        none."""
        meta = {LAYOUT_META: encode_layout(self.settings.layout())}
        if self.settings.times is not None and store_time >= 0:
            meta[STREAM_TIME] = TIME.pack(store_time)
        if observed >= 0 and self.settings.kind in ("window", "session"):
            meta[OBSERVED_TIME] = encoded_time(observed)
            for supplier in self._aggregates():
                meta[observed_name(supplier.part)] = encoded_time(observed)
                if supplier.on_close:  # results closed by then were already emitted: they are history
                    grace = supplier.windows.grace_period_ms if isinstance(supplier, WindowAggregate) else supplier.grace_ms
                    meta[EMITTED_TIME] = encoded_time(observed - grace)
        return meta

    def _aggregates(self) -> list[WindowAggregate | SessionAggregate | SlidingAggregate]:
        part = _sub_topology_of(self.application, self.name)[0]
        users = [node.supplier for node in part.processors if self.name in node.stores]
        return [user for user in users if isinstance(user, WindowAggregate | SessionAggregate | SlidingAggregate)]


@dataclass(frozen=True, slots=True)
class SeedPlan:
    """A seed: the stores by name, the inputs of every task, and the names of the stores for which no rows are given. Those start empty, but
    are in the seed too: a seed without a store of the topology would be refused."""

    application: SeedApplication
    topology_hash: str
    stores: Mapping[str, StorePlan]
    inputs: Mapping[TaskId, Mapping[TopicPartition, NextOffset]]
    left_empty: tuple[str, ...]


def plan_seed(application: SeedApplication, stores: tuple[str, ...], offsets: Mapping[str, Mapping[int, int]]) -> SeedPlan:
    """Return the plan for a seed of these stores. `offsets`: the next offset of every partition of every source topic; it determines the
    number of partitions.

    Raises TopologyError for a store that is unknown or cannot be seeded, WrongPartitionsError for offsets of other topics, or if a
    partition is missing.
    """
    topology = application.topology().matched(tuple(offsets))
    parts = topology.sub_topologies()
    internal = topology.internal_topics()
    partitions = _partitions(topology, offsets)
    planned = plan_partitions(parts, internal, topology.copartition_groups(), partitions)
    known = known_stores(topology)
    found: dict[str, StorePlan] = {}
    for name in stores:
        store = known.get(name)
        if store is None:
            raise TopologyError(f"the topology has no store {name!r}; it has {', '.join(sorted(known)) or 'none'}")
        part = next((part for part in parts if part.id == store.subtopology), None)
        builder = next((each for each in part.stores if each.name == name), None) if part is not None else None
        if part is None or builder is None:
            raise TopologyError(f"store {name} is global: it is filled from its topic, so there is nothing to seed")
        _check_seedable(part, builder, topology, store.topics)
        numbers = {planned[topic] for topic in store.topics if topic in planned}
        if len(numbers) > 1:
            counts = ", ".join(f"{topic} has {planned[topic]}" for topic in store.topics)
            raise WrongPartitionsError(f"store {name}: a key has no one partition, because its topics differ: {counts}")
        found[name] = StorePlan(application, name, part.id, next(iter(numbers), task_count(part, planned)))
    inputs = {
        TaskId(part.id, number): {
            TopicPartition(topic, number): NextOffset(offsets[topic][number])
            for topic in part.source_topics
            if topic in offsets and number in offsets[topic]
        }
        for part in parts
        for number in range(task_count(part, planned))
    }
    empty = {
        builder.name: StorePlan(application, builder.name, part.id, task_count(part, planned))
        for part in parts
        for builder in part.stores
        if builder.name not in found and _is_seedable(part, builder, topology, known[builder.name].topics)
    }
    return SeedPlan(application, topology.hash(), {**found, **empty}, inputs, tuple(sorted(empty)))


def source_topics(topology: Topology) -> frozenset[str]:
    """Return the topics that tasks read and that others write."""
    internal = {topic.name for topic in topology.internal_topics()}
    return frozenset(topic for part in topology.sub_topologies() for topic in part.source_topics) - internal


def _partitions(topology: Topology, offsets: Mapping[str, Mapping[int, int]]) -> dict[str, int]:
    """Return the number of partitions of each source topic."""
    wanted = source_topics(topology)
    for topic in sorted(wanted | set(offsets)):
        if topic not in offsets:
            raise WrongPartitionsError(f"source topic {topic} has no input offsets: from where should the stream continue?")
        if topic not in wanted:
            raise WrongPartitionsError(f"input offsets of {topic}, which no task reads; the source topics are {', '.join(sorted(wanted))}")
        numbers, least = sorted(offsets[topic]), min(offsets[topic].values(), default=-1)
        if numbers != list(range(len(numbers))) or not numbers:
            raise WrongPartitionsError(f"input offsets of {topic} are those of partitions {numbers}: every partition needs one, from 0 on")
        if least < 0:
            raise WrongPartitionsError(f"input offset {least} of {topic}: offsets are next offsets, from 0 on")
    return {topic: len(numbers) for topic, numbers in offsets.items()}


def _is_seedable(part: SubTopology, builder: StoreBuilder[StateStore], topology: Topology, topics: tuple[str, ...]) -> bool:
    try:
        _check_seedable(part, builder, topology, topics)
    except TopologyError:
        return False
    return True


def _check_seedable(part: SubTopology, builder: StoreBuilder[StateStore], topology: Topology, topics: tuple[str, ...]) -> None:
    """Raise TopologyError for a store whose rows a user cannot write, or whose keys are distributed in a way only the application knows."""
    name = builder.name
    if not isinstance(builder, Builder):
        raise TopologyError(f"store {name} is a store of your own: only your code knows its files, so it cannot be seeded")
    settings = builder.settings
    users = [node.supplier for node in part.processors if name in node.stores]
    internal = isinstance(settings.value_serde, SubscriptionSerde | JoinValuesSerde) or any(
        isinstance(user, StreamTableGraceJoin) and user.store_name == name for user in users
    )
    layout = settings.layout()
    if layout.kind not in SEEDED_KINDS or layout.duplicates or settings.max_entries is not None or internal:
        raise TopologyError(
            f"store {name} cannot be seeded: it holds what waits for a join or a window's end, or the last entries used. "
            f"Stores that can be: {', '.join(SEEDED_KINDS)}"
        )
    source = part.source_changelogs.get(name)
    if source is not None:
        raise TopologyError(f"store {name} is a copy of topic {source}, from which it is restored: there is nothing to seed")
    for other in topology.sub_topologies():
        for sink in other.sinks:
            if sink.topic in topics and sink.partitioner is not None:
                raise TopologyError(
                    f"store {name} cannot be seeded: sink {sink.name} spreads its keys over the tasks by a partitioner of its own"
                )


@lru_cache(maxsize=16)
def _sub_topology_of(application: SeedApplication, store: str) -> tuple[SubTopology, StoreBuilder[StateStore]]:
    """Return the sub-topology that has the store, and the store's builder; computed once per application."""
    for part in application.topology().sub_topologies():
        for builder in part.stores:
            if builder.name == store:
                return part, builder
    raise StateDirectoryError(f"{application.factory} makes no store {store} here: the executors run another version of the program")
