"""Instances that should run and do not: processes by id and time of creation, deaths that count once, growing delays between starts."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import psutil
import pytest
from sqlalchemy import select

from penstock.orchestration.database import ControlPlane
from penstock.orchestration.database.models import Alert, AlertState, Instance
from penstock.orchestration.declarations.applications import Applications
from penstock.orchestration.declarations.project_paths import ProjectPaths
from penstock.orchestration.instances import kernel_log as kernel_log_module
from penstock.orchestration.instances import launcher
from penstock.orchestration.instances.launcher import Launcher, LaunchError, Process
from penstock.orchestration.instances.supervision import Verdict, examine_instance, wait_before_start
from penstock.orchestration.projection import writer
from penstock.runtime.instance.settings import ExitStatus, exit_path
from tests.support import wait_until

(A,) = Applications.parse('[applications.a]\nfactory = "m:f"\ninstances = ["a-1"]\n', Path("streams.toml")).applications


@pytest.fixture
def paths(tmp_path: Path) -> ProjectPaths:
    return ProjectPaths(tmp_path, tmp_path / "home", tmp_path / "streams.toml", "sqlite://")


@pytest.fixture
def process(paths: ProjectPaths) -> Iterator[Callable[[], Process]]:
    """Starts processes and writes each down as the last one that was started for the instance, as the launcher does."""
    children: list[subprocess.Popen[bytes]] = []

    def start() -> Process:
        child = subprocess.Popen(["sleep", "600"])
        children.append(child)
        made = Process(instance="a-1", pid=child.pid, created=psutil.Process(child.pid).create_time())
        path = paths.process_path("a-1")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.encode(made))
        return made

    yield start
    for child in children:
        child.kill()
        child.wait()


def kill(process: Process) -> None:
    """Kills it and waits until it is dead; it is not reaped yet."""
    psutil.Process(process.pid).kill()
    wait_until(lambda: not process.alive, 10, "its death")


class World:
    """One instance under supervision, with the clock in the test's hand."""

    def __init__(self, control_plane: ControlPlane, paths: ProjectPaths) -> None:
        self.control_plane = control_plane
        self.paths = paths
        self.launcher = Launcher(paths)
        self.at = datetime.now(UTC)
        self.want(True)

    def want(self, wanted: bool) -> None:
        with self.control_plane.writing() as session:
            writer.instance_row(session, "a", "a-1").wanted = wanted

    def says(self, state: str, pid: int) -> None:
        with self.control_plane.writing() as session:
            row = writer.instance_row(session, "a", "a-1")
            row.state, row.pid = state, pid

    def tick(self, seconds: float = 5.0) -> Verdict:
        self.at += timedelta(seconds=seconds)
        with self.control_plane.writing() as session:
            return examine_instance(session, A, "a-1", self.launcher, self.at)

    def died(self, process: Process) -> None:
        """It was created now, by the clock of the test, and is killed."""
        kill(process)
        self.at += timedelta(seconds=1)
        created = msgspec.structs.replace(process, created=self.at.timestamp())
        self.paths.process_path("a-1").write_bytes(msgspec.json.encode(created))

    def heard(self, seconds: float) -> None:
        """It sent its last heartbeat so long after now."""
        with self.control_plane.writing() as session:
            writer.instance_row(session, "a", "a-1").heartbeat_at = self.at + timedelta(seconds=seconds)

    @property
    def row(self) -> Instance:
        with self.control_plane.reading() as session:
            return session.get_one(Instance, ("a", "a-1"))

    @property
    def alerts(self) -> list[Alert]:
        with self.control_plane.reading() as session:
            return list(session.scalars(select(Alert).order_by(Alert.id)))


@pytest.fixture
def world(control_plane: ControlPlane, paths: ProjectPaths) -> World:
    return World(control_plane, paths)


def test_running_and_unwanted_instances_are_left_alone(world: World, process: Callable[[], Process]) -> None:
    process()
    assert not world.tick().start
    world.want(False)
    assert world.tick() == Verdict(False, "not wanted")


def test_a_wanted_instance_that_never_ran_here_is_started_and_requested_once(world: World) -> None:
    assert world.tick().start
    assert world.tick() == Verdict(False, "is being started")
    assert world.tick(61).start, "the run that should have started it came to nothing"


def test_a_death_counts_once_and_is_answered_at_once(world: World, process: Callable[[], Process]) -> None:
    kill(process())
    assert world.tick().start
    world.tick()
    assert world.row.deaths == 1
    assert [alert.kind for alert in world.alerts] == ["INSTANCE_DIED"]


