"""When the process of a worker is killed because it does not run (`runtime/worker/supervisor/watchdog.py`, `process_worker.py`)."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.runtime.worker.spec import WorkerIdentity
from penstock.runtime.worker.supervisor.channel import Failure
from penstock.runtime.worker.supervisor.messages import Ended, Heartbeat, Logged
from penstock.runtime.worker.supervisor.process_worker import BEGIN_MS, END_SECONDS, ProcessWorker
from penstock.runtime.worker.supervisor.watchdog import PAUSED_MS, Watchdog, is_stopped
from penstock.testing import ManualClock
from tests.support import wait_until

SESSION_MS = 10_000


class Process:
    """The process as its supervisor sees it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.killed = False

    def poll(self) -> None:
        return None

    def kill(self) -> None:
        self.killed = True


class Supervised:
    """A worker whose process is a sleeping child, with a manual clock."""

    def __init__(self, pid: int) -> None:
        self.clock = ManualClock()
        begin = SimpleNamespace(identity=WorkerIdentity(1, 2), instance="one")
        self.worker = ProcessWorker(
            cast(Any, begin),
            listener=cast(Any, None),
            later=lambda job: None,
            listen=lambda call: None,
            clock=self.clock,
            silent_ms=SESSION_MS,
            idle_ms=1_000_000,
        )
        self.process = self.worker._process = cast(Any, Process(pid))
        self.worker._started_ms = self.clock.monotonic_ms()

    def passes(self, ms: int, *, checking: bool = True) -> None:
        for _ in range(ms // 500):
            self.clock.advance(500)
            if checking:
                self.worker.check()

    def says(self, subject: object) -> None:
        self.worker._handle_notification(subject)


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


@pytest.fixture
def supervised(child: subprocess.Popen[bytes]) -> Supervised:
    return Supervised(child.pid)


def test_a_process_that_is_silent_for_longer_than_its_session_is_killed(supervised: Supervised) -> None:
    supervised.says(Heartbeat(0))
    supervised.passes(SESSION_MS)
    assert not supervised.process.killed
    supervised.passes(500)
    assert supervised.process.killed


def test_a_process_that_wakes_up_after_its_session_is_killed(supervised: Supervised) -> None:
    """Between two checks: the group has dropped it, whatever it sends now."""
    supervised.says(Heartbeat(0))
    supervised.passes(SESSION_MS)
    supervised.clock.advance(1)
    supervised.says(Heartbeat(0))
    assert supervised.process.killed


def test_a_process_that_wakes_up_in_time_is_not_killed(supervised: Supervised) -> None:
    for _ in range(3):
        supervised.says(Heartbeat(0))
        supervised.passes(SESSION_MS)
    assert not supervised.process.killed


def test_a_late_last_message_does_not_kill_the_process(supervised: Supervised) -> None:
    supervised.says(Heartbeat(0))
    supervised.passes(SESSION_MS)
    supervised.clock.advance(1)
    supervised.says(Ended(Failure.of(ValueError("over"))))
    assert not supervised.process.killed


@pytest.mark.parametrize("started", [True, False])
def test_a_process_that_is_frozen_after_its_last_message_is_killed(supervised: Supervised, started: bool) -> None:
    """Its end of the socket is open, so the client would wait for its end for ever."""
    if started:
        supervised.says(Heartbeat(0))
    supervised.says(Ended(None))
    supervised.passes(int(END_SECONDS * 1000))
    assert not supervised.process.killed
    supervised.passes(500)
    assert supervised.process.killed


def test_messages_that_arrived_while_the_supervisor_was_paused_are_read_first(supervised: Supervised) -> None:
    supervised.says(Heartbeat(0))
    supervised.passes(2 * SESSION_MS, checking=False)
    supervised.says(Heartbeat(0))
    supervised.worker.check()
    assert not supervised.process.killed


def test_a_process_that_is_stopped_before_its_first_heartbeat_is_killed_after_the_session(
    supervised: Supervised, child: subprocess.Popen[bytes]
) -> None:
    supervised.passes(SESSION_MS * 2)
    assert not supervised.process.killed, "a start may take long"
    child.send_signal(signal.SIGSTOP)
    wait_until(lambda: is_stopped(child.pid), 5)
    supervised.passes(SESSION_MS - 500)
    child.send_signal(signal.SIGCONT)
    wait_until(lambda: not is_stopped(child.pid), 5)
    supervised.passes(SESSION_MS)
    assert not supervised.process.killed, "it was stopped for less"
    child.send_signal(signal.SIGSTOP)
    wait_until(lambda: is_stopped(child.pid), 5)
    supervised.passes(SESSION_MS + 1_000)
    assert supervised.process.killed


def test_a_starting_process_may_be_silent_after_it_has_logged(supervised: Supervised) -> None:
    """Modules of the user's may log while they are imported, and the rest of the import may take longer than a session."""
    supervised.says(Logged({"name": "user", "levelno": 0}))
    supervised.passes(BEGIN_MS)
    assert not supervised.process.killed
    supervised.passes(1_000)
    assert supervised.process.killed


class FailingOnce:
    """A process whose first check fails."""

    def __init__(self) -> None:
        self.times = 0
        self.often = threading.Event()

    def check(self) -> None:
        self.times += 1
        if self.times == 1:
            raise OSError("for the test")
        self.often.set()


def test_the_watchdog_continues_when_a_check_fails(caplog: pytest.LogCaptureFixture) -> None:
    process = FailingOnce()
    watchdog = Watchdog(lambda: [process], ManualClock())
    watchdog.start()
    assert process.often.wait(30)
    watchdog.stop()
    assert "cannot be watched" in caplog.text


def test_the_watchdog_skips_a_check_after_a_pause_of_its_own_process() -> None:
    times = [0, PAUSED_MS, PAUSED_MS + 500]
    left_at_check: list[int] = []
    clock = SimpleNamespace(monotonic_ms=lambda: times.pop(0) if times else PAUSED_MS + 500)
    process = SimpleNamespace(check=lambda: left_at_check.append(len(times)))
    watchdog = Watchdog(lambda: [process], cast(Any, clock))
    watchdog.start()
    wait_until(lambda: left_at_check, 30)
    watchdog.stop()
    assert left_at_check[0] == 0, "the first check is the one after the pause was over"
