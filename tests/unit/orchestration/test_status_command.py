"""`penstock status` of an instance that has only a desired state, to run or not to run."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import dagster as dg
import msgspec
import psutil
import pytest
from rich.console import Console
from typer.testing import CliRunner

from penstock.assets.instances import global_stores_metadata
from penstock.orchestration.cli import app
from penstock.orchestration.commands.common import CompactRows, out
from penstock.orchestration.database.models import Instance, RunBookRun, RunBookState
from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.declarations.project_paths import ProjectPaths
from penstock.orchestration.instances.launcher import Process
from penstock.orchestration.instances.operations import Operations, Started
from penstock.orchestration.kafka import observer
from penstock.orchestration.kafka.observer import Condition, CoordinationLog, Observer, Picture, UnreadPartitions, unread_partitions
from penstock.orchestration.projection import writer
from penstock.orchestration.projection.feed import Feed
from penstock.orchestration.run_books.restart_instance import RestartInstance
from penstock.runtime.coordination.records import (
    Desired,
    GlobalStoreReport,
    Member,
    PausedAt,
    Reset,
    RestoreReport,
    TaskReport,
    TopologyText,
    encode,
)
from penstock.runtime.instance.settings import ExitStatus, exit_path
from penstock.runtime.model.errors import BrokerUnavailableError
from penstock.runtime.model.events import Event, EventKind
from penstock.runtime.model.states import State, TaskKind, TaskState
from penstock.runtime.topology.shape import Part
from tests.support import wait_until


@pytest.mark.parametrize(
    ("wanted", "ago_s", "said", "status"), [(True, 3600, "gone", 1), (True, 1, "starting", 1), (False, 3600, "stopped", 0)]
)
def test_an_instance_that_was_buried_or_drained_has_been_started_once(
    monkeypatch: pytest.MonkeyPatch, wanted: bool, ago_s: int, said: str, status: int
) -> None:
    """The others delete what a dead instance, or one that has left, last said of itself."""
    wish = Desired(instance="a-1", running=wanted, at_ms=int((time.time() - ago_s) * 1000), by="ann")
    monkeypatch.setattr(Observer, "observe", lambda self: Picture("a", {}, {"a-1": wish}, {}, None))
    found = CliRunner().invoke(app, ["status", "-b", "x:1", "-a", "a"])
    assert said in found.output and found.exit_code == status


def test_an_instance_that_died_of_an_error_says_which_even_while_its_process_is_not_reaped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    declared = tmp_path / "streams.toml"
    declared.write_text('[applications.a]\nfactory = "m:f"\ninstances = ["a-1"]\n[applications.a.config]\n"bootstrap.servers" = "x:1"\n')
    monkeypatch.setenv("PENSTOCK_STREAMS", str(declared))
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")
    paths, now_ms = ProjectPaths.find(), int(time.time() * 1000)
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(1)"]) as child:
        shown = _status_of_a_zombie(paths, child.pid, now_ms, monkeypatch)
    assert (
        "instance a-1 should run: it is gone; its process died with exit status 1: task 0_0, at shop.py:45 in <lambda>: KeyError: 'gate'"
        in shown
    )


def _status_of_a_zombie(paths: ProjectPaths, pid: int, now_ms: int, monkeypatch: pytest.MonkeyPatch) -> str:
    dead = Process(instance="a-1", pid=pid, created=psutil.Process(pid).create_time())
    wait_until(lambda: not dead.alive, 10, "its end")
    assert psutil.pid_exists(pid), "a zombie: nobody has waited for it"
    for path in (paths.process_path("a-1"), paths.log_path("a-1")):
        path.parent.mkdir(parents=True, exist_ok=True)
    paths.process_path("a-1").write_bytes(msgspec.json.encode(dead))
    exit_path(paths.settings_path("a-1")).write_bytes(msgspec.json.encode(ExitStatus(pid=dead.pid, status=1)))
    paths.log_path("a-1").write_text('{"message": "task 0_0, at shop.py:45 in <lambda>: KeyError: \'gate\'"}\n')
    member = Member(
        instance="a-1",
        incarnation=1,
        transactional_id="t",
        host=socket.gethostname(),
        pid=dead.pid,
        state=State.RUNNING,
        heartbeat_ms=now_ms,
    )
    wish = Desired(instance="a-1", running=True, at_ms=now_ms, by="ann")
    monkeypatch.setattr(Observer, "observe", lambda self: Picture("a", {member.identity: member}, {"a-1": wish}, {}, None))
    return CliRunner().invoke(app, ["status"]).output


def test_the_memory_of_an_instance_is_that_of_its_workers_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    wish = Desired(instance="a-1", running=True, at_ms=int(time.time() * 1000), by="ann")
    mib = 2**20
    workers = [
        Member(
            instance="a-1",
            incarnation=1,
            transactional_id=f"t{number}",
            host="elsewhere",
            pid=number,
            worker=number,
            workers=2,
            state=State.RUNNING,
            heartbeat_ms=int(time.time() * 1000),
            memory={"resident": 100 * mib, "blocks": 30 * mib, "other": 70 * mib},
        )
        for number in (1, 2)
    ]
    members = {worker.identity: worker for worker in workers}
    monkeypatch.setattr(Observer, "observe", lambda self: Picture("a", members, {"a-1": wish}, {}, None))
    found = CliRunner().invoke(app, ["status", "-b", "x:1", "-a", "a"])
    assert "memory of a-1, MiB: blocks 60, other 140" in found.output
    rows = json.loads(CliRunner().invoke(app, ["status", "-b", "x:1", "-a", "a", "--json"]).stdout)
    assert rows[0]["memory"]["resident"] == 200 * mib


def test_rates_are_those_between_heartbeats_and_unknown_after_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordination topic has at least the last heartbeat of each instance, and in general those before it."""
    now_ms, log = int(time.time() * 1000), CoordinationLog("a")
    for second in (5, 0):
        for number in (1, 2) if second == 0 else (1,):
            read = TaskReport(kind=TaskKind.ACTIVE, state=TaskState.RUNNING, offset_sum=1000 - 2 * second, end_sum=1000, lag=0)
            taken_over = msgspec.structs.replace(
                read, offset_sum=0 if second else 7_000, state=TaskState.RESTORING if second else TaskState.RUNNING
            )
            member = Member(
                instance=f"a-{number}",
                incarnation=1,
                transactional_id=f"t{number}",
                host="elsewhere",
                pid=1,
                state=State.RUNNING,
                heartbeat_ms=now_ms - 1000 * second,
                tasks={f"0_{number}": read, "0_3": taken_over} if number == 1 else {f"0_{number}": read},
                written=5000 - 100 * second,
            )
            log.apply(member.key, encode(member))
    members = log.picture({}).members
    picture = Picture("a", members, {}, {}, None, flows={each.identity: log.flows(each, each.heartbeat_ms) for each in members.values()})
    monkeypatch.setattr(Observer, "observe", lambda self: picture)
    rows = json.loads(CliRunner().invoke(app, ["status", "-b", "x:1", "-a", "a", "--json"]).stdout)
    assert [(row["in_per_s"], row["out_per_s"]) for row in rows] == [(2.0, 100.0), (None, None)]
    shown = CliRunner().invoke(app, ["status", "-b", "x:1", "-a", "a"]).output
    assert re.search(r"in/s\s+out/s", shown) and re.search(r"a-1 .*\s2\s+100\b", shown)


