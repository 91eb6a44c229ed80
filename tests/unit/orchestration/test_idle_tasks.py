"""Tasks that no instance runs, and the reasons that `penstock status` gives."""

from __future__ import annotations

import time
from dataclasses import replace

import msgspec
import pytest
from typer.testing import CliRunner

from penstock.orchestration.cli import app
from penstock.orchestration.kafka.idle_tasks import idle_tasks
from penstock.orchestration.kafka.observer import Observer, Picture
from penstock.runtime.coordination.records import Assignment, Desired, Grant, Member, Reserved, TaskReport, TopologyText
from penstock.runtime.model.states import TaskKind, TaskState
from penstock.runtime.topology.shape import Part

NOW_MS = 1_000_000
TOPOLOGY = TopologyText(hash="h", text="Topologies:", parts={0: Part(tasks=2, stateful=True, reads=())})
NEWER = TopologyText(
    hash="n", text="Topologies:", parts={0: Part(tasks=2, stateful=True, reads=()), 1: Part(tasks=1, stateful=False, reads=())}
)


def report(state: TaskState = TaskState.RUNNING, kind: TaskKind = TaskKind.ACTIVE) -> TaskReport:
    return TaskReport(kind=kind, state=state, offset_sum=0, end_sum=0, lag=0)


def member(instance: str, *, returns: bool = False, topology: TopologyText = TOPOLOGY, **tasks: TaskReport) -> Member:
    return Member(
        instance=instance,
        incarnation=1,
        transactional_id="t",
        host="h",
        pid=1,
        member_id="m",
        topology=topology.digest,
        returns=returns,
        tasks={name.removeprefix("t"): each for name, each in tasks.items()},
    )


def grant(instance: str, *active: str) -> Grant:
    return Grant(member_id="m", incarnation=1, instance=instance, active=list(active))


def picture(
    *members: Member,
    stopped: tuple[str, ...] = (),
    wanted: tuple[str, ...] = (),
    deaths: frozenset[str] = frozenset(),
    assignment: Assignment | None = None,
) -> Picture:
    desired = {name: Desired(instance=name, running=name in wanted, at_ms=0, by="ann") for name in (*stopped, *wanted)}
    versions = {version.digest: version for version in (NEWER, TOPOLOGY)}
    return Picture("app", {each.identity: each for each in members}, desired, {"h": ""}, assignment, versions, deaths)


def reasons(seen: Picture, *silent: str) -> dict[str, str]:
    return {each.task: each.reason for each in idle_tasks(seen, lambda member: member.instance not in silent, NOW_MS)}


A = member("a", t0_0=report())


def test_running_restoring_and_paused_tasks_are_not_idle() -> None:
    assert reasons(picture(member("a", t0_0=report(TaskState.RESTORING), t0_1=report(TaskState.PAUSED)))) == {}


def test_an_application_that_was_stopped_waits_for_nothing() -> None:
    assert reasons(picture(stopped=("a",))) == {}
    assert reasons(picture(member("a", returns=True), stopped=("a",))) == {}
    assert reasons(picture(A, stopped=("a",)), "a") == {}, "its last record stays until another member deletes it"


def test_no_instance_runs() -> None:
    assert reasons(picture(wanted=("a", "b"))) == dict.fromkeys(["0_0", "0_1"], "no instance runs: penstock start a b")
    assert reasons(picture(A), "a") == dict.fromkeys(["0_0", "0_1"], "no instance runs: start an instance"), "no operator stopped it"


@pytest.mark.parametrize(
    "seen, said",
    [
        (picture(A, assignment=Assignment(leader="", grants=[grant("a", "0_0")])), "the leader has not assigned it yet"),
        (picture(A, assignment=Assignment(leader="", grants=[grant("a", "0_0", "0_1")])), "granted to a, which has not opened it yet"),
        (
            picture(A, assignment=Assignment(leader="", grants=[], reserved={"0_1": Reserved(instance="b", until_ms=NOW_MS + 1)})),
            "for b, which restarts: penstock start b",
        ),
        (
            picture(A, assignment=Assignment(leader="", grants=[], heirs={"0_1": "a/1/1"}, revoking={"b/1/1": ["0_1"]})),
            "it moves to a, which waits until b has let go of it",
        ),
        (picture(A, member("b", t0_1=report())), "b ran it and does not answer: others wait for the end of its session"),
        (
            picture(A, member("b", t0_1=report()), deaths=frozenset({"b/1/1"})),
            "b ran it and is dead: its transaction is being aborted",
        ),
        (picture(A, member("c", t0_1=report(TaskState.CREATED))), "c opens it: its folder is locked by another process"),
        (picture(A, member("c", t0_1=report(kind=TaskKind.STANDBY))), "the leader has not assigned it yet"),
    ],
)
def test_the_reason_is_what_the_task_waits_for(seen: Picture, said: str) -> None:
    [(task, reason)] = reasons(seen, "b").items()
    assert task == "0_1" and said in reason


def test_a_task_that_no_running_version_has() -> None:
    """The instance of the newer version, which was started last, is gone."""
    seen = picture(member("a", t0_0=report(), t0_1=report()), member("b", topology=NEWER))
    seen = replace(seen, versions={version.digest: version for version in (TOPOLOGY, NEWER)})
    assert reasons(seen) == {"1_0": "the leader has not assigned it yet"}
    [(task, reason)] = reasons(seen, "b").items()
    assert task == "1_0" and "no instance that runs has a version of the topology with sub-topology 1" in reason


def test_the_command_lists_them_and_ends_with_a_status_that_is_not_0(monkeypatch: pytest.MonkeyPatch) -> None:
    said_now = msgspec.structs.replace(A, host="elsewhere", heartbeat_ms=time.time_ns() // 1_000_000)
    seen = picture(said_now, wanted=("a",))
    monkeypatch.setattr(Observer, "observe", lambda self: seen)
    found = CliRunner().invoke(app, ["status", "-b", "x:1", "-a", "app"])
    assert found.exit_code == 1
    assert "task 0_1 of app is run by no instance: the leader has not assigned it yet" in " ".join(found.output.split())
    reported = CliRunner().invoke(app, ["status", "-b", "x:1", "-a", "app", "--json"])
    assert '"reason": "the leader has not assigned it yet"' in reported.output and reported.exit_code == 1