def test_its_alert_is_closed_when_another_process_is_running(world: World, process: Callable[[], Process]) -> None:
    kill(process())
    world.tick()
    world.says("RUNNING", process().pid)
    world.tick()
    assert [alert.state for alert in world.alerts] == [AlertState.RESOLVED.value]


def test_one_that_keeps_dying_is_started_with_growing_patience_and_its_alert_gets_worse(
    world: World, process: Callable[[], Process]
) -> None:
    waits = []
    for _ in range(4):
        world.died(process())
        waited = 0
        while not world.tick(5).start:
            waited += 5
        waits.append(waited)
    assert waits == [0, 10, 20, 40]
    (alert,) = world.alerts
    assert (alert.severity, alert.count, alert.detail["deaths"]) == ("ERROR", 4, 4)


def test_a_death_says_what_is_known(world: World, process: Callable[[], Process]) -> None:
    log = world.paths.log_path("a-1")
    log.parent.mkdir(parents=True)
    log.write_text("".join(f"line {number}\n" for number in range(20)))
    kill(process())
    world.tick()
    (alert,) = world.alerts
    assert alert.title.endswith("died, and nothing is known of how"), "the last line of a log is no cause"
    assert alert.detail["log_end"] == "\n".join(f"line {number}" for number in range(10, 20))
    failed = process()
    kill(failed)
    path = exit_path(world.paths.settings_path("a-1"))
    path.write_bytes(msgspec.json.encode(ExitStatus(pid=failed.pid, status=1)))
    world.tick()
    (alert,) = world.alerts
    assert (alert.detail["ended"], alert.title.partition("died ")[2]) == (
        "with exit status 1",
        "(2 times in a row) with exit status 1: line 19",
    )
    os.utime(path, (failed.created - 60, failed.created - 60))
    assert world.launcher.end_of(failed) is None, "it is of another process with the same id"


@pytest.fixture
def kernel_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Writes what the kernel says of process 4711, so many seconds ago, in the namespace of its ids."""

    def write(ago: float = 60, priority: int = 3, namespace: str = "pid:[4026531836]", why: str = "Memory cgroup out of memory") -> None:
        log, link, killed_us = tmp_path / "kmsg", tmp_path / "ns", round((time.monotonic() - ago) * 1e6)
        sizes = "total-vm:212404kB, anon-rss:101584kB, file-rss:23012kB, shmem-rss:0kB, UID:1000 pgtables:412kB oom_score_adj:0"
        records = [
            "6,1,2,-;oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=/pod,task_memcg=/pod,task=python,pid=4711,uid=1000",
            "6,1,2,-;Tasks in /pod are going to be killed due to memory.oom.group set",  # in groups of version 2 only
            f"{priority},2,{killed_us},-;{why}: Killed process 4711 (python) {sizes}",
        ]
        log.write_text("".join(f"{record}\n SUBSYSTEM=x\n" for record in records))
        link.unlink(missing_ok=True)
        link.symlink_to(namespace)

    monkeypatch.setattr(kernel_log_module, "_LOG", tmp_path / "kmsg")
    monkeypatch.setattr(kernel_log_module, "_NAMESPACE", tmp_path / "ns")
    write()
    return write


@pytest.mark.parametrize("why", ["Memory cgroup out of memory", "Out of memory"])
def test_the_kernels_log_names_what_was_killed_for_memory(paths: ProjectPaths, kernel_log: Callable[..., None], why: str) -> None:
    """Groups of both versions, and the machine, write the same line (`mm/oom_kill.c`). It is known by id and time: a record from before the
    creation of the process, or from long after its last sign of life, is of another one with its id."""
    kernel_log(why=why)
    now = time.time()

    def end(pid: int = 4711, age: float = 90, heard: float | None = None) -> str | None:
        return Launcher(paths).end_of(Process(instance="a-1", pid=pid, created=now - age), heard)

    killed = end()
    assert killed is not None
    at = datetime.strptime(killed, "for lack of memory: the kernel killed it at %Y-%m-%d %H:%M:%S UTC").replace(tzinfo=UTC)
    assert abs(at.timestamp() - (now - 60)) < 10
    assert (end(age=30), end(pid=471)) == (None, None)
    assert end(age=7200, heard=now - 90) == killed
    assert end(age=7200, heard=now - 3600) is None
    log = paths.log_path("a-1")
    log.parent.mkdir(parents=True)
    log.touch()
    assert end(age=7200, heard=now - 3600) == killed, "it reached no broker, and wrote to its log"


def test_only_the_kernel_itself_is_believed_and_only_where_it_has_our_ids(paths: ProjectPaths, kernel_log: Callable[..., None]) -> None:
    """Root may write lines to its log, which have another facility. In a container the ids in it are the host's."""
    dead = Process(instance="a-1", pid=4711, created=time.time() - 90)
    kernel_log(priority=1 << 3 | 3)
    assert Launcher(paths).end_of(dead) is None
    kernel_log(namespace="pid:[4026532198]")
    assert Launcher(paths).end_of(dead) is None