def test_the_global_stores_of_each_worker_are_rows_of_the_tasks_and_of_the_asset(monkeypatch: pytest.MonkeyPatch) -> None:
    restore = RestoreReport(records=40, remaining=60, rate=20.0, seconds_left=3.0)
    reports = {
        1: GlobalStoreReport(topic="airports", state=TaskState.RUNNING, position=100, end=100),
        2: GlobalStoreReport(topic="airports", state=TaskState.RESTORING, position=40, end=100, lag=60, restore=restore, reason="torn"),
    }
    workers = [
        Member(instance="a-1", incarnation=1, transactional_id="t", host="h", pid=1, worker=number, global_stores={"rows": report})
        for number, report in reports.items()
    ]
    picture = Picture("a", {worker.identity: worker for worker in workers}, {}, {}, None)
    monkeypatch.setattr(Observer, "observe", lambda self: picture)
    rows = json.loads(CliRunner().invoke(app, ["tasks", "-b", "x:1", "-a", "a", "--json"]).stdout)
    assert [(row["task"], row["store"], row["worker"], row["state"], row["lag"], row["recovery"]) for row in rows] == [
        ("global", "rows", 1, "RUNNING", 0, None),
        ("global", "rows", 2, "RESTORING", 60, "torn"),
    ]
    monkeypatch.setenv("COLUMNS", "200")
    shown = CliRunner().invoke(app, ["tasks", "-b", "x:1", "-a", "a"]).output
    assert "global rows (worker 2)" in shown and "40 read, 60 to go, 20/s, 3 s left" in shown
    assert "global rows (worker 2) on a-1 is rebuilt: torn" in shown
    table = global_stores_metadata(picture, "a-1")["global_stores"]
    assert isinstance(table, dg.TableMetadataValue)
    assert [(record.data["store"], record.data["lag"]) for record in table.records] == [
        ("global rows", 0),
        ("global rows (worker 2)", 60),
    ]
    assert global_stores_metadata(picture, "a-2") == {}


