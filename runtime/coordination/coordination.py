"""A worker's part in the coordination of its application (coordination.md).

What the worker is told is computed from what it should run and what it last reported, not from the records that came by: an order that
could not be carried out (the broker went away in the middle of a hand-over) is given again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from runtime.changelog.checkpoint import read_checkpoint
from runtime.clock import Clock
from runtime.commit.transactions import GroupMetadata
from runtime.config import StreamsConfig
from runtime.coordination.compatibility import Compatibility
from runtime.coordination.fleet import Fleet
from runtime.coordination.group import Membership
from runtime.coordination.leader import Leader
from runtime.coordination.liveness import Liveness
from runtime.coordination.log import CoordinationLog
from runtime.coordination.rack_watch import RackWatch
from runtime.coordination.records import HOLD, Command, CommandResult, Death, Hold, Member, TaskReport, TopologyText, encode
from runtime.coordination.registry import Registry
from runtime.coordination.topic_life import TopicLife
from runtime.errors import StreamsError, TaskMigratedError
from runtime.ids import TaskId
from runtime.states import State, TaskKind
from runtime.stores.directory import StateDirectory
from runtime.topics import TopicLayout
from runtime.topology.shape import shape_of
from runtime.topology.topology import Topology

logger = logging.getLogger(__name__)

HEARTBEAT_MS = 3_000
"""How often the MEMBER record is written while nothing changes."""
LEAD_AT_LEAST_MS = 500
"""How long orders that are given again and again, because they cannot be carried out, may keep a leader from leading."""
STALE_COMMAND_MS = 60_000
"""A command that is older than this when it is read is left alone: whoever sent it has given up."""


@dataclass(frozen=True, slots=True)
class Granted:
    """The tasks that this worker is to run now, and those of which it is to keep a copy, by kind; all of them."""

    epoch: int
    active: frozenset[TaskId]
    copies: Mapping[TaskId, TaskKind]


@dataclass(frozen=True, slots=True)
class Revoked:
    """Tasks to commit, close and report closed: others wait for them."""

    tasks: tuple[TaskId, ...]


@dataclass(frozen=True, slots=True)
class Lost:
    """The group dropped this worker: its tasks may be others' by now."""

    reason: str


Told = Granted | Revoked | Lost | Command