def test_a_stop_on_purpose_and_a_healthy_life_end_the_series_of_deaths(world: World, process: Callable[[], Process]) -> None:
    world.died(process())
    world.tick()
    process()
    world.tick(60)
    assert world.row.deaths == 1
    world.tick(400)
    assert world.row.deaths == 0
    world.died(process())
    world.tick()
    world.want(False)
    world.tick()
    assert world.row.deaths == 0


def test_having_run_for_long_enough_makes_it_healthy(world: World, process: Callable[[], Process]) -> None:
    world.died(process())
    world.tick()
    world.died(process())
    world.heard(400)
    world.tick(500)
    assert world.row.deaths == 1


def test_a_death_that_is_noticed_late_continues_the_series(world: World, process: Callable[[], Process]) -> None:
    """Nothing looked for ten minutes; the instance lived for one of them."""
    for _ in range(3):
        world.died(process())
        world.heard(60)
        world.tick(600)
    (alert,) = world.alerts
    assert (world.row.deaths, alert.severity) == (3, "ERROR")
    assert "died (3 times in a row)" in alert.title


def test_the_longest_wait_is_five_minutes() -> None:
    assert wait_before_start(50) == timedelta(minutes=5)


def test_a_process_id_given_out_again_is_not_the_instance(process: Callable[[], Process]) -> None:
    made = process()
    assert made.alive
    assert not msgspec.structs.replace(made, created=made.created - 100).alive


def test_a_killed_child_that_was_not_waited_for_is_dead(process: Callable[[], Process]) -> None:
    made = process()
    kill(made)
    assert psutil.Process(made.pid).status() == psutil.STATUS_ZOMBIE


def test_stopping_ends_the_process_and_stopping_again_says_that_none_ran(world: World, process: Callable[[], Process]) -> None:
    process()
    assert world.launcher.stop("a-1", 10)
    assert not world.launcher.stop("a-1", 10)


def test_a_folder_that_cannot_be_written_is_named(paths: ProjectPaths) -> None:
    paths.home.write_text("a file where a folder should be")
    with pytest.raises(LaunchError, match=r"a-1 cannot be started: .*home"):
        Launcher(paths).start(A, "a-1")


LOGS = "import atexit, os, sys, time\ndef say(): print('{\"level\": \"info\"}', '{}', sep='\\n', flush=True)\nsay()\n"


@pytest.mark.parametrize(
    ("code", "problem", "refused"),
    [
        ("atexit.register(say)\nraise SystemExit(0)\n", "SystemExit: 0", ""),
        ("raise ValueError('one\\u2028two\\x85three')\n", "ValueError: one\u2028two\x85three", ""),
        ("os._exit(0)\n", "", "m:f cannot be checked: the process ended with status 0: "),
        ("time.sleep(600)\n", "", r"m:f was not checked within 5 s: does it wait\?"),
    ],
    ids=["prints JSON at its end", "raises line separators", "ends the process", "hangs"],
)
def test_a_check_believes_no_output_of_the_users_code_and_does_not_wait_for_ever(
    paths: ProjectPaths, monkeypatch: pytest.MonkeyPatch, code: str, problem: str, refused: str
) -> None:
    if "sleep" in code:
        monkeypatch.setattr(launcher, "_CHECK_SECONDS", 5.0)
    (paths.root / "m.py").write_text(LOGS + code)
    if refused:
        with pytest.raises(LaunchError, match=refused):
            Launcher(paths).precheck(A, ["a-1"])
    else:
        [found] = Launcher(paths).precheck(A, ["a-1"]).problems
        assert problem in found


def test_a_crash_in_native_code_is_named_though_the_parent_is_gone(paths: ProjectPaths) -> None:
    """The signal is known to the parent alone, but the process has written it to its log."""
    path = paths.log_path("a-1")
    path.parent.mkdir(parents=True, exist_ok=True)
    crash = "import ctypes, faulthandler; faulthandler.enable(all_threads=False); print('{}', flush=True); ctypes.string_at(0)"
    with path.open("wb") as log:
        child = subprocess.Popen([sys.executable, "-c", crash], stdout=log, stderr=log)
        child.wait()
    dead = Process(instance="a-1", pid=child.pid, created=time.time())
    assert Launcher(paths).end_of(dead) == "by a crash in native code, Segmentation fault"
    with path.open("ab") as log:
        log.write(b'{"message": "running"}\n')
    assert Launcher(paths).end_of(dead) is None, "it is of a former process"
