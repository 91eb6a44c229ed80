"""Run-books on a real broker and real instances: each is killed with SIGKILL at each of its steps and started again, with the same
result; refusals; output of dry runs."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest
from sqlalchemy import select

from penstock.orchestration.alerts import incidents
from penstock.orchestration.database.audit import now
from penstock.orchestration.database.models import Alert, AlertState, Event, Instance, RunBookRun, RunBookState, StepState, Task
from penstock.orchestration.dead_letters.replay import REPLAYED_FROM, replayed_topic
from penstock.orchestration.dead_letters.topic import RawRecord, dead_letter_topic, read_record, store_dead_letter
from penstock.orchestration.declarations.applications import Applications
from penstock.orchestration.declarations.policies import PausedPolicy
from penstock.orchestration.instances.operations import Operations
from penstock.orchestration.kafka.task_commands import TaskCommands
from penstock.orchestration.run_books import (
    ALL,
    PausedRecord,
    RebuildGlobalStore,
    ReplayDeadLetters,
    Request,
    RestartInstance,
    ResumeTask,
    RunBook,
    SkipRecord,
)
from penstock.runtime.model.events import EventKind
from penstock.runtime.model.ids import TaskId
from penstock.sensors.event_cursor import Cursor
from tests.dagster.killed import MAKE, make
from tests.dagster.telling import Project
from tests.support import ROOT, wait_until

BAD = b'{"truncated'


@pytest.fixture
def running(project: Project) -> Project:
    """Return the project with its first instance running; the input has two partitions, the output one."""
    for end, partitions in (("in", 2), ("out", 1)):
        project.broker.create_topic(f"{project.application.id}-{end}", partitions, exact=True)
    project.operations.start(project.application.instances[0], actor="ann")
    return project


def start_and_kill(name: str, step: str, *arguments: str) -> None:
    """Start a run-book in a separate process, which dies at that step."""
    command = [sys.executable, "-m", "tests.dagster.killed", name, step, *arguments]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == -9, ended.stdout + ended.stderr


def task(project: Project) -> Task | None:
    project.feed()
    with project.control_plane.reading() as session:
        query = select(Task).where(Task.task == "0_0", Task.kind == "ACTIVE").order_by(Task.updated_at.desc()).limit(1)
        return session.scalar(query)


def state(project: Project) -> str | None:
    found = task(project)
    return None if found is None else found.state


def wait_for_pause_at(project: Project, offset: int) -> None:
    def paused() -> bool:
        found = task(project)
        return found is not None and (found.state, found.paused_offset) == ("PAUSED", offset)

    wait_until(paused, 60, f"the pause at {offset}")


def open_alerts_of_tasks(project: Project) -> None:
    """Run the sensor's work, with a policy that starts nothing."""
    application = dataclasses.replace(project.application, paused=PausedPolicy())
    with project.control_plane.writing() as session:
        events, _ = Cursor().read(session, project.application.id, incidents.TASK_KINDS)
        incidents.of_tasks(session, application, events, now())


def feed_records(project: Project, *values: bytes, partition: int = 0) -> None:
    project.broker.produce(f"{project.application.id}-in", [(b"key", value) for value in values], partition=partition)


def newest_count(project: Project) -> int:
    records = project.broker.consume(f"{project.application.id}-out")
    return int.from_bytes(records[-1].value or b"", "big") if records else 0


def unresolved(project: Project) -> list[str]:
    with project.control_plane.reading() as session:
        return list(session.scalars(select(Alert.kind).where(Alert.state != AlertState.RESOLVED.value)))


def test_every_run_book_lists_its_steps_and_is_killed_here() -> None:
    assert {book.NAME for book in ALL} == set(MAKE)
    assert all(book.STEPS[0].name == "check" and len(book.STEPS) >= 3 for book in ALL)
    assert all(step.what for book in ALL for step in book.STEPS)


def test_skip_record_killed_after_any_step_skips_one_record_and_no_second_one(running: Project) -> None:
    """There is a good record before and after each bad one: the final count shows whether one of them was skipped."""
    for number, step in enumerate(SkipRecord.STEPS):
        bad = 3 * number + 1
        feed_records(running, b"{}", BAD, b"{}")
        wait_for_pause_at(running, bad)
        open_alerts_of_tasks(running)
        start_and_kill(SkipRecord.NAME, step.name, str(bad))
        done = make(running.operations, SkipRecord.NAME, str(bad)).run()
        assert (done.state, step.name) == (RunBookState.DONE.value, step.name), done.reason
        assert unresolved(running) == [], step.name
        with running.control_plane.reading() as session:
            killed = session.get_one(RunBookRun, done.id - 1)
            assert (killed.steps[-1].name, killed.steps[-1].state) == (step.name, StepState.STARTED.value)
    kept = running.broker.consume(dead_letter_topic(running.application.id))
    assert [dict(record.headers)["__streams.errors.offset"] for record in kept] == [b"1", b"4", b"7", b"10", b"13", b"16"]
    assert {record.value for record in kept} == {BAD}
    wait_until(lambda: newest_count(running) == 2 * len(SkipRecord.STEPS), 30, "the good records, all of them")


