"""Life of a group of instances: restarts, deaths at bad moments, network partitions, a deleted topic.

All under a steady load. Each time no record is lost or duplicated, no task runs twice, and none is orphaned: `fleets.fleet` checks it.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock import serdes
from penstock.orchestration.embedded.kafka import EmbeddedBroker
from penstock.runtime.client.kafka_streams import KafkaStreams
from penstock.runtime.coordination.commands import CommandClient
from penstock.runtime.coordination.records import PROTOCOL, Assignment, Member
from penstock.runtime.coordination.topics import coordination_topic
from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.options import Consumed, Produced
from penstock.runtime.model.clock import SystemClock
from penstock.runtime.model.events import EventKind
from penstock.runtime.model.states import State
from tests.support import ROOT, Kafka, wait_until
from tests.support.engine import count_topology, events
from tests.support.fleets import Fleet, fleet
from tests.support.instances import SESSION, members
from tests.support.network import Proxy, broker_behind_proxy

SESSION_SECONDS = SESSION["session.timeout.ms"] / 1000


@pytest.fixture
def running(broker: Kafka, application_id: str, tmp_path: Path) -> Iterator[Fleet]:
    with fleet(broker, application_id, tmp_path) as found:
        yield found


def three_running(fleet: Fleet) -> dict[str, set[str]]:
    """Wait for three instances with two of six tasks each; return the tasks by instance. The first leads."""
    fleet.app.start("a")
    fleet.app.becomes({"a": 6})
    fleet.app.start("b")
    fleet.app.start("c")
    fleet.app.becomes({"a": 2, "b": 2, "c": 2})
    return {name: set(tasks) for name, tasks in fleet.app.reports().items()}


def two_running(fleet: Fleet) -> None:
    """Wait for two instances with two tasks each; `a` leads."""
    fleet.app.start("a")
    fleet.app.becomes({"a": 4})
    fleet.app.start("b")
    fleet.app.becomes({"a": 2, "b": 2})


def learns(fleet: Fleet, name: str) -> None:
    """Wait until the instance was granted a learner. Its current copies would not show a learner that finished quickly."""

    def granted() -> bool:
        records = [record for _, record in fleet.log() if isinstance(record, Assignment)]
        return any(grant.learner for record in records for grant in record.grants if grant.instance == name)

    wait_until(granted, what="the first learner")


def newcomer_learns(fleet: Fleet) -> None:
    """Start `a`, and `b` once `a` runs all tasks; wait until `b` was granted a learner."""
    fleet.app.start("a")
    fleet.app.becomes({"a": 4})
    fleet.app.start("b")
    learns(fleet, "b")


# -- restarts ------------------------------------------------------------------------------------------------------------------


def test_rule_4_in_a_rolling_restart_no_task_moves_nothing_is_restored_and_another_topology_is_refused(
    broker: Kafka, application_id: str, tmp_path: Path
) -> None:
    with fleet(broker, application_id, tmp_path, {"restart.grace.ms": 60_000}, partitions=6) as found:
        before = three_running(found)
        began = found.log()[-1][0]
        restored = [len(re.findall(r"records restored", found.app.log(name))) for name in "abc"]
        for name in "bca":
            assert found.app.stop(name) == 0
            found.app.start(name)
            found.app.becomes({"a": 2, "b": 2, "c": 2})
            found.goes_on()
        assert {name: set(tasks) for name, tasks in found.app.reports().items()} == before
        for offset, record in found.log():
            if offset > began and isinstance(record, Assignment):
                elsewhere = {grant.instance: set(grant.active) - before[grant.instance] for grant in record.grants}
                assert not any(elsewhere.values()), f"the assignment at {offset} moves {elsewhere}"
        for name, times in zip("abc", restored, strict=True):
            reported = re.findall(r"(\d+) records restored", found.app.log(name))[times:]
            assert set(reported) <= {"0"}, f"{name} restored {reported} records"

        assert found.app.stop("c") == 0
        found.app.factory = "tests.support.fleets:without_count"
        assert found.app.start("c").wait(30) == 2
        log = found.app.log("c")
        assert (
            "runs another topology" in log
            and "store counts of sub-topology 0 is left out" in log
            and "Remedies: stop all its instances" in log
        )
        assert set(found.app.reports()["a"]) == before["a"] and set(found.app.reports()["b"]) == before["b"], "the others continue"
        found.app.factory = "tests.support.fleets:count"
        found.app.start("c")
        found.app.becomes({"a": 2, "b": 2, "c": 2})
        assert set(found.app.reports()["c"]) == before["c"], "the old version finds its tasks again"


def test_a_fleet_of_the_previous_protocol_is_rolled_to_this_one(broker: Kafka, application_id: str, tmp_path: Path) -> None:
    """Members of protocol 1.0 announce no shape of their topology. Both protocols share the tasks meanwhile, under either's lead."""
    with fleet(broker, application_id, tmp_path, {"restart.grace.ms": 60_000}) as found:
        found.app.factory = "tests.support.fleets:count_of_protocol_1_0"
        two_running(found)
        found.goes_on()
        found.app.factory = "tests.support.fleets:count"
        for name in "ba":
            assert found.app.stop(name) == 0
            found.app.start(name)
            found.app.becomes({"a": 2, "b": 2})
            found.goes_on()
        protocols = [record.protocol for _, record in found.log() if isinstance(record, Member) and record.state is State.RUNNING]
        assert (protocols[0], set(protocols[-2:])) == ("1.0", {PROTOCOL})


