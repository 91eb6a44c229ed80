"""Topics that the patterns of a topology match, and detection of changes.

The worker's topic watcher polls the names of all topics every second. When the patterns match other topics than before, the worker restarts
in place, as after a restart of the instance: its tasks are reserved for it, and the topology is matched again.

Rejected: adding topics to running tasks (numbers of tasks and of partitions of internal topics follow from the input, and all members must
agree on them); polling by the leader only (the leader may be the one that is behind).
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from penstock.runtime.kafka.topic_watch import TopicWatch, TopicWatcher
from penstock.runtime.topology.topology import Topology


class Subscription:
    """Topics of a resolved topology's patterns. Used by the worker's thread only."""

    def __init__(self, topology: Topology, names: Callable[[], Collection[str]], watcher: TopicWatcher) -> None:
        """Asks at once. `names` returns the names of all topics, or raises StreamsError if no broker answers. Raises TopologyError if two
        patterns match one topic."""
        self._written = topology
        self._watch: TopicWatch[Collection[str]] | None = None
        self.topology = topology
        """The topology with its patterns matched."""
        if topology.patterns:
            self.topology = topology.matched(names())
            self._watch = watcher.watch(names, "matching")
            self._watch.start()

    def changed(self) -> bool:
        """Return True if the last poll matches other topics. Never waits. Raises TopologyError if two patterns match one topic."""
        observation = None if self._watch is None else self._watch.take()
        if observation is None:
            return False
        return self._written.matched(observation.facts).source_topics != self.topology.source_topics

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
