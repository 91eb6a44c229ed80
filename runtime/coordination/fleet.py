"""What a worker knows of the whole application, for other threads and, as bytes, for other processes.

It is a bundle of the records that the worker has read anyway: making one copies references, and only when a record has come. Whoever asks a
question works the answer out, on a thread of its own (`streams_metadata.py`), so that a question costs the worker nothing.
"""

from __future__ import annotations

import msgspec

from penstock.runtime.coordination.records import Assignment, Grant, Member
from penstock.runtime.model.ids import TaskId
from penstock.runtime.model.states import TaskKind, TaskState


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """Members, alive or not yet fenced, and who was granted what. `instance`: whose knowledge this is. `partitions`: of every topic that
    the topology reads."""

    instance: str
    members: tuple[Member, ...]
    assignment: Assignment | None
    partitions: dict[str, int]

    def granted(self) -> list[tuple[Grant, Member]]:
        """What was granted, and to whom. A task that is on its way from one to another is in none."""
        if self.assignment is None:
            return []
        known = {(member.who, member.member_id): member for member in self.members}
        found = ((grant, known.get((grant.who, grant.member_id))) for grant in self.assignment.grants)
        return [(grant, member) for grant, member in found if member is not None]

    def lag(self, task: TaskId) -> int | None:
        """How many records this instance's copy of a task's state is behind, as last reported (every 3 s at least); 0 where the task runs,
        None where that is not known."""
        reports = [member.tasks[str(task)] for member in self.members if member.instance == self.instance and str(task) in member.tasks]
        if not reports:
            return None
        report = reports[-1]
        if report.kind is not TaskKind.ACTIVE:
            return report.lag
        if report.restore is not None:
            return report.restore.remaining
        return 0 if report.state in (TaskState.RUNNING, TaskState.PAUSED) else None
