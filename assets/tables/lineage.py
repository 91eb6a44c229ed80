"""Lineage of a table: the topics that the application reads, the instances, the changelog, the table.

    kafka/flights ─► instances ─► kafka/flight-board-hourly-delay-changelog ─► hourly_delay

Topics are external assets: Dagster shows them but does not materialise them. The topics are those of the topology, which is the user's
code: if it cannot be imported, the code location still loads, and the table depends on its instances only.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import dagster as dg

from penstock.orchestration.dagster.alert_check import INSTANCES
from penstock.orchestration.declarations.applications import Application, Applications
from penstock.runtime.model.errors import StreamsError
from penstock.runtime.model.ids import TaskId
from penstock.runtime.topology.factory import build_topology
from penstock.runtime.topology.topology import Topology

logger = logging.getLogger(__name__)

GROUP = "kafka"
_RECORD = (("key", "binary"), ("value", "binary"), ("timestamp", "timestamp"), ("partition", "int"), ("offset", "bigint"))
_OF_KEY = ("window_start", "window_end", "sequence")
_OF_RECORD = ("timestamp", "partition")


@dataclass(frozen=True, slots=True)
class Topics:
    """Source topics of an application, and the topic that each of its stores is restored from."""

    sources: tuple[str, ...] = ()
    of_stores: Mapping[str, str] = field(default_factory=dict)


def topic_key(topic: str) -> dg.AssetKey:
    """Return the asset key of a topic."""
    return dg.AssetKey(["kafka", topic])


def topics_of(application: Application) -> Topics:
    """Return the topics by the application's own code; none if it cannot be imported."""
    try:
        config = application.streams_config()
        return _topics(build_topology(application.factory).resolved(config), application.id)
    except StreamsError as error:
        logger.warning("the topics of %s are not shown in the lineage of its tables: %s", application.id, error)
        return Topics()


def topics_of_all(applications: Applications) -> dict[str, Topics]:
    """Return the topics of applications with tables, by the application's id."""
    return {name: topics_of(applications.named(name)) for name in {table.application for table in applications.tables}}


def source_keys(topics: Mapping[str, Topics]) -> list[dg.AssetKey]:
    """Return the asset keys of the topics that the applications read."""
    return [topic_key(topic) for topic in sorted({topic for found in topics.values() for topic in found.sources})]


def _topics(topology: Topology, application_id: str) -> Topics:
    parts = topology.sub_topologies()
    inner = {topic.name for topic in topology.internal_topics()}
    sources = {topic for part in parts for source in part.sources if source.pattern is None for topic in source.topics}
    of_stores = {store: found.topic for part in parts for store, found in part.changelogs(application_id, TaskId(part.id, 0)).items()}
    for entry in topology.global_stores():
        sources.add(entry.topic)
        of_stores[entry.store.name] = entry.topic
    return Topics(tuple(sorted(sources - inner)), of_stores)


def topic_specs(applications: Applications, topics: Mapping[str, Topics]) -> list[dg.AssetSpec]:
    """Return external assets for the topics of applications with tables: their source topics, and the changelogs of the tables."""
    sources = {topic for found in topics.values() for topic in found.sources}
    changelogs = {
        topic: table.store for table in applications.tables if (topic := topics[table.application].of_stores.get(table.store)) is not None
    }
    specs = [_spec(topic, "Input of the applications.", ()) for topic in sorted(sources)]
    specs += [
        _spec(topic, f"Changelog of store `{store}`.", (INSTANCES,)) for topic, store in sorted(changelogs.items()) if topic not in sources
    ]
    return specs


def _spec(topic: str, description: str, deps: Sequence[dg.AssetKey]) -> dg.AssetSpec:
    schema = dg.TableSchema([dg.TableColumn(name, kind) for name, kind in _RECORD])
    return dg.AssetSpec(
        topic_key(topic), deps=deps, description=description, group_name=GROUP, kinds={"kafka"}, metadata={"dagster/column_schema": schema}
    )


def dependencies(topics: Topics, store: str) -> list[dg.AssetDep]:
    """Return the dependencies of a table. It may be partitioned by days, while instances have partitions of their own."""
    found = [dg.AssetDep(INSTANCES, partition_mapping=dg.AllPartitionMapping())]
    topic = topics.of_stores.get(store)
    return found if topic is None else [*found, dg.AssetDep(topic_key(topic))]


def column_lineage(topic: str, key_column: str, columns: Iterable[str]) -> dg.TableColumnLineage:
    """Return the part of the changelog's records that each column is read from; finer lineage would need an analysis of the
    application's code."""

    def part(column: str) -> str:
        if column == key_column or column in _OF_KEY or column == "day":
            return "key"
        return column if column in _OF_RECORD else "value"

    key = topic_key(topic)
    return dg.TableColumnLineage({column: [dg.TableColumnDep(key, part(column))] for column in columns})
