"""Leaders, former leaders and deputies, simulated: whoever writes an assignment knows all before it, and no task is granted twice.

The group, the coordination topic and the leader's transactional id are simulated as the broker treats them: the group's generation is what
a guard is held against; an id that is initialised fences its former user and aborts what that left open; a callback comes late. The workers
use the engine's own `Leader` and `Registry`. They die, are dropped, sleep between any two steps, and in the middle of a transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.coordination import leader as leading
from penstock.runtime.coordination.leader import Leader
from penstock.runtime.coordination.log import Entry
from penstock.runtime.coordination.racks import RackRules
from penstock.runtime.coordination.records import Assignment, Death, Member, TaskReport, decode, encode
from penstock.runtime.coordination.registry import Known, Registry
from penstock.runtime.coordination.topics import TopicLayout
from penstock.runtime.model.errors import TaskMigratedError, TransactionAbortedError
from penstock.runtime.model.ids import TaskId, TopicPartition
from penstock.runtime.model.states import TaskKind, TaskState
from tests.support import examples

TASKS = frozenset(TaskId(0, number) for number in range(5))
LAYOUT = TopicLayout({}, TASKS, frozenset({TaskId(0, 0), TaskId(0, 1)}), frozenset(), TopicPartition("guard", 0))
NAMES = ("a/1", "a/2", "b/1")
LONG_MS = 60_000
"""Longer than any reservation."""


FENCED: set[str] = set()
"""Transactional ids that a leader has fenced, which are the names of their workers."""


@dataclass(slots=True)
class World:
    """State of the broker."""

    log: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    generation: int = 0
    group: list[str] = field(default_factory=list)
    """Member ids, in the order in which they came; the first leads."""
    writer: object = None
    """Who initialised the leader's transactional id last."""
    in_transaction: Callable[[], None] | None = None
    """What befalls others between the guard and the commit of the next transaction."""
    assignments: int = -1
    """Offset of the last assignment."""
    incarnations: int = 1
    """Number of the last incarnation."""

    def __post_init__(self) -> None:
        FENCED.clear()

    def rebalance(self) -> None:
        self.generation += 1


class FakeProducer:
    """The leader's transactions."""

    def __init__(self, world: World, worker: Worker) -> None:
        self.world, self.worker, self.producer = world, worker, self
        self.staged: list[tuple[bytes, bytes | None]] = []
        world.writer = self

    def send(self, topic: str, key: bytes, value: bytes | None, *rest: object) -> None:
        self.staged.append((key, value))

    def send_offsets(self, offsets: object, guard: tuple[str, int]) -> None:
        member_id, generation = guard
        if member_id not in self.world.group or generation != self.world.generation:
            raise TransactionAbortedError("ILLEGAL_GENERATION")
        meanwhile, self.world.in_transaction = self.world.in_transaction, None
        if meanwhile is not None:
            meanwhile()

    def commit(self) -> None:
        if self.world.writer is not self:
            raise TaskMigratedError("fenced")
        assert self.worker.registry.epoch == self.world.assignments, f"{self.worker.name} decides without knowing the last assignment"
        self.world.assignments = len(self.world.log)
        self.world.log += self.staged
        self.staged = []

    def close(self) -> None:
        self.staged = []


class Inline:
    """An executor that does it at once."""

    def __init__(self, **_: object) -> None:
        pass

    def submit(self, function: Callable[..., object], *arguments: object) -> Future[object]:
        future: Future[object] = Future()
        future.set_result(function(*arguments))
        return future

    def shutdown(self, **_: object) -> None:
        pass


class Clock:
    """Time that passes with each look."""

    now = 0

    def monotonic_ms(self) -> int:
        self.now += 10
        return self.now

    wall_ms = monotonic_ms


