"""MEMBER, DESIRED and events as rows: the newer one by the instance's own clock holds, whichever is read first."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import msgspec
import pytest
from msgspec.structs import replace

from penstock.orchestration.database import ControlPlane
from penstock.orchestration.database.models import Checkpoint, Instance, Task, from_ms
from penstock.orchestration.projection import writer
from penstock.runtime.coordination.records import Desired, GlobalStoreReport, Member, PausedAt, TaskReport, encode
from penstock.runtime.model.events import Event, EventKind
from penstock.runtime.model.states import State, TaskKind, TaskState


def report(state: TaskState, offsets: int = 0, paused: PausedAt | None = None, checkpoint_ms: int | None = None) -> TaskReport:
    return TaskReport(
        kind=TaskKind.ACTIVE, state=state, offset_sum=offsets, end_sum=10, lag=10 - offsets, checkpoint_ms=checkpoint_ms, paused=paused
    )


def member(at_ms: int, incarnation: int = 1, **tasks: TaskReport) -> Member:
    return Member(
        instance="a-1",
        incarnation=incarnation,
        transactional_id="t",
        member_id="m",
        host="h",
        pid=7,
        state=State.RUNNING,
        tasks={name.removeprefix("t"): reported for name, reported in tasks.items()},
        heartbeat_ms=at_ms,
        log_path="/log",
    )


def coordinate(control_plane: ControlPlane, record: Member | Desired | bytes) -> None:
    """Applies a record; bytes are the key of a tombstone."""
    key, value = (record, None) if isinstance(record, bytes) else (record.key, encode(record))
    with control_plane.writing() as session:
        writer.store_coordination(session, "a", key, value)


def tell(control_plane: ControlPlane, at_ms: int, kind: EventKind, payload: dict[str, object], task: str | None = "0_0") -> None:
    event = Event(id=f"{kind}/{at_ms}", application="a", instance="a-1", incarnation=1, kind=kind, task=task, at_ms=at_ms, payload=payload)
    with control_plane.writing() as session:
        writer.store_events(session, "a", at_ms, [event.to_json()])


def task(control_plane: ControlPlane, name: str = "0_0") -> Task:
    with control_plane.reading() as session:
        return session.get_one(Task, ("a", name, "a-1"))


def instance(control_plane: ControlPlane) -> Instance:
    with control_plane.reading() as session:
        return session.get_one(Instance, ("a", "a-1"))


PAUSE: dict[str, object] = {"topic": "in", "partition": 0, "offset": 5}
PAUSED = report(TaskState.PAUSED, paused=PausedAt(topic="in", partition=0, offset=5))


def test_a_member_is_the_truth_about_its_instance_and_tasks(control_plane: ControlPlane) -> None:
    coordinate(control_plane, member(1_000, t0_0=report(TaskState.RUNNING, 3, checkpoint_ms=900), t0_1=PAUSED))
    row = instance(control_plane)
    assert (row.state, row.pid, row.host, row.log_path, row.heartbeat_at) == ("RUNNING", 7, "h", "/log", from_ms(1_000))
    first, second = task(control_plane), task(control_plane, "0_1")
    assert (first.state, first.lag, first.checkpoint_at) == ("RUNNING", 7, from_ms(900))
    assert (second.state, second.paused_topic, second.paused_partition, second.paused_offset) == ("PAUSED", "in", 0, 5)


def test_an_older_heartbeat_read_late_changes_nothing(control_plane: ControlPlane) -> None:
    coordinate(control_plane, member(2_000, t0_0=report(TaskState.RUNNING, 3)))
    coordinate(control_plane, member(1_000, t0_0=report(TaskState.RESTORING, 1)))
    assert task(control_plane).state == "RUNNING"


@pytest.mark.parametrize("event_first", [True, False])
def test_a_pause_holds_whichever_of_its_two_records_is_read_first(control_plane: ControlPlane, event_first: bool) -> None:
    """The event is newer than the heartbeat that still says RUNNING."""
    steps: list[Callable[[], None]] = [
        lambda: tell(control_plane, 2_000, EventKind.TASK_PAUSED, PAUSE),
        lambda: coordinate(control_plane, member(1_500, t0_0=report(TaskState.RUNNING))),
    ]
    for step in steps if event_first else reversed(steps):
        step()
    assert (task(control_plane).state, task(control_plane).paused_offset) == ("PAUSED", 5)
    coordinate(control_plane, member(3_000, t0_0=report(TaskState.RUNNING)))
    assert (task(control_plane).state, task(control_plane).paused_offset) == ("RUNNING", None)


def test_a_pause_is_as_old_as_the_first_one_before_its_record_wherever_the_task_runs(control_plane: ControlPlane) -> None:
    def on(name: str, at_ms: int, offset: int) -> datetime | None:
        paused = report(TaskState.PAUSED, paused=PausedAt(topic="in", partition=0, offset=offset, since_ms=at_ms - 100))
        coordinate(control_plane, replace(member(at_ms, t0_0=paused), instance=name))
        with control_plane.reading() as session:
            return session.get_one(Task, ("a", "0_0", name)).paused_at

    assert on("a-1", 1_000, 5) == from_ms(900)
    coordinate(control_plane, member(2_000))
    assert on("a-2", 5_000, 5) == from_ms(900), "it has moved"
    assert on("a-2", 6_000, 9) == from_ms(5_900), "another record"
    tell(control_plane, 7_000, EventKind.TASK_RESUMED, {})
    assert on("a-2", 8_000, 5) == from_ms(7_900), "the record was passed meanwhile"


def test_a_task_that_is_no_longer_reported_is_closed_and_where_it_was_paused_is_kept(control_plane: ControlPlane) -> None:
    coordinate(control_plane, member(1_000, t0_0=PAUSED))
    coordinate(control_plane, member(2_000))
    assert (task(control_plane).state, task(control_plane).paused_offset) == ("CLOSED", 5)


def test_a_departure_closes_the_tasks_of_that_incarnation_only(control_plane: ControlPlane) -> None:
    coordinate(control_plane, member(1_000, incarnation=2, t0_0=report(TaskState.RUNNING)))
    coordinate(control_plane, b"member/a-1/1/1")
    assert task(control_plane).state == "RUNNING"
    coordinate(control_plane, b"member/a-1/1/2")
    assert task(control_plane).state == "CLOSED"
    assert instance(control_plane).member_id is None


def test_a_checkpoint_counts_for_its_task(control_plane: ControlPlane) -> None:
    coordinate(control_plane, member(1_000, t0_0=report(TaskState.RUNNING, 3)))
    tell(control_plane, 2_000, EventKind.CHECKPOINT, {"stores": {"counts": {"changelog-0": 4}}})
    assert task(control_plane).checkpoint_at == from_ms(2_000)
    with control_plane.reading() as session:
        assert session.get_one(Checkpoint, ("a", "0_0", "a-1")).stores == {"counts": {"changelog-0": 4}}


def test_copies_of_global_stores_are_tasks_of_their_worker(control_plane: ControlPlane) -> None:
    copy = GlobalStoreReport(topic="names", state=TaskState.RESTORING, position=3, end=10, lag=7)
    first, second = (replace(member(1_000), worker=worker, workers=2, global_stores={"names": copy}) for worker in (1, 2))
    for each in (first, second):
        coordinate(control_plane, each)
    tell(control_plane, 2_000, EventKind.CHECKPOINT, {"stores": {"names": {"names-0": 4}}, "worker": 2}, None)
    rows = [task(control_plane, name) for name in ("global names", "global names (worker 2)")]
    assert [(row.kind, row.state, row.lag, row.worker) for row in rows] == [("GLOBAL", "RESTORING", 7, 1), ("GLOBAL", "RESTORING", 7, 2)]
    assert [(row.moved_at, row.checkpoint_at) for row in rows] == [(from_ms(1_000), None), (from_ms(1_000), from_ms(2_000))]
    with control_plane.reading() as session:
        assert session.get_one(Checkpoint, ("a", "global names (worker 2)", "a-1")).stores == {"names": {"names-0": 4}}
    coordinate(control_plane, replace(first, heartbeat_ms=3_000, global_stores={}))
    assert [task(control_plane, row.task).state for row in rows] == ["CLOSED", "RESTORING"]


def test_when_a_task_moved_is_when_its_offsets_changed(control_plane: ControlPlane) -> None:
    for at_ms, offsets in ((1_000, 3), (2_000, 4), (3_000, 4)):
        coordinate(control_plane, member(at_ms, t0_0=report(TaskState.RUNNING, offsets)))
    assert (task(control_plane).first_moved_at, task(control_plane).moved_at) == (from_ms(1_000), from_ms(2_000))


@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_task_that_comes_back_has_the_work_that_it_did_since_unless_it_ran_nowhere_else(
    control_plane: ControlPlane, elsewhere: bool
) -> None:
    """Or else an alert says at once that its work of hours is in no checkpoint."""
    coordinate(control_plane, member(1_000, t0_0=report(TaskState.RUNNING, 3)))
    tell(control_plane, 2_000, EventKind.CHECKPOINT, {"stores": {}})
    coordinate(control_plane, member(3_000))
    if elsewhere:
        coordinate(control_plane, replace(member(4_000, t0_0=report(TaskState.RUNNING, 9)), instance="a-2"))
    coordinate(control_plane, member(900_000, t0_0=report(TaskState.RUNNING, 9)))
    row = task(control_plane)
    times = (row.first_moved_at, row.moved_at, row.checkpoint_at)
    assert times == ((from_ms(900_000),) * 2 + (None,) if elsewhere else (from_ms(1_000), from_ms(900_000), from_ms(2_000)))


def test_a_task_without_stores_has_no_work_to_save(control_plane: ControlPlane) -> None:
    for at_ms, offsets in ((1_000, 3), (2_000, 4)):
        coordinate(control_plane, member(at_ms, t0_0=replace(report(TaskState.RUNNING, offsets), stateful=False)))
    assert (task(control_plane).offset_sum, task(control_plane).moved_at) == (4, None)


def test_a_new_database_does_not_take_a_checkpointed_task_for_one_that_moved_just_now(control_plane: ControlPlane) -> None:
    coordinate(control_plane, member(900_000, t0_0=report(TaskState.RUNNING, 3, checkpoint_ms=1_000)))
    assert task(control_plane).moved_at is None
    coordinate(control_plane, member(901_000, t0_0=report(TaskState.RUNNING, 4, checkpoint_ms=1_000)))
    assert task(control_plane).moved_at == from_ms(901_000)


def test_rule_26_the_newest_record_of_the_desired_state_holds(control_plane: ControlPlane) -> None:
    coordinate(control_plane, Desired(instance="a-1", running=False, at_ms=2_000, by="bob"))
    coordinate(control_plane, Desired(instance="a-1", running=True, at_ms=1_000, by="ann"))
    assert (instance(control_plane).wanted, instance(control_plane).wanted_by) == (False, "bob")


def test_records_that_cannot_be_read_are_left_out(control_plane: ControlPlane) -> None:
    with control_plane.writing() as session:
        writer.store_coordination(session, "a", b"member/a-1/1", b"nonsense")
        writer.store_coordination(session, "a", b"of a later version", b"{}")
        assert writer.store_events(session, "a", 4, [b"nonsense", None]) == 4


def test_the_workers_of_an_instance_each_have_their_tasks(control_plane: ControlPlane) -> None:
    first = member(1_000, t0_0=report(TaskState.RUNNING), t0_1=report(TaskState.RUNNING))
    second = msgspec.structs.replace(member(1_001, incarnation=2, t0_2=report(TaskState.RUNNING)), worker=2)
    coordinate(control_plane, first)
    coordinate(control_plane, second)
    assert [(task(control_plane, f"0_{n}").state, task(control_plane, f"0_{n}").worker) for n in range(3)] == [
        ("RUNNING", 1),
        ("RUNNING", 1),
        ("RUNNING", 2),
    ]
    coordinate(control_plane, msgspec.structs.replace(member(2_000, t0_0=report(TaskState.RUNNING))))
    coordinate(control_plane, msgspec.structs.replace(second, tasks={**second.tasks, "0_1": report(TaskState.RUNNING)}, heartbeat_ms=2_001))
    assert [task(control_plane, f"0_{n}").worker for n in range(3)] == [1, 2, 2]
    coordinate(control_plane, second.key)
    assert [task(control_plane, f"0_{n}").state for n in range(3)] == ["RUNNING", "CLOSED", "CLOSED"]


def test_what_two_workers_write_at_the_same_moment_may_come_in_any_order(control_plane: ControlPlane) -> None:
    first, second = member(1_000, t0_0=report(TaskState.RUNNING)), member(999, t0_1=report(TaskState.RUNNING))
    coordinate(control_plane, msgspec.structs.replace(first, workers=2))
    coordinate(control_plane, msgspec.structs.replace(second, worker=2, workers=2, state=State.RESTORING))
    assert task(control_plane, "0_1").state == "RUNNING"


def test_the_state_of_an_instance_with_several_workers_is_what_its_events_say(control_plane: ControlPlane) -> None:
    coordinate(control_plane, msgspec.structs.replace(member(1_000), workers=2))
    tell(control_plane, 1_001, EventKind.INSTANCE_STATE, {"old": "RUNNING", "new": "RESTORING", "pid": 7}, task=None)
    coordinate(control_plane, msgspec.structs.replace(member(1_002), workers=2))
    assert instance(control_plane).state == "RESTORING", "though this worker itself is RUNNING"


def test_the_end_of_an_earlier_incarnation_leaves_the_tasks_of_a_later_one_alone(control_plane: ControlPlane) -> None:
    coordinate(control_plane, member(1_000, incarnation=1, t0_0=report(TaskState.RUNNING)))
    coordinate(control_plane, member(2_000, incarnation=2, t0_0=report(TaskState.RUNNING)))
    coordinate(control_plane, b"member/a-1/1/1")
    assert task(control_plane).state == "RUNNING"
    coordinate(control_plane, b"member/a-1/1/2")
    assert task(control_plane).state == "CLOSED"


def test_the_memory_of_an_instance_is_that_of_its_workers_and_a_pause_has_the_time_of_its_report(control_plane: ControlPlane) -> None:
    for worker, size in ((1, 100), (2, 200), (3, 300)):
        coordinate(control_plane, replace(member(1_000), worker=worker, workers=3, memory={"resident": size, "other": 1}))
    assert instance(control_plane).resident == {"1": 100, "2": 200, "3": 300}
    paused = report(TaskState.PAUSED, paused=PausedAt(topic="in", partition=0, offset=5, since_ms=1_500))
    coordinate(control_plane, replace(member(2_000, t0_0=paused), memory={"resident": 150}, workers=2))
    assert instance(control_plane).resident == {"1": 150, "2": 200}, "it has two workers now"
    assert task(control_plane).paused_at == from_ms(1_500)
    coordinate(control_plane, member(3_000, t0_0=report(TaskState.RUNNING)))
    assert task(control_plane).paused_at is None
