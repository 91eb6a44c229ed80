"""In which racks the brokers keep what each task reads: asked by the leader, where `rack.aware.assignment.strategy` wants it."""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor

from runtime.clock import Clock
from runtime.config import StreamsConfig
from runtime.coordination.racks import RackRules, RackStrategy
from runtime.errors import StreamsError
from runtime.ids import Partition, TaskId
from runtime.topics import TopicAdmin, TopicLayout
from runtime.topology.topology import Topology

logger = logging.getLogger(__name__)

LOOK_EVERY_MS = 300_000
"""Replicas move seldom, and by hand."""


class RackWatch:
    """The rules of racks, with what the brokers last said. Belongs to the worker's thread; asks on one of its own."""

    def __init__(self, config: StreamsConfig, topology: Topology, layout: TopicLayout, clock: Clock) -> None:
        """Contacts nobody."""
        self._strategy = RackStrategy(config.text("rack.aware.assignment.strategy"))
        self._traffic_cost = _cost(config, "rack.aware.assignment.traffic_cost")
        self._non_overlap_cost = _cost(config, "rack.aware.assignment.non_overlap_cost")
        self._partitions = _partitions(config.application_id, topology, layout)
        self._config = config
        self._clock = clock
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="racks")
        self._asked: Future[dict[Partition, frozenset[str]]] | None = None
        self._asked_ms = -LOOK_EVERY_MS
        self._rules = RackRules() if self._strategy is RackStrategy.NONE else None

    def rules(self) -> RackRules | None:
        """The rules as of now; None until the brokers have been asked for the first time. Never waits."""
        if self._strategy is RackStrategy.NONE:
            return self._rules
        if self._asked is not None:
            if self._asked.done():
                asked, self._asked = self._asked, None
                self._take(asked)
        elif self._clock.monotonic_ms() - self._asked_ms >= LOOK_EVERY_MS:
            self._asked_ms = self._clock.monotonic_ms()
            self._asked = self._pool.submit(self._ask)
        return self._rules

    def _ask(self) -> dict[Partition, frozenset[str]]:
        """By a client of its own each time: few applications ask at all, and these seldom. Raises StreamsError."""
        topics = {partition.topic for partitions in self._partitions.values() for partition in partitions}
        return TopicAdmin(self._config).racks(topics)

    def _take(self, asked: Future[dict[Partition, frozenset[str]]]) -> None:
        """What cannot be known costs nothing: then tasks are placed as without racks."""
        try:
            found = asked.result()
        except StreamsError as error:
            logger.warning("racks are not regarded, since the brokers do not tell them: %s", error)
            self._rules = self._rules or RackRules()
            return
        if not any(found.values()):
            logger.warning("racks are not regarded: the brokers have none (broker.rack)")
        racks = {task: [found.get(each, frozenset()) for each in partitions] for task, partitions in self._partitions.items()}
        self._rules = RackRules(self._strategy, self._traffic_cost, self._non_overlap_cost, racks)

    def close(self) -> None:
        """Does not wait for an answer."""
        self._pool.shutdown(wait=False, cancel_futures=True)


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
