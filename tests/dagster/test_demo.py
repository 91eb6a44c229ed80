"""The demo, run by `make demo` as a separate process: on a part of the year; interrupted; killed."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from penstock.orchestration.embedded.kafka import EmbeddedBroker
from penstock.orchestration.embedded.ports import LOOPBACK
from tests.support import ROOT, wait_until

FLIGHTS = 1_500
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """Yield the home of a project without running processes; those left after the test are killed."""
    yield tmp_path
    for process in started_for(tmp_path / "demo"):
        process.kill()
    EmbeddedBroker(tmp_path / "demo" / "broker").stop()


@pytest.fixture
def start(home: Path) -> Start:
    """Return a function that starts the demo in that home; its output goes to `demo.out` there."""

    def demo(*arguments: str) -> subprocess.Popen[bytes]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
        environment |= {"PENSTOCK_HOME": str(home), "COLUMNS": "200"}
        with (home / "demo.out").open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "examples.flight_board.demo", *arguments],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    return demo


def printed(home: Path) -> str:
    return (home / "demo.out").read_text(errors="replace")


def started_for(demo_home: Path) -> list[psutil.Process]:
    """Return every process of the demo's home: identified by its environment, or by its command line (the broker)."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            ours = process.environ().get("PENSTOCK_HOME") == str(demo_home) or any(str(demo_home) in word for word in process.cmdline())
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def assert_nothing_runs(home: Path) -> None:
    left = [process.cmdline() for process in started_for(home / "demo")]
    assert left == [], left


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_once_it_ends_with_status_0_because_all_of_it_held(home: Path, start: Start) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):  # then another process has it, which is equally good
            taken.bind((LOOPBACK, 3000))
            taken.listen()
        demo = start("--once", "--flights", str(FLIGHTS))
        status = demo.wait(880)
    text = printed(home)
    assert status == 0, text
    assert f"{FLIGHTS:,} flights" in text
    for expected in (
        "flight-board-1 is RUNNING",
        "TASK_PAUSED",
        "alert opened",
        "step keep done",
        "step shift done",
        "TASK_RESUMED",
        "alert resolved",
        "GLOBAL_RECOVERY_STARTED",
        "flight-board-1 is RUNNING after ",
        "carriers: equals_changelog passed",
        "hourly_delay: equals_changelog passed",
        "Equal to what pandas finds",
        "United Air Lines Inc.",
        "records/s",
        "All of it held",
    ):
        assert expected in text, f"{expected} was not printed:\n{text}"
    assert_nothing_runs(home)


def test_ctrl_c_in_the_middle_leaves_no_process(home: Path, start: Start) -> None:
    demo = start("--flights", str(FLIGHTS))
    wait_until(lambda: "are on topic flights" in printed(home) or demo.poll() is not None, 90, "the data")
    assert started_for(home / "demo"), printed(home)
    demo.send_signal(signal.SIGINT)
    assert demo.wait(90) == 130, printed(home)
    assert_nothing_runs(home)


@pytest.mark.nightly
def test_what_a_killed_demo_left_is_ended_by_the_next_and_two_at_once_are_refused(home: Path, start: Start) -> None:
    demo = start("--flights", str(FLIGHTS))
    wait_until(lambda: "are on topic flights" in printed(home) or demo.poll() is not None, 90, "the data")
    second = start("--once")
    assert second.wait(60) == 1, printed(home)
    assert "another demo runs" in printed(home)
    demo.kill()
    demo.wait()
    assert started_for(home / "demo"), printed(home)
    assert start("--clear").wait(90) == 0, printed(home)
    assert_nothing_runs(home)
