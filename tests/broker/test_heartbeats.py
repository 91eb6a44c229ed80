"""Ends and silences of instances that are noticed long before the group's session expires (coordination.md, 5).

The session is a minute here, so nothing but heartbeats can have moved the tasks.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from penstock.runtime.coordination.commands import CommandClient
from penstock.runtime.coordination.records import Member
from penstock.runtime.coordination.topics import HEARTBEATS_CONFIG, heartbeats_topic
from penstock.runtime.kafka import heartbeat_process
from penstock.runtime.kafka.heartbeats import Heartbeats
from penstock.runtime.kafka.throttling import Throttling
from penstock.runtime.model.clock import SystemClock
from tests.support import Kafka, wait_until
from tests.support.fleets import Fleet, fleet
from tests.support.instances import Application, application

LONG_SESSION = {"session.timeout.ms": 60_000}
SOON_SECONDS = 40
"""Less than the session."""


@pytest.fixture
def running(broker: Kafka, application_id: str, tmp_path: Path) -> Iterator[Fleet]:
    with fleet(broker, application_id, tmp_path, LONG_SESSION) as found:
        yield found


def two_running(fleet: Fleet, **settings: object) -> None:
    """Wait for two instances with two tasks each, which send heartbeats; `a` leads."""
    fleet.app.start("a", **settings)
    fleet.app.becomes({"a": 4})
    fleet.app.start("b", **settings)
    fleet.app.becomes({"a": 2, "b": 2})
    for name in ("a", "b"):
        heard_from(fleet.app, name)


def heartbeat_process_of(app: Application, name: str) -> psutil.Process:
    def found() -> psutil.Process | None:
        below = psutil.Process(app.processes[name].pid).children(recursive=True)
        return next((each for each in below if _sends(each)), None)

    process = wait_until(found, what=f"the heartbeat process of {name}")
    assert process is not None
    return process


def _sends(process: psutil.Process) -> bool:
    try:
        return heartbeat_process.__name__ in process.cmdline()
    except psutil.NoSuchProcess:  # it ends at this moment, or has ended and is a zombie
        return False


def heard_from(app: Application, name: str, seconds: float = 0) -> None:
    """Wait until an instance has sent a heartbeat, and for `seconds` more by the broker's clock."""
    with CommandClient(app.id, app.broker.connection, "test") as client:
        wait_until(lambda: any(each.heartbeats for each in client.members() if each.instance == name), what=f"the announcement of {name}")
        ids = {each.heartbeats.encode() for each in client.members() if each.instance == name}

    def times() -> list[int]:
        return [record.timestamp for record in app.broker.consume(heartbeats_topic(app.id)) if record.key in ids]

    first = wait_until(times, what=f"heartbeats of {name}")
    wait_until(lambda: times()[-1] - first[-1] >= seconds * 1000, seconds + 30, what=f"more heartbeats of {name}")


@pytest.mark.parametrize("dies", [pytest.param("a", id="the leader"), pytest.param("b", id="another", marks=pytest.mark.nightly)])
def test_the_tasks_of_an_instance_that_is_killed_move_without_waiting_for_its_session(dies: str, running: Fleet) -> None:
    two_running(running, **{"failure.detection.ms": 50_000})  # the end of the process counts, not its silence
    running.app.kill(dies)
    (other,) = {"a", "b"} - {dies}
    wait_until(lambda: len(running.app.reports().get(other, {})) == 4, SOON_SECONDS, "all tasks at the other")
    running.goes_on()
    assert "its process has ended" in running.app.log(other)


def test_under_at_least_once_the_end_of_a_process_counts_and_silence_does_not(broker: Kafka, application_id: str, tmp_path: Path) -> None:
    settings: dict[str, object] = {**LONG_SESSION, "processing.guarantee": "at_least_once", "commit.interval.ms": 100}
    with application(broker, application_id, tmp_path, 4, **settings) as app:
        app.factory = "tests.support.instances:build"
        app.start("a")
        app.becomes({"a": 4})
        app.start("b")
        app.becomes({"a": 2, "b": 2})
        first = heartbeat_process_of(app, "b")
        first.suspend()
        heard_from(app, "a", seconds=5)
        assert "counts as dead" not in app.log("a")
        first.resume()
        app.kill("b")
        wait_until(lambda: len(app.reports().get("a", {})) == 4, SOON_SECONDS, "all tasks at the other")
        assert "its process has ended" in app.log("a")


def test_an_instance_with_workers_that_is_killed_with_all_of_its_processes(running: Fleet) -> None:
    running.app.start("a", **{"num.stream.threads": 2})
    running.app.becomes({"a": 4})
    running.app.start("b")
    wait_until(lambda: running.app.reports().get("b"), what="tasks at the second")
    heard_from(running.app, "a")
    for process in psutil.Process(running.app.processes["a"].pid).children():
        process.send_signal(signal.SIGSTOP)  # so that none reports the end of another
    for process in psutil.Process(running.app.processes["a"].pid).children():
        process.kill()
    running.app.kill("a")
    wait_until(lambda: len(running.app.reports().get("b", {})) == 4, SOON_SECONDS, "all tasks at the other")


