"""Grants of wanted tasks: promises to heirs, tasks that are kept, and the dead (coordination.md, 3 to 5)."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.coordination.decision import REJOIN_MS, RESTORED_PER_SECOND, Decision
from penstock.runtime.coordination.disk import positions_at
from penstock.runtime.coordination.log import Entry
from penstock.runtime.coordination.racks import RackRules
from penstock.runtime.coordination.records import (
    ASSIGNMENT_KEY,
    Assignment,
    Death,
    Desired,
    GlobalStoreReport,
    Grant,
    Member,
    TaskReport,
    TopologyText,
    Written,
)
from penstock.runtime.coordination.registry import Registry
from penstock.runtime.coordination.topics import TopicLayout
from penstock.runtime.model.ids import TaskId, TopicPartition
from penstock.runtime.model.states import TaskKind, TaskState
from penstock.runtime.topology.shape import Part

TASKS = frozenset(TaskId(0, number) for number in range(4))
NAMES = sorted(str(task) for task in TASKS)
NOW_MS, SESSION_MS, GRACE_MS = 1_000_000, 10_000, 60_000
POSITION = 1_000_000
LAG = 10_000
"""`acceptable.recovery.lag`."""


class Log:
    """The coordination topic, and the leader's decision on it."""

    def __init__(self, **settings: object) -> None:
        self.now_ms, self.offset = NOW_MS, 0
        self.registry = Registry()
        layout = TopicLayout({}, TASKS, TASKS, frozenset(), TopicPartition("guard", 0))
        given = {"session.timeout.ms": SESSION_MS, "restart.grace.ms": GRACE_MS, **settings}
        config = StreamsConfig({"application.id": "app", "bootstrap.servers": "nowhere:1", **given})
        self.decision = Decision(config, layout, self.registry, cast(Any, self), cast(Any, self))

    def wall_ms(self) -> int:
        return self.now_ms

    def monotonic_ms(self) -> int:
        return self.now_ms

    def rules(self) -> RackRules:
        return RackRules()

    def say(self, record: Written, ahead_ms: int | None = None) -> None:
        """`ahead_ms`: how far the brokers' clock is ahead of the one here, where it is known."""
        key = ASSIGNMENT_KEY if isinstance(record, Assignment) else cast(Any, record).key
        at_ms = None if ahead_ms is None else self.now_ms + ahead_ms
        self.registry.apply(Entry(self.offset, record, key, at_ms), self.now_ms)
        self.offset += 1

    def decide(self, dead: list[str] | None = None, fenced: list[str] | None = None) -> Assignment:
        """Decides, and writes that down."""
        decided = self.decision.assignment("leader", dead or [], fenced or [])
        assert decided is not None
        for identity in fenced or []:
            del self.registry.members[identity]
        self.say(decided)
        return decided


def report(kind: TaskKind, caught_up: bool = True, position: int = POSITION) -> TaskReport:
    return TaskReport(kind=kind, state=TaskState.RUNNING, offset_sum=0, end_sum=0, lag=0, position=position, caught_up=caught_up)


def member(instance: str, worker: int = 1, incarnation: int = 1, workers: int = 1, tasks: dict[str, TaskReport] | None = None) -> Member:
    return Member(
        instance=instance,
        worker=worker,
        incarnation=incarnation,
        workers=workers,
        transactional_id="t",
        host="h",
        pid=1,
        member_id=f"{instance}-{worker}-{incarnation}",
        tasks=tasks or {},
    )


def running(*names: str) -> dict[str, TaskReport]:
    return {name: report(TaskKind.ACTIVE) for name in names}


def active(assignment: Assignment) -> dict[str, list[str]]:
    return {grant.identity: grant.active for grant in assignment.grants if grant.active}


def moving_to_b() -> Log:
    """`a` runs everything; `b` has learned two of it, and they were asked back of `a`."""
    log = Log()
    log.say(member("a", tasks=running(*NAMES)))
    log.decide()
    log.say(member("b", tasks={name: report(TaskKind.LEARNER) for name in NAMES[2:]}))
    decided = log.decide()
    assert decided.heirs == dict.fromkeys(NAMES[2:], "b/1/1") and decided.revoking == {"a/1/1": NAMES[2:]}
    return log


