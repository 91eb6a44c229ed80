"""Detection of partitions that are added to input topics while they are read.

The worker's topic watcher polls the numbers of partitions every ten seconds. Where nothing depends on the number
(`input_growth.obstacles`), the worker restarts in place, with tasks for the new partitions, as it does when a pattern matches new topics.
Each member detects growth by itself. In the meantime the leader assigns tasks that any live member knows; a member that does not know the
partition yet runs the new task without input until it has restarted, within ten seconds. Otherwise a warning and an event name the topic,
the reason and the possible actions.

A repartition topic is an exception. The application itself writes to it, and its producers use the new partitions as soon as they learn of
them, so the worker stops.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from penstock.runtime.kafka.topic_watch import TopicWatch, TopicWatcher
from penstock.runtime.model.errors import WrongPartitionsError, by_reset
from penstock.runtime.model.events import EventKind, EventSink
from penstock.runtime.topology.input_growth import obstacles, remedies
from penstock.runtime.topology.topology import Topology

logger = logging.getLogger(__name__)

INTERVAL_SECONDS = 10.0


class InputPartitions:
    """Numbers of partitions of a worker's input topics. Used by the worker's thread only."""

    def __init__(
        self,
        request: Callable[[], Mapping[str, int]],
        topology: Topology,
        partitions: Mapping[str, int],
        events: EventSink,
        watcher: TopicWatcher,
    ) -> None:
        """`request` returns the current numbers of partitions of the input topics, or raises StreamsError if no broker answers.
        `partitions`: those of all topics with which the tasks were made."""
        self._topology = topology
        self._partitions = partitions
        self._events = events
        self._reported: Mapping[str, int] = {}
        self._watch: TopicWatch[Mapping[str, int]] = watcher.watch(request, "input", INTERVAL_SECONDS)

    def start(self) -> None:
        self._watch.start()

    def close(self) -> None:
        self._watch.close()

    def have_grown(self) -> bool:
        """Return True if there are new partitions that need new tasks. Reports each growth once. Never waits. Raises WrongPartitionsError
        if a repartition topic has new partitions."""
        observation = self._watch.take()
        return observation is not None and self.check(observation.facts)

    def check(self, now: Mapping[str, int]) -> bool:
        """Check these numbers of partitions, as `have_grown`."""
        grown = {topic: count for topic, count in sorted(now.items()) if count > self._partitions.get(topic, count)}
        if not grown or grown == self._reported:
            return False
        self._reported = grown
        self._refuse_internal(grown)
        reasons = obstacles(self._topology, self._partitions, grown)
        for topic, count in grown.items():
            self._report(topic, count, reasons)
        return not reasons

    def _refuse_internal(self, grown: Mapping[str, int]) -> None:
        internal = sorted({topic.name for topic in self._topology.internal_topics()} & grown.keys())
        for topic in internal:
            reason = "it is a repartition topic: records that are written to its new partitions are read by no task"
            self._emit(topic, grown[topic], reason, internal=True)
        if internal:
            counts = ", ".join(f"{topic} has {grown[topic]} partitions, and had {self._partitions[topic]}" for topic in internal)
            raise WrongPartitionsError(
                f"internal topic {counts}: another program added them. Keys would move to partitions that no task reads, so processing "
                f"stops. Kafka cannot take partitions back: {by_reset(self._events.application)}, which creates the topic again"
            )

    def _report(self, topic: str, count: int, reasons: Mapping[str, str]) -> None:
        read = self._partitions[topic]
        others = [other for other in reasons if other != topic]
        waits = f"partitions of {', '.join(others)} cannot be taken up, so that this worker cannot begin again with other tasks"
        reason = reasons.get(topic) or (waits if others else "")
        if reason:
            logger.warning(
                "input topic %s has %d partitions, and the new ones (%d to %d) are read by no task: %s. Producers should write to "
                "partitions 0 to %d only. %s",
                *(topic, count, read, count - 1, reason, read - 1, remedies(topic, read, self._events.application)),
            )
        else:
            logger.info("input topic %s has %d partitions now, and had %d: beginning again with tasks for them", topic, count, read)
        self._emit(topic, count, reason)

    def _emit(self, topic: str, count: int, reason: str, *, internal: bool = False) -> None:
        read = self._partitions[topic]
        readers = [part.id for part in self._topology.sub_topologies() if topic in part.source_topics]
        payload = {"topic": topic, "read": read, "partitions": count, "subtopologies": readers, "reason": reason or None}
        payload |= {"internal": True} if internal else {}
        self._events.emit(EventKind.INPUT_PARTITIONS_ADDED, payload, coordinates=f"{topic}@{count}")
