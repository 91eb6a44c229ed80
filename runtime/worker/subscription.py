"""Which topics a topology with patterns reads now, and whether that is still so.

The brokers are asked for the names of all topics once a second, by a thread of its own. When the patterns match others than they did, the
worker begins anew in its place, as after a restart: its tasks are kept for it, and the topology is matched again.

Ways rejected: to let tasks take topics up while they run (numbers of tasks and of partitions of internal topics follow from the input, and
all members must count alike); to leave the look to the leader (it may be the one that is behind).
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from runtime.changelog.topic_watch import TopicWatch
from runtime.clock import Clock
from runtime.topology.topology import Topology


class Subscription:
    """The topics of a resolved topology's patterns. Belongs to the worker's thread."""

    def __init__(self, topology: Topology, names: Callable[[], Collection[str]], clock: Clock) -> None:
        """Asks at once. `names` gives the names of all topics; it raises StreamsError if no broker answers. Raises TopologyError if two
        patterns match one topic."""
        self._written = topology
        self._watch: TopicWatch[Collection[str]] | None = None
        self.topology = topology
        """As it is read."""
        if topology.patterns:
            self.topology = topology.matched(names())
            self._watch = TopicWatch(names, clock, "matching")
            self._watch.start()

    def changed(self) -> bool:
        """True if by the newest look other topics match. Never waits. Raises TopologyError if two patterns match one topic."""
        sight = None if self._watch is None else self._watch.take()
        if sight is None:
            return False
        return self._written.matched(sight.facts).source_topics != self.topology.source_topics

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
