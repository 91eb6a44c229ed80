"""The successors of running instances. `tests/broker/test_reload.py` replaces instances by them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack, closing
from pathlib import Path

import msgspec
import psutil

from penstock.orchestration.declarations.project_paths import ProjectPaths
from penstock.orchestration.instances.launcher import Process, Successor
from penstock.orchestration.instances.reloading import Reloader
from tests.support import wait_until


def successors(folder: Path) -> list[psutil.Process]:
    """Return the children of this process in a folder."""
    return [each for each in psutil.Process().children() if each.status() != psutil.STATUS_ZOMBIE and each.cwd() == str(folder)]


def test_what_prevents_a_successor_is_said_once_and_does_not_end_the_watcher(tmp_path: Path) -> None:
    """It prepares successors each second: it must not start one that dies each time, nor end at a file that it cannot read."""
    paths, said = ProjectPaths(tmp_path, tmp_path / "home", tmp_path / "streams.toml", "sqlite://"), list[str]()
    runs = Process(instance="a-1", pid=os.getpid(), created=psutil.Process().create_time())
    for path in (paths.process_path("a-1"), paths.log_path("a-1")):
        path.parent.mkdir(parents=True, exist_ok=True)
    paths.process_path("a-1").write_bytes(msgspec.json.encode(runs))
    with closing(Reloader(paths, said.append)) as reloader:
        reloader.prepare()
        [child] = successors(tmp_path)
        os.kill(child.pid, signal.SIGKILL)
        wait_until(lambda: child.status() == psutil.STATUS_ZOMBIE, 10, "the end of the successor")
        reloader.prepare()
        assert (successors(tmp_path), said) == ([], [])
        paths.process_path("b-1").write_text("{")
        reloader.prepare()
        reloader.prepare()
        [problem] = said
        assert str(paths.process_path("b-1")) in problem


def test_a_successor_answers_a_process_that_has_more_than_1024_files_open() -> None:
    """`select.select` refuses such file descriptors: the watcher of a session with many instances ended with a ValueError."""
    command = [sys.executable, "-c", "print(input())"]
    with ExitStack() as opened:
        for _ in range(1100):
            opened.enter_context(open(os.devnull, "rb"))
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        opened.enter_context(child)
        assert child.stdout is not None and child.stdout.fileno() >= 1024
        successor = Successor(child, Process(instance="a-1", pid=child.pid, created=psutil.Process(child.pid).create_time()))
        successor.send(b"ready\n")
        assert successor.answer(60) == b"ready\n"
