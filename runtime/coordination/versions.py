"""Tasks, and the members that can run them, while two versions of a topology run side by side.

Both versions agree on what they have in common (`compatibility.py` checks it); the newer one may have more. A member can run a task if its
topology has the task's sub-topology. A task that ran with a store does not move to a member without that store: its committed offsets would
advance, and the store would miss those records. It waits for a member that has the store, unless no live member has it and the version
without it was started last: then all members with the store were stopped before, and the store is given up.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping

from msgspec.structs import replace

from penstock.runtime.coordination.records import Grant, Member, TopologyText
from penstock.runtime.coordination.registry import Registry
from penstock.runtime.coordination.topics import TopicLayout
from penstock.runtime.model.ids import TaskId
from penstock.runtime.topology.input_growth import first_partitions, stateful_inputs
from penstock.runtime.topology.shape import parts_of, shape_of, stores_of, tasks_of
from penstock.runtime.topology.topology import Topology

logger = logging.getLogger(__name__)


def topology_record(topology: Topology, application_id: str, layout: TopicLayout) -> TopologyText:
    """Return the record of a resolved topology, before any other run of the application is known."""
    parts = parts_of(topology.sub_topologies(), layout.tasks, layout.stateful)
    inputs = stateful_inputs(topology, layout.partitions)
    shape = shape_of(topology, application_id)
    sites = dict(topology.call_sites)
    return TopologyText(hash=topology.hash(), text=str(topology.describe()), shape=shape, parts=parts, inputs=inputs, call_sites=sites)


def with_first_partitions(record: TopologyText, topology: Topology, layout: TopicLayout, last: TopologyText) -> TopologyText:
    """Return the record with the partitions that each input topic had when the application first read it. `last`: the record of the last
    run; in the first run, that of `topology_record`."""
    first = first_partitions(topology, layout.partitions, last.first_partitions, last.patterns)
    return replace(record, first_partitions=first, patterns=tuple(sorted({pattern.pattern for pattern in topology.patterns})))


class Versions:
    """Topologies of the live members, by their records; the leader's own for members that name none."""

    def __init__(self, registry: Registry, layout: TopicLayout, members: Collection[Member]) -> None:
        self._known = registry.versions
        self._layout = layout
        self._current = None if registry.last_topology is None else registry.last_topology.digest
        self._members = members
        self._digests = {member.topology for member in members}
        before = {} if registry.assignment is None else registry.assignment.ran
        self._ran = {task: digest for digest, tasks in before.items() if digest in self._known for task in tasks}
        # A task that a member still has open was not begun by its heir.
        reported = (known.member for known in registry.members.values() if known.member.topology in self._known)
        self._ran |= {task: member.topology for member in reported for task in member.active}
        self._same_version = len(self._digests.union(self._ran.values())) <= 1
        self._stores = {digest: {} if text.shape is None else stores_of(text.shape) for digest, text in self._known.items()}

    @property
    def tasks(self) -> frozenset[TaskId]:
        """Tasks of all versions that live members run, and of the leader's own."""
        return self._layout.tasks.union(*(tasks_of(text.parts) for text in self._live_versions()))

    @property
    def stateful(self) -> frozenset[TaskId]:
        """Tasks with state to copy. Stores that a task has not run with yet are empty."""
        own = {task.subtopology for task in self._layout.stateful}
        return frozenset(task for task in self.tasks if self._is_stateful(task, own))

    @property
    def storeless(self) -> frozenset[TaskId]:
        """Tasks that have no store in any version, with or without a changelog: they leave nothing behind on a disk. Empty as
        long as the stores of a version are unknown."""
        shapes = [text.shape for text in self._known.values()]
        if not shapes or None in shapes:
            return frozenset()
        having = {number for stores in self._stores.values() for number in stores}
        return frozenset(task for task in self.tasks - self.stateful if task.subtopology not in having)

    @property
    def readers(self) -> frozenset[TaskId]:
        """Tasks that may read global stores."""
        reading = {number for text in self._live_versions() for number, part in text.parts.items() if part.reads_global}
        return frozenset(task for task in self.tasks if task.subtopology in reading)

    def _is_stateful(self, task: TaskId, own: Collection[int]) -> bool:
        text = self._known.get(self._ran.get(str(task), ""))
        parts = [text] if text is not None and task.subtopology in text.parts else list(self._live_versions())
        found = [part.parts[task.subtopology].stateful for part in parts if task.subtopology in part.parts]
        return any(found) if found else task.subtopology in own

    def _live_versions(self) -> Iterable[TopologyText]:
        return (self._known[digest] for digest in sorted(self._digests) if digest in self._known)

    def barred(self, member: Member, tasks: Collection[TaskId]) -> frozenset[TaskId]:
        """Return the tasks that the member cannot run."""
        text = self._known.get(member.topology)
        if text is None or self._same_version:
            return frozenset()
        return frozenset(task for task in tasks if task.subtopology not in text.parts or self._would_leave_behind(task, member.topology))

    def _would_leave_behind(self, task: TaskId, digest: str) -> bool:
        previous = self._ran.get(str(task), digest)
        if previous == digest or not self._missing(task, previous, digest):
            return False
        given_up = digest == self._current and all(self._missing(task, previous, other) for other in self._digests)
        return not given_up

    def _missing(self, task: TaskId, previous: str, digest: str) -> frozenset[str]:
        had, has = (self._stores.get(each, {}).get(task.subtopology, frozenset()) for each in (previous, digest))
        return had - has

    def ran(self, grants: Iterable[Grant], heirs: Mapping[str, str]) -> dict[str, list[str]]:
        """Return `Assignment.ran` for these grants, and for heirs, which begin as soon as the task is free."""
        topologies = {member.identity: member.topology for member in self._members}
        ran = self._ran | {task: topologies[grant.identity] for grant in grants for task in grant.active}
        ran |= {task: topologies[identity] for task, identity in heirs.items()}
        found: dict[str, list[str]] = {}
        for task, digest in sorted(ran.items()):
            if digest in self._known:
                found.setdefault(digest, []).append(task)
        return found

    def warn_of(self, waiting: Collection[TaskId]) -> None:
        """Log the tasks that no member can run, and why."""
        for task in sorted(waiting):
            previous = self._ran.get(str(task), "")
            stores = sorted({name for digest in self._digests for name in self._missing(task, previous, digest)})
            had = f"it ran with store {', '.join(stores)}, which no live instance has" if stores else "no live instance has it"
            logger.warning("task %s waits for an instance of another version: %s", task, had)