class Worker:
    """A worker's coordination, with the engine's leader. Also its own membership, liveness and log."""

    def __init__(self, world: World, name: str, incarnation: int) -> None:
        self.world, self.incarnation = world, incarnation
        self.instance, _, number = name.partition("/")
        self.worker = int(number)
        self.name = f"{name}/{incarnation}"
        self.member_id = f"{self.name}-id"
        self.registry = Registry()
        self.running: set[str] = set()
        self.position = self.rebalances = self.generation = 0
        self.joined, self.leads, self.alive = True, False, True
        world.group.append(self.member_id)
        world.rebalance()
        self.clock = Clock()
        config = StreamsConfig({"application.id": "app", "bootstrap.servers": "nowhere:1"})
        self.leader = Leader(config, LAYOUT, cast(Any, self), cast(Any, self), cast(Any, self), self.registry, cast(Any, self), self.clock)
        self.leader.begin(self.name)
        self.report()

    # -- as membership, liveness, racks and log ----------------------------------------------------------------------------------

    def metadata(self, granted_to: str) -> tuple[str, int]:
        """The client joins each generation by itself, before the worker hears of it."""
        return self.member_id, self.world.generation if self.member_id in self.world.group else self.generation

    def poll(self) -> None: ...

    def forget(self) -> None: ...

    def lives(self, known: Known) -> bool:
        return known.member.member_id in self.world.group

    @property
    def members(self) -> frozenset[str]:
        return frozenset(self.world.group)

    def rules(self) -> RackRules:
        return NO_RACKS

    def ask_end(self) -> Future[int]:
        end: Future[int] = Future()
        end.set_result(len(self.world.log))
        return end

    # -- as a worker -------------------------------------------------------------------------------------------------------------

    def hear(self) -> None:
        """The group's callback arrives."""
        if self.generation != self.world.generation and self.member_id in self.world.group:
            self.generation = self.world.generation
            self.rebalances += 1
            self.leads = self.world.group[0] == self.member_id

    def read(self) -> None:
        for offset in range(self.position, len(self.world.log)):
            key, value = self.world.log[offset]
            record = decode(key, value)
            assert record is not None
            self.registry.apply(Entry(offset, record, key), 0)
        self.position = len(self.world.log)

    def report(self) -> None:
        granted = self.registry.granted(self.name, self.member_id)
        epoch = self.registry.epoch if self.running <= granted else -1
        report = TaskReport(kind=TaskKind.ACTIVE, state=TaskState.RUNNING, offset_sum=0, end_sum=0, lag=0)
        member = Member(
            instance=self.instance,
            worker=self.worker,
            incarnation=self.incarnation,
            transactional_id=self.name,
            host="h",
            pid=1,
            member_id=self.member_id,
            tasks=dict.fromkeys(sorted(self.running), report),
            epoch=epoch,
        )
        self.world.log.append((member.key, encode(member)))

    def obey(self) -> None:
        """Closes what is not granted and says so, then opens what is. Who was taken for dead joins again, under the same member id."""
        self.read()
        if self.name in FENCED and (self.name in self.registry.buried or self.name not in self.registry.members):
            self.world.incarnations += 1
            self.incarnation, self.running = self.world.incarnations, set()
            self.name = f"{self.instance}/{self.worker}/{self.incarnation}"
            self.leader.begin(self.name)
            self.report()
            self.read()
        granted = set(self.registry.granted(self.name, self.member_id)) if self.name in self.registry.members else set()
        if self.running - granted:
            self.running &= granted
            self.report()
            self.read()
        if granted != self.running:
            self.running = granted
            self.report()
        elif self.name in self.registry.members and self.registry.members[self.name].member.epoch < self.registry.epoch:
            self.report()

    def step(self) -> None:
        self.hear()
        self.obey()
        self.leader.step()

    def announce(self, dead: Worker, by: str = "") -> None:
        death = Death(instance=dead.instance, worker=dead.worker, incarnation=dead.incarnation, by=by or self.name, at_ms=0)
        self.world.log.append((death.key, encode(death)))


NO_RACKS = RackRules()


@pytest.fixture(autouse=True)
def no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    without_broker(monkeypatch.setattr)


def without_broker(put: Callable[[object, str, object], None]) -> None:
    """Fencing always works; a producer is the leader's own."""
    put(leading, "ThreadPoolExecutor", Inline)
    put(leading, "fence", lambda properties, transactional_id, topic: FENCED.add(transactional_id))
    put(Leader, "_ready_producer", _ready_producer)


def _ready_producer(self: Leader) -> object:
    worker = cast(Worker, self._membership)
    self._producer = self._producer or cast(Any, FakeProducer(worker.world, worker))
    return self._producer


def settle(*workers: Worker, rounds: int = 12) -> None:
    for _ in range(rounds):
        for worker in workers:
            worker.step()


def test_a_sibling_that_reports_the_leader_s_death_leads_in_its_place() -> None:
    """No session ends and no generation begins: the others are granted what the dead one ran."""
    world = World()
    dead, deputy, other = (Worker(world, name, 1) for name in NAMES)
    settle(dead, deputy, other)
    assert dead.leads and len(dead.running) in (1, 2, 3)
    deputy.announce(dead)
    settle(deputy, other)
    assert deputy.running | other.running == {str(task) for task in TASKS}
    assert world.generation == 3 and dead.name not in deputy.registry.members
    assert dead.name in deputy.registry.deaths, "a deputy's reason stays written down until there is a leader"


