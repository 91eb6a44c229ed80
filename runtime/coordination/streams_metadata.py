"""Location of stores and keys over all instances of an application (Kafka Streams' `StreamsMetadataState`, KIP-67, KIP-535).

Every instance answers for the whole application, from what its worker has read of the coordination topic (`runtime/coordination/fleet.py`).
The answer is as old as that reading, normally some 10 ms. While a task is being learned elsewhere, its owner still runs it, so an answer is
missing only between *released* and *granted*.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import ClassVar, cast

from penstock.runtime.coordination.fleet import Fleet
from penstock.runtime.coordination.records import Member
from penstock.runtime.model.errors import InvalidStateStoreError, StreamsError
from penstock.runtime.model.ids import HostInfo, TaskId, TopicPartition
from penstock.runtime.model.user_errors import described, pass_ctrl_c
from penstock.runtime.serdes.murmur import partition_for
from penstock.runtime.serdes.serde import Serde
from penstock.runtime.topology.catalogue import KnownStore, known_stores
from penstock.runtime.topology.topology import Topology

KeyChooser = Serde | Callable[..., object]
"""Computes the partition of a key: a serde, or a function of the key, whose bytes are hashed by murmur2 as in Java; or a partitioner,
`(topic, key, value, partitions) -> partition` (Kafka Streams' `StreamPartitioner`), which gets None for the value."""

_PARTITIONER_TAKES = 4


@dataclass(frozen=True, slots=True)
class KeyQueryMetadata:
    """Location of a key: the instance whose task writes it, those that keep a copy of that task, and the partition.

    `active_host` is `HostInfo.unavailable()` if only copies can answer. `KeyQueryMetadata.NOT_AVAILABLE`: no instance can answer now,
    because the task is moving or this instance does not know the others yet; retry. The partition of a global store is -1."""

    NOT_AVAILABLE: ClassVar[KeyQueryMetadata]

    active_host: HostInfo
    standby_hosts: frozenset[HostInfo]
    partition: int


KeyQueryMetadata.NOT_AVAILABLE = KeyQueryMetadata(HostInfo.unavailable(), frozenset(), -1)


@dataclass(frozen=True, slots=True)
class StreamsMetadata:
    """An instance of the application (Kafka Streams' class of the same name): the stores of which it has a part, global ones included, and
    the input partitions of its tasks; and the same of the tasks of which it keeps a copy."""

    host_info: HostInfo
    state_store_names: frozenset[str]
    topic_partitions: frozenset[TopicPartition]
    standby_state_store_names: frozenset[str]
    standby_topic_partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class _Index:
    """Owners and copies of each task, for one state of the fleet."""

    fleet: Fleet
    owners: dict[str, Member]
    copies: dict[str, list[Member]]


class StreamsMetadataState:
    """Metadata of stores and keys. Thread-safe; makes no request."""

    def __init__(self, topology: Topology, own: HostInfo | None, fleet: Callable[[], Fleet | None]) -> None:
        """`topology` is resolved. `own` is this instance's `application.server`. `fleet` returns the current fleet, None before the
        first."""
        self._topology = topology
        self.stores = known_stores(topology)
        self._parts = {part.id: part for part in topology.sub_topologies()}
        self._own = own
        self._now = fleet
        self._matched: Fleet | None = None
        self._last: _Index | None = None

    def store(self, name: str) -> KnownStore:
        """Return a store of the topology. Raises InvalidStateStoreError."""
        self._fleet()
        found = self.stores.get(name)
        if found is None:
            known = ", ".join(sorted(self.stores)) or "none"
            raise InvalidStateStoreError(f"store {name!r} is unknown: the topology has {known}")
        return found

    # -- a key -----------------------------------------------------------------------------------------------------------------

    def of_key(self, name: str, key: object, chooser: KeyChooser | None = None) -> KeyQueryMetadata:
        """Return the location of a key. Raises InvalidStateStoreError for an unknown store, StreamsError if the key has no single
        partition."""
        store = self.store(name)
        index = self._index()
        if index is None:
            return KeyQueryMetadata.NOT_AVAILABLE
        if store.subtopology is None:
            return self._anywhere(index)
        return self._of_partition(index, store.subtopology, self._partition(index.fleet, store, key, chooser))

    def of_partition(self, name: str, partition: int) -> KeyQueryMetadata:
        """Return the location of a store's partition. Raises InvalidStateStoreError."""
        store, index = self.store(name), self._index()
        if index is None:
            return KeyQueryMetadata.NOT_AVAILABLE
        return self._anywhere(index) if store.subtopology is None else self._of_partition(index, store.subtopology, partition)

    def partition(self, name: str, key: object, chooser: KeyChooser | None = None) -> int | None:
        """Return the partition of a key; -1 in a global store, None while the topics are unknown. Raises as `of_key`."""
        store, fleet = self.store(name), self._fleet()
        if store.is_global:
            return -1
        return None if fleet is None else self._partition(fleet, store, key, chooser)

    def partitions(self, store: KnownStore) -> int:
        """Return the number of a store's partitions, one per task; 0 for a global store, and while the topics are unknown."""
        fleet = self._fleet()
        if fleet is None or store.subtopology is None:
            return 0
        return max((fleet.partitions.get(topic, 0) for topic in self._parts[store.subtopology].source_topics), default=0)

    def owners(self, store: KnownStore) -> list[HostInfo]:
        """Return the owner of each partition of a store; empty for a global one, and while the topics are unknown."""
        index = self._index()
        if index is None or store.subtopology is None:
            return []
        owners = (index.owners.get(str(TaskId(store.subtopology, number))) for number in range(self.partitions(store)))
        return [HostInfo.unavailable() if owner is None else host_of(owner) for owner in owners]

    def _of_partition(self, index: _Index, subtopology: int, partition: int) -> KeyQueryMetadata:
        task = str(TaskId(subtopology, partition))
        owner, copies = index.owners.get(task), _hosts(index.copies.get(task, ()))
        active = HostInfo.unavailable() if owner is None else host_of(owner)
        if active == HostInfo.unavailable() and not copies:
            return KeyQueryMetadata.NOT_AVAILABLE
        return KeyQueryMetadata(active, copies - {active}, partition)

    def _anywhere(self, index: _Index) -> KeyQueryMetadata:
        """Return the location of a global store: this instance, if it has an address, since each has a complete copy; else any other."""
        hosts = [self._own] if self._own is not None else sorted(_hosts(index.fleet.members))
        return KeyQueryMetadata(hosts[0], frozenset(), -1) if hosts else KeyQueryMetadata.NOT_AVAILABLE

    def _partition(self, fleet: Fleet, store: KnownStore, key: object, chooser: KeyChooser | None) -> int:
        topic = max(store.topics, key=lambda name: fleet.partitions.get(name, 0))
        partitions = fleet.partitions[topic]
        if not isinstance(chooser, Serde) and chooser is not None and _is_partitioner(chooser):
            chosen = chooser(topic, key, None, partitions)
            if chosen is not None:
                return _one(chosen, store.name, partitions)
            chooser = None  # None means the default partitioner, as for records that are written
        if chooser is None and store.key_serde is None:
            raise StreamsError(f"store {store.name!r} is a store of your own, whose serdes only you know: name the serde of its keys")
        serde = chooser or store.key_serde
        write = serde.serializer(topic) if isinstance(serde, Serde) else cast(Callable[[object], bytes | None], serde)
        try:
            data = write(key)
        except BaseException as error:
            pass_ctrl_c(error, f"store {store.name}")
            name = f"serde {serde.name}" if isinstance(serde, Serde) else f"{serde!r}"
            raise StreamsError(f"store {store.name!r}: {name} cannot write the key {key!r}: {described(error)}") from error
        if data is None:
            raise StreamsError(f"store {store.name!r}: a key must not be null")
        return partition_for(data, partitions)

    # -- instances -------------------------------------------------------------------------------------------------------------

    def all(self) -> list[StreamsMetadata]:
        """Return every instance that has an `application.server`, sorted by address."""
        index = self._index()
        if index is None:
            return []
        active, standby = _tasks_by_host(index.owners.items()), _tasks_by_host(_each(index.copies))
        everywhere = frozenset(name for name, store in self.stores.items() if store.is_global)
        return [
            StreamsMetadata(
                host_info=host,
                state_store_names=self._stores_of(active[host]) | everywhere,
                topic_partitions=self._inputs(index.fleet, active[host]),
                standby_state_store_names=self._stores_of(standby[host]),
                standby_topic_partitions=self._inputs(index.fleet, standby[host]),
            )
            for host in sorted(_hosts(index.fleet.members))
        ]

    def for_store(self, name: str) -> list[StreamsMetadata]:
        """Return the instances that have a part of a store, or a copy of one. Raises InvalidStateStoreError for an unknown store."""
        self.store(name)
        return [found for found in self.all() if name in found.state_store_names | found.standby_state_store_names]

    def _stores_of(self, tasks: Collection[TaskId]) -> frozenset[str]:
        parts = {task.subtopology for task in tasks}
        return frozenset(name for name, store in self.stores.items() if store.subtopology in parts)

    def _inputs(self, fleet: Fleet, tasks: Collection[TaskId]) -> frozenset[TopicPartition]:
        return frozenset(
            TopicPartition(topic, task.partition)
            for task in tasks
            for topic in self._parts[task.subtopology].source_topics
            if task.partition < fleet.partitions.get(topic, 0)
        )

    def _fleet(self) -> Fleet | None:
        """Return the current fleet, after matching the topology's patterns with the topics that it reads."""
        fleet = self._now()
        if fleet is not None and fleet is not self._matched and self._topology.patterns:
            topology = self._topology.matched(fleet.partitions)
            self.stores, self._parts = known_stores(topology), {part.id: part for part in topology.sub_topologies()}
            self._matched = fleet
        return fleet

    def _index(self) -> _Index | None:
        """Return the index of the current fleet, None before the first assignment. It is cached per fleet; two threads may both compute
        it."""
        fleet, last = self._fleet(), self._last
        if fleet is None or fleet.assignment is None:
            return None
        if last is not None and last.fleet is fleet:
            return last
        owners: dict[str, Member] = {}
        copies: defaultdict[str, list[Member]] = defaultdict(list)
        for grant, member in fleet.granted():
            owners.update(dict.fromkeys(grant.active, member))
            for task in (*grant.standby, *grant.learner):
                copies[task].append(member)
        self._last = made = _Index(fleet, owners, dict(copies))
        return made


def host_of(member: Member) -> HostInfo:
    """Return a member's `application.server`, or `unavailable`."""
    return HostInfo.build_from_endpoint(member.application_server) if member.application_server else HostInfo.unavailable()


def _hosts(members: Iterable[Member]) -> frozenset[HostInfo]:
    return frozenset(map(host_of, members)) - {HostInfo.unavailable()}


def _each(copies: dict[str, list[Member]]) -> Iterable[tuple[str, Member]]:
    return ((task, member) for task, members in copies.items() for member in members)


def _tasks_by_host(found: Iterable[tuple[str, Member]]) -> defaultdict[HostInfo, set[TaskId]]:
    tasks: defaultdict[HostInfo, set[TaskId]] = defaultdict(set)
    for task, member in found:
        tasks[host_of(member)].add(TaskId.parse(task))
    return tasks


def _is_partitioner(function: Callable[..., object]) -> bool:
    """Return True for a function with four required parameters; False for a built-in without a signature."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    needed = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty]
    return len(needed) == _PARTITIONER_TAKES


def _one(chosen: object, store: str, partitions: int) -> int:
    """Return the single partition that a partitioner chose, possibly in a collection (KIP-837)."""
    if isinstance(chosen, Collection) and len(chosen) == 1:
        [chosen] = chosen
    if not isinstance(chosen, int) or not 0 <= chosen < partitions:
        raise StreamsError(f"store {store!r}: the partitioner gave {chosen!r}, where one partition from 0 to {partitions - 1} is needed")
    return chosen
