"""The assignor, simulated: members come, leave, die and fall behind, and the assignment comes to rest (coordination.md, 1)."""

from __future__ import annotations

import time
from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.runtime.coordination.assignor import Candidate, assign
from penstock.runtime.model.ids import TaskId
from tests.support import examples

TASKS = st.frozensets(st.builds(TaskId, st.integers(0, 3), st.integers(0, 11)), max_size=30)


@st.composite
def fleets(draw: st.DrawFn) -> tuple[list[Candidate], frozenset[TaskId]]:
    """Members that run any part of the tasks, and have copies of any age of any of them."""
    tasks = draw(TASKS)
    names = draw(st.lists(st.sampled_from("abcdefgh"), unique=True, min_size=1))
    owners = {task: draw(st.sampled_from([*names, None])) for task in sorted(tasks)}
    positions = st.dictionaries(st.sampled_from(sorted(tasks)), st.integers(0, 100)) if tasks else st.just({})
    members = [Candidate(name, frozenset(task for task, owner in owners.items() if owner == name), draw(positions)) for name in names]
    return members, tasks


def moved(members: list[Candidate], wanted: Mapping[str, frozenset[TaskId]]) -> set[TaskId]:
    """Tasks that a member runs and is to give away."""
    return {task for member in members for task in member.running - wanted[member.name]}


@given(fleets())
def test_each_task_is_wanted_at_exactly_one_member(fleet: tuple[list[Candidate], frozenset[TaskId]]) -> None:
    members, tasks = fleet
    given_out = [task for mine in assign(members, tasks).values() for task in mine]
    assert sorted(given_out) == sorted(tasks)


@given(fleets())
def test_members_of_equal_capacity_differ_by_one_task_at_most(fleet: tuple[list[Candidate], frozenset[TaskId]]) -> None:
    loads = [len(mine) for mine in assign(*fleet).values()]
    assert max(loads) - min(loads) <= 1


@given(fleets(), st.lists(st.integers(1, 4), min_size=8, max_size=8))
def test_a_member_of_more_capacity_gets_more_tasks_in_proportion(
    fleet: tuple[list[Candidate], frozenset[TaskId]], capacities: list[int]
) -> None:
    members = [
        Candidate(member.name, member.running, member.positions, capacity) for member, capacity in zip(fleet[0], capacities, strict=False)
    ]
    wanted = assign(members, fleet[1])
    total = sum(member.capacity for member in members)
    for member in members:
        share = len(fleet[1]) * member.capacity / total
        assert share - 1 < len(wanted[member.name]) < share + 1


@given(fleets())
def test_the_same_members_in_any_order_get_the_same_tasks(fleet: tuple[list[Candidate], frozenset[TaskId]]) -> None:
    members, tasks = fleet
    assert assign(members, tasks) == assign(members[::-1], sorted(tasks, reverse=True))


@given(fleets())
def test_a_second_round_changes_nothing(fleet: tuple[list[Candidate], frozenset[TaskId]]) -> None:
    members, tasks = fleet
    wanted = assign(members, tasks)
    assert assign([Candidate(member.name, wanted[member.name], member.positions) for member in members], tasks) == wanted


@given(fleets())
def test_no_task_moves_but_for_balance(fleet: tuple[list[Candidate], frozenset[TaskId]]) -> None:
    """A running task leaves its owner only if that has more than its share: as many as are too many, and not one more."""
    members, tasks = fleet
    wanted = assign(members, tasks)
    least, rest = divmod(len(tasks), len(members))
    most_first = sorted((len(member.running) for member in members), reverse=True)
    too_many = sum(max(0, running - least - (place < rest)) for place, running in enumerate(most_first))
    assert len(moved(members, wanted)) == too_many


@given(fleets())
def test_an_active_never_leaves_a_caught_up_member_for_one_that_is_not_unless_its_share_is_full(
    fleet: tuple[list[Candidate], frozenset[TaskId]],
) -> None:
    members, tasks = fleet
    wanted = assign(members, tasks)
    least = len(tasks) // len(members)
    for member in members:
        if member.running - wanted[member.name]:
            assert len(wanted[member.name]) >= least
            assert wanted[member.name] <= member.running, "it gave away what it runs, and took what it does not"


