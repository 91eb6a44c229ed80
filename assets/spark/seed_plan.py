"""What a seed has to hold, by the topology alone: the tasks, which of them a key belongs to, and the stores with their serdes.

Nothing is declared a second time. The factory that makes the topology for the instances makes it here too, on the driver and again on
every executor, and everything follows from it as it does in the engine: the number of tasks from the partitions of the input, a store's
layout and serdes from its builder, its changelog's name from the application.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from runtime.config import StreamsConfig
from runtime.errors import StateDirectoryError, TopologyError, WrongPartitionsError
from runtime.ids import NextOffset, Partition, TaskId, changelog_topic
from runtime.operators.grace_join import StreamTableGraceJoin
from runtime.operators.kept_time import EMITTED_TIME, OBSERVED_TIME, time_as_kept
from runtime.operators.session import SessionAggregate
from runtime.operators.sliding import SlidingAggregate
from runtime.operators.windowed import WindowAggregate, observed_name
from runtime.serdes.join_sides import JoinValuesSerde
from runtime.serdes.subscriptions import SubscriptionSerde
from runtime.serdes.windowed import window_bytes
from runtime.stores.base import EngineStore, StateStore, StoreBuilder
from runtime.stores.layout import KEPT_LAYOUT, encode_layout
from runtime.stores.segmented import STREAM_TIME, TIME
from runtime.stores.settings import StoreSettings
from runtime.stores.suppliers import Builder
from runtime.topology.catalogue import known_stores
from runtime.topology.factory import build_topology
from runtime.topology.internal_topics import plan_partitions, task_count
from runtime.topology.subtopologies import SubTopology
from runtime.topology.topology import Topology

SEEDED_KINDS = ("key_value", "window", "session", "versioned")


@dataclass(frozen=True, eq=False)
class SeedApplication:
    """An application as its instances run it: the factory (`module:function`) and its configuration, `application.id` among it. Each is
    equal to itself alone: what stands in a configuration need not be comparable."""

    factory: str
    config: Mapping[str, object]

    @classmethod
    def of(cls, application: str, factory: str, config: Mapping[str, object]) -> SeedApplication:
        """The configuration as the instances have it; what only a running one needs may be left out."""
        given = {"bootstrap.servers": "nowhere:9092", **config, "application.id": application}
        return cls(factory, given)

    def topology(self) -> Topology:
        """The topology as it runs. Raises TopologyError, StreamsConfigError."""
        return build_topology(self.factory).resolved(StreamsConfig(self.config))

    @property
    def id(self) -> str:
        return str(self.config["application.id"])


@dataclass(frozen=True, slots=True)
class StorePlan:
    """A store that rows are given for. `partitions`: how many tasks it is spread over."""

    application: SeedApplication
    name: str
    sub_topology: int
    partitions: int

    @property
    def settings(self) -> StoreSettings:
        """All that its builder was told."""
        return self.builder.settings

    @property
    def builder(self) -> Builder[EngineStore]:
        builder = _sub_topology_of(self.application, self.name)[1]
        assert isinstance(builder, Builder)  # it was looked at when the plan was made
        return builder

    @property
    def changelog(self) -> str:
        """The topic for which its serdes write."""
        return changelog_topic(self.application.id, self.name)

    @property
    def window_bytes(self) -> int:
        """Bytes of a window behind the key that decides on the partition, where the store's own keys are windowed."""
        return window_bytes(self.settings.key_serde)

    def task(self, partition: int) -> TaskId:
        return TaskId(self.sub_topology, partition)

    def meta(self, store_time: int, observed: int) -> dict[str, bytes]:
        """What the store keeps beside its entries: its layout, its stream time (of starts, ends or versions), and how far the nodes that
        fill it have come in time (`observed`), so that what is late for them is late after the seed too. Both times in ms, -1 for none."""
        meta = {KEPT_LAYOUT: encode_layout(self.settings.layout())}
        if self.settings.times is not None and store_time >= 0:
            meta[STREAM_TIME] = TIME.pack(store_time)
        if observed >= 0 and self.settings.kind in ("window", "session"):
            meta[OBSERVED_TIME] = time_as_kept(observed)
            for supplier in self._aggregates():
                meta[observed_name(supplier.part)] = time_as_kept(observed)
                if supplier.on_close:  # what was closed by then is out: it is history
                    grace = supplier.windows.grace_period_ms if isinstance(supplier, WindowAggregate) else supplier.grace_ms
                    meta[EMITTED_TIME] = time_as_kept(observed - grace)
        return meta

    def _aggregates(self) -> list[WindowAggregate | SessionAggregate | SlidingAggregate]:
        part = _sub_topology_of(self.application, self.name)[0]
        users = [node.supplier for node in part.processors if self.name in node.stores]
        return [user for user in users if isinstance(user, WindowAggregate | SessionAggregate | SlidingAggregate)]