def test_an_heir_has_the_task_when_the_log_says_that_it_is_free_without_another_assignment() -> None:
    log = moving_to_b()
    assert log.registry.granted("b/1/1", "b-1-1") == frozenset()
    log.say(msgspec.structs.replace(member("a", tasks=running(*NAMES[:2])), epoch=log.registry.epoch))
    assert log.registry.granted("b/1/1", "b-1-1") == frozenset(NAMES[2:])
    assert log.registry.granted("b/1/1", "another member id") == frozenset()


def test_a_task_that_is_on_its_way_stays_with_its_heir_whatever_that_says_meanwhile() -> None:
    """Under load a copy may fall behind for a moment; another may look better."""
    log = moving_to_b()
    log.say(member("b", tasks={name: report(TaskKind.LEARNER, caught_up=False, position=1) for name in NAMES[2:]}))
    log.say(member("c", tasks={name: report(TaskKind.STANDBY) for name in NAMES}))
    decided = log.decide()
    assert {name: decided.heirs[name] for name in NAMES[2:]} == dict.fromkeys(NAMES[2:], "b/1/1")
    log.say(msgspec.structs.replace(member("a", tasks=running(*NAMES[:2])), epoch=log.registry.epoch))
    assert active(log.decide())["b/1/1"] == NAMES[2:]


def test_a_killed_instance_keeps_what_others_would_restore_for_long_until_it_may_be_back() -> None:
    """Its death is known at once; that it comes back within a second is not. What others have, or restore soon, moves."""
    log = Log()
    soon = RESTORED_PER_SECOND * (SESSION_MS + REJOIN_MS) // 1_000
    positions = (soon, soon + 1, 3 * soon, 3 * soon)
    log.say(member("a", tasks={name: report(TaskKind.ACTIVE, position=at) for name, at in zip(NAMES, positions, strict=True)}))
    log.decide()
    copies = {NAMES[2]: report(TaskKind.STANDBY, position=3 * soon), NAMES[3]: report(TaskKind.STANDBY, caught_up=False, position=soon)}
    log.say(msgspec.structs.replace(member("b", tasks=copies), disk={NAMES[1]: 1}))
    log.decide()
    log.say(Death(instance="a", worker=1, incarnation=1, by="b/1/1", at_ms=log.now_ms))
    decided = log.decide(dead=["a/1/1"], fenced=["a/1/1"])
    assert active(decided) == {"b/1/1": NAMES[:3]} and decided.reserved.keys() == {NAMES[3]}
    log.now_ms += SESSION_MS + REJOIN_MS
    assert active(log.decide()) == {"b/1/1": NAMES}


def test_an_heir_counts_as_one_who_may_run_the_task() -> None:
    """A leader that thinks better of it must not grant the task to a third before the heir has let go."""
    log = moving_to_b()
    log.say(msgspec.structs.replace(member("a", tasks=running(*NAMES[:2])), epoch=log.registry.epoch))
    grants = [
        Grant(member_id="a-1-1", incarnation=1, instance="a", active=NAMES[:2]),
        Grant(member_id="b-1-1", incarnation=1, instance="b", active=[]),
    ]
    log.say(Assignment(leader="leader", grants=grants, heirs=dict.fromkeys(NAMES[2:], "a/1/1")))
    assert log.registry.granted("a/1/1", "a-1-1") == frozenset(NAMES[:2])
    log.say(msgspec.structs.replace(member("b"), epoch=log.registry.epoch))
    assert log.registry.granted("a/1/1", "a-1-1") == frozenset(NAMES)


def test_the_tasks_of_the_dead_are_restored_by_their_heirs_while_the_dead_are_fenced() -> None:
    log = Log()
    log.say(member("a", tasks=running(*NAMES[:2])))
    log.say(member("b", tasks=running(*NAMES[2:])))
    log.decide()
    before = log.decide(dead=["b/1/1"])
    assert active(before) == {"a/1/1": NAMES[:2]}
    assert [grant.learner for grant in before.grants] == [NAMES[2:]]
    after = log.decide(dead=["b/1/1"], fenced=["b/1/1"])
    assert active(after) == {"a/1/1": NAMES}


