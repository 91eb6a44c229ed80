"""State of the coordination topic, applied record by record: identical in every worker that has read to the same offset."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import msgspec

from penstock.runtime.coordination.log import Entry
from penstock.runtime.coordination.records import (
    ASSIGNMENT,
    COMMAND,
    DEATH,
    HOLD,
    MEMBER,
    RESET,
    RESULT,
    SHAPE,
    TOPOLOGY,
    Assignment,
    Command,
    CommandResult,
    Death,
    Desired,
    Grant,
    Hold,
    Member,
    Reset,
    StateShape,
    Tombstone,
    TopologyText,
    newest,
)
from penstock.runtime.model.clock import Clock
from penstock.runtime.model.states import TaskKind


@dataclass(frozen=True, slots=True)
class Released:
    """Release of a task: the owner's identity, and when it closed the task or, if it ended without that, wrote its last record, in ms by
    the brokers' clock."""

    identity: str
    at_ms: int


@dataclass(slots=True)
class Known:
    """A member, according to the log. `key`: key of its records. `offset`: of the first one read here. `held`: tasks that it may be
    running: granted to it or reported by it, and not known to be closed; `kept`: the same of copies. `since_ms`: monotonic time at which
    its current member id was first read here. `written_ms`: wall-clock time of its last record by the brokers' clock, since its own may be
    wrong."""

    member: Member
    key: bytes
    offset: int
    since_ms: int
    held: set[str] = field(default_factory=set)
    kept: set[str] = field(default_factory=set)
    written_ms: int = 0