def test_an_instance_that_died_soon_after_it_had_started_is_gone_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its record is deleted by the others; its last heartbeat is younger than the wish that it runs."""
    now_ms = int(time.time() * 1000)
    wish = Desired(instance="a-1", running=True, at_ms=now_ms - 5_000, by="ann")
    for heard_ms, state in ((now_ms - 9_000, "starting"), (now_ms - 1_000, "gone")):
        seen = Picture("a", {}, {"a-1": wish}, {}, None, heard_ms={"a-1": heard_ms})
        monkeypatch.setattr(Observer, "observe", lambda self, seen=seen: seen)
        [row] = json.loads(CliRunner().invoke(app, ["status", "-b", "x:1", "-a", "a", "--json"]).stdout)
        assert row["state"] == state


def test_an_instance_whose_process_on_this_machine_ended_before_it_joined_is_gone_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "streams.toml").write_text('[applications.a]\nfactory = "m:f"\ninstances = 1\n')
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PENSTOCK_STREAMS", str(tmp_path / "streams.toml"))
    recorded = ProjectPaths.find().process_path("a-1")
    recorded.parent.mkdir(parents=True)
    wish = Desired(instance="a-1", running=True, at_ms=int(time.time() * 1000), by="ann")
    monkeypatch.setattr(Observer, "observe", lambda self: Picture("a", {}, {"a-1": wish}, {}, None))
    for created, state in ((time.time() - 60, "starting"), (time.time(), "gone")):
        recorded.write_bytes(msgspec.json.encode(Process(instance="a-1", pid=2**22 + 1, created=created)))
        [row] = json.loads(CliRunner().invoke(app, ["status", "--json"]).stdout)
        assert row["state"] == state


COUNTING = TopologyText(
    hash="h", text="", parts={0: Part(("in",), 2, True), 1: Part(("in-repartition", "pattern x.*"), 4)}, inputs={"in": 2}
)


@pytest.mark.parametrize(
    ("partitions", "unread"), [({"in": 2, "in-repartition": 4, "other": 9}, []), ({"in": 5, "in-repartition": 4}, [("in", 2, 5)]), ({}, [])]
)
def test_partitions_beyond_the_tasks_are_unread(partitions: dict[str, int], unread: list[tuple[str, int, int]]) -> None:
    assert [(each.topic, each.read, each.partitions) for each in unread_partitions(COUNTING, partitions)] == unread


@pytest.mark.parametrize(("state", "status"), [(State.RUNNING, 1), (State.NOT_RUNNING, 0)])
def test_unread_partitions_of_an_application_that_runs_are_named_and_are_exit_status_1(
    monkeypatch: pytest.MonkeyPatch, state: State, status: int
) -> None:
    runs = Member(
        instance="a-1", incarnation=1, transactional_id="t", host="elsewhere", pid=1, state=state, heartbeat_ms=int(time.time() * 1000)
    )
    picture = Picture("a", {runs.identity: runs}, {}, {}, None, unread=(UnreadPartitions("in", 2, 5),))
    monkeypatch.setattr(Observer, "observe", lambda self: picture)
    found = CliRunner().invoke(app, ["status", "-b", "x:1", "-a", "a"])
    assert found.exit_code == status
    assert ("input topic in of a has 5 partitions, and tasks read the first 2" in found.output) is bool(status)


LONG = "order-enrichment-for-settlement-europe"
TOPIC = "settlement-orders-validated-europe-west-v2"


@pytest.mark.parametrize("command", ["status", "tasks", "describe", "alerts"])
def test_at_80_columns_what_is_wrong_is_first_and_no_name_is_cut_or_broken(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    now_ms = int(time.time() * 1000)
    at = PausedAt(topic=TOPIC, partition=4, offset=15_535, since_ms=now_ms, error="Input data was truncated", location="count at a.py:9")
    tasks = {
        "0_3": TaskReport(kind=TaskKind.ACTIVE, state=TaskState.RUNNING, offset_sum=0, end_sum=123_456, lag=123_456, checkpoint_ms=now_ms),
        "0_4": TaskReport(kind=TaskKind.ACTIVE, state=TaskState.PAUSED, offset_sum=0, end_sum=7, lag=7, paused=at),
    }
    members = [
        Member(
            instance=f"{LONG}-{number}",
            incarnation=1,
            transactional_id=f"t{number}",
            host="elsewhere",
            pid=12_345 + number,
            state=State.RUNNING,
            heartbeat_ms=now_ms,
            tasks=tasks if number == 1 else {},
            memory={"resident": 100 * 2**20},
            log_path=f"/var/lib/penstock/logs/{LONG}-{number}.log",
        )
        for number in (1, 2)
    ]
    wishes = {each.instance: Desired(instance=each.instance, running=True, at_ms=now_ms, by="ann") for each in members}
    picture = Picture(LONG, {each.identity: each for each in members}, wishes, {}, None)
    place = f"{TOPIC}-4@15535"
    condition = Condition("TASK_PAUSED", "ERROR", place, f"task 0_4 on {LONG}-1 is paused at {place}: truncated", now_ms)
    monkeypatch.setattr(Observer, "observe", lambda self: picture)
    monkeypatch.setattr(Observer, "conditions", lambda self, now_ms: [condition])
    monkeypatch.setattr(Observer, "events", lambda self, limit, kind=None, task=None, without=(): [])
    application = [LONG] if command == "describe" else ["-a", LONG]
    monkeypatch.setattr(out, "_width", 80)
    shown = CliRunner().invoke(app, [command, "-b", "x:1", *application], env={"COLUMNS": "80"}).stdout
    lines = shown.splitlines()
    assert any(place in line for line in lines[:3]), "what is wrong is first, with the place in one piece"
    assert shown.count(place) == 1
    assert all(len(line) <= 80 for line in lines) and "…" not in shown
    assert all(
        re.fullmatch(rf"({LONG}(-\d)?|{TOPIC}-4@15535)\W*", word)
        for word in shown.split()
        if LONG[:5] in word or TOPIC[:5] in word
        if "/" not in word
    )
    if command != "alerts":
        assert re.search("1234(56|63)", shown) and "restoring" not in shown and "standbys" not in shown, "counts that are 0 are left out"


@pytest.mark.usefixtures("two_applications")
@pytest.mark.parametrize("command", ["status", "tasks", "events"])
def test_an_error_is_one_short_line_whatever_it_quotes(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    now_ms = int(time.time() * 1000)
    error = "KeyError: 'no\nshop-7  RUNNING\r\n\x1b[2J' " + "x" * 16_000
    at = PausedAt(topic="in", partition=4, offset=7, since_ms=now_ms, error=error, location="count at a.py:9")
    member = Member(
        instance="a-1",
        incarnation=1,
        transactional_id="t",
        host="elsewhere",
        pid=1,
        state=State.RUNNING,
        heartbeat_ms=now_ms,
        tasks={"0_4": TaskReport(kind=TaskKind.ACTIVE, state=TaskState.PAUSED, offset_sum=0, end_sum=7, lag=7, paused=at)},
    )
    event = Event(
        id="a:1",
        application="a",
        instance="a-1",
        incarnation=1,
        kind=EventKind.TASK_PAUSED,
        task="0_4",
        at_ms=now_ms,
        payload={"error": error},
    )
    monkeypatch.setattr(Observer, "observe", lambda self: Picture("a", {member.identity: member}, {}, {}, None))
    monkeypatch.setattr(Observer, "events", lambda self, limit, kind=None, task=None, without=(): [event])
    asked = [command, "a"] if command == "status" else [command, "-a", "a"]
    shown = CliRunner().invoke(app, asked).stdout
    assert "'no shop-7 RUNNING " in " ".join(shown.split()) and not any(line.startswith("shop-7") for line in shown.splitlines())
    assert len(shown) < 1_000 and "…" in shown and "\x1b" not in shown


@pytest.mark.usefixtures("two_applications")
def test_no_instance_is_said_to_be_starting_while_another_application_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def want(self: Operations, feed: Feed, application: Application, name: str, actor: str) -> None:
        done.append(f"want {name}")
        if application.id == "b":
            raise BrokerUnavailableError("b: no broker answers at b:1")

    def start(self: Operations, name: str, **_: object) -> Started:
        done.append(f"start {name}")
        return Started(Process(instance=name, pid=1, created=1.0), True, Instance(name=name, state="RUNNING"), ())

    monkeypatch.setattr(Operations, "_want_started", want)
    monkeypatch.setattr(Operations, "start", start)
    monkeypatch.setattr(Operations, "_mark_not_starting", lambda self, name: done.append(f"not {name}"))
    found = CliRunner().invoke(app, ["start", "a-1", "b", "a-2"])
    assert found.exit_code == 1 and "b: no broker answers" in found.output
    assert done == ["want a-1", "want a-2", "start a-1", "start a-2", "want b-1", "not b-1", "not b-2"]


@pytest.mark.usefixtures("two_applications")
@pytest.mark.parametrize(
    ("names", "restarted", "stopped"),
    [
        ([], ["a-2", "b-1"], ["a-1", "b-2"]),
        (["a"], ["a-2"], ["a-1"]),
        (["a-1", "a-2"], ["a-1", "a-2"], []),
        (["a-1", "a"], ["a-1", "a-2"], []),
    ],
)
def test_a_restart_leaves_what_was_stopped_alone_unless_it_is_named(
    names: list[str], restarted: list[str], stopped: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def run(self: RestartInstance) -> RunBookRun:
        done.append(self._instance)
        return RunBookRun(state=RunBookState.DONE.value, reason=f"{self._instance} runs")

    monkeypatch.setattr(RestartInstance, "run", run)
    operations = Operations.find()
    with closing(operations.control_plane), operations.control_plane.writing() as session:
        for application, name in (("a", "a-2"), ("b", "b-1")):
            writer.instance_row(session, application, name).wanted = True
    found = CliRunner().invoke(app, ["restart", *names])
    assert found.exit_code == 0, found.output
    assert done == restarted
    assert [
        name for name in ("a-1", "a-2", "b-1", "b-2") if f"{name} is stopped, and stays so: penstock start {name}" in found.output
    ] == stopped


def test_names_that_look_like_markup_are_shown_as_they_are() -> None:
    """Keys and errors come from records, and rich would hide `[red]` and fail at `[/x]`."""
    console = Console(width=80, color_system=None)
    with console.capture() as captured:
        console.print(CompactRows([{"task": "0_0", "what": "key [red]a[/x]"}], ("task",)))
    assert "key [red]a[/x]" in captured.get()


@pytest.fixture
def two_applications(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two applications of two instances each; no broker answers for the second one."""
    declared = (
        f'[applications.{name}]\nfactory = "m:f"\ninstances = 2\n[applications.{name}.config]\n"bootstrap.servers" = "{name}:1"\n'
        for name in ("a", "b")
    )
    (tmp_path / "streams.toml").write_text("".join(declared))
    monkeypatch.setenv("PENSTOCK_STREAMS", str(tmp_path / "streams.toml"))
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))

    def observe(self: Observer) -> Picture:
        if self.application == "b":
            raise BrokerUnavailableError("b: no broker answers at b:1")
        return Picture("a", {}, {name: Desired(instance=name, running=False, at_ms=1, by="ann") for name in ("a-1", "a-7")}, {}, None)

    monkeypatch.setattr(Observer, "observe", observe)