def back_at_once(workers: int = 1, copies: dict[str, TaskReport] | None = None) -> Log:
    """`b` was killed and is back, but the group does not let it in yet: it has reported its own death."""
    log = Log()
    log.say(member("a", tasks=running(*NAMES[:2]) | (copies or {})))
    log.say(member("b", workers=workers, tasks=running(*NAMES[2:])))
    if workers > 1:
        log.say(member("b", 2, workers=workers))
    log.decide()
    log.say(Death(instance="b", worker=1, incarnation=1, by="b/1/2", at_ms=NOW_MS))
    log.decide(dead=["b/1/1"], fenced=["b/1/1"])
    return log


def test_a_killed_worker_that_is_back_finds_its_tasks() -> None:
    log = back_at_once()
    assert sorted(cast(Assignment, log.registry.assignment).reserved) == NAMES[2:]
    log.now_ms += SESSION_MS
    log.say(member("b", incarnation=2))
    assert active(log.decide())["b/1/2"] == NAMES[2:]


def test_it_is_not_waited_for_longer_than_the_group_may_take() -> None:
    log = back_at_once()
    log.now_ms += SESSION_MS + REJOIN_MS + 1
    assert active(log.decide()) == {"a/1/1": NAMES}


def test_a_whole_copy_runs_what_would_be_kept() -> None:
    log = back_at_once(copies={NAMES[2]: report(TaskKind.STANDBY)})
    assert active(log.decide()) == {"a/1/1": NAMES[:3]}


def test_siblings_have_the_disk_so_nothing_is_kept() -> None:
    log = back_at_once(workers=2)
    assert active(log.decide())["b/2/1"] == NAMES[2:]


@pytest.mark.parametrize("workers", [2, 1])
def test_what_is_kept_for_a_worker_is_given_away_when_its_instance_is_back_with_fewer(workers: int) -> None:
    log = Log()
    log.say(member("a", workers=2, tasks=running(*NAMES[:2])))
    log.say(member("a", 2, workers=2, tasks=running(*NAMES[2:])))
    log.say(member("b"))
    log.decide()
    for number in (1, 2):
        gone = msgspec.structs.replace(member("a", number, workers=2), returns=True, heartbeat_ms=NOW_MS, epoch=log.registry.epoch)
        log.say(gone)
    assert sorted(log.decide().reserved) == NAMES
    log.say(member("a", incarnation=2, workers=workers))
    kept = log.decide(dead=["a/1/1", "a/2/1"], fenced=["a/1/1", "a/2/1"]).reserved
    assert sorted(kept) == (NAMES[2:] if workers == 2 else [])


@pytest.mark.parametrize(("in_memory", "heir"), [(False, "b/2/1"), (True, "c/1/1")])
def test_a_sibling_has_what_was_on_disk_and_not_what_was_in_memory(in_memory: bool, heir: str) -> None:
    log = Log(**{"acceptable.recovery.lag": 0})
    own = {name: msgspec.structs.replace(each, in_memory=in_memory) for name, each in running(NAMES[0]).items()}
    log.say(member("b", 1, workers=2, tasks=own))
    log.say(member("b", 2, workers=2, tasks=running(NAMES[1])))
    log.say(member("c", tasks=running(*NAMES[2:]) | {NAMES[0]: report(TaskKind.STANDBY)}))
    log.decide()
    assert NAMES[0] in active(log.decide(dead=["b/1/1"], fenced=["b/1/1"]))[heir]


