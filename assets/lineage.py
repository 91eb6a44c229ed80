"""Lineage of the applications: the topics that they read, their instances, the topics that they write; the changelogs that tables read.

    kafka/flights ─► flight-board/instances ─► kafka/flight-board-delays
                                            └► kafka/flight-board-hourly-delay-changelog ─► hourly_delay

Topics are external assets: Dagster shows them but does not materialise them. An output topic that another application reads connects the
two. The topics are those of the topology, which is the user's code: if it cannot be imported, the code location still loads, and the
application is shown without topics. Topics that are known at run time only (a pattern, a topic chosen per record) are not shown.

Dagster's graph has no cycles, but applications may: one reads the topic that it writes, or two answer each other. The edge that would close
a cycle is left out, and the topic's description names it.
"""

from __future__ import annotations

import importlib
import inspect
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import dagster as dg

from penstock.orchestration.dagster.names import instances_key
from penstock.orchestration.declarations.applications import Application, Applications
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.model.errors import StreamsError
from penstock.runtime.model.ids import TaskId
from penstock.runtime.topology.factory import build_topology
from penstock.runtime.topology.topology import Topology

logger = logging.getLogger(__name__)

GROUP = "kafka"
_RECORD = (("key", "binary"), ("value", "binary"), ("timestamp", "timestamp"), ("partition", "int"), ("offset", "bigint"))
_OF_KEY = ("window_start", "window_end", "sequence")
_OF_RECORD = ("timestamp", "partition")
_DEAD_LETTERS = "errors.dead.letter.queue.topic.name"


@dataclass(frozen=True, slots=True)
class Topics:
    """Source and output topics of an application, the topic that each of its stores is restored from, and the factory's docstring."""

    sources: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    of_stores: Mapping[str, str] = field(default_factory=dict)
    docstring: str | None = None


def topic_key(topic: str) -> dg.AssetKey:
    """Return the asset key of a topic."""
    return dg.AssetKey(["kafka", topic])


def topics_of(application: Application) -> Topics:
    """Return the topics by the application's own code; none if it cannot be imported."""
    try:
        config = application.streams_config()
        return _topics(build_topology(application.factory).resolved(config), application, config)
    except StreamsError as error:
        logger.warning("the topics of %s are not shown in its lineage: %s", application.id, error)
        return Topics()


def topics_of_all(applications: Applications) -> dict[str, Topics]:
    """Return the topics of all applications, by the application's id."""
    return {application.id: topics_of(application) for application in applications.applications}


def source_keys(topics: Topics) -> list[dg.AssetKey]:
    """Return the asset keys of the topics that an application reads."""
    return [topic_key(topic) for topic in topics.sources]


def _topics(topology: Topology, application: Application, config: StreamsConfig) -> Topics:
    parts = topology.sub_topologies()
    inner = {topic.name for topic in topology.internal_topics()}
    sources = {topic for part in parts for source in part.sources if source.pattern is None for topic in source.topics}
    of_stores = {store: found.topic for part in parts for store, found in part.changelogs(application.id, TaskId(part.id, 0)).items()}
    for entry in topology.global_stores():
        sources.add(entry.topic)
        of_stores[entry.store.name] = entry.topic
    outputs = set(topology.sink_topics)
    if dead_letters := config[_DEAD_LETTERS]:
        outputs.add(str(dead_letters))
    return Topics(tuple(sorted(sources - inner)), tuple(sorted(outputs - inner)), of_stores, _docstring(application.factory))


def _docstring(factory: str) -> str | None:
    """Return the docstring of a factory that has been imported; that of a class's instance describes the class, and is left out."""
    module, _, name = factory.partition(":")
    function = getattr(importlib.import_module(module), name)
    return inspect.getdoc(function) if inspect.isroutine(function) else None


