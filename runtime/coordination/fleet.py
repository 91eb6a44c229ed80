"""State of the whole application as a worker has read it, for other threads and, encoded, for other processes.

A `Fleet` only holds records that the worker has read anyway, and is made again only after a new record. Queries are computed from it on
their own threads (`streams_metadata.py`), so they cost the worker nothing.
"""

from __future__ import annotations

import msgspec

from penstock.runtime.coordination.records import Assignment, Grant, Member
from penstock.runtime.model.ids import TaskId
from penstock.runtime.model.states import TaskKind, TaskState


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """Members, alive or not yet fenced, and the assignment. `instance`: the instance that has read them. `partitions`: number of partitions
    of every topic that the topology reads."""

    instance: str
    members: tuple[Member, ...]
    assignment: Assignment | None
    partitions: dict[str, int]

    def granted(self) -> list[tuple[Grant, Member]]:
        """Return the grants with their members. A task in transit is in no grant."""
        if self.assignment is None:
            return []
        known = {(member.identity, member.member_id): member for member in self.members}
        found = ((grant, known.get((grant.identity, grant.member_id))) for grant in self.assignment.grants)
        return [(grant, member) for grant, member in found if member is not None]

    def lag(self, task: TaskId) -> int | None:
        """Return the number of records by which this instance's copy of a task's state lags, as last reported (at least every 3 s); 0 if
        the task runs here, None if unknown."""
        reports = [member.tasks[str(task)] for member in self.members if member.instance == self.instance and str(task) in member.tasks]
        if not reports:
            return None
        report = reports[-1]
        if report.kind is not TaskKind.ACTIVE:
            return report.lag
        if report.restore is not None:
            return report.restore.remaining
        return 0 if report.state in (TaskState.RUNNING, TaskState.PAUSED) else None
