"""Instances of several workers, tags and racks, simulated: they come, die, leave and lag at random (coordination.md, 1 and 2)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.runtime.coordination.assignor import Candidate, assign
from penstock.runtime.coordination.copies import CopyRules, Placement, place
from penstock.runtime.coordination.racks import RackRules, RackStrategy, less_traffic
from penstock.runtime.model.ids import TaskId
from tests.support import examples

STATEFUL = frozenset(TaskId(0, number) for number in range(8))
STATELESS = frozenset(TaskId(1, number) for number in range(5))
TASKS = STATEFUL | STATELESS
LARGE = 1_000_000
INSTANCES = {"a": "x", "b": "x", "c": "y", "d": "y", "e": "z"}
"""Instances that there may be, and the zone of each."""


def worker(instance: str, number: int, *running: TaskId, **more: object) -> Candidate:
    fields: dict[str, object] = {"positions": dict.fromkeys(running, LARGE), **more}
    return replace(Candidate(f"{instance}/{number}", frozenset(running), instance=instance), **fields)  # type: ignore[arg-type]


def per_instance(placed: dict[str, frozenset[TaskId]]) -> dict[str, set[TaskId]]:
    found: dict[str, set[TaskId]] = {}
    for name, tasks in placed.items():
        found.setdefault(name.partition("/")[0], set()).update(tasks)
    return found


# -- workers -------------------------------------------------------------------------------------------------------------------


def test_a_task_moves_between_workers_of_one_instance_without_a_learner() -> None:
    """They share the disk: the second one has the state, though it has never run the task."""
    tasks = sorted(STATEFUL)
    placed = place([worker("a", 1, *tasks), worker("a", 2)], tasks, CopyRules(STATEFUL))
    assert [len(placed.active[name]) for name in ("a/1", "a/2")] == [4, 4]
    assert not any(placed.learner.values())


def test_a_dead_worker_s_tasks_go_to_its_siblings() -> None:
    """Another instance, which has less to do, first learns what it is to have."""
    mine, dead = sorted(STATEFUL)[:2], sorted(STATEFUL)[2:4]
    left = worker("a", 1, *mine, positions=dict.fromkeys([*mine, *dead], LARGE))
    placed = place([left, worker("b", 1), worker("b", 2)], [*mine, *dead], CopyRules(STATEFUL, warmups=9))
    assert placed.active["a/1"] == frozenset([*mine, *dead])
    assert len(placed.learner["b/1"]) + len(placed.learner["b/2"]) == 2, "two thirds of the workers are to have half of the tasks, or more"


def test_tasks_are_balanced_over_instances_and_then_over_their_workers() -> None:
    """Twelve tasks, eight workers: with one or two each, one instance could have eight tasks, and the other four."""
    workers = [worker(instance, number) for instance in "ab" for number in range(4)]
    placed = place(workers, [TaskId(0, number) for number in range(12)], CopyRules(frozenset()))
    assert {name: len(tasks) for name, tasks in per_instance(dict(placed.active)).items()} == {"a": 6, "b": 6}
    assert {len(tasks) for tasks in placed.active.values()} == {1, 2}


def test_an_instance_of_three_workers_has_three_times_as_much() -> None:
    workers = [worker("a", 1), worker("a", 2), worker("a", 3), worker("b", 1)]
    placed = place(workers, [TaskId(0, number) for number in range(8)], CopyRules(frozenset()))
    assert {name: len(tasks) for name, tasks in per_instance(dict(placed.active)).items()} == {"a": 6, "b": 2}


def test_a_copy_that_becomes_active_stays_with_the_worker_that_has_it_open() -> None:
    task = TaskId(0, 0)
    follower = worker("a", 2, positions={task: LARGE}, follows=frozenset({task}), caught_up=frozenset({task}))
    placed = place([worker("a", 1), follower], [task], CopyRules(STATEFUL))
    assert placed.active["a/2"] == {task}


def test_a_worker_that_leaves_gives_its_tasks_to_its_siblings_at_once() -> None:
    tasks = sorted(STATEFUL)
    placed = place([worker("a", 1, *tasks[:4]), worker("a", 2, *tasks[4:], leaves=True)], tasks, CopyRules(STATEFUL))
    assert placed.active == {"a/1": frozenset(tasks), "a/2": frozenset()}


# -- stateless tasks -----------------------------------------------------------------------------------------------------------


def test_tasks_without_state_are_spread_apart_from_those_with_state() -> None:
    """Or one member could have all of the state, and another all the rest."""
    heavy, light = [TaskId(0, number) for number in range(4)], [TaskId(1, number) for number in range(4)]
    wanted = assign([Candidate("a", frozenset(heavy)), Candidate("b", frozenset(light))], [*heavy, *light], stateful=heavy)
    assert {name: len(tasks & frozenset(heavy)) for name, tasks in wanted.items()} == {"a": 2, "b": 2}
    assert {name: len(tasks) for name, tasks in wanted.items()} == {"a": 4, "b": 4}


@given(st.integers(0, 30), st.integers(0, 30), st.lists(st.integers(1, 4), min_size=1, max_size=6))
def test_both_kinds_are_balanced_whatever_the_numbers(heavy: int, light: int, capacities: list[int]) -> None:
    stateful = [TaskId(0, number) for number in range(heavy)]
    tasks = [*stateful, *(TaskId(1, number) for number in range(light))]
    wanted = assign([Candidate(str(place), capacity=capacity) for place, capacity in enumerate(capacities)], tasks, stateful=stateful)
    assert sorted(task for mine in wanted.values() for task in mine) == sorted(tasks)
    for place_, capacity in enumerate(capacities):
        mine, share = wanted[str(place_)], capacity / sum(capacities)
        assert heavy * share - 1 < len(mine & frozenset(stateful)) < heavy * share + 1
        if len(set(capacities)) == 1:
            assert len(tasks) * share - 1 < len(mine) < len(tasks) * share + 1


# -- tags ----------------------------------------------------------------------------------------------------------------------


def test_standbys_go_where_the_values_of_the_tags_are_new() -> None:
    members = [Candidate(name, tags={"zone": zone}) for name, zone in INSTANCES.items()]
    placed = place(members, STATEFUL, CopyRules(STATEFUL, standbys=2, tags=("zone",)))
    for task in STATEFUL:
        places = [name for kind in (placed.active, placed.standby) for name in kind if task in kind[name]]
        assert sorted(INSTANCES[name] for name in places) == ["x", "y", "z"], f"{task} is at {places}"


def test_standbys_are_kept_where_tags_cannot_all_differ() -> None:
    members = [Candidate(name, tags={"zone": "x"}) for name in "abc"]
    placed = place(members, STATEFUL, CopyRules(STATEFUL, standbys=1, tags=("zone",)))
    assert sum(len(tasks) for tasks in placed.standby.values()) == len(STATEFUL)


def test_of_several_tags_as_many_as_possible_differ() -> None:
    """As `ClientTagAwareStandbyTaskAssignor`: another zone and another cluster, before another zone alone."""
    owner = Candidate("a", frozenset({TaskId(0, 0)}), {TaskId(0, 0): LARGE}, tags={"zone": "1", "cluster": "1"})
    near = Candidate("b", tags={"zone": "2", "cluster": "1"})
    far = Candidate("c", tags={"zone": "2", "cluster": "2"})
    placed = place([owner, near, far], [TaskId(0, 0)], CopyRules(STATEFUL, standbys=1, tags=("zone", "cluster")))
    assert placed.standby["c"] == {TaskId(0, 0)}


# -- racks ---------------------------------------------------------------------------------------------------------------------

TWO_RACKS = {TaskId(part, number): [frozenset({f"r{number % 2}"})] for part in range(2) for number in range(6)}


def racks(strategy: RackStrategy, **costs: int) -> RackRules:
    return RackRules(strategy, costs.get("traffic"), costs.get("non_overlap"), TWO_RACKS)


def traffic(target: dict[str, frozenset[TaskId]], members: list[Candidate]) -> int:
    rack = {member.name: member.rack for member in members}
    return sum(rack[name] not in place for name, tasks in target.items() for task in tasks for place in TWO_RACKS[task])


def test_tasks_are_placed_in_the_rack_of_what_they_read() -> None:
    members = [Candidate("a", rack="r0"), Candidate("b", rack="r1")]
    for strategy in (RackStrategy.MIN_TRAFFIC, RackStrategy.BALANCE_SUBTOPOLOGY):
        placed = place(members, list(TWO_RACKS), CopyRules(frozenset(), racks=racks(strategy)))
        assert traffic(dict(placed.active), members) == 0
        assert {len(tasks) for tasks in placed.active.values()} == {6}


def test_a_sub_topology_stays_spread_where_that_is_wanted() -> None:
    members = [Candidate("a", rack="r0"), Candidate("b", rack="r1")]
    uneven = {task: [frozenset({"r0" if task.subtopology == 0 else "r1"})] for task in TWO_RACKS}
    for strategy, spread in ((RackStrategy.MIN_TRAFFIC, {6, 0}), (RackStrategy.BALANCE_SUBTOPOLOGY, {3})):
        placed = place(members, list(uneven), CopyRules(frozenset(), racks=RackRules(strategy, racks=uneven)))
        assert {sum(task.subtopology == 0 for task in tasks) for tasks in placed.active.values()} == spread


def test_a_task_does_not_move_for_less_than_a_move_costs() -> None:
    tasks = sorted(TWO_RACKS)
    wrong = {number: frozenset(task for task in tasks if task.partition % 2 == number) for number in (0, 1)}
    members = [Candidate("a", wrong[1], rack="r0"), Candidate("b", wrong[0], rack="r1")]
    dear = place(members, tasks, CopyRules(frozenset(), racks=racks(RackStrategy.MIN_TRAFFIC, traffic=1, non_overlap=2)))
    assert dear.active == {"a": wrong[1], "b": wrong[0]}
    cheap = place(members, tasks, CopyRules(frozenset(), racks=racks(RackStrategy.MIN_TRAFFIC, traffic=3, non_overlap=2)))
    assert cheap.active == {"a": wrong[0], "b": wrong[1]}


@given(st.lists(st.sampled_from(["r0", "r1", "r2", ""]), min_size=1, max_size=5), st.data())
def test_no_assignment_has_more_traffic_or_less_balance_for_it(places: list[str], data: st.DataObject) -> None:
    tasks = sorted(TWO_RACKS)
    owners = {task: data.draw(st.integers(0, len(places) - 1)) for task in tasks}
    members = [
        Candidate(str(number), frozenset(task for task in tasks if owners[task] == number), rack=rack) for number, rack in enumerate(places)
    ]
    before = assign(members, tasks)
    after = dict(less_traffic(before, members, frozenset(), racks(RackStrategy.MIN_TRAFFIC)))
    assert {name: len(mine) for name, mine in after.items()} == {name: len(mine) for name, mine in before.items()}
    known = [member for member in members if member.rack]
    only = {member.name for member in known}
    costs = [traffic({name: mine for name, mine in each.items() if name in only}, known) for each in (after, before)]
    assert costs[0] <= costs[1]
    again = [replace(member, running=after[member.name]) for member in members]
    assert less_traffic(assign(again, tasks), again, frozenset(), racks(RackStrategy.MIN_TRAFFIC)) == after, "a second round moves it on"


# -- a fleet over time ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Machine:
    """An instance: its workers by number with what each runs and follows, which of them leave, and the disk that they share."""

    running: dict[int, frozenset[TaskId]] = field(default_factory=dict)
    standby: dict[int, frozenset[TaskId]] = field(default_factory=dict)
    learner: dict[int, frozenset[TaskId]] = field(default_factory=dict)
    leaving: set[int] = field(default_factory=set)
    disk: dict[TaskId, int] = field(default_factory=dict)

    def copy(self) -> Machine:
        return Machine(dict(self.running), dict(self.standby), dict(self.learner), set(self.leaving), dict(self.disk))


class Fleet(RuleBasedStateMachine):
    """An application of instances in three zones, with one to three workers each. A follower has caught up at the end of its changelogs."""

    copy_rules = CopyRules(STATEFUL, 0, standbys=1, warmups=2, tags=("zone",))

    def __init__(self) -> None:
        super().__init__()
        self.machines: dict[str, Machine] = {}
        self.ends: dict[TaskId, int] = dict.fromkeys(STATEFUL, 10)

    def candidates(self) -> list[Candidate]:
        return [
            Candidate(
                f"{name}/{number}",
                machine.running[number],
                dict(machine.disk),
                1,
                machine.standby[number] | machine.learner[number],
                machine.learner[number],
                frozenset(
                    task for task in machine.standby[number] | machine.learner[number] if machine.disk.get(task, 0) == self.ends[task]
                ),
                leaves=number in machine.leaving,
                instance=name,
                tags={"zone": INSTANCES[name]},
            )
            for name, machine in self.machines.items()
            for number in machine.running
        ]

    def place(self) -> Placement:
        return place(self.candidates(), TASKS, self.copy_rules)

    def carry_out(self, placed: Placement) -> None:
        for name, machine in self.machines.items():
            for number in machine.running:
                identity = f"{name}/{number}"
                machine.running[number], machine.standby[number] = placed.active[identity], placed.standby[identity]
                machine.learner[number] = placed.learner[identity]
                machine.disk.update({task: self.ends[task] for task in machine.running[number] & STATEFUL})

    @rule(name=st.sampled_from(sorted(INSTANCES)), number=st.integers(1, 3))
    def joins(self, name: str, number: int) -> None:
        machine = self.machines.setdefault(name, Machine())
        for kind in (machine.running, machine.standby, machine.learner):
            kind.setdefault(number, frozenset())

    @rule(name=st.sampled_from(sorted(INSTANCES)), number=st.integers(1, 3))
    def dies(self, name: str, number: int) -> None:
        machine = self.machines.get(name)
        if machine is not None:
            for kind in (machine.running, machine.standby, machine.learner):
                kind.pop(number, None)
            machine.leaving.discard(number)
            if not machine.running:
                del self.machines[name]

    @rule(name=st.sampled_from(sorted(INSTANCES)), number=st.integers(1, 3))
    def asks_to_leave(self, name: str, number: int) -> None:
        machine = self.machines.get(name)
        if machine is not None and number in machine.running:
            machine.leaving.add(number)

    @rule(name=st.sampled_from(sorted(INSTANCES)))
    def catches_up(self, name: str) -> None:
        machine = self.machines.get(name)
        if machine is not None:
            follows = frozenset().union(*machine.standby.values(), *machine.learner.values())
            machine.disk.update({task: self.ends[task] for task in follows})

    @rule()
    def processes(self) -> None:
        """Copies fall behind."""
        for machine in self.machines.values():
            for task in frozenset().union(*machine.running.values()) & STATEFUL:
                self.ends[task] += 1
                machine.disk[task] = self.ends[task]

    @rule()
    def is_assigned(self) -> None:
        ready = {
            (task, name) for name, machine in self.machines.items() for task in STATEFUL if machine.disk.get(task, 0) == self.ends[task]
        }
        has_ready = {task for task, _ in ready}
        placed = self.place()
        self.is_sound(placed)
        for identity, tasks in placed.active.items():
            name = identity.partition("/")[0]
            before = frozenset().union(*self.machines[name].running.values())
            for task in tasks & STATEFUL & has_ready:
                assert task in before or (task, name) in ready, f"{task} goes to {identity}, which is not ready, though another is"
        self.carry_out(placed)

    def is_sound(self, placed: Placement) -> None:
        actives = Counter(task for tasks in placed.active.values() for task in tasks)
        assert actives == Counter(TASKS if self.machines else ())
        restoring = [
            task
            for identity, tasks in placed.learner.items()
            for task in tasks
            if self.machines[identity.partition("/")[0]].disk.get(task, 0)
            < max(machine.disk.get(task, 0) for machine in self.machines.values())
        ]
        assert len(restoring) <= self.copy_rules.warmups, "learners that have the whole state are not counted"
        places = Counter(
            (task, identity.partition("/")[0])
            for kind in (placed.active, placed.standby, placed.learner)
            for identity in kind
            for task in kind[identity]
        )
        assert set(places.values()) <= {1}, "a task is twice on one instance"

    @invariant()
    def comes_to_rest_in_balance(self) -> None:
        """With followers that read, and nothing else, it takes a few rounds; then no leaving member has a task, all are balanced within
        one task of each kind, each task has its standby in another zone where there is one, and a further round changes nothing."""
        if not self.machines:
            return
        before = {name: machine.copy() for name, machine in self.machines.items()}
        placed = self.place()
        for _ in range(len(TASKS) + 4):
            self.is_sound(placed)
            self.carry_out(placed)
            for name in self.machines:
                self.catches_up(name)
            placed, last = self.place(), placed
            if placed == last and not any(placed.learner.values()):
                break
        else:
            raise AssertionError(f"still moving: {last} then {placed}")
        self.is_balanced(placed)
        self.machines = before

    def is_balanced(self, placed: Placement) -> None:
        all_leave = all(set(machine.running) <= machine.leaving for machine in self.machines.values())
        staying = {
            name: [number for number in machine.running if all_leave or number not in machine.leaving]
            for name, machine in self.machines.items()
        }
        staying = {name: numbers for name, numbers in staying.items() if numbers}
        workers = sum(map(len, staying.values()))
        active = per_instance(dict(placed.active))
        for name, machine in self.machines.items():
            for kind in (STATEFUL, TASKS):
                share = len(kind) * len(staying.get(name, ())) / workers
                assert share - 2 < len(active[name] & kind) < share + 2
            share = len(STATEFUL) * len(staying.get(name, ())) / workers
            assert share - 1 < len(active[name] & STATEFUL) < share + 1 or (not share and not active[name])
            loads = [len(placed.active[f"{name}/{number}"]) for number in staying.get(name, ())]
            assert not loads or max(loads) - min(loads) <= 1
            assert not any(placed.active[f"{name}/{number}"] for number in set(machine.running) - set(staying.get(name, ())))
        homes = {task: name for name, tasks in active.items() for task in tasks}
        zones = {INSTANCES[name] for name in staying}
        copies = [(task, identity.partition("/")[0]) for identity, tasks in placed.standby.items() for task in tasks]
        assert len(copies) == (len(STATEFUL) if len(staying) > 1 else 0)
        for task, name in copies:
            assert len(zones) == 1 or INSTANCES[name] != INSTANCES[homes[task]], f"the standby of {task} is in the zone of its active"


TestFleet = Fleet.TestCase
TestFleet.settings = settings(max_examples=examples(60), stateful_step_count=20, deadline=None)
