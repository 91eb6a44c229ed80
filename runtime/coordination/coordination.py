"""A worker's part in the coordination of its application (coordination.md).

Instructions are computed from the tasks that the worker should run and its last report, not from single records: one that
could not be carried out (the broker went away in the middle of a hand-over) is given again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.coordination.compatibility import Compatibility
from penstock.runtime.coordination.disk import DiskPositions
from penstock.runtime.coordination.failure_detection import FailureDetection, watched_by
from penstock.runtime.coordination.fleet import Fleet
from penstock.runtime.coordination.group import membership
from penstock.runtime.coordination.leader import Leader
from penstock.runtime.coordination.liveness import Liveness
from penstock.runtime.coordination.log import CoordinationLog
from penstock.runtime.coordination.rack_watch import RackWatch
from penstock.runtime.coordination.records import (
    HOLD,
    PROTOCOL,
    Command,
    CommandResult,
    Death,
    GlobalStoreReport,
    Hold,
    Member,
    Reset,
    Shutdown,
    TaskReport,
    encode,
)
from penstock.runtime.coordination.registry import Registry
from penstock.runtime.coordination.resets import refuse_other
from penstock.runtime.coordination.state_shape import Acceptance, StateRecord
from penstock.runtime.coordination.stores_left_behind import refuse_left_behind
from penstock.runtime.coordination.topic_life import TopicLife
from penstock.runtime.coordination.topics import TopicLayout, heartbeats_topic
from penstock.runtime.coordination.versions import Versions, topology_record, with_first_partitions
from penstock.runtime.kafka.heartbeats import Heartbeats
from penstock.runtime.kafka.throttling import Throttling
from penstock.runtime.kafka.topic_admin import TopicAdmin
from penstock.runtime.kafka.topic_watch import TopicWatcher
from penstock.runtime.model.clock import Clock
from penstock.runtime.model.errors import BrokerUnavailableError, StreamsError, TaskMigratedError
from penstock.runtime.model.ids import TaskId
from penstock.runtime.model.states import State, TaskKind
from penstock.runtime.stores.directory import StateDirectory
from penstock.runtime.topology.shape import tasks_of
from penstock.runtime.topology.topology import Topology

logger = logging.getLogger(__name__)

HEARTBEAT_MS = 3_000
"""Interval at which the MEMBER record is written while nothing changes."""
LEAD_AT_LEAST_MS = 500
"""Longest time for which instructions that are repeated, because they cannot be carried out, may keep a leader from its step."""
BEGINNING_MS = 10_000
"""Time for which a worker polls the topic more often while it waits for its first assignment: after that it waits for something that takes
long, as the end of a session."""
STALE_COMMAND_MS = 60_000
"""A command older than this when it is read is ignored: its sender has given up."""


@dataclass(frozen=True, slots=True)
class Granted:
    """All tasks that this worker is to run now, and all those of which it is to keep a copy, by kind. `cause`: of the assignment
    (`decision.Cause`)."""

    epoch: int
    active: frozenset[TaskId]
    copies: Mapping[TaskId, TaskKind]
    cause: str = ""


@dataclass(frozen=True, slots=True)
class TakenOver:
    """Hand-over of a task to this worker: identity of its previous owner, and ms from its release, or from the last record of an owner
    that ended without one, until now."""

    owner: str
    gap_ms: int


@dataclass(frozen=True, slots=True)
class Revoked:
    """Tasks to commit, to close, and to report as closed: other members wait for them."""

    tasks: tuple[TaskId, ...]


@dataclass(frozen=True, slots=True)
class Lost:
    """The group dropped this worker: its tasks may be others' by now."""

    reason: str


Instruction = Granted | Revoked | Lost | Command | Shutdown