def test_two_versions_run_side_by_side_and_a_store_that_was_left_behind_is_refused(
    broker: Kafka, application_id: str, tmp_path: Path
) -> None:
    """The new version has one more operator and one more store. Tasks that ran with the store do not move back to an instance of the old
    version."""
    with fleet(broker, application_id, tmp_path, {"restart.grace.ms": 500, "acceptable.recovery.lag": 0}) as found:
        two_running(found)
        found.goes_on()
        assert found.app.stop("b") == 0
        found.app.becomes({"a": 4})
        found.app.factory = "tests.support.fleets:with_seen"
        found.app.start("b")
        found.app.becomes({"a": 2, "b": 2})
        found.goes_on()
        found.app.kill("b")
        wait_until(lambda: set(found.app.reports()) == {"a"}, what="the end of b")
        found.app.becomes({"a": 2})  # tasks with the store wait for an instance that has it
        found.app.start("b")
        found.app.becomes({"a": 2, "b": 2})
        found.goes_on()
        assert found.app.stop("a") == 0
        found.app.becomes({"b": 4})
        found.app.factory = "tests.support.fleets:count"
        assert found.app.start("a").wait(30) == 2, "the way back leads through a full stop"
        assert "store seen of sub-topology 0 is left out" in found.app.log("a")
        assert found.app.stop("b") == 0
        found.app.start("a")
        found.app.becomes({"a": 4})
        written = list(found.load.written)
        found.goes_on()
        found.app.factory = "tests.support.fleets:with_seen"
        assert found.app.start("b").wait(30) == 2, "its store misses what was processed without it"
        changelog = f"{found.app.id}-seen-changelog"
        assert f"its changelog {changelog} holds state, and misses all records" in found.app.log("b")
        broker.delete_topic(changelog)
        found.app.start("b")
        found.app.becomes({"a": 2, "b": 2})
        found.goes_on()
        wait_until(lambda: changelog in broker.topics() and broker.consume(changelog), 30, "entries of the store")
        for record in broker.consume(changelog):
            number, value = int((record.key or b"")[1:]), int.from_bytes(record.value or b"", "big")
            assert value > written[number], "the store continues from what it held on the disk"


