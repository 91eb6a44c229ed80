"""Standbys and learners on a real broker: copies that follow, take over and continue at their position (coordination.md, 2; rules.md, 1,
25)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.runtime.changelog.checkpoint import read_checkpoint
from penstock.runtime.coordination.records import Assignment, Death, Member, TaskReport
from penstock.runtime.model.events import EventKind
from penstock.runtime.model.states import State, TaskKind
from tests.support import Kafka, wait_until
from tests.support.engine import client, count_topology, counts_become, events, reaches
from tests.support.instances import Application, application, coordination_log, copies
from tests.support.logs import alter, cut, end_of

KEYS, RECORDS = 20, 4_000


@pytest.fixture
def app(broker: Kafka, application_id: str, tmp_path: Path) -> Iterator[Application]:
    """Yield an application with one standby for each task; only a complete copy counts as caught up."""
    settings = {"num.standby.replicas": 1, "acceptable.recovery.lag": 0, "statestore.checkpoint.interval.ms": 0}
    with application(broker, application_id, tmp_path, **settings) as made:
        yield made


def standbys_have_caught_up(app: Application, wanted: dict[str, int]) -> None:
    """Wait until the members have this many copies each, of tasks that they do not run, all of them complete and none empty."""

    def as_wanted() -> bool:
        found = copies(app.broker, app.id)
        reports = [report for each in found.values() for report in each.values()]
        return {name: len(each) for name, each in found.items()} == wanted and all(
            report.kind is TaskKind.STANDBY and report.caught_up and report.lag == 0 and report.position for report in reports
        )

    wait_until(as_wanted, 45, f"standbys {wanted}")


def two_with_standbys(app: Application) -> list[str]:
    """Wait for two instances with two tasks each and complete copies of the others; return the tasks that `b` copies."""
    app.start("a")
    app.start("b")
    app.becomes({"a": 2, "b": 2})
    app.produce(RECORDS // 2, KEYS)
    standbys_have_caught_up(app, {"a": 2, "b": 2})
    return sorted(copies(app.broker, app.id)["b"])


def reported_checkpoints(app: Application, instance: str) -> set[str | None]:
    """Return the tasks for which an instance has published a checkpoint that is not empty."""
    published = [each for each in events(app.broker, app.id) if each.kind is EventKind.CHECKPOINT and each.instance == instance]
    return {each.task for each in published if any(dict(offsets) for offsets in dict(each.payload["stores"]).values())}  # type: ignore[call-overload]


def test_a_standby_takes_over_from_a_member_that_is_killed_and_reads_only_what_is_new(app: Application) -> None:
    app.start("a")
    app.becomes({"a": 4})
    app.produce(RECORDS // 2, KEYS)
    app.start("b")
    app.becomes({"a": 2, "b": 2})
    standbys_have_caught_up(app, {"a": 2, "b": 2})
    app.kill("a")
    app.becomes({"b": 4})
    app.produce(RECORDS // 2, KEYS)
    app.each_update_came_once(RECORDS, KEYS)
    restored = [int(text) for text in re.findall(r"task 0_\d: (\d+) records restored", app.log("b"))]
    assert sum(restored[-2:]) <= KEYS, "what the standby had was read again"


def test_a_standby_that_is_killed_continues_from_its_own_offset(app: Application) -> None:
    copied = two_with_standbys(app)
    folder = app.folder / "b" / app.id
    wait_until(lambda: all(any(read_checkpoint(folder / task).values()) for task in copied), what="a checkpoint of each standby")
    wait_until(lambda: reported_checkpoints(app, "b") >= set(copied), what="the event of each: what a crash would cost is counted from it")
    app.kill("b")
    app.start("b")
    app.becomes({"a": 2, "b": 2})
    standbys_have_caught_up(app, {"a": 2, "b": 2})
    app.produce(RECORDS // 2, KEYS)
    app.each_update_came_once(RECORDS, KEYS)


def test_an_active_stays_until_the_learner_has_caught_up(broker: Kafka, application_id: str, tmp_path: Path) -> None:
    """In log order, the grant of a task to the new member comes after its own report that it has the state."""
    with application(broker, application_id, tmp_path, **{"acceptable.recovery.lag": 0}) as app:
        app.start("a")
        app.becomes({"a": 4})
        app.produce(RECORDS // 2, KEYS)
        app.each_update_came_once(RECORDS // 2, KEYS)
        wait_until(lambda: all(report.position for report in reports(app, "a").values()), what="positions of the state")
        app.start("b")
        app.becomes({"a": 2, "b": 2})
        app.produce(RECORDS // 2, KEYS)
        app.each_update_came_once(RECORDS, KEYS)
        learned: set[str] = set()
        most = 0
        for _, record in coordination_log(broker, application_id):
            match record:
                case Member(instance="b"):
                    learned |= {task for task, report in record.tasks.items() if report.caught_up}
                case Assignment():
                    most = max(most, sum(len(grant.learner) for grant in record.grants))
                    granted = {task for grant in record.grants if grant.instance == "b" for task in grant.active}
                    assert granted <= learned, "granted before it was learned"
        assert learned
        assert most == 2, "max.warmup.replicas"


def reports(app: Application, name: str) -> dict[str, TaskReport]:
    """Return the last report of a member on each task that it ever had."""
    return {
        task: report
        for _, record in coordination_log(app.broker, app.id)
        if isinstance(record, Member) and record.instance == name
        for task, report in record.tasks.items()
    }


def test_rule_1_a_standby_does_not_make_its_client_restore(
    broker: Kafka, topic: Callable[..., str], application_id: str, tmp_path: Path
) -> None:
    """It is listed separately, and its client is RUNNING from the grant on, although it still has to restore all of the state."""
    source, output = topic("in"), topic("out")
    topology = count_topology(source, output)
    settings = {"num.standby.replicas": 1, "statestore.checkpoint.interval.ms": 0}
    with client(broker, topology, application_id, tmp_path / "1", **{"client.id": "one", **settings}) as first:
        first.start()
        reaches(first, State.RUNNING)
        broker.produce(source, [(f"k{number}", "v") for number in range(5_000)])
        counts_become(broker, output, {f"k{number}": 1 for number in range(5_000)})
        states: list[State] = []
        with client(broker, topology, application_id, tmp_path / "2", **{"client.id": "two", **settings}) as second:
            second.set_state_listener(lambda new, old: states.append(new))
            second.start()
            reaches(second, State.RUNNING)
            (thread,) = wait_until(lambda: {each for each in second.metadata_for_local_threads() if each.standby_tasks}, what="the standby")
            assert {str(task.task_id) for task in thread.standby_tasks} == {"0_0"}
            assert not thread.active_tasks
            wait_until(lambda: second.all_local_store_partition_lags()["counts"][0].offset_lag == 0, what="a whole copy")
            assert State.RESTORING not in states
            folder, end = tmp_path / "2" / application_id / "0_0", first.all_local_store_partition_lags()["counts"][0]
            wait_until(
                lambda: any((at or 0) >= end.current_offset_position for at in read_checkpoint(folder).values()), what="its checkpoint"
            )
    assert not [event for event in events(broker, application_id) if event.kind.value.startswith("RESTORE") and event.instance == "two"]


def test_a_standby_whose_offset_is_gone_is_restored_from_scratch_and_others_keep_running(app: Application) -> None:
    """Its member's own tasks are not rolled back for it."""
    copied = two_with_standbys(app)
    app.stop("b")
    app.produce(RECORDS // 2, KEYS)
    wait_until(lambda: len(app.broker.consume(app.output)) >= RECORDS // 2 + 1, what="updates that b has not seen")
    changelog = f"{app.id}-counts-changelog"
    alter(app.broker, changelog, "cleanup.policy", "compact,delete")  # records of a compacted topic cannot be deleted
    for task in copied:
        cut(app.broker, changelog, end_of(app.broker, changelog, int(task[-1])) - 1, int(task[-1]))
    app.start("b")
    app.becomes({"a": 2, "b": 2})
    standbys_have_caught_up(app, {"a": 2, "b": 2})
    app.each_update_came_once(RECORDS, KEYS)
    assert "is restored from scratch" in app.log("b")
    assert "rolled back" not in app.log("b")


def test_rule_4_a_client_that_closes_for_good_continues_until_others_have_learned_its_tasks(
    broker: Kafka, topic: Callable[..., str], application_id: str, tmp_path: Path
) -> None:
    """In log order, the other member's report that it has caught up precedes the grant, and records processed meanwhile are not lost."""
    source, output = topic("in", partitions=2), topic("out", partitions=2)
    topology = count_topology(source, output)
    settings = {"acceptable.recovery.lag": 0, "max.warmup.replicas": 1}
    leaving = client(broker, topology, application_id, tmp_path / "1", **{"client.id": "one", **settings})
    with leaving, client(broker, topology, application_id, tmp_path / "2", **{"client.id": "two", **settings}) as other:
        leaving.start()
        reaches(leaving, State.RUNNING)
        broker.produce(source, [(f"k{number % KEYS}", "v") for number in range(RECORDS)])
        counts_become(broker, output, {f"k{number}": RECORDS // KEYS for number in range(KEYS)})
        other.start()
        reaches(other, State.RUNNING)
        assert leaving.close(30_000)
        wait_until(lambda: sum(len(thread.active_tasks) for thread in other.metadata_for_local_threads()) == 2, what="both tasks")
        broker.produce(source, [(f"k{number % KEYS}", "v") for number in range(RECORDS)])
        counts_become(broker, output, {f"k{number}": 2 * RECORDS // KEYS for number in range(KEYS)})
        learned: set[str] = set()
        for _, record in coordination_log(broker, application_id):
            match record:
                case Member(instance="two"):
                    learned |= {task for task, report in record.tasks.items() if report.caught_up}
                case Assignment():
                    granted = {task for grant in record.grants if grant.instance == "two" for task in grant.active}
                    assert granted <= learned, "granted before it was learned"
        assert learned == {"0_0", "0_1"}


def test_a_killed_instance_that_is_back_at_once_does_not_make_its_standby_wait_for_its_session(app: Application) -> None:
    """The group admits it when its old session is over; it reports itself that the old process is dead, and the standby takes over its
    tasks."""
    app.settings["session.timeout.ms"] = 45_000
    app.start("a")
    app.becomes({"a": 4})
    app.start("b")
    app.becomes({"a": 2, "b": 2})
    app.produce(RECORDS // 2, KEYS)
    standbys_have_caught_up(app, {"a": 2, "b": 2})
    app.kill("b")
    app.start("b")
    app.becomes({"a": 4}, 25)
    app.produce(RECORDS // 2, KEYS)
    app.each_update_came_once(RECORDS, KEYS)
    deaths = [record for _, record in coordination_log(app.broker, app.id) if isinstance(record, Death)]
    assert {death.instance for death in deaths} == {"b"}


def test_an_instance_that_cannot_open_its_state_gets_no_tasks_and_others_keep_running(
    broker: Kafka, topic: Callable[..., str], application_id: str, tmp_path: Path
) -> None:
    """It starts with a learner, so it fails with a copy, while the tasks keep running on the other instance."""
    source, output = topic("in", partitions=2), topic("out", partitions=2)
    topology = count_topology(source, output)
    broken = tmp_path / "2" / application_id
    broken.mkdir(parents=True)
    for task in ("0_0", "0_1"):
        (broken / task).write_text("a file where a folder belongs")
    with client(broker, topology, application_id, tmp_path / "1", **{"client.id": "one"}) as first:
        first.start()
        reaches(first, State.RUNNING)
        broker.produce(source, [(f"k{number % KEYS}", "v") for number in range(RECORDS)])
        counts_become(broker, output, {f"k{number}": RECORDS // KEYS for number in range(KEYS)})
        with client(broker, topology, application_id, tmp_path / "2", **{"client.id": "two"}) as second:
            second.start()
            assert second.wait_for(State.ERROR, 30_000)
        broker.produce(source, [(f"k{number % KEYS}", "v") for number in range(RECORDS)])
        counts_become(broker, output, {f"k{number}": 2 * RECORDS // KEYS for number in range(KEYS)})
        assert sum(len(thread.active_tasks) for thread in first.metadata_for_local_threads()) == 2
    granted = [grant for _, record in coordination_log(broker, application_id) if isinstance(record, Assignment) for grant in record.grants]
    assert not any(grant.active for grant in granted if grant.instance == "two")