@pytest.mark.parametrize("freezes", [pytest.param("a", id="the leader"), pytest.param("b", id="another", marks=pytest.mark.nightly)])
def test_the_tasks_of_a_machine_that_is_frozen_move_and_it_comes_back_as_a_new_member(freezes: str, running: Fleet) -> None:
    two_running(running)
    frozen = [heartbeat_process_of(running.app, freezes), psutil.Process(running.app.processes[freezes].pid)]
    for process in frozen:
        process.suspend()
    (other,) = {"a", "b"} - {freezes}
    wait_until(lambda: len(running.app.reports().get(other, {})) == 4, SOON_SECONDS, "all tasks at the other")
    running.goes_on()
    for process in frozen:
        process.resume()
    running.shared_evenly(["a", "b"])
    assert "it is silent for failure.detection.ms" in running.app.log(other)


def test_a_worker_that_lives_and_whose_heartbeats_do_not_arrive_is_taken_for_dead_once(running: Fleet) -> None:
    """It costs a hand-over, and no more: the worker is back as a new member, whose heartbeats do not arrive either."""
    two_running(running)
    sender = heartbeat_process_of(running.app, "b")
    sender.suspend()
    wait_until(lambda: "it is silent for failure.detection.ms" in running.app.log("a"), SOON_SECONDS, "the report")
    running.shared_evenly(["a", "b"])
    heard_from(running.app, "a", seconds=6)
    running.goes_on()
    assert running.app.log("a").count("it is silent for failure.detection.ms") == 1
    sender.resume()


def test_a_long_call_that_holds_the_interpreter_is_no_silence(broker: Kafka, application_id: str, tmp_path: Path) -> None:
    with fleet(broker, application_id, tmp_path, {**LONG_SESSION, "failure.detection.ms": 600}, factory="held_up_once") as running:
        two_running(running)
        wait_until(lambda: all("the long call is over" in running.app.log(name) for name in ("a", "b")), 60, "the end of the calls")
        running.goes_on()
        assert "counts as dead" not in running.app.log("a") + running.app.log("b")


def test_a_heartbeat_process_that_dies_is_replaced_and_its_worker_goes_on(running: Fleet) -> None:
    two_running(running)
    first = heartbeat_process_of(running.app, "b")
    first.kill()
    wait_until(lambda: heartbeat_process_of(running.app, "b").pid != first.pid, SOON_SECONDS, "another heartbeat process")
    running.goes_on()
    assert "the process that sends heartbeats has ended, with status -9" in running.app.log("b")
    assert "counts as dead" not in running.app.log("a")
    lives = {record.incarnation for _, record in running.log() if isinstance(record, Member) and record.instance == "b"}
    assert len(lives) == 1


def test_an_instance_that_is_stopped_leaves_no_heartbeat_process_and_no_report(running: Fleet) -> None:
    two_running(running)
    process = heartbeat_process_of(running.app, "b")
    assert running.app.stop("b") == 0
    wait_until(lambda: not process.is_running(), what="the end of its heartbeat process")
    running.app.start("b")
    running.app.becomes({"a": 2, "b": 2})
    assert "counts as dead" not in running.app.log("a")


@pytest.fixture
def heartbeats(broker: Kafka, application_id: str) -> Iterator[Callable[[str], Heartbeats]]:
    made: list[Heartbeats] = []

    def start(topic: str) -> Heartbeats:
        made.append(Heartbeats({"bootstrap.servers": broker.bootstrap_servers}, topic, 600, SystemClock(), Throttling(SystemClock())))
        return made[-1]

    yield start
    for each in made:
        each.close()


def test_heartbeats_that_the_brokers_refuse_are_reported_with_what_is_missing(
    broker: Kafka, application_id: str, heartbeats: Callable[[str], Heartbeats], caplog: pytest.LogCaptureFixture
) -> None:
    """Without the right to write, or the topic, the worker goes on: its end is noticed after its session."""
    topic = f"{application_id}-too-small"
    broker.create_topic(topic, 1, config={"max.message.bytes": "10"}, exact=True)
    sent = heartbeats(topic)
    assert sent.keep()
    wait_until(lambda: sent.keep() and "heartbeats cannot be written" in caplog.text, what="the report")
    assert "the end of this process is noticed after session.timeout.ms" in caplog.text


def test_what_a_process_of_its_own_forked_holds_does_not_hide_its_end(broker: Kafka, application_id: str, tmp_path: Path) -> None:
    """A process that user code has forked has the same pipe open."""
    topic = heartbeats_topic(application_id)
    broker.create_topic(topic, 1, config=dict(HEARTBEATS_CONFIG), exact=True)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        sent = Heartbeats({"bootstrap.servers": broker.bootstrap_servers}, topic, 600, SystemClock(), Throttling(SystemClock()))
        sent.keep()
        if (heir := os.fork()) == 0:
            signal.pause()
        os.write(write, str(heir).encode())
        signal.pause()
    heir = int(os.read(read, 20))
    try:
        wait_until(lambda: broker.consume(topic), what="a heartbeat")
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        wait_until(lambda: [record.value for record in broker.consume(topic)][-1] == heartbeat_process.ENDED, what="its last record")
    finally:
        os.kill(heir, signal.SIGKILL)