def test_an_instance_that_does_not_lead_is_out_of_its_group_as_soon_as_it_has_closed(running: Fleet) -> None:
    """The client would not report it, and all members would wait for the session timeout: that of `b` is a minute."""
    slow = {"session.timeout.ms": 60_000}
    running.app.start("a")
    running.app.becomes({"a": 4})
    running.app.start("b", **slow)
    running.app.becomes({"a": 2, "b": 2})
    assert running.app.stop("b") == 0
    running.app.start("b", **slow)
    running.app.becomes({"a": 2, "b": 2}, 20)


class WrongClock(SystemClock):
    """A clock twenty minutes slow, or fast."""

    def __init__(self, minutes: int) -> None:
        self._off_ms = minutes * 60_000

    def wall_ms(self) -> int:
        return super().wall_ms() + self._off_ms


def test_rule_4_a_restart_is_waited_for_by_the_brokers_clock(broker: Kafka, application_id: str, tmp_path: Path) -> None:
    """With a slow clock it would have been given up at once; with a fast one, the wait would have been twenty minutes longer."""
    source, output = broker.create_topic("in", 6), broker.create_topic("out", 6)
    settings = {"bootstrap.servers": broker.bootstrap_servers, "application.id": application_id, **SESSION, "restart.grace.ms": 8_000}
    topology = count_topology(source, output)
    stays, slow, fast = (
        KafkaStreams(topology, {**settings, "client.id": name, "state.dir": str(tmp_path / name)}, clock=clock)
        for name, clock in {"a": SystemClock(), "b": WrongClock(-20), "c": WrongClock(20)}.items()
    )

    def shares() -> dict[str, int]:
        return {name: len(tasks) for name, tasks in members(broker, application_id).items()}

    with stays, slow, fast:
        stays.start()
        wait_until(lambda: shares() == {"a": 6}, what="six tasks")
        slow.start()
        fast.start()
        wait_until(lambda: shares() == {"a": 2, "b": 2, "c": 2}, what="two tasks each")
        assert slow.close(20_000, leave_group=False) and fast.close(20_000, leave_group=False)
        wait_until(lambda: set(shares()) == {"a"}, what="the end of b and c")
        time.sleep(1)  # rounds of the leader, in any of which it could reassign the tasks
        assert shares() == {"a": 2}
        wait_until(lambda: shares() == {"a": 6}, 20, "the end of the grace")


def test_tasks_without_stores_do_not_wait_for_an_instance_that_restarts(broker: Kafka, application_id: str, tmp_path: Path) -> None:
    source, output = broker.create_topic("in", 4), broker.create_topic("out", 4)
    builder = StreamsBuilder()
    builder.stream(source, Consumed(serdes.STRING, value=serdes.STRING)).to(output, Produced(serdes.STRING, value=serdes.STRING))
    settings = {"bootstrap.servers": broker.bootstrap_servers, "application.id": application_id, **SESSION, "restart.grace.ms": 600_000}

    def made(name: str) -> KafkaStreams:
        return KafkaStreams(builder.build(), {**settings, "client.id": name, "state.dir": str(tmp_path / name)})

    def shares() -> dict[str, int]:
        return {name: len(tasks) for name, tasks in members(broker, application_id).items()}

    with made("a") as stays, made("b") as restarts, made("b") as back:
        stays.start()
        wait_until(lambda: shares() == {"a": 4}, what="four tasks")
        restarts.start()
        wait_until(lambda: shares() == {"a": 2, "b": 2}, what="two tasks each")
        assert restarts.close(20_000, leave_group=False)
        wait_until(lambda: shares() == {"a": 4}, what="all tasks at a")
        back.start()
        wait_until(lambda: shares() == {"a": 2, "b": 2}, what="two tasks each again")


def test_all_are_killed_at_once_and_started_again(running: Fleet) -> None:
    two_running(running)
    running.goes_on()
    running.app.kill_all()
    running.app.start("b")
    running.app.start("a")
    running.app.becomes({"a": 2, "b": 2})
    running.goes_on()


