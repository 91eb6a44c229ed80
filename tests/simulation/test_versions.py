"""Two versions of a topology side by side, simulated: a leader of either version assigns to each member what its version can run.

The newer version has one store more in a sub-topology, and one sub-topology more. Members of both come, go, die, lead and carry assignments
out in any order; a newcomer is let in by the engine's own rule.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.coordination.compatibility import refusal_beside
from penstock.runtime.coordination.decision import Decision
from penstock.runtime.coordination.log import Entry
from penstock.runtime.coordination.racks import RackRules
from penstock.runtime.coordination.records import ASSIGNMENT_KEY, PROTOCOL, Assignment, Member, TaskReport, Tombstone, TopologyText, Written
from penstock.runtime.coordination.registry import Registry
from penstock.runtime.coordination.topics import TopicLayout
from penstock.runtime.model.ids import TaskId, TopicPartition
from penstock.runtime.model.states import TaskKind, TaskState
from penstock.runtime.topology.shape import Part, StoreShape, TopologyShape, tasks_of
from tests.support import examples

COUNTS = StoreShape("counts", "key_value", 0, "app-counts-changelog")
SUMS = StoreShape("sums", "key_value", 0, "app-sums-changelog")
OTHER = StoreShape("other", "key_value", 1, "app-other-changelog")


def version(text: str, stores: tuple[StoreShape, ...], parts: dict[int, Part]) -> TopologyText:
    sources = {number: part.reads for number, part in parts.items()}
    return TopologyText(hash=text, text=text, shape=TopologyShape(stores=stores, sources=sources), parts=parts)


FIRST = Part(("in",), 4, True)
OLD = version("old", (COUNTS,), {0: FIRST})
RELABELLED = version("one operator more", (COUNTS,), {0: FIRST})
NEW = version("new", (COUNTS, SUMS, OTHER), {0: FIRST, 1: Part(("more",), 2, True)})


class World:
    """The coordination topic, members of several versions, and what their tasks have been through."""

    def __init__(self, **settings: object) -> None:
        self.registry, self.offset, self.now_ms, self.born = Registry(), 0, 1_000, 0
        self.members: dict[str, tuple[Member, TopologyText]] = {}
        self._leaders: dict[str, Decision] = {}
        self.with_sums: set[str] = set()
        """Tasks that ran with the store of the new version, since that was last given up."""
        self._settings = {"application.id": "app", "bootstrap.servers": "nowhere:1", "num.standby.replicas": 1, **settings}

    def wall_ms(self) -> int:
        return self.now_ms

    monotonic_ms = wall_ms

    def rules(self) -> RackRules:
        return RackRules()

    def say(self, record: Written | Tombstone, key: bytes) -> None:
        self.registry.apply(Entry(self.offset, record, key, None), self.now_ms)
        self.offset += 1

    def join(self, topology: TopologyText) -> bool:
        """False if the newcomer is refused."""
        known = self.registry
        if any(refusal_beside(topology, [member], known.versions, known.topologies) for member, _ in self.members.values()):
            return False
        if topology != self.registry.last_topology:
            self.say(topology, topology.key)
            if topology is not NEW:
                self.with_sums.clear()
        self.born += 1
        member = Member(
            instance=f"i{self.born}",
            incarnation=1,
            transactional_id="t",
            host="h",
            pid=1,
            member_id=f"m{self.born}",
            topology_hash=topology.hash,
            topology=topology.digest,
            protocol=PROTOCOL,
        )
        self.members[member.identity] = member, topology
        self.say(member, member.key)
        return True

    def die(self, identity: str) -> None:
        member, _ = self.members.pop(identity)
        self.say(Tombstone("member", identity), member.key)

    def decide(self, identity: str) -> Assignment:
        """The member `identity` leads: by the layout of its own version."""
        tasks = tasks_of(self.members[identity][1].parts)
        layout = TopicLayout({}, tasks, tasks, frozenset(), TopicPartition("guard", 0))
        if identity not in self._leaders:
            self._leaders[identity] = Decision(StreamsConfig(self._settings), layout, self.registry, cast(Any, self), cast(Any, self))
        decided = self._leaders[identity].assignment(identity, [], [])
        assert decided is not None
        self.say(decided, ASSIGNMENT_KEY)
        return decided

    def carry_out(self, identity: str) -> None:
        """The member has open what it was granted, and has read its copies to the end. Checks that its version can run it."""
        member, topology = self.members[identity]
        active = self.registry.granted(identity, member.member_id)
        copies = self.registry.followed(identity, member.member_id)
        for task in {*active, *copies}:
            assert TaskId.parse(task).subtopology in topology.parts, f"{identity} ({topology.text}) has no task {task}"
        kept = active - member.active if topology is not NEW else frozenset()
        assert not kept & self.with_sums, f"{identity} (old) takes {sorted(kept & self.with_sums)} over, and leaves the store sums behind"
        self.with_sums |= {task for task in active if topology is NEW and TaskId.parse(task).subtopology == SUMS.sub_topology}
        kinds = {**copies, **dict.fromkeys(active, TaskKind.ACTIVE)}
        reports = {
            task: TaskReport(kind=kind, state=TaskState.RUNNING, offset_sum=0, end_sum=0, lag=0, position=9, caught_up=True)
            for task, kind in kinds.items()
        }
        member = msgspec.structs.replace(member, tasks=reports, epoch=self.registry.epoch)
        self.members[identity] = member, topology
        self.say(member, member.key)

    def settle(self, identity: str, rounds: int = 12) -> dict[str, set[str]]:
        """Rounds of assignments and their being carried out; gives the active tasks by member."""
        for _ in range(rounds):
            self.decide(identity)
            for each in list(self.members):
                self.carry_out(each)
        return {identity: member.active for identity, (member, _) in self.members.items()}


@settings(max_examples=examples(40), deadline=None)
@example([("J", 0), ("l", 0), ("c", 1), ("d", 1)], 0)  # the only member of the new version dies, with a sub-topology that the old one lacks
@given(st.lists(st.tuples(st.sampled_from("jJjllcdd"), st.integers(0, 9)), max_size=40), st.integers(0, 1))
def test_whatever_comes_each_member_runs_what_its_version_can_run_and_no_store_is_left_behind(
    steps: list[tuple[str, int]], standbys: int
) -> None:
    world = World(**{"num.standby.replicas": standbys})
    world.join(OLD)
    for step, number in steps:
        lives = sorted(world.members)
        match step:
            case "j" | "J":
                world.join(NEW if step == "J" else [OLD, RELABELLED][number % 2])
            case "d" if len(lives) > 1:
                world.die(lives[number % len(lives)])
            case "c":
                world.carry_out(lives[number % len(lives)])
            case _:
                world.decide(lives[number % len(lives)])
    shares = world.settle(sorted(world.members)[0])
    ran = sorted(task for tasks in shares.values() for task in tasks)
    assert len(ran) == len(set(ran)), "a task runs twice"
    news = any(topology is NEW for _, topology in world.members.values())
    assignment = world.registry.assignment
    assert assignment is not None
    # What was granted to a member that died at once may have run there, as far as anybody knows.
    waiting = set() if news else {task for task in assignment.ran.get(NEW.digest, ()) if task.startswith("0")}
    assert news or world.with_sums <= waiting
    wanted = {str(task) for task in tasks_of((NEW if news else OLD).parts)}
    assert set(ran) == {task for task in wanted if task not in waiting}


def test_during_a_restart_tasks_without_stores_run_elsewhere_and_those_with_state_wait_with_or_without_a_changelog() -> None:
    parts = {0: FIRST, 1: Part(("in",), 4), 2: Part(("in",), 4)}
    topology = version("all kinds", (COUNTS, StoreShape("unlogged", "key_value", 1, "")), parts)
    world = World(**{"num.standby.replicas": 0})
    for _ in range(2):
        assert world.join(topology)
    before = world.settle("i1/1/1")["i2/1/1"]
    assert {task[0] for task in before} == {"0", "1", "2"}
    member, _ = world.members.pop("i2/1/1")
    world.say(msgspec.structs.replace(member, tasks={}, returns=True, epoch=world.registry.epoch), member.key)
    decided = world.decide("i1/1/1")
    assert decided.reserved.keys() == {task for task in before if task[0] != "2"}
    (grant,) = decided.grants
    assert {task for task in before if task[0] == "2"} <= set(grant.active)


@pytest.mark.parametrize("leader", [0, 1], ids=["the old one leads", "the new one leads"])
def test_in_a_roll_tasks_move_to_the_new_version_alone_and_evenly(leader: int) -> None:
    world = World()
    for _ in range(2):
        assert world.join(OLD)
    world.settle("i1/1/1")
    world.die("i1/1/1")
    assert world.join(NEW)
    shares = world.settle(["i2/1/1", "i3/1/1"][leader])
    assert {identity: len(tasks) for identity, tasks in shares.items()} == {"i2/1/1": 3, "i3/1/1": 3}
    assert {"1_0", "1_1"} <= shares["i3/1/1"]
    assert not world.join(OLD), "it would leave the store behind"
    world.die("i2/1/1")
    assert world.join(NEW)
    assert {identity: len(tasks) for identity, tasks in world.settle("i4/1/1").items()} == {"i3/1/1": 3, "i4/1/1": 3}


def test_what_ran_with_the_new_store_waits_when_its_members_die_and_the_way_back_is_open_when_all_have(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    world.join(OLD)
    world.join(NEW)
    shares = world.settle("i1/1/1")
    moved = {task for task in shares["i2/1/1"] if task.startswith("0")}
    assert len(moved) == 1, "as even as six tasks can be"
    world.die("i2/1/1")
    assert world.settle("i1/1/1")["i1/1/1"] == {f"0_{number}" for number in range(4)} - moved
    assert caplog.text.count("waits for an instance of another version: it ran with store sums, which no live instance has") == 1
    assert world.join(OLD), "none that has the store lives: it is given up"
    shares = world.settle("i1/1/1")
    assert sorted(len(tasks) for tasks in shares.values()) == [2, 2]


def test_a_task_that_its_heir_never_began_stays_where_it_runs() -> None:
    world = World()
    world.join(OLD)
    world.settle("i1/1/1")
    world.join(NEW)
    while not (promised := world.decide("i1/1/1").heirs):
        world.carry_out("i2/1/1")
    world.die("i2/1/1")
    assert set(promised) <= world.settle("i1/1/1")["i1/1/1"] == {f"0_{number}" for number in range(4)}


def test_a_version_without_the_store_is_given_nothing_of_it_while_one_with_it_lives() -> None:
    """Also where its topology was written last: by a newcomer that was refused only after its word."""
    world = World()
    for topology in (OLD, NEW, NEW):
        world.join(topology)
    before = world.settle("i1/1/1")
    world.say(OLD, OLD.key)
    world.die("i3/1/1")
    after = world.settle("i1/1/1")
    assert before["i3/1/1"] <= after["i2/1/1"]


def test_another_operator_alone_moves_tasks_in_both_directions() -> None:
    world = World()
    world.join(OLD)
    world.join(RELABELLED)
    assert sorted(len(tasks) for tasks in world.settle("i1/1/1").values()) == [2, 2]
    world.die("i2/1/1")
    assert [len(tasks) for tasks in world.settle("i1/1/1").values()] == [4]
    assert world.join(RELABELLED)


def test_a_member_of_another_major_protocol_is_refused_and_given_nothing() -> None:
    world = World()
    world.join(OLD)
    member, _ = world.members["i1/1/1"]
    later = msgspec.structs.replace(member, instance="later", protocol="2.0", member_id="later")
    refusal = refusal_beside(OLD, [later], world.registry.versions, {})
    assert refusal is not None and "records have protocol 2.0; those of this one have 1." in str(refusal)
    world.say(later, later.key)
    assert [grant.identity for grant in world.decide("i1/1/1").grants] == ["i1/1/1"]


def test_a_member_of_before_shapes_runs_beside_the_same_topology_and_no_other() -> None:
    former = Member(instance="a", incarnation=1, transactional_id="t", host="h", pid=1, member_id="a", topology_hash="old")
    assert refusal_beside(OLD, [former], {}, {}) is None
    assert "upgrade Penstock first" in str(refusal_beside(NEW, [former], {}, {"old": "old"}))
    beside_two = str(refusal_beside(NEW, [former, former, msgspec.structs.replace(former, instance="b")], {}, {}))
    assert beside_two.startswith("instance a on h, instance b on h run another topology"), "the workers of an instance are named once"
    world = World()
    world.say(former, former.key)
    world.join(OLD)
    decided = world.decide("i1/1/1")
    assert {grant.identity for grant in decided.grants} == {"a/1/1", "i1/1/1"}
    assert sum(len(grant.active) for grant in decided.grants) + len(decided.heirs) == 4