class Coordination:
    """Membership in the group, reading and writing of the coordination topic, and the leader's work if this worker leads. Used by the
    worker's thread only."""

    def __init__(
        self,
        config: StreamsConfig,
        topology: Topology,
        layout: TopicLayout,
        directory: StateDirectory,
        topics: TopicAdmin,
        watcher: TopicWatcher,
        clock: Clock,
        acceptance: Acceptance,
        memory: Callable[[], dict[str, int]],
        throttling: Throttling,
    ) -> None:
        """Makes no request before the first `poll`. `acceptance`: how the topology fits the state. `memory`: memory of this process by
        part, for the records of this worker. `throttling`: the delays of its clients."""
        self._memory = memory
        self._throttling = throttling
        self.global_stores: Mapping[str, GlobalStoreReport] = {}
        """This worker's copies of the global stores, for its next record."""
        self.written = 0
        """Number of records that it has written, for its next record."""
        self._config = config
        self._layout = layout
        self._directory = directory
        self._disk = DiskPositions(directory)
        self._clock = clock
        self._program = topology
        self._topology = topology_record(topology, config.application_id, layout)
        self._acceptance = acceptance
        self._topics = topics
        self._racks = RackWatch(config, topology, layout, topics, watcher)
        self._life = TopicLife(config, topics, clock, watcher)
        silence_ms, own_topic = config.integer("failure.detection.ms"), heartbeats_topic(config.application_id)
        self._heartbeats = Heartbeats(config.admin_properties(), own_topic, silence_ms, clock, throttling)
        self._failures = FailureDetection(config, clock)
        self.membership = membership(config)
        """Membership in the group of the workers. It lives as long as this object, because transports keep its guard."""
        self._connect()
        self._member: Member | None = None
        self._announced = False
        self._granted_epoch = -1
        self._begun_ms = clock.monotonic_ms()
        """Time of the start of this incarnation."""
        self._led_ms = 0
        self._open: frozenset[TaskId] = frozenset()
        self._copied: frozenset[TaskId] = frozenset()
        self._written_ms = 0
        self._read_back_ms = 0
        """Time at which this worker last read a record of its own (monotonic ms)."""
        self._session_ms = config.integer("session.timeout.ms")
        self._seen: set[str] = set()
        self._buried: set[str] = set()
        """Predecessors whose death was announced."""
        self._fleet: Fleet | None = None
        self._reset: Reset | None = None
        """The last reset; this worker's state is younger."""
        self._shutdown: Shutdown | None = None
        """Request to close that came after this worker's first record."""
        self._holds: dict[TaskId, bool] = {}
        """Manual pauses decided here for open tasks, which may not have been read back yet."""

    def _connect(self) -> None:
        config, clock = self._config, self._clock
        self._log = CoordinationLog(config)
        self._registry = Registry()
        self._liveness = Liveness(config, self.membership, clock)
        self._compatibility = Compatibility(self._topology, self._registry, self._liveness)
        self._state_record = StateRecord(self._acceptance, self._registry, self._log)
        self._leader = Leader(config, self._layout, self.membership, self._liveness, self._log, self._registry, self._racks, clock)
        self._joined = False

    def _reconnect(self) -> None:
        """Make the coordination topic again and join again, where it is gone or another one; pauses by hand and the last reset are kept.
        Raises TaskMigratedError, to be called again, as long as the topic cannot be made."""
        if (holds := self._registry.state) is not None:
            self._acceptance = self._acceptance.on(holds.shape)
        held = [hold for task, hold in self._registry.holds.items() if self.held(TaskId.parse(task))]
        try:
            self._life.renew()
        except StreamsError as error:
            raise TaskMigratedError(f"the coordination topic is gone: {error}") from error
        self._log.drop()
        self._disconnect()
        self.membership.open()
        self._connect()
        if self._reset is not None:
            self._log.append(self._reset.key, encode(self._reset))
        for hold in held:
            self._log.append(hold.key, encode(hold))

    # -- membership ------------------------------------------------------------------------------------------------------------

    def start(self, member: Member) -> None:
        """Begin an incarnation, whose transactional id has been initialised. It is announced as soon as the group has admitted this worker,
        and has no tasks until it is granted some."""
        if self._life.over():
            self._reconnect()
        self._life.start()
        self._member = msgspec.structs.replace(
            member,
            disk=self._disk.read(),
            topology_hash=self._topology.hash,
            topology=self._topology.digest,
            protocol=PROTOCOL,
            state=State.REBALANCING,
            rack=self._config.client_rack,
            tags=dict(self._config.client_tags),
            heartbeats=self._heartbeats.id,
        )
        self._announced, self._granted_epoch, self._open, self._copied = False, -1, frozenset(), frozenset()
        self._begun_ms = self._clock.monotonic_ms()
        self.membership.granted_to = ""
        self._leader.begin(member.identity)
        if not self._joined or self.membership.lost:
            self.membership.join()
            self._joined = True

    @property
    def in_touch(self) -> bool:
        """True while this worker is a member of the group, has read an assignment since it joined, and reads back its own records: a broker
        may be unreachable for long before the session expires."""
        return (
            self._granted_epoch >= 0
            and not self._life.over()
            and self._lost_reason() is None
            and self._clock.monotonic_ms() - self._read_back_ms < self._session_ms
        )

    @property
    def first_partitions(self) -> dict[str, int]:
        """The number of partitions of each input topic when the application first read it; known before this worker is granted tasks."""
        now = self._layout.partitions
        return {topic: min(count, now[topic]) for topic, count in self._topology.first_partitions.items() if topic in now}

    def runs_elsewhere(self, task: TaskId) -> bool:
        """Return True if the task is granted to another instance or part of no known topology, and no worker of this instance has it open,
        inherits it or has it reserved."""
        assert self._member is not None
        registry = self._registry
        known = task in self._layout.tasks or any(task in tasks_of(text.parts) for text in registry.versions.values())
        return not registry.is_at(str(task), self._member.instance) and (not known or registry.is_granted(str(task)))

    def look_at_disk(self) -> None:
        """Publish the tasks with state on the disk when they have changed: old folders are removed."""
        disk = self._disk.read()
        if self._member is not None and self._announced and disk.keys() != self._member.disk.keys():
            self._announce(disk=disk)

    @property
    def _key(self) -> str:
        return "" if self._member is None else self._member.identity

    def _announce(self, **changes: object) -> None:
        if self._member is None:
            return
        now_ms = self._clock.wall_ms()
        now: dict[str, object] = {
            "heartbeat_ms": now_ms,
            "memory": self._memory(),
            "global_stores": dict(self.global_stores),
            "written": self.written,
            "throttled_ms": self._throttling.recent_ms(),
        }
        self._member = msgspec.structs.replace(self._member, **{**now, **changes})
        self._written_ms = self._clock.monotonic_ms()
        self._log.append(self._member.key, encode(self._member))

    def poll(self) -> list[Instruction]:
        """Return the worker's instructions. Never waits. Runs the leader's step too.

        Raises TopologyError if another topology runs under this application id, StreamsConfigError if another instance has this one's name,
        ResetError if the application was reset without this instance.
        """
        self.membership.poll()
        for entry in self._log.poll():
            self._registry.apply(entry, self._clock.monotonic_ms())
            if isinstance(entry.record, Member) and entry.record.identity == self._key:
                self._read_back_ms = self._clock.monotonic_ms()
            elif isinstance(entry.record, Shutdown) and self._read_back_ms:  # an older one belongs to an earlier run of the application
                self._shutdown = entry.record
            self._fleet = None
        self._keep_to_reset()
        if self._member is None:
            return []
        if self._shutdown is not None:
            return [self._shutdown]
        if not self._announced and not self._life.over() and not self._introduced(self._member):
            return []
        reason = "the coordination topic was deleted, or created again" if self._life.over() else self._lost_reason()
        if reason is not None:
            return [Lost(reason)]
        if self._granted_epoch < 0 and not self._compatibility.checked(self._member):
            return []
        self._detect_failures(self._member)
        instructions = [*self._changes(), *self._commands()]
        # Instructions come first: other members wait for them, and computing an assignment may take 0.1 s.
        if not instructions or self._clock.monotonic_ms() - self._led_ms >= LEAD_AT_LEAST_MS:
            self._led_ms = self._clock.monotonic_ms()
            self._leader.step()
        return instructions

    def _detect_failures(self, member: Member) -> None:
        """Send heartbeats, and report members whose own have ended."""
        if self._heartbeats.keep() != member.heartbeats:
            self._announce(heartbeats=self._heartbeats.id)
        watched = watched_by(self._key, self._registry, leads=self._leader.leads)
        for dead in self._failures.dead(watched, self._heartbeats.id):
            self.announce_death(dead.instance, dead.worker, dead.incarnation)

    def _keep_to_reset(self) -> None:
        """End this worker if a reset began after it looked for one at its start, or while the group had dropped it. Raises ResetError."""
        reset = self._registry.reset
        if self._log.at_end and reset is not self._reset:
            refuse_other(reset, self._directory, self._config.application_id)
            self._reset = reset

    def _introduced(self, member: Member) -> bool:
        """Announce this worker once the group has admitted it, the topic is read, and no member runs a topology that conflicts."""
        if self._log.at_end:
            self._bury_predecessors(member)
        if not self.membership.member_id or not self.membership.joined or not self._log.at_end:
            return False
        if not self._compatibility.has_its_name(member) or not self._compatibility.checked(member):
            return False
        self._refuse_left_behind()
        self._topology = with_first_partitions(self._topology, self._program, self._layout, self._registry.last_topology or self._topology)
        if self._topology != self._registry.last_topology:
            self._log.append(self._topology.key, encode(self._topology))
        if not self._written_ms:
            self._registry.released.clear()  # in earlier lives of the application: this worker takes over from no member
        self._announced = True
        self._announce(member_id=self.membership.begin())
        return True

    def _refuse_left_behind(self) -> None:
        """Check again: another version may have begun between this worker's start and its first record. Raises TopologyError, and
        TaskMigratedError to be called again."""
        last, mine = self._registry.last_topology, self._topology.shape
        if last is None or last.shape is None or mine is None or last.digest == self._topology.digest:
            return
        try:
            refuse_left_behind(last.shape, mine, self._config, self._topics)
        except BrokerUnavailableError as error:
            raise TaskMigratedError(f"no broker answers: {error}") from error

    def _bury_predecessors(self, member: Member) -> None:
        """Report earlier incarnations of this worker as dead: this process holds the lock of the state directory. Other members then need
        not wait for their sessions to expire; this worker has to, since the group admits it only then."""
        for identity, known in self._registry.members.items():
            other = known.member
            same = (other.instance, other.worker, other.host, other.state_dir)
            previous = same == (member.instance, member.worker, member.host, member.state_dir) and other.incarnation < member.incarnation
            if previous and not other.returns and identity not in self._buried:
                self._buried.add(identity)
                self.announce_death(other.instance, other.worker, other.incarnation)

    def _lost_reason(self) -> str | None:
        assert self._member is not None
        if self.membership.lost:
            return "its session ran out, or the group was rebuilt"
        if self.membership.member_id != self._member.member_id:
            return f"its member id in the group is {self.membership.member_id or 'none'} now"
        buried = self._key in self._registry.buried or self._key not in self._registry.members
        if buried and self._granted_epoch >= 0:
            return "the leader considered it dead"
        return None

    def _changes(self) -> list[Instruction]:
        """Return grants and revocations, from the assignment and the open tasks. Only an assignment behind this incarnation's own record
        counts (rules.md, 21)."""
        assert self._member is not None
        registry = self._registry
        known = registry.members.get(self._key)
        if known is None or registry.epoch < 0:
            return []
        granted = frozenset(TaskId.parse(task) for task in registry.granted(self._key, self._member.member_id))
        changes: list[Instruction] = []
        revoked = tuple(sorted(self._open - granted))
        if revoked:
            changes.append(Revoked(revoked))
        asked = granted - self._open or (registry.epoch != self._granted_epoch and self._is_mine(registry))
        if asked and self._state_record.covers(self._key, self._clock.monotonic_ms()):
            followed = registry.followed(self._key, self._member.member_id)
            copies = {TaskId.parse(task): kind for task, kind in followed.items()}
            cause = "" if registry.assignment is None else registry.assignment.cause
            changes.append(Granted(registry.epoch, granted, {task: kind for task, kind in copies.items() if task not in granted}, cause))
            self._granted_epoch = registry.epoch
        return changes

    def _is_mine(self, registry: Registry) -> bool:
        assignment = registry.assignment
        return assignment is not None and any(grant.identity == self._key for grant in assignment.grants)

    def _commands(self) -> list[Instruction]:
        assert self._member is not None
        if self._key not in self._registry.members:
            return []  # its own record sets the brokers' time, by which commands are stale
        now_ms = self._registry.wall_ms(self._clock)
        mine: list[Instruction] = []
        for command in list(self._registry.commands.values()):
            if command.id in self._seen or now_ms - command.issued_ms > STALE_COMMAND_MS:
                continue
            if self._concerns_me(command):
                self._seen.add(command.id)
                mine.append(command)
            elif self.membership.leads and command.task is not None and not self._is_task(command.task):
                self._seen.add(command.id)
                known = ", ".join(str(task) for task in sorted(self._tasks()))
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
        return any(str(task) == text for task in self._tasks())

    def _tasks(self) -> frozenset[TaskId]:
        """Return the tasks of all running versions of the topology."""
        members = [known.member for known in self._registry.members.values()]
        return Versions(self._registry, self._layout, members).tasks

    def fleet(self) -> Fleet | None:
        """Return the state of the whole application; None before the topic has been read to its end. The same object until the next
        record."""
        if self._fleet is None and self._member is not None and self._log.at_end:
            self._fleet = Fleet(
                instance=self._member.instance,
                members=tuple(known.member for known in self._registry.members.values()),
                assignment=self._registry.assignment,
                partitions=dict(self._layout.partitions),
            )
        return self._fleet

    # -- reports of the worker ---------------------------------------------------------------------------------------------------

    def report(self, tasks: Mapping[TaskId, TaskReport], state: State) -> None:
        """Publish the open tasks and the state of this worker, when more than an offset changed, and as a heartbeat."""
        self._open = frozenset(task for task, report in tasks.items() if report.kind is TaskKind.ACTIVE)
        self._copied = frozenset(tasks) - self._open
        self._holds = {task: held for task, held in self._holds.items() if task in self._open}
        if self._member is None:
            return
        if not self._announced:
            self._member = msgspec.structs.replace(self._member, state=state)
            return
        reports = {str(task): report for task, report in sorted(tasks.items())}
        epoch = self._carried_out()
        before = self._member
        same = (
            before.state is state
            and before.epoch == epoch
            and before.tasks.keys() == reports.keys()
            and all(_essence(before.tasks[task]) == _essence(report) for task, report in reports.items())
            and _essences(before.global_stores) == _essences(self.global_stores)
        )
        if not same or self._clock.monotonic_ms() - self._written_ms >= HEARTBEAT_MS:
            self._announce(tasks=reports, state=state, epoch=epoch, disk=self._disk.read())

    def released(self, tasks: Iterable[TaskId]) -> None:
        """Publish that these tasks are committed and closed, so that others may take them."""
        self._open -= frozenset(tasks)
        if self._member is not None and self._announced:
            closed = {task: self._member.tasks[task] for task in self._member.active if TaskId.parse(task) not in self._open}
            reports = {task: report for task, report in self._member.tasks.items() if task not in closed}
            disk = {**self._member.disk, **{task: report.position for task, report in closed.items() if not report.in_memory}}
            self._announce(tasks=reports, disk=disk, epoch=self._carried_out())

    def _carried_out(self) -> int:
        """Return the epoch of the last assignment whose revocations are carried out here."""
        assert self._member is not None
        granted = self._registry.granted(self._key, self._member.member_id)
        followed = self._registry.followed(self._key, self._member.member_id).keys()
        done = {str(task) for task in self._open} <= granted and {str(task) for task in self._copied} <= followed
        return self._registry.epoch if done else self._member.epoch

    def announce_death(self, instance: str, worker: int, incarnation: int) -> None:
        """Report that the process of a worker has ended, so that the leader need not wait for its session. Call only when that is certain,
        as a parent process knows it, or when fencing makes a mistake harmless (`failure_detection.py`). If the dead worker led, the first
        reporter becomes its deputy."""
        if self._member is not None:
            death = Death(instance=instance, worker=worker, incarnation=incarnation, by=self._key, at_ms=self._clock.wall_ms())
            if death.identity not in self._registry.deaths:
                self._log.append(death.key, encode(death))

    def taken_over(self, task: TaskId) -> TakenOver | None:
        """Return the previous owner of a task that begins to process here, and the time during which no member processed it; None if it had
        no owner before, or if this hand-over was returned already."""
        released = self._registry.released.pop(str(task), None)
        if released is None:
            return None
        return TakenOver(released.identity, max(0, self._registry.wall_ms(self._clock) - released.at_ms))

    def held(self, task: TaskId) -> bool:
        """Return True for a task that was paused manually, here or at an earlier owner, and not resumed."""
        return self._holds.get(task, str(task) in self._registry.holds)

    def hold(self, task: TaskId) -> None:
        """Record a manual pause: later owners pause the task too, until one of them resumes it."""
        if self._member is not None and not self.held(task):
            record = Hold(task=str(task), by=self._member.instance, at_ms=self._clock.wall_ms())
            self._holds[task] = True
            self._log.append(record.key, encode(record))

    def release(self, task: TaskId) -> None:
        """Delete the record of a manual pause."""
        if self._member is not None and self.held(task):
            self._holds[task] = False
            self._log.append(f"{HOLD}/{task}".encode(), None)

    def result(self, result: CommandResult) -> None:
        """Write the answer to a command."""
        self._log.append(result.key, encode(result))

    @property
    def moving(self) -> bool:
        """True while a task moves between members, or this worker waits for its first assignment: workers then poll the topic more often.
        A start takes half a dozen answers of the brokers, one after the other."""
        if self._granted_epoch < 0 and self._clock.monotonic_ms() - self._begun_ms < BEGINNING_MS:
            return True
        assignment = self._registry.assignment
        return assignment is not None and bool(assignment.revoking or assignment.heirs)

    def has_heirs(self, siblings_stay: bool) -> bool:
        """Return True if another member stays that can take tasks over; a dead one counts until it is fenced. `siblings_stay`: workers of
        this instance count too."""
        mine = None if siblings_stay or self._member is None else self._member.instance
        others = [known.member for key, known in self._registry.members.items() if key != self._key and known.member.instance != mine]
        return self._announced and not all(member.leaves or member.returns for member in others)

    def ask_to_leave(self) -> None:
        """Ask the leader to move this worker's tasks to other members."""
        self._announce(leaves=True)

    def leave(self, leave_group: bool) -> None:
        """Leave, after all tasks were closed. Without `leave_group` the leader keeps them for this instance (rules.md, 4)."""
        if self._member is not None and self._announced:
            if leave_group:
                self._log.append(self._member.key, None)
            else:
                self._announce(tasks={}, state=State.PENDING_SHUTDOWN, returns=True)
            self._log.flush()

    def close(self) -> None:
        """Leave the group and close the clients."""
        self._life.close()
        self._racks.close()
        self._heartbeats.close()
        self._failures.close()
        self._disconnect()

    def _disconnect(self) -> None:
        self._leader.close()
        self._liveness.close()
        self.membership.close()
        self._log.close()


def _essence(report: TaskReport) -> TaskReport:
    """Return a report without the fields that change with every record."""
    return msgspec.structs.replace(report, offset_sum=0, end_sum=0, position=0, lag=None, restore=None)


def _essences(stores: Mapping[str, GlobalStoreReport]) -> dict[str, GlobalStoreReport]:
    return {name: msgspec.structs.replace(report, position=0, end=0, lag=0, restore=None) for name, report in stores.items()}