def test_resume_killed_after_any_step(running: Project) -> None:
    feed_records(running, b"{}")
    for step in ResumeTask.STEPS:
        with TaskCommands(running.application, "ann") as commands:
            commands.pause(TaskId(0, 0))
        wait_until(lambda: state(running) == "PAUSED", 30, "the pause")
        open_alerts_of_tasks(running)
        start_and_kill(ResumeTask.NAME, step.name)
        assert make(running.operations, ResumeTask.NAME).run().state == RunBookState.DONE.value, step.name
        wait_until(lambda: state(running) == "RUNNING", 30, "RUNNING")
        assert unresolved(running) == [], step.name


def test_resume_says_at_once_that_the_record_is_still_there(running: Project) -> None:
    feed_records(running, BAD)
    wait_for_pause_at(running, 0)
    with pytest.raises(Exception, match=r"paused at .*-in-0@0 again: "):
        make(running.operations, ResumeTask.NAME).run()


def test_a_record_is_not_skipped_where_the_task_was_paused_by_hand(running: Project) -> None:
    feed_records(running, b"{}")
    wait_until(lambda: newest_count(running) == 1, 30, "the record")
    with TaskCommands(running.application, "ann") as commands:
        commands.pause(TaskId(0, 0))
    wait_until(lambda: (found := task(running)) is not None and found.paused_offset is not None, 30, "where it is paused")
    paused = task(running)
    assert paused is not None
    refused = make(running.operations, SkipRecord.NAME, str(paused.paused_offset)).run()
    assert refused.state == RunBookState.REFUSED.value
    assert "was paused by hand: nothing is known to be wrong" in str(refused.reason)


def test_restart_instance_killed_after_any_step(running: Project) -> None:
    name = running.application.instances[0]
    before = {running.operations.launcher.running(name)}
    for step in RestartInstance.STEPS:
        start_and_kill(RestartInstance.NAME, step.name)
        assert make(running.operations, RestartInstance.NAME).run().state == RunBookState.DONE.value, step.name
        after = running.operations.launcher.running(name)
        assert after is not None and after not in before
        before.add(after)


def kept_letters(project: Project, count: int, first: int = 0) -> list[RawRecord]:
    """Return records at the end of the input, with three keys, kept as dead letters in another order."""
    topic = f"{project.application.id}-in"
    if topic not in project.broker.topics():
        project.broker.create_topic(topic, 2, exact=True)
    records: list[RawRecord] = []
    for number in range(first, first + count):
        headers: list[tuple[str, str | bytes | None]] = [("trace", str(number).encode())]
        key, partition, time_ms = f"key {number % 3}", number % 2, 1_357_000_000_000 + number
        (place,) = project.broker.produce(topic, [(key, f"{number}")], partition=partition, headers=headers, timestamps=[time_ms])
        record = read_record(project.broker.connection, topic, place.partition, place.offset)
        assert record is not None
        records.append(record)
    for record in reversed(records):
        store_dead_letter(project.broker.connection, project.application.id, record, "ValueError", f"not JSON {record.offset}")
    return records


def replayed(project: Project) -> list[tuple[int, bytes | None, bytes | None]]:
    """Return the records of the input after the first ones: partition, key, value, in the order of each partition."""
    records = project.broker.consume(f"{project.application.id}-in")
    return [
        (record.partition, record.key, record.value)
        for record in sorted(records, key=lambda record: (record.partition, record.offset))
        if REPLAYED_FROM in dict(record.headers)
    ]


def test_dead_letters_are_replayed_exactly_once_in_order_wherever_the_run_is_killed(project: Project) -> None:
    """Killed in the middle of the transaction, and after each step; each time there are new dead letters beside those replayed before."""
    records: list[RawRecord] = []
    for number, step in enumerate(["replay:inside", *(step.name for step in ReplayDeadLetters.STEPS)]):
        records += kept_letters(project, 4, first=4 * number)
        before = len(replayed(project))
        start_and_kill(ReplayDeadLetters.NAME, step)
        if step == "replay:inside":
            assert len(replayed(project)) == before, "an open transaction is never read"
        assert make(project.operations, ReplayDeadLetters.NAME).run().state == RunBookState.DONE.value
        expected = sorted(records, key=lambda record: (record.partition, record.offset))
        assert replayed(project) == [(record.partition, record.key, record.value) for record in expected], step
    (first, *_) = [record for record in project.broker.consume(f"{project.application.id}-in") if REPLAYED_FROM in dict(record.headers)]
    assert [name for name, _ in first.headers] == ["trace", REPLAYED_FROM]
    assert first.timestamp in {record.timestamp_ms for record in records}
    marks = {record.key for record in project.broker.consume(replayed_topic(project.application.id))}
    assert marks == {str(record).encode() for record in records}