@pytest.mark.parametrize("ahead_ms", [-1_200_000, 1_200_000], ids=["fast", "slow"])
def test_rule_4_a_leader_whose_clock_is_wrong_keeps_tasks_for_as_long_as_any_other(ahead_ms: int) -> None:
    log = Log()
    log.say(member("a", tasks=running(*NAMES[:2])), ahead_ms)
    log.say(member("b", tasks=running(*NAMES[2:])), ahead_ms)
    log.decide()
    log.say(msgspec.structs.replace(member("b"), returns=True), ahead_ms)
    assert sorted(log.decide(dead=["b/1/1"], fenced=["b/1/1"]).reserved) == NAMES[2:]
    log.now_ms += GRACE_MS - 1
    assert sorted(log.decide().reserved) == NAMES[2:]
    log.now_ms += 1
    assert active(log.decide()) == {"a/1/1": NAMES}


@pytest.mark.parametrize("ahead_ms", [-1_200_000, 1_200_000], ids=["fast", "slow"])
def test_who_is_back_is_waited_for_by_the_brokers_clock(ahead_ms: int) -> None:
    """The clock of the one that is back is wrong; the leader's is right."""
    log = Log()
    log.say(member("a", tasks=running(*NAMES[:2])), 0)
    log.say(member("b", tasks=running(*NAMES[2:])), 0)
    log.decide()
    log.say(Death(instance="b", worker=1, incarnation=1, by="b/1/2", at_ms=NOW_MS - ahead_ms), 0)
    assert sorted(log.decide(dead=["b/1/1"], fenced=["b/1/1"]).reserved) == NAMES[2:]
    log.now_ms += SESSION_MS + REJOIN_MS
    assert active(log.decide()) == {"a/1/1": NAMES}


def opened(position: int, state: TaskState = TaskState.RESTORING) -> TaskReport:
    """A copy that is open, and not whole."""
    return msgspec.structs.replace(report(TaskKind.LEARNER, caught_up=False, position=position), state=state)


def test_an_open_store_outranks_the_sums_that_its_siblings_keep_of_its_folder() -> None:
    """The copy at `a` was wiped. What its other worker read of the folder before makes it look like the newest of all."""
    log = Log(**{"acceptable.recovery.lag": 0})
    log.say(member("a", 1, workers=2, tasks={NAMES[0]: opened(10)}))
    log.say(msgspec.structs.replace(member("a", 2, workers=2), disk={NAMES[0]: POSITION + 5}))
    log.say(member("b", tasks={NAMES[0]: report(TaskKind.STANDBY)}))
    assert positions_at(log.registry, "a/1/1") == positions_at(log.registry, "a/2/1") == {TaskId(0, 0): 10}
    assert NAMES[0] in active(log.decide())["b/1/1"]


def test_of_two_sums_the_one_that_was_read_last_holds() -> None:
    log = Log()
    log.say(msgspec.structs.replace(member("a", 1, workers=2), disk={NAMES[0]: POSITION, NAMES[1]: 7}, heartbeat_ms=1))
    log.say(msgspec.structs.replace(member("a", 2, workers=2), disk={NAMES[0]: 10}, heartbeat_ms=2))
    assert positions_at(log.registry, "a/1/1") == {TaskId(0, 0): 10, TaskId(0, 1): 7}
    log.say(msgspec.structs.replace(member("a", 1, workers=2), disk={NAMES[0]: 20}, heartbeat_ms=3))
    assert positions_at(log.registry, "a/2/1") == {TaskId(0, 0): 20}


def test_a_task_that_waits_for_its_folder_is_as_new_as_the_folder() -> None:
    log = Log()
    log.say(msgspec.structs.replace(member("a", tasks={NAMES[0]: opened(0, TaskState.CREATED)}), disk={NAMES[0]: POSITION}))
    assert positions_at(log.registry, "a/1/1") == {TaskId(0, 0): POSITION}


@pytest.mark.parametrize("disk, position", [({}, None), ({NAMES[0]: 400}, POSITION)])
def test_what_a_dead_worker_had_open_counts_if_its_successor_finds_the_folder(disk: dict[str, int], position: int | None) -> None:
    """It is back on an empty disk, or on the one that it had: there the files are newer than their checkpoint."""
    log = Log()
    log.say(member("a", tasks=running(NAMES[0])))
    log.say(msgspec.structs.replace(member("a", incarnation=2), disk=disk))
    assert positions_at(log.registry, "a/1/2").get(TaskId(0, 0)) == position