class Coordination:
    """Membership, reading and writing of the coordination topic, and the leader's work when this worker leads. Belongs to the worker's
    thread."""

    def __init__(self, config: StreamsConfig, topology: Topology, layout: TopicLayout, directory: StateDirectory, clock: Clock) -> None:
        """Contacts the brokers on the first `poll`."""
        self._config = config
        self._layout = layout
        self._directory = directory
        self._clock = clock
        shape = shape_of(topology, config.application_id)
        self._topology = TopologyText(hash=topology.hash(), text=str(topology.describe()), shape=shape)
        self._racks = RackWatch(config, topology, layout, clock)
        self._life = TopicLife(config, clock)
        self._connect()
        self._member: Member | None = None
        self._announced = False
        self._told_epoch = -1
        self._led_ms = 0
        self._open: frozenset[TaskId] = frozenset()
        self._copied: frozenset[TaskId] = frozenset()
        self._written_ms = 0
        self._seen: set[str] = set()
        self._buried: set[str] = set()
        """Predecessors whose death was announced."""
        self._fleet: Fleet | None = None
        self._holds: dict[TaskId, bool] = {}
        """What was decided here about tasks that are open here, and may not yet have been read back."""

    def _connect(self) -> None:
        config, clock = self._config, self._clock
        self._membership = Membership(config)
        self._log = CoordinationLog(config)
        self._registry = Registry()
        self._liveness = Liveness(config, self._membership, clock)
        self._compatibility = Compatibility(self._topology, self._registry, self._liveness)
        self._leader = Leader(config, self._layout, self._membership, self._liveness, self._log, self._registry, self._racks, clock)
        self._joined = False

    def _reconnect(self) -> None:
        """The coordination topic is gone, or another one: everything begins anew but pauses by hand. Raises TaskMigratedError to be called
        again, as long as the topic cannot be made."""
        held = [hold for task, hold in self._registry.holds.items() if self.held(TaskId.parse(task))]
        try:
            self._life.renew()
        except StreamsError as error:
            raise TaskMigratedError(f"the coordination topic is gone: {error}") from error
        self._log.drop()
        self._disconnect()
        self._connect()
        for hold in held:
            self._log.append(hold.key, encode(hold))

    # -- membership ------------------------------------------------------------------------------------------------------------

    def start(self, member: Member) -> None:
        """Begins an incarnation, whose transactional id has been initialised. It is announced as soon as the group has taken this worker
        in; it holds no tasks until it is granted some."""
        if self._life.over():
            self._reconnect()
        self._life.start()
        self._member = msgspec.structs.replace(
            member,
            disk=self._disk(),
            topology_hash=self._topology.hash,
            state=State.REBALANCING,
            rack=self._config.client_rack,
            tags=dict(self._config.client_tags),
        )
        self._announced, self._told_epoch, self._open, self._copied = False, -1, frozenset(), frozenset()
        self._leader.begin(member.who)
        if not self._joined or self._membership.lost:
            self._membership.join()
            self._joined = True

    def _disk(self) -> dict[str, int]:
        return {str(task): self._position(task) for task in self._directory.tasks_on_disk()}

    def look_at_disk(self) -> None:
        """Tells which tasks have state on the disk, if others than before have: folders are removed when they are old."""
        disk = self._disk()
        if self._member is not None and self._announced and disk.keys() != self._member.disk.keys():
            self._announce(disk=disk)

    def _position(self, task: TaskId) -> int:
        try:
            return sum(offset for offset in read_checkpoint(self._directory.task_directory(task)).values() if offset is not None)
        except StreamsError as error:
            logger.warning("task %s: %s", task, error)
            return 0

    @property
    def _key(self) -> str:
        return "" if self._member is None else self._member.who

    def _announce(self, **changes: object) -> None:
        if self._member is None:
            return
        now_ms = self._clock.wall_ms()
        self._member = msgspec.structs.replace(self._member, heartbeat_ms=now_ms, **changes)
        self._written_ms = self._clock.monotonic_ms()
        self._log.append(self._member.key, encode(self._member))

    def poll(self) -> list[Told]:
        """What the worker has to do now. Never waits. Also where the leader works.

        Raises TopologyError if another topology runs under this application id, StreamsConfigError if another instance has this one's name.
        """
        self._membership.poll()
        for entry in self._log.poll():
            self._registry.apply(entry, self._clock.monotonic_ms())
            self._fleet = None
        if self._member is None:
            return []
        if not self._announced and not self._life.over() and not self._introduced(self._member):
            return []
        reason = "the coordination topic was deleted, or made anew" if self._life.over() else self._lost_reason()
        if reason is not None:
            return [Lost(reason)]
        if self._told_epoch < 0 and not self._compatibility.checked(self._member):
            return []
        told = [*self._orders(), *self._commands()]
        # What this worker has to do comes first: others wait for that, and the leader's assignment may take a tenth of a second.
        if not told or self._clock.monotonic_ms() - self._led_ms >= LEAD_AT_LEAST_MS:
            self._led_ms = self._clock.monotonic_ms()
            self._leader.step()
        return told

    def _introduced(self, member: Member) -> bool:
        """Announces this worker if the group has taken it in, the topic is read, and nobody runs another topology."""
        if self._log.at_end:
            self._bury_predecessors(member)
        if not self._membership.member_id or not self._membership.joined or not self._log.at_end:
            return False
        if not self._compatibility.has_its_name(member) or not self._compatibility.checked(member):
            return False
        if self._topology != self._registry.last_topology:
            self._log.append(self._topology.key, encode(self._topology))
        self._announced = True
        self._announce(member_id=self._membership.member_id)
        return True

    def _bury_predecessors(self, member: Member) -> None:
        """Earlier incarnations of this worker are dead: whoever holds the lock of the state directory knows. The others need not wait for
        their sessions. (This worker has to: the group lets nobody in before.)"""
        for who, known in self._registry.members.items():
            other = known.member
            same = (other.instance, other.worker, other.host, other.state_dir)
            former = same == (member.instance, member.worker, member.host, member.state_dir) and other.incarnation < member.incarnation
            if former and not other.returns and who not in self._buried:
                self._buried.add(who)
                self.announce_death(other.instance, other.worker, other.incarnation)

    def _lost_reason(self) -> str | None:
        assert self._member is not None
        if self._membership.lost:
            return "its session ran out, or the group was rebuilt"
        if self._membership.member_id != self._member.member_id:
            return f"the group knows it as {self._membership.member_id or 'nobody'} now"
        known = self._registry.members.get(self._key)
        if known is None and self._told_epoch >= 0:
            return "the leader took it for dead"
        return None

    def _orders(self) -> list[Told]:
        """From what was granted and what is open. Only an assignment after this incarnation's own record counts (rules.md, 21)."""
        assert self._member is not None
        registry = self._registry
        known = registry.members.get(self._key)
        if known is None or registry.epoch < 0:
            return []
        granted = frozenset(TaskId.parse(task) for task in registry.granted(self._key, self._member.member_id))
        told: list[Told] = []
        revoked = tuple(sorted(self._open - granted))
        if revoked:
            told.append(Revoked(revoked))
        if granted - self._open or (registry.epoch != self._told_epoch and self._is_mine(registry)):
            followed = registry.followed(self._key, self._member.member_id)
            copies = {TaskId.parse(task): kind for task, kind in followed.items()}
            told.append(Granted(registry.epoch, granted, {task: kind for task, kind in copies.items() if task not in granted}))
            self._told_epoch = registry.epoch
        return told

    def _is_mine(self, registry: Registry) -> bool:
        assignment = registry.assignment
        return assignment is not None and any(grant.who == self._key for grant in assignment.grants)

    def _commands(self) -> list[Told]:
        assert self._member is not None
        if self._key not in self._registry.members:
            return []  # its own record, when it comes, tells how late it is
        now_ms = self._registry.wall_ms(self._clock)
        mine: list[Told] = []
        for command in list(self._registry.commands.values()):
            if command.id in self._seen or now_ms - command.issued_ms > STALE_COMMAND_MS:
                continue
            if self._concerns_me(command):
                self._seen.add(command.id)
                mine.append(command)
            elif self._membership.leads and command.task is not None and not self._is_task(command.task):
                self._seen.add(command.id)
                known = ", ".join(str(task) for task in sorted(self._layout.tasks))
                self.result(
                    CommandResult(
                        id=command.id, ok=False, reason=f"there is no task {command.task}: known are {known}", by=self._member.instance
                    )
                )
        return mine

    def _concerns_me(self, command: Command) -> bool:
        assert self._member is not None
        if command.instance is not None and command.instance != self._member.instance:
            return False
        if command.task is None:
            return command.instance is not None and command.worker in (None, self._member.worker)
        return self._is_task(command.task) and TaskId.parse(command.task) in self._open

    def _is_task(self, text: str) -> bool:
        return any(str(task) == text for task in self._layout.tasks)

    def fleet(self) -> Fleet | None:
        """What is known of the whole application now; None before the topic has been read to its end. The same object until a record
        comes."""
        if self._fleet is None and self._member is not None and self._log.at_end:
            self._fleet = Fleet(
                instance=self._member.instance,
                members=tuple(known.member for known in self._registry.members.values()),
                assignment=self._registry.assignment,
                partitions=dict(self._layout.partitions),
            )
        return self._fleet

    # -- what the worker tells ---------------------------------------------------------------------------------------------------

    def report(self, tasks: Mapping[TaskId, TaskReport], state: State) -> None:
        """What this worker has open now, and its state. Written when something but an offset changed, and as a heartbeat."""
        self._open = frozenset(task for task, report in tasks.items() if report.kind is TaskKind.ACTIVE)
        self._copied = frozenset(tasks) - self._open
        self._holds = {task: held for task, held in self._holds.items() if task in self._open}
        if self._member is None or not self._announced:
            return
        reports = {str(task): report for task, report in sorted(tasks.items())}
        epoch = self._carried_out()
        before = self._member
        same = (
            before.state is state
            and before.epoch == epoch
            and before.tasks.keys() == reports.keys()
            and all(_essence(before.tasks[task]) == _essence(report) for task, report in reports.items())
        )
        if not same or self._clock.monotonic_ms() - self._written_ms >= HEARTBEAT_MS:
            self._announce(tasks=reports, state=state, epoch=epoch)

    def released(self, tasks: Iterable[TaskId]) -> None:
        """These tasks are committed and closed: others may have them."""
        self._open -= frozenset(tasks)
        if self._member is not None and self._announced:
            closed = {task: self._member.tasks[task] for task in self._member.active if TaskId.parse(task) not in self._open}
            reports = {task: report for task, report in self._member.tasks.items() if task not in closed}
            disk = {**self._member.disk, **{task: report.position for task, report in closed.items() if not report.in_memory}}
            self._announce(tasks=reports, disk=disk, epoch=self._carried_out())

    def _carried_out(self) -> int:
        """The last assignment of which nothing is left to be closed here."""
        assert self._member is not None
        granted = self._registry.granted(self._key, self._member.member_id)
        followed = self._registry.followed(self._key, self._member.member_id).keys()
        done = {str(task) for task in self._open} <= granted and {str(task) for task in self._copied} <= followed
        return self._registry.epoch if done else self._member.epoch

    def announce_death(self, instance: str, worker: int, incarnation: int) -> None:
        """The process of this worker has ended, as its parent knows: the leader need not wait for its session. To be called only where that
        is certain. If it led, this worker stands in for it, provided that it was the first to say so."""
        if self._member is not None:
            death = Death(instance=instance, worker=worker, incarnation=incarnation, by=self._key, at_ms=self._clock.wall_ms())
            if death.who not in self._registry.deaths:
                self._log.append(death.key, encode(death))

    def guard(self) -> GroupMetadata:
        """The group metadata that a transaction is guarded with. Raises TaskMigratedError if this worker is no longer who was granted the
        tasks."""
        return self._membership.metadata(self._member.member_id if self._member is not None else "")

    def held(self, task: TaskId) -> bool:
        """True for a task that was paused by hand, here or at an owner before, and not resumed since."""
        return self._holds.get(task, str(task) in self._registry.holds)

    def hold(self, task: TaskId) -> None:
        """The task was paused by hand: so will be its next owners, until one of them is told to resume it."""
        if self._member is not None and not self.held(task):
            record = Hold(task=str(task), by=self._member.instance, at_ms=self._clock.wall_ms())
            self._holds[task] = True
            self._log.append(record.key, encode(record))

    def release(self, task: TaskId) -> None:
        """Ends `hold`."""
        if self._member is not None and self.held(task):
            self._holds[task] = False
            self._log.append(f"{HOLD}/{task}".encode(), None)

    def result(self, result: CommandResult) -> None:
        """The answer to a command."""
        self._log.append(result.key, encode(result))

    @property
    def moving(self) -> bool:
        """True while a task is on its way from one member to another: then everybody listens closely."""
        assignment = self._registry.assignment
        return assignment is not None and bool(assignment.revoking or assignment.heirs)

    def has_heirs(self, siblings_stay: bool) -> bool:
        """True while there are members, other than this one, that stay. (One that is dead counts until it is fenced.) Other workers of this
        instance do, or they leave with it."""
        mine = None if siblings_stay or self._member is None else self._member.instance
        others = [known.member for key, known in self._registry.members.items() if key != self._key and known.member.instance != mine]
        return self._announced and not all(member.leaves or member.returns for member in others)

    def ask_to_leave(self) -> None:
        """Has the others learn this worker's tasks and take them over."""
        self._announce(leaves=True)

    def leave(self, leave_group: bool) -> None:
        """After all tasks were closed. Without `leave_group` the leader keeps them for this instance (rules.md, 4)."""
        if self._member is not None and self._announced:
            if leave_group:
                self._log.append(self._member.key, None)
            else:
                self._announce(tasks={}, state=State.PENDING_SHUTDOWN, returns=True)
            self._log.flush()

    def close(self) -> None:
        """Leaves the group and closes the clients."""
        self._life.close()
        self._racks.close()
        self._disconnect()

    def _disconnect(self) -> None:
        self._leader.close()
        self._liveness.close()
        self._membership.close()
        self._log.close()


def _essence(report: TaskReport) -> TaskReport:
    """A report without what changes all the time."""
    return msgspec.structs.replace(report, offset_sum=0, end_sum=0, position=0, lag=None, restore=None)
