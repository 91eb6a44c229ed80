"""Standbys and learners, simulated: copies come, catch up and take over, and an active never goes to a place that is not ready."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.runtime.coordination.assignor import Candidate, assign
from penstock.runtime.coordination.copies import CopyRules, Placement, place
from penstock.runtime.model.ids import TaskId
from tests.support import examples

TASKS = [TaskId(0, number) for number in range(4)]
LARGE = 1_000_000


def rules(standbys: int = 0, warmups: int = 2, lag: int = 100) -> CopyRules:
    return CopyRules(frozenset(TASKS), lag, standbys, warmups)


def owner(name: str, *tasks: TaskId) -> Candidate:
    """Runs tasks, with all of their large state."""
    return Candidate(name, frozenset(tasks), dict.fromkeys(tasks, LARGE))


def test_a_new_member_learns_before_it_is_given_anything() -> None:
    placed = place([owner("a", *TASKS), Candidate("b")], TASKS, rules())
    assert placed.active == {"a": frozenset(TASKS), "b": frozenset()}
    assert placed.learner["b"] == frozenset(TASKS[2:])


def test_a_learner_that_has_caught_up_is_given_the_task() -> None:
    learned = frozenset(TASKS[2:])
    ready = Candidate("b", positions=dict.fromkeys(learned, LARGE - 5), follows=learned, learns=learned, caught_up=frozenset({TASKS[2]}))
    placed = place([owner("a", *TASKS), ready], TASKS, rules(lag=3))
    assert placed.active["b"] == {TASKS[2]}
    assert placed.learner["b"] == {TASKS[3]}, "the other continues learning"


def test_state_that_is_small_is_learned_too_whatever_the_budget() -> None:
    """Kafka Streams moves it at once, and its output stops while the stores are opened and read."""
    small = Candidate("a", frozenset(TASKS), dict.fromkeys(TASKS, 99))
    placed = place([small, Candidate("b")], TASKS, rules(lag=100, warmups=1))
    assert placed.active["a"] == frozenset(TASKS)
    assert placed.learner["b"] == frozenset(TASKS[2:])


def test_a_task_with_little_state_and_no_owner_goes_where_there_is_room() -> None:
    """A member without a copy lags by the whole changelog, and that is acceptable."""
    former = Candidate("a", frozenset(TASKS[:2]), dict.fromkeys(TASKS, 99))
    placed = place([former, Candidate("b")], TASKS, rules(lag=100))
    assert placed.active["b"] == frozenset(TASKS[2:])
    assert not placed.learner["b"]


def test_tasks_without_state_move_at_once() -> None:
    placed = place([owner("a", *TASKS), Candidate("b")], TASKS, CopyRules(frozenset(), 0))
    assert placed.active["b"] == frozenset(TASKS[2:])


def test_tasks_that_read_a_global_table_stay_where_it_is_built_until_the_new_member_has_it_too() -> None:
    """Without state they would move at once, and their output would stop for the whole build."""
    stateless = CopyRules(frozenset(), 0)
    waits = frozenset(TASKS[:3])
    builds = Candidate("b", waits=waits)
    placed = place([owner("a", *TASKS), builds], TASKS, stateless)
    assert placed.active == {"a": waits, "b": {TASKS[3]}}
    assert place([owner("a", *TASKS), Candidate("b")], TASKS, stateless).active["b"] == set(TASKS[2:])
    # The owner is dead, and its heir has the table; if none has it, the share counts.
    assert place([Candidate("a"), builds], TASKS, stateless).active["a"] >= waits
    both = place([Candidate("a", waits=waits), builds], TASKS, stateless)
    assert {len(mine) for mine in both.active.values()} == {2}
    # A restarted member had the tasks, and has to build the table again.
    again = Candidate("b", running=frozenset(TASKS), waits=waits)
    assert place([Candidate("a"), again], TASKS, stateless).active["a"] >= waits


def test_a_member_that_builds_its_global_tables_learns_meanwhile() -> None:
    every = frozenset(TASKS)
    learned = frozenset(TASKS[2:])
    copies = dict.fromkeys(learned, LARGE)
    ready = Candidate("b", positions=copies, follows=learned, learns=learned, caught_up=learned, waits=every)
    placed = place([owner("a", *TASKS), ready], TASKS, rules())
    assert placed.active == {"a": every, "b": frozenset()} and placed.learner["b"] == learned
    alone = place([Candidate("a"), ready], TASKS, rules())
    assert alone.active["b"] >= learned, "nobody else has their state"


def test_a_worker_that_builds_its_global_tables_leaves_the_tasks_to_its_sibling() -> None:
    every = frozenset(TASKS)
    workers = [Candidate("a/1", every, instance="a"), Candidate("a/2", instance="a", waits=every)]
    assert place(workers, TASKS, CopyRules(frozenset(), 0)).active == {"a/1": every, "a/2": frozenset()}


def test_there_are_never_more_learners_than_allowed_and_those_that_began_continue() -> None:
    begun = frozenset({TASKS[3]})
    members = [owner("a", *TASKS), Candidate("b", follows=begun, learns=begun)]
    assert place(members, TASKS, rules(warmups=1)).learner["b"] == begun
    assert not place(members, TASKS, rules(warmups=0)).learner["b"]


def test_a_dead_owner_s_task_goes_to_the_standby_also_if_that_has_its_share() -> None:
    """The member with room has no copy: it learns, while the standby runs one task more than its share."""
    copy = frozenset({TASKS[2]})
    standby = Candidate("a", frozenset(TASKS[:2]), dict.fromkeys(TASKS[:3], LARGE), follows=copy, caught_up=copy)
    placed = place([standby, Candidate("b", frozenset({TASKS[3]}), {TASKS[3]: LARGE}), Candidate("c")], TASKS, rules())
    assert TASKS[2] in placed.active["a"]
    assert TASKS[2] in placed.learner["b"] | placed.learner["c"]


def test_each_task_has_as_many_standbys_as_wanted_never_beside_its_active() -> None:
    members = [owner(name, task) for name, task in zip("abcd", TASKS, strict=True)]
    placed = place(members, TASKS, rules(standbys=2))
    for task in TASKS:
        copies = [name for name in placed.standby if task in placed.standby[name]]
        assert len(copies) == 2
        assert not any(task in placed.active[name] for name in copies)
    loads = [len(placed.active[name]) + len(placed.standby[name]) for name in placed.standby]
    assert max(loads) - min(loads) <= 1


def test_who_ran_a_task_last_is_its_standby() -> None:
    """It has the newest copy on its disk."""
    former = Candidate("b", positions={TASKS[0]: LARGE - 1})
    placed = place([owner("a", TASKS[0]), Candidate("aa"), former], TASKS[:1], rules(standbys=1))
    assert placed.standby["b"] == {TASKS[0]}


def test_a_member_that_leaves_runs_its_tasks_until_others_have_learned_them() -> None:
    leaving = Candidate("a", frozenset(TASKS[:2]), dict.fromkeys(TASKS[:2], LARGE), leaves=True)
    learned = frozenset({TASKS[0]})
    other = Candidate("b", frozenset(TASKS[2:]), dict.fromkeys(TASKS, LARGE - 5), follows=learned, learns=learned, caught_up=learned)
    placed = place([leaving, other], TASKS, rules(standbys=1, lag=3))
    assert placed.active["a"] == {TASKS[1]}
    assert placed.learner == {"a": frozenset(), "b": frozenset({TASKS[1]})}
    assert not placed.standby["a"], "it is given no copies any more"


def test_the_last_member_keeps_everything_though_it_wants_to_leave() -> None:
    assert place([Candidate("a", leaves=True)], TASKS, rules()).active["a"] == frozenset(TASKS)


def test_one_member_has_no_standbys() -> None:
    assert place([owner("a", *TASKS)], TASKS, rules(standbys=1)).standby == {"a": frozenset()}


@dataclass(slots=True)
class Machine:
    """A member of the simulated fleet: what it runs, follows, and has on its disk."""

    running: frozenset[TaskId] = frozenset()
    standby: frozenset[TaskId] = frozenset()
    learner: frozenset[TaskId] = frozenset()
    disk: dict[TaskId, int] = field(default_factory=dict)

    @property
    def follows(self) -> frozenset[TaskId]:
        return self.standby | self.learner


class Fleet(RuleBasedStateMachine):
    """An application over time. Ends of changelogs are known; a follower has caught up when it is at the end."""

    tasks = frozenset(TaskId(part, number) for part in range(2) for number in range(5))
    copy_rules = CopyRules(tasks, 0, standbys=1, warmups=2)

    def __init__(self) -> None:
        super().__init__()
        self.members: dict[str, Machine] = {}
        self.ends: dict[TaskId, int] = dict.fromkeys(self.tasks, 10)

    def candidates(self) -> list[Candidate]:
        return [
            Candidate(
                name,
                member.running,
                dict(member.disk),
                1,
                member.follows,
                member.learner,
                frozenset(task for task in member.follows if member.disk.get(task, 0) == self.ends[task]),
            )
            for name, member in self.members.items()
        ]

    def place(self) -> Placement:
        return place(self.candidates(), self.tasks, self.copy_rules)

    def carry_out(self, placed: Placement) -> None:
        for name, member in self.members.items():
            member.running, member.standby, member.learner = placed.active[name], placed.standby[name], placed.learner[name]
            for task in member.running:
                member.disk[task] = self.ends[task]

    @rule(name=st.sampled_from("abcdef"))
    def joins(self, name: str) -> None:
        self.members.setdefault(name, Machine())

    @rule(name=st.sampled_from("abcdef"))
    def dies(self, name: str) -> None:
        self.members.pop(name, None)

    @rule(name=st.sampled_from("abcdef"))
    def follows(self, name: str) -> None:
        """It reads all that there is."""
        member = self.members.get(name)
        if member is not None:
            member.disk.update({task: self.ends[task] for task in member.follows})

    @rule()
    def processes(self) -> None:
        for member in self.members.values():
            for task in member.running:
                self.ends[task] += 1
                member.disk[task] = self.ends[task]

    @rule()
    def is_assigned(self) -> None:
        if not self.members:
            return
        had_ready = {
            task
            for task in self.tasks
            for member in self.members.values()
            if task in member.running or (task in member.follows and member.disk.get(task, 0) == self.ends[task])
        }
        placed = self.place()
        for name, member in self.members.items():
            for task in placed.active[name] & had_ready:
                caught_up = member.disk.get(task, 0) == self.ends[task]
                assert task in member.running or caught_up, f"{task} goes to {name}, which is not ready, though another is"
        self.carry_out(placed)

    @invariant()
    def comes_to_rest_in_balance(self) -> None:
        """With followers that read, and nothing else, it takes a few rounds; then every task runs where `assign` wants it, no member
        learns, each task has its standby, and a further round changes nothing."""
        if not self.members:
            return
        before = {name: Machine(m.running, m.standby, m.learner, dict(m.disk)) for name, m in self.members.items()}
        placed = self.place()
        for _ in range(len(self.tasks) + 2):
            assert sum(len(mine) for mine in placed.active.values()) == len(self.tasks)
            learners = [(task, self.members[name]) for name, mine in placed.learner.items() for task in mine]
            # Those that miss nothing take a moment, and do not count.
            assert sum(member.disk.get(task, 0) < self.ends[task] for task, member in learners) <= self.copy_rules.warmups
            self.carry_out(placed)
            for name in self.members:
                self.follows(name)
            placed, last = self.place(), placed
            if placed == last and not any(placed.learner.values()):
                break
        else:
            raise AssertionError(f"still moving: {last} then {placed}")
        assert placed.active == assign(self.candidates(), self.tasks)
        assert sum(len(mine) for mine in placed.standby.values()) == (len(self.tasks) if len(self.members) > 1 else 0)
        self.members = before


TestFleet = Fleet.TestCase
TestFleet.settings = settings(max_examples=examples(60), stateful_step_count=20, deadline=None)