def test_the_first_of_two_reporters_of_a_death_leads() -> None:
    world = World()
    dead, first, second = (Worker(world, name, 1) for name in NAMES)
    settle(dead, first, second)
    second.read()
    first.announce(dead)
    second.announce(dead)
    settle(second, first)
    assignments = [record for key, value in world.log if isinstance(record := decode(key, value), Assignment)]
    assert {record.leader for record in assignments} == {dead.name, first.name}


def test_a_deputy_s_death_is_reported_by_the_next() -> None:
    world = World()
    dead, deputy, last = (Worker(world, name, 1) for name in NAMES)
    settle(dead, deputy, last)
    deputy.announce(dead)
    settle(deputy, last)
    last.announce(deputy)
    settle(last)
    assert last.running == {str(task) for task in TASKS}


def test_a_leader_that_died_before_it_wrote_anything_is_stood_in_for_too() -> None:
    """The log names the leader before it, who has left."""
    world = World()
    left, dead, deputy = (Worker(world, name, 1) for name in ("b/1", "a/1", "a/2"))
    settle(left, dead, deputy)
    world.group.remove(left.member_id)
    world.rebalance()
    world.log.append((left.registry.members[left.name].key, None))
    dead.hear()
    assert dead.leads
    dead.alive = False
    deputy.hear()
    deputy.announce(dead)
    settle(deputy)
    assert deputy.running == {str(task) for task in TASKS}


def test_a_worker_that_joins_again_does_not_stand_in_for_its_predecessor() -> None:
    """The group has elected a leader before it admitted this worker: the two would fence each other."""
    world = World()
    dead, elected, other = (Worker(world, name, 1) for name in NAMES)
    settle(dead, elected, other)
    assert dead.leads
    world.group.remove(dead.member_id)
    again, written = Worker(world, NAMES[0], 2), world.assignments
    again.announce(dead)
    settle(again)
    assert world.assignments == written
    settle(elected, other, again)
    assert elected.leads and elected.running | other.running | again.running == {str(task) for task in TASKS}


def test_a_deputy_cannot_write_when_the_group_has_chosen_a_leader() -> None:
    """Its guard is of the generation before, also if it has not heard of the new one."""
    world = World()
    dead, deputy, chosen = (Worker(world, name, 1) for name in NAMES)
    settle(dead, deputy, chosen)
    deputy.announce(dead)
    settle(deputy, chosen)
    written = world.assignments
    world.group = [chosen.member_id, deputy.member_id]
    world.rebalance()
    newcomer = Member(instance="x", incarnation=1, transactional_id="x", host="h", pid=1, member_id=deputy.member_id)
    world.log.append((newcomer.key, encode(newcomer)))  # something to write an assignment about
    for _ in range(5):
        deputy.obey()
        deputy.leader.step()
    assert world.assignments == written
    settle(chosen, deputy)
    assert world.assignments > written
    assert dead.name not in chosen.registry.deaths, "a leader settles what the deputy left"


def test_a_leader_that_is_taken_for_dead_joins_again_and_leads_again() -> None:
    """Its heartbeats were late. Its deputy leads until it has written."""
    world = World()
    late, deputy, other = (Worker(world, name, 1) for name in ("a/1", "b/1", "b/2"))
    settle(late, deputy, other)
    deputy.announce(late)
    settle(deputy, other, rounds=4)
    assert deputy.running | other.running == {str(task) for task in TASKS}, "the late one is fenced, and has not noticed yet"
    settle(late, deputy, other)
    last = decode(*world.log[world.assignments])
    assert isinstance(last, Assignment) and last.leader == late.name == "a/1/2"
    assert late.name in {grant.identity for grant in last.grants} and not late.registry.deaths


