"""In which racks the brokers keep what each task reads: asked by the leader, where `rack.aware.assignment.strategy` wants it."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.coordination.racks import RackRules, RackStrategy
from penstock.runtime.coordination.topics import TopicLayout
from penstock.runtime.kafka.topic_admin import TopicAdmin
from penstock.runtime.kafka.topic_watch import TopicWatch, TopicWatcher
from penstock.runtime.model.errors import StreamsError
from penstock.runtime.model.ids import Partition, TaskId
from penstock.runtime.topology.topology import Topology

logger = logging.getLogger(__name__)

LOOK_EVERY_SECONDS = 300.0
"""Replicas move seldom, and by hand."""

Racks = Mapping[Partition, frozenset[str]]


class RackWatch:
    """The rules of racks, with what the brokers last said. Belongs to the worker's thread."""

    def __init__(self, config: StreamsConfig, topology: Topology, layout: TopicLayout, topics: TopicAdmin, watcher: TopicWatcher) -> None:
        """Contacts nobody."""
        self._strategy = RackStrategy(config.text("rack.aware.assignment.strategy"))
        self._traffic_cost = _cost(config, "rack.aware.assignment.traffic_cost")
        self._non_overlap_cost = _cost(config, "rack.aware.assignment.non_overlap_cost")
        self._partitions = _partitions(config.application_id, topology, layout)
        self._topics = topics
        self._watch: TopicWatch[Racks | None] = watcher.watch(self._look, "racks of", LOOK_EVERY_SECONDS)
        self._asked = False
        self._rules = RackRules() if self._strategy is RackStrategy.NONE else None

    def rules(self) -> RackRules | None:
        """The rules as of now; None until the brokers have been asked for the first time, which the first call has done. Never waits."""
        if self._strategy is not RackStrategy.NONE:
            if not self._asked:
                self._asked = True
                self._watch.start(at_once=True)
            observation = self._watch.take()
            if observation is not None:
                self._take(observation.facts)
        return self._rules

    def _look(self) -> Racks | None:
        """On the watcher's thread. None where the brokers do not say."""
        topics = {partition.topic for partitions in self._partitions.values() for partition in partitions}
        try:
            return self._topics.racks(topics)
        except StreamsError as error:
            logger.warning("racks are not regarded, since the brokers do not tell them: %s", error)
            return None

    def _take(self, found: Racks | None) -> None:
        """What cannot be known costs nothing: then tasks are placed as without racks."""
        if found is None:
            self._rules = self._rules or RackRules()
            return
        if not any(found.values()):
            logger.warning("racks are not regarded: the brokers have none (broker.rack)")
        racks = {task: [found.get(each, frozenset()) for each in partitions] for task, partitions in self._partitions.items()}
        self._rules = RackRules(self._strategy, self._traffic_cost, self._non_overlap_cost, racks)

    def close(self) -> None:
        """Waits for a look that is under way."""
        self._watch.close()


def _cost(config: StreamsConfig, key: str) -> int | None:
    return None if config[key] is None else config.integer(key)


def _partitions(application_id: str, topology: Topology, layout: TopicLayout) -> dict[TaskId, list[Partition]]:
    """What each task reads: its input, and its changelogs."""
    parts = {part.id: part for part in topology.sub_topologies()}
    found: dict[TaskId, list[Partition]] = {}
    for task in layout.tasks:
        part = parts[task.subtopology]
        topics = (topic for topic in part.source_topics if task.partition < layout.partitions[topic])
        found[task] = [
            *(Partition(topic, task.partition) for topic in topics),
            *(log for name, log in part.changelogs(application_id, task).items() if name not in part.source_changelogs),
        ]
    return found