# -- deaths at bad moments -----------------------------------------------------------------------------------------------------


def test_a_leaver_that_is_killed_while_it_hands_its_tasks_over_is_taken_over_from(
    broker: Kafka, application_id: str, tmp_path: Path
) -> None:
    with fleet(broker, application_id, tmp_path, {"acceptable.recovery.lag": 0, "max.warmup.replicas": 1}) as found:
        two_running(found)
        with CommandClient(found.app.id, broker.connection, "test") as commands:
            commands.send("close", instance="b")
        wait_until(lambda: any(isinstance(record, Member) and record.leaves for _, record in found.log()), what="b's wish to leave")
        found.app.kill("b")
        found.app.becomes({"a": 4})
        found.goes_on()


def test_a_learner_that_is_killed_leaves_the_tasks_where_they_are(broker: Kafka, application_id: str, tmp_path: Path) -> None:
    with fleet(broker, application_id, tmp_path, {"acceptable.recovery.lag": 0}) as found:
        newcomer_learns(found)
        found.app.kill("b")
        found.app.becomes({"a": 4})
        found.goes_on()
        found.app.start("b")
        found.app.becomes({"a": 2, "b": 2})


def test_the_leader_is_killed_while_a_newcomer_learns(broker: Kafka, application_id: str, tmp_path: Path) -> None:
    with fleet(broker, application_id, tmp_path, {"acceptable.recovery.lag": 0}) as found:
        newcomer_learns(found)
        found.app.kill("a")
        found.app.becomes({"b": 4})
        found.goes_on()


def test_rule_6_of_coordination_a_member_that_was_frozen_cannot_commit_when_it_wakes(running: Fleet) -> None:
    """A follower, then the leader. Each wakes with records that it has polled and processed but not committed, after its tasks were granted
    to others. A freeze shorter than the session moves nothing."""
    running.app.settings["commit.interval.ms"] = 1_500  # a suspended member is in the middle of a transaction
    two_running(running)
    before = running.app.reports()
    assignments = sum(isinstance(record, Assignment) for _, record in running.log())
    for name in "ab":
        running.app.freeze(name)
        time.sleep(SESSION_SECONDS / 4)
        running.app.thaw(name)
        running.goes_on()
    assert running.app.reports() == before
    assert sum(isinstance(record, Assignment) for _, record in running.log()) == assignments
    for frozen, other in ("ba", "ab"):
        running.app.freeze(frozen)
        wait_until(lambda other=other: len(running.app.reports().get(other, {})) == 4, 45, f"all tasks at {other}")  # type: ignore[misc]
        running.goes_on()
        running.app.thaw(frozen)
        running.app.becomes({"a": 2, "b": 2})
        running.goes_on()


# -- the network ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def behind(tmp_path: Path) -> Iterator[tuple[Kafka, Proxy]]:
    """Yield a separate broker for the test, and a proxy in front of it."""
    with broker_behind_proxy(tmp_path / "broker") as found:
        yield found


@pytest.mark.parametrize(
    ("far", "way"),
    [
        pytest.param("a", "split", id="the leader, silently"),
        pytest.param("b", "cut", id="a follower, connections closed", marks=pytest.mark.nightly),
    ],
)
def test_who_is_split_from_the_broker_is_taken_over_from_and_returns(
    behind: tuple[Kafka, Proxy], application_id: str, tmp_path: Path, far: str, way: str
) -> None:
    """It cannot know that others have its tasks, and must not write anything when its network is restored. A split shorter than the session
    moves nothing."""
    broker, proxy = behind
    with fleet(broker, application_id, tmp_path) as found:
        for number, name in enumerate("ab"):
            found.app.start(name, **({"bootstrap.servers": proxy.bootstrap_servers} if name == far else {}))
            found.app.becomes({"a": 4} if number == 0 else {"a": 2, "b": 2})
        found.goes_on()
        other = "b" if far == "a" else "a"
        if far == "b":
            before = found.app.reports()
            proxy.split()
            time.sleep(SESSION_SECONDS / 3)
            proxy.heal()
            found.goes_on()
            assert found.app.reports() == before
        proxy.split() if way == "split" else proxy.cut()
        wait_until(lambda: len(found.app.reports().get(other, {})) == 4, 45, f"all tasks at {other}")
        found.goes_on()
        proxy.heal()
        found.app.becomes({"a": 2, "b": 2}, 60)
        found.goes_on()