def test_what_a_member_writes_after_it_was_taken_for_dead_does_not_take_its_tasks_back() -> None:
    """It has not read yet that its record was deleted. Its member id is still in the group."""
    world = World()
    leader, late, other = (Worker(world, name, 1) for name in ("a/1", "b/1", "c/1"))
    settle(leader, late, other)
    assert leader.leads and late.running
    leader.announce(late)
    settle(leader, other, rounds=20)
    assert leader.running | other.running == {str(task) for task in TASKS}
    moved = leader.running.copy(), other.running.copy()
    late.report()
    written = len(world.log)
    settle(leader, other, rounds=20)
    assert moved == (leader.running, other.running), "no task moves because of it"
    assert late.name not in leader.registry.members, "its record is deleted again"
    since = [record for key, value in world.log[written:] if isinstance(record := decode(key, value), Assignment)]
    assert late.name not in {grant.identity for assignment in since for grant in assignment.grants}
    settle(late, leader, other, rounds=20)
    assert late.name == "b/1/2" and late.name in leader.registry.members and late.name not in leader.registry.buried


def test_of_two_that_take_each_other_for_dead_the_first_to_say_so_lives() -> None:
    world = World()
    leader, second, other = (Worker(world, name, 1) for name in ("a/1", "b/1", "b/2"))
    settle(leader, second, other)
    second.announce(leader)
    leader.announce(second)
    settle(second, other)
    assert second.name in second.registry.members and leader.name not in second.registry.members
    settle(leader, second, other)
    assert leader.name == "a/1/2" and second.name == "b/1/1"
    assert sorted(task for worker in (leader, second, other) for task in worker.running) == sorted(map(str, TASKS))


def test_the_last_one_leads_although_one_that_is_dead_now_has_reported_its_death() -> None:
    world = World()
    dead, late, reporter = (Worker(world, name, 1) for name in NAMES)
    settle(dead, late, reporter)
    reporter.announce(late)
    for worker in (dead, reporter):
        world.group.remove(worker.member_id)
    world.rebalance()
    settle(late)
    assert late.running == {str(task) for task in TASKS} and not late.registry.deaths


def test_a_leader_that_sleeps_between_guard_and_commit_is_fenced_by_its_successor() -> None:
    world = World()
    old, new, other = (Worker(world, name, 1) for name in NAMES)
    old.read()

    def dropped() -> None:
        world.group = [new.member_id, other.member_id]
        world.rebalance()
        settle(new, other)

    world.in_transaction = dropped
    settle(old, rounds=3)
    last = decode(*world.log[world.assignments])
    assert isinstance(last, Assignment) and last.leader == new.name


def test_a_new_leader_decides_nothing_before_it_has_read_what_was_written() -> None:
    world = World()
    old, new = (Worker(world, name, 1) for name in ("a/1", "b/1"))
    new.read()
    settle(old)
    written = world.assignments
    old.alive = False
    world.group.remove(old.member_id)
    world.rebalance()
    new.hear()
    for _ in range(3):
        new.leader.step()
    assert world.assignments == written
    settle(new)
    assert new.running == {str(task) for task in TASKS}


def test_a_leader_does_not_write_again_before_it_has_read_what_it_wrote() -> None:
    world = World()
    leader, other = (Worker(world, name, 1) for name in ("a/1", "b/1"))
    leader.hear()
    leader.read()
    leader.leader.step()
    leader.leader.step()
    written = world.assignments
    assert written >= 0
    world.group.remove(other.member_id)
    world.rebalance()
    leader.hear()
    for _ in range(3):
        leader.leader.step()
    assert world.assignments == written
    settle(leader)
    assert leader.running == {str(task) for task in TASKS}