class Registry:
    """Members, the assignment, and unanswered commands."""

    def __init__(self) -> None:
        self.version = 0
        """Number of records applied."""
        self.members: dict[str, Known] = {}
        """By identity: instance, worker and incarnation."""
        self.buried: set[str] = set()
        """Members whose record was deleted. A worker that was taken for dead may write one more before it reads that: the record counts
        for nothing, since its transactional id is fenced and its tasks are others', and the leader deletes it too."""
        self.deaths: dict[str, Death] = {}
        """First report of each death, by the identity of the dead worker. Those by workers that were reported dead before do not count."""
        self.assignment: Assignment | None = None
        self.epoch = -1
        """Offset of the last assignment; -1 before the first."""
        self.released: dict[str, Released] = {}
        """Last release of each task that was released, and is not known to run here since (`Coordination.taken_over`)."""
        self.commands: dict[str, Command] = {}
        """Commands without a result, in log order."""
        self.stopped: set[str] = set()
        """Instances that should no longer run (`Desired`) and have not started since: no task is kept for them."""
        self.holds: dict[str, Hold] = {}
        """Manually paused tasks."""
        self.topologies: dict[str, str] = {}
        """Descriptions by hash."""
        self.versions: dict[str, TopologyText] = {}
        """Topologies by digest, of those whose records have their parts."""
        self.last_topology: TopologyText | None = None
        self.shapes: dict[str, StateShape] = {}
        """Records of the state's shape, by key, in order."""
        self.reset: Reset | None = None
        """The last reset of the application."""
        self._ahead_ms: int | None = None
        """Lower bound of the difference between the brokers' clock and the local monotonic clock; None before the first record."""

    def apply(self, entry: Entry, now_ms: int) -> None:
        """Apply the next record. `now_ms` is monotonic time."""
        self.version += 1
        if entry.at_ms is not None:
            ahead_ms = entry.at_ms - now_ms  # less than it is, by as much as the record is old
            self._ahead_ms = ahead_ms if self._ahead_ms is None else max(ahead_ms, self._ahead_ms)
        match entry.record:
            case Member() as member:
                self._member(member, entry, now_ms)
            case Death() as death:
                at_ms = death.at_ms if entry.at_ms is None else entry.at_ms
                if death.by not in self.deaths:  # of two that take each other for dead the first to say so lives
                    self.deaths.setdefault(death.identity, msgspec.structs.replace(death, at_ms=at_ms))
            case Assignment() as assignment:
                self._assignment(assignment, entry.offset)
            case Command() as command:
                issued_ms = command.issued_ms if entry.at_ms is None else entry.at_ms
                self.commands[command.id] = msgspec.structs.replace(command, issued_ms=issued_ms)
            case CommandResult() as result:
                self.commands.pop(result.id, None)
            case Desired() as desired:
                (self.stopped.discard if desired.running else self.stopped.add)(desired.instance)
            case Hold() as hold:
                self.holds[hold.task] = hold
            case Reset() as reset:
                self.reset = reset
            case TopologyText() as topology:
                self.topologies[topology.hash] = topology.text
                self.last_topology = topology
                if topology.parts:
                    self.versions[topology.digest] = topology
            case StateShape() as shape:
                self.shapes.setdefault(shape.key.decode(), shape)
            case Tombstone(kind=kind, id=key):
                if kind == MEMBER and (gone := self.members.pop(key, None)) is not None:
                    self.buried.add(key)
                    self._note_release(gone.held, Released(key, gone.written_ms))
                elif kind == DEATH:
                    self.deaths.pop(key, None)
                elif kind in (COMMAND, RESULT):
                    self.commands.pop(key, None)
                elif kind == HOLD:
                    self.holds.pop(key, None)
                elif kind == SHAPE:
                    self.shapes.pop(f"{SHAPE}/{key}", None)
                elif kind == ASSIGNMENT:
                    self.assignment = None
                elif kind == TOPOLOGY:
                    self._forget_topology(key)
                elif kind == RESET:
                    self.reset = None

    @property
    def state(self) -> StateShape | None:
        """The valid record of the state's shape."""
        return newest(self.shapes.values())

    def wall_ms(self, clock: Clock) -> int:
        """Return the time by the brokers' clock, which stamps the records; by the local clock before the first record."""
        return clock.wall_ms() if self._ahead_ms is None else clock.monotonic_ms() + self._ahead_ms

    def _forget_topology(self, key: str) -> None:
        self.topologies.pop(key, None)
        self.versions.pop(key, None)
        if self.last_topology is not None and self.last_topology.key == f"{TOPOLOGY}/{key}".encode():
            self.last_topology = None

    def _member(self, member: Member, entry: Entry, now_ms: int) -> None:
        identity = member.identity
        known = self.members.get(identity)
        if known is None:
            known = self.members[identity] = Known(member, entry.key, entry.offset, now_ms)
            self._give(identity, known, revoking=True)
            if not member.returns:
                self.stopped.discard(member.instance)
        elif known.member.member_id != member.member_id:
            known.since_ms = now_ms
        known.member, known.key = member, entry.key
        known.written_ms = member.heartbeat_ms if entry.at_ms is None else entry.at_ms
        before = known.held
        if member.epoch >= self.epoch:
            # It has carried out the last assignment: what it neither reports nor was granted by it, it has closed.
            known.held, known.kept = set(), set()
            self._give(identity, known, revoking=False)
        known.held |= member.active
        self._note_release(before - known.held, Released(identity, known.written_ms))
        known.kept |= member.tasks.keys() - member.active

    def _note_release(self, tasks: Iterable[str], released: Released) -> None:
        self.released.update(dict.fromkeys(tasks, released))

    def _assignment(self, assignment: Assignment, offset: int) -> None:
        self.assignment, self.epoch = assignment, offset
        for identity, known in self.members.items():
            self._give(identity, known, revoking=True)

    def _grants(self, identity: str) -> list[Grant]:
        if self.assignment is None:
            return []
        return [grant for grant in self.assignment.grants if grant.identity == identity]

    def _give(self, identity: str, known: Known, *, revoking: bool) -> None:
        """Add to the tasks that a member may have open: those granted to it, those it is heir to, and with `revoking` those it must
        release."""
        for grant in self._grants(identity):
            known.held.update(grant.active)
            known.kept.update(grant.standby, grant.learner)
        if self.assignment is not None:
            known.held.update(task for task, heir in self.assignment.heirs.items() if heir == identity)
            known.held.update(self.assignment.revoking.get(identity, ()) if revoking else ())

    def granted(self, identity: str, member_id: str) -> frozenset[str]:
        """Return the tasks that the last assignment grants to a worker under this member id, and the free ones to which it is heir."""
        grants = [grant for grant in self._grants(identity) if grant.member_id == member_id]
        heirs = self.assignment.heirs if grants and self.assignment is not None else {}
        inherited = (task for task, heir in heirs.items() if heir == identity and self.is_free(task, identity))
        return frozenset(task for grant in grants for task in grant.active).union(inherited)

    def followed(self, identity: str, member_id: str) -> dict[str, TaskKind]:
        """Return the tasks of which the last assignment places a copy at a worker under this member id, with the kind of copy."""
        found: dict[str, TaskKind] = {}
        for grant in self._grants(identity):
            if grant.member_id == member_id:
                found.update(dict.fromkeys(grant.standby, TaskKind.STANDBY))
                found.update(dict.fromkeys(grant.learner, TaskKind.LEARNER))
        return found

    def is_free(self, task: str, identity: str, gone: Collection[str] = ()) -> bool:
        """Return True if no other member may be running the task, and no other worker of the same instance may have the task's folder open.
        Members in `gone` and buried ones are ignored, and those that said that they close for a restart: they do so when all of their
        tasks are committed and closed."""
        instance = self.members[identity].member.instance if identity in self.members else ""
        for other, known in self.members.items():
            if other == identity or other in gone or other in self.buried or known.member.returns:
                continue
            if task in known.held or (known.member.instance == instance and task in known.kept):
                return False
        return True

    def is_granted(self, task: str) -> bool:
        """Return True if the assignment grants the task to a current member."""
        return self.assignment is not None and any(
            task in grant.active and grant.identity in self.members for grant in self.assignment.grants
        )

    def is_at(self, task: str, instance: str) -> bool:
        """Return True if a worker of the instance may have the task open, is its heir, or has it reserved."""
        if any(known.member.instance == instance and task in known.held | known.kept for known in self.members.values()):
            return True
        if self.assignment is None:
            return False
        heir, reserved = self.assignment.heirs.get(task, ""), self.assignment.reserved.get(task)
        return heir.rpartition("/")[0].rpartition("/")[0] == instance or (reserved is not None and reserved.instance == instance)

    def holders(self, task: str) -> set[str]:
        """Return the members that may be running a task."""
        return {identity for identity, known in self.members.items() if task in known.held}

    def successor(self, identity: str) -> str:
        """Return the deputy of a member reported dead: the first reporter, or that one's deputy if it died too; a live member itself."""
        while (death := self.deaths.get(identity)) is not None:
            identity = death.by
        return identity