def stopped_for_a_restart() -> Log:
    """`b` was closed without leaving: its tasks are kept for it."""
    log = Log()
    log.say(member("a", tasks=running(*NAMES[:2])))
    log.say(member("b", tasks=running(*NAMES[2:])))
    log.decide()
    log.say(msgspec.structs.replace(member("b"), returns=True, heartbeat_ms=NOW_MS))
    assert sorted(log.decide(dead=["b/1/1"], fenced=["b/1/1"]).reserved) == NAMES[2:]
    return log


def test_a_copy_runs_at_once_when_its_owner_has_closed_for_a_restart() -> None:
    """The group has not said yet that the owner has left, and it is not fenced: its last record says that all of its tasks are closed."""
    log = Log()
    log.say(member("a", tasks={**running(*NAMES[:2]), NAMES[2]: report(TaskKind.STANDBY)}))
    log.say(member("b", tasks=running(*NAMES[2:])))
    log.decide()
    log.say(msgspec.structs.replace(member("b"), returns=True, heartbeat_ms=NOW_MS))
    decided = log.decide()
    assert active(decided) == {"a/1/1": NAMES[:3]} and decided.reserved.keys() == {NAMES[3]}


def wish(instance: str, running: bool) -> Desired:
    return Desired(instance=instance, running=running, at_ms=1, by="ann")


def test_nothing_is_kept_for_an_instance_that_was_stopped_on_purpose() -> None:
    log = stopped_for_a_restart()
    log.say(wish("b", False))
    assert active(log.decide()) == {"a/1/1": NAMES}


def test_nor_where_that_was_said_before_it_closed() -> None:
    log = Log()
    log.say(member("a", tasks=running(*NAMES[:2])))
    log.say(member("b", tasks=running(*NAMES[2:])))
    log.decide()
    log.say(wish("b", False))
    log.say(msgspec.structs.replace(member("b"), returns=True, heartbeat_ms=NOW_MS))
    assert not log.decide(dead=["b/1/1"], fenced=["b/1/1"]).reserved


def test_a_member_that_builds_its_global_stores_is_given_no_task_that_reads_them_while_another_has_them() -> None:
    log = Log()
    parts = {0: Part(("in",), len(TASKS), reads_global=True)}
    text = TopologyText(hash="t", text="", parts=parts)
    log.say(text)

    def joins(name: str, tasks: dict[str, TaskReport], lag: int) -> None:
        state = TaskState.RUNNING if lag == 0 else TaskState.RESTORING
        stores = {"airports": GlobalStoreReport(topic="airports", state=state, lag=lag)}
        log.say(msgspec.structs.replace(member(name, tasks=tasks), topology=text.digest, global_stores=stores))

    joins("a", running(*NAMES), 0)
    log.decide()
    joins("b", {}, LAG + 1)
    assert active(log.decide()) == {"a/1/1": NAMES}
    joins("b", {}, LAG)  # acceptable: it restarted, and reads the last records
    assert log.decide().heirs == dict.fromkeys(NAMES[2:], "b/1/1")


def test_tasks_are_kept_for_one_that_is_wanted_again_or_was_started_by_other_means_since() -> None:
    log = stopped_for_a_restart()
    log.say(wish("b", False))
    log.say(wish("b", True))
    assert sorted(log.decide().reserved) == NAMES[2:]
    log = stopped_for_a_restart()
    log.say(wish("b", False))
    log.decide()
    log.say(member("b", incarnation=2))
    log.decide()
    log.say(msgspec.structs.replace(member("b", incarnation=2), tasks=running(*NAMES[2:]), epoch=log.registry.epoch))
    log.say(msgspec.structs.replace(member("a"), tasks=running(*NAMES[:2]), epoch=log.registry.epoch))
    log.decide()
    log.say(msgspec.structs.replace(member("b", incarnation=2), returns=True, heartbeat_ms=NOW_MS))
    assert sorted(log.decide(dead=["b/1/2"], fenced=["b/1/2"]).reserved) == NAMES[2:]