def test_only_what_is_meant_is_replayed_and_what_is_gone_is_refused(project: Project) -> None:
    refused = make(project.operations, ReplayDeadLetters.NAME).run()
    assert "nothing was ever kept" in str(refused.reason)
    kept_letters(project, 4)
    topic = f"{project.application.id}-in"

    def book(records: list[str], error: str = "") -> RunBook:
        return ReplayDeadLetters(project.application, project.control_plane, Request("ann"), records=records, error=error)

    gone = book([f"{topic}-0@0", f"{topic}-0@99"]).run()
    assert (gone.state, gone.reason) == (
        RunBookState.REFUSED.value,
        f"the raw record is gone, or was never kept: {topic}-0@99 is not on {dead_letter_topic(project.application.id)}",
    )
    assert book([f"{topic}-1@0"]).run().reason == "1 records are in their topics again"
    assert book([], "ValueError: .* 1$").run().reason == "2 records are in their topics again"
    reported = book([]).dry_run()
    assert f"to replay 1, replayed before 3, records {topic}-0@0" in reported.lines[0]
    assert [line.partition(":")[0] for line in reported.lines] == ["check", "replay", "verify"]
    assert book([]).run().reason == "1 records are in their topics again"
    assert book([]).run().reason == "nothing is left to replay"
    kept_nowhere = project.broker
    store_dead_letter(kept_nowhere.connection, project.application.id, RawRecord("gone", 0, 5, b"k", b"v", None, ()), "E", "e")
    assert "there is nowhere to write to: gone-0 does not exist" in str(book([]).run().reason)


def test_rebuild_global_store_killed_after_any_step_and_refused_for_a_store_that_is_not_there(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = project.operations.paths.streams_toml
    path.write_text(path.read_text().replace("topology:build", "topology:build_with_table"))
    operations = Operations(project.operations.paths, Applications.read(path), project.control_plane)
    (application,) = operations.applications.applications
    assert "no instance of" in str(make(operations, RebuildGlobalStore.NAME).run().reason)
    for end, config in (("in", {}), ("out", {}), ("names", {"cleanup.policy": "compact"})):
        project.broker.create_topic(f"{application.id}-{end}", 1, config, exact=True)
    project.broker.produce(f"{application.id}-names", [("a", "Ann"), ("b", "Bob")])
    operations.start(application.instances[0], actor="ann")
    for step in RebuildGlobalStore.STEPS:
        start_and_kill(RebuildGlobalStore.NAME, step.name)
        done = make(operations, RebuildGlobalStore.NAME).run()
        assert done.state == RunBookState.DONE.value, done.reason
        assert "2 records in" in str(done.steps[-1].detail[application.instances[0]])
    with project.control_plane.reading() as session:
        row = session.get_one(Instance, (application.id, application.instances[0]))
        ended = session.scalars(select(Event).where(Event.kind == EventKind.GLOBAL_RECOVERY_ENDED.value)).all()
    assert row.state == "RUNNING"
    assert len(ended) >= len(RebuildGlobalStore.STEPS)
    other = RebuildGlobalStore(application, project.control_plane, "nothing", Request("ann")).run()
    assert "there is no global store 'nothing': known are names" in str(other.reason)


def test_a_dry_run_says_what_would_be_done_and_changes_nothing(running: Project) -> None:
    feed_records(running, BAD, b"{}")
    wait_for_pause_at(running, 0)
    reported = make(running.operations, SkipRecord.NAME, "0").dry_run()
    assert reported.refused is None
    assert [line.partition(":")[0] for line in reported.lines] == [step.name for step in SkipRecord.STEPS]
    other = make(running.operations, SkipRecord.NAME, "1").dry_run()
    assert "not at" in str(other.refused)
    for name in (ResumeTask.NAME, RestartInstance.NAME):
        assert make(running.operations, name).dry_run().refused is None
    assert state(running) == "PAUSED"
    with running.control_plane.reading() as session:
        assert session.scalars(select(RunBookRun)).all() == []
    assert dead_letter_topic(running.application.id) not in running.broker.topics()
    record = PausedRecord(TaskId(0, 0), f"{running.application.id}-in", 0, 0)
    assert SkipRecord(running.application, running.control_plane, record, Request("ann")).run().state == RunBookState.DONE.value
