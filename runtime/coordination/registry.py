"""What the coordination topic says, applied record by record: the same at every worker that has read as far."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import msgspec

from runtime.clock import Clock
from runtime.coordination.log import Entry
from runtime.coordination.records import (
    ASSIGNMENT,
    COMMAND,
    DEATH,
    HOLD,
    MEMBER,
    RESULT,
    Assignment,
    Command,
    CommandResult,
    Death,
    Grant,
    Hold,
    Member,
    Tombstone,
    TopologyText,
)
from runtime.states import TaskKind


@dataclass(slots=True)
class Known:
    """A member as far as the log tells. `key`: of its records. `offset`: of the first one that was read here. `held`: tasks that it may be
    running: granted to it, or reported by it, and not yet known to be closed; `kept`: the same of copies. `since_ms`: monotonic time at
    which its present member id was first read here. `told_ms`: wall-clock time of its last record, by the brokers' clock: its own may be
    wrong."""

    member: Member
    key: bytes
    offset: int
    since_ms: int
    held: set[str] = field(default_factory=set)
    kept: set[str] = field(default_factory=set)
    told_ms: int = 0


class Registry:
    """Members, the assignment, and commands that wait for an answer."""

    def __init__(self) -> None:
        self.version = 0
        """Grows with each record that was applied."""
        self.members: dict[str, Known] = {}
        """By identity: instance, worker and incarnation."""
        self.deaths: dict[str, Death] = {}
        """The first word about each death, by the identity of who died."""
        self.assignment: Assignment | None = None
        self.epoch = -1
        """Offset of the last assignment; -1 before the first."""
        self.commands: dict[str, Command] = {}
        """Without a result so far, in order."""
        self.holds: dict[str, Hold] = {}
        """Tasks that were paused by hand."""
        self.topologies: dict[str, str] = {}
        """Descriptions by hash."""
        self.last_topology: TopologyText | None = None
        self._ahead_ms: int | None = None
        """How far the brokers' clock is ahead of the monotonic one here, at least; None as long as it was not seen."""

    def apply(self, entry: Entry, now_ms: int) -> None:
        """Takes the next record in. `now_ms` is monotonic time."""
        self.version += 1
        if entry.at_ms is not None:
            ahead_ms = entry.at_ms - now_ms  # less than it is, by as much as the record is old
            self._ahead_ms = ahead_ms if self._ahead_ms is None else max(ahead_ms, self._ahead_ms)
        match entry.record:
            case Member() as member:
                self._member(member, entry, now_ms)
            case Death() as death:
                at_ms = death.at_ms if entry.at_ms is None else entry.at_ms
                self.deaths.setdefault(death.who, msgspec.structs.replace(death, at_ms=at_ms))
            case Assignment() as assignment:
                self._assignment(assignment, entry.offset)
            case Command() as command:
                issued_ms = command.issued_ms if entry.at_ms is None else entry.at_ms
                self.commands[command.id] = msgspec.structs.replace(command, issued_ms=issued_ms)
            case CommandResult() as result:
                self.commands.pop(result.id, None)
            case Hold() as hold:
                self.holds[hold.task] = hold
            case TopologyText() as topology:
                self.topologies[topology.hash] = topology.text
                self.last_topology = topology
            case Tombstone(kind=kind, id=key):
                if kind == MEMBER:
                    self.members.pop(key, None)
                elif kind == DEATH:
                    self.deaths.pop(key, None)
                elif kind in (COMMAND, RESULT):
                    self.commands.pop(key, None)
                elif kind == HOLD:
                    self.holds.pop(key, None)
                elif kind == ASSIGNMENT:
                    self.assignment = None

    def wall_ms(self, clock: Clock) -> int:
        """What time it is by the brokers' clock: the times of records are told by it. By the clock here as long as that is not known."""
        return clock.wall_ms() if self._ahead_ms is None else clock.monotonic_ms() + self._ahead_ms

    def _member(self, member: Member, entry: Entry, now_ms: int) -> None:
        who = member.who
        known = self.members.get(who)
        if known is None:
            known = self.members[who] = Known(member, entry.key, entry.offset, now_ms)
            self._give(who, known, revoking=True)
        elif known.member.member_id != member.member_id:
            known.since_ms = now_ms
        known.member, known.key = member, entry.key
        known.told_ms = member.heartbeat_ms if entry.at_ms is None else entry.at_ms
        if member.epoch >= self.epoch:
            # It has carried out the last assignment: what it neither reports nor was granted by it, it has closed.
            known.held, known.kept = set(), set()
            self._give(who, known, revoking=False)
        known.held |= member.active
        known.kept |= member.tasks.keys() - member.active

    def _assignment(self, assignment: Assignment, offset: int) -> None:
        self.assignment, self.epoch = assignment, offset
        for who, known in self.members.items():
            self._give(who, known, revoking=True)

    def _grants(self, who: str) -> list[Grant]:
        if self.assignment is None:
            return []
        return [grant for grant in self.assignment.grants if grant.who == who]

    def _give(self, who: str, known: Known, *, revoking: bool) -> None:
        """What the assignment grants a member, now or as an heir, and what is asked back of it (`revoking`), is added to what it may have
        open."""
        for grant in self._grants(who):
            known.held.update(grant.active)
            known.kept.update(grant.standby, grant.learner)
        if self.assignment is not None:
            known.held.update(task for task, heir in self.assignment.heirs.items() if heir == who)
            known.held.update(self.assignment.revoking.get(who, ()) if revoking else ())

    def granted(self, who: str, member_id: str) -> frozenset[str]:
        """The tasks that the last assignment grants to a worker, under this member id, and those to which it is heir and that are free."""
        grants = [grant for grant in self._grants(who) if grant.member_id == member_id]
        heirs = self.assignment.heirs if grants and self.assignment is not None else {}
        inherited = (task for task, heir in heirs.items() if heir == who and self.is_free(task, who))
        return frozenset(task for grant in grants for task in grant.active).union(inherited)

    def followed(self, who: str, member_id: str) -> dict[str, TaskKind]:
        """The tasks of which the last assignment wants a copy at a worker, and of what kind, under this member id."""
        found: dict[str, TaskKind] = {}
        for grant in self._grants(who):
            if grant.member_id == member_id:
                found.update(dict.fromkeys(grant.standby, TaskKind.STANDBY))
                found.update(dict.fromkeys(grant.learner, TaskKind.LEARNER))
        return found

    def is_free(self, task: str, who: str, gone: Collection[str] = ()) -> bool:
        """True if no member but this one may be running the task, and no worker of its own instance may have the task's folder open.
        Members that are `gone` count for nothing."""
        instance = self.members[who].member.instance if who in self.members else ""
        for other, known in self.members.items():
            sibling = known.member.instance == instance
            if other != who and other not in gone and (task in known.held or (sibling and task in known.kept)):
                return False
        return True

    def holders(self, task: str) -> set[str]:
        """The members that may be running a task."""
        return {who for who, known in self.members.items() if task in known.held}

    def successor(self, who: str) -> str:
        """Who stands in for a member that was announced dead: whoever was the first to say so, and so on; the member itself if it lives."""
        while (death := self.deaths.get(who)) is not None:
            who = death.by
        return who