@given(fleets())
def test_a_task_without_an_owner_goes_to_the_newest_copy_if_there_is_room(fleet: tuple[list[Candidate], frozenset[TaskId]]) -> None:
    """After a round of balance one task more appears, as after the end of its owner."""
    before, tasks = fleet
    wanted = assign(before, tasks)
    new = TaskId(9, 0)
    positions = {member.name: {**(member.positions or {}), new: place + 1} for place, member in enumerate(before) if place % 2 == 0}
    members = [Candidate(member.name, wanted[member.name], positions.get(member.name)) for member in before]
    fewest = min(len(member.running) for member in members)
    with_room = [member for member in members if len(member.running) == fewest]
    owner = next(name for name, mine in assign(members, tasks | {new}).items() if new in mine)
    assert positions.get(owner, {}).get(new, 0) == max(positions.get(member.name, {}).get(new, 0) for member in with_room)


def test_a_dead_members_tasks_go_where_their_state_is() -> None:
    """Tasks with a copy somewhere are placed before those with none, which could go anywhere."""
    tasks = [TaskId(0, number) for number in range(4)]
    members = [Candidate("a", positions={tasks[2]: 7, tasks[3]: 7}), Candidate("b")]
    assert assign(members, tasks) == {"a": frozenset(tasks[2:]), "b": frozenset(tasks[:2])}


def test_no_members_are_assigned_nothing() -> None:
    assert assign([], [TaskId(0, 0)]) == {}


def test_tasks_of_each_sub_topology_are_spread_over_the_members() -> None:
    """Tasks of one sub-topology are alike; a member that had all the heavy ones would be the slowest."""
    tasks = [TaskId(part, number) for part in range(3) for number in range(6)]
    wanted = assign([Candidate(name) for name in "abc"], tasks)
    for mine in wanted.values():
        assert sorted(task.subtopology for task in mine) == [0, 0, 1, 1, 2, 2]


def test_a_thousand_tasks_on_a_hundred_members() -> None:
    """Each round is computed in the worker's thread. Twenty of them, with a bound that only a wrong order of growth misses."""
    tasks = [TaskId(part, number) for part in range(10) for number in range(100)]
    members = [Candidate(f"member-{number:03d}") for number in range(100)]
    begin = time.process_time()
    for _ in range(20):
        wanted = assign(members, tasks)
        members = [Candidate(member.name, wanted[member.name], dict.fromkeys(wanted[member.name], 5)) for member in members[1:]] + [
            members[0]
        ]
        members[-1] = Candidate(members[-1].name)
    assert time.process_time() - begin < 20


class Fleet(RuleBasedStateMachine):
    """An application over time: each round is computed from what the one before left, as the leader does."""

    tasks = frozenset(TaskId(part, number) for part in range(2) for number in range(9))

    def __init__(self) -> None:
        super().__init__()
        self.running: dict[str, frozenset[TaskId]] = {}
        self.disk: dict[str, dict[TaskId, int]] = {}
        self.now = 0

    @rule(name=st.sampled_from("abcdefgh"))
    def joins(self, name: str) -> None:
        self.running.setdefault(name, frozenset())
        self.disk.setdefault(name, {})

    @rule(name=st.sampled_from("abcdefgh"))
    def dies(self, name: str) -> None:
        """Its disk is still there when it comes back."""
        self.running.pop(name, None)

    @rule(name=st.sampled_from("abcdefgh"))
    def loses_its_disk(self, name: str) -> None:
        self.running.pop(name, None)
        self.disk.pop(name, None)

    @rule()
    def processes(self) -> None:
        """State moves on where a task runs; copies elsewhere fall behind."""
        self.now += 1
        for name, tasks in self.running.items():
            self.disk[name].update(dict.fromkeys(tasks, self.now))

    @rule()
    def is_assigned(self) -> None:
        self.running = dict(assign([Candidate(name, tasks, self.disk[name]) for name, tasks in self.running.items()], self.tasks))

    @invariant()
    def comes_to_rest(self) -> None:
        """One round is enough, whatever happened: all tasks run, in balance, and the next round moves nothing."""
        if not self.running:
            return
        first = assign([Candidate(name, tasks, self.disk[name]) for name, tasks in self.running.items()], self.tasks)
        assert frozenset().union(*first.values()) == self.tasks
        assert assign([Candidate(name, tasks, self.disk[name]) for name, tasks in first.items()], self.tasks) == first


TestFleet = Fleet.TestCase
TestFleet.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)


def test_a_copy_that_lags_acceptably_is_as_good_as_the_newest() -> None:
    """`acceptable.recovery.lag`: then room decides."""
    task = TaskId(0, 0)
    busy = Candidate("a", frozenset({TaskId(1, 0)}), {task: 1_000})
    idle = Candidate("b", positions={task: 950})
    tasks = [task, TaskId(1, 0), TaskId(1, 1)]
    assert task in assign([busy, idle], tasks, acceptable_lag=0)["a"]
    assert task in assign([busy, idle], tasks, acceptable_lag=100)["b"]
