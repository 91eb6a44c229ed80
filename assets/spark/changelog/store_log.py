"""The topic that a store is restored from, and how its bytes are decoded.

It is derived from a snapshot's manifest, or, without snapshots, from the topology alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from penstock.assets.spark.source.state_source import StoreSnapshot
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.kafka.topic_admin import TopicAdmin
from penstock.runtime.model.errors import StateDirectoryError
from penstock.runtime.model.ids import TaskId
from penstock.runtime.stores.base import StateStore, StoreBuilder, StoreLayout, StoreSchemas
from penstock.runtime.stores.suppliers import Builder
from penstock.runtime.topology.factory import build_topology
from penstock.runtime.topology.topology import Topology


class StoreLog(msgspec.Struct, frozen=True, kw_only=True):
    """A store, and the topic that it is restored from.

    `of_source`: a source topic of the application, read up to the offset that the application has committed (`topology.optimization`,
    read-only stores). `is_global`: the topic of a global store, which is read to its end. `partitions`: the number that the topic must
    have, None if unknown. `subtopology`: the number of the sub-topology that has the store; None for a global one. `value_schema`: the
    fields of JSON values as Spark DDL, which replaces the serde's type.
    """

    application: str
    store: str
    layout: StoreLayout
    schemas: StoreSchemas
    topic: str
    of_source: bool = False
    is_global: bool = False
    partitions: int | None = None
    subtopology: int | None = None
    value_schema: str | None = None

    @classmethod
    def of_snapshot(cls, parts: Sequence[StoreSnapshot], partitions: int | None = None, value_schema: str | None = None) -> StoreLog:
        """Create it from a store's parts in a snapshot. `partitions`: the number of tasks that have the store; None if `parts` may be only
        some of them. Raises StateDirectoryError for a store without a changelog."""
        first = parts[0]
        store = first.store
        topic = store.topic if store.is_global else None if store.changelog is None else store.changelog.topic
        if topic is None:
            raise StateDirectoryError(f"store {store.name} of task {first.task.task} has no changelog: nothing can be held against it")
        inputs = {at.topic for at in first.task.input_offsets}
        return cls(
            application=first.task.application,
            store=store.name,
            layout=store.layout,
            schemas=store.schemas,
            topic=topic,
            of_source=topic in inputs and not store.is_global,
            is_global=store.is_global,
            partitions=partitions,
            subtopology=None if store.is_global else TaskId.parse(first.task.task).subtopology,
            value_schema=value_schema,
        )


def snapshot_offsets(parts: Sequence[StoreSnapshot]) -> dict[int, int]:
    """Return the next offset of each partition of the store's topic, from its parts in a snapshot. Raises StateDirectoryError like
    `StoreLog.of_snapshot`."""
    topic = StoreLog.of_snapshot(parts).topic
    found: dict[int, int] = {}
    for part in parts:
        positions = part.task.input_offsets if part.store.is_global else [part.store.changelog]
        found |= {at.partition: at.next_offset for at in positions if at is not None and at.topic == topic}
    return found


def store_log(application: str, factory: str, store: str, config: Mapping[str, object], value_schema: str | None = None) -> StoreLog:
    """Create it for a store of the topology that `factory` (`module:function`) returns; needs neither a snapshot nor an instance.

    A Schema Registry's serde requests the schemas of the topic. Raises TopologyError (the factory), StateDirectoryError (unknown store, or
    one that is not restored from a topic), WrongPartitionsError, BrokerUnavailableError, SchemaRegistryUnavailableError.
    """
    settings = StreamsConfig({**config, "application.id": application})
    topology = build_topology(factory).resolved(settings)
    found = _of_tasks(topology, settings, store) or _of_global(topology, application, store)
    return msgspec.structs.replace(found, value_schema=value_schema)


def _of_tasks(topology: Topology, config: StreamsConfig, store: str) -> StoreLog | None:
    application = config.application_id
    for part in topology.sub_topologies():
        builder = next((builder for builder in part.stores if builder.name == store), None)
        if builder is None:
            continue
        changelog = part.changelogs(application, TaskId(part.id, 0)).get(store)
        if changelog is None:
            raise StateDirectoryError(f"store {store} of {application} has no changelog. Take a snapshot")
        found = msgspec.structs.replace(_log(application, builder, changelog.topic), subtopology=part.id)
        if store in part.source_changelogs:
            return msgspec.structs.replace(found, of_source=True)
        return msgspec.structs.replace(found, partitions=_tasks(config, part.source_topics))
    return None


def _tasks(config: StreamsConfig, topics: Sequence[str]) -> int | None:
    """Return the number of tasks that read these topics; None if one of the topics does not exist."""
    found = TopicAdmin(config).partition_counts(topics)
    return max(found.values(), default=None) if len(found) == len(topics) else None


def _of_global(topology: Topology, application: str, store: str) -> StoreLog:
    for entry in topology.global_stores():
        if entry.store.name == store:
            return msgspec.structs.replace(_log(application, entry.store, entry.topic), is_global=True)
    names = {builder.name for part in topology.sub_topologies() for builder in part.stores}
    names |= {entry.store.name for entry in topology.global_stores()}
    raise StateDirectoryError(f"{application} has no store {store!r}; there are {', '.join(sorted(names)) or 'none'}")


def _log(application: str, builder: StoreBuilder[StateStore], topic: str) -> StoreLog:
    if not isinstance(builder, Builder):
        raise StateDirectoryError(f"store {builder.name} of {application} is of the user's own kind: only its own code can read its bytes")
    return StoreLog(
        application=application,
        store=builder.name,
        layout=builder.settings.layout(),
        schemas=builder.settings.schemas([topic]),
        topic=topic,
    )