@dataclass(frozen=True, slots=True)
class SeedPlan:
    """A seed: the stores by name, the inputs of every task, and the names of the stores that begin empty."""

    application: SeedApplication
    topology_hash: str
    stores: Mapping[str, StorePlan]
    inputs: Mapping[TaskId, Mapping[Partition, NextOffset]]
    left_empty: tuple[str, ...]


def plan_seed(application: SeedApplication, stores: tuple[str, ...], offsets: Mapping[str, Mapping[int, int]]) -> SeedPlan:
    """The plan for a seed of these stores. `offsets`: the next offset of every partition of every source topic; it says how many
    partitions there are.

    Raises TopologyError for a store that is not there or cannot be seeded, WrongPartitionsError for offsets that are not those of the
    source topics or that leave out a partition.
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
            Partition(topic, number): NextOffset(offsets[topic][number])
            for topic in part.source_topics
            if topic in offsets and number in offsets[topic]
        }
        for part in parts
        for number in range(task_count(part, planned))
    }
    empty = sorted(store.name for part in parts for store in part.stores if store.name not in found)
    return SeedPlan(application, topology.hash(), found, inputs, tuple(empty))


def source_topics(topology: Topology) -> frozenset[str]:
    """The topics that tasks read and others write."""
    internal = {topic.name for topic in topology.internal_topics()}
    return frozenset(topic for part in topology.sub_topologies() for topic in part.source_topics) - internal


def _partitions(topology: Topology, offsets: Mapping[str, Mapping[int, int]]) -> dict[str, int]:
    """The number of partitions of each source topic."""
    wanted = source_topics(topology)
    for topic in sorted(wanted | set(offsets)):
        if topic not in offsets:
            raise WrongPartitionsError(f"source topic {topic} has no input offsets: from where should the stream go on?")
        if topic not in wanted:
            raise WrongPartitionsError(f"input offsets of {topic}, which no task reads; the source topics are {', '.join(sorted(wanted))}")
        numbers, least = sorted(offsets[topic]), min(offsets[topic].values(), default=-1)
        if numbers != list(range(len(numbers))) or not numbers:
            raise WrongPartitionsError(f"input offsets of {topic} are those of partitions {numbers}: every partition needs one, from 0 on")
        if least < 0:
            raise WrongPartitionsError(f"input offset {least} of {topic}: offsets are next offsets, from 0 on")
    return {topic: len(numbers) for topic, numbers in offsets.items()}


def _check_seedable(part: SubTopology, builder: StoreBuilder[StateStore], topology: Topology, topics: tuple[str, ...]) -> None:
    """Raises TopologyError for a store whose rows are not for a user to write, or whose keys lie where only the application puts them."""
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
    """The part of the topology that has the store, and the store's builder; made once per application."""
    for part in application.topology().sub_topologies():
        for builder in part.stores:
            if builder.name == store:
                return part, builder
    raise StateDirectoryError(f"{application.factory} makes no store {store} here: the executors run another version of the program")