@dataclass(frozen=True, slots=True)
class _Topic:
    """A topic in the lineage: the applications that read it, that write it, and whose edge to it would close a cycle; `store` and its
    application, of a changelog that a table reads."""

    readers: list[str] = field(default_factory=list)
    writers: list[str] = field(default_factory=list)
    cyclic: list[str] = field(default_factory=list)
    stores: list[tuple[str, str]] = field(default_factory=list)


def topic_specs(applications: Applications, topics: Mapping[str, Topics]) -> list[dg.AssetSpec]:
    """Return external assets for the topics that applications read or write, and the changelogs of tables."""
    found: dict[str, _Topic] = {}
    for application, known in topics.items():
        for topic in known.sources:
            found.setdefault(topic, _Topic()).readers.append(application)
    for table in applications.tables:
        changelog = topics[table.application].of_stores.get(table.store)
        if changelog is not None and changelog not in topics[table.application].sources:
            stores = found.setdefault(changelog, _Topic()).stores
            if (table.application, table.store) not in stores:
                stores.append((table.application, table.store))
    for application, topic in _written(found, topics):
        entry = found.setdefault(topic, _Topic())
        (entry.cyclic if topic in _ancestors(found, topics, application) else entry.writers).append(application)
    return [_spec(topic, entry) for topic, entry in sorted(found.items())]


def _written(found: Mapping[str, _Topic], topics: Mapping[str, Topics]) -> Iterator[tuple[str, str]]:
    """Yield each application with each topic that it writes, once."""
    changelogs = [(application, topic) for topic, entry in found.items() for application, _ in entry.stores]
    outputs = [(application, topic) for application, known in topics.items() for topic in known.outputs]
    yield from dict.fromkeys((*changelogs, *outputs))


def _ancestors(found: Mapping[str, _Topic], topics: Mapping[str, Topics], application: str) -> set[str]:
    """Return the topics upstream of an application, as far as the graph is known."""
    above: set[str] = set()
    waiting = [application]
    while waiting:
        for topic in topics[waiting.pop()].sources:
            if topic not in above:
                above.add(topic)
                waiting += found[topic].writers
    return above


def _spec(topic: str, entry: _Topic) -> dg.AssetSpec:
    schema = dg.TableSchema([dg.TableColumn(name, kind) for name, kind in _RECORD])
    sentences = [f"Changelog of store `{store}` of `{application}`." for application, store in entry.stores]
    if entry.readers:
        sentences.append(f"Read by {_listed(entry.readers)}.")
    if outputs := [name for name in entry.writers if name not in {application for application, _ in entry.stores}]:
        sentences.append(f"Written by {_listed(outputs)}.")
    if entry.cyclic:
        sentences.append(f"Also written by {_listed(entry.cyclic)}: not drawn, because a lineage has no cycles.")
    return dg.AssetSpec(
        topic_key(topic),
        deps=[instances_key(writer) for writer in entry.writers],
        description=" ".join(sentences),
        group_name=GROUP,
        kinds={"kafka"},
        metadata={"dagster/column_schema": schema},
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def dependencies(application: str, topics: Topics, store: str) -> list[dg.AssetDep]:
    """Return the dependencies of a table: its changelog, which depends on the instances. A table that depended on the instances directly
    would be shown as outdated whenever one is started. One without a known changelog does; it may be partitioned by days, while instances
    have partitions of their own."""
    topic = topics.of_stores.get(store)
    if topic is None:
        return [dg.AssetDep(instances_key(application), partition_mapping=dg.AllPartitionMapping())]
    return [dg.AssetDep(topic_key(topic))]


def column_lineage(topic: str, key_column: str, columns: Iterable[str]) -> dg.TableColumnLineage:
    """Return the part of the changelog's records that each column is read from; finer lineage would need an analysis of the
    application's code."""

    def part(column: str) -> str:
        if column == key_column or column in _OF_KEY or column == "day":
            return "key"
        return column if column in _OF_RECORD else "value"

    key = topic_key(topic)
    return dg.TableColumnLineage({column: [dg.TableColumnDep(key, part(column))] for column in columns})