# -- the broker ----------------------------------------------------------------------------------------------------------------


def test_the_broker_is_killed_in_the_middle_of_a_scale_out(own_broker: EmbeddedBroker, application_id: str, tmp_path: Path) -> None:
    broker = Kafka(own_broker.bootstrap_servers)
    with fleet(broker, application_id, tmp_path / "fleet", {"acceptable.recovery.lag": 0}) as found:
        newcomer_learns(found)
        status = own_broker.status()
        assert status is not None
        os.kill(status.pid, signal.SIGKILL)
        wait_until(lambda: own_broker.status() is None, what="the end of the broker")
        own_broker.start()
        found.app.becomes({"a": 2, "b": 2}, 90)
        found.goes_on()


def test_the_coordination_topic_is_deleted_and_recreated(running: Fleet) -> None:
    two_running(running)
    running.app.broker.delete_topic(coordination_topic(running.app.id))
    running.goes_on()
    running.app.becomes({"a": 2, "b": 2}, 60)
    running.app.kill("b")
    running.app.becomes({"a": 4}, 60)
    running.goes_on()


# -- many ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_six_instances_of_which_two_die_one_leaves_and_two_come(broker: Kafka, application_id: str, tmp_path: Path) -> None:
    with fleet(broker, application_id, tmp_path, partitions=12) as found:
        for name in "abcdef":
            found.app.start(name)
        found.app.becomes(dict.fromkeys("abcdef", 2), 90)
        found.app.kill("a")
        found.app.kill("d")
        found.app.becomes(dict.fromkeys("bcef", 3), 60)
        with CommandClient(application_id, broker.connection, "test") as commands:
            commands.send("close", instance="c")
        found.app.start("g")
        found.app.start("h")
        found.shared_evenly("befgh")
        assert not [each for each in events(broker, application_id) if each.kind is EventKind.TASK_CORRUPTED]


@pytest.mark.nightly
def test_fifty_members_of_which_ten_die_at_once_the_leader_among_them_and_ten_come(
    broker: Kafka, application_id: str, tmp_path: Path
) -> None:
    """Complete members whose tasks process almost nothing, ten in a process."""
    with ExitStack() as ended, fleet(broker, application_id, tmp_path, partitions=100, factory="copy", rate=200) as found:
        environment = {
            **os.environ,
            "TEST_APPLICATION": application_id,
            "TEST_SERVERS": broker.bootstrap_servers,
            "TEST_SOURCE": found.app.source,
            "TEST_OUTPUT": found.app.output,
        }

        def ten(letter: str) -> subprocess.Popen[bytes]:
            command = [sys.executable, "-m", "tests.broker.crowd", str(tmp_path), *(f"{letter}{number}" for number in range(10))]
            process = subprocess.Popen(command, cwd=ROOT, env=environment)
            ended.callback(process.wait)
            ended.callback(process.kill)
            return process

        processes = {letter: ten(letter) for letter in "abcde"}
        found.shared_evenly([f"{letter}{number}" for letter in processes for number in range(10)])
        leader = next(record.leader for _, record in reversed(found.log()) if isinstance(record, Assignment))
        processes.pop(leader[0]).kill()
        found.shared_evenly([f"{letter}{number}" for letter in processes for number in range(10)])
        found.goes_on()
        processes["f"] = ten("f")
        found.shared_evenly([f"{letter}{number}" for letter in processes for number in range(10)])
        found.goes_on()