class Leaders(RuleBasedStateMachine):
    """Anything, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        without_broker(self.patch.setattr)
        self.world = World()
        self.workers = {name: Worker(self.world, name, 1) for name in NAMES}

    def teardown(self) -> None:
        self.patch.undo()

    def awake(self) -> list[Worker]:
        return [worker for worker in self.workers.values() if worker.alive]

    @rule(name=st.sampled_from(NAMES), times=st.integers(1, 4))
    def steps(self, name: str, times: int) -> None:
        for _ in range(times):
            if self.workers[name].alive:
                self.workers[name].step()

    @rule(name=st.sampled_from(NAMES))
    def leads_without_hearing(self, name: str) -> None:
        """The group's callback is late."""
        if self.workers[name].alive:
            self.workers[name].obey()
            self.workers[name].leader.step()

    @rule(name=st.sampled_from(NAMES), heard=st.booleans())
    def leads_without_reading(self, name: str, heard: bool) -> None:
        """The log's records are late."""
        if self.workers[name].alive:
            if heard:
                self.workers[name].hear()
            self.workers[name].leader.step()

    @rule(name=st.sampled_from(NAMES))
    def reports_without_reading(self, name: str) -> None:
        """It may have been taken for dead."""
        if self.workers[name].alive:
            self.workers[name].report()

    @rule(name=st.sampled_from(NAMES))
    def dies(self, name: str) -> None:
        if len(self.awake()) > 1:
            self.workers[name].alive = False

    @rule(name=st.sampled_from(NAMES))
    def is_dropped(self, name: str) -> None:
        """The session of a dead worker, or of one that sleeps, is over."""
        if self.workers[name].member_id in self.world.group and len(self.world.group) > 1:
            self.world.group.remove(self.workers[name].member_id)
            self.world.rebalance()

    @rule(name=st.sampled_from(NAMES))
    def begins_anew(self, name: str) -> None:
        """A worker that the group does not know any more; a dead one is started again."""
        worker = self.workers[name]
        if worker.member_id not in self.world.group or not worker.alive:
            self.world.incarnations += 1
            self.workers[name] = Worker(self.world, name, self.world.incarnations)

    @rule(teller=st.sampled_from(NAMES), name=st.sampled_from(NAMES))
    def is_told_of(self, teller: str, name: str) -> None:
        if self.workers[teller].alive and not self.workers[name].alive:
            self.workers[teller].announce(self.workers[name])

    @rule(teller=st.sampled_from(NAMES), name=st.sampled_from(NAMES))
    def is_taken_for_dead(self, teller: str, name: str) -> None:
        """Its heartbeats are late (`failure_detection.py`)."""
        reporter, reported = self.workers[teller], self.workers[name]
        if reporter.alive and reported.alive and reporter.instance != reported.instance:
            reporter.announce(reported)

    @rule(dropped=st.sampled_from(NAMES), steps=st.lists(st.sampled_from(NAMES), max_size=6))
    def something_happens_within_the_next_transaction(self, dropped: str, steps: list[str]) -> None:
        def meanwhile() -> None:
            self.is_dropped(dropped)
            writer = self.world.writer
            for name in steps:
                if self.workers[name].alive and not (isinstance(writer, FakeProducer) and writer.worker is self.workers[name]):
                    self.workers[name].step()

        self.world.in_transaction = meanwhile

    @rule(order=st.permutations(NAMES), rounds=st.lists(st.integers(0, 3), min_size=len(NAMES), max_size=len(NAMES)))
    def all_die_at_once_and_start_again(self, order: list[str], rounds: list[int]) -> None:
        """In any order, beside the sessions of the dead. Each reports the death of its former incarnation first, and joins once those
        before it have run for some rounds."""
        dead = dict(self.workers)
        for worker in dead.values():
            worker.alive = False
        numbers = dict(zip(order, range(self.world.incarnations + 1, self.world.incarnations + 1 + len(order)), strict=True))
        self.world.incarnations += len(order)
        for name, number in numbers.items():
            dead[name].announce(dead[name], by=f"{name}/{number}")
        for place, name in enumerate(order):
            settle(*self.awake(), rounds=rounds[place])
            self.workers[name] = Worker(self.world, name, numbers[name])

    @rule()
    def comes_to_rest(self) -> None:
        """Sessions end, reservations expire, who was dropped joins again. Then each task is granted to one member, and runs there."""
        self.world.in_transaction = None
        for member_id in set(self.world.group) - {worker.member_id for worker in self.awake()}:
            self.world.group.remove(member_id)
            self.world.rebalance()
        for worker in self.awake():
            if worker.member_id not in self.world.group:
                self.world.incarnations += 1
                self.workers[worker.name.rpartition("/")[0]] = Worker(self.world, worker.name.rpartition("/")[0], self.world.incarnations)
        settle(*self.awake())
        for worker in self.awake():
            worker.clock.now += LONG_MS
        settle(*self.awake())
        last = decode(*self.world.log[self.world.assignments])
        assert isinstance(last, Assignment)
        assert sorted(task for grant in last.grants for task in grant.active) == sorted(map(str, TASKS)), "orphans, or tasks granted twice"
        assert sorted(task for worker in self.awake() for task in worker.running) == sorted(map(str, TASKS))

    @invariant()
    def no_task_runs_twice(self) -> None:
        """Among those whose commits the guard and the fence let through."""
        members = [worker for worker in self.awake() if worker.member_id in self.world.group and worker.name not in FENCED]
        running = [task for worker in members for task in worker.running]
        assert len(running) == len(set(running))


TestLeaders = Leaders.TestCase
TestLeaders.settings = settings(max_examples=examples(150), stateful_step_count=30, deadline=None)
