"""Racks of the partitions that each task reads, for the leader, if `rack.aware.assignment.strategy` is set."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.coordination.racks import RackRules, RackStrategy
from penstock.runtime.coordination.topics import TopicLayout
from penstock.runtime.kafka.topic_admin import TopicAdmin
from penstock.runtime.kafka.topic_watch import TopicWatch, TopicWatcher
from penstock.runtime.model.errors import StreamsError
from penstock.runtime.model.ids import TaskId, TopicPartition
from penstock.runtime.topology.topology import Topology

logger = logging.getLogger(__name__)

POLL_EVERY_SECONDS = 300.0
"""Replicas are moved rarely, by an operator."""

Racks = Mapping[TopicPartition, frozenset[str]]


class RackWatch:
    """Rules of the racks, by the brokers' last answer. Used by the worker's thread only."""

    def __init__(self, config: StreamsConfig, topology: Topology, layout: TopicLayout, topics: TopicAdmin, watcher: TopicWatcher) -> None:
        """Makes no request."""
        self._strategy = RackStrategy(config.text("rack.aware.assignment.strategy"))
        self._traffic_cost = _cost(config, "rack.aware.assignment.traffic_cost")
        self._non_overlap_cost = _cost(config, "rack.aware.assignment.non_overlap_cost")
        self._partitions = _partitions(config.application_id, topology, layout)
        self._topics = topics
        self._watch: TopicWatch[Racks | None] = watcher.watch(self._request, "racks of", POLL_EVERY_SECONDS)
        self._asked = False
        self._rules = RackRules() if self._strategy is RackStrategy.NONE else None

    def rules(self) -> RackRules | None:
        """Return the current rules; None until the brokers have answered once. The first call starts the requests. Never waits."""
        if self._strategy is not RackStrategy.NONE:
            if not self._asked:
                self._asked = True
                self._watch.start(at_once=True)
            observation = self._watch.take()
            if observation is not None:
                self._take(observation.facts)
        return self._rules

    def _request(self) -> Racks | None:
        """Return the racks of all partitions, None if the brokers do not answer. Runs on the watcher's thread."""
        topics = {partition.topic for partitions in self._partitions.values() for partition in partitions}
        try:
            return self._topics.racks(topics)
        except StreamsError as error:
            logger.warning("racks are ignored, because the brokers did not return them: %s", error)
            return None

    def _take(self, found: Racks | None) -> None:
        """Compute the rules. Without an answer tasks are placed as if there were no racks."""
        if found is None:
            self._rules = self._rules or RackRules()
            return
        if not any(found.values()):
            logger.warning("racks are ignored: of each partition, a broker with a replica has none (broker.rack), or is away")
        racks = {task: [found.get(each, frozenset()) for each in partitions] for task, partitions in self._partitions.items()}
        self._rules = RackRules(self._strategy, self._traffic_cost, self._non_overlap_cost, racks)

    def close(self) -> None:
        """Stop the requests. Waits for one that is under way."""
        self._watch.close()


def _cost(config: StreamsConfig, key: str) -> int | None:
    return None if config[key] is None else config.integer(key)


def _partitions(application_id: str, topology: Topology, layout: TopicLayout) -> dict[TaskId, list[TopicPartition]]:
    """Return the partitions that each task reads: its input and its changelogs."""
    parts = {part.id: part for part in topology.sub_topologies()}
    found: dict[TaskId, list[TopicPartition]] = {}
    for task in layout.tasks:
        part = parts[task.subtopology]
        topics = (topic for topic in part.source_topics if task.partition < layout.partitions[topic])
        found[task] = [
            *(TopicPartition(topic, task.partition) for topic in topics),
            *(log for name, log in part.changelogs(application_id, task).items() if name not in part.source_changelogs),
        ]
    return found
