"""What the coordination topic says, applied record by record: the same at every worker that has read as far."""

from __future__ import annotations

from dataclasses import dataclass, field

from runtime.coordination.log import Entry
from runtime.coordination.records import (
    ASSIGNMENT,
    COMMAND,
    HOLD,
    MEMBER,
    RESULT,
    Assignment,
    Command,
    CommandResult,
    Grant,
    Hold,
    Member,
    Tombstone,
    TopologyText,
)
from runtime.states import TaskKind


@dataclass(slots=True)
class Known:
    """A member as far as the log tells. `offset`: of the first record about it that was read here. `held`: tasks that it may be running:
    granted to it, or reported by it, and not yet known to be closed. `since_ms`: monotonic time at which its present member id was first
    read here."""

    member: Member
    offset: int
    since_ms: int
    held: set[str] = field(default_factory=set)


def member_key(instance: str, incarnation: int) -> str:
    """The identity of a worker's incarnation."""
    return f"{instance}/{incarnation}"


class Registry:
    """Members, the assignment, and commands that wait for an answer."""

    def __init__(self) -> None:
        self.members: dict[str, Known] = {}
        self.assignment: Assignment | None = None
        self.epoch = -1
        """Offset of the last assignment; -1 before the first."""
        self.commands: dict[str, Command] = {}
        """Without a result so far, in order."""
        self.holds: dict[str, Hold] = {}
        """Tasks that were paused by hand."""
        self.topologies: dict[str, str] = {}
        """Descriptions by hash."""

    def apply(self, entry: Entry, now_ms: int) -> None:
        """Takes the next record in."""
        match entry.record:
            case Member() as member:
                self._member(member, entry.offset, now_ms)
            case Assignment() as assignment:
                self._assignment(assignment, entry.offset)
            case Command() as command:
                self.commands[command.id] = command
            case CommandResult() as result:
                self.commands.pop(result.id, None)
            case Hold() as hold:
                self.holds[hold.task] = hold
            case TopologyText() as topology:
                self.topologies[topology.hash] = topology.text
            case Tombstone(kind=kind, id=key):
                if kind == MEMBER:
                    self.members.pop(key, None)
                elif kind in (COMMAND, RESULT):
                    self.commands.pop(key, None)
                elif kind == HOLD:
                    self.holds.pop(key, None)
                elif kind == ASSIGNMENT:
                    self.assignment = None

    def _member(self, member: Member, offset: int, now_ms: int) -> None:
        key = member_key(member.instance, member.incarnation)
        known = self.members.get(key)
        if known is None:
            known = self.members[key] = Known(member, offset, now_ms)
            if self.assignment is not None:
                known.held |= self._given(key)
        elif known.member.member_id != member.member_id:
            known.since_ms = now_ms
        known.member = member
        if member.epoch >= self.epoch:
            # It has carried out the last assignment: what it neither reports nor was granted by it, it has closed.
            known.held = {task for grant in self._grants(key) for task in grant.active} | member.active
        else:
            known.held |= member.active

    def _assignment(self, assignment: Assignment, offset: int) -> None:
        self.assignment, self.epoch = assignment, offset
        for key, known in self.members.items():
            known.held |= self._given(key)

    def _grants(self, key: str) -> list[Grant]:
        if self.assignment is None:
            return []
        return [grant for grant in self.assignment.grants if member_key(grant.instance, grant.incarnation) == key]

    def _given(self, key: str) -> set[str]:
        if self.assignment is None:
            return set()
        return {task for grant in self._grants(key) for task in grant.active} | set(self.assignment.revoking.get(key, ()))

    def granted(self, key: str, member_id: str) -> frozenset[str]:
        """The tasks that the last assignment grants to a worker, under this member id."""
        return frozenset(task for grant in self._grants(key) if grant.member_id == member_id for task in grant.active)

    def followed(self, key: str, member_id: str) -> dict[str, TaskKind]:
        """The tasks of which the last assignment wants a copy at a worker, and of what kind, under this member id."""
        found: dict[str, TaskKind] = {}
        for grant in self._grants(key):
            if grant.member_id == member_id:
                found.update(dict.fromkeys(grant.standby, TaskKind.STANDBY))
                found.update(dict.fromkeys(grant.learner, TaskKind.LEARNER))
        return found

    def holders(self, task: str) -> set[str]:
        """The members that may be running a task."""
        return {key for key, known in self.members.items() if task in known.held}