@pytest.mark.usefixtures("two_applications")
@pytest.mark.parametrize(
    ("names", "shown"),
    [(["a"], ["a-1", "a-2", "a-7"]), (["a-2"], ["a-2"]), (["a", "a-1"], ["a-1", "a-2", "a-7"])],
)
def test_status_takes_applications_and_instances_and_reads_no_other_application(names: list[str], shown: list[str]) -> None:
    found = CliRunner().invoke(app, ["status", *names, "--json"])
    assert found.exit_code == 0, found.output
    assert [row["instance"] for row in json.loads(found.stdout)] == shown


@pytest.mark.usefixtures("two_applications")
def test_status_of_an_instance_that_is_not_declared_and_of_an_unknown_name() -> None:
    """Kafka may know the instance, so all applications are read."""
    assert "b: no broker answers" in CliRunner().invoke(app, ["status", "a-7"]).output
    assert [row["instance"] for row in json.loads(CliRunner().invoke(app, ["status", "a-7", "-a", "a", "--json"]).stdout)] == ["a-7"]
    refused = CliRunner().invoke(app, ["status", "aa", "-a", "a"])
    assert refused.exit_code == 1 and "no instance or application 'aa' is known" in refused.output and "Did you mean 'a'" in refused.output


def test_an_unfinished_reset_is_named_with_its_command_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """No start would succeed, so none is advised."""
    log, at_ms = CoordinationLog("a"), int(time.time() * 1000)
    reset = Reset(id="r", at_ms=at_ms, by="ann", options="--to latest")
    topology = TopologyText(hash="h", text="", parts={0: Part(("in",), 1, True)}, inputs={"in": 1})
    wish = Desired(instance="a-1", running=True, at_ms=1, by="ann")
    for record in (wish, topology, reset):
        log.apply(record.key, encode(record))
    monkeypatch.setattr(Observer, "observe", lambda self: log.picture({}))
    monkeypatch.setattr(out, "_width", 300)
    found = CliRunner().invoke(app, ["status", "-b", "x:1", "-a", "a"])
    assert found.exit_code == 1
    assert re.match(
        r"a reset of application a was begun by ann at .* and has not ended: end it with penstock reset a --to latest\n", found.output
    )
    assert "task 0_0 of a is run by no instance: a reset has not ended: penstock reset a --to latest" in found.output
    assert "penstock start" not in found.output
    log.apply(reset.key, encode(msgspec.structs.replace(reset, ended=True)))
    assert "reset" not in CliRunner().invoke(app, ["status", "-b", "x:1", "-a", "a"]).output
    log.apply(reset.key, encode(reset))
    log.apply(reset.key, None)  # an instance had started before it
    assert "reset" not in CliRunner().invoke(app, ["status", "-b", "x:1", "-a", "a"]).output


def test_a_command_says_after_some_seconds_that_no_broker_has_answered_yet(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(observer, "_SECONDS", 0.3)
    monkeypatch.setattr(observer, "_SILENCE_SECONDS", 0.1)
    found = CliRunner().invoke(app, ["status", "-b", "127.0.0.1:1", "-a", "shop"])
    assert caplog.messages == ["shop: no broker at 127.0.0.1:1 has answered for 0.1 s; waiting for up to 0.2 s more"]
    assert found.exit_code == 1 and "shop: no broker answers at 127.0.0.1:1" in found.output
